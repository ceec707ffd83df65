//! What the built-in provisioners have in common: which claims and volumes are theirs, and the
//! nodes of both.

use std::collections::BTreeMap;

use api::Object;
use api::k8s::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use api::k8s::api::storage::v1::StorageClass;
use api::k8s::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use client::Change;
use client::informer::decode;

use crate::framework::keyed::Key;
use crate::framework::nodes;

/// Annotation of a claim with the provisioner of its class, which the binder writes.
pub(super) const REQUESTED_OF: &str = "volume.kubernetes.io/storage-provisioner";
/// Annotation of a claim with the node of its pod, which the scheduler writes.
pub(super) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Annotation of a volume with its provisioner.
pub(super) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// Annotations of an object.
pub(super) type Annotations = Option<BTreeMap<String, String>>;

/// The value of an annotation.
pub(super) fn annotation<'a>(annotations: &'a Annotations, name: &str) -> Option<&'a str> {
    annotations.as_ref()?.get(name).map(String::as_str)
}

/// Whether the binder requests a volume of this provisioner for the claim.
pub(super) fn is_requested(claim: &PersistentVolumeClaim, provisioner: &str) -> bool {
    let open =
        claim.spec.as_ref().is_some_and(|s| s.volume_name.as_ref().is_none_or(String::is_empty));
    open && annotation(&claim.metadata.annotations, REQUESTED_OF) == Some(provisioner)
}

/// Whether a volume of this provisioner is to be deleted because its claim has been.
pub(super) fn is_released(volume: &PersistentVolume, provisioner: &str) -> bool {
    let spec = volume.spec.as_ref();
    let policy = spec.and_then(|s| s.persistent_volume_reclaim_policy.as_deref());
    let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
    annotation(&volume.metadata.annotations, PROVISIONED_BY) == Some(provisioner)
        && policy == Some("Delete")
        && phase == Some("Released")
}

/// The name of the class of a claim.
pub(super) fn class_of(claim: &PersistentVolumeClaim) -> &str {
    annotation(&claim.metadata.annotations, "volume.beta.kubernetes.io/storage-class")
        .or_else(|| claim.spec.as_ref()?.storage_class_name.as_deref())
        .unwrap_or_default()
}

/// The node that the scheduler selected for the pod of the claim.
pub(super) fn selected_node(claim: &PersistentVolumeClaim) -> Option<&str> {
    annotation(&claim.metadata.annotations, SELECTED_NODE)
}

/// Whether the claim's pod has no node yet.
pub(super) fn waits(claim: &PersistentVolumeClaim, class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
        && selected_node(claim).is_none()
}

/// The key of an object.
pub(super) fn key(object: &Object) -> Key {
    (object.key.namespace.to_string(), object.key.name.to_string())
}

/// The key of an object with this metadata.
pub(super) fn metadata_key(metadata: ObjectMeta) -> Key {
    (metadata.namespace.unwrap_or_default(), metadata.name.unwrap_or_default())
}

/// Whether this change of a node is the one that makes it ready.
pub(super) fn became_ready(change: &Change) -> bool {
    let ready = |object: &Object| {
        decode::<Node>(object).is_some_and(|node| nodes::ready(&node) == Some("True"))
    };
    match change {
        Change::Added(node) => ready(node),
        Change::Updated { old, new } => ready(new) && !ready(old),
        Change::Deleted(_) => false,
    }
}
