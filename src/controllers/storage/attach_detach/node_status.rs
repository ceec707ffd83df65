//! `status.volumesAttached` of nodes: what it should list, and which lists were written.
//!
//! The kubelet mounts a volume only if the list of its node has it. So a volume enters the list
//! after it was attached, and leaves it before it is detached; only a list that was computed after
//! the decision to detach, and written, counts as the latter.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Value, json};

use super::names::{NodeName, VolumeName};
use super::node_view::{AttachNode, ListedVolume};

/// Whether a volume is to be listed on a node.
#[derive(Debug, Clone, Copy)]
struct Listing {
    is_listed: bool,
    /// The decision's number.
    decided: u64,
}

/// A list that was written.
#[derive(Debug)]
struct WrittenList {
    volumes: Vec<ListedVolume>,
    /// The revision of the node with this list.
    version: i64,
    /// The list takes decisions up to this number into account.
    decided: u64,
}

#[derive(Debug, Default)]
struct NodeReport {
    listings: BTreeMap<VolumeName, Listing>,
    /// Volumes that are detached once a list without them is written.
    awaited: BTreeSet<VolumeName>,
    /// `None` before this process has written a list for this node.
    written: Option<WrittenList>,
    /// `status.volumesInUse` of the node when it was deleted.
    in_use_at_deletion: Option<BTreeSet<String>>,
}

/// A list to write.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ListToWrite {
    volumes: Vec<ListedVolume>,
    decided: u64,
    /// The volumes that wait for it.
    pub(super) awaited: BTreeSet<VolumeName>,
}

impl ListToWrite {
    /// The JSON merge patch of the node's status; an empty list is removed, as by upstream.
    pub(super) fn patch(&self) -> Value {
        let volume = |v: &ListedVolume| json!({"name": v.name, "devicePath": v.device_path});
        let list: Vec<Value> = self.volumes.iter().map(volume).collect();
        let list = if list.is_empty() { Value::Null } else { Value::Array(list) };
        json!({"status": {"volumesAttached": list}})
    }
}

/// The lists of all nodes; entries exist for nodes that have or had attached volumes.
#[derive(Debug, Default)]
pub(super) struct NodeReports {
    nodes: HashMap<NodeName, NodeReport>,
    decisions: u64,
}

impl NodeReports {
    /// Records whether `volume` is to be listed on `node`; with `is_awaited` it waits for a list
    /// without it. Returns whether the node must be reconciled.
    pub(super) fn decide(
        &mut self,
        node: &NodeName,
        volume: &VolumeName,
        is_listed: bool,
        is_awaited: bool,
    ) -> bool {
        let report = self.nodes.entry(NodeName::clone(node)).or_default();
        let is_changed = report.listings.get(volume).is_none_or(|l| l.is_listed != is_listed);
        if is_changed {
            self.decisions += 1;
            let listing = Listing { is_listed, decided: self.decisions };
            report.listings.insert(volume.clone(), listing);
        }
        if is_awaited {
            report.awaited.insert(volume.clone());
        } else {
            report.awaited.remove(volume);
        }
        is_changed || is_awaited
    }

    /// Forgets a volume that is neither attached to `node` nor needed there.
    pub(super) fn forget(&mut self, node: &NodeName, volume: &VolumeName) {
        let Some(report) = self.nodes.get_mut(node) else { return };
        report.listings.remove(volume);
        report.awaited.remove(volume);
        if report.listings.is_empty() && report.in_use_at_deletion.is_some() {
            self.nodes.remove(node);
        }
    }

    /// The list of a node: what was written, while the cache has an older node.
    fn current<'a>(&'a self, name: &NodeName, node: &'a AttachNode) -> &'a [ListedVolume] {
        let written = self.nodes.get(name).and_then(|report| report.written.as_ref());
        match written.filter(|written| written.version > node.version) {
            Some(written) => &written.volumes,
            None => &node.listed,
        }
    }

    /// The list of a node has the volume.
    pub(super) fn lists(&self, name: &NodeName, node: &AttachNode, volume: &VolumeName) -> bool {
        self.current(name, node).iter().any(|v| v.name == volume.as_str())
    }

    /// A list was written that takes the decision to remove the volume into account.
    pub(super) fn is_removed(&self, node: &NodeName, volume: &VolumeName) -> bool {
        let Some(report) = self.nodes.get(node) else { return false };
        let listing = report.listings.get(volume).filter(|listing| !listing.is_listed);
        let written = report.written.as_ref();
        listing.zip(written).is_some_and(|(listing, written)| written.decided >= listing.decided)
    }

    /// The list to write for a node, if it differs from the current one or volumes wait for it.
    pub(super) fn list_to_write(
        &mut self,
        name: &NodeName,
        node: &AttachNode,
    ) -> Option<ListToWrite> {
        let decided = self.decisions;
        let listings = self.nodes.get(name).map(|report| &report.listings)?;
        let current = self.current(name, node);
        // Volumes of other plugins, and those that were not looked at yet, stay.
        let mut volumes: Vec<ListedVolume> = current
            .iter()
            .filter(|listed| {
                let volume = VolumeName::parse(&listed.name);
                volume.and_then(|v| listings.get(&v)).is_none_or(|listing| listing.is_listed)
            })
            .cloned()
            .collect();
        for (volume, listing) in listings {
            if listing.is_listed && !volumes.iter().any(|v| v.name == volume.as_str()) {
                let name = volume.as_str().to_owned();
                volumes.push(ListedVolume { name, device_path: String::new() });
            }
        }
        let is_same = volumes == current;
        let report = self.nodes.get_mut(name)?;
        if is_same && report.awaited.is_empty() {
            return None;
        }
        Some(ListToWrite { volumes, decided, awaited: std::mem::take(&mut report.awaited) })
    }

    /// Records that a list was written; `version` is the revision of the node with it. Returns the
    /// volumes that waited for it.
    pub(super) fn written(
        &mut self,
        node: &NodeName,
        list: ListToWrite,
        version: i64,
    ) -> BTreeSet<VolumeName> {
        if let Some(report) = self.nodes.get_mut(node) {
            let ListToWrite { volumes, decided, .. } = list;
            report.written = Some(WrittenList { volumes, version, decided });
        }
        list.awaited
    }

    /// Records that a list was not written: the next one must be, even if it is the same.
    pub(super) fn not_written(&mut self, node: &NodeName, list: ListToWrite) {
        if let Some(report) = self.nodes.get_mut(node) {
            report.awaited.extend(list.awaited);
        }
    }

    /// Takes the volumes that wait for a list of a node that does not exist.
    pub(super) fn take_awaited(&mut self, node: &NodeName) -> BTreeSet<VolumeName> {
        let report = self.nodes.get_mut(node);
        report.map(|report| std::mem::take(&mut report.awaited)).unwrap_or_default()
    }

    /// A node was registered: its list is what it says.
    pub(super) fn node_added(&mut self, node: &NodeName) {
        if let Some(report) = self.nodes.get_mut(node) {
            report.written = None;
            report.in_use_at_deletion = None;
        }
    }

    /// A node was deleted while it used these volumes.
    pub(super) fn node_deleted(&mut self, node: &NodeName, in_use: BTreeSet<String>) {
        let Some(report) = self.nodes.get_mut(node) else { return };
        report.written = None;
        report.in_use_at_deletion = Some(in_use);
        if report.listings.is_empty() {
            self.nodes.remove(node);
        }
    }

    /// Whether a node that does not exist used the volume when it was deleted; true if that
    /// happened before this process watched it.
    pub(super) fn was_in_use(&self, node: &NodeName, volume: &VolumeName) -> bool {
        let in_use = self.nodes.get(node).and_then(|report| report.in_use_at_deletion.as_ref());
        in_use.is_none_or(|in_use| in_use.contains(volume.as_str()))
    }

    /// The volumes about which something was decided on a node.
    pub(super) fn volumes(&self, node: &NodeName) -> Vec<VolumeName> {
        let report = self.nodes.get(node);
        report.into_iter().flat_map(|report| report.listings.keys().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(handle: &str) -> VolumeName {
        VolumeName::new("d", handle)
    }

    fn listed(name: &str) -> ListedVolume {
        ListedVolume { name: name.into(), device_path: String::new() }
    }

    fn node(version: i64, names: &[&str]) -> AttachNode {
        let listed = names.iter().map(|name| listed(name)).collect();
        AttachNode { version, listed, ..AttachNode::default() }
    }

    fn names(list: &ListToWrite) -> Vec<&str> {
        list.volumes.iter().map(|v| v.name.as_str()).collect()
    }

    const A: &str = "kubernetes.io/csi/d^a";
    const B: &str = "kubernetes.io/csi/d^b";
    const OTHER: &str = "kubernetes.io/testPlugin/lost";

    #[test]
    fn attached_volumes_are_added_and_foreign_or_unknown_ones_stay() {
        let (mut reports, n) = (NodeReports::default(), NodeName::from("n"));
        assert_eq!(reports.list_to_write(&n, &node(1, &[A, OTHER])), None);
        assert!(reports.decide(&n, &volume("b"), true, false));
        assert!(!reports.decide(&n, &volume("b"), true, false));
        let list = reports.list_to_write(&n, &node(1, &[A, OTHER])).unwrap();
        assert_eq!(names(&list), [A, OTHER, B]);
        assert_eq!(
            list.patch()["status"]["volumesAttached"][2],
            json!({"name": B, "devicePath": ""})
        );
        reports.written(&n, list, 2);
        // The cache is behind, then has the list.
        assert_eq!(reports.list_to_write(&n, &node(1, &[A, OTHER])), None);
        assert!(reports.lists(&n, &node(1, &[]), &volume("b")));
        assert_eq!(reports.list_to_write(&n, &node(2, &[A, OTHER, B])), None);
        // Another writer removed it.
        assert_eq!(names(&reports.list_to_write(&n, &node(3, &[OTHER])).unwrap()), [OTHER, B]);
    }

    #[test]
    fn a_volume_is_removed_once_a_list_without_it_is_written() {
        let (mut reports, n, a) = (NodeReports::default(), NodeName::from("n"), volume("a"));
        reports.decide(&n, &a, true, false);
        let first = reports.list_to_write(&n, &node(1, &[])).unwrap();
        reports.written(&n, first, 2);
        assert!(reports.decide(&n, &a, false, true));
        assert!(!reports.is_removed(&n, &a));
        let list = reports.list_to_write(&n, &node(2, &[A])).unwrap();
        assert!(list.patch()["status"]["volumesAttached"].is_null());
        assert_eq!(list.awaited, BTreeSet::from([a.clone()]));
        reports.not_written(&n, list);
        assert!(!reports.is_removed(&n, &a));
        let list = reports.list_to_write(&n, &node(2, &[A])).unwrap();
        assert_eq!(reports.written(&n, list, 3), BTreeSet::from([a.clone()]));
        assert!(reports.is_removed(&n, &a));
    }

    #[test]
    fn a_list_that_was_computed_before_the_decision_does_not_count() {
        let (mut reports, n, a) = (NodeReports::default(), NodeName::from("n"), volume("a"));
        reports.decide(&n, &a, false, true);
        let list = reports.list_to_write(&n, &node(1, &[A])).unwrap();
        reports.written(&n, list, 2);
        // A pod needs it again, and is gone while that list is being written.
        reports.decide(&n, &a, true, false);
        let with = reports.list_to_write(&n, &node(2, &[])).unwrap();
        assert_eq!(names(&with), [A]);
        reports.decide(&n, &a, false, true);
        assert!(!reports.is_removed(&n, &a), "the list with the volume is on its way");
        reports.written(&n, with, 3);
        assert!(!reports.is_removed(&n, &a));
        let without = reports.list_to_write(&n, &node(2, &[])).unwrap();
        reports.written(&n, without, 4);
        assert!(reports.is_removed(&n, &a));
    }

    #[test]
    fn a_list_is_written_for_a_volume_that_waits_even_if_nothing_differs() {
        let (mut reports, n, a) = (NodeReports::default(), NodeName::from("n"), volume("a"));
        // It was never attached, or an earlier process removed it.
        reports.decide(&n, &a, false, true);
        let list = reports.list_to_write(&n, &node(1, &[B])).unwrap();
        assert_eq!(names(&list), [B]);
        reports.written(&n, list, 1);
        assert!(reports.is_removed(&n, &a));
        assert_eq!(reports.list_to_write(&n, &node(1, &[B])), None);
    }

    #[test]
    fn each_node_has_its_own_list() {
        let mut reports = NodeReports::default();
        let (first, second) = (NodeName::from("n1"), NodeName::from("n2"));
        reports.decide(&first, &volume("a"), true, false);
        reports.decide(&second, &volume("b"), true, false);
        assert_eq!(names(&reports.list_to_write(&first, &node(1, &[])).unwrap()), [A]);
        assert_eq!(names(&reports.list_to_write(&second, &node(1, &[])).unwrap()), [B]);
    }

    #[test]
    fn a_deleted_node_keeps_what_it_used() {
        let (mut reports, n, a) = (NodeReports::default(), NodeName::from("n"), volume("a"));
        assert!(reports.was_in_use(&n, &a), "nothing is known");
        reports.decide(&n, &a, true, false);
        reports.node_deleted(&n, BTreeSet::from([A.to_owned()]));
        assert!(reports.was_in_use(&n, &a) && !reports.was_in_use(&n, &volume("b")));
        reports.forget(&n, &a);
        assert!(reports.nodes.is_empty());
    }

    #[test]
    fn a_node_that_registers_again_gets_its_list() {
        let (mut reports, n, a) = (NodeReports::default(), NodeName::from("n"), volume("a"));
        reports.decide(&n, &a, true, false);
        let list = reports.list_to_write(&n, &node(1, &[])).unwrap();
        reports.written(&n, list, 9);
        reports.node_added(&n);
        assert_eq!(names(&reports.list_to_write(&n, &node(5, &[])).unwrap()), [A]);
        assert!(!reports.is_removed(&n, &a));
    }
}
