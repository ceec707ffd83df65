//! The SELinux label of a volume: whether a pod may have it with this label, and what has to be
//! unmounted before.

use super::error::{ScsiError, ScsiVolumeError};
use super::record;
use super::set_up::SetUp;
use super::volume::{GlobalVolume, ScsiVolume};
use crate::context::Node;
use crate::pods::pod::Pod;
use crate::volumes::mounts;
use crate::volumes::selinux::labels::{MountState, VolumeLabels};
use crate::volumes::selinux::mount_option::mounted_label;
use crate::volumes::selinux::{LabelledVolume, SelinuxError};

/// Adds a pod to the users of a volume, and returns the labels of the volume.
///
/// # Errors
///
/// The labels of containers or pods conflict.
pub(super) fn admit(
    node: &Node,
    pod: &Pod,
    volume: &ScsiVolume,
) -> Result<VolumeLabels, SelinuxError> {
    let labelled = LabelledVolume {
        name: &volume.name,
        spec_name: &volume.spec_name,
        unique_name: &volume.unique_name,
        plugin: volume.plugin(),
        access_modes: volume.access_modes.as_deref(),
        is_supported: true,
    };
    node.selinux.admit(pod, labelled)
}

/// Detaches a volume that is mounted with another label for no other pod; it is attached again
/// afterwards. The caller holds the lock of the volume.
///
/// # Errors
///
/// Other pods have it with another label, or it cannot be detached.
pub(super) async fn detach_other(of: &SetUp) -> Result<(), ScsiVolumeError> {
    if !of.has_selinux || of.volume.is_block {
        return Ok(());
    }
    let failed = |source| ScsiVolumeError::Failed {
        step: "MountVolume.MountDevice",
        spec_name: of.volume.spec_name.clone(),
        source,
    };
    match mount_state(of).await.map_err(failed)? {
        MountState::Fits => Ok(()),
        MountState::InUse => Err(SelinuxError::Mounted(of.volume.unique_name.clone()).into()),
        MountState::Stale => {
            let (path, is_iscsi) = (of.global(), of.volume.is_iscsi());
            let left = GlobalVolume { path, is_block: false, is_iscsi };
            of.scsi.detach(&left).await.map_err(failed)
        }
    }
}

/// Compares the label of the volume with those of what is mounted.
async fn mount_state(of: &SetUp) -> Result<MountState, ScsiError> {
    let (root, own, global) = (of.scsi.root.clone(), of.pod_dir.clone(), of.global());
    let needed = of.labels.mount.clone();
    let state = base::tasks::blocking(move || -> std::io::Result<MountState> {
        let others = record::labels_of_others(&root, &own, &global)?;
        let options = mounts::options_at(&global)?;
        let shared = options.as_deref().map(mounted_label);
        Ok(MountState::of(&needed, &others, shared))
    });
    Ok(state.await??)
}
