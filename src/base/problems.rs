//! What is wrong just now and how to mend it: parts put it here, `kube-lite status` shows it.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Problems kept at one time; whoever has more than these reads the log.
const PROBLEMS_MAX: usize = 100;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong, in one sentence with the names that matter.
    pub what: String,
    /// How to mend it, with a command where there is one.
    pub fix: String,
}

/// The board of a process, cheap to clone; [`crate::Tasks::problems`] is where everybody finds it.
#[derive(Debug, Clone, Default)]
pub struct Problems(Arc<Mutex<BTreeMap<String, Problem>>>);

impl Problems {
    /// Says what is wrong, in place of what `key` said before. A key names part and object, such as
    /// `overlay/mtu/worker-1`. It is logged when it is new or has changed.
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

    /// The problem is gone; nothing happens when there was none.
    pub fn clear(&self, key: &str) {
        let was = self.0.lock().remove(key);
        if let Some(problem) = was {
            tracing::info!(key, "no longer: {}", problem.what);
        }
    }

    /// Makes `now` all that is wrong below `prefix`: what it does not name is no longer wrong.
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

    /// All that is wrong, by key.
    pub fn list(&self) -> Vec<(String, Problem)> {
        self.0.lock().iter().map(|(key, problem)| (key.clone(), problem.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_says_one_thing_at_a_time_and_the_board_is_bounded() {
        let board = Problems::default();
        board.put("overlay/mtu/b", "packets over 1400 bytes are lost", "lower the MTU");
        board.clone().put("overlay/mtu/b", "packets over 1300 bytes are lost", "lower the MTU");
        let whats = || board.list().into_iter().map(|(_, p)| p.what).collect::<Vec<_>>();
        assert_eq!(whats(), ["packets over 1300 bytes are lost"]);
        board.clear("overlay/mtu/a");
        board.clear("overlay/mtu/b");
        assert_eq!(whats(), [""; 0]);
        let problem = |what: &str| Problem { what: what.into(), fix: "f".into() };
        board.put("other/a", "o", "f");
        board.replace(
            "file/",
            vec![("file/a".into(), problem("a")), ("file/b".into(), problem("b"))],
        );
        board.replace("file/", vec![("file/b".into(), problem("c"))]);
        assert_eq!(whats(), ["c", "o"]);
        for n in 0..200 {
            board.put(&n.to_string(), "x", "y");
        }
        assert_eq!(board.list().len(), 100);
    }
}
