//! What a container gets with its devices: environment, mounts, devices, annotations and CDI
//! devices.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proto::deviceplugin::ContainerAllocateResponse;
use proto::runtime::v1 as cri;

use super::DeviceManager;
use super::allocation::Recorded;
use super::client::PluginClient;
use super::error::{AllocationError, CallError};
use super::state::PluginEndpoint;
use crate::pods::pod::{Pod, PodContainer};
use crate::pods::resources;

/// The additions of device plugins to a container.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct DeviceOptions {
    env: BTreeMap<String, String>,
    mounts: Vec<cri::Mount>,
    devices: Vec<cri::Device>,
    annotations: BTreeMap<String, String>,
    cdi_devices: Vec<cri::CdiDevice>,
}

impl DeviceOptions {
    /// Merges the responses of several plugins. The first one has precedence for a variable, an
    /// annotation, or a path in the container; a conflict is logged.
    fn merge<'a>(responses: impl Iterator<Item = &'a ContainerAllocateResponse>) -> Self {
        let mut out = Self::default();
        let (mut mounted, mut mapped, mut names) =
            (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        for response in responses {
            for (name, value) in &response.envs {
                insert_first(&mut out.env, "environment variable", name, value);
            }
            for device in &response.devices {
                let (inside, host) = (&device.container_path, &device.host_path);
                if insert_first(&mut mapped, "device", inside, host) {
                    out.devices.push(cri::Device {
                        container_path: inside.clone(),
                        host_path: host.clone(),
                        permissions: device.permissions.clone(),
                    });
                }
            }
            for mount in &response.mounts {
                let (inside, host) = (&mount.container_path, &mount.host_path);
                if insert_first(&mut mounted, "mount", inside, host) {
                    out.mounts.push(cri::Mount {
                        container_path: inside.clone(),
                        host_path: host.clone(),
                        readonly: mount.read_only,
                        ..cri::Mount::default()
                    });
                }
            }
            for (name, value) in &response.annotations {
                insert_first(&mut out.annotations, "annotation", name, value);
            }
            let new = response.cdi_devices.iter().filter(|device| names.insert(&device.name));
            let new = new.map(|device| cri::CdiDevice { name: device.name.clone() });
            out.cdi_devices.extend(new);
        }
        out
    }

    /// Returns the environment of the container: that of the devices first, without variables that
    /// the container sets itself.
    pub(crate) fn with_environment(&self, own: Vec<(String, String)>) -> Vec<(String, String)> {
        let is_own = |name: &String| own.iter().any(|(known, _)| known == name);
        let added = self.env.iter().filter(|(name, _)| !is_own(name));
        let mut out: Vec<_> = added.map(|(name, value)| (name.clone(), value.clone())).collect();
        out.extend(own);
        out
    }

    /// Adds everything but the environment. Annotations of the node have precedence.
    pub(crate) fn add_to(self, config: &mut cri::ContainerConfig) {
        config.mounts.splice(0..0, self.mounts);
        config.devices.splice(0..0, self.devices);
        config.cdi_devices.extend(self.cdi_devices);
        for (name, value) in self.annotations {
            config.annotations.entry(name).or_insert(value);
        }
    }
}

/// Inserts a value unless the key exists; returns whether it did.
fn insert_first(
    map: &mut BTreeMap<String, String>,
    what: &'static str,
    key: &str,
    value: &str,
) -> bool {
    match map.get(key) {
        None => map.insert(key.to_owned(), value.to_owned()).is_none(),
        Some(first) => {
            if first != value {
                tracing::warn!(
                    what,
                    key,
                    first,
                    second = value,
                    "devices: two plugins set different values for a container"
                );
            }
            false
        }
    }
}

impl DeviceManager {
    /// Prepares the devices of a container that is about to be created, and returns what it gets.
    /// Allocates devices that the container has not got yet: its plugin may have registered after
    /// the pod was admitted. `affinity` has the NUMA nodes that the pod was admitted with.
    ///
    /// # Errors
    ///
    /// The devices cannot be allocated or prepared.
    pub(crate) async fn prepare_container(
        self: &Arc<Self>,
        pod: &Pod,
        member: &PodContainer,
        affinity: Option<&BTreeSet<i64>>,
    ) -> Result<DeviceOptions, AllocationError> {
        let limits = resources::extended_limits(&member.container);
        if limits.is_empty() {
            return Ok(DeviceOptions::default());
        }
        if self.allocate_container(pod, member, Recorded::Keep, affinity).await? {
            self.save_allocations().await?;
        }
        let mut is_changed = false;
        for resource in limits.into_keys() {
            is_changed |= self.pre_start(pod, member, resource).await?;
        }
        if is_changed {
            self.save_allocations().await?;
        }
        let guarded = self.guarded.lock();
        let allocations = guarded.state.records.container(&pod.uid, member.name());
        let responses = allocations.into_iter().flatten().map(|(_, a)| &a.response);
        Ok(DeviceOptions::merge(responses))
    }

    /// Has the plugin prepare the devices of a container if it requires that. Returns whether the
    /// container gets something else than before.
    async fn pre_start(
        &self,
        pod: &Pod,
        member: &PodContainer,
        resource: &str,
    ) -> Result<bool, AllocationError> {
        let Some((client, devices)) = self.pre_start_call(pod, member, resource)? else {
            return Ok(false);
        };
        let call = client.pre_start_container(devices);
        let response = call.await.map_err(AllocationError::PreStartContainer)?;
        let mut guarded = self.guarded.lock();
        let records = &mut guarded.state.records;
        Ok(response.is_some_and(|r| records.replace_response(&pod.uid, member.name(), resource, r)))
    }

    /// The client and the devices of the call `PreStartContainer`; `None` if it is not required.
    fn pre_start_call(
        &self,
        pod: &Pod,
        member: &PodContainer,
        resource: &str,
    ) -> Result<Option<(PluginClient, BTreeSet<String>)>, AllocationError> {
        let guarded = self.guarded.lock();
        let devices = guarded.state.records.devices(&pod.uid, member.name(), resource);
        let Some(devices) = devices else { return Ok(None) };
        let plugin = match guarded.state.endpoint(resource) {
            PluginEndpoint::Connected(plugin) | PluginEndpoint::Stopped(plugin) => plugin,
            PluginEndpoint::Restored => return Ok(None),
            PluginEndpoint::Missing => {
                return Err(AllocationError::NoEndpoint(resource.to_owned()));
            }
        };
        if !plugin.options.pre_start {
            return Ok(None);
        }
        let Some(connection) = guarded.connections.get(&plugin.id) else {
            let stopped = CallError::Stopped(plugin.socket.clone());
            return Err(AllocationError::PreStartContainer(stopped));
        };
        Ok(Some((connection.client.clone(), devices)))
    }
}

#[cfg(test)]
mod tests {
    use proto::deviceplugin::{CdiDevice, DeviceSpec, Mount};

    use super::*;

    fn text(text: &str) -> String {
        text.to_owned()
    }

    fn response(env: &str, host: &str, cdi: &[&str]) -> ContainerAllocateResponse {
        ContainerAllocateResponse {
            envs: [(text("SHARED"), text(env)), (text(env), text("1"))].into(),
            mounts: vec![Mount {
                container_path: text("/m"),
                host_path: text(host),
                read_only: true,
            }],
            devices: vec![DeviceSpec {
                container_path: text("/dev/d"),
                host_path: text(host),
                permissions: text("mrw"),
            }],
            annotations: [(text("note"), text(env))].into(),
            cdi_devices: cdi.iter().map(|name| CdiDevice { name: text(name) }).collect(),
        }
    }

    #[test]
    fn the_first_plugin_has_precedence_and_cdi_devices_are_unique() {
        let empty = DeviceOptions::merge([ContainerAllocateResponse::default()].iter());
        assert_eq!(empty, DeviceOptions::default());
        let both = [response("A", "/h1", &["x", "y"]), response("B", "/h2", &["y", "z"])];
        let options = DeviceOptions::merge(both.iter());
        let own = vec![(text("A"), text("own"))];
        let env = options.with_environment(own);
        let pairs: Vec<String> =
            env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(pairs, ["B=1", "SHARED=A", "A=own"]);
        let mut config = cri::ContainerConfig {
            annotations: [(text("note"), text("node"))].into(),
            mounts: vec![cri::Mount { container_path: text("/v"), ..cri::Mount::default() }],
            ..cri::ContainerConfig::default()
        };
        options.add_to(&mut config);
        let mounts: Vec<(&str, &str, bool)> =
            config.mounts.iter().map(|m| (&*m.container_path, &*m.host_path, m.readonly)).collect();
        assert_eq!(mounts, [("/m", "/h1", true), ("/v", "", false)]);
        let devices: Vec<(&str, &str)> =
            config.devices.iter().map(|d| (&*d.container_path, &*d.host_path)).collect();
        assert_eq!(devices, [("/dev/d", "/h1")]);
        let names: Vec<&str> = config.cdi_devices.iter().map(|d| &*d.name).collect();
        assert_eq!(names, ["x", "y", "z"]);
        assert_eq!(config.annotations.get("note").map(String::as_str), Some("node"));
    }
}
