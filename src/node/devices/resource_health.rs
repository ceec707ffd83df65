//! The health of allocated devices in the status of pods (`allocatedResourcesStatus`, KEP 4680).

use api::k8s::api::core::v1 as core;

use super::DeviceManager;
use super::records::ContainerAllocations;
use super::state::DeviceState;

impl DeviceManager {
    /// Adds the health of their devices to the statuses of the main containers of a pod.
    pub(crate) fn add_resource_health(&self, pod: &str, status: &mut core::PodStatus) {
        let guarded = self.guarded.lock();
        for container in status.container_statuses.iter_mut().flatten() {
            if let Some(allocations) = guarded.state.records.container(pod, &container.name) {
                let known = container.allocated_resources_status.get_or_insert_default();
                // Resource claims have entries of their own.
                for status in health(&guarded.state, allocations) {
                    match known.iter_mut().find(|known| known.name == status.name) {
                        Some(known) => *known = status,
                        None => known.push(status),
                    }
                }
            }
        }
    }
}

/// The health of each device of a container, by resource.
fn health(state: &DeviceState, allocations: &ContainerAllocations) -> Vec<core::ResourceStatus> {
    let device = |resource: &str, id: String| {
        let health = if state.is_healthy(resource, &id) { "Healthy" } else { "Unhealthy" };
        core::ResourceHealth {
            resource_id: id,
            health: Some(health.to_owned()),
            ..core::ResourceHealth::default()
        }
    };
    let status =
        |(name, allocation): (&String, &super::records::Allocation)| core::ResourceStatus {
            name: name.clone(),
            resources: Some(allocation.ids().into_iter().map(|id| device(name, id)).collect()),
        };
    allocations.iter().map(status).collect()
}
