//! PersistentVolumeClaims bound to volumes that are directories of this node: `local` and
//! `hostPath`.

use api::k8s::api::core::v1 as core;
use std::io;
use std::path::{Path, PathBuf};

use super::directory::{self, VolumePath};
use super::error::SetUpError;
use crate::config::Config;
use crate::pods::pod::Pod;
use client::Client;

/// Directory in a pod's directory with a mark for each local volume that it uses.
const MARKS: &str = "volumes/kubernetes.io~local-volume";
/// Changes of ownership are serialized: the second pod of a volume waits for the first.
static CHANGING: parking_lot::Mutex<()> = parking_lot::const_mutex(());

/// Marks a local volume as used by a pod. The first pod of a volume changes its group, unless
/// `group` requires a mismatch and there is none; files of running pods are not changed.
fn mark_first_use(
    pods: &Path,
    own: &Path,
    volume: &str,
    root: &Path,
    group: Option<(u32, bool)>,
) -> io::Result<()> {
    let _one = CHANGING.lock();
    let mark = |pod: &Path| pod.join(MARKS).join(volume);
    if mark(own).exists() {
        return Ok(());
    }
    let used = match std::fs::read_dir(pods) {
        Ok(entries) => entries.flatten().any(|pod| mark(&pod.path()).exists()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => false,
        Err(e) => return Err(e),
    };
    if let (Some((group, on_mismatch)), false) = (group, used)
        && !(on_mismatch && directory::is_of_group(root, group))
    {
        directory::give_to_group(root, group)?;
    }
    std::fs::create_dir_all(mark(own))
}

/// Returns the path of the volume of a claim.
pub(super) async fn claim_path(
    config: &Config,
    client: &Client,
    pod: &Pod,
    name: &str,
    read_only: bool,
    fs_group: Option<i64>,
) -> Result<VolumePath, SetUpError> {
    let claim: core::PersistentVolumeClaim = client.get(pod.namespace(), name).await?;
    let bound = claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
    let volume_name =
        claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).filter(|v| !v.is_empty());
    let (Some(volume_name), true) = (volume_name, bound) else {
        let namespace = pod.namespace().to_owned();
        return Err(SetUpError::NotBound { namespace, name: name.to_owned() });
    };
    let volume: core::PersistentVolume = client.get("", volume_name).await?;
    let spec = volume.spec.unwrap_or_default();
    if spec.volume_mode.as_deref() == Some("Block") {
        return Err(SetUpError::BlockNotSupported);
    }
    let path = if let Some(source) = &spec.host_path {
        directory::host_path(source)?;
        PathBuf::from(&source.path)
    } else if let Some(source) = &spec.local {
        let path = PathBuf::from(&source.path);
        if !path.exists() {
            return Err(SetUpError::NoPath(source.path.clone()));
        }
        path
    } else {
        return Err(SetUpError::DriverNotSupported(volume_name.to_owned()));
    };
    if spec.local.is_some() && !read_only {
        let (pods, own) = (config.root_dir.join("pods"), config.pod_dir(&pod.uid));
        let (volume, root) = (volume_name.to_owned(), path.clone());
        let security = pod.spec().security_context.as_ref();
        let on_mismatch =
            security.and_then(|s| s.fs_group_change_policy.as_deref()) == Some("OnRootMismatch");
        let group = fs_group.and_then(|g| u32::try_from(g).ok()).map(|g| (g, on_mismatch));
        base::tasks::blocking(move || mark_first_use(&pods, &own, &volume, &root, group))
            .await?
            .map_err(|source| SetUpError::FsGroup { path: path.clone(), source })?;
    }
    Ok(VolumePath { path, read_only })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn the_first_pod_on_a_volume_changes_its_group() {
        let home = tempfile::tempdir().unwrap();
        let (pods, root) = (home.path().join("pods"), home.path().join("data"));
        std::fs::create_dir_all(root.join("db")).unwrap();
        let group = std::fs::metadata(&root).unwrap().gid();
        let private = || directory::chmod(&root.join("db"), 0o700).unwrap();
        let used = |pod: &str, on_mismatch| {
            mark_first_use(&pods, &pods.join(pod), "v", &root, Some((group, on_mismatch))).unwrap();
            mode(&root.join("db"))
        };
        private();
        assert_eq!(used("a", false), 0o2770, "the first pod's group may write");
        private();
        assert_eq!(used("a", false), 0o700, "a container starts again");
        assert_eq!(used("b", false), 0o700, "another pod comes beside it");
        for pod in ["a", "b"] {
            std::fs::remove_dir_all(pods.join(pod)).unwrap();
        }
        assert_eq!(used("c", true), 0o700, "the root is the group's already");
        std::fs::remove_dir_all(pods.join("c")).unwrap();
        assert_eq!(used("d", false), 0o2770, "the next pod, after all others");
    }
}
