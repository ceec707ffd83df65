//! The SELinux label of a CSI volume: whether a pod may have it with this label, and what has to be
//! unmounted before.

use api::k8s::api::storage::v1::CSIDriverSpec;

use super::mount;
use super::set_up::VolumeOperation;
use crate::context::Node;
use crate::csi::error::{CsiError, CsiVolumeError};
use crate::csi::paths;
use crate::csi::record::{self, StagedVolume, VolumeData};
use crate::csi::source::CsiVolume;
use crate::pods::pod::Pod;
use crate::volumes::directory::VolumePath;
use crate::volumes::mounts;
use crate::volumes::selinux::labels::{MountState, VolumeLabels};
use crate::volumes::selinux::mount_option::has_file_labels;
use crate::volumes::selinux::{LabelledVolume, SelinuxError};

/// Adds a pod to the users of a volume, and returns the labels of the volume. The CSIDriver object
/// says whether the driver mounts with labels.
///
/// # Errors
///
/// The labels of containers or pods conflict.
pub(super) fn admit(
    node: &Node,
    pod: &Pod,
    volume: &CsiVolume,
    object: Option<&CSIDriverSpec>,
) -> Result<VolumeLabels, SelinuxError> {
    let plugin = format!("{}/{}", paths::PLUGIN, volume.driver);
    let labelled = LabelledVolume {
        name: &volume.name,
        spec_name: &volume.spec_name,
        unique_name: &volume.unique_name(),
        plugin: &plugin,
        access_modes: volume.persistent_modes(),
        is_supported: object.and_then(|spec| spec.se_linux_mount) == Some(true),
    };
    node.selinux.admit(pod, labelled)
}

/// Has the driver unstage a volume that is staged with another label for no other pod. The caller
/// holds the lock of the volume.
///
/// # Errors
///
/// Other pods have it with another label, or the driver does not unstage it.
pub(super) async fn unstage_other(of: &VolumeOperation) -> Result<(), CsiVolumeError> {
    if !of.has_selinux || of.is_remount || of.volume.is_block {
        return Ok(());
    }
    let (driver, handle) = (of.volume.driver.clone(), of.volume.handle.clone());
    let staged = StagedVolume { driver, handle, device: None };
    let failed = |source| CsiVolumeError::Failed {
        step: "MountVolume.MountDevice",
        spec_name: of.volume.spec_name.clone(),
        source,
    };
    match mount_state(of, staged.clone()).await.map_err(failed)? {
        MountState::Fits => Ok(()),
        MountState::InUse => Err(SelinuxError::Mounted(staged.unique_name()).into()),
        MountState::Stale => mount::unstage(&of.csi, &staged).await.map_err(failed),
    }
}

/// Compares the label of the volume with those of what is mounted.
async fn mount_state(of: &VolumeOperation, staged: StagedVolume) -> Result<MountState, CsiError> {
    let (root, own, needed) = (of.csi.root.clone(), of.pod_dir.clone(), of.labels.mount.clone());
    let state = base::tasks::blocking(move || -> std::io::Result<MountState> {
        let others = record::labels_of_others(&root, &own, &staged)?;
        let staging = paths::staging_path(&root, &staged.driver, &staged.handle);
        let data = VolumeData::load(staging.parent().unwrap_or(&staging))?;
        let shared = data.map(|data| data.se_linux_mount_context);
        Ok(MountState::of(&needed, &others, shared.as_deref()))
    });
    Ok(state.await??)
}

/// Records whether the runtime has to label the files of a volume that is set up: those that were
/// not mounted with a label and can have labels of their own.
///
/// # Errors
///
/// The table of mounts cannot be read.
pub(super) async fn with_relabel(
    node: &Node,
    path: VolumePath,
    labels: &VolumeLabels,
) -> Result<VolumePath, CsiError> {
    let is_labelled = !labels.mount.is_empty();
    if !node.selinux.is_enabled() || is_labelled || path.read_only || path.is_device {
        return Ok(path);
    }
    let mounted = path.path.clone();
    let options = base::tasks::blocking(move || mounts::options_at(&mounted)).await??;
    let is_relabelled = options.is_some_and(|options| has_file_labels(&options));
    Ok(VolumePath { is_relabelled, ..path })
}
