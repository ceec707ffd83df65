//! The ResourceClaims of a pod: their names, and whether a claim was created for the pod
//! (`k8s.io/dynamic-resource-allocation/resourceclaim`).

use std::sync::Arc;

use api::Object;
use serde::Deserialize;

/// What the names of all fields of a pod with claims contain: `resourceClaims`,
/// `resourceClaimStatuses` and `extendedResourceClaimStatus`.
const MARK: &str = "esourceClaim";

/// An entry of `spec.resourceClaims`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PodClaim {
    /// The name by which containers refer to the claim.
    pub(crate) name: String,
    /// A claim that exists independently of the pod.
    pub(crate) resource_claim_name: Option<String>,
    /// The template of a claim of this pod.
    pub(crate) resource_claim_template_name: Option<String>,
}

/// An entry of `status.resourceClaimStatuses`: the claim that was created from a template.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PodClaimStatus {
    /// The name of the entry of `spec.resourceClaims`.
    pub(crate) name: String,
    /// `None`: the pod needs no claim.
    pub(crate) resource_claim_name: Option<String>,
}

/// A pod as the controllers of claims see it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ClaimPod {
    pub(crate) namespace: Arc<str>,
    pub(crate) name: Arc<str>,
    pub(crate) uid: Arc<str>,
    /// Has a deletion timestamp.
    pub(crate) is_deleted: bool,
    /// Succeeded or Failed.
    pub(crate) is_terminal: bool,
    /// Empty before it is scheduled.
    pub(crate) node_name: String,
    pub(crate) claims: Vec<PodClaim>,
    pub(crate) statuses: Vec<PodClaimStatus>,
    /// The claim that the scheduler created for extended resources.
    pub(crate) extended_claim: Option<String>,
    /// The PodGroup that the pod is a member of.
    pub(crate) pod_group: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Shape {
    metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    deletion_timestamp: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    node_name: Option<String>,
    resource_claims: Option<Vec<PodClaim>>,
    scheduling_group: Option<SchedulingGroup>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct SchedulingGroup {
    pod_group_name: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    phase: Option<String>,
    resource_claim_statuses: Option<Vec<PodClaimStatus>>,
    extended_resource_claim_status: Option<ExtendedStatus>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct ExtendedStatus {
    resource_claim_name: String,
}

/// Why a pod claim has no name yet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NameError {
    /// The claim of a template is not recorded in the status of the pod.
    #[error("pod \"{namespace}/{pod}\": ResourceClaim not created yet")]
    NotCreated { namespace: Arc<str>, pod: Arc<str> },
    /// Neither a claim nor a template is named.
    #[error(
        "pod \"{namespace}/{pod}\", spec.resourceClaim {claim:?}: none of the supported fields are set"
    )]
    Unsupported { namespace: Arc<str>, pod: Arc<str>, claim: String },
}

/// Why a claim is not the one that was created for a pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OwnerError {
    /// The claim is in another namespace.
    #[error(
        "ResourceClaim {claim_namespace}/{claim} is not in the same namespace as Pod {namespace}/{pod}"
    )]
    Namespace { claim_namespace: String, claim: String, namespace: Arc<str>, pod: Arc<str> },
    /// The controller of the claim is not the pod.
    #[error(
        "ResourceClaim {namespace}/{claim} was not created for Pod {namespace}/{pod} (Pod is not owner)"
    )]
    NotOwner { namespace: Arc<str>, claim: String, pod: Arc<str> },
}

/// The name of the claim of a pod claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClaimName<'a> {
    pub(crate) name: &'a str,
    /// The claim must be owned by the pod ([`ClaimPod::owns`]), because it was created from a
    /// template.
    pub(crate) is_generated: bool,
}

impl ClaimPod {
    /// The pod of an object; `None` if it cannot be decoded.
    pub(crate) fn of(object: &Object) -> Option<Self> {
        let shape: Shape = match serde_json::from_slice(object.raw()) {
            Ok(shape) => shape,
            Err(error) => {
                tracing::warn!(pod = %object.key, %error, "cannot decode the claims of a pod");
                return None;
            }
        };
        let Shape { metadata, spec, status } = shape;
        Some(Self {
            namespace: Arc::clone(&object.key.namespace),
            name: Arc::clone(&object.key.name),
            uid: Arc::clone(&object.uid),
            is_deleted: metadata.deletion_timestamp.is_some(),
            is_terminal: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
            node_name: spec.node_name.unwrap_or_default(),
            claims: spec.resource_claims.unwrap_or_default(),
            statuses: status.resource_claim_statuses.unwrap_or_default(),
            extended_claim: status.extended_resource_claim_status.map(|s| s.resource_claim_name),
            pod_group: spec.scheduling_group.and_then(|group| group.pod_group_name),
        })
    }

    /// As [`ClaimPod::of`]; `None` for a pod without claims. A search is cheaper than decoding, and
    /// most pods have no claims.
    pub(crate) fn with_claims(object: &Object) -> Option<Self> {
        if !std::str::from_utf8(object.raw()).is_ok_and(|text| text.contains(MARK)) {
            return None;
        }
        Self::of(object).filter(|pod| !pod.claims.is_empty() || pod.extended_claim.is_some())
    }

    /// The name of the claim of a pod claim; `None` if the pod needs no claim for it.
    ///
    /// # Errors
    /// The claim is not created yet, or the pod claim has no source.
    pub(crate) fn claim_name<'a>(
        &'a self,
        claim: &'a PodClaim,
    ) -> Result<Option<ClaimName<'a>>, NameError> {
        let (namespace, pod) = (Arc::clone(&self.namespace), Arc::clone(&self.name));
        if let Some(name) = &claim.resource_claim_name {
            return Ok(Some(ClaimName { name, is_generated: false }));
        }
        if claim.resource_claim_template_name.is_none() {
            return Err(NameError::Unsupported { namespace, pod, claim: claim.name.clone() });
        }
        let status = self.statuses.iter().find(|status| status.name == claim.name);
        let status = status.ok_or(NameError::NotCreated { namespace, pod })?;
        let name = status.resource_claim_name.as_deref();
        Ok(name.map(|name| ClaimName { name, is_generated: true }))
    }

    /// The names of all claims that are known now, in the order of the specification.
    pub(crate) fn claim_names(&self) -> impl Iterator<Item = ClaimName<'_>> {
        self.claims.iter().filter_map(|claim| self.claim_name(claim).ok().flatten())
    }

    /// Checks that a claim was created for this pod; `controller` is the UID of its controller.
    ///
    /// # Errors
    /// The claim belongs to something else.
    pub(crate) fn owns(
        &self,
        claim_namespace: &str,
        claim: &str,
        controller: Option<&str>,
    ) -> Result<(), OwnerError> {
        let (namespace, pod) = (Arc::clone(&self.namespace), Arc::clone(&self.name));
        let claim = claim.to_owned();
        if *claim_namespace != *self.namespace {
            let claim_namespace = claim_namespace.to_owned();
            return Err(OwnerError::Namespace { claim_namespace, claim, namespace, pod });
        }
        match controller == Some(&*self.uid) {
            true => Ok(()),
            false => Err(OwnerError::NotOwner { namespace, claim, pod }),
        }
    }

    /// No container runs or will ever run (upstream's `isPodDone`).
    pub(crate) fn is_done(&self) -> bool {
        self.is_terminal || self.is_deleted && self.node_name.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(spec: Value, status: Value) -> Object {
        Object::from_value(json!({"kind": "Pod",
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": spec, "status": status}))
        .unwrap()
    }

    #[test]
    fn pods_without_claims_are_not_decoded() {
        assert_eq!(ClaimPod::with_claims(&pod(json!({}), json!({}))), None);
        assert_eq!(ClaimPod::with_claims(&pod(json!({"resourceClaims": []}), json!({}))), None);
        let extended = json!({"extendedResourceClaimStatus": {"resourceClaimName": "e"}});
        let found = ClaimPod::with_claims(&pod(json!({}), extended)).unwrap();
        assert_eq!(found.extended_claim.as_deref(), Some("e"));
    }

    #[test]
    fn a_claim_has_the_name_of_the_reference_or_of_the_status() {
        let spec = json!({"resourceClaims": [
            {"name": "direct", "resourceClaimName": "c"},
            {"name": "made", "resourceClaimTemplateName": "t"},
            {"name": "none", "resourceClaimTemplateName": "t"},
            {"name": "later", "resourceClaimTemplateName": "t"},
            {"name": "odd"}]});
        let status = json!({"resourceClaimStatuses": [
            {"name": "made", "resourceClaimName": "p-made-x"}, {"name": "none"}]});
        let pod = ClaimPod::with_claims(&pod(spec, status)).unwrap();
        let names: Vec<_> = pod.claims.iter().map(|claim| pod.claim_name(claim)).collect();
        assert_eq!(names[0], Ok(Some(ClaimName { name: "c", is_generated: false })));
        assert_eq!(names[1], Ok(Some(ClaimName { name: "p-made-x", is_generated: true })));
        assert_eq!(names[2], Ok(None));
        let text = |at: usize| names[at].as_ref().unwrap_err().to_string();
        assert_eq!(text(3), "pod \"n/p\": ResourceClaim not created yet");
        assert_eq!(
            text(4),
            "pod \"n/p\", spec.resourceClaim \"odd\": none of the supported fields are set"
        );
        let known: Vec<&str> = pod.claim_names().map(|claim| claim.name).collect();
        assert_eq!(known, ["c", "p-made-x"]);
    }

    #[test]
    fn a_generated_claim_is_controlled_by_the_pod() {
        let pod = ClaimPod::of(&pod(json!({}), json!({}))).unwrap();
        assert_eq!(pod.owns("n", "c", Some("u")), Ok(()));
        let text = |namespace: &str, owner: Option<&str>| {
            pod.owns(namespace, "c", owner).unwrap_err().to_string()
        };
        let other = "ResourceClaim n/c was not created for Pod n/p (Pod is not owner)";
        assert_eq!(text("n", Some("v")), other);
        assert_eq!(text("n", None), other);
        assert_eq!(
            text("m", Some("u")),
            "ResourceClaim m/c is not in the same namespace as Pod n/p"
        );
    }
}
