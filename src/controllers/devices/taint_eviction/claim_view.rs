//! A ResourceClaim as the controller needs it.

use api::k8s::api::resource::v1::{DeviceToleration, ResourceClaim, ResourceClaimStatus};
use api::{Object, ObjectKey};
use client::controller_of;
use client::informer::decode;

use super::pools::PoolId;
use crate::devices::pod_claims::ClaimPod;

/// An object for which a claim is reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Consumer {
    pub(super) is_pod: bool,
    pub(super) name: String,
    pub(super) uid: String,
}

/// A device that is allocated to a claim.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AllocatedDevice {
    pub(super) pool: PoolId,
    pub(super) device: String,
    pub(super) tolerations: Vec<DeviceToleration>,
}

/// A claim.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ClaimView {
    pub(super) key: ObjectKey,
    pub(super) uid: String,
    /// UID of the controller.
    pub(super) controller: Option<String>,
    pub(super) reserved_for: Vec<Consumer>,
    /// `None` while the claim is not allocated.
    pub(super) devices: Option<Vec<AllocatedDevice>>,
}

impl ClaimView {
    /// The claim of an object; `None` if it cannot be decoded, which is logged.
    pub(super) fn of(object: &Object) -> Option<Self> {
        let claim: ResourceClaim = decode(object)?;
        let controller = controller_of(&claim.metadata).map(|owner| owner.uid.clone());
        let status: ResourceClaimStatus = claim.status.unwrap_or_default();
        let consumers = status.reserved_for.unwrap_or_default().into_iter();
        let reserved_for = consumers.map(|consumer| Consumer {
            is_pod: consumer.api_group.unwrap_or_default().is_empty()
                && consumer.resource == "pods",
            name: consumer.name,
            uid: consumer.uid,
        });
        let devices = status.allocation.map(|allocation| {
            let results = allocation.devices.and_then(|devices| devices.results);
            let device = results.unwrap_or_default().into_iter().map(|result| AllocatedDevice {
                pool: PoolId { driver: result.driver.into(), pool: result.pool.into() },
                device: result.device,
                tolerations: result.tolerations.unwrap_or_default(),
            });
            device.collect()
        });
        Some(Self {
            key: object.key.clone(),
            uid: object.uid.to_string(),
            controller,
            reserved_for: reserved_for.collect(),
            devices,
        })
    }

    /// Whether a pod uses the claim: the pod refers to it, the claim belongs to the pod if it was
    /// generated, and it is reserved for the pod.
    pub(super) fn is_used_by(&self, pod: &ClaimPod) -> bool {
        let is_referenced = pod.namespace == self.key.namespace
            && pod.claim_names().filter(|claim| *claim.name == *self.key.name).any(|claim| {
                let owned = pod.owns(&pod.namespace, claim.name, self.controller.as_deref());
                !claim.is_generated || owned.is_ok()
            });
        is_referenced && self.reserved_for.iter().any(|consumer| *consumer.uid == *pod.uid)
    }
}
