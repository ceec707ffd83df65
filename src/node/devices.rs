//! The device manager: devices of plugins (`/v1beta1.DevicePlugin`) become extended resources of
//! the Node, and pods that request them get some.
//!
//! A plugin registers over a socket, or announces itself by one ([`plugin_handler`]); its stream
//! of lists is followed until it ends. Decisions are pure functions of [`state::DeviceState`]; this
//! file keeps it with the clients and the checkpoint.

mod affinity;
mod allocation;
mod checkpoint;
mod choice;
mod client;
mod connection;
pub(crate) mod container;
mod directory;
mod error;
pub(crate) mod metrics;
mod plugin_handler;
pub(crate) mod pod_resources;
mod records;
mod registration;
mod resource_health;
mod state;
#[cfg(test)]
mod tests;
mod topology_hints;
mod unix_server;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::{Shutdown, Tasks};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use self::checkpoint::Checkpoint;
use self::client::{PluginClient, PluginDeadlines};
use self::error::CHECKPOINT;
use self::state::DeviceState;

pub(crate) use self::allocation::{Recorded, has_extended_limits};
pub(crate) use self::client::BuiltInPlugin;
pub(crate) use self::error::{AllocationError, CallError};
pub(crate) use self::plugin_handler::DevicePluginHandler;
pub(crate) use self::state::{DeviceCapacity, PluginId};

/// Directory of the sockets of plugins and of the checkpoint, below the kubelet's root directory.
const DIRECTORY: &str = "device-plugins";

/// Minimum time between two changes of the Node's status because of devices: a plugin may list
/// devices in a tight loop.
const CAPACITY_PAUSE: Duration = Duration::from_secs(1);

/// The device manager of one node.
#[derive(Debug)]
pub(crate) struct DeviceManager {
    directory: PathBuf,
    tasks: Tasks,
    deadlines: PluginDeadlines,
    /// Resources of built-in plugins, which no other plugin can register.
    built_in: BTreeSet<String>,
    guarded: Mutex<Guarded>,
    /// The checkpoint as last written or read; the lock orders the writes.
    written: Mutex<Checkpoint>,
    capacity_changed: Notify,
    /// Changes when devices were listed or released, or a plugin is gone.
    changes: watch::Sender<()>,
    /// No file was in the directory at the start.
    is_new_node: bool,
}

/// What the lock of the device manager protects.
#[derive(Debug, Default)]
struct Guarded {
    state: DeviceState,
    connections: HashMap<PluginId, PluginConnection>,
    /// Wakes the worker of a pod, by uid, when the health of its devices changes.
    wakes: HashMap<String, Arc<Notify>>,
    last_id: u64,
}

/// A connected plugin and the token that ends its task.
#[derive(Debug)]
struct PluginConnection {
    client: PluginClient,
    stop: Shutdown,
}

impl DeviceManager {
    /// Creates a device manager without plugins and without I/O. `root_dir` is the kubelet's root
    /// directory.
    pub(crate) fn new(root_dir: &Path, tasks: &Tasks) -> Self {
        Self {
            directory: root_dir.join(DIRECTORY),
            tasks: tasks.clone(),
            deadlines: PluginDeadlines::default(),
            built_in: BTreeSet::new(),
            guarded: Mutex::default(),
            written: Mutex::default(),
            capacity_changed: Notify::new(),
            changes: watch::Sender::new(()),
            is_new_node: false,
        }
    }

    /// Reads the checkpoint, removes the sockets of earlier processes, and serves the registration
    /// of plugins until shutdown. `built_in` are the resources that they cannot register.
    ///
    /// # Errors
    ///
    /// The directory cannot be created or cleaned, or the socket cannot be bound. A checkpoint that
    /// cannot be read is logged: the manager then starts without allocations.
    pub(crate) async fn start(
        root_dir: &Path,
        built_in: BTreeSet<String>,
        tasks: &Tasks,
    ) -> io::Result<Arc<Self>> {
        Self { built_in, ..Self::new(root_dir, tasks) }.serve().await
    }

    async fn serve(mut self) -> io::Result<Arc<Self>> {
        let directory = self.directory.clone();
        let prepared = base::tasks::blocking(move || directory::prepare(&directory)).await;
        let prepared = prepared.map_err(io::Error::other)??;
        *self.written.get_mut() = prepared.checkpoint.clone();
        let state = DeviceState::restore(prepared.checkpoint, base::clock::now());
        self.guarded.get_mut().state = state;
        self.is_new_node = prepared.is_new;
        let manager = Arc::new(self);
        registration::serve(&manager)?;
        Ok(manager)
    }

    /// Resolves when the numbers of devices have changed, after [`CAPACITY_PAUSE`] at the earliest.
    /// Can be dropped at any time: a change is not lost.
    pub(crate) async fn capacity_changed(&self) {
        base::clock::sleep(CAPACITY_PAUSE).await;
        self.capacity_changed.notified().await;
    }

    /// Returns the numbers of devices by resource; removes resources whose plugins are gone for
    /// longer than the grace period.
    pub(crate) async fn capacity(self: &Arc<Self>) -> DeviceCapacity {
        let (capacity, expired) = self.guarded.lock().state.capacity(base::clock::now());
        if expired {
            self.changes.send_replace(());
            self.save_and_log().await;
        }
        capacity
    }

    /// Whether the machine had no checkpoint at the start (`ShouldResetExtendedResourceCapacity`).
    /// Extended resources in the status of its Node are then those of an earlier machine.
    pub(crate) fn is_new_node(&self) -> bool {
        self.is_new_node
    }

    /// Marks a pod as ending: pods that need its devices wait for them.
    pub(crate) fn begin_release(&self, pod: &str) {
        self.guarded.lock().state.begin_release(pod);
    }

    /// Releases the devices of a pod whose containers have ended.
    pub(crate) async fn release(self: &Arc<Self>, pod: &str) {
        let had_devices = {
            let mut guarded = self.guarded.lock();
            guarded.wakes.remove(pod);
            guarded.state.release(pod)
        };
        if had_devices {
            self.changes.send_replace(());
            self.save_and_log().await;
        }
    }

    /// Releases the devices of pods that `exists` does not accept: those of pods that were deleted
    /// while no agent ran.
    pub(crate) async fn retain_pods(self: &Arc<Self>, exists: impl Fn(&str) -> bool) {
        let gone: Vec<String> = {
            let guarded = self.guarded.lock();
            let gone = guarded.state.records.pods().filter(|uid| !exists(uid));
            gone.map(str::to_owned).collect()
        };
        for pod in gone {
            self.release(&pod).await;
        }
    }

    /// Writes the checkpoint if allocations or the registered resources have changed: the ids of
    /// registered devices have no meaning when the file is read.
    async fn save(self: &Arc<Self>) -> io::Result<()> {
        let manager = Arc::clone(self);
        let write = move || {
            let mut written = manager.written.lock();
            let checkpoint = manager.guarded.lock().state.checkpoint();
            let is_same = checkpoint.devices == written.devices
                && checkpoint.registered.keys().eq(written.registered.keys());
            if !is_same {
                let content = checkpoint.to_json()?;
                base::fs::write_atomic(&manager.directory.join(CHECKPOINT), &content, 0o600)?;
                *written = checkpoint;
            }
            Ok(())
        };
        base::tasks::blocking(write).await.map_err(io::Error::other)?
    }

    /// Writes the checkpoint; the next change writes it again if that fails.
    async fn save_and_log(self: &Arc<Self>) {
        if let Err(error) = self.save().await {
            tracing::warn!(%error, "devices: cannot write the checkpoint");
        }
    }
}
