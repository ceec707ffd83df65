//! What is written for the claims of a pod after a node was chosen, and whether their devices are
//! ready for the pod.

use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1::ContainerExtendedResourceRequest;
use api::k8s::api::resource::v1::{
    AllocatedDeviceStatus, AllocationResult, DeviceRequestAllocationResult, ResourceClaim,
};
use api::k8s::jiff::Timestamp;

use super::allocated::{allocation, results};

/// Devices must be ready within this time after their allocation (`bindingTimeout` of
/// `DynamicResourcesArgs`).
pub(crate) const BINDING_TIMEOUT: Duration = Duration::from_secs(600);

/// A claim of the pod, with the allocation of this cycle if it had none.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClaimToBind {
    pub(crate) claim: Arc<ResourceClaim>,
    pub(crate) allocation: Option<AllocationResult>,
}

/// The claim for the extended resources of the pod that device classes serve on the node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ExtendedClaim {
    /// The claim with the requests for the node; the API server does not have it yet, and its UID
    /// is temporary.
    pub(crate) claim: Arc<ResourceClaim>,
    /// Which request serves which resource of which container.
    pub(crate) mappings: Vec<ContainerExtendedResourceRequest>,
}

/// All claims of a pod that is bound to a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ClaimsToBind {
    pub(crate) claims: Vec<ClaimToBind>,
    pub(crate) extended: Option<(ExtendedClaim, AllocationResult)>,
}

/// What may make a pod schedulable that fits no node.
#[derive(Clone, Debug)]
pub(crate) enum ClaimRelease {
    /// Take away the allocation of a claim that no node of its devices can be used for.
    Deallocate(Arc<ResourceClaim>),
    /// Delete the claim for extended resources of an earlier cycle.
    Delete(Arc<ResourceClaim>),
}

impl ClaimRelease {
    /// The text for the pod after the release has succeeded.
    pub(crate) fn text(&self) -> &'static str {
        match self {
            Self::Deallocate(_) => "deallocation of ResourceClaim completed",
            Self::Delete(_) => "deletion of ResourceClaim completed",
        }
    }
}

/// A device cannot be made ready; the texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BindingError {
    #[error("device binding failed: claim={claim}, reason={reason}, message={message:?}")]
    Failed { claim: String, reason: String, message: String },
    #[error("device binding timeout: claim={0}")]
    ClaimTimeout(String),
    #[error("device binding timeout: context deadline exceeded")]
    Timeout,
}

/// Whether the pod has reserved the claim.
pub(crate) fn is_reserved_for(claim: &ResourceClaim, pod_uid: &str) -> bool {
    let reserved = claim.status.iter().flat_map(|status| &status.reserved_for).flatten();
    reserved.into_iter().any(|consumer| consumer.uid == pod_uid)
}

/// Whether a device of the claim must be made ready before a pod is bound.
pub(crate) fn has_binding_conditions(claim: &ResourceClaim) -> bool {
    allocation(claim).is_some_and(|allocation| results(allocation).iter().any(has_conditions))
}

fn has_conditions(result: &DeviceRequestAllocationResult) -> bool {
    result.binding_conditions.as_ref().is_some_and(|conditions| !conditions.is_empty())
}

fn status<'a>(
    claim: &'a ResourceClaim,
    result: &DeviceRequestAllocationResult,
) -> Option<&'a AllocatedDeviceStatus> {
    let mut devices = claim.status.as_ref()?.devices.iter().flatten();
    devices
        .find(|d| d.driver == result.driver && d.pool == result.pool && d.device == result.device)
}

/// Whether all binding conditions of the claim's devices are true. As upstream, the check stops at
/// the first device that is not ready.
///
/// # Errors
///
/// A failure condition of a device is true.
pub(crate) fn is_ready(claim: &ResourceClaim) -> Result<bool, BindingError> {
    let Some(allocation) = allocation(claim) else { return Ok(false) };
    for result in results(allocation).iter().filter(|result| has_conditions(result)) {
        let Some(status) = status(claim, result) else { return Ok(false) };
        let conditions = status.conditions.as_deref().unwrap_or_default();
        let find = |name: &String| conditions.iter().find(|c| c.type_ == *name);
        let is_true = |name: &String| find(name).filter(|c| c.status == "True");
        let failures = result.binding_failure_conditions.iter().flatten();
        if let Some(failure) = failures.into_iter().find_map(is_true) {
            return Err(BindingError::Failed {
                claim: claim.metadata.name.clone().unwrap_or_default(),
                reason: failure.reason.clone(),
                message: failure.message.clone(),
            });
        }
        if !result.binding_conditions.iter().flatten().all(|name| is_true(name).is_some()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether devices of the claim have had their time to become ready.
pub(crate) fn is_timed_out(claim: &ResourceClaim, now: Timestamp) -> bool {
    let Some(allocation) = allocation(claim) else { return false };
    let Some(since) = &allocation.allocation_timestamp else { return false };
    let waits = results(allocation).iter().any(|result| result.binding_conditions.is_some());
    waits && since.0.checked_add(BINDING_TIMEOUT).is_ok_and(|until| until < now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn claim(conditions: Value, since: &str) -> ResourceClaim {
        let result = json!({"request": "r", "driver": "d", "pool": "p", "device": "x",
            "bindingConditions": ["Ready", "Attached"], "bindingFailureConditions": ["Failed"]});
        let devices = match conditions {
            Value::Null => json!([]),
            conditions => {
                json!([{"driver": "d", "pool": "p", "device": "x", "conditions": conditions}])
            }
        };
        let status = json!({"devices": devices, "allocation": {
            "devices": {"results": [result]}, "allocationTimestamp": since,
        }});
        serde_json::from_value(json!({"metadata": {"name": "c"}, "status": status})).unwrap()
    }

    fn condition(name: &str, status: &str) -> Value {
        json!({"type": name, "status": status, "reason": "Why", "message": "a \"b\"",
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
    }

    /// Rows of upstream's `TestIsClaimReadyForBinding` and `TestIsClaimTimeout`.
    #[test]
    fn devices_are_ready_when_all_conditions_are_true_and_no_failure_is() {
        let since = "2026-01-01T00:00:00Z";
        let failed = BindingError::Failed {
            claim: "c".into(),
            reason: "Why".into(),
            message: "a \"b\"".into(),
        };
        for (conditions, expected) in [
            (Value::Null, Ok(false)),
            (json!([condition("Ready", "True")]), Ok(false)),
            (json!([condition("Ready", "True"), condition("Attached", "False")]), Ok(false)),
            (json!([condition("Ready", "True"), condition("Attached", "True")]), Ok(true)),
            (json!([condition("Failed", "True")]), Err(failed.clone())),
            (json!([condition("Failed", "False")]), Ok(false)),
        ] {
            assert_eq!(is_ready(&claim(conditions.clone(), since)), expected, "{conditions}");
        }
        assert_eq!(
            failed.to_string(),
            "device binding failed: claim=c, reason=Why, message=\"a \\\"b\\\"\""
        );
        assert_eq!(is_ready(&ResourceClaim::default()), Ok(false));
        let waiting = claim(Value::Null, since);
        assert!(has_binding_conditions(&waiting));
        for (now, expected) in [("2026-01-01T00:10:00Z", false), ("2026-01-01T00:10:01Z", true)] {
            assert_eq!(is_timed_out(&waiting, now.parse().unwrap()), expected, "{now}");
        }
    }
}
