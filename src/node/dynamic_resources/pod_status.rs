//! The health of the devices of claims in the status of pods (`allocatedResourcesStatus`).

use std::collections::HashSet;

use api::k8s::api::core::v1 as core;

use super::DynamicResources;
use super::claim::{Claim, ClaimDevice};
use super::health::HealthCache;
use crate::pods::pod::Pod;
use crate::pods::resource_claims::claim_object;

/// Begins the names of entries for claims.
const PREFIX: &str = "claim:";

/// The name of the object of a claim: that in the status, else that in the specification.
fn object_name(pod: &Pod, claim: &str) -> Option<String> {
    let statuses = pod.api_status().and_then(|s| s.resource_claim_statuses.as_ref());
    let status = statuses.into_iter().flatten().find(|status| status.name == claim);
    if let Some(name) = status.and_then(|s| s.resource_claim_name.clone()) {
        return Some(name);
    }
    let mut claims = pod.spec().resource_claims.iter().flatten();
    let object = claim_object(pod, claims.find(|c| c.name == claim)?).ok()??;
    Some(object.name)
}

/// The name of a request without that of a subrequest.
fn base_request(request: &str) -> &str {
    request.split_once('/').map_or(request, |(base, _)| base)
}

fn resource_health(
    driver: &str,
    device: &ClaimDevice,
    health: &HealthCache,
) -> core::ResourceHealth {
    let (pool, name) = (&device.pool_name, &device.device_name);
    let (health, message) = health.of_device(driver, pool, name);
    let fallback = || format!("{driver}/{pool}/{name}");
    core::ResourceHealth {
        resource_id: device.cdi_ids().first().cloned().unwrap_or_else(fallback),
        health: Some(health.name().to_owned()),
        message: (!message.is_empty()).then_some(message),
    }
}

/// The health of all devices of a claim that serve a request.
fn of_request(claim: &Claim, request: &str, health: &HealthCache) -> Vec<core::ResourceHealth> {
    let base = base_request(request);
    let mut ids = HashSet::new();
    let drivers = claim.state.driver_state.iter();
    let devices = drivers.flat_map(|(driver, d)| d.devices().iter().map(move |d| (driver, d)));
    let serving = devices.filter(|(_, device)| device.serves(base));
    let resources = serving.map(|(driver, device)| resource_health(driver, device, health));
    resources.filter(|resource| ids.insert(resource.resource_id.clone())).collect()
}

impl DynamicResources {
    /// Adds the health of the devices of claims to the statuses of the main containers of a pod.
    /// Devices of extended resources do not appear, as with upstream.
    pub(crate) fn add_resource_health(&self, pod: &Pod, status: &mut core::PodStatus) {
        for container in status.container_statuses.iter_mut().flatten() {
            let member = pod.container(&container.name).map(|member| &member.container);
            let resources = member.and_then(|c| c.resources.as_ref());
            let references = resources.and_then(|r| r.claims.as_deref()).unwrap_or_default();
            if references.is_empty() {
                continue;
            }
            let mut entries = container.allocated_resources_status.take().unwrap_or_default();
            entries.retain(|e| {
                let is_claim = e.name.starts_with(PREFIX);
                !is_claim && e.resources.as_ref().is_some_and(|r| !r.is_empty())
            });
            for reference in references {
                entries.extend(self.entry(pod, reference));
            }
            container.allocated_resources_status = (!entries.is_empty()).then_some(entries);
        }
    }

    /// The entry of a reference to a claim; `None` without devices.
    fn entry(&self, pod: &Pod, reference: &core::ResourceClaim) -> Option<core::ResourceStatus> {
        let object = object_name(pod, &reference.name)?;
        let request = reference.request.as_deref().unwrap_or_default();
        let resources = {
            let claims = self.claims.lock();
            let claim = claims.get(pod.namespace(), &object).ok()?;
            of_request(claim, request, &self.health)
        };
        let name = match request {
            "" => format!("{PREFIX}{}", reference.name),
            request => format!("{PREFIX}{}/{request}", reference.name),
        };
        let resources = (!resources.is_empty()).then_some(resources)?;
        Some(core::ResourceStatus { name, resources: Some(resources) })
    }

    /// Keeps the phase of a pod back while its claims may be prepared: the end of a pod makes its
    /// devices free for others. `previous` is the status before.
    pub(crate) fn hold_end_back(
        &self,
        pod: &Pod,
        status: &mut core::PodStatus,
        previous: &core::PodStatus,
    ) {
        let is_over = |phase: Option<&str>| matches!(phase, Some("Succeeded" | "Failed"));
        if is_over(status.phase.as_deref())
            && !is_over(previous.phase.as_deref())
            && !pod.is_api_terminal()
            && self.is_used_by(&pod.uid)
        {
            let earlier = pod.api_status().filter(|_| previous.phase.is_none());
            let earlier = earlier.unwrap_or(previous);
            status.phase = earlier.phase.clone().or_else(|| Some("Pending".to_owned()));
            status.reason.clone_from(&earlier.reason);
            status.message.clone_from(&earlier.message);
        }
    }
}
