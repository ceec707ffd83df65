//! Connections to plugins: from the registration to the end of the stream of devices.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{Kind, Shutdown};
use proto::deviceplugin::ListAndWatchResponse;

use super::client::PluginClient;
use super::error::{CallError, ConnectError, InvalidDevices};
use super::state::{ConnectedPlugin, PluginId, parse_devices};
use super::{DeviceManager, PluginConnection};

/// Maximum number of connected plugins: many more than a machine has kinds of devices.
const PLUGINS_MAX: usize = 256;

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

impl DeviceManager {
    /// Connects to the plugin of `resource` that listens at `socket`, and follows its devices in a
    /// task. A connection to the same socket is replaced.
    ///
    /// # Errors
    ///
    /// The plugin does not accept the connection, does not return its options, or there are too
    /// many plugins.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        resource: &str,
        socket: PathBuf,
    ) -> Result<(), ConnectError> {
        let client = PluginClient::connect(&socket, self.deadlines).await?;
        let options = client.options().await.map_err(ConnectError::Options)?;
        let stop = self.tasks.shutdown().child();
        let id = {
            let mut guarded = self.guarded.lock();
            if guarded.state.plugins() >= PLUGINS_MAX {
                return Err(ConnectError::TooMany(PLUGINS_MAX));
            }
            guarded.last_id += 1;
            let id = PluginId(guarded.last_id);
            let plugin = ConnectedPlugin { id, socket, options };
            if let Some(replaced) = guarded.state.connect(resource, plugin)
                && let Some(old) = guarded.connections.remove(&replaced)
            {
                old.stop.request();
            }
            let connection = PluginConnection { client: client.clone(), stop: stop.clone() };
            guarded.connections.insert(id, connection);
            id
        };
        tracing::info!(resource, "devices: a plugin is connected");
        let follow = Arc::clone(self).follow(resource.to_owned(), id, client, stop);
        self.tasks.spawn(Kind::Request, "device-plugin", follow);
        Ok(())
    }

    /// Follows the devices of a plugin until its stream ends, its connection is replaced or ended,
    /// or shutdown.
    async fn follow(
        self: Arc<Self>,
        resource: String,
        id: PluginId,
        client: PluginClient,
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
        client: &PluginClient,
    ) -> Result<Infallible, ListError> {
        let mut stream = client.list_and_watch().await?;
        loop {
            let message = stream.message().await.map_err(CallError::from)?;
            let ListAndWatchResponse { devices } = message.ok_or(ListError::Ended)?;
            let devices = parse_devices(devices)?;
            let outcome = {
                let mut guarded = self.guarded.lock();
                let Some(outcome) = guarded.state.list(resource, id, devices) else {
                    return Err(ListError::Ended);
                };
                for wake in outcome.pods.iter().filter_map(|pod| guarded.wakes.get(pod)) {
                    wake.notify_one();
                }
                outcome
            };
            self.tasks.problems().clear(&problem(resource));
            self.changes.send_replace(());
            if outcome.is_capacity_changed {
                self.capacity_changed.notify_one();
            }
            self.save_and_log().await;
        }
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
