//! The labels of a volume, as the records of the pods' volumes have them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The labels of a volume; empty ones for none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VolumeLabels {
    /// The label with which the volume is mounted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) mount: String,
    /// The label that pods need, also if the volume is not mounted with one: it is part of a pod.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) needed: String,
}

impl VolumeLabels {
    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.mount.is_empty() && self.needed.is_empty()
    }
}

/// A volume that a pod has since an earlier process: the uid of the pod, the unique name of the
/// volume, and its labels.
pub(crate) type HeldLabels = (Arc<str>, String, VolumeLabels);

/// Whether a volume can be mounted with the label that a pod needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MountState {
    /// It is not mounted, or has this label.
    Fits,
    /// Pods that end have it with another label.
    InUse,
    /// It is mounted for no pod, with another label.
    Stale,
}

impl MountState {
    /// Compares the label that a pod needs with those that other pods have mounted the volume with,
    /// and with that of the mount which all pods share, if there is one (`PodExistsInVolume` of
    /// `actual_state_of_world.go`).
    pub(crate) fn of(needed: &str, others: &[String], shared: Option<&str>) -> Self {
        if others.iter().any(|label| label != needed) {
            return Self::InUse;
        }
        match shared {
            // The kernel may show a label in another form than the one that it was given.
            Some(label) if label != needed && others.is_empty() => Self::Stale,
            _ => Self::Fits,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_with_another_label_is_unmounted_first() {
        let one = ["one".to_owned()];
        for (needed, others, shared, want) in [
            ("one", &[][..], None, MountState::Fits),
            ("one", &[], Some("one"), MountState::Fits),
            ("one", &one, Some("one"), MountState::Fits),
            ("one", &one, Some("ONE"), MountState::Fits),
            ("two", &one, Some("one"), MountState::InUse),
            ("", &one, None, MountState::InUse),
            ("two", &[], Some("one"), MountState::Stale),
            ("two", &[], Some(""), MountState::Stale),
            ("", &[], Some("one"), MountState::Stale),
            ("", &[], Some(""), MountState::Fits),
        ] {
            assert_eq!(MountState::of(needed, others, shared), want, "{needed} {shared:?}");
        }
    }
}
