//! The metrics of the controller, with upstream's names, labels and texts.

use std::time::Duration;

use base::metrics::Family;

use super::Controller;
use super::desired::{AttachPod, bound_volume};
use super::names::VolumeName;

/// Upper bounds in seconds.
pub(crate) static OPERATION_BOUNDS: [f64; 13] =
    [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

/// Detachments without a check that the volume is not mounted.
pub(super) static FORCED_DETACHES: Family = Family::counter(
    "attach_detach_controller_attachdetach_controller_forced_detaches",
    "[ALPHA] Number of times the A/D Controller performed a forced detach",
    &["reason"],
);

/// Volumes that pods need and volumes that have an attachment, per node.
pub(super) static TOTAL_VOLUMES: Family = Family::gauge(
    "attachdetach_controller_total_volumes",
    "[ALPHA] Number of volumes in A/D Controller",
    &["plugin_name", "state"],
);

/// Volumes of pods that have a node, of plugins that attach.
static VOLUMES_IN_USE: Family = Family::gauge(
    "storage_count_attachable_volumes_in_use",
    "[ALPHA] Measure number of volumes in use",
    &["node", "volume_plugin"],
);

/// How long operations take, with the answer of external-attacher.
static OPERATION_DURATION: Family = Family::histogram(
    "storage_operation_duration_seconds",
    "[BETA] Storage operation duration",
    &["migrated", "operation_name", "status", "volume_plugin"],
    &OPERATION_BOUNDS,
);

/// The families of this controller, in the order in which they are rendered.
pub(crate) static ALL: [&Family; 4] =
    [&FORCED_DETACHES, &TOTAL_VOLUMES, &VOLUMES_IN_USE, &OPERATION_DURATION];

impl Controller {
    /// Counts the volumes that pods use, by node and plugin (`getVolumeInUseCount`).
    pub(super) fn count(&self) {
        let counted = VOLUMES_IN_USE.empty();
        for object in self.pods.cache().list("") {
            // A pod that cannot be read is in the log of the controller.
            let Ok(pod) = AttachPod::of(&object) else { continue };
            if pod.node.is_empty() {
                continue;
            }
            for claim in pod.bound_claims(&object.key.namespace, &object.uid, &self.claims) {
                let volume =
                    bound_volume(&claim).and_then(|name| self.volumes.cache().get("", name));
                let volume = volume.as_deref().and_then(VolumeName::of);
                if let Some(volume) = volume {
                    counted.inc(&[&pod.node, &volume.plugin()]);
                }
            }
            for volume in &pod.inline {
                counted.inc(&[&pod.node, &volume.volume.plugin()]);
            }
            for driver in &pod.inline_drivers {
                counted.inc(&[&pod.node, &VolumeName::new(driver, "").plugin()]);
            }
        }
        VOLUMES_IN_USE.replace(counted);
    }
}

/// Records an operation that has ended, of a volume that is migrated from an in-tree plugin or not.
pub(super) fn operation(
    (volume, is_migrated): (&VolumeName, bool),
    name: &str,
    is_success: bool,
    took: Duration,
) {
    let status = if is_success { "success" } else { "fail-unknown" };
    let migrated = if is_migrated { "true" } else { "false" };
    OPERATION_DURATION.took(&[migrated, name, status, &volume.plugin()], took);
}

/// The numbers of nodes of one volume that [`TOTAL_VOLUMES`] contains.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct VolumeCount {
    /// Nodes whose pods need it.
    pub(super) desired: usize,
    /// Nodes to which it has an attachment.
    pub(super) actual: usize,
}

impl VolumeCount {
    /// Replaces the numbers of a volume.
    pub(super) fn replace(&mut self, volume: &VolumeName, new: Self) {
        let old = std::mem::replace(self, new);
        for (state, difference) in old.differences(new) {
            TOTAL_VOLUMES.add(&[&volume.plugin(), state], difference);
        }
    }

    /// By how much each state changes, without those that do not.
    fn differences(self, new: Self) -> impl Iterator<Item = (&'static str, f64)> {
        let both = [
            ("actual_state_of_world", self.actual, new.actual),
            ("desired_state_of_world", self.desired, new.desired),
        ];
        let changed = both.into_iter().filter(|(_, old, new)| old != new);
        changed.map(|(state, old, new)| (state, new as f64 - old as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_counted_in_both_states() {
        let count = VolumeCount { desired: 1, actual: 2 };
        let to = |new: VolumeCount| count.differences(new).collect::<Vec<_>>();
        assert_eq!(
            to(VolumeCount::default()),
            [("actual_state_of_world", -2.0), ("desired_state_of_world", -1.0)]
        );
        assert_eq!(to(VolumeCount { desired: 2, actual: 2 }), [("desired_state_of_world", 1.0)]);
    }
}
