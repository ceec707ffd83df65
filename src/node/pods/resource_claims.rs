//! The ResourceClaims of a pod: the names of their objects, and the requests of extended resources
//! that a claim serves.

use std::borrow::Cow;

use api::k8s::api::core::v1 as core;

use crate::pods::pod::Pod;

/// Prefix of resource names that stand for a DeviceClass (`ResourceDeviceClassPrefix`).
const DEVICE_CLASS_PREFIX: &str = "deviceclass.resource.kubernetes.io/";

/// Why the object of a claim is not known; upstream's texts (`resourceclaim.Name`).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ClaimNameError {
    /// The controller has not created it yet.
    #[error("pod \"{0}\": ResourceClaim not created yet")]
    NotCreated(String),
    #[error("pod \"{pod}\", spec.resourceClaim {claim:?}: none of the supported fields are set")]
    Unsupported { pod: String, claim: String },
}

/// The object of a claim of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClaimObject {
    pub(crate) name: String,
    /// The object is made from a template for this pod, so that the pod must be its owner.
    pub(crate) is_generated: bool,
}

/// Returns the object of an entry of `spec.resourceClaims`; `None` if the template needed none.
///
/// # Errors
///
/// The object is not created yet, or the entry names no source.
pub(crate) fn claim_object(
    pod: &Pod,
    claim: &core::PodResourceClaim,
) -> Result<Option<ClaimObject>, ClaimNameError> {
    if let Some(name) = &claim.resource_claim_name {
        return Ok(Some(ClaimObject { name: name.clone(), is_generated: false }));
    }
    if claim.resource_claim_template_name.is_none() {
        let (pod, claim) = (pod.key.to_string(), claim.name.clone());
        return Err(ClaimNameError::Unsupported { pod, claim });
    }
    let statuses = pod.api_status().and_then(|s| s.resource_claim_statuses.as_ref());
    let status = statuses.into_iter().flatten().find(|s| s.name == claim.name);
    let status = status.ok_or_else(|| ClaimNameError::NotCreated(pod.key.to_string()))?;
    let object = |name: &String| ClaimObject { name: name.clone(), is_generated: true };
    Ok(status.resource_claim_name.as_ref().map(object))
}

/// The claim that the scheduler created for the extended resources of a pod.
pub(crate) fn extended_claim(pod: &Pod) -> Option<&core::PodExtendedResourceClaimStatus> {
    pod.api_status()?.extended_resource_claim_status.as_ref()
}

/// Whether a pod uses ResourceClaims.
pub(crate) fn has_claims(pod: &Pod) -> bool {
    let listed = pod.spec().resource_claims.as_ref().is_some_and(|claims| !claims.is_empty());
    listed || extended_claim(pod).is_some()
}

/// Whether a claim may serve requests for a resource (`IsDRAExtendedResourceName`).
pub(crate) fn is_served_by_claims(resource: &str) -> bool {
    resource.starts_with(DEVICE_CLASS_PREFIX)
        || resource.contains('/')
            && !resource.contains("kubernetes.io/")
            && !resource.starts_with("requests.")
}

/// Whether the extended claim of a pod serves the request of a container for a resource.
pub(crate) fn is_claimed(pod: &Pod, container: &str, resource: &str) -> bool {
    let mappings = extended_claim(pod).map(|claim| &claim.request_mappings);
    let mut mappings = mappings.into_iter().flatten();
    is_served_by_claims(resource)
        && mappings.any(|m| m.container_name == container && m.resource_name == resource)
}

/// Returns the pod without the requests that its extended claim serves, for the comparison with
/// what is allocatable (`removeMissingExtendedResources`). The limits of such a resource equal its
/// requests and are left out, too.
pub(crate) fn without_claimed_requests(pod: &Pod) -> Cow<'_, Pod> {
    if extended_claim(pod).is_none() {
        return Cow::Borrowed(pod);
    }
    let mut own = pod.clone();
    for member in &mut own.containers {
        let container = &mut member.container;
        let name = container.name.clone();
        let Some(resources) = &mut container.resources else { continue };
        for list in [&mut resources.requests, &mut resources.limits].into_iter().flatten() {
            list.retain(|resource, _| !is_claimed(pod, &name, resource));
        }
    }
    Cow::Owned(own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::pod::PodOrigin;
    use crate::pods::resources::pod_resource_names;
    use serde_json::{Value, json};

    fn pod(claims: Value, status: Value) -> Pod {
        let object = json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"},
            "spec": {"containers": [{"name": "a", "resources": {
                "requests": {"example.com/gpu": "1", "example.com/nic": "1"},
                "limits": {"example.com/gpu": "1", "example.com/nic": "1"}}}],
                "resourceClaims": claims},
            "status": status});
        Pod::new(serde_json::from_value(object).unwrap(), PodOrigin::Api).unwrap()
    }

    fn name(claims: Value, status: Value) -> Result<Option<ClaimObject>, String> {
        let pod = pod(claims, status);
        let claim = &pod.spec().resource_claims.as_ref().unwrap()[0];
        claim_object(&pod, claim).map_err(|error| error.to_string())
    }

    #[test]
    fn a_claim_is_named_directly_or_by_the_status() {
        let object = |name: &str, is_generated| {
            Ok(Some(ClaimObject { name: name.to_owned(), is_generated }))
        };
        let direct = json!([{"name": "c", "resourceClaimName": "direct"}]);
        assert_eq!(name(direct, json!({})), object("direct", false));
        let template = json!([{"name": "c", "resourceClaimTemplateName": "t"}]);
        let of = |name: Value| json!({"resourceClaimStatuses": [name]});
        let generated = of(json!({"name": "c", "resourceClaimName": "p-c-1"}));
        assert_eq!(name(template.clone(), generated), object("p-c-1", true));
        assert_eq!(name(template.clone(), of(json!({"name": "c"}))), Ok(None));
        assert_eq!(
            name(template, of(json!({"name": "other"}))).unwrap_err(),
            "pod \"d/p\": ResourceClaim not created yet"
        );
        assert_eq!(
            name(json!([{"name": "c"}]), json!({})).unwrap_err(),
            "pod \"d/p\", spec.resourceClaim \"c\": none of the supported fields are set"
        );
    }

    #[test]
    fn requests_that_a_claim_serves_are_not_compared_with_allocatable() {
        let mapping = json!([{"containerName": "a", "resourceName": "example.com/gpu",
            "requestName": "container-0-request-0"}]);
        let status = json!({"extendedResourceClaimStatus":
            {"resourceClaimName": "p-x", "requestMappings": mapping}});
        let with = pod(json!([]), status);
        assert!(has_claims(&with));
        let names = pod_resource_names(&without_claimed_requests(&with));
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["example.com/nic"]);
        let without = pod(json!([]), json!({}));
        assert!(!has_claims(&without));
        assert_eq!(pod_resource_names(&without_claimed_requests(&without)).len(), 2);
        assert!(is_served_by_claims("deviceclass.resource.kubernetes.io/gpu"));
        assert!(!is_served_by_claims("cpu") && !is_served_by_claims("a.kubernetes.io/x"));
    }
}
