//! The pod resources API: which devices pods have and which there are (`/v1.PodResourcesLister`,
//! `/v1alpha1.PodResourcesLister`), for monitoring agents of the node.

mod rate_limit;

use std::io;
use std::path::Path;
use std::sync::Arc;

use base::Kind;
use parking_lot::Mutex;
use proto::podresources;
use proto::podresources::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use sorting::CompactSort as _;
use tokio::net::UnixListener;
use tonic::service::Routes;
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Response, Status};
use tower::ServiceExt as _;

use super::records::Allocation;
use super::{DeviceManager, metrics, unix_server};
use crate::context::Node;
use crate::dynamic_resources::DynamicResources;
use crate::pods::pod::{ContainerRole, Pod, PodContainer};
use crate::pods::table::PodTable;
use crate::resource_managers::ResourceManagers;

use rate_limit::TokenBucket;

/// Directory of the socket, below the kubelet's root directory.
const DIRECTORY: &str = "pod-resources";
const SOCKET: &str = "kubelet.sock";
/// The name under which the socket is bound before it is moved to its own.
const TEMPORARY_SOCKET: &str = ".kubelet.sock.new";
/// Connections served at a time: those of a few agents.
const CONNECTIONS_MAX: usize = 64;
/// Maximum size of a request, which consists of two names.
const MESSAGE_MAX: usize = 16 << 10;
/// Labels of the metrics.
const V1: &str = "v1";
const V1ALPHA1: &str = "v1alpha1";
/// The only method of the older version, and that of the newer one that serves it.
const V1ALPHA1_LIST: &str = "/v1alpha1.PodResourcesLister/List";
const V1_LIST: &str = "/v1.PodResourcesLister/List";

/// Marks a request of the version `v1alpha1`.
#[derive(Debug, Clone, Copy)]
struct IsV1Alpha1;

/// Serves the API until shutdown.
///
/// # Errors
///
/// The socket cannot be bound.
pub(crate) fn serve(node: &Arc<Node>, table: PodTable) -> io::Result<()> {
    let directory = node.identity.config.root_dir.join(DIRECTORY);
    let listener = bind(&directory)?;
    let claims = Arc::clone(&node.dynamic_resources) as Arc<dyn ContainerClaims>;
    let (devices, managers) = (Arc::clone(&node.devices), Arc::clone(&node.resource_managers));
    let service = PodResourcesService { devices, managers, claims, table };
    let serve = unix_server::serve(
        listener,
        routes(service),
        "pod resources",
        CONNECTIONS_MAX,
        node.tasks.clone(),
    );
    node.tasks.spawn(Kind::Critical, "pod-resources", serve);
    Ok(())
}

/// Binds the socket under another name first, so that clients find no socket that does not accept
/// connections yet.
fn bind(directory: &Path) -> io::Result<UnixListener> {
    base::fs::create_dir(directory, 0o750)?;
    let (path, temporary) = (directory.join(SOCKET), directory.join(TEMPORARY_SOCKET));
    for old in [&path, &temporary] {
        match std::fs::remove_file(old) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    let listener = UnixListener::bind(&temporary).map_err(|error| {
        io::Error::new(error.kind(), format!("cannot listen at {}: {error}", path.display()))
    })?;
    std::fs::rename(&temporary, &path)?;
    Ok(listener)
}

/// Routes of both versions, which share the rate limit.
fn routes(service: PodResourcesService) -> Routes {
    let bucket = Arc::new(Mutex::new(TokenBucket::default()));
    let server = PodResourcesListerServer::new(service).max_decoding_message_size(MESSAGE_MAX);
    let limited = InterceptedService::new(server, move |request: Request<()>| {
        if bucket.lock().take(base::clock::now()) {
            Ok(request)
        } else {
            Err(Status::resource_exhausted("rejected by rate limit"))
        }
    });
    let v1alpha1 = limited.clone().map_request(to_v1);
    Routes::new(limited).into_axum_router().route_service(V1ALPHA1_LIST, v1alpha1).into()
}

/// Directs a request of the older version to the method of the newer one, whose messages have the
/// same fields and more.
fn to_v1(request: http::Request<axum::body::Body>) -> http::Request<tonic::body::Body> {
    let mut request = request.map(tonic::body::Body::new);
    *request.uri_mut() = http::Uri::from_static(V1_LIST);
    request.extensions_mut().insert(IsV1Alpha1);
    request
}

/// The devices that containers have through ResourceClaims.
trait ContainerClaims: std::fmt::Debug + Send + Sync {
    /// Returns the claims of a container with all of their devices.
    fn of_container(&self, pod: &Pod, member: &PodContainer) -> Vec<podresources::DynamicResource>;
}

impl ContainerClaims for DynamicResources {
    fn of_container(&self, pod: &Pod, member: &PodContainer) -> Vec<podresources::DynamicResource> {
        self.claims_of_container(pod, member)
    }
}

#[derive(Debug)]
struct PodResourcesService {
    devices: Arc<DeviceManager>,
    managers: Arc<ResourceManagers>,
    claims: Arc<dyn ContainerClaims>,
    table: PodTable,
}

impl PodResourcesService {
    /// The devices, CPUs and memory of the containers of a pod that `is_listed` accepts.
    fn of_pod(
        &self,
        pod: &Pod,
        is_listed: impl Fn(ContainerRole) -> bool,
    ) -> podresources::PodResources {
        let containers = pod.containers.iter().filter(|member| is_listed(member.role));
        let containers = containers.map(|member| podresources::ContainerResources {
            name: member.name().to_owned(),
            devices: self.devices.container_devices(&pod.uid, member.name()),
            dynamic_resources: self.claims.of_container(pod, member),
            cpu_ids: self.managers.exclusive_cpus(&pod.uid, member.name()),
            memory: self.managers.container_memory(&pod.uid, member.name()),
        });
        podresources::PodResources {
            name: pod.name().to_owned(),
            namespace: pod.namespace().to_owned(),
            containers: containers.collect(),
            ..podresources::PodResources::default()
        }
    }

    fn list_v1(&self) -> Vec<podresources::PodResources> {
        self.table.active().iter().map(|pod| self.of_pod(pod, is_long_running)).collect()
    }

    fn list_v1alpha1(&self) -> Vec<podresources::PodResources> {
        let mut pods: Vec<Arc<Pod>> = self.table.all().into_iter().map(|(pod, _)| pod).collect();
        pods.compact_sort_by(|a, b| a.key.cmp(&b.key));
        let is_main = |role| role == ContainerRole::Main;
        let mut listed: Vec<_> = pods.iter().map(|pod| self.of_pod(pod, is_main)).collect();
        for container in listed.iter_mut().flat_map(|pod| &mut pod.containers) {
            // The older version has names and devices alone.
            container.dynamic_resources.clear();
            container.cpu_ids.clear();
            container.memory.clear();
            container.devices.iter_mut().for_each(|device| device.topology = None);
        }
        listed
    }
}

/// Whether the API lists containers of a role: those that run as long as the pod.
fn is_long_running(role: ContainerRole) -> bool {
    matches!(role, ContainerRole::Sidecar | ContainerRole::Main)
}

#[tonic::async_trait]
impl PodResourcesLister for PodResourcesService {
    async fn list(
        &self,
        request: Request<podresources::ListPodResourcesRequest>,
    ) -> Result<Response<podresources::ListPodResourcesResponse>, Status> {
        let pod_resources = if request.extensions().get::<IsV1Alpha1>().is_some() {
            metrics::REQUESTS.inc(&[V1ALPHA1]);
            self.list_v1alpha1()
        } else {
            metrics::REQUESTS.inc(&[V1]);
            metrics::LISTS.inc(&[V1]);
            self.list_v1()
        };
        Ok(Response::new(podresources::ListPodResourcesResponse { pod_resources }))
    }

    /// CPUs and memory are those that the managers can allocate exclusively.
    async fn get_allocatable_resources(
        &self,
        _request: Request<podresources::AllocatableResourcesRequest>,
    ) -> Result<Response<podresources::AllocatableResourcesResponse>, Status> {
        metrics::REQUESTS.inc(&[V1]);
        metrics::ALLOCATABLE.inc(&[V1]);
        let devices = self.devices.allocatable_devices();
        let response = podresources::AllocatableResourcesResponse {
            devices,
            cpu_ids: self.managers.allocatable_cpus(),
            memory: self.managers.allocatable_memory(),
        };
        Ok(Response::new(response))
    }

    async fn get(
        &self,
        request: Request<podresources::GetPodResourcesRequest>,
    ) -> Result<Response<podresources::GetPodResourcesResponse>, Status> {
        metrics::REQUESTS.inc(&[V1]);
        metrics::GETS.inc(&[V1]);
        let podresources::GetPodResourcesRequest { pod_name, pod_namespace } = request.into_inner();
        let active = self.table.active();
        let pod = active.iter().find(|p| p.name() == pod_name && p.namespace() == pod_namespace);
        let Some(pod) = pod else {
            metrics::GET_ERRORS.inc(&[V1]);
            let text = format!("pod {pod_name} in namespace {pod_namespace} not found");
            return Err(Status::unknown(text));
        };
        let pod_resources = Some(self.of_pod(pod, is_long_running));
        Ok(Response::new(podresources::GetPodResourcesResponse { pod_resources }))
    }
}

/// One entry per NUMA node of a device, as upstream; one without topology for a device that has
/// none.
fn container_devices(
    resource: &str,
    id: &str,
    nodes: &[i64],
) -> Vec<podresources::ContainerDevices> {
    let entry = |topology| podresources::ContainerDevices {
        resource_name: resource.to_owned(),
        device_ids: vec![id.to_owned()],
        topology,
    };
    if nodes.is_empty() {
        return vec![entry(None)];
    }
    let on =
        |id: &i64| podresources::TopologyInfo { nodes: vec![podresources::NumaNode { id: *id }] };
    nodes.iter().map(|node| entry(Some(on(node)))).collect()
}

/// The devices of one resource that a container has.
fn allocated_devices(
    (resource, allocation): (&String, &Allocation),
) -> Vec<podresources::ContainerDevices> {
    let devices = allocation.nodes_by_id().into_iter();
    devices.flat_map(|(id, nodes)| container_devices(resource, id, &nodes)).collect()
}

impl DeviceManager {
    fn container_devices(&self, pod: &str, container: &str) -> Vec<podresources::ContainerDevices> {
        let guarded = self.guarded.lock();
        let allocations = guarded.state.records.container(pod, container);
        allocations.into_iter().flatten().flat_map(allocated_devices).collect()
    }

    fn allocatable_devices(&self) -> Vec<podresources::ContainerDevices> {
        let guarded = self.guarded.lock();
        let devices = guarded.state.allocatable();
        devices.flat_map(|(resource, id, nodes)| container_devices(resource, id, nodes)).collect()
    }
}

#[cfg(test)]
mod tests;
