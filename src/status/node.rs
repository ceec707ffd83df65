//! Checks of `kube-lite status` on the node's machine, in addition to the Node object.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixStream;

use super::Problem;

/// A socket of this machine that is not connected to within this time does not answer.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Most file names listed.
const NAMES_MAX: usize = 5;

/// The problem of the network plugin's socket: nothing listens there, or another process does. The
/// container runtime asks on it for the network of each new pod.
pub(crate) async fn plugin_socket(path: &Path) -> Option<Problem> {
    let connected = tokio::time::timeout(CONNECT_MAX, UnixStream::connect(path)).await;
    let why = match connected {
        Err(_) => format!("no answer within {} s", CONNECT_MAX.as_secs()),
        Ok(Err(error)) => error.to_string(),
        Ok(Ok(stream)) => {
            let listener = stream.peer_cred().ok()?.pid()?;
            if i64::from(listener) == i64::from(std::process::id()) {
                return None;
            }
            format!("process {listener} listens on it")
        }
    };
    let what = format!(
        "the network plugin cannot reach this node on {}, so no pod can start: {why}",
        path.display()
    );
    let fix = "stop any other kube-lite on this machine, then restart this one (`systemctl restart kube-lite`)";
    Some(Problem::new(what, fix))
}

/// The problem of manifests in a folder that k3s deploys from and kube-lite does not read.
pub(crate) fn unread_manifests(folder: &Path) -> Option<Problem> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !name.starts_with('.'))
        .collect();
    if names.is_empty() {
        return None;
    }
    names.sort();
    let more = names.len().saturating_sub(NAMES_MAX);
    names.truncate(NAMES_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let at = folder.display();
    let what = format!("the manifests in {at} are not deployed: {}{more}", names.join(", "));
    let fix = format!("apply them (`kubectl apply -f {at}`) and move them elsewhere");
    Some(Problem::new(what, fix))
}

/// The problem of certificates or CAs that were replaced on disk after this process started.
pub(crate) fn rotated(data_dir: &Path, started: u64) -> Option<Problem> {
    let rotated = |folder: PathBuf| {
        let name = folder.file_name()?.to_str()?;
        let at: u64 = name.strip_prefix("tls-")?.parse().ok()?;
        (at >= started).then_some(())
    };
    let server = std::fs::read_dir(data_dir.join("server"));
    let leaves = server.into_iter().flatten().flatten().any(|e| rotated(e.path()).is_some());
    if !leaves && !cluster::rotation::is_pending(data_dir) {
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
    async fn the_plugin_socket_answers_only_while_this_process_listens() {
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
    fn manifests_that_nothing_reads_are_named() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(unread_manifests(&folder.path().join("none")), None);
        assert_eq!(unread_manifests(folder.path()), None);
        for n in 0..7 {
            std::fs::write(folder.path().join(format!("{n}.yaml")), "").unwrap();
        }
        let what = unread_manifests(folder.path()).unwrap().what;
        assert!(what.ends_with(": 0.yaml, 1.yaml, 2.yaml, 3.yaml, 4.yaml and 2 more"), "{what}");
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
