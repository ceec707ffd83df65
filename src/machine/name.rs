//! Whose pods a machine has: a node that was renamed would run them beside those of its new name.

use std::path::Path;

use crate::error_catalogue::{DATA_DIR, NODE_RENAMED, Refusal};

/// The file with the name, in the node's directory.
const FILE: &str = "node-name";

/// Refuses another name while there are pods of the former one. `pods` is the kubelet's folder of pods.
///
/// # Errors
/// Names both, and what to do.
pub(super) fn check(directory: &Path, pods: &Path, name: &str) -> Result<(), Refusal> {
    let path = directory.join(FILE);
    let former = match std::fs::read_to_string(&path) {
        Ok(text) => text.trim().to_owned(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(DATA_DIR.refuse(format!("{}: {error}", path.display()))),
    };
    let some = std::fs::read_dir(pods).is_ok_and(|mut entries| entries.next().is_some());
    if former.is_empty() || former == name || !some {
        return Ok(());
    }
    Err(NODE_RENAMED.refuse(format!(
        "this machine is node {former} and has its pods in {}, but is to be {name} now; start it with --node-name={former}, or \
         take the former out first: `kubectl drain {former} --ignore-daemonsets`, `kubectl delete node {former}`",
        pods.display()
    )))
}

/// Remembers the name.
///
/// # Errors
/// When it cannot be written.
pub(super) fn remember(directory: &Path, name: &str) -> Result<(), Refusal> {
    let path = directory.join(FILE);
    if std::fs::read_to_string(&path).is_ok_and(|former| former.trim() == name) {
        return Ok(());
    }
    base::fs::create_dir(directory, 0o700).map_err(|e| DATA_DIR.refuse(e))?;
    base::fs::write_atomic(&path, format!("{name}\n").as_bytes(), 0o600)
        .map_err(|e| DATA_DIR.refuse(e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_name_is_refused_as_long_as_there_are_pods() {
        let root = tempfile::tempdir().unwrap();
        let (agent, pods) = (root.path().join("agent"), root.path().join("pods"));
        assert!(check(&agent, &pods, "a").is_ok());
        remember(&agent, "a").unwrap();
        assert!(check(&agent, &pods, "b").is_ok());
        std::fs::create_dir_all(pods.join("uid")).unwrap();
        assert!(check(&agent, &pods, "a").is_ok());
        let text = check(&agent, &pods, "b").unwrap_err().to_string();
        assert!(text.contains("KL0304") && text.contains("--node-name=a"), "{text}");
        std::fs::remove_dir(pods.join("uid")).unwrap();
        assert!(check(&agent, &pods, "b").is_ok());
    }
}
