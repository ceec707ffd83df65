//! The client of one device plugin: gRPC, or calls of a plugin that is a part of this process.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::Backoff;
use hyper_util::rt::TokioIo;
use proto::deviceplugin as plugin;
use proto::deviceplugin::device_plugin_client::DevicePluginClient;
use tonic::transport::{Channel, Endpoint, Uri};

use super::error::{CallError, ConnectError};
use super::state::PluginOptions;

/// Maximum size of a message of a plugin, the default of gRPC for Go.
const MESSAGE_MAX: usize = 4 << 20;

/// How long a plugin may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PluginDeadlines {
    /// To accept a connection (as with upstream), and to return its options.
    pub(crate) connect: Duration,
    /// To choose or to allocate devices. Upstream has no limit; this is that of short calls to the
    /// container runtime.
    pub(crate) allocate: Duration,
    /// To prepare devices before a container starts
    /// (`KubeletPreStartContainerRPCTimeoutInSecs`).
    pub(crate) pre_start: Duration,
}

impl Default for PluginDeadlines {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            allocate: Duration::from_secs(120),
            pre_start: Duration::from_secs(30),
        }
    }
}

/// A device plugin that is a part of this process. It has preferences, and it is called before
/// each start of a container.
#[async_trait]
pub(crate) trait BuiltInPlugin: std::fmt::Debug + Send + Sync {
    /// Returns which `count` of the `available` devices a container gets.
    async fn preferred_allocation(
        &self,
        available: BTreeSet<String>,
        must_include: &BTreeSet<String>,
        count: usize,
    ) -> BTreeSet<String>;

    /// Returns what a container with these devices gets at this time.
    ///
    /// # Errors
    ///
    /// A device is missing.
    async fn allocate(
        &self,
        devices: &BTreeSet<String>,
    ) -> Result<plugin::ContainerAllocateResponse, CallError>;
}

/// A connection to a plugin.
#[derive(Debug, Clone)]
pub(crate) enum PluginClient {
    Socket(SocketClient),
    BuiltIn(Arc<dyn BuiltInPlugin>),
}

/// A connection to a plugin that listens at a socket.
#[derive(Debug, Clone)]
pub(crate) struct SocketClient {
    client: DevicePluginClient<Channel>,
    deadlines: PluginDeadlines,
}

/// Awaits the answer of a call for at most `limit`; then the call is cancelled.
async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, CallError> {
    let outcome = tokio::time::timeout(limit, call).await.map_err(|_| CallError::Deadline)?;
    Ok(outcome?.into_inner())
}

/// Connects to a socket, again after growing pauses: a plugin may register before it listens.
async fn connect(socket: &Path) -> Channel {
    let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
    loop {
        let socket: PathBuf = socket.to_owned();
        // The connector uses the socket; the URI is what the plugin gets as `:authority`.
        let endpoint = Endpoint::from_static("http://localhost");
        let connected = endpoint.connect_with_connector(tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
        }));
        match connected.await {
            Ok(channel) => return channel,
            Err(error) => tracing::debug!(%error, "devices: cannot connect to a plugin, retrying"),
        }
        base::clock::sleep(backoff.next_delay()).await;
    }
}

impl PluginClient {
    /// Returns which `count` of the `available` devices the plugin prefers; empty if it has no
    /// preference.
    ///
    /// # Errors
    ///
    /// The plugin answers with an error, or not in time.
    pub(crate) async fn preferred_allocation(
        &self,
        available: BTreeSet<String>,
        must_include: &BTreeSet<String>,
        count: usize,
    ) -> Result<BTreeSet<String>, CallError> {
        match self {
            Self::Socket(client) => {
                client.preferred_allocation(available, must_include, count).await
            }
            Self::BuiltIn(plugin) => {
                Ok(plugin.preferred_allocation(available, must_include, count).await)
            }
        }
    }

    /// Has the plugin allocate devices. Returns what the container gets; `None` if the plugin
    /// answers without a response for the container.
    ///
    /// # Errors
    ///
    /// The plugin answers with an error, or not in time.
    pub(crate) async fn allocate(
        &self,
        devices: &BTreeSet<String>,
    ) -> Result<Option<plugin::ContainerAllocateResponse>, CallError> {
        match self {
            Self::Socket(client) => client.allocate(devices).await,
            Self::BuiltIn(plugin) => plugin.allocate(devices).await.map(Some),
        }
    }

    /// Has the plugin prepare devices before a container with them starts. Returns what the
    /// container gets if that may differ from what it got at the allocation: a device that was
    /// plugged in again may have another node.
    ///
    /// # Errors
    ///
    /// The plugin answers with an error, or not in time.
    pub(crate) async fn pre_start_container(
        &self,
        devices: BTreeSet<String>,
    ) -> Result<Option<plugin::ContainerAllocateResponse>, CallError> {
        match self {
            Self::Socket(client) => client.pre_start_container(devices).await.map(|()| None),
            Self::BuiltIn(plugin) => plugin.allocate(&devices).await.map(Some),
        }
    }
}

impl SocketClient {
    /// Connects to the plugin that listens at `socket`.
    ///
    /// # Errors
    ///
    /// No connection is accepted within the deadline.
    pub(crate) async fn connect(
        socket: &Path,
        deadlines: PluginDeadlines,
    ) -> Result<Self, ConnectError> {
        let connected = tokio::time::timeout(deadlines.connect, connect(socket)).await;
        let channel = connected.map_err(|_| ConnectError::Dial)?;
        let client = DevicePluginClient::new(channel).max_decoding_message_size(MESSAGE_MAX);
        Ok(Self { client, deadlines })
    }

    /// Returns what the plugin supports.
    ///
    /// # Errors
    ///
    /// The plugin answers with an error, or not in time.
    pub(crate) async fn options(&self) -> Result<PluginOptions, CallError> {
        let (mut client, limit) = (self.client.clone(), self.deadlines.connect);
        let call = client.get_device_plugin_options(plugin::Empty {});
        let options = within(limit, call).await?;
        Ok(PluginOptions {
            pre_start: options.pre_start_required,
            preferred_allocation: options.get_preferred_allocation_available,
        })
    }

    /// Opens the stream of lists of devices. It has no deadline: it lasts as long as the plugin.
    ///
    /// # Errors
    ///
    /// The plugin answers with an error, or its connection fails.
    pub(crate) async fn list_and_watch(
        &self,
    ) -> Result<tonic::Streaming<plugin::ListAndWatchResponse>, CallError> {
        let mut client = self.client.clone();
        Ok(client.list_and_watch(plugin::Empty {}).await?.into_inner())
    }

    /// Returns which `count` of the `available` devices the plugin prefers; empty if it has no
    /// preference.
    ///
    /// # Errors
    ///
    /// The plugin answers with an error, or not in time.
    async fn preferred_allocation(
        &self,
        available: BTreeSet<String>,
        must_include: &BTreeSet<String>,
        count: usize,
    ) -> Result<BTreeSet<String>, CallError> {
        let (mut client, limit) = (self.client.clone(), self.deadlines.allocate);
        let container = plugin::ContainerPreferredAllocationRequest {
            available_device_i_ds: available.into_iter().collect(),
            must_include_device_i_ds: must_include.iter().cloned().collect(),
            allocation_size: i32::try_from(count).unwrap_or(i32::MAX),
        };
        let message = plugin::PreferredAllocationRequest { container_requests: vec![container] };
        let call = client.get_preferred_allocation(message);
        let response = within(limit, call).await?;
        let first = response.container_responses.into_iter().next();
        Ok(first.into_iter().flat_map(|container| container.device_i_ds).collect())
    }

    /// Has the plugin allocate devices. Returns what the container gets; `None` if the plugin
    /// answers without a response for the container.
    ///
    /// # Errors
    ///
    /// The plugin answers with an error, or not in time.
    async fn allocate(
        &self,
        devices: &BTreeSet<String>,
    ) -> Result<Option<plugin::ContainerAllocateResponse>, CallError> {
        let (mut client, limit) = (self.client.clone(), self.deadlines.allocate);
        let devices_ids = devices.iter().cloned().collect();
        let container = plugin::ContainerAllocateRequest { devices_ids };
        let message = plugin::AllocateRequest { container_requests: vec![container] };
        let response = within(limit, client.allocate(message)).await?;
        Ok(response.container_responses.into_iter().next())
    }

    /// Has the plugin prepare devices before a container with them starts.
    ///
    /// # Errors
    ///
    /// The plugin answers with an error, or not in time.
    async fn pre_start_container(&self, devices: BTreeSet<String>) -> Result<(), CallError> {
        let (mut client, limit) = (self.client.clone(), self.deadlines.pre_start);
        let message =
            plugin::PreStartContainerRequest { devices_ids: devices.into_iter().collect() };
        within(limit, client.pre_start_container(message)).await.map(|_| ())
    }
}
