//! What the API server and drivers do with the ResourceClaims of a pod: the claims are written, and
//! their devices are ready at once.

use api::k8s::api::resource::v1::{AllocatedDeviceStatus, ResourceClaim, ResourceClaimStatus};
use api::k8s::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use api::k8s::jiff::Timestamp;

use crate::bind::claims::prepare_status;
use crate::devices::allocated::{allocation, results};
use crate::devices::binding::{ClaimRelease, ClaimsToBind, is_reserved_for};
use crate::devices::claims::uid;
use crate::devices::request::ClaimName;
use crate::devices::store::Devices;
use crate::framework::PreBind;
use crate::pod_info::PodInfo;

/// Allocates and reserves the claims of a pod that is bound.
pub(super) fn bind(devices: &Devices, pod: &PodInfo, writes: &[PreBind]) {
    for write in writes {
        if let PreBind::BindClaims(claims) = write {
            bind_all(devices, pod, claims);
        }
    }
}

fn bind_all(devices: &Devices, pod: &PodInfo, claims: &ClaimsToBind) {
    for bind in claims.claims.iter().filter(|bind| !is_reserved_for(&bind.claim, &pod.uid)) {
        let mut claim = (*bind.claim).clone();
        if prepare_status(&mut claim, bind.allocation.as_ref(), pod, Timestamp::now()).is_ok() {
            make_ready(&mut claim);
            // The version is the one that is known, so that the claim is never out of date.
            drop(devices.assume_claim(claim));
        }
        devices.remove_in_flight(uid(&bind.claim), true);
    }
    if let Some((extended, allocation)) = &claims.extended {
        let mut claim = (*extended.claim).clone();
        claim.metadata.name = Some(format!("{}-extended-resources", pod.name));
        if prepare_status(&mut claim, Some(allocation), pod, Timestamp::now()).is_ok() {
            make_ready(&mut claim);
            devices.observe_claim(claim);
        }
        devices.remove_in_flight(uid(&extended.claim), true);
    }
}

/// Makes the binding conditions of all devices true.
fn make_ready(claim: &mut ResourceClaim) {
    let results = allocation(claim).map(results).unwrap_or_default();
    let status = |result: &api::k8s::api::resource::v1::DeviceRequestAllocationResult| {
        let condition = |name: &String| Condition {
            type_: name.clone(),
            status: "True".into(),
            reason: "Ready".into(),
            message: String::new(),
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
            observed_generation: None,
        };
        let conditions = result.binding_conditions.as_ref()?;
        Some(AllocatedDeviceStatus {
            driver: result.driver.clone(),
            pool: result.pool.clone(),
            device: result.device.clone(),
            conditions: Some(conditions.iter().map(condition).collect()),
            ..AllocatedDeviceStatus::default()
        })
    };
    let ready: Vec<AllocatedDeviceStatus> = results.iter().filter_map(status).collect();
    if let Some(status) = claim.status.as_mut().filter(|_| !ready.is_empty()) {
        status.devices = Some(ready);
    }
}

/// Takes away the allocation of a claim, or deletes the claim.
pub(super) fn release(devices: &Devices, release: &ClaimRelease) {
    match release {
        ClaimRelease::Deallocate(claim) => {
            let mut claim = (**claim).clone();
            claim.status = Some(ResourceClaimStatus::default());
            drop(devices.assume_claim(claim));
        }
        ClaimRelease::Delete(claim) => drop(devices.remove_claim(&ClaimName::of(claim))),
    }
}
