//! Which volumes and nodes a change of an object concerns.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::Object;
use api::k8s::api::core::v1::PersistentVolumeClaim;
use client::informer::decode;
use client::{Change, Informer};
use sorting::CollectOrdered as _;

use super::desired::{AttachPod, bound_volume};
use super::names::{NodeName, VolumeName};
use super::node_view::{AttachNode, NodeChange};
use super::view::{AttachedVolume, BY_INLINE, attachment_parts};
use super::{Controller, WorkItem};
use crate::framework::nodes::BY_NODE;

impl Controller {
    /// Adds the listeners of all caches. The first object of a chain of pod, claim and volume that
    /// reaches a cache finds no volume yet; the last one does.
    pub(super) fn listen(self: &Arc<Self>) {
        self.add_indexes();
        self.on(&self.pods, Self::pod_changed);
        self.on(&self.claims, Self::claim_changed);
        self.on(&self.volumes, Self::volume_changed);
        self.on(&self.attachments, Self::attachment_changed);
        self.on(&self.drivers, Self::driver_changed);
        self.on(&self.nodes, Self::node_changed);
    }

    /// Queues the volumes that `concerned` names at each change.
    fn on<K: 'static>(
        self: &Arc<Self>,
        informer: &Informer<K>,
        concerned: fn(&Self, &Change) -> BTreeSet<VolumeName>,
    ) {
        // A listener lives as long as its cache, which the controller holds.
        let controller = Arc::downgrade(self);
        informer.on_change(move |change| {
            let Some(controller) = controller.upgrade() else { return };
            for volume in concerned(&controller, change) {
                controller.queue.add(WorkItem::Volume(volume));
            }
        });
    }

    fn pod_changed(&self, change: &Change) -> BTreeSet<VolumeName> {
        let object = change.object();
        let Ok(pod) = AttachPod::of(object) else { return BTreeSet::new() };
        let (mut volumes, is_complete) = self.volumes_of(object, &pod);
        if let Change::Updated { old, .. } = change {
            if old.uid != object.uid {
                // Another pod of this name, after a relist.
                volumes.extend(self.volumes_used_by(&old.uid));
            } else if AttachPod::of(old).is_ok_and(|old| old == pod) {
                return BTreeSet::new();
            }
        }
        if !is_complete {
            // A claim that is gone does not release the volume; the end of the pod does.
            volumes.extend(self.volumes_used_by(&object.uid));
        }
        volumes
    }

    /// The inline volumes of a pod and those behind its claims, and whether each claim has one.
    fn volumes_of(&self, object: &Object, pod: &AttachPod) -> (BTreeSet<VolumeName>, bool) {
        let inline = pod.inline.iter().map(|inline| inline.volume.clone());
        let mut volumes: BTreeSet<VolumeName> = inline.collect_set();
        let mut is_complete = true;
        for claim in pod.claims() {
            let claim = self.claims.get(&object.key.namespace, claim);
            let volume = claim.as_ref().and_then(bound_volume);
            match volume.and_then(|volume| self.volumes.cache().get("", volume)) {
                Some(volume) => volumes.extend(VolumeName::of(&volume)),
                None => is_complete = false,
            }
        }
        (volumes, is_complete)
    }

    fn volumes_used_by(&self, pod: &str) -> Vec<VolumeName> {
        let states = self.states.lock();
        let used = states
            .iter()
            .filter(|(_, state)| state.users.iter().any(|u| u.pod.uid.as_deref() == Some(pod)));
        used.map(|(name, _)| name.clone()).collect()
    }

    fn claim_changed(&self, change: &Change) -> BTreeSet<VolumeName> {
        let of = |object: &Object| {
            let claim = decode::<PersistentVolumeClaim>(object)?;
            let volume = self.volumes.cache().get("", claim.spec?.volume_name.as_deref()?)?;
            VolumeName::of(&volume)
        };
        states(change).filter_map(|object| of(object)).collect_set()
    }

    fn volume_changed(&self, change: &Change) -> BTreeSet<VolumeName> {
        states(change).filter_map(|object| VolumeName::of(object)).collect_set()
    }

    fn attachment_changed(&self, change: &Change) -> BTreeSet<VolumeName> {
        let Some((node, volume)) = attachment_parts(change.object()) else {
            return BTreeSet::new();
        };
        let volume = match volume {
            Some(AttachedVolume::Inline(name)) => return BTreeSet::from([name]),
            Some(AttachedVolume::Persistent(name)) => self.volumes.cache().get("", &name),
            None => None,
        };
        match volume {
            Some(volume) => VolumeName::of(&volume).into_iter().collect(),
            // The volume is gone, but its name may be known from the node.
            None => self.volumes_on(&node.into()),
        }
    }

    fn driver_changed(&self, change: &Change) -> BTreeSet<VolumeName> {
        let driver = &*change.object().key.name;
        let volumes = self.volumes.cache().list("");
        let names = volumes.iter().filter_map(|volume| VolumeName::of(volume));
        let pods = self.pods.cache().by_index(BY_INLINE, driver);
        let inline = pods.iter().filter_map(|pod| AttachPod::of(pod).ok());
        let names = names.chain(inline.flat_map(|pod| pod.inline).map(|inline| inline.volume));
        names.filter(|name| name.driver() == driver).collect_set()
    }

    fn node_changed(&self, change: &Change) -> BTreeSet<VolumeName> {
        let object = change.object();
        let name = &object.key.name;
        let Ok(node) = AttachNode::of(object) else { return BTreeSet::new() };
        let concerned = match change {
            Change::Updated { old, .. } => match AttachNode::of(old) {
                Ok(old) => {
                    if old.uid != node.uid {
                        self.reports.lock().node_added(name);
                    }
                    let is_same = old.uid == node.uid && old.listed == node.listed;
                    if !is_same {
                        self.queue.add(WorkItem::Node(NodeName::clone(name)));
                    }
                    NodeChange::between(&old, &node)
                }
                Err(_) => NodeChange::All,
            },
            Change::Added(_) => {
                self.reports.lock().node_added(name);
                self.queue.add(WorkItem::Node(NodeName::clone(name)));
                NodeChange::All
            }
            Change::Deleted(_) => {
                self.reports.lock().node_deleted(name, node.in_use.clone());
                self.queue.add(WorkItem::Node(NodeName::clone(name)));
                NodeChange::All
            }
        };
        match concerned {
            NodeChange::Volumes(volumes) => volumes,
            NodeChange::Attached => {
                let mut volumes = self.volumes_on(name);
                volumes.extend(node.listed_volumes());
                volumes
            }
            NodeChange::All => {
                let mut volumes = self.volumes_on(name);
                volumes.extend(node.listed_volumes());
                for object in self.pods.cache().by_index(BY_NODE, name) {
                    if let Ok(pod) = AttachPod::of(&object) {
                        volumes.extend(self.volumes_of(&object, &pod).0);
                    }
                }
                volumes
            }
        }
    }

    /// The volumes about which something is known on a node.
    fn volumes_on(&self, node: &NodeName) -> BTreeSet<VolumeName> {
        let mut volumes: BTreeSet<VolumeName> =
            self.reports.lock().volumes(node).into_iter().collect_set();
        if let Some(object) = self.nodes.cache().get("", node) {
            volumes.extend(AttachNode::of(&object).map(|n| n.listed_volumes()).unwrap_or_default());
        }
        volumes
    }
}

/// The states before and after a change.
fn states(change: &Change) -> impl Iterator<Item = &Arc<Object>> {
    let old = match change {
        Change::Updated { old, .. } => Some(old),
        Change::Added(_) | Change::Deleted(_) => None,
    };
    old.into_iter().chain([change.object()])
}
