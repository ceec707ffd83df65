//! Which events may make a pod schedulable that DynamicResources rejected.

use super::pod_claims::pod_claims;
use crate::devices::allocated::allocation;
use crate::devices::claims::{ClaimChange, uid};
use crate::devices::store::Devices;
use crate::event::Event;
use crate::pod_info::PodInfo;

/// Upstream's `EventsToRegister` with its hints.
pub(super) fn queueing_hint(event: &Event<'_>, pod: &PodInfo) -> bool {
    match event {
        Event::Node | Event::ResourceSlice | Event::DeviceClass { .. } => true,
        Event::ResourceClaim { change, devices } => after_claim_change(change, devices, pod),
        Event::GeneratedResourceClaim(devices) => pod_claims(pod, devices).is_ok(),
        _ => false,
    }
}

/// `isSchedulableAfterClaimChange`.
fn after_claim_change(change: &ClaimChange, devices: &Devices, pod: &PodInfo) -> bool {
    let Some(new) = &change.new else {
        // The devices of a deleted claim are free.
        return change.old.as_deref().and_then(allocation).is_some();
    };
    let Ok(claims) = pod_claims(pod, devices) else { return false };
    let had = change.old.as_deref().and_then(allocation).is_some();
    if had && allocation(new).is_none() {
        return true;
    }
    if !claims.iter().any(|claim| uid(claim) == uid(new)) {
        return false;
    }
    // Without a change of the status, only metadata changed, such as the finalizer.
    change.old.as_ref().is_none_or(|old| old.status != new.status)
}
