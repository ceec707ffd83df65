//! What a pod requests of dynamic resource allocation: its claims, and extended resources that
//! device classes may serve.

use std::collections::BTreeMap;

use api::k8s::api::core::v1::{Container, Pod};
use api::quantity::Quantity;

/// Prefix of the extended resource that every device class serves.
pub(crate) const IMPLICIT_PREFIX: &str = "deviceclass.resource.kubernetes.io/";

/// The name of a pod's claim, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PodClaimName {
    /// The claim with this name.
    Known(String),
    /// The template of the entry needs no claim.
    NotNeeded,
    /// The claim will be created from a template.
    NotCreated,
    /// The entry has a field of another release.
    Unsupported,
}

/// An entry of `spec.resourceClaims`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodClaim {
    /// Name of the entry.
    pub(crate) name: String,
    /// Name of the claim.
    pub(crate) claim: PodClaimName,
    /// The claim is made from a template: it must belong to the pod.
    pub(crate) is_generated: bool,
}

/// The requests of one container, if the pod requests resources that a device class may serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerRequests {
    /// Name of the container.
    pub(crate) name: String,
    /// An init container that ends before the next container starts.
    pub(crate) is_short_lived: bool,
    /// Whole units by resource; `None` if the amount is not whole. Includes CPU and memory, because
    /// the position among all resources is part of the names of requests.
    pub(crate) requests: BTreeMap<String, Option<i64>>,
}

/// Whether device classes may serve a resource (`IsDRAExtendedResourceName`).
pub(crate) fn may_be_served(resource: &str) -> bool {
    let is_native = !resource.contains('/') || resource.contains("kubernetes.io/");
    resource.starts_with(IMPLICIT_PREFIX) || !is_native && !resource.starts_with("requests.")
}

/// The claims of a pod.
pub(crate) fn pod_claims(pod: &Pod) -> Vec<PodClaim> {
    let statuses = pod.status.as_ref().and_then(|s| s.resource_claim_statuses.as_deref());
    let statuses = statuses.unwrap_or_default();
    let entries = pod.spec.iter().flat_map(|spec| &spec.resource_claims).flatten();
    let convert = |entry: &api::k8s::api::core::v1::PodResourceClaim| {
        let generated = || match statuses.iter().find(|status| status.name == entry.name) {
            None => PodClaimName::NotCreated,
            Some(status) => match &status.resource_claim_name {
                Some(name) => PodClaimName::Known(name.clone()),
                None => PodClaimName::NotNeeded,
            },
        };
        let (claim, is_generated) =
            match (&entry.resource_claim_name, &entry.resource_claim_template_name) {
                (Some(name), _) => (PodClaimName::Known(name.clone()), false),
                (None, Some(_)) => (generated(), true),
                (None, None) => (PodClaimName::Unsupported, false),
            };
        PodClaim { name: entry.name.clone(), claim, is_generated }
    };
    entries.map(convert).collect()
}

/// The requests of all containers, init containers first; `None` if no device class may serve any
/// of their resources.
pub(crate) fn served_requests(pod: &Pod) -> Option<Vec<ContainerRequests>> {
    let spec = pod.spec.as_ref()?;
    let init = spec.init_containers.iter().flatten();
    let containers =
        || init.clone().map(|c| (c, true)).chain(spec.containers.iter().map(|c| (c, false)));
    let mut all = containers().flat_map(|(container, _)| requests(container));
    if !all.any(|(name, _)| may_be_served(name)) {
        return None;
    }
    let convert = |(container, is_init): (&Container, bool)| ContainerRequests {
        name: container.name.clone(),
        is_short_lived: is_init && container.restart_policy.as_deref() != Some("Always"),
        requests: requests(container).map(|(name, q)| (name.clone(), whole(q))).collect(),
    };
    Some(containers().map(convert).collect())
}

fn requests(container: &Container) -> impl Iterator<Item = (&String, &str)> {
    let requests = container.resources.iter().flat_map(|r| &r.requests).flatten();
    requests.map(|(name, quantity)| (name, quantity.0.as_str()))
}

fn whole(text: &str) -> Option<i64> {
    let quantity = Quantity::parse(text).ok()?;
    let value = quantity.value();
    (Quantity::units(value) == quantity).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Rows of upstream's `IsExtendedResourceName` and `IsDRAExtendedResourceName`.
    #[test]
    fn extended_resources_have_a_domain_outside_of_kubernetes() {
        for (name, expected) in [
            ("example.com/gpu", true),
            ("deviceclass.resource.kubernetes.io/gpu", true),
            ("cpu", false),
            ("kubernetes.io/batch-cpu", false),
            ("requests.example.com/gpu", false),
        ] {
            assert_eq!(may_be_served(name), expected, "{name}");
        }
    }

    #[test]
    fn claims_have_a_name_once_they_are_created() {
        let pod = json!({
            "metadata": {"name": "p"},
            "spec": {"containers": [], "resourceClaims": [
                {"name": "a", "resourceClaimName": "claim"},
                {"name": "b", "resourceClaimTemplateName": "t"},
                {"name": "c", "resourceClaimTemplateName": "t"},
                {"name": "d", "resourceClaimTemplateName": "t"},
                {"name": "e"},
            ]},
            "status": {"resourceClaimStatuses": [
                {"name": "c", "resourceClaimName": "made"}, {"name": "d"},
            ]},
        });
        let claims = pod_claims(&serde_json::from_value(pod).unwrap());
        let claims: Vec<_> = claims.into_iter().map(|c| (c.claim, c.is_generated)).collect();
        assert_eq!(
            claims,
            [
                (PodClaimName::Known("claim".into()), false),
                (PodClaimName::NotCreated, true),
                (PodClaimName::Known("made".into()), true),
                (PodClaimName::NotNeeded, true),
                (PodClaimName::Unsupported, false),
            ]
        );
    }
}
