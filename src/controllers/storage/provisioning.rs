//! What the built-in provisioners have in common: which claims and volumes are theirs, the nodes of
//! both, and what they write.

use std::collections::BTreeMap;
use std::fmt::Display;

use api::k8s::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use api::k8s::api::storage::v1::StorageClass;
use api::k8s::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use api::{Object, Typed as _};
use client::events::EventType;
use client::informer::decode;
use client::{Action, Change, Client, DeleteOptions, Error, EventRecorder, Informer, Patch};
use serde_json::{Value, json};

use crate::framework::keyed::{Key, Keyed, settled};
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

/// Wakes the claims of a class when it changes: the binder may know a class before a provisioner
/// does.
pub(super) fn watch_classes(
    keyed: &mut Keyed,
    classes: &Informer<StorageClass>,
    claims: &Informer<PersistentVolumeClaim>,
    provisioner: &'static str,
) {
    let claims = claims.clone();
    keyed.watches(classes, move |change| {
        let class = &*change.object().key.name;
        let claims = claims.list("").into_iter().filter(|c| is_requested(c, provisioner));
        claims.filter(|c| class_of(c) == class).map(|c| metadata_key(c.metadata)).collect()
    });
}

/// Any node that is ready.
pub(super) fn ready_node(nodes: &Informer<Node>) -> Option<Node> {
    nodes.list("").into_iter().find(|node| nodes::ready(node) == Some("True"))
}

/// `spec.claimRef` of the volume of a claim.
pub(super) fn claim_ref(claim: &PersistentVolumeClaim) -> Value {
    let meta = &claim.metadata;
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": meta.namespace,
        "name": meta.name, "uid": meta.uid, "resourceVersion": meta.resource_version,
    })
}

/// `spec.nodeAffinity` of a volume that only nodes with this label reach.
pub(super) fn node_affinity(label: &str, value: &str) -> Value {
    json!({"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": label, "operator": "In", "values": [value]}]},
    ]}})
}

/// Creates a PersistentVolume unless it exists.
pub(super) async fn create_volume(client: &Client, volume: &Value) -> Result<(), Error> {
    let object = PersistentVolume::from_value(volume)?;
    match client.create("", &object).await {
        Err(error) if error.is_already_exists() => Ok(()),
        other => other.map(drop),
    }
}

/// Deletes this PersistentVolume, but not another one of its name.
pub(super) async fn delete_volume(client: &Client, volume: PersistentVolume) -> Result<(), Error> {
    let options = DeleteOptions { uid: volume.metadata.uid, ..DeleteOptions::default() };
    let name = volume.metadata.name.unwrap_or_default();
    settled(client.delete::<PersistentVolume>("", &name, &options).await)
}

/// Removes the selected node from a claim, so that the scheduler selects another one.
pub(super) async fn reschedule(
    client: &Client,
    claim: &PersistentVolumeClaim,
) -> Result<Action, Error> {
    let (namespace, name) = metadata_key(claim.metadata.clone());
    let patch = json!({"metadata": {"annotations": {SELECTED_NODE: null}}});
    let patch = Patch::Merge(&patch);
    settled(client.patch::<PersistentVolumeClaim>(&namespace, &name, "", &patch).await)?;
    Ok(Action::Done)
}

/// Records that the claim has the volume.
pub(super) fn report_success(
    recorder: &EventRecorder,
    claim: &PersistentVolumeClaim,
    volume: &str,
) {
    let text = format!("Successfully provisioned volume {volume}");
    recorder.event(claim, EventType::Normal, "ProvisioningSucceeded", text);
}

/// Records why the claim has no volume.
pub(super) fn report_failure(
    recorder: &EventRecorder,
    claim: &PersistentVolumeClaim,
    why: &dyn Display,
) {
    let class = class_of(claim);
    let text = format!("failed to provision volume with StorageClass {class:?}: {why}");
    recorder.event(claim, EventType::Warning, "ProvisioningFailed", text);
}
