//! The SELinux label of a CSI volume: whether a pod may have it, and who labels the files.

use api::k8s::api::storage::v1::CSIDriverSpec;

use crate::context::Node;
use crate::csi::error::CsiError;
use crate::csi::paths;
use crate::csi::source::CsiVolume;
use crate::pods::pod::Pod;
use crate::volumes::directory::VolumePath;
use crate::volumes::mounts;
use crate::volumes::selinux::labels::VolumeLabels;
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
