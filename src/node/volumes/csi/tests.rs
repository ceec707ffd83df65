//! The life of CSI volumes with a driver over a socket.

mod expansion;
mod labels;
mod unstaging;
mod usage;

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1 as core;
use base::{Kind, Shutdown, Tasks};
use client::{Client, Informers};
use proto::csi::v1 as csi;
use proto::csi::v1::node_service_capability::rpc;
use serde_json::{Value, json};
use tokio::sync::watch;
use tonic::Code;

use super::fake::{FakeApi, FakeDriver};
use crate::cgroups::Cgroups;
use crate::config::Config;
use crate::context::{ApiHandles, Node, NodeCaches, NodeIdentity, RuntimeHandles};
use crate::csi::{Csi, CsiPluginHandler};
use crate::devices::DeviceManager;
use crate::dynamic_resources::DynamicResources;
use crate::machine::Machine;
use crate::plugins::{self, PluginHandlers};
use crate::pods::admission::supported_fields::{NodeFeatures, SelinuxFeatures};
use crate::pods::handle::DesiredPod;
use crate::pods::pod::{Pod, PodOrigin};
use crate::resource_managers::ResourceManagers;
use crate::runtime::fake::FakeRuntime;
use crate::runtime::{RuntimeFeatures, RuntimeVersion};
use crate::user_namespaces::UserNamespaces;
use crate::volumes::scsi::Scsi;
use crate::volumes::selinux::Selinux;
use crate::volumes::{self, PodVolumes, VolumeError};

const NODE: &str = "/api/v1/nodes/n";
const CLAIM: &str = "/api/v1/namespaces/d/persistentvolumeclaims/data";
const CSI_NODE: &str = "/apis/storage.k8s.io/v1/csinodes/n";
/// How long a step of a test may take.
const WAIT: Duration = Duration::from_secs(30);

/// A node with a driver.
struct Fixture {
    home: tempfile::TempDir,
    tasks: Tasks,
    api: FakeApi,
    node: Arc<Node>,
    driver: FakeDriver,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.tasks.shutdown().request();
    }
}

impl Fixture {
    /// A node whose driver is registered. `spec` is that of the CSIDriver object, null for none.
    async fn new(capabilities: &[rpc::Type], spec: Value) -> Self {
        Self::with_selinux(capabilities, spec, Selinux::default()).await
    }

    /// As [`Self::new`], with the labels of a kernel.
    async fn with_selinux(capabilities: &[rpc::Type], spec: Value, selinux: Selinux) -> Self {
        let home = tempfile::tempdir().unwrap();
        let tasks = Tasks::new(Shutdown::new());
        let api = FakeApi::default();
        api.put(
            NODE,
            json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "n", "uid": "node-uid"}}),
        );
        if !spec.is_null() {
            api.put(
                "/apis/storage.k8s.io/v1/csidrivers/d.example.com",
                json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
                    "metadata": {"name": "d.example.com"}, "spec": spec}),
            );
        }
        let node = Self::node(home.path(), &api, &tasks, selinux).await;
        let socket = home.path().join("csi.sock");
        let driver = FakeDriver::serve(&tasks, "d.example.com", &socket, capabilities);
        let registry = node.identity.config.root_dir.join("plugins_registry");
        std::fs::create_dir_all(&registry).unwrap();
        let handlers: PluginHandlers = vec![Arc::new(CsiPluginHandler::new(&node.csi, &tasks))];
        let (problems, shutdown) = (tasks.problems().clone(), tasks.shutdown().clone());
        let run = plugins::run(registry.clone(), handlers, problems, shutdown);
        tasks.spawn(Kind::Request, "plugins", run);
        driver.listen(&tasks, &registry.join("d.example.com-reg.sock"));
        let status = tokio::time::timeout(WAIT, driver.next_registration()).await.unwrap();
        assert!(status.plugin_registered, "{}", status.error);
        driver.take_calls();
        Self { home, tasks, api, node, driver }
    }

    async fn node(home: &Path, api: &FakeApi, tasks: &Tasks, selinux: Selinux) -> Arc<Node> {
        let client = Client::new(Arc::new(api.clone()), "test");
        let informers = Informers::new(client.clone(), tasks.clone());
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let mut config = Config::new("n", address, home.join("data"), home.join("run"));
        config.root_dir = home.join("kubelet");
        let caches = NodeCaches::new(&client, tasks, [].into(), &config).await;
        let status_changed = Arc::clone(&caches.status_changed);
        let (runtime, _) = FakeRuntime::new(1, tasks.clone());
        let version = RuntimeVersion { name: "fake".to_owned(), version: "1".to_owned() };
        let cgroups = Cgroups::in_folder(home.join("cgroup"));
        let runtime =
            RuntimeHandles::new(Arc::new(runtime), version, Arc::default(), cgroups, &config);
        Arc::new(Node {
            tasks: tasks.clone(),
            runtime,
            csi: Csi::new(&client, &informers, informers.of(), &config, status_changed),
            scsi: Scsi::new(&client, &config),
            selinux: Arc::new(selinux),
            api: ApiHandles::new(&client, &informers, informers.of(), &config, tasks),
            dynamic_resources: DynamicResources::without_claims(
                &client,
                informers.of(),
                &config,
                tasks,
            ),
            caches,
            devices: Arc::new(DeviceManager::new(&config.root_dir, tasks)),
            resource_managers: Arc::new(ResourceManagers::inactive(&config.root_dir)),
            user_namespaces: UserNamespaces::empty(&config.root_dir),
            identity: NodeIdentity {
                config,
                machine: Machine::read(),
                features: NodeFeatures::new(RuntimeFeatures::default(), SelinuxFeatures::default()),
            },
        })
    }

    /// Stores a bound volume `pv` with a claim.
    fn put_volume(&self, spec: Value) {
        let mut spec = spec;
        spec["csi"]["driver"] = "d.example.com".into();
        spec["csi"]["volumeHandle"] = "handle".into();
        self.api.put(
            "/api/v1/persistentvolumes/pv",
            json!({"apiVersion": "v1",
            "kind": "PersistentVolume", "metadata": {"name": "pv"}, "spec": spec}),
        );
        self.api.put(
            CLAIM,
            json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "namespace": "d"},
            "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}}),
        );
    }

    /// Has the attach/detach controller attach the volume.
    async fn attach(&self) {
        let name = "kubernetes.io/csi/d.example.com^handle";
        let mut node = self.api.get(NODE).unwrap();
        node["status"] = json!({"volumesAttached": [{"name": name, "devicePath": ""}]});
        self.api.put(NODE, node);
        let attachment = crate::csi::paths::attachment_name("handle", "d.example.com", "n");
        self.api.put(
            &format!("/apis/storage.k8s.io/v1/volumeattachments/{attachment}"),
            json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
                "metadata": {"name": attachment},
                "spec": {"attacher": "d.example.com", "nodeName": "n", "source": {}},
                "status": {"attached": true, "attachmentMetadata": {"device": "1"}}}),
        );
        let is_known = || {
            let node = self.node.api.own_node.get("", "n");
            node.is_some_and(|node| crate::csi::attachment::attached(&node).count() == 1)
        };
        until(is_known).await;
    }

    fn report_volumes_in_use(&self) {
        let volumes = self.node.csi.volumes_in_use();
        let status = core::NodeStatus { volumes_in_use: Some(volumes), ..Default::default() };
        self.node.csi.on_node_status(Some(&status));
    }

    async fn set_up(&self, pod: &Arc<Pod>) -> Result<PodVolumes, VolumeError> {
        let desired = DesiredPod::new(Arc::clone(pod));
        let (_sender, desired) = watch::channel(desired);
        volumes::set_up(&self.node, pod, &[], &desired).await
    }

    fn pod_dir(&self, uid: &str) -> PathBuf {
        self.node.identity.config.pod_dir(uid)
    }

    fn staging_dir(&self) -> PathBuf {
        let root = self.home.path().join("kubelet");
        crate::csi::paths::staging_path(&root, "d.example.com", "handle")
            .parent()
            .unwrap()
            .to_owned()
    }
}

async fn until(condition: impl Fn() -> bool) {
    let waited = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(WAIT, waited).await.unwrap();
}

fn pod_with(uid: &str, volume: Value) -> Arc<Pod> {
    let mut volume = volume;
    volume["name"] = "v".into();
    let object = json!({"metadata": {"name": format!("pod-{uid}"), "namespace": "d", "uid": uid},
        "spec": {"serviceAccountName": "robot", "securityContext": {"fsGroup": 3000},
            "containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
            "volumes": [volume]}});
    Arc::new(Pod::new(serde_json::from_value(object).unwrap(), PodOrigin::Api).unwrap())
}

fn claiming(uid: &str) -> Arc<Pod> {
    pod_with(uid, json!({"persistentVolumeClaim": {"claimName": "data"}}))
}

#[tokio::test]
async fn a_registered_driver_is_shown_in_the_api_until_its_socket_is_gone() {
    let fixture = Fixture::new(&[], Value::Null).await;
    let node = fixture.api.get(NODE).unwrap();
    assert_eq!(
        node["metadata"]["annotations"]["csi.volume.kubernetes.io/nodeid"],
        "{\"d.example.com\":\"id-of-node\"}"
    );
    assert_eq!(node["metadata"]["labels"], json!({"example.com/zone": "a"}));
    let csi_node = fixture.api.get(CSI_NODE).unwrap();
    assert_eq!(csi_node["metadata"]["ownerReferences"][0]["uid"], "node-uid");
    assert_eq!(
        csi_node["spec"]["drivers"],
        json!([{"name": "d.example.com", "nodeID": "id-of-node",
            "topologyKeys": ["example.com/zone"], "allocatable": {"count": 7}}])
    );
    let registry = fixture.home.path().join("kubelet/plugins_registry");
    std::fs::remove_file(registry.join("d.example.com-reg.sock")).unwrap();
    until(|| fixture.api.get(CSI_NODE).unwrap()["spec"]["drivers"] == json!([])).await;
    until(|| fixture.api.get(NODE).unwrap()["metadata"]["annotations"] == json!({})).await;
    assert!(fixture.node.csi.drivers.client("d.example.com").is_err());
}

#[tokio::test]
async fn a_volume_is_attached_staged_and_published_and_torn_down_in_reverse() {
    let fixture = Fixture::new(&[rpc::Type::StageUnstageVolume], Value::Null).await;
    fixture.put_volume(json!({"csi": {"volumeAttributes": {"share": "s"}},
        "accessModes": ["ReadWriteMany"], "mountOptions": ["noatime"]}));
    let (first, second) = (claiming("a"), claiming("b"));
    let waits = |outcome: Result<PodVolumes, VolumeError>| {
        let error = outcome.unwrap_err();
        assert_eq!(error.reason(), None, "it is no event");
        error.to_string()
    };
    assert_eq!(
        waits(fixture.set_up(&first).await),
        "Volume has not been added to the list of VolumesInUse in the node's volume status for \
         volume \"pv\" "
    );
    let in_use = ["kubernetes.io/csi/d.example.com^handle"];
    assert_eq!(fixture.node.csi.volumes_in_use(), in_use);
    fixture.report_volumes_in_use();
    assert_eq!(
        waits(fixture.set_up(&first).await),
        "Volume not attached according to node status for volume \"pv\" "
    );
    fixture.attach().await;
    let target = fixture.pod_dir("a").join("volumes/kubernetes.io~csi/pv/mount");
    let volumes = fixture.set_up(&first).await.unwrap();
    assert_eq!(volumes.paths["v"].path, target);
    let calls = fixture.driver.take_calls();
    let methods: Vec<&str> = calls.iter().map(|c| c.method.as_str()).collect();
    assert_eq!(methods, ["NodeStageVolume", "NodePublishVolume"]);
    let staged: csi::NodeStageVolumeRequest = calls[0].decode();
    let staging = fixture.staging_dir();
    assert_eq!(staged.staging_target_path, staging.join("globalmount").to_string_lossy());
    assert_eq!(staged.publish_context, [("device".to_owned(), "1".to_owned())].into());
    let published: csi::NodePublishVolumeRequest = calls[1].decode();
    assert_eq!(published.target_path, target.to_string_lossy());
    assert_eq!(published.staging_target_path, staged.staging_target_path);
    assert_eq!(published.volume_context, [("share".to_owned(), "s".to_owned())].into());
    assert_eq!(published.volume_capability, staged.volume_capability);
    // The second pod, and a container of the first one that starts again.
    fixture.set_up(&second).await.unwrap();
    fixture.set_up(&first).await.unwrap();
    assert_eq!(fixture.driver.take_methods(), ["NodePublishVolume"]);
    // An earlier process of the agent published them, and mounted nothing.
    fixture.node.csi.published.lock().clear();
    fixture.node.csi.staged.lock().clear();
    volumes::tear_down(&fixture.node, "a").await.unwrap();
    assert_eq!(fixture.driver.take_methods(), ["NodeUnpublishVolume"]);
    assert!(!fixture.pod_dir("a").exists() && staging.exists());
    assert_eq!(fixture.node.csi.volumes_in_use(), in_use);
    volumes::tear_down(&fixture.node, "b").await.unwrap();
    assert!(!fixture.pod_dir("b").exists());
    until(|| fixture.node.csi.volumes_in_use().is_empty()).await;
    assert_eq!(fixture.driver.take_methods(), ["NodeUnpublishVolume", "NodeUnstageVolume"]);
    assert!(!staging.exists());
}

#[tokio::test]
async fn a_volume_is_not_in_use_once_its_driver_requires_no_attachment() {
    let driver = |attach: bool| {
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
            "metadata": {"name": "d.example.com"},
            "spec": {"attachRequired": attach, "volumeLifecycleModes": ["Persistent"]}})
    };
    let path = "/apis/storage.k8s.io/v1/csidrivers/d.example.com";
    for is_published in [false, true] {
        let fixture = Fixture::new(&[], Value::Null).await;
        fixture.put_volume(json!({}));
        let pod = claiming("a");
        fixture.set_up(&pod).await.unwrap_err();
        fixture.report_volumes_in_use();
        if is_published {
            fixture.attach().await;
            fixture.set_up(&pod).await.unwrap();
        }
        let in_use = || fixture.node.csi.volumes_in_use();
        fixture.api.put(path, driver(true));
        assert_eq!(in_use().len(), 1);
        fixture.api.put(path, driver(false));
        until(|| in_use().is_empty()).await;
        let changed = fixture.node.caches.status_changed.notified();
        tokio::time::timeout(WAIT, changed).await.unwrap();
        // The pod needs no VolumeAttachment any more.
        fixture.set_up(&pod).await.unwrap();
        assert!(in_use().is_empty());
        volumes::tear_down(&fixture.node, "a").await.unwrap();
    }
}

#[tokio::test]
async fn a_failed_publication_leaves_nothing_and_an_uncertain_one_is_undone() {
    let not_attached = json!({"attachRequired": false, "volumeLifecycleModes": ["Persistent"]});
    let fixture = Fixture::new(&[rpc::Type::StageUnstageVolume], not_attached).await;
    fixture.put_volume(json!({}));
    let pod = claiming("a");
    let volume = fixture.pod_dir("a").join("volumes/kubernetes.io~csi/pv");
    fixture.driver.fail("NodePublishVolume", Some(Code::InvalidArgument));
    let error = fixture.set_up(&pod).await.unwrap_err();
    assert_eq!(error.reason(), Some("FailedMount"));
    assert_eq!(
        error.to_string(),
        "MountVolume.SetUp failed for volume \"pv\" : rpc error: code = InvalidArgument desc = \
         NodePublishVolume fails"
    );
    assert!(!volume.exists());
    fixture.driver.take_calls();
    // The volume stays staged for the next attempt.
    fixture.driver.fail("NodePublishVolume", Some(Code::DeadlineExceeded));
    fixture.set_up(&pod).await.unwrap_err();
    assert!(volume.join("vol_data.json").exists());
    assert_eq!(fixture.driver.take_methods(), ["NodePublishVolume"]);
    fixture.driver.fail("NodeUnpublishVolume", Some(Code::Internal));
    let error = volumes::tear_down(&fixture.node, "a").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "UnmountVolume.TearDown failed for volume \"pv\" : kubernetes.io/csi: \
         Unmounter.TearDownAt failed: rpc error: code = Internal desc = NodeUnpublishVolume fails"
    );
    assert!(volume.join("vol_data.json").exists());
    assert_eq!(fixture.tasks.problems().list().len(), 1);
    fixture.driver.fail("NodeUnpublishVolume", None);
    volumes::tear_down(&fixture.node, "a").await.unwrap();
    assert!(!fixture.pod_dir("a").exists());
    until(|| !fixture.staging_dir().exists()).await;
    assert!(fixture.tasks.problems().list().is_empty());
    let last = fixture.driver.take_methods();
    assert_eq!(last, ["NodeUnpublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"]);
}

#[tokio::test]
async fn a_failed_stage_is_not_undone_and_an_uncertain_one_is() {
    let not_attached = json!({"attachRequired": false, "volumeLifecycleModes": ["Persistent"]});
    let fixture = Fixture::new(&[rpc::Type::StageUnstageVolume], not_attached).await;
    fixture.put_volume(json!({}));
    for (code, expected) in
        [(Code::InvalidArgument, &[][..]), (Code::Aborted, &["NodeUnstageVolume"][..])]
    {
        fixture.driver.fail("NodeStageVolume", Some(code));
        let error = fixture.set_up(&claiming("a")).await.unwrap_err().to_string();
        let begin = "MountVolume.MountDevice failed for volume \"pv\" : rpc error: code = ";
        assert!(error.starts_with(begin), "{error}");
        fixture.driver.take_calls();
        volumes::tear_down(&fixture.node, "a").await.unwrap();
        assert!(!fixture.pod_dir("a").exists());
        until(|| !fixture.staging_dir().exists()).await;
        assert_eq!(fixture.driver.take_methods(), expected, "{code:?}");
    }
}

#[tokio::test]
async fn an_inline_volume_gets_pod_information_and_tokens_again_and_again() {
    let spec = json!({"volumeLifecycleModes": ["Ephemeral"], "podInfoOnMount": true,
        "requiresRepublish": true, "tokenRequests": [{"audience": "vault"}],
        "fsGroupPolicy": "None"});
    let fixture = Fixture::new(&[rpc::Type::VolumeMountGroup], spec).await;
    let source = json!({"driver": "d.example.com", "volumeAttributes": {"a": "b"}});
    let pod = pod_with("a", json!({"csi": source}));
    let volumes = fixture.set_up(&pod).await.unwrap();
    assert!(volumes.refresh_at.is_some());
    let calls = fixture.driver.take_calls();
    let published: csi::NodePublishVolumeRequest = calls[0].decode();
    let of = |key: &str| published.volume_context.get(key).map(String::as_str);
    assert_eq!(of("csi.storage.k8s.io/ephemeral"), Some("true"));
    assert_eq!(of("csi.storage.k8s.io/pod.name"), Some("pod-a"));
    assert_eq!(of("a"), Some("b"));
    assert_eq!(
        of("csi.storage.k8s.io/serviceAccount.tokens"),
        Some("{\"vault\":{\"expirationTimestamp\":\"2026-01-01T00:00:00Z\",\"token\":\"t\"}}")
    );
    let Some(csi::volume_capability::AccessType::Mount(mount)) =
        published.volume_capability.and_then(|c| c.access_type)
    else {
        panic!("not mounted");
    };
    assert_eq!(mount.volume_mount_group, "3000");
    // It is published again after a while only; a failure leaves the volume as it is.
    fixture.set_up(&pod).await.unwrap();
    assert!(fixture.driver.take_calls().is_empty());
    let long_ago = base::clock::now() - Duration::from_secs(120);
    fixture.node.csi.published.lock().values_mut().for_each(|at| *at = long_ago);
    fixture.driver.fail("NodePublishVolume", Some(Code::InvalidArgument));
    fixture.set_up(&pod).await.unwrap();
    assert_eq!(fixture.driver.take_methods(), ["NodePublishVolume"]);
    assert!(fixture.pod_dir("a").join("volumes/kubernetes.io~csi/v/mount").exists());
    // A pod that completed releases its volumes, and keeps its directory.
    volumes::tear_down::release(&fixture.node, "a").await.unwrap();
    assert_eq!(fixture.driver.take_methods(), ["NodeUnpublishVolume"]);
    assert!(fixture.pod_dir("a").exists());
    volumes::tear_down::release(&fixture.node, "a").await.unwrap();
    assert!(fixture.driver.take_methods().is_empty());
}

#[tokio::test]
async fn a_driver_that_is_not_registered_is_named() {
    let fixture = Fixture::new(&[], json!({"volumeLifecycleModes": ["Ephemeral"]})).await;
    let pod = pod_with("a", json!({"csi": {"driver": "other.example.com"}}));
    assert_eq!(
        fixture.set_up(&pod).await.unwrap_err().to_string(),
        "MountVolume.SetUp failed for volume \"v\" : kubernetes.io/csi: mounter.SetupAt failed to \
         check volume lifecycle mode: volume mode \"Ephemeral\" not supported by driver \
         other.example.com (no CSIDriver object)"
    );
    let known = pod_with("a", json!({"csi": {"driver": "d.example.com"}}));
    fixture.set_up(&known).await.unwrap();
    fixture.node.csi.drivers.remove("d.example.com", &fixture.home.path().join("csi.sock"));
    fixture.node.csi.published.lock().clear();
    assert_eq!(
        fixture.set_up(&known).await.unwrap_err().to_string(),
        "MountVolume.SetUp failed for volume \"v\" : kubernetes.io/csi: mounter.SetUpAt failed to \
         get CSI client: driver name d.example.com not found in the list of registered CSI drivers"
    );
    let error = volumes::tear_down(&fixture.node, "a").await.unwrap_err().to_string();
    assert!(error.contains("Unmounter.TearDownAt failed to get CSI client"), "{error}");
}
