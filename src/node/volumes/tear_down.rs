//! Tears the volumes of a pod down, and removes its directory.

use std::path::Path;

use super::csi;
use super::mounts;
use super::scsi::{self, ScsiTearDownError};
use crate::config::Config;
use crate::context::Node;
use crate::csi::error::CsiTearDownError;
use crate::csi::record::StagedVolume;

/// Why the volumes of a pod cannot be torn down, or its directory cannot be removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TearDownError {
    #[error(transparent)]
    Csi(#[from] CsiTearDownError),
    #[error(transparent)]
    Scsi(#[from] ScsiTearDownError),
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Panicked(#[from] tokio::task::JoinError),
}

/// Has drivers unpublish the CSI volumes of a pod whose containers have ended, takes its disks, and
/// starts to unstage and detach those that no other pod uses; does nothing for a pod without any.
///
/// # Errors
///
/// A driver that is not registered or cannot do it, or a disk in use. The data on disk stays, for
/// another attempt.
pub(crate) async fn release(node: &Node, uid: &str) -> Result<(), TearDownError> {
    let (key, problems) = (format!("volumes/{uid}"), node.tasks.problems());
    let pod_dir = node.identity.config.pod_dir(uid);
    // The containers have ended: another pod may need the volumes with another label.
    node.selinux.release(uid);
    let report = |error: &dyn std::fmt::Display, fix: &str| {
        let what = format!("a volume of the pod with uid {uid} is not released: {error}");
        problems.put(&key, what, fix);
    };
    // Before the CSI volumes, after which the pod counts as the user of none.
    let detached = scsi::tear_down(&node.scsi, &node.csi, &node.tasks, (uid, &pod_dir)).await;
    if let Err(error) = detached {
        report(&error, "end what uses the files of the volume; kube-lite retries");
        return Err(error.into());
    }
    let released = csi::tear_down(&node.csi, &node.tasks, (uid, &pod_dir)).await;
    match &released {
        Ok(()) => {
            problems.clear(&key);
            if node.selinux.is_enabled() {
                node.csi.wake_waiting();
            }
        }
        Err(error) => {
            report(error, "check that the CSI driver runs on this node; kube-lite retries");
        }
    }
    Ok(released?)
}

/// Unstages volumes that an earlier process left staged for no pod, as
/// [`crate::csi::Csi::read_volumes_in_use`] returns them.
pub(crate) fn unstage_left(node: &Node, left: Vec<(StagedVolume, bool)>) {
    for (volume, is_in_use) in left {
        csi::unstage(&node.csi, &node.tasks, volume, is_in_use);
    }
}

/// Whether drivers have to be called to tear down the volumes of a pod. Blocks.
pub(crate) fn has_csi_volumes(config: &Config, uid: &str) -> bool {
    csi::has_volumes(&config.root_dir, &config.pod_dir(uid))
}

/// Unmounts the volumes of a pod and removes its directory. If a mount remains, nothing below it is
/// removed.
///
/// # Errors
///
/// A CSI volume that its driver does not release, a mount that cannot be undone, or a directory
/// that cannot be removed.
pub(crate) async fn tear_down(node: &Node, uid: &str) -> Result<(), TearDownError> {
    release(node, uid).await?;
    node.caches.block_devices.remove_pod(uid);
    let pod_dir = node.identity.config.pod_dir(uid);
    Ok(base::tasks::blocking(move || remove_pod_dir(&pod_dir)).await??)
}

/// Tears down the volumes of a pod that has ended and is still in the API, as upstream's volume
/// manager does (`keepTerminatedPodVolumes`). What else is in the pod's directory stays.
///
/// # Errors
///
/// As [`tear_down`].
pub(crate) async fn tear_down_ended(node: &Node, uid: &str) -> Result<(), TearDownError> {
    release(node, uid).await?;
    node.caches.block_devices.remove_pod(uid);
    let pod_dir = node.identity.config.pod_dir(uid);
    Ok(base::tasks::blocking(move || remove_volumes(&pod_dir)).await??)
}

/// Directories of a pod with its volumes, those that are mounts of others first.
const VOLUME_DIRS: [&str; 3] = ["volume-subpaths", "volumeDevices", "volumes"];

fn remove_volumes(pod_dir: &Path) -> std::io::Result<()> {
    VOLUME_DIRS.iter().try_for_each(|name| remove_pod_dir(&pod_dir.join(name)))
}

fn remove_pod_dir(pod_dir: &Path) -> std::io::Result<()> {
    mounts::unmount_below(pod_dir)?;
    match std::fs::remove_dir_all(pod_dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_volumes_of_an_ended_pod_are_removed_and_its_hosts_file_stays() {
        let directory = tempfile::tempdir().unwrap();
        let pod_dir = directory.path();
        std::fs::create_dir_all(pod_dir.join("volumes/kubernetes.io~empty-dir/data")).unwrap();
        std::fs::write(pod_dir.join("etc-hosts"), "127.0.0.1 localhost\n").unwrap();
        remove_volumes(pod_dir).unwrap();
        assert!(!pod_dir.join("volumes").exists());
        assert!(pod_dir.join("etc-hosts").exists());
        remove_volumes(pod_dir).unwrap();
    }
}
