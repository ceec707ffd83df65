//! The device manager with plugins over Unix sockets.

mod admission;
mod fake_plugin;
mod registrations;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::{Shutdown, Tasks};
use prost::Message as _;
use proto::deviceplugin::RegisterRequest;
use proto::deviceplugin::registration_client::RegistrationClient;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Notify;

use super::*;
use crate::pods::pod::Pod;
use crate::pods::pod::tests::pod;
use crate::runtime::cri::channel;
use fake_plugin::FakePlugin;

const RESOURCE: &str = "example.com/foo";
/// Far longer than anything in these tests takes.
const LIMIT: Duration = Duration::from_secs(30);

/// A manager whose directory is below `root`, with short deadlines of plugins.
async fn manager(root: &Path) -> (Arc<DeviceManager>, Tasks) {
    let tasks = Tasks::new(Shutdown::new());
    let mut manager = DeviceManager::new(root, &tasks);
    let short = Duration::from_millis(300);
    manager.deadlines.connect = short;
    manager.deadlines.allocate = short;
    (manager.serve().await.unwrap(), tasks)
}

/// Registers a plugin; returns the text of a refusal.
async fn register(
    root: &Path,
    version: &str,
    endpoint: &str,
    resource: &str,
) -> Result<(), String> {
    let socket = root.join(DIRECTORY).join("kubelet.sock");
    let request = RegisterRequest {
        version: version.to_owned(),
        endpoint: endpoint.to_owned(),
        resource_name: resource.to_owned(),
        options: None,
    };
    let answer = RegistrationClient::new(channel(&socket)).register(request).await;
    answer.map(|_| ()).map_err(|status| {
        assert_eq!(status.code(), tonic::Code::Unknown);
        status.message().to_owned()
    })
}

/// Waits for these numbers of all and of healthy devices of a resource.
async fn until_numbers(manager: &Arc<DeviceManager>, resource: &str, all: usize, healthy: usize) {
    let mut changes = manager.changes.subscribe();
    let reached = async {
        loop {
            changes.mark_unchanged();
            let numbers = manager.capacity().await;
            let of = |list: &std::collections::BTreeMap<String, usize>| list.get(resource).copied();
            if (of(&numbers.capacity), of(&numbers.allocatable)) == (Some(all), Some(healthy)) {
                return;
            }
            changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(LIMIT, reached).await.expect("the numbers of devices are reached");
}

/// A pod with one container that limits `resource`.
fn pod_with(uid: &str, resource: &str, count: u32) -> Pod {
    let resources = json!({"limits": {resource: count.to_string()}});
    let mut pod = pod(json!({"containers": [{"name": "c", "resources": resources}]}));
    pod.uid = uid.into();
    pod
}

async fn admit(manager: &Arc<DeviceManager>, pod: &Pod) -> Result<(), String> {
    let wake = Arc::new(Notify::new());
    let outcome =
        tokio::time::timeout(LIMIT, manager.admit(pod, &wake)).await.expect("admission ends");
    outcome.map_err(|error| error.to_string())
}

/// The environment that the devices of a pod's container add.
async fn environment(manager: &Arc<DeviceManager>, pod: &Pod) -> String {
    let options = manager.prepare_container(pod, &pod.containers[0], None).await.unwrap();
    let env = options.with_environment(Vec::new()).into_iter();
    env.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn pods_get_the_devices_of_a_plugin_and_release_them() {
    let root = tempfile::tempdir().unwrap();
    let (manager, tasks) = manager(root.path()).await;
    let plugin = FakePlugin::start(root.path(), "foo.sock", &["a", "b"]);
    register(root.path(), "v1beta1", "foo.sock", RESOURCE).await.unwrap();
    tokio::time::timeout(LIMIT, manager.capacity_changed()).await.unwrap();
    until_numbers(&manager, RESOURCE, 2, 2).await;
    let (first, second) = (pod_with("first", RESOURCE, 1), pod_with("second", RESOURCE, 2));
    admit(&manager, &first).await.unwrap();
    assert_eq!(plugin.allocations(), ["a"]);
    assert_eq!(environment(&manager, &first).await, "DEVICES=a");
    let file = std::fs::read(root.path().join(DIRECTORY).join(CHECKPOINT)).unwrap();
    let saved = checkpoint::Checkpoint::parse(&file).unwrap();
    assert_eq!(saved.devices.devices("first", "c", RESOURCE), Some(["a".to_owned()].into()));
    let text = "requested number of devices unavailable for example.com/foo. Requested: 2, \
        Available: 1";
    assert_eq!(admit(&manager, &second).await.unwrap_err(), text);
    // The second pod waits for a pod that is ending.
    manager.begin_release("first");
    let waiting = {
        let (manager, second) = (Arc::clone(&manager), second.clone());
        async move { admit(&manager, &second).await }
    };
    let mut waiting = Box::pin(waiting);
    assert!(futures::poll!(&mut waiting).is_pending());
    manager.release("first").await;
    waiting.await.unwrap();
    assert_eq!(plugin.allocations(), ["a", "a,b"]);
    // Only the health of the devices changes, and the pod keeps them.
    let woken = Arc::new(Notify::new());
    manager.follow_health(&second, &woken);
    plugin.set_devices(&[("a", "Unhealthy"), ("b", "Healthy")]);
    until_numbers(&manager, RESOURCE, 2, 1).await;
    tokio::time::timeout(LIMIT, woken.notified()).await.unwrap();
    let status = json!({"containerStatuses": [{"name": "c", "ready": true, "restartCount": 0,
        "image": "", "imageID": ""}]});
    let mut status = serde_json::from_value(status).unwrap();
    manager.add_resource_health("second", &mut status);
    let health = &status.container_statuses.unwrap()[0].allocated_resources_status;
    assert_eq!(
        serde_json::to_value(health).unwrap(),
        json!([{"name": RESOURCE, "resources": [{"resourceID": "a", "health": "Unhealthy"},
            {"resourceID": "b", "health": "Healthy"}]}])
    );
    assert!(metrics::render().contains(
        "kubelet_device_plugin_alloc_duration_seconds_count{resource_name=\"example.com/foo\"}"
    ));
    tasks.shutdown().request();
}

#[tokio::test]
async fn a_pod_keeps_its_devices_when_plugin_and_agent_restart() {
    let root = tempfile::tempdir().unwrap();
    let (before, tasks) = manager(root.path()).await;
    let plugin = FakePlugin::start(root.path(), "foo.sock", &["a", "b"]);
    register(root.path(), "v1beta1", "foo.sock", RESOURCE).await.unwrap();
    until_numbers(&before, RESOURCE, 2, 2).await;
    let pod = pod_with("pod", RESOURCE, 1);
    admit(&before, &pod).await.unwrap();
    plugin.stop().await;
    until_numbers(&before, RESOURCE, 2, 0).await;
    assert_eq!(environment(&before, &pod).await, "DEVICES=a");
    let gone = "no healthy devices present; cannot allocate unhealthy devices example.com/foo";
    assert_eq!(admit(&before, &pod_with("new", RESOURCE, 1)).await.unwrap_err(), gone);
    tasks.shutdown().request();
    tasks.drain(LIMIT).await;
    drop(before);

    let (after, tasks) = manager(root.path()).await;
    until_numbers(&after, RESOURCE, 0, 0).await;
    assert_eq!(environment(&after, &pod).await, "DEVICES=a");
    assert_eq!(admit(&after, &pod_with("new", RESOURCE, 1)).await.unwrap_err(), gone);
    // The pod of before waits for its plugin.
    let mut waiting = Box::pin(admit(&after, &pod));
    assert!(futures::poll!(&mut waiting).is_pending());
    let plugin = FakePlugin::start(root.path(), "foo.sock", &["a", "b"]);
    register(root.path(), "v1beta1", "foo.sock", RESOURCE).await.unwrap();
    waiting.await.unwrap();
    assert_eq!(plugin.allocations(), Vec::<String>::new(), "nothing is allocated again");
    until_numbers(&after, RESOURCE, 2, 2).await;
    admit(&after, &pod_with("new", RESOURCE, 1)).await.unwrap();
    assert_eq!(plugin.allocations(), ["b"]);
    after.retain_pods(|uid| uid == "new").await;
    let devices = after.guarded.lock().state.allocated(RESOURCE);
    assert_eq!(devices, ["b".to_owned()].into());
    tasks.shutdown().request();
}

#[tokio::test]
async fn a_plugin_that_is_refused_does_not_disturb_others() {
    let root = tempfile::tempdir().unwrap();
    let (manager, tasks) = manager(root.path()).await;
    let good = FakePlugin::start(root.path(), "foo.sock", &["a"]);
    register(root.path(), "v1beta1", "foo.sock", RESOURCE).await.unwrap();
    let refused = |version, endpoint, resource| register(root.path(), version, endpoint, resource);
    assert_eq!(
        refused("v1alpha", "foo.sock", "example.com/bar").await.unwrap_err(),
        "requested API version \"v1alpha\" is not supported by kubelet. Supported version is \
         [\"v1beta1\"]"
    );
    assert_eq!(
        refused("v1beta1", "foo.sock", "kubernetes.io/bar").await.unwrap_err(),
        "the ResourceName \"kubernetes.io/bar\" is invalid"
    );
    assert_eq!(
        refused("v1beta1", "missing.sock", "example.com/bar").await.unwrap_err(),
        "failed to dial device plugin: context deadline exceeded"
    );
    let silent = FakePlugin::start(root.path(), "silent.sock", &["a"]);
    silent.answer_nothing();
    assert_eq!(
        refused("v1beta1", "silent.sock", "example.com/bar").await.unwrap_err(),
        "failed to get device plugin options: rpc error: code = DeadlineExceeded desc = context \
         deadline exceeded"
    );
    for (id, text) in [("", "a device has an empty ID"), ("a", "several devices have the ID \"a\"")]
    {
        let malformed = FakePlugin::start(root.path(), "bad.sock", &["a", id]);
        register(root.path(), "v1beta1", "bad.sock", "example.com/bad").await.unwrap();
        let key = "devices/example.com/bad";
        let what = format!("the device plugin of example.com/bad is refused: {text}");
        let reported = async {
            while !tasks.problems().list().iter().any(|(k, p)| k == key && p.what == what) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(LIMIT, reported).await.unwrap();
        malformed.stop().await;
    }
    // As with a plugin that ends before its first list.
    until_numbers(&manager, "example.com/bad", 0, 0).await;
    until_numbers(&manager, RESOURCE, 1, 1).await;
    admit(&manager, &pod_with("pod", RESOURCE, 1)).await.unwrap();
    assert_eq!(good.allocations(), ["a"]);
    tasks.shutdown().request();
}

#[tokio::test]
async fn a_plugin_that_does_not_answer_delays_only_its_own_pods() {
    let root = tempfile::tempdir().unwrap();
    let (manager, tasks) = manager(root.path()).await;
    let slow = FakePlugin::start(root.path(), "slow.sock", &["a"]);
    let good = FakePlugin::start(root.path(), "foo.sock", &["a"]);
    register(root.path(), "v1beta1", "slow.sock", "example.com/slow").await.unwrap();
    register(root.path(), "v1beta1", "foo.sock", RESOURCE).await.unwrap();
    until_numbers(&manager, "example.com/slow", 1, 1).await;
    until_numbers(&manager, RESOURCE, 1, 1).await;
    slow.answer_nothing();
    let pod = pod_with("slow", "example.com/slow", 1);
    let mut waiting = Box::pin(admit(&manager, &pod));
    assert!(futures::poll!(&mut waiting).is_pending());
    admit(&manager, &pod_with("pod", RESOURCE, 1)).await.unwrap();
    assert_eq!(good.allocations(), ["a"]);
    let text = "rpc error: code = DeadlineExceeded desc = context deadline exceeded";
    assert_eq!(waiting.await.unwrap_err(), text);
    // Its device is free again.
    slow.answer();
    admit(&manager, &pod_with("next", "example.com/slow", 1)).await.unwrap();
    tasks.shutdown().request();
}

#[tokio::test]
async fn a_plugin_chooses_devices_and_prepares_them_before_the_start() {
    let root = tempfile::tempdir().unwrap();
    let (manager, tasks) = manager(root.path()).await;
    let plugin = FakePlugin::start(root.path(), "foo.sock", &["a", "b", "c"]);
    plugin.prefer(&["c", "bogus"]);
    register(root.path(), "v1beta1", "foo.sock", RESOURCE).await.unwrap();
    until_numbers(&manager, RESOURCE, 3, 3).await;
    let pod = pod_with("pod", RESOURCE, 2);
    admit(&manager, &pod).await.unwrap();
    assert_eq!(plugin.allocations(), ["a,c"]);
    assert_eq!(environment(&manager, &pod).await, "DEVICES=a,c");
    assert_eq!(plugin.prepared(), ["a,c"]);
    plugin.stop().await;
    until_numbers(&manager, RESOURCE, 3, 0).await;
    let stopped = manager.prepare_container(&pod, &pod.containers[0], None).await.unwrap_err();
    let socket = root.path().join(DIRECTORY).join("foo.sock");
    assert_eq!(
        stopped.to_string(),
        format!(
            "device plugin PreStartContainer rpc failed with err: endpoint {} has been stopped",
            socket.display()
        )
    );
    // Without a record, devices are allocated when the container starts.
    let plugin = FakePlugin::start(root.path(), "foo.sock", &["a", "b", "c"]);
    register(root.path(), "v1beta1", "foo.sock", RESOURCE).await.unwrap();
    until_numbers(&manager, RESOURCE, 3, 3).await;
    let late = pod_with("late", RESOURCE, 1);
    assert_eq!(environment(&manager, &late).await, "DEVICES=b");
    assert_eq!(plugin.allocations(), ["b"]);
    let none = pod_with("none", "example.com/other", 1);
    assert_eq!(environment(&manager, &none).await, "");
    tasks.shutdown().request();
}

/// The request `Register` as gRPC for Go sends it to a socket that it dialed by its path: HTTP/2
/// frames without compression.
fn register_from_go(request: &RegisterRequest) -> Vec<u8> {
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
    };
    let mut headers = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/v1beta1.Registration/Register"),
        (":authority", "%2Fvar%2Flib%2Fkubelet%2Fdevice-plugins%2Fkubelet.sock"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        headers.push(0);
        for text in [name, value] {
            headers.push(u8::try_from(text.len()).unwrap());
            headers.extend(text.as_bytes());
        }
    }
    let message = request.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let data = [&[0], &length[..], &message].concat();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    [preface, frame(4, 0, 0, &[]), frame(1, 4, 1, &headers), frame(0, 1, 1, &data)].concat()
}

/// Reads frames until one ends the stream 1; returns its kind: 1 for HEADERS, 3 for RST_STREAM.
async fn last_frame(stream: &mut tokio::net::UnixStream) -> u8 {
    loop {
        let mut header = [0; 9];
        stream.read_exact(&mut header).await.unwrap();
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut payload).await.unwrap();
        let (kind, flags) = (header[3], header[4]);
        if kind == 3 || kind == 1 && flags & 1 != 0 {
            return kind;
        }
    }
}

#[tokio::test]
async fn clients_in_go_register_with_the_path_of_the_socket_as_authority() {
    let root = tempfile::tempdir().unwrap();
    let (manager, tasks) = manager(root.path()).await;
    let _plugin = FakePlugin::start(root.path(), "foo.sock", &["a"]);
    let socket = root.path().join(DIRECTORY).join("kubelet.sock");
    let mut stream = tokio::net::UnixStream::connect(&socket).await.unwrap();
    let request = RegisterRequest {
        version: "v1beta1".to_owned(),
        endpoint: "foo.sock".to_owned(),
        resource_name: RESOURCE.to_owned(),
        options: None,
    };
    stream.write_all(&register_from_go(&request)).await.unwrap();
    assert_eq!(tokio::time::timeout(LIMIT, last_frame(&mut stream)).await.unwrap(), 1);
    until_numbers(&manager, RESOURCE, 1, 1).await;
    tasks.shutdown().request();
}
