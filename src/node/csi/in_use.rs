//! The volumes that this node uses, as `status.volumesInUse` of its Node shows them: a volume is
//! listed before it is mounted until after it is unstaged, so that it is not detached meanwhile.
//! One whose driver no longer requires attachments is not listed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;

/// Unique names of volumes with the pods that use them.
#[derive(Debug, Default)]
pub(crate) struct VolumesInUse {
    holders: Mutex<BTreeMap<String, BTreeSet<Arc<str>>>>,
    /// The list in the Node as it was last written or read.
    reported: Mutex<BTreeSet<String>>,
}

impl VolumesInUse {
    /// Adds a pod to the users of a volume; returns whether the list changed.
    pub(crate) fn hold(&self, volume: &str, pod_uid: &Arc<str>) -> bool {
        let mut holders = self.holders.lock();
        let is_new = !holders.contains_key(volume);
        holders.entry(volume.to_owned()).or_default().insert(Arc::clone(pod_uid));
        is_new
    }

    /// Removes a pod from the users of all volumes; returns whether the list changed.
    pub(crate) fn release_pod(&self, pod_uid: &str) -> bool {
        let mut holders = self.holders.lock();
        let before = holders.len();
        holders.retain(|_, pods| {
            pods.remove(pod_uid);
            !pods.is_empty()
        });
        holders.len() != before
    }

    /// Whether a pod uses a volume.
    pub(crate) fn is_held(&self, volume: &str) -> bool {
        self.holders.lock().contains_key(volume)
    }

    /// Returns the volumes in use that are attachable, sorted. Each status has its own list, as a
    /// CSIDriver may change after a volume was added (`MarkVolumeAttachability`).
    /// `unstaging` are those that no pod uses any more.
    pub(crate) fn list(
        &self,
        unstaging: BTreeSet<String>,
        is_attachable: impl Fn(&str) -> bool,
    ) -> Vec<String> {
        let mut volumes = unstaging;
        volumes.extend(self.holders.lock().keys().cloned());
        volumes.retain(|name| is_attachable(name));
        volumes.into_iter().collect()
    }

    /// Records the list in the Node; returns whether it differs from the last one.
    pub(crate) fn set_reported(&self, volumes: BTreeSet<String>) -> bool {
        let mut reported = self.reported.lock();
        let is_changed = *reported != volumes;
        *reported = volumes;
        is_changed
    }

    /// Whether the Node lists a volume.
    pub(crate) fn is_reported(&self, volume: &str) -> bool {
        self.reported.lock().contains(volume)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_in_use_from_its_first_pod_to_its_last() {
        let in_use = VolumesInUse::default();
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        assert!(in_use.hold("v2", &a));
        assert!(in_use.hold("v1", &a));
        assert!(!in_use.hold("v1", &b));
        assert!(!in_use.hold("v1", &b));
        let list = || in_use.list(BTreeSet::new(), |_| true);
        assert_eq!(list(), ["v1", "v2"]);
        let unstaging = || BTreeSet::from(["v0".to_owned()]);
        assert_eq!(in_use.list(unstaging(), |_| true), ["v0", "v1", "v2"]);
        assert_eq!(in_use.list(unstaging(), |name| name == "v2"), ["v2"], "the drivers changed");
        assert!(in_use.release_pod("a"));
        assert_eq!(list(), ["v1"]);
        assert!(in_use.release_pod("b"));
        assert!(!in_use.release_pod("b"));
        assert!(list().is_empty());
    }

    #[test]
    fn a_volume_counts_as_reported_once_the_node_lists_it() {
        let in_use = VolumesInUse::default();
        in_use.hold("v", &"a".into());
        assert!(!in_use.is_reported("v"));
        assert!(in_use.set_reported(["v".to_owned()].into()));
        assert!(in_use.is_reported("v"));
        assert!(!in_use.set_reported(["v".to_owned()].into()));
        assert!(in_use.set_reported(BTreeSet::new()));
        assert!(!in_use.is_reported("v"));
    }
}
