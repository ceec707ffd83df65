//! Allocation of devices: before a pod starts, and before a container starts that has none yet.

use std::collections::BTreeSet;
use std::sync::Arc;

use proto::deviceplugin::ContainerAllocateResponse;
use tokio::sync::{Notify, watch};

use super::choice::{Choice, DeviceRequest, Preference};
use super::client::PluginClient;
use super::error::AllocationError;
use super::records::PodDevices;
use super::state::{ConnectedPlugin, Patience, PluginEndpoint};
use super::{DeviceManager, metrics};
use crate::pods::pod::{ContainerRole, Pod, PodContainer};
use crate::pods::resources;

/// Whether a container of a pod limits an extended resource, which may be one of a device plugin.
pub(crate) fn has_extended_limits(pod: &Pod) -> bool {
    pod.containers.iter().any(|member| !resources::extended_limits(&member.container).is_empty())
}

/// Whether a resource claim provides the devices of an extended resource.
pub(super) fn is_of_claim(pod: &Pod, container: &str, resource: &str) -> bool {
    let status = pod.api_status().and_then(|s| s.extended_resource_claim_status.as_ref());
    let mut mappings = status.into_iter().flat_map(|status| &status.request_mappings);
    mappings.any(|m| m.container_name == container && m.resource_name == resource)
}

/// The devices that a container may use again: those of init containers before it, which have
/// ended when it starts, without those that sidecars and main containers have.
pub(super) fn reusable(
    records: &PodDevices,
    pod: &Pod,
    name: &str,
    resource: &str,
) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    let devices = |m: &PodContainer| records.devices(&pod.uid, m.name(), resource);
    let before = pod.containers.iter().take_while(|m| m.name() != name);
    for member in before.filter(|m| m.role == ContainerRole::Init) {
        out.extend(devices(member).into_iter().flatten());
    }
    for member in &pod.containers {
        if matches!(member.role, ContainerRole::Sidecar | ContainerRole::Main) {
            for id in devices(member).into_iter().flatten() {
                out.remove(&id);
            }
        }
    }
    out
}

/// What happens to devices that a container has already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recorded {
    /// They must be healthy and as many as requested: the pod is admitted.
    Verify,
    /// The container keeps them: it starts again in a pod that was admitted.
    Keep,
}

/// Gives up the devices of an allocation that fails or is cancelled.
struct Claim<'a> {
    manager: &'a DeviceManager,
    request: &'a DeviceRequest,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.manager.guarded.lock().state.drop_claim(self.request);
    }
}

impl DeviceManager {
    /// Allocates the devices of all containers of a pod, init containers first. Waits while
    /// devices that are missing are about to come back. `wake` wakes the worker of the pod when
    /// the health of its devices changes.
    ///
    /// # Errors
    ///
    /// There are no such devices, too few, or the plugin does not allocate them.
    pub(crate) async fn admit(
        self: &Arc<Self>,
        pod: &Pod,
        wake: &Arc<Notify>,
    ) -> Result<(), AllocationError> {
        self.follow_health(pod, wake);
        let mut changes = self.changes();
        loop {
            changes.mark_unchanged();
            let Err(error) = self.allocate_pod(pod).await else { return Ok(()) };
            if !self.may_retry(pod, &error, &mut changes).await {
                return Err(error);
            }
        }
    }

    /// Changes when devices were listed or released, or a plugin is gone.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Waits for a change after an allocation failed. Returns whether another attempt makes sense.
    pub(crate) async fn may_retry(
        &self,
        pod: &Pod,
        error: &AllocationError,
        changes: &mut watch::Receiver<()>,
    ) -> bool {
        let patience = self.guarded.lock().state.patience(&pod.uid, error);
        let changed = match patience {
            None => return false,
            Some(Patience::UntilRelease) => Ok(changes.changed().await),
            Some(Patience::Until(end)) => tokio::time::timeout_at(end, changes.changed()).await,
        };
        // The sender is a part of the manager.
        matches!(changed, Ok(Ok(())))
    }

    /// Writes the checkpoint after allocations.
    pub(crate) async fn save_allocations(self: &Arc<Self>) -> Result<(), AllocationError> {
        self.save().await.map_err(AllocationError::Checkpoint)
    }

    /// Wakes the worker of the pod when the health of its devices changes.
    pub(crate) fn follow_health(&self, pod: &Pod, wake: &Arc<Notify>) {
        self.guarded.lock().wakes.insert(pod.uid.to_string(), Arc::clone(wake));
    }

    async fn allocate_pod(self: &Arc<Self>, pod: &Pod) -> Result<(), AllocationError> {
        let mut is_changed = false;
        for member in pod.containers.iter().filter(|m| m.role != ContainerRole::Ephemeral) {
            is_changed |= self.allocate_container(pod, member, Recorded::Verify, None).await?;
        }
        if is_changed {
            self.save_allocations().await?;
        }
        Ok(())
    }

    /// Allocates the devices of a container that it has not got yet, if possible on the NUMA nodes
    /// of `affinity`. Returns whether there were some.
    pub(crate) async fn allocate_container(
        &self,
        pod: &Pod,
        member: &PodContainer,
        recorded: Recorded,
        affinity: Option<&BTreeSet<i64>>,
    ) -> Result<bool, AllocationError> {
        let mut is_changed = false;
        for (resource, count) in resources::extended_limits(&member.container) {
            if is_of_claim(pod, member.name(), resource) {
                continue;
            }
            let request = {
                let guarded = self.guarded.lock();
                let records = &guarded.state.records;
                let has_devices = || records.devices(&pod.uid, member.name(), resource).is_some();
                let is_kept = recorded == Recorded::Keep && has_devices();
                let is_needed = !is_kept && guarded.state.is_managed(resource);
                is_needed.then(|| DeviceRequest {
                    pod: pod.uid.to_string(),
                    container: member.name().to_owned(),
                    resource: resource.to_owned(),
                    count: usize::try_from(count).unwrap_or_default(),
                    reusable: reusable(records, pod, member.name(), resource),
                    affinity: affinity.cloned(),
                })
            };
            if let Some(request) = request {
                is_changed |= self.allocate(&request).await?;
            }
        }
        Ok(is_changed)
    }

    /// Chooses devices and has the plugin allocate them. Returns whether the container got some
    /// now.
    async fn allocate(&self, request: &DeviceRequest) -> Result<bool, AllocationError> {
        let choice = self.guarded.lock().state.choose(request)?;
        let _claim = Claim { manager: self, request };
        let devices = match choice {
            Choice::Nothing => return Ok(false),
            Choice::Devices(devices) => devices,
            Choice::Ask(preference) => self.ask(request, preference).await?,
        };
        let response = self.call_allocate(&request.resource, &devices).await?;
        self.guarded.lock().state.record(&request.key(), &devices, response);
        Ok(true)
    }

    /// Completes a choice, with the preference of a plugin that has one.
    async fn ask(
        &self,
        request: &DeviceRequest,
        preference: Preference,
    ) -> Result<BTreeSet<String>, AllocationError> {
        let resource = &request.resource;
        let (plugin, client) = self
            .connected(resource)
            .ok_or_else(|| AllocationError::NoEndpoint(resource.clone()))?;
        let mut preferred = BTreeSet::new();
        if plugin.options.preferred_allocation {
            let (available, must_include) = (preference.available(), &preference.must_include);
            let call = client.preferred_allocation(available, must_include, request.count);
            preferred = call.await.map_err(AllocationError::PreferredAllocation)?;
        }
        self.guarded.lock().state.complete(request, preference, &preferred)
    }

    async fn call_allocate(
        &self,
        resource: &str,
        devices: &BTreeSet<String>,
    ) -> Result<ContainerAllocateResponse, AllocationError> {
        let (_, client) = self
            .connected(resource)
            .ok_or_else(|| AllocationError::UnknownPlugin(resource.to_owned()))?;
        let begun = base::clock::now();
        let outcome = client.allocate(devices).await;
        metrics::ALLOCATION.took(&[resource], begun.elapsed());
        outcome.map_err(AllocationError::Allocate)?.ok_or(AllocationError::NoResponse)
    }

    /// The plugin that gets the calls of a resource, and its client.
    fn connected(&self, resource: &str) -> Option<(ConnectedPlugin, PluginClient)> {
        let guarded = self.guarded.lock();
        let PluginEndpoint::Connected(plugin) = guarded.state.endpoint(resource) else {
            return None;
        };
        let connection = guarded.connections.get(&plugin.id)?;
        Some((plugin.clone(), connection.client.clone()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::devices::records::tests::allocation;
    use crate::pods::pod::tests::pod;

    #[test]
    fn devices_of_ended_init_containers_are_used_again() {
        let pod = pod(json!({
            "initContainers": [{"name": "i1"}, {"name": "s1", "restartPolicy": "Always"},
                {"name": "i2"}],
            "containers": [{"name": "a"}, {"name": "b"}],
        }));
        let mut records = PodDevices::default();
        let reusable = |records: &PodDevices, name| {
            reusable(records, &pod, name, "r").into_iter().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(reusable(&records, "i1"), "");
        records.insert("u", "i1", "r", allocation(&["d1", "d2", "d3"]));
        assert_eq!(reusable(&records, "s1"), "d1 d2 d3");
        records.insert("u", "s1", "r", allocation(&["d1"]));
        assert_eq!(reusable(&records, "i2"), "d2 d3");
        records.insert("u", "i2", "r", allocation(&["d2", "d3", "d4"]));
        assert_eq!(reusable(&records, "a"), "d2 d3 d4");
        records.insert("u", "a", "r", allocation(&["d2"]));
        assert_eq!(reusable(&records, "b"), "d3 d4");
        records.insert("other", "i1", "r", allocation(&["d5"]));
        assert_eq!(reusable(&records, "b"), "d3 d4");
    }

    #[test]
    fn devices_of_a_resource_claim_are_not_those_of_a_plugin() {
        let mut pod = pod(json!({"containers": [{"name": "a"}]}));
        let status = json!({"extendedResourceClaimStatus": {"resourceClaimName": "c",
            "requestMappings": [{"containerName": "a", "resourceName": "example.com/r",
            "requestName": "q"}]}});
        pod.object.status = serde_json::from_value(status).unwrap();
        assert!(is_of_claim(&pod, "a", "example.com/r"));
        assert!(!is_of_claim(&pod, "b", "example.com/r"));
        assert!(!is_of_claim(&pod, "a", "example.com/s"));
    }
}
