//! A device plugin in this process.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use base::{Kind, Shutdown, Tasks};
use futures::Stream;
use parking_lot::Mutex;
use proto::deviceplugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use proto::deviceplugin::*;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use crate::devices::{DIRECTORY, unix_server};

type Devices = Vec<(String, String)>;

/// What the calls of the plugin share with the test.
#[derive(Debug)]
struct Shared {
    devices: watch::Sender<Devices>,
    /// Calls get no answer.
    is_silent: watch::Sender<bool>,
    preferred: Mutex<Option<Vec<String>>>,
    allocations: Mutex<Vec<String>>,
    prepared: Mutex<Vec<String>>,
}

/// A plugin that runs until it is stopped.
#[derive(Debug)]
pub(super) struct FakePlugin {
    shared: Arc<Shared>,
    tasks: Tasks,
    socket: PathBuf,
}

impl FakePlugin {
    /// Starts a plugin with these healthy devices at a socket in the directory of plugins.
    pub(super) fn start(root: &Path, name: &str, ids: &[&str]) -> Self {
        let healthy = ids.iter().map(|id| ((*id).to_owned(), "Healthy".to_owned())).collect();
        let shared = Arc::new(Shared {
            devices: watch::Sender::new(healthy),
            is_silent: watch::Sender::new(false),
            preferred: Mutex::default(),
            allocations: Mutex::default(),
            prepared: Mutex::default(),
        });
        let socket = root.join(DIRECTORY).join(name);
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        let tasks = Tasks::new(Shutdown::new());
        let routes = Routes::new(DevicePluginServer::new(Calls(Arc::clone(&shared))));
        let serve = unix_server::serve(listener, routes, "plugin", 8, tasks.clone());
        tasks.spawn(Kind::Request, "fake-plugin", serve);
        Self { shared, tasks, socket }
    }

    /// Lists devices of these ids and healths from now on.
    pub(super) fn set_devices(&self, devices: &[(&str, &str)]) {
        let devices = devices.iter().map(|(id, health)| ((*id).to_owned(), (*health).to_owned()));
        self.shared.devices.send_replace(devices.collect());
    }

    /// Supports all options and prefers these devices.
    pub(super) fn prefer(&self, ids: &[&str]) {
        let ids = ids.iter().map(|id| (*id).to_owned()).collect();
        *self.shared.preferred.lock() = Some(ids);
    }

    pub(super) fn answer_nothing(&self) {
        self.shared.is_silent.send_replace(true);
    }

    pub(super) fn answer(&self) {
        self.shared.is_silent.send_replace(false);
    }

    /// The devices of each call of `Allocate` so far.
    pub(super) fn allocations(&self) -> Vec<String> {
        self.shared.allocations.lock().clone()
    }

    /// The devices of each call of `PreStartContainer` so far.
    pub(super) fn prepared(&self) -> Vec<String> {
        self.shared.prepared.lock().clone()
    }

    /// Ends the plugin as a kill does: its connections and its listener are closed.
    pub(super) async fn stop(self) {
        self.tasks.shutdown().request();
        self.tasks.drain(super::LIMIT).await;
        std::fs::remove_file(&self.socket).unwrap();
    }
}

struct Calls(Arc<Shared>);

impl Calls {
    /// Waits until the plugin answers.
    async fn answers(&self) {
        let mut silent = self.0.is_silent.subscribe();
        let _ = silent.wait_for(|is_silent| !is_silent).await;
    }
}

#[tonic::async_trait]
impl DevicePlugin for Calls {
    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        self.answers().await;
        let has_options = self.0.preferred.lock().is_some();
        Ok(Response::new(DevicePluginOptions {
            pre_start_required: has_options,
            get_preferred_allocation_available: has_options,
        }))
    }

    type ListAndWatchStream =
        Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn list_and_watch(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let mut devices = self.0.devices.subscribe();
        devices.mark_changed();
        let stream = futures::stream::unfold(devices, |mut devices| async move {
            devices.changed().await.ok()?;
            let list = devices.borrow_and_update().clone();
            let device = |(id, health)| Device { id, health, topology: None };
            let devices_now = list.into_iter().map(device).collect();
            Some((Ok(ListAndWatchResponse { devices: devices_now }), devices))
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        self.answers().await;
        assert_eq!(request.get_ref().container_requests.len(), 1);
        let device_i_ds = self.0.preferred.lock().clone().unwrap_or_default();
        let container_responses = vec![ContainerPreferredAllocationResponse { device_i_ds }];
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        self.answers().await;
        let containers = request.into_inner().container_requests;
        assert_eq!(containers.len(), 1);
        let ids = containers.into_iter().flat_map(|c| c.devices_ids).collect::<Vec<_>>().join(",");
        self.0.allocations.lock().push(ids.clone());
        let envs = [("DEVICES".to_owned(), ids)].into();
        let response = ContainerAllocateResponse { envs, ..Default::default() };
        Ok(Response::new(AllocateResponse { container_responses: vec![response] }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        self.answers().await;
        self.0.prepared.lock().push(request.into_inner().devices_ids.join(","));
        Ok(Response::new(PreStartContainerResponse {}))
    }
}
