//! The claim that is created from a template for a pod.

use api::k8s::api::resource::v1::{ResourceClaim, ResourceClaimSpec, ResourceClaimTemplate};
use api::k8s::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::POD_CLAIM_ANNOTATION;
use crate::devices::pod_claims::{ClaimPod, PodClaim};

/// Maximum length of a prefix of names: a name of 63 characters has room for a hyphen and 5 random
/// characters.
const PREFIX_MAX: usize = 57;

/// The claim for a pod claim. It does not block the deletion of its owner.
pub(super) fn claim_for(
    pod: &ClaimPod,
    claim: &PodClaim,
    template: ResourceClaimTemplate,
) -> ResourceClaim {
    let spec = template.spec.unwrap_or_default();
    let meta = spec.metadata.unwrap_or_default();
    let mut annotations = meta.annotations.unwrap_or_default();
    annotations.insert(POD_CLAIM_ANNOTATION.to_owned(), claim.name.clone());
    ResourceClaim {
        metadata: ObjectMeta {
            generate_name: Some(name_prefix(&pod.name, &claim.name)),
            namespace: Some(pod.namespace.to_string()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Pod".to_owned(),
                name: pod.name.to_string(),
                uid: pod.uid.to_string(),
                controller: Some(true),
                block_owner_deletion: None,
            }]),
            annotations: Some(annotations),
            labels: meta.labels,
            ..ObjectMeta::default()
        },
        spec: spec.spec,
        status: None,
    }
}

/// `<pod>-<claim>-`. If it is too long, both names are shortened by the same share, and the last
/// hyphen is missing.
fn name_prefix(pod: &str, claim: &str) -> String {
    let whole = format!("{pod}-{claim}-");
    let length = whole.len();
    if length <= PREFIX_MAX {
        return whole;
    }
    // Names have one byte per character.
    let part = |name: &str| -> String {
        let kept = name.len() * PREFIX_MAX / length;
        name.chars().take(kept).collect()
    };
    format!("{}-{}", part(pod), part(claim))
}

/// A request has administrative access; subrequests cannot have it.
pub(super) fn has_admin_access(spec: Option<&ResourceClaimSpec>) -> bool {
    let devices = spec.and_then(|spec| spec.devices.as_ref());
    let mut requests = devices.and_then(|d| d.requests.as_deref()).unwrap_or_default().iter();
    requests.any(|r| r.exactly.as_ref().is_some_and(|e| e.admin_access == Some(true)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn long_names_are_shortened_by_the_same_share() {
        assert_eq!(name_prefix("pod", "claim"), "pod-claim-");
        let (pod, claim) = ("p".repeat(40), "c".repeat(15));
        assert_eq!(name_prefix(&pod, &claim), format!("{pod}-{claim}-"));
        let (pod, claim) = ("p".repeat(100), "c".repeat(12));
        let want = format!("{}-{}", "p".repeat(50), "c".repeat(6));
        assert_eq!(name_prefix(&pod, &claim), want);
    }

    #[test]
    fn a_claim_has_the_metadata_and_the_spec_of_its_template() {
        let template: ResourceClaimTemplate = serde_json::from_value(json!({
            "metadata": {"name": "t", "namespace": "n"},
            "spec": {"metadata": {"labels": {"a": "b"},
                    "annotations": {"example.com/color": "blue"}},
                "spec": {"devices": {"requests": [{"name": "r"}]}}}}))
        .unwrap();
        let pod = ClaimPod {
            namespace: "n".into(),
            name: "p".into(),
            uid: "u".into(),
            ..ClaimPod::default()
        };
        let entry = PodClaim { name: "c".into(), ..PodClaim::default() };
        let claim = serde_json::to_value(claim_for(&pod, &entry, template)).unwrap();
        assert_eq!(
            claim,
            json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
                "metadata": {"generateName": "p-c-", "namespace": "n", "labels": {"a": "b"},
                    "annotations": {"example.com/color": "blue", POD_CLAIM_ANNOTATION: "c"},
                    "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p",
                        "uid": "u", "controller": true}]},
                "spec": {"devices": {"requests": [{"name": "r"}]}}})
        );
    }

    #[test]
    fn any_exact_request_may_have_admin_access() {
        let has = |requests: Value| {
            let spec = serde_json::from_value(json!({"devices": {"requests": requests}})).unwrap();
            has_admin_access(Some(&spec))
        };
        let exact = |admin: Value| {
            json!({"name": "r",
            "exactly": {"deviceClassName": "c", "adminAccess": admin}})
        };
        assert!(!has_admin_access(None));
        assert!(!has(json!([])));
        assert!(!has(json!([exact(json!(false))])));
        assert!(!has(json!([exact(Value::Null), exact(json!(false))])));
        let sub = json!({"name": "r", "firstAvailable": [{"name": "s", "deviceClassName": "c"}]});
        assert!(!has(json!([sub])));
        assert!(has(json!([sub, exact(json!(false)), exact(json!(true))])));
    }
}
