//! The labels with which volumes are to be mounted, and the pods that use them
//! (`desired_state_of_world.go`): all pods that use a volume have the label of the first one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::labels::VolumeLabels;

/// A volume that pods use with different labels.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("conflicting SELinux labels of volume {spec_name}: {mounted:?} and {needed:?}")]
pub(crate) struct LabelConflict {
    pub(crate) spec_name: String,
    /// The label of the pods that use the volume.
    pub(crate) mounted: String,
    pub(crate) needed: String,
}

/// A volume that a pod is about to use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewUse<'a> {
    /// The name that is unique on a node.
    pub(crate) unique_name: &'a str,
    /// Name of the PersistentVolume, or of the volume in its pod.
    pub(crate) spec_name: &'a str,
    /// Whether the volume is a PersistentVolume, which is mounted with its label.
    pub(crate) is_persistent: bool,
    /// Whether the plugin mounts volumes with a label.
    pub(crate) is_supported: bool,
    /// The label that the pod needs.
    pub(crate) label: &'a str,
}

/// A volume that a pod may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AdmittedVolume {
    pub(crate) labels: VolumeLabels,
    /// Whether no pod has used the volume before.
    pub(crate) is_new: bool,
    /// A conflict that is no error, as the volume is no PersistentVolume.
    pub(crate) ignored: Option<LabelConflict>,
}

#[derive(Debug, Default)]
struct DesiredVolume {
    labels: VolumeLabels,
    pods: BTreeSet<Arc<str>>,
    /// The labels are those of an earlier process, possibly before a restart of the machine.
    is_restored: bool,
}

/// The volumes that pods of this node use, by their unique names.
#[derive(Debug, Default)]
pub(crate) struct DesiredVolumes(BTreeMap<String, DesiredVolume>);

impl DesiredVolumes {
    /// Adds a use of an earlier process.
    pub(crate) fn restore(&mut self, uid: &Arc<str>, unique_name: String, labels: VolumeLabels) {
        let volume = self.0.entry(unique_name).or_default();
        if volume.pods.is_empty() {
            volume.labels = labels;
            volume.is_restored = true;
        }
        volume.pods.insert(Arc::clone(uid));
    }

    /// The labels of a volume that a pod uses and that this process knows.
    pub(crate) fn labels(&self, uid: &str, unique_name: &str) -> Option<&VolumeLabels> {
        let volume = self.0.get(unique_name)?;
        volume.pods.contains(uid).then_some(&volume.labels)
    }

    /// The labels of a volume that this process has admitted for a pod: they do not change.
    pub(crate) fn admitted(&self, uid: &str, unique_name: &str) -> Option<&VolumeLabels> {
        let volume = self.0.get(unique_name).filter(|volume| !volume.is_restored)?;
        volume.pods.contains(uid).then_some(&volume.labels)
    }

    /// Adds a pod to the users of a volume, which keeps its label (`AddPodToVolume`).
    ///
    /// # Errors
    ///
    /// The other users have another label.
    pub(crate) fn add(
        &mut self,
        uid: &Arc<str>,
        of: NewUse<'_>,
    ) -> Result<AdmittedVolume, LabelConflict> {
        let NewUse { unique_name, spec_name, is_persistent, is_supported, label } = of;
        let volume = self.0.entry(unique_name.to_owned()).or_default();
        let is_own = volume.pods.contains(uid);
        let is_new = volume.pods.is_empty();
        let mut ignored = None;
        if is_new || (volume.is_restored && is_own && volume.pods.len() == 1) {
            // A volume of an earlier process that is set up once more has no other mounts.
            let mount = if is_persistent { label } else { "" };
            volume.labels = VolumeLabels { mount: mount.to_owned(), needed: label.to_owned() };
        } else if !is_own && is_supported && label != volume.labels.needed {
            let conflict = LabelConflict {
                spec_name: spec_name.to_owned(),
                mounted: volume.labels.needed.clone(),
                needed: label.to_owned(),
            };
            if is_persistent {
                return Err(conflict);
            }
            ignored = Some(conflict);
        }
        volume.is_restored = false;
        volume.pods.insert(Arc::clone(uid));
        Ok(AdmittedVolume { labels: volume.labels.clone(), is_new, ignored })
    }

    /// Removes a pod from the users of all volumes.
    pub(crate) fn release(&mut self, uid: &str) {
        self.0.retain(|_, volume| {
            volume.pods.remove(uid);
            !volume.pods.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_use(label: &str) -> NewUse<'_> {
        let (is_persistent, is_supported) = (true, true);
        NewUse { unique_name: "p/v", spec_name: "pv", is_persistent, is_supported, label }
    }

    fn uid(text: &str) -> Arc<str> {
        text.into()
    }

    /// The cases of `Test_AddPodToVolume_SELinux_MultiplePods` with the defaults of 1.37: the
    /// labels that pods need, an empty one with the policy `Recursive`.
    #[test]
    fn pods_with_one_label_share_a_volume_and_others_conflict() {
        let (one, two) = ("u:r:t:s0:c1,c2", "u:r:t:s0:c98,c99");
        for (first, second, is_conflict) in
            [(one, one, false), (one, two, true), ("", "", false), ("", one, true), (one, "", true)]
        {
            let mut volumes = DesiredVolumes::default();
            let admitted = volumes.add(&uid("a"), new_use(first)).unwrap();
            assert!(admitted.is_new && admitted.ignored.is_none());
            assert_eq!(admitted.labels.mount, first);
            let outcome = volumes.add(&uid("b"), new_use(second));
            assert_eq!(outcome.is_err(), is_conflict, "{first} {second}");
            // The first label stays, and a pod that was admitted is not looked at again.
            let again = volumes.add(&uid("a"), new_use(two)).unwrap();
            assert_eq!((again.labels.mount.as_str(), again.is_new), (first, false));
            assert_eq!(volumes.admitted("b", "p/v").is_none(), is_conflict);
        }
        let conflict =
            LabelConflict { spec_name: "pv".into(), mounted: one.into(), needed: String::new() };
        assert_eq!(
            conflict.to_string(),
            "conflicting SELinux labels of volume pv: \"u:r:t:s0:c1,c2\" and \"\""
        );
    }

    #[test]
    fn a_volume_without_users_takes_another_label() {
        let mut volumes = DesiredVolumes::default();
        volumes.add(&uid("a"), new_use("one")).unwrap();
        volumes.add(&uid("b"), new_use("two")).unwrap_err();
        volumes.release("a");
        assert!(volumes.admitted("a", "p/v").is_none());
        assert!(volumes.add(&uid("b"), new_use("two")).unwrap().is_new);
        volumes.add(&uid("a"), new_use("one")).unwrap_err();
    }

    #[test]
    fn volumes_of_pods_are_mounted_without_a_label_and_have_no_conflict() {
        let mut volumes = DesiredVolumes::default();
        let inline = |label| NewUse { is_persistent: false, ..new_use(label) };
        let first = volumes.add(&uid("a"), inline("one")).unwrap();
        let labels = VolumeLabels { mount: String::new(), needed: "one".into() };
        assert_eq!(first.labels, labels);
        let second = volumes.add(&uid("b"), inline("two")).unwrap();
        assert!(second.ignored.is_some());
        assert_eq!(second.labels, labels);
        let unsupported = NewUse { is_supported: false, ..new_use("") };
        assert_eq!(volumes.add(&uid("c"), unsupported).unwrap().ignored, None);
    }

    #[test]
    fn labels_of_an_earlier_process_are_kept_while_another_pod_may_have_mounted_the_volume() {
        let mut volumes = DesiredVolumes::default();
        let labels = VolumeLabels { mount: "one".into(), needed: "one".into() };
        volumes.restore(&uid("a"), "p/v".into(), labels.clone());
        assert_eq!(volumes.labels("a", "p/v"), Some(&labels));
        assert_eq!(volumes.admitted("a", "p/v"), None);
        volumes.add(&uid("b"), new_use("two")).unwrap_err();
        // The machine was restarted, and what the pod needs is another label.
        assert_eq!(volumes.add(&uid("a"), new_use("two")).unwrap().labels.mount, "two");
        volumes.add(&uid("b"), new_use("two")).unwrap();
    }
}
