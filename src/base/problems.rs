//! The current problems and their fixes: components report them, `kube-lite status` shows them.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Maximum number of problems; further ones are only logged.
const PROBLEMS_MAX: usize = 100;

/// A current problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The problem, in one sentence with the relevant names.
    pub what: String,
    /// The fix, with a command if there is one.
    pub fix: String,
}

/// The problems of a process, cheap to clone; see [`crate::Tasks::problems`].
#[derive(Debug, Clone, Default)]
pub struct Problems(Arc<Mutex<BTreeMap<String, Problem>>>);

impl Problems {
    /// Reports a problem and replaces an earlier one with the same key. A key names component and
    /// object, such as `overlay/mtu/worker-1`. Logs it if it is new or has changed.
    pub fn put(&self, key: &str, what: impl Into<String>, fix: impl Into<String>) {
        let problem = Problem { what: what.into(), fix: fix.into() };
        let mut all = self.0.lock();
        if all.get(key) == Some(&problem) {
            return;
        }
        if all.len() < PROBLEMS_MAX || all.contains_key(key) {
            all.insert(key.to_owned(), problem.clone());
        }
        drop(all);
        tracing::warn!(key, fix = problem.fix, "{}", problem.what);
    }

    /// Removes a problem, if there is one.
    pub fn clear(&self, key: &str) {
        let was = self.0.lock().remove(key);
        if let Some(problem) = was {
            tracing::info!(key, "no longer: {}", problem.what);
        }
    }

    /// Replaces all problems whose keys start with `prefix` by `now`.
    pub fn replace(&self, prefix: &str, now: Vec<(String, Problem)>) {
        let all: Vec<String> = self.0.lock().keys().cloned().collect();
        let gone =
            |key: &&String| key.starts_with(prefix) && !now.iter().any(|(name, _)| name == *key);
        for key in all.iter().filter(gone) {
            self.clear(key);
        }
        for (key, problem) in now {
            self.put(&key, problem.what, problem.fix);
        }
    }

    /// All problems, by key.
    pub fn list(&self) -> Vec<(String, Problem)> {
        self.0.lock().iter().map(|(key, problem)| (key.clone(), problem.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_problem_and_their_number_is_bounded() {
        let problems = Problems::default();
        problems.put("overlay/mtu/b", "packets over 1400 bytes are lost", "lower the MTU");
        problems.clone().put("overlay/mtu/b", "packets over 1300 bytes are lost", "lower the MTU");
        let whats = || problems.list().into_iter().map(|(_, p)| p.what).collect::<Vec<_>>();
        assert_eq!(whats(), ["packets over 1300 bytes are lost"]);
        problems.clear("overlay/mtu/a");
        problems.clear("overlay/mtu/b");
        assert_eq!(whats(), [""; 0]);
        let problem = |what: &str| Problem { what: what.into(), fix: "f".into() };
        problems.put("other/a", "o", "f");
        problems.replace(
            "file/",
            vec![("file/a".into(), problem("a")), ("file/b".into(), problem("b"))],
        );
        problems.replace("file/", vec![("file/b".into(), problem("c"))]);
        assert_eq!(whats(), ["c", "o"]);
        for n in 0..200 {
            problems.put(&n.to_string(), "x", "y");
        }
        assert_eq!(problems.list().len(), 100);
    }
}
