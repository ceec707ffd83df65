//! Checks of this machine for `kube-lite status`, of problems that the conditions of the Node
//! object do not show.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixStream;

use super::Problem;

/// Maximum wait until a Unix socket accepts a connection; a socket that needs longer has a problem.
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// The problem of the CNI plugin's socket if nothing listens there or another process does. The
/// plugin, which the container runtime starts for each new pod, requests the pod's network there.
pub(crate) async fn plugin_socket(path: &Path) -> Option<Problem> {
    let connection = tokio::time::timeout(CONNECT_MAX, UnixStream::connect(path)).await;
    let why = match connection {
        Err(_) => format!("no answer within {} s", CONNECT_MAX.as_secs()),
        Ok(Err(error)) => error.to_string(),
        Ok(Ok(stream)) => {
            // Without the process id of the listener, no problem can be determined.
            let listener_pid = stream.peer_cred().ok()?.pid()?;
            if i64::from(listener_pid) == i64::from(std::process::id()) {
                return None;
            }
            format!("process {listener_pid} listens on it")
        }
    };
    let what = format!(
        "the network plugin cannot reach this node on {}, so no pod can start: {why}",
        path.display()
    );
    let fix = "stop any other kube-lite on this machine, then restart this one (`systemctl restart kube-lite`)";
    Some(Problem::new(what, fix))
}

/// The problem of certificates or CAs that were replaced on disk after this process read the former
/// ones at its start. `started` is the time of the start in seconds since the epoch.
///
/// `kube-lite certificate rotate` moves the former certificates to `server/tls-<seconds>`; the CAs
/// of `kube-lite certificate rotate-ca` are pending until the next start.
pub(crate) fn rotated(data_dir: &Path, started: u64) -> Option<Problem> {
    let rotated_at = |folder: PathBuf| -> Option<u64> {
        let name = folder.file_name()?.to_str()?;
        name.strip_prefix("tls-")?.parse().ok()
    };
    let entries = std::fs::read_dir(data_dir.join("server"));
    let has_rotated_certificates = entries
        .into_iter()
        .flatten()
        .flatten()
        .any(|entry| rotated_at(entry.path()).is_some_and(|at| at >= started));
    if !has_rotated_certificates && !cluster::rotation::is_pending(data_dir) {
        return None;
    }
    Some(Problem::new(
        "restart needed: certificates were rotated and this server still uses the former ones",
        "restart kube-lite on this machine (`systemctl restart kube-lite`)",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_plugin_socket_is_a_problem_unless_this_process_listens() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cni.sock");
        let missing = plugin_socket(&path).await.unwrap();
        assert!(missing.what.ends_with("No such file or directory (os error 2)"), "{missing:?}");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        assert_eq!(plugin_socket(&path).await, None);
        drop(listener);
        assert!(plugin_socket(&path).await.is_some());
    }

    #[test]
    fn a_rotation_after_the_start_needs_a_restart_and_one_before_it_does_not() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("server/tls")).unwrap();
        std::fs::create_dir_all(folder.path().join("server/tls-100")).unwrap();
        assert_eq!(rotated(folder.path(), 101), None);
        assert!(rotated(folder.path(), 100).unwrap().what.starts_with("restart needed"));
    }
}
