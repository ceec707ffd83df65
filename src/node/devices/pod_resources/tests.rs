//! The API over a Unix socket.

use std::collections::BTreeMap;

use base::{Shutdown, Tasks};
use proto::podresources::pod_resources_lister_client::PodResourcesListerClient;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::super::records::WITHOUT_TOPOLOGY;
use super::super::state::tests::{devices, with_devices};
use super::*;
use crate::pods::handle::{DesiredPod, WorkerHandle};
use crate::pods::pod::PodOrigin;
use crate::runtime::cri::channel;

const RESOURCE: &str = "example.com/foo";

fn handle(name: &str, phase: Option<&str>, spec: &Value) -> (Arc<str>, Arc<WorkerHandle>) {
    let object = json!({"metadata": {"name": name, "namespace": "d", "uid": name}, "spec": spec,
        "status": {"phase": phase}});
    let pod = Arc::new(Pod::new(serde_json::from_value(object).unwrap(), PodOrigin::Api).unwrap());
    let uid = Arc::clone(&pod.uid);
    let handle = WorkerHandle {
        desired: watch::Sender::new(DesiredPod::new(pod)),
        wake: Arc::default(),
        exits: Arc::default(),
        halted: Arc::new(watch::Sender::new(false)),
        reported: Arc::default(),
    };
    (uid, Arc::new(handle))
}

/// Serves the API for three pods; the sidecar and the main container of one have devices.
fn served(root: &Path) -> (PodResourcesListerClient<tonic::transport::Channel>, Tasks) {
    let tasks = Tasks::new(Shutdown::new());
    let manager = DeviceManager::new(root, &tasks);
    {
        let mut guarded = manager.guarded.lock();
        let list = devices(&[("dev0", true, &[0, 1]), ("dev1", true, &[]), ("dev2", false, &[])]);
        guarded.state = with_devices(RESOURCE, list);
        let allocation = |node: i64, id: &str| Allocation {
            ids_by_node: BTreeMap::from([(node, vec![id.to_owned()])]),
            ..Allocation::default()
        };
        let mut record = |container, node, id| {
            guarded.state.records.insert("with", container, RESOURCE, allocation(node, id));
        };
        record("init", 0, "dev0");
        record("side", 0, "dev0");
        record("main", WITHOUT_TOPOLOGY, "dev1");
    }
    let table = PodTable::default();
    let main = json!({"containers": [{"name": "main"}]});
    let all = json!({"containers": [{"name": "main"}], "initContainers": [{"name": "init"},
        {"name": "side", "restartPolicy": "Always"}]});
    table.insert_all([
        handle("with", None, &all),
        handle("plain", Some("Running"), &main),
        handle("ended", Some("Succeeded"), &main),
    ]);
    let listener = bind(&root.join(DIRECTORY)).unwrap();
    let service = PodResourcesService {
        devices: Arc::new(manager),
        managers: Arc::new(ResourceManagers::inactive(root)),
        claims: Arc::new(ClaimOfMain),
        table,
    };
    let serve = unix_server::serve(listener, routes(service), "test", 4, tasks.clone());
    tasks.spawn(Kind::Request, "test", serve);
    let channel = channel(&root.join(DIRECTORY).join(SOCKET));
    (PodResourcesListerClient::new(channel), tasks)
}

/// The container `main` of each pod has a device by a claim.
#[derive(Debug)]
struct ClaimOfMain;

impl ContainerClaims for ClaimOfMain {
    fn of_container(&self, pod: &Pod, member: &PodContainer) -> Vec<podresources::DynamicResource> {
        let claim_name = format!("claim-of-{}", pod.name());
        let claim = podresources::DynamicResource { claim_name, ..Default::default() };
        Vec::from_iter((member.name() == "main").then_some(claim))
    }
}

/// The pods of an answer: `NAME: CONTAINER(DEVICE@NODE ...)+CLAIM ...`.
fn texts(pods: &[podresources::PodResources]) -> Vec<String> {
    let device = |device: &podresources::ContainerDevices| {
        let nodes: Vec<i64> =
            device.topology.iter().flat_map(|t| &t.nodes).map(|node| node.id).collect();
        format!("{}@{nodes:?}", device.device_ids.join(","))
    };
    let container = |container: &podresources::ContainerResources| {
        let devices: Vec<String> = container.devices.iter().map(device).collect();
        let claims = container.dynamic_resources.iter();
        let claims: String = claims.map(|claim| format!("+{}", claim.claim_name)).collect();
        format!("{}({}){claims}", container.name, devices.join(" "))
    };
    let pod = |pod: &podresources::PodResources| {
        let containers: Vec<String> = pod.containers.iter().map(container).collect();
        format!("{}/{}: {}", pod.namespace, pod.name, containers.join(" "))
    };
    pods.iter().map(pod).collect()
}

#[tokio::test]
async fn active_pods_are_listed_with_their_devices() {
    let root = tempfile::tempdir().unwrap();
    let (mut client, tasks) = served(root.path());
    let list = client.list(podresources::ListPodResourcesRequest {}).await.unwrap().into_inner();
    let with = "d/with: side(dev0@[0]) main(dev1@[])+claim-of-with";
    assert_eq!(texts(&list.pod_resources), ["d/plain: main()+claim-of-plain", with]);
    let get = |name: &str| podresources::GetPodResourcesRequest {
        pod_name: name.to_owned(),
        pod_namespace: "d".to_owned(),
    };
    let one = client.get(get("with")).await.unwrap().into_inner().pod_resources.unwrap();
    assert_eq!(texts(&[one]), [with]);
    let missing = client.get(get("ended")).await.unwrap_err();
    assert_eq!(missing.code(), tonic::Code::Unknown);
    assert_eq!(missing.message(), "pod ended in namespace d not found");
    let request = podresources::AllocatableResourcesRequest {};
    let allocatable = client.get_allocatable_resources(request).await.unwrap().into_inner();
    let devices = podresources::ContainerResources {
        name: "all".to_owned(),
        devices: allocatable.devices,
        ..Default::default()
    };
    let pod = podresources::PodResources { containers: vec![devices], ..Default::default() };
    assert_eq!(texts(&[pod]), ["/: all(dev0@[0] dev0@[1] dev1@[])"]);
    assert_eq!((allocatable.cpu_ids.len(), allocatable.memory.len()), (0, 0));
    tasks.shutdown().request();
}

#[tokio::test]
async fn the_older_version_lists_all_pods_without_topology() {
    let root = tempfile::tempdir().unwrap();
    let (_, tasks) = served(root.path());
    let channel = channel(&root.path().join(DIRECTORY).join(SOCKET));
    let to_v1alpha1 = tower::service_fn(move |mut request: http::Request<tonic::body::Body>| {
        *request.uri_mut() =
            http::Uri::from_static("http://localhost/v1alpha1.PodResourcesLister/List");
        channel.clone().oneshot(request)
    });
    let mut client = PodResourcesListerClient::new(to_v1alpha1);
    let list = client.list(podresources::ListPodResourcesRequest {}).await.unwrap().into_inner();
    assert_eq!(
        texts(&list.pod_resources),
        ["d/ended: main()", "d/plain: main()", "d/with: main(dev1@[])"]
    );
    assert!(metrics::REQUESTS.read(&[V1ALPHA1]) >= 1.0);
    tasks.shutdown().request();
}

#[tokio::test]
async fn requests_beyond_the_rate_limit_are_rejected() {
    let root = tempfile::tempdir().unwrap();
    let (client, tasks) = served(root.path());
    let requests = (0..40).map(|_| {
        let mut client = client.clone();
        async move { client.list(podresources::ListPodResourcesRequest {}).await.map(|_| ()) }
    });
    let outcomes = futures::future::join_all(requests).await;
    let rejected = outcomes.into_iter().filter_map(Result::err).next().unwrap();
    assert_eq!(rejected.code(), tonic::Code::ResourceExhausted);
    assert_eq!(rejected.message(), "rejected by rate limit");
    tasks.shutdown().request();
}

#[tokio::test]
async fn the_socket_of_an_earlier_process_is_replaced() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join(DIRECTORY);
    drop(bind(&directory).unwrap());
    drop(bind(&directory).unwrap());
    let names: Vec<_> =
        std::fs::read_dir(&directory).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, [SOCKET]);
}
