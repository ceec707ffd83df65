//! The fields of a pod that the engine of replicas reads. A sync decodes all pods of its owner, and
//! most of a pod is its containers and managed fields, which are skipped.

use std::collections::BTreeMap;

use api::Object;
use api::k8s::api::core::v1::{Pod, PodSpec, PodStatus};
use api::k8s::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::Deserialize;

#[derive(Deserialize)]
struct PodParts {
    metadata: MetadataParts,
    #[serde(default)]
    spec: SpecParts,
    status: Option<PodStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetadataParts {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpecParts {
    node_name: Option<String>,
}

/// Decodes these fields of a pod; the others have their default values. `None` if the object is not
/// a valid pod, which is logged.
pub(super) fn decode(object: &Object) -> Option<Pod> {
    match serde_json::from_slice::<PodParts>(object.raw()) {
        Ok(parts) => Some(parts.into()),
        // The decoder of whole objects reads some that are written otherwise, and logs the others.
        Err(_) => client::informer::decode(object),
    }
}

impl From<PodParts> for Pod {
    fn from(parts: PodParts) -> Self {
        let metadata = parts.metadata;
        Self {
            metadata: ObjectMeta {
                name: metadata.name,
                namespace: metadata.namespace,
                uid: metadata.uid,
                labels: metadata.labels,
                annotations: metadata.annotations,
                owner_references: metadata.owner_references,
                creation_timestamp: metadata.creation_timestamp,
                deletion_timestamp: metadata.deletion_timestamp,
                ..ObjectMeta::default()
            },
            spec: Some(PodSpec { node_name: parts.spec.node_name, ..PodSpec::default() }),
            status: parts.status,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_fields_that_the_engine_reads_are_those_of_the_whole_pod() {
        let value = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "p", "namespace": "n", "uid": "u", "labels": {"a": "b"},
                "annotations": {"controller.kubernetes.io/pod-deletion-cost": "3"},
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "deletionTimestamp": "2026-01-02T00:00:00Z",
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r",
                    "uid": "v", "controller": true}],
                "managedFields": [{"manager": "m", "operation": "Update"}],
            },
            "spec": {"nodeName": "one", "containers": [{"name": "c", "image": "i"}]},
            "status": {"phase": "Running", "containerStatuses": [{"name": "c", "image": "i",
                "imageID": "", "ready": true, "restartCount": 2}],
                "conditions": [{"type": "Ready", "status": "True",
                    "lastTransitionTime": "2026-01-01T00:00:01Z"}]},
        });
        let object = Object::from_value(value).unwrap();
        let mut whole: Pod = client::informer::decode(&object).unwrap();
        whole.metadata.managed_fields = None;
        whole.spec = Some(PodSpec { node_name: Some("one".into()), ..PodSpec::default() });
        assert_eq!(decode(&object), Some(whole));
    }

    #[test]
    fn a_pod_with_an_unset_time_is_decoded_as_a_whole() {
        let value = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "n"},
            "status": {"conditions": [{"type": "Ready", "status": "False",
                "lastTransitionTime": null}]},
        });
        let pod = decode(&Object::from_value(value).unwrap()).unwrap();
        assert_eq!(pod.status.unwrap().conditions.unwrap().len(), 1);
    }
}
