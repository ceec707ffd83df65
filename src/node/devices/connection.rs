//! Connections to plugins: from the registration to the end of the stream of devices.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Kind, Shutdown};
use proto::deviceplugin::{Device, ListAndWatchResponse};

use super::client::{BuiltInPlugin, PluginClient, SocketClient};
use super::error::{CallError, ConnectError, InvalidDevices};
use super::state::{ConnectedPlugin, PluginId, PluginOptions, parse_devices};
use super::{DeviceManager, Guarded, PluginConnection};

/// Maximum number of connected plugins: many more than a machine has kinds of devices.
const PLUGINS_MAX: usize = 256;
/// Stands for the socket of a built-in plugin; those of others are absolute paths.
const NO_SOCKET: &str = "built-in";

/// Why the stream of a plugin is over.
#[derive(Debug, thiserror::Error)]
enum ListError {
    /// The plugin ended the stream.
    #[error("EOF")]
    Ended,
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("ListAndWatch: {0}")]
    Devices(#[from] InvalidDevices),
}

impl Guarded {
    /// Adds a connection, which replaces one to the same socket.
    fn add(
        &mut self,
        resource: &str,
        connection: PluginConnection,
        (socket, options): (PathBuf, PluginOptions),
    ) -> PluginId {
        self.last_id += 1;
        let id = PluginId(self.last_id);
        let plugin = ConnectedPlugin { id, socket, options };
        if let Some(replaced) = self.state.connect(resource, plugin)
            && let Some(old) = self.connections.remove(&replaced)
        {
            old.stop.request();
        }
        self.connections.insert(id, connection);
        id
    }
}

impl DeviceManager {
    /// Connects to the plugin of `resource` that listens at `socket`, and follows its devices in a
    /// task. A connection to the same socket is replaced.
    ///
    /// # Errors
    ///
    /// A built-in plugin has the resource, the plugin does not accept the connection, does not
    /// return its options, or there are too many plugins.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        resource: &str,
        socket: PathBuf,
    ) -> Result<(), ConnectError> {
        if self.built_in.contains(resource) {
            return Err(ConnectError::BuiltIn(resource.to_owned()));
        }
        let client = SocketClient::connect(&socket, self.deadlines).await?;
        let options = client.options().await.map_err(ConnectError::Options)?;
        let stop = self.tasks.shutdown().child();
        let id = {
            let mut guarded = self.guarded.lock();
            if guarded.state.plugins() >= PLUGINS_MAX {
                return Err(ConnectError::TooMany(PLUGINS_MAX));
            }
            let client = PluginClient::Socket(client.clone());
            let connection = PluginConnection { client, stop: stop.clone() };
            guarded.add(resource, connection, (socket, options))
        };
        tracing::info!(resource, "devices: a plugin is connected");
        let follow = Arc::clone(self).follow(resource.to_owned(), id, client, stop);
        self.tasks.spawn(Kind::Request, "device-plugin", follow);
        Ok(())
    }

    /// Adds the built-in plugin of a resource. Its devices are those of
    /// [`DeviceManager::list_built_in`].
    pub(crate) fn connect_built_in(
        &self,
        resource: &str,
        plugin: Arc<dyn BuiltInPlugin>,
    ) -> PluginId {
        let options = PluginOptions { pre_start: true, preferred_allocation: true };
        let stop = self.tasks.shutdown().child();
        let connection = PluginConnection { client: PluginClient::BuiltIn(plugin), stop };
        self.guarded.lock().add(resource, connection, (PathBuf::from(NO_SOCKET), options))
    }

    /// Replaces the devices of a built-in plugin.
    ///
    /// # Errors
    ///
    /// An empty id, an id that occurs twice, or too many devices.
    pub(crate) async fn list_built_in(
        self: &Arc<Self>,
        resource: &str,
        id: PluginId,
        devices: Vec<Device>,
    ) -> Result<(), InvalidDevices> {
        self.store(resource, id, devices).await.map(drop)
    }

    /// The devices of a resource that containers have or are getting.
    pub(crate) fn allocated(&self, resource: &str) -> BTreeSet<String> {
        self.guarded.lock().state.allocated(resource)
    }

    /// Follows the devices of a plugin until its stream ends, its connection is replaced or ended,
    /// or shutdown.
    async fn follow(
        self: Arc<Self>,
        resource: String,
        id: PluginId,
        client: SocketClient,
        stop: Shutdown,
    ) -> Result<(), Infallible> {
        let ended = tokio::select! {
            biased;
            () = stop.requested() => return Ok(()),
            ended = self.receive(&resource, id, &client) => ended,
        };
        if let Err(error) = &ended {
            tracing::info!(resource, %error, "devices: the plugin is gone");
        }
        if let Err(ListError::Devices(error)) = ended {
            let what = format!("the device plugin of {resource} is refused: {error}");
            let fix = "correct or update the plugin, and restart it";
            self.tasks.problems().put(&problem(&resource), what, fix);
        }
        self.disconnect(&resource, id);
        Ok(())
    }

    /// Receives lists of devices. Each list is stored before the next one is received.
    async fn receive(
        self: &Arc<Self>,
        resource: &str,
        id: PluginId,
        client: &SocketClient,
    ) -> Result<Infallible, ListError> {
        let mut stream = client.list_and_watch().await?;
        loop {
            let message = stream.message().await.map_err(CallError::from)?;
            let ListAndWatchResponse { devices } = message.ok_or(ListError::Ended)?;
            if !self.store(resource, id, devices).await? {
                return Err(ListError::Ended);
            }
            self.tasks.problems().clear(&problem(resource));
        }
    }

    /// Stores a list of devices; returns whether the plugin is still connected.
    async fn store(
        self: &Arc<Self>,
        resource: &str,
        id: PluginId,
        devices: Vec<Device>,
    ) -> Result<bool, InvalidDevices> {
        let devices = parse_devices(devices)?;
        let outcome = {
            let mut guarded = self.guarded.lock();
            let Some(outcome) = guarded.state.list(resource, id, devices) else {
                return Ok(false);
            };
            for wake in outcome.pods.iter().filter_map(|pod| guarded.wakes.get(pod)) {
                wake.notify_one();
            }
            outcome
        };
        self.changes.send_replace(());
        if outcome.is_capacity_changed {
            self.capacity_changed.notify_one();
        }
        self.save_and_log().await;
        Ok(true)
    }

    /// Ends the connection to the plugin of a resource that listens at `socket`, if there is one.
    pub(crate) fn disconnect_socket(&self, resource: &str, socket: &Path) {
        let id = self.guarded.lock().state.connected_at(resource, socket);
        if let Some(id) = id {
            self.disconnect(resource, id);
        }
    }

    /// Ends the connection of a plugin; its devices are unhealthy unless another one lists them.
    fn disconnect(&self, resource: &str, id: PluginId) {
        let was_connected = {
            let mut guarded = self.guarded.lock();
            if let Some(connection) = guarded.connections.remove(&id) {
                connection.stop.request();
            }
            guarded.state.disconnect(resource, id, base::clock::now())
        };
        if was_connected {
            self.changes.send_replace(());
            self.capacity_changed.notify_one();
        }
    }
}

/// The key of the problem of a resource.
fn problem(resource: &str) -> String {
    format!("devices/{resource}")
}
