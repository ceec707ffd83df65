//! The built-in plugin with a device manager and a fake machine.

use std::path::Path;
use std::time::Duration;

use base::{Shutdown, Tasks};
use serde_json::json;
use tokio::sync::Notify;

use super::host_tree::tests::FakeTree;
use super::*;
use crate::pods::pod::Pod;
use crate::pods::pod::tests::pod;
use crate::runtime::cri::channel;

const RESOURCE: &str = "devices.kube-lite.io/test";
/// Far longer than anything in these tests takes.
const LIMIT: Duration = Duration::from_secs(30);

/// A device manager below `root` with the built-in plugin of these selections.
async fn started(root: &Path, fake: &FakeTree, texts: &[&str]) -> (Arc<DeviceManager>, Tasks) {
    let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
    let selections = DeviceSelection::parse_all(&texts).unwrap();
    let tasks = Tasks::new(Shutdown::new());
    let manager = DeviceManager::start(root, resources(&selections), &tasks).await.unwrap();
    start_in(fake.tree(), &manager, &selections, &tasks).await;
    (manager, tasks)
}

/// The numbers of all and of healthy devices.
async fn numbers(manager: &Arc<DeviceManager>) -> (usize, usize) {
    let all = manager.capacity().await;
    let of = |list: &BTreeMap<String, usize>| list.get(RESOURCE).copied().unwrap_or_default();
    (of(&all.capacity), of(&all.allocatable))
}

async fn until_numbers(manager: &Arc<DeviceManager>, want: (usize, usize)) {
    let mut changes = manager.changes();
    let reached = async {
        loop {
            changes.mark_unchanged();
            if numbers(manager).await == want {
                return;
            }
            changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(LIMIT, reached).await.expect("the numbers of devices are reached");
}

fn pod_with(uid: &str) -> Pod {
    let resources = json!({"limits": {RESOURCE: "1"}});
    let mut pod = pod(json!({"containers": [{"name": "c", "resources": resources}]}));
    pod.uid = uid.into();
    pod
}

async fn admit(manager: &Arc<DeviceManager>, pod: &Pod) -> Arc<Notify> {
    let wake = Arc::new(Notify::new());
    manager.admit(pod, &wake).await.unwrap();
    wake
}

/// The nodes on the machine that the container gets, or why it gets none.
async fn nodes(manager: &Arc<DeviceManager>, pod: &Pod) -> Result<Vec<String>, String> {
    let prepared = manager.prepare_container(pod, &pod.containers[0], None).await;
    let mut config = proto::runtime::v1::ContainerConfig::default();
    prepared.map_err(|error| error.to_string())?.add_to(&mut config);
    let specs = config.devices.into_iter();
    Ok(specs.map(|spec| format!("{} {}", spec.container_path, spec.host_path)).collect())
}

fn health(manager: &Arc<DeviceManager>, uid: &str) -> String {
    let status = json!({"containerStatuses": [{"name": "c", "ready": true, "restartCount": 0,
        "image": "", "imageID": ""}]});
    let mut status = serde_json::from_value(status).unwrap();
    manager.add_resource_health(uid, &mut status);
    let status = serde_json::to_value(status).unwrap();
    let device = &status["containerStatuses"][0]["allocatedResourcesStatus"][0]["resources"][0];
    format!("{} {}", device["resourceID"], device["health"]).replace('"', "")
}

#[tokio::test]
async fn a_device_that_is_unplugged_is_unhealthy_until_its_pod_ends() {
    let (root, fake) = (tempfile::tempdir().unwrap(), FakeTree::new());
    fake.file("/dev/ttyUSB0", "");
    fake.link("/dev/serial/by-id/usb-stick", "/dev/ttyUSB0");
    let (manager, tasks) = started(root.path(), &fake, &["serial:usb-*=test"]).await;
    assert_eq!(numbers(&manager).await, (1, 1), "devices are listed by the start");
    let pod = pod_with("one");
    let wake = admit(&manager, &pod).await;
    let before = [
        "/dev/test /dev/ttyUSB0",
        "/dev/serial/by-id/usb-stick /dev/ttyUSB0",
        "/dev/ttyUSB0 /dev/ttyUSB0",
    ];
    assert_eq!(nodes(&manager, &pod).await.unwrap(), before);
    fake.remove("/dev/serial/by-id/usb-stick");
    fake.remove("/dev/ttyUSB0");
    until_numbers(&manager, (1, 0)).await;
    tokio::time::timeout(LIMIT, wake.notified()).await.unwrap();
    assert_eq!(health(&manager, "one"), "usb-stick Unhealthy");
    assert_eq!(
        nodes(&manager, &pod).await.unwrap_err(),
        "device plugin PreStartContainer rpc failed with err: device usb-stick is not present on \
         this node; plug it in"
    );
    // Plugged in again, it has another node, which the container gets when it starts again.
    fake.file("/dev/ttyUSB1", "");
    fake.link("/dev/serial/by-id/usb-stick", "/dev/ttyUSB1");
    until_numbers(&manager, (1, 1)).await;
    assert_eq!(health(&manager, "one"), "usb-stick Healthy");
    let after = nodes(&manager, &pod).await.unwrap();
    assert_eq!(after[0], "/dev/test /dev/ttyUSB1");
    fake.remove("/dev/serial/by-id/usb-stick");
    until_numbers(&manager, (1, 0)).await;
    manager.release("one").await;
    until_numbers(&manager, (0, 0)).await;
    tasks.shutdown().request();
}

#[tokio::test]
async fn a_pod_keeps_its_device_when_the_agent_restarts() {
    let (root, fake) = (tempfile::tempdir().unwrap(), FakeTree::new());
    fake.file("/dev/fuse", "");
    let pod = pod_with("one");
    let (manager, tasks) = started(root.path(), &fake, &["path:/dev/fuse=test"]).await;
    admit(&manager, &pod).await;
    tasks.shutdown().request();
    tasks.drain(LIMIT).await;
    drop(manager);
    // More containers share the device from now on.
    let (manager, tasks) = started(root.path(), &fake, &["path:/dev/fuse=test,count=2"]).await;
    assert_eq!(numbers(&manager).await, (2, 2));
    admit(&manager, &pod).await;
    assert_eq!(manager.allocated(RESOURCE), ["fuse".to_owned()].into());
    let other = pod_with("two");
    admit(&manager, &other).await;
    assert_eq!(
        nodes(&manager, &other).await.unwrap(),
        ["/dev/test /dev/fuse", "/dev/fuse /dev/fuse"]
    );
    tasks.shutdown().request();
    tasks.drain(LIMIT).await;
    drop(manager);
    // A device that was unplugged meanwhile is unhealthy.
    fake.remove("/dev/fuse");
    let (manager, tasks) = started(root.path(), &fake, &["path:/dev/fuse=test,count=2"]).await;
    assert_eq!(numbers(&manager).await, (2, 0));
    assert_eq!(health(&manager, "two"), "fuse::1 Unhealthy");
    tasks.shutdown().request();
}

#[tokio::test]
async fn no_other_plugin_gets_the_resource() {
    use proto::deviceplugin::RegisterRequest;
    use proto::deviceplugin::registration_client::RegistrationClient;
    let (root, fake) = (tempfile::tempdir().unwrap(), FakeTree::new());
    let (manager, tasks) = started(root.path(), &fake, &["path:/dev/fuse=test"]).await;
    assert_eq!(numbers(&manager).await, (0, 0));
    let request = RegisterRequest {
        version: "v1beta1".to_owned(),
        endpoint: "other.sock".to_owned(),
        resource_name: RESOURCE.to_owned(),
        options: None,
    };
    let socket = root.path().join("device-plugins/kubelet.sock");
    let refused = RegistrationClient::new(channel(&socket)).register(request).await.unwrap_err();
    assert_eq!(
        refused.message(),
        "the devices of \"devices.kube-lite.io/test\" are those of --device; remove the flag or \
         the plugin"
    );
    tasks.shutdown().request();
}
