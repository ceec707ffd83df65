//! The built-in device plugin: devices of the machine, which `--device` selects, as extended
//! resources of the Node.
//!
//! Uevents and changes of directories lead to a scan ([`discovery`]); what follows from it is pure
//! ([`device`]). The device manager calls one [`ResourcePlugin`] for each resource.

mod device;
mod discovery;
mod host_tree;
mod hot_plug;
mod pattern;
pub(crate) mod selector;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::{Kind, Problems, Shutdown, Tasks};
use proto::deviceplugin as plugin;
use sorting::CollectOrdered as _;
use tokio::sync::Notify;

use self::device::ResourceDevices;
use self::host_tree::HostTree;
use self::hot_plug::HotPlug;
use self::selector::{DEVICES_MAX, DeviceSelection};
use crate::devices::{BuiltInPlugin, CallError, DeviceManager, PluginId};

/// Time from the first change until the scan: a device that is plugged in has several nodes and
/// links, each of which is a change.
const SETTLE: Duration = Duration::from_millis(300);

/// How long a scan may take: attributes of a USB device that is being reset are read when that has
/// ended.
const SCAN_MAX: Duration = Duration::from_secs(30);

/// The resources of these selections.
pub(crate) fn resources(selections: &[DeviceSelection]) -> BTreeSet<String> {
    selections.iter().map(|selection| selection.resource.clone()).collect_set()
}

/// The plugin of one resource. It keeps no devices: each call scans, as a node may be that of
/// another device by now.
#[derive(Debug)]
struct ResourcePlugin {
    /// The name of the resource without its domain.
    name: String,
    selections: Arc<[DeviceSelection]>,
    tree: HostTree,
    /// Requests a scan, because the listed devices are not those of a call.
    is_outdated: Arc<Notify>,
}

impl ResourcePlugin {
    /// The devices at this time; `None` if they cannot be read in time.
    async fn scan(&self) -> Option<ResourceDevices> {
        let (tree, selections) = (self.tree.clone(), Arc::clone(&self.selections));
        in_time(move || discovery::scan(&tree, &selections)).await
    }
}

/// Reads `/sys` and `/dev` for at most [`SCAN_MAX`].
async fn in_time<T: Send + 'static>(read: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    match tokio::time::timeout(SCAN_MAX, base::tasks::blocking(read)).await {
        Ok(Ok(read)) => Some(read),
        Ok(Err(error)) => {
            tracing::error!(%error, "generic devices: a scan failed");
            None
        }
        Err(_) => {
            tracing::warn!("generic devices: a scan takes too long, a device may be defective");
            None
        }
    }
}

#[async_trait]
impl BuiltInPlugin for ResourcePlugin {
    async fn preferred_allocation(
        &self,
        available: BTreeSet<String>,
        must_include: &BTreeSet<String>,
        count: usize,
    ) -> BTreeSet<String> {
        let Some(ResourceDevices { devices, .. }) = self.scan().await else {
            return BTreeSet::new();
        };
        device::spread(&devices, &available, must_include, count)
    }

    async fn allocate(
        &self,
        ids: &BTreeSet<String>,
    ) -> Result<plugin::ContainerAllocateResponse, CallError> {
        let ResourceDevices { devices, .. } = self.scan().await.ok_or(CallError::Deadline)?;
        let response = device::response(&self.name, &devices, ids);
        response.inspect_err(|_| self.is_outdated.notify_one())
    }
}

/// One resource: its plugin, and what the device manager has of it.
#[derive(Debug)]
struct FollowedResource {
    resource: String,
    plugin: Arc<ResourcePlugin>,
    id: PluginId,
    devices: ResourceDevices,
    /// The last list; `None` before the first one.
    listed: Option<Vec<plugin::Device>>,
}

impl FollowedResource {
    /// Gives the device manager a list if it differs from the last one.
    async fn list(&mut self, manager: &Arc<DeviceManager>) {
        let allocated = manager.allocated(&self.resource);
        let list = device::list(&self.devices.devices, &allocated);
        if self.listed.as_ref() == Some(&list) {
            return;
        }
        let (resource, devices) = (&self.resource, list.len());
        tracing::debug!(resource, devices, "generic devices: listed");
        if let Err(error) = manager.list_built_in(resource, self.id, list.clone()).await {
            tracing::error!(resource, %error, "generic devices: the list is refused");
        }
        self.listed = Some(list);
    }

    /// Reports devices that are left out.
    fn report(&self, problems: &Problems) {
        let (resource, left_out) = (&self.resource, self.devices.left_out);
        let key = format!("generic-devices/{resource}");
        if left_out == 0 {
            problems.clear(&key);
            return;
        }
        let what = format!(
            "{resource} has more than {DEVICES_MAX} devices, each counted as often as it is \
             shared; {left_out} are left out"
        );
        problems.put(&key, what, "narrow the selectors of --device, or lower count");
    }
}

/// The task of all resources.
struct Follower {
    tree: HostTree,
    selections: Arc<[DeviceSelection]>,
    resources: Vec<FollowedResource>,
    hot_plug: HotPlug,
    is_outdated: Arc<Notify>,
    manager: Arc<DeviceManager>,
    problems: Problems,
}

/// Connects the plugins of all selections, lists their devices, and follows hot-plug in a task. The
/// devices are listed when this returns, so that pods of before a restart find them.
pub(crate) async fn start(
    manager: &Arc<DeviceManager>,
    selections: &[DeviceSelection],
    tasks: &Tasks,
) {
    start_in(HostTree::host(), manager, selections, tasks).await;
}

async fn start_in(
    tree: HostTree,
    manager: &Arc<DeviceManager>,
    selections: &[DeviceSelection],
    tasks: &Tasks,
) {
    if selections.is_empty() {
        return;
    }
    let is_outdated = Arc::new(Notify::new());
    let mut by_resource: BTreeMap<&str, Vec<DeviceSelection>> = BTreeMap::new();
    for selection in selections {
        by_resource.entry(&selection.resource).or_default().push(selection.clone());
    }
    let follow = |(resource, selections): (&str, Vec<DeviceSelection>)| {
        let name = selections.first().map(DeviceSelection::name).unwrap_or_default().to_owned();
        let (tree, is_outdated) = (tree.clone(), Arc::clone(&is_outdated));
        let selections = selections.into();
        let plugin = Arc::new(ResourcePlugin { name, selections, tree, is_outdated });
        let id = manager.connect_built_in(resource, Arc::<ResourcePlugin>::clone(&plugin));
        let devices = ResourceDevices::default();
        FollowedResource { resource: resource.to_owned(), plugin, id, devices, listed: None }
    };
    let resources = by_resource.into_iter().map(follow).collect();
    let mut follower = Follower {
        tree,
        selections: selections.into(),
        resources,
        hot_plug: HotPlug::open(),
        is_outdated,
        manager: Arc::clone(manager),
        problems: tasks.problems().clone(),
    };
    follower.scan().await;
    tasks.spawn(Kind::Critical, "generic-devices", follower.run(tasks.shutdown().clone()));
}

impl Follower {
    /// Scans and lists all resources. The directories are watched before, so that no change is
    /// lost.
    async fn scan(&mut self) {
        let (tree, selections) = (self.tree.clone(), Arc::clone(&self.selections));
        let directories = in_time(move || {
            let all = discovery::directories(&tree, &selections).into_iter();
            all.map(|path| tree.outside(&path)).collect_set()
        });
        self.hot_plug.watch(&directories.await.unwrap_or_default());
        for resource in &mut self.resources {
            if let Some(devices) = resource.plugin.scan().await {
                resource.devices = devices;
            }
            resource.report(&self.problems);
            resource.list(&self.manager).await;
        }
    }

    /// Follows hot-plug and releases of devices until shutdown.
    async fn run(mut self, shutdown: Shutdown) -> Result<(), Infallible> {
        let mut changes = self.manager.changes();
        loop {
            let is_scan_needed = tokio::select! {
                biased;
                () = shutdown.requested() => return Ok(()),
                () = self.hot_plug.changed() => true,
                () = self.is_outdated.notified() => true,
                // The sender is a part of the manager, which outlives this.
                _ = changes.changed() => false,
            };
            if is_scan_needed {
                self.settle().await;
                self.scan().await;
            } else {
                // A device that is gone is listed until its container has released it.
                for resource in &mut self.resources {
                    resource.list(&self.manager).await;
                }
            }
        }
    }

    /// Takes all changes of a time as one.
    async fn settle(&mut self) {
        let end = base::clock::now() + SETTLE;
        while tokio::time::timeout_at(end, self.hot_plug.changed()).await.is_ok() {}
    }
}
