//! What the device manager knows: devices that plugins list, plugins that are connected, and
//! devices that containers have. Pure: the caller passes the time and makes the calls.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use proto::deviceplugin as plugin;
use sorting::CollectOrdered as _;
use tokio::time::Instant;

use super::checkpoint::Checkpoint;
use super::error::{AllocationError, InvalidDevices};
use super::records::{Allocation, PodDevices, WITHOUT_TOPOLOGY};

/// How long the devices of a plugin that is gone count as capacity (`endpointStopGracePeriod`), and
/// how long a pod of before a restart waits for its plugin.
pub(crate) const GRACE: Duration = Duration::from_secs(300);
/// Maximum number of devices of one resource: plugins that share memory list one for each unit.
pub(crate) const DEVICES_MAX: usize = 100_000;
/// The only text of a healthy device; any other is unhealthy.
const HEALTHY: &str = "Healthy";

/// A device as its plugin lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Device {
    health: String,
    /// NUMA nodes; empty without topology.
    pub(crate) nodes: Vec<i64>,
}

impl Device {
    pub(crate) fn is_healthy(&self) -> bool {
        self.health == HEALTHY
    }
}

/// Converts a list of devices.
///
/// # Errors
///
/// An empty id, an id that occurs twice, or too many devices.
pub(crate) fn parse_devices(
    list: Vec<plugin::Device>,
) -> Result<BTreeMap<String, Device>, InvalidDevices> {
    if list.len() > DEVICES_MAX {
        return Err(InvalidDevices::TooMany(list.len()));
    }
    let mut devices = BTreeMap::new();
    for plugin::Device { id, health, topology } in list {
        if id.is_empty() {
            return Err(InvalidDevices::EmptyId);
        }
        let nodes = topology.into_iter().flat_map(|t| t.nodes).map(|node| node.id).collect();
        if devices.insert(id.clone(), Device { health, nodes }).is_some() {
            return Err(InvalidDevices::DuplicateId(id));
        }
    }
    Ok(devices)
}

/// Identifies a connection to a plugin; never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PluginId(pub(crate) u64);

/// What a plugin supports, from `GetDevicePluginOptions`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PluginOptions {
    pub(crate) pre_start: bool,
    pub(crate) preferred_allocation: bool,
}

/// A connected plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConnectedPlugin {
    pub(crate) id: PluginId,
    pub(crate) socket: PathBuf,
    pub(crate) options: PluginOptions,
}

/// A resource and the plugins that list its devices.
#[derive(Debug, Clone, Default)]
struct PluginResource {
    /// The devices of the last list. They stay after the plugin is gone, as running containers
    /// have some of them.
    devices: BTreeMap<String, Device>,
    /// The list is that of a connected plugin; otherwise all devices are unhealthy.
    is_listed: bool,
    /// The resource counts as capacity: from the first list until the grace period ends.
    is_registered: bool,
    /// The newest last, which gets the calls.
    plugins: Vec<ConnectedPlugin>,
    /// The last connected plugin, while none is.
    stopped: Option<ConnectedPlugin>,
    /// Since when no plugin is connected.
    stopped_at: Option<Instant>,
    /// When the resource was read from the checkpoint, until the first list.
    restored_at: Option<Instant>,
}

impl PluginResource {
    fn healthy(&self) -> impl Iterator<Item = &String> {
        let devices = self.devices.iter().filter(|(_, device)| device.is_healthy());
        devices.map(|(id, _)| id).filter(|_| self.is_listed)
    }
}

/// The plugin of a resource.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PluginEndpoint<'a> {
    Connected(&'a ConnectedPlugin),
    /// The plugin is gone, for at most [`GRACE`].
    Stopped(&'a ConnectedPlugin),
    /// The plugin of before a restart has not registered again, for at most [`GRACE`].
    Restored,
    Missing,
}

/// Numbers of devices by resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DeviceCapacity {
    pub(crate) capacity: BTreeMap<String, usize>,
    /// The healthy ones.
    pub(crate) allocatable: BTreeMap<String, usize>,
    /// Resources whose plugins are gone for longer than [`GRACE`]: the Node shows them with 0.
    pub(crate) removed: BTreeSet<String>,
}

/// Devices that a container is getting: uid of its pod, name and resource.
pub(crate) type ClaimKey = (String, String, String);

/// What follows from a list of devices.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ListOutcome {
    /// The number of devices or of healthy ones has changed.
    pub(crate) is_capacity_changed: bool,
    /// Uids of the pods with a device whose health has changed.
    pub(crate) pods: BTreeSet<String>,
}

/// How long an allocation that failed may wait for a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Until a pod that is ending releases its devices.
    UntilRelease,
    /// Until the plugin of an earlier process is back, at most until this time.
    Until(Instant),
}

/// The state of the device manager.
#[derive(Debug, Default)]
pub(crate) struct DeviceState {
    resources: BTreeMap<String, PluginResource>,
    pub(crate) records: PodDevices,
    /// Devices of allocations whose calls are in progress.
    pub(crate) claims: BTreeMap<ClaimKey, BTreeSet<String>>,
    /// Uids of pods that end and release their devices then.
    ending: BTreeSet<String>,
    removed: BTreeSet<String>,
}

impl DeviceState {
    /// The state after a restart: the resources count with no devices until their plugins register
    /// again.
    pub(crate) fn restore(checkpoint: Checkpoint, now: Instant) -> Self {
        let resource = |(name, _)| {
            let resource = PluginResource {
                is_registered: true,
                stopped_at: Some(now),
                restored_at: Some(now),
                ..PluginResource::default()
            };
            (name, resource)
        };
        let resources = checkpoint.registered.into_iter().map(resource).collect();
        Self { resources, records: checkpoint.devices, ..Self::default() }
    }

    /// What the checkpoint contains.
    pub(crate) fn checkpoint(&self) -> Checkpoint {
        let registered = self.resources.iter().filter(|(_, resource)| resource.is_registered);
        let ids = |resource: &PluginResource| resource.healthy().cloned().collect();
        Checkpoint {
            devices: self.records.clone(),
            registered: registered.map(|(name, r)| (name.clone(), ids(r))).collect(),
        }
    }

    /// Number of connected plugins.
    pub(crate) fn plugins(&self) -> usize {
        self.resources.values().map(|resource| resource.plugins.len()).sum()
    }

    /// Adds a plugin, which gets the calls of its resource from now on. Returns the connection that
    /// it replaces, if one uses the same socket.
    pub(crate) fn connect(&mut self, resource: &str, plugin: ConnectedPlugin) -> Option<PluginId> {
        let resource = self.resources.entry(resource.to_owned()).or_default();
        let replaced = resource.plugins.iter().position(|p| p.socket == plugin.socket);
        let replaced = replaced.map(|at| resource.plugins.remove(at).id);
        resource.plugins.push(plugin);
        (resource.stopped, resource.stopped_at) = (None, None);
        replaced
    }

    /// Removes a plugin. Without another one its devices are unhealthy from now on. Returns whether
    /// the plugin was connected.
    pub(crate) fn disconnect(&mut self, resource: &str, id: PluginId, now: Instant) -> bool {
        let Some(resource) = self.resources.get_mut(resource) else { return false };
        let Some(at) = resource.plugins.iter().position(|plugin| plugin.id == id) else {
            return false;
        };
        let plugin = resource.plugins.remove(at);
        if resource.plugins.is_empty() {
            (resource.stopped, resource.stopped_at) = (Some(plugin), Some(now));
            // Upstream's manager counts a resource from then on, even if it was never listed.
            (resource.is_listed, resource.is_registered) = (false, true);
        }
        true
    }

    /// The plugin of a resource that is connected at a socket.
    pub(crate) fn connected_at(&self, resource: &str, socket: &Path) -> Option<PluginId> {
        let plugins = &self.resources.get(resource)?.plugins;
        Some(plugins.iter().find(|plugin| plugin.socket == socket)?.id)
    }

    /// The plugin that gets the calls of a resource.
    pub(crate) fn endpoint(&self, resource: &str) -> PluginEndpoint<'_> {
        let Some(resource) = self.resources.get(resource) else { return PluginEndpoint::Missing };
        match (resource.plugins.last(), &resource.stopped) {
            (Some(plugin), _) => PluginEndpoint::Connected(plugin),
            (None, Some(plugin)) => PluginEndpoint::Stopped(plugin),
            (None, None) if resource.is_registered => PluginEndpoint::Restored,
            (None, None) => PluginEndpoint::Missing,
        }
    }

    /// Replaces the devices of a resource by those that a plugin lists; `None` if the plugin is not
    /// connected any longer.
    pub(crate) fn list(
        &mut self,
        name: &str,
        id: PluginId,
        devices: BTreeMap<String, Device>,
    ) -> Option<ListOutcome> {
        let resource = self.resources.get_mut(name)?;
        resource.plugins.iter().find(|plugin| plugin.id == id)?;
        let before = (resource.is_registered, resource.devices.len(), resource.healthy().count());
        let has_changed = |id: &String| {
            let health = |list: &BTreeMap<String, Device>| list.get(id).map(|d| d.health.clone());
            devices.contains_key(id) && health(&resource.devices) != health(&devices)
        };
        let owned = self.records.owners(name).filter(|(id, _)| has_changed(id));
        let pods = owned.map(|(_, pod)| pod.to_owned()).collect();
        resource.devices = devices;
        (resource.is_listed, resource.is_registered) = (true, true);
        resource.restored_at = None;
        self.removed.remove(name);
        let after = (true, resource.devices.len(), resource.healthy().count());
        Some(ListOutcome { is_capacity_changed: before != after, pods })
    }

    /// Returns the numbers of devices, and whether the grace period of a resource has ended since
    /// the last call.
    pub(crate) fn capacity(&mut self, now: Instant) -> (DeviceCapacity, bool) {
        let mut expired = false;
        let mut out = DeviceCapacity::default();
        for (name, resource) in &mut self.resources {
            let is_over = |since: Instant| now.saturating_duration_since(since) > GRACE;
            if resource.is_registered && resource.stopped_at.is_some_and(is_over) {
                expired = true;
                (resource.is_registered, resource.restored_at) = (false, None);
                resource.stopped = None;
                self.removed.insert(name.clone());
            }
            if resource.is_registered {
                out.capacity.insert(name.clone(), resource.devices.len());
                out.allocatable.insert(name.clone(), resource.healthy().count());
            }
        }
        out.removed.clone_from(&self.removed);
        (out, expired)
    }

    /// Whether the device manager allocates a resource: it is registered, or containers have
    /// devices of it.
    pub(crate) fn is_managed(&self, resource: &str) -> bool {
        self.is_registered(resource)
            || self.records.has_resource(resource)
            || self.claims.keys().any(|(_, _, name)| name == resource)
    }

    pub(crate) fn is_registered(&self, resource: &str) -> bool {
        self.resources.get(resource).is_some_and(|resource| resource.is_registered)
    }

    /// The healthy devices of a resource.
    pub(crate) fn healthy(&self, resource: &str) -> BTreeSet<String> {
        let resource = self.resources.get(resource);
        resource.into_iter().flat_map(PluginResource::healthy).cloned().collect_set()
    }

    /// The devices of a resource that containers have or are getting.
    pub(crate) fn allocated(&self, resource: &str) -> BTreeSet<String> {
        let mut out = self.records.allocated(resource);
        let claims = self.claims.iter().filter(|((_, _, name), _)| name == resource);
        out.extend(claims.flat_map(|(_, ids)| ids).cloned());
        out
    }

    /// The ids of all devices of a resource, healthy or not.
    pub(crate) fn device_ids(&self, resource: &str) -> impl Iterator<Item = &str> {
        let resource = self.resources.get(resource);
        resource.into_iter().flat_map(|resource| resource.devices.keys()).map(String::as_str)
    }

    /// The NUMA nodes of a device; empty for one without topology or one that is not listed.
    pub(crate) fn nodes(&self, resource: &str, id: &str) -> &[i64] {
        let device = self.resources.get(resource).and_then(|resource| resource.devices.get(id));
        device.map_or(&[], |device| &device.nodes)
    }

    /// Whether any device of a resource has a NUMA node.
    pub(crate) fn has_topology(&self, resource: &str) -> bool {
        let devices = self.resources.get(resource).into_iter().flat_map(|r| r.devices.values());
        devices.into_iter().any(|device| !device.nodes.is_empty())
    }

    /// Whether a device that a container has is healthy. One that is not listed counts as healthy,
    /// as with upstream.
    pub(crate) fn is_healthy(&self, resource: &str, id: &str) -> bool {
        let device = self.resources.get(resource).and_then(|resource| resource.devices.get(id));
        device.is_none_or(Device::is_healthy)
    }

    /// All healthy devices: resource, id and NUMA nodes.
    pub(crate) fn allocatable(&self) -> impl Iterator<Item = (&str, &str, &[i64])> {
        self.resources.iter().filter(|(_, r)| r.is_registered).flat_map(|(name, resource)| {
            resource.healthy().map(|id| (name.as_str(), id.as_str(), self.nodes(name, id)))
        })
    }

    /// Records the devices that a container has got, and ends its claim.
    pub(crate) fn record(
        &mut self,
        (pod, container, resource): &ClaimKey,
        devices: &BTreeSet<String>,
        response: plugin::ContainerAllocateResponse,
    ) {
        let mut ids_by_node: BTreeMap<i64, Vec<String>> = BTreeMap::new();
        for id in devices {
            let nodes = self.nodes(resource, id);
            let nodes = if nodes.is_empty() { &[WITHOUT_TOPOLOGY][..] } else { nodes };
            for node in nodes {
                ids_by_node.entry(*node).or_default().push(id.clone());
            }
        }
        let allocation = Allocation { ids_by_node, response };
        self.records.insert(pod, container, resource, allocation);
        self.claims.remove(&(pod.clone(), container.clone(), resource.clone()));
    }

    /// Marks a pod as ending: allocations that fail for want of its devices wait for them.
    pub(crate) fn begin_release(&mut self, pod: &str) {
        if self.records.pods().any(|uid| uid == pod) {
            self.ending.insert(pod.to_owned());
        }
    }

    /// Removes the allocations of a pod; returns whether it had some.
    pub(crate) fn release(&mut self, pod: &str) -> bool {
        self.ending.remove(pod);
        self.claims.retain(|(uid, ..), _| uid != pod);
        self.records.remove(pod)
    }

    /// Whether an allocation for a pod that failed with `error` may succeed soon: devices are about
    /// to be released, or the pod is one of before a restart and its plugin has not registered
    /// again.
    pub(crate) fn patience(&self, pod: &str, error: &AllocationError) -> Option<Patience> {
        match error {
            AllocationError::Unavailable { resource, .. } => {
                let mut ending = self.ending.iter().filter(|uid| *uid != pod);
                let is_held = ending.any(|uid| self.records.pod_has(uid, resource));
                is_held.then_some(Patience::UntilRelease)
            }
            AllocationError::NoHealthyDevices(resource)
            | AllocationError::NoLongerHealthy(resource) => {
                let restored_at = self.resources.get(resource)?.restored_at?;
                let is_recorded = self.records.pod_has(pod, resource);
                is_recorded.then_some(Patience::Until(restored_at + GRACE))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
