//! The changes of objects that may make a pod schedulable.

use std::sync::Arc;

use api::k8s::api::core::v1::{Node, Pod};
use api::k8s::api::resource::v1::{DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice};
use api::k8s::api::storage::v1::{CSIDriver, CSIStorageCapacity};
use base::clock;
use client::Change;
use client::informer::decode;
use tokio::sync::watch;

use super::csi_nodes::CsiNodes;
use super::{Caches, Shared};
use crate::devices::request::ClaimName;
use crate::devices::slice::Slice;
use crate::devices::store::Devices;
use crate::event::{Event, EventLabels, label, labels, node_event_for_extenders};
use crate::pod_info::PodInfo;

pub(super) const RESOURCE_CLAIM: EventLabels = labels!("resource.k8s.io/ResourceClaim");
const RESOURCE_SLICE: EventLabels = labels!("resource.k8s.io/ResourceSlice");

/// Passes changes of pods, nodes and volumes to the state. Returns a count of the changes of claims
/// and volumes.
pub(super) fn listen(shared: &Arc<Shared>, caches: &Caches) -> watch::Receiver<u64> {
    let to = Arc::clone(shared);
    caches.pods.on_change(move |change| pod_changed(&to, change));
    let to = Arc::clone(shared);
    caches.nodes.on_change(move |change| match change {
        Change::Deleted(node) => to.update(|s| {
            s.remove_node(&node.key.name);
            Some(label::NODE_DELETE)
        }),
        Change::Added(node) | Change::Updated { new: node, .. } => {
            if let Some(node) = decode::<Node>(node) {
                to.update(|s| s.set_node(&node, clock::now()));
            }
        }
    });
    let (sender, receiver) = watch::channel(0_u64);
    let count = Arc::new(move || sender.send_modify(|n| *n = n.wrapping_add(1)));
    let (to, changed) = (Arc::clone(shared), Arc::clone(&count));
    caches.claims.on_change(move |change| {
        changed();
        let key = &change.object().key;
        let event = Event::PersistentVolumeClaim { namespace: &key.namespace, name: &key.name };
        to.on_change(&event, labels!("PersistentVolumeClaim"), change);
    });
    let to = Arc::clone(shared);
    caches.volumes.on_change(move |change| {
        count();
        to.on_change(&Event::PersistentVolume, labels!("PersistentVolume"), change);
    });
    let to = Arc::clone(shared);
    caches.classes.on_change(move |change| {
        to.on_change(&Event::StorageClass, labels!("storage.k8s.io/StorageClass"), change);
    });
    let (to, csi_nodes) = (Arc::clone(shared), Arc::clone(&caches.csi_nodes));
    caches.csi_node_informer.on_change(move |change| csi_node_changed(&to, &csi_nodes, change));
    let to = Arc::clone(shared);
    caches.csi_drivers.on_change(move |change| csi_driver_changed(&to, change));
    let to = Arc::clone(shared);
    caches
        .csi_storage_capacities
        .on_change(move |change| csi_storage_capacity_changed(&to, change));
    let to = Arc::clone(shared);
    caches.attachments.on_change(move |change| {
        if matches!(change, Change::Deleted(_)) {
            let labels = labels!("storage.k8s.io/VolumeAttachment");
            to.on_change(&Event::VolumeAttachmentDelete, labels, change);
        }
    });
    let to = Arc::clone(shared);
    caches.namespaces.on_change(move |change| {
        if !matches!(change, Change::Updated { old, new } if old.labels == new.labels) {
            to.on_change(&Event::Namespace, labels!("Namespace"), change);
        }
    });
    receiver
}

/// Passes those changes of nodes to the state that matter to extenders alone.
pub(super) fn listen_for_extenders(shared: &Arc<Shared>, caches: &Caches) {
    let to = Arc::clone(shared);
    caches.nodes.on_change(move |change| {
        let Change::Updated { old, new } = change else { return };
        if let (Some(old), Some(new)) = (decode::<Node>(old), decode::<Node>(new))
            && let Some(label) = node_event_for_extenders(&old, &new)
        {
            to.on_event(&Event::NodeForExtenders, label);
        }
    });
}

/// Keeps the indexes of devices up to date. The indexes change before the queue gets the event, so
/// that hints see the new state.
pub(super) fn listen_to_devices(shared: &Arc<Shared>, caches: &Caches) {
    let informers = &caches.device_informers;
    let (to, devices) = (Arc::clone(shared), Arc::clone(&caches.devices));
    informers.claims.on_change(move |change| {
        let object = change.object();
        let changed = if matches!(change, Change::Deleted(_)) {
            let (namespace, name) = (object.key.namespace.to_string(), object.key.name.to_string());
            devices.remove_claim(&ClaimName { namespace, name })
        } else {
            decode::<ResourceClaim>(object).and_then(|mut claim| {
                claim.metadata.resource_version = Some(object.resource_version.to_string());
                devices.observe_claim(claim)
            })
        };
        if let Some(changed) = changed {
            let event = Event::ResourceClaim { change: &changed, devices: &devices };
            to.on_change(&event, RESOURCE_CLAIM, change);
        }
    });
    let (to, devices) = (Arc::clone(shared), Arc::clone(&caches.devices));
    informers.classes.on_change(move |change| class_changed(&to, &devices, change));
    let (to, devices) = (Arc::clone(shared), Arc::clone(&caches.devices));
    informers.slices.on_change(move |change| slice_changed(&to, &devices, change));
    let (to, devices) = (Arc::clone(shared), Arc::clone(&caches.devices));
    informers.rules.on_change(move |change| {
        let object = change.object();
        let is_deleted = matches!(change, Change::Deleted(_));
        let rule = if is_deleted { None } else { decode::<DeviceTaintRule>(object) };
        if devices.set_rule(&object.key.name, rule) {
            // Upstream's slices have the taints of rules.
            to.on_event(&Event::ResourceSlice, RESOURCE_SLICE[1]);
        }
    });
}

fn class_changed(shared: &Shared, devices: &Devices, change: &Change) {
    let (old, new) = match change {
        Change::Added(new) => (None, new),
        Change::Updated { old, new } => (decode::<DeviceClass>(old), new),
        Change::Deleted(old) => return devices.remove_class(&old.key.name),
    };
    if let Some(new) = decode::<DeviceClass>(new) {
        devices.set_class(new.clone());
        let event = Event::DeviceClass { old: old.as_ref(), new: &new };
        shared.on_change(&event, labels!("resource.k8s.io/DeviceClass"), change);
    }
}

fn slice_changed(shared: &Shared, devices: &Devices, change: &Change) {
    let object = change.object();
    if matches!(change, Change::Deleted(_)) {
        return devices.remove_slice(&object.key.name);
    }
    let Some(slice) = decode::<ResourceSlice>(object) else { return };
    match Slice::new(&slice) {
        Ok(slice) => devices.set_slice(slice),
        Err(error) => {
            tracing::warn!(slice = %object.key, %error, "ignoring a ResourceSlice");
            devices.remove_slice(&object.key.name);
        }
    }
    shared.on_change(&Event::ResourceSlice, RESOURCE_SLICE, change);
}

fn csi_node_changed(shared: &Shared, csi_nodes: &CsiNodes, change: &Change) {
    let labels = labels!("storage.k8s.io/CSINode");
    let csi_node = csi_nodes.apply(change);
    match (&csi_node.old, &csi_node.new) {
        (None, Some(_)) => shared.on_change(&Event::CsiNodeAdd, labels, change),
        (Some(old), Some(new)) => {
            shared.on_change(&Event::CsiNodeUpdate { old, new }, labels, change);
        }
        (_, None) => {}
    }
}

fn csi_driver_changed(shared: &Shared, change: &Change) {
    if let Change::Updated { old, new } = change
        && let (Some(old), Some(new)) = (decode::<CSIDriver>(old), decode::<CSIDriver>(new))
    {
        let event = Event::CsiDriverUpdate { old: &old, new: &new };
        shared.on_change(&event, labels!("storage.k8s.io/CSIDriver"), change);
    }
}

fn csi_storage_capacity_changed(shared: &Shared, change: &Change) {
    let (old, new) = match change {
        Change::Added(new) => (None, new),
        Change::Updated { old, new } => (decode::<CSIStorageCapacity>(old), new),
        Change::Deleted(_) => return,
    };
    if let Some(new) = decode::<CSIStorageCapacity>(new) {
        let event = Event::CsiStorageCapacity { old: old.as_ref(), new: &new };
        shared.on_change(&event, labels!("storage.k8s.io/CSIStorageCapacity"), change);
    }
}

fn pod_changed(shared: &Shared, change: &Change) {
    let object = change.object();
    if matches!(change, Change::Deleted(_)) {
        let key = (object.key.namespace.to_string(), object.key.name.to_string());
        return shared.update(|s| Some(s.remove_pod(&key, clock::now())));
    }
    let Some(pod) = decode::<Pod>(object) else { return };
    let generation = |o: &api::Object| client::meta(o).and_then(|m| m.generation);
    let spec_changed = match change {
        Change::Updated { old, new } => {
            generation(old) != generation(new) || old.labels != new.labels
        }
        Change::Added(_) | Change::Deleted(_) => false,
    };
    let info = PodInfo::new(&pod);
    shared.update(|s| Some(s.set_pod(info, spec_changed, clock::now())));
}
