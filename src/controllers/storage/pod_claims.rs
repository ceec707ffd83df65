//! Which PersistentVolumeClaims a pod uses, by name or through ephemeral volumes.

use api::Object;
use api::k8s::api::core::v1::{PersistentVolumeClaim, Pod};
use client::Informer;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// Index of pods by `<namespace>/<claim>`.
pub(crate) const BY_CLAIM: &str = "claim";

#[derive(Deserialize, Default)]
#[serde(default)]
struct Shape {
    spec: Spec,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Spec {
    volumes: Option<Vec<Volume>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Volume {
    name: String,
    persistent_volume_claim: Option<Claim>,
    ephemeral: Option<IgnoredAny>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Claim {
    claim_name: String,
}

/// Names of the claims that a pod uses.
pub(crate) fn claim_names(pod: &Object) -> Vec<String> {
    let shape: Shape = serde_json::from_slice(pod.raw()).unwrap_or_default();
    let of = |volume: Volume| match (volume.persistent_volume_claim, volume.ephemeral) {
        (Some(claim), _) => Some(claim.claim_name),
        (None, Some(_)) => Some(ephemeral_name(&pod.key.name, &volume.name)),
        (None, None) => None,
    };
    shape.spec.volumes.unwrap_or_default().into_iter().filter_map(of).collect()
}

/// The claim of a pod's ephemeral volume.
pub(crate) fn ephemeral_name(pod: &str, volume: &str) -> String {
    format!("{pod}-{volume}")
}

/// Makes `pods` searchable by [`BY_CLAIM`].
pub(crate) fn index_pods(pods: &Informer<Pod>) {
    pods.add_index(BY_CLAIM, |pod| {
        let key = |name: String| format!("{}/{name}", pod.key.namespace);
        claim_names(pod).into_iter().map(key).collect()
    });
}

/// The claim was made for this pod: it is its controller.
pub(crate) fn is_for(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    client::is_controlled_by(&claim.metadata, uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn claims_by_name_and_of_ephemeral_volumes() {
        let pod = Object::from_value(json!({"kind": "Pod",
            "metadata": {"name": "p", "namespace": "n"}, "spec": {"volumes": [
            {"name": "a", "persistentVolumeClaim": {"claimName": "c"}},
            {"name": "b", "ephemeral": {"volumeClaimTemplate": {}}},
            {"name": "d", "emptyDir": {}}]}}))
        .unwrap();
        assert_eq!(claim_names(&pod), ["c", "p-b"]);
    }
}
