//! The SELinux label of a volume: whether a pod may have it.

use super::volume::ScsiVolume;
use crate::context::Node;
use crate::pods::pod::Pod;
use crate::volumes::selinux::labels::VolumeLabels;
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
