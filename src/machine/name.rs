//! Detects a changed node name: pods of the former name would keep running next to those of the new
//! one.

use std::path::Path;

use crate::error_catalogue::{CommandError, DATA_DIR, NODE_RENAMED};

/// The file with the name, in the node's directory.
const FILE: &str = "node-name";

/// Checks that the name has not changed while there are pods of the former name. `pods` is the
/// kubelet's folder of pods.
///
/// # Errors
/// Names both, and what to do.
pub(super) fn check(directory: &Path, pods: &Path, name: &str) -> Result<(), CommandError> {
    let path = directory.join(FILE);
    let former = match std::fs::read_to_string(&path) {
        Ok(text) => text.trim().to_owned(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(DATA_DIR.error(format!("{}: {error}", path.display()))),
    };
    let has_pods = std::fs::read_dir(pods).is_ok_and(|mut entries| entries.next().is_some());
    if former.is_empty() || former == name || !has_pods {
        return Ok(());
    }
    Err(NODE_RENAMED.error(format!(
        "this machine is node {former} and has its pods in {}, but the node name is {name} now; start it with \
         --node-name={former}, or remove the former node first: `kubectl drain {former} --ignore-daemonsets`, `kubectl delete node {former}`",
        pods.display()
    )))
}

/// Records the name.
///
/// # Errors
/// The file cannot be written.
pub(super) fn record(directory: &Path, name: &str) -> Result<(), CommandError> {
    let path = directory.join(FILE);
    if std::fs::read_to_string(&path).is_ok_and(|former| former.trim() == name) {
        return Ok(());
    }
    base::fs::create_dir(directory, 0o700).map_err(|e| DATA_DIR.error(e))?;
    base::fs::write_atomic(&path, format!("{name}\n").as_bytes(), 0o600)
        .map_err(|e| DATA_DIR.error(e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_name_is_rejected_while_there_are_pods() {
        let root = tempfile::tempdir().unwrap();
        let (agent, pods) = (root.path().join("agent"), root.path().join("pods"));
        assert!(check(&agent, &pods, "a").is_ok());
        record(&agent, "a").unwrap();
        assert!(check(&agent, &pods, "b").is_ok());
        std::fs::create_dir_all(pods.join("uid")).unwrap();
        assert!(check(&agent, &pods, "a").is_ok());
        let text = check(&agent, &pods, "b").unwrap_err().to_string();
        assert!(text.contains("KL0304") && text.contains("--node-name=a"), "{text}");
        std::fs::remove_dir(pods.join("uid")).unwrap();
        assert!(check(&agent, &pods, "b").is_ok());
    }
}
