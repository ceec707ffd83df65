//! The whole loop against an API that stores objects: informers, worker, requests.

use std::collections::BTreeMap;
use std::time::Duration;

use api::{Gvr, Object, WatchEvent};
use async_trait::async_trait;
use base::{Shutdown, Tasks};
use bytes::Bytes;
use client::{Client, Error, EventRecorder, Informers, Scope, Transport, WatchStream};
use http::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;

mod migrated;
mod scsi;

const VOLUME: &str = "kubernetes.io/csi/csi.example.com^vol-1";
/// Most events of a watch in these tests.
const EVENTS_MAX: usize = 256;

/// An object by resource and `<namespace>/<name>`.
type StoredKey = (String, String);

#[derive(Debug, Default)]
struct Store {
    objects: BTreeMap<StoredKey, Value>,
    watchers: Vec<(Gvr, mpsc::Sender<WatchEvent>)>,
    revision: i64,
    /// Requests other than events, in order: `POST volumeattachments`.
    requests: Vec<String>,
    events: Vec<String>,
    /// Lists of nodes are not written.
    refuses_patches: bool,
}

/// An API server with external-attacher's finalizer.
#[derive(Debug, Default)]
struct FakeApi(Mutex<Store>);

/// The resource, and namespace and name of a path; subresources are left out.
fn parts(path: &str) -> (String, String) {
    let mut parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let skipped = if parts[0] == "api" { 2 } else { 3 };
    parts.drain(..skipped);
    let namespace = if parts[0] == "namespaces" && parts.len() > 2 {
        parts.drain(..2).nth(1).unwrap_or_default().to_owned()
    } else {
        String::new()
    };
    let name = parts.get(1).copied().unwrap_or_default();
    (parts[0].to_owned(), format!("{namespace}/{name}"))
}

fn stored_key(resource: &str, object: &Value) -> StoredKey {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (resource.to_owned(), format!("{}/{}", text("namespace"), text("name")))
}

fn merge(target: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (field, value) in patch {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(field);
        } else {
            merge(&mut target[field], value);
        }
    }
}

impl Store {
    fn notify(&mut self, resource: &str, event: &WatchEvent) {
        for (gvr, watcher) in &self.watchers {
            if &*gvr.resource == resource {
                watcher.try_send(event.clone()).unwrap();
            }
        }
    }

    fn object(value: &Value) -> Arc<Object> {
        Arc::new(Object::from_value(value.clone()).unwrap())
    }

    fn put(&mut self, resource: &str, mut object: Value) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        let old = self.objects.insert(stored_key(resource, &object), object.clone());
        let new = Self::object(&object);
        let event = if old.is_some() { WatchEvent::Modified(new) } else { WatchEvent::Added(new) };
        self.notify(resource, &event);
        object
    }

    fn remove(&mut self, resource: &str, name: &str) {
        let Some(mut object) = self.objects.remove(&(resource.into(), name.into())) else { return };
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        self.notify(resource, &WatchEvent::Deleted(Self::object(&object)));
    }

    fn handle(&mut self, method: &Method, path: &str, body: &[u8]) -> Result<Value, u16> {
        let (resource, name) = parts(path);
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        if resource == "events" {
            if method == Method::POST {
                let text = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
                self.events.push(format!("{} {}", text("reason"), text("message")));
            }
            return Ok(body);
        }
        self.requests.push(format!("{method} {resource}"));
        let found = self.objects.get(&(resource.clone(), name.clone())).cloned();
        match *method {
            Method::GET => found.ok_or(404),
            Method::POST if self.objects.contains_key(&stored_key(&resource, &body)) => Err(409),
            Method::POST => {
                let mut object = body;
                object["metadata"]["finalizers"] = json!(["external-attacher/csi-example-com"]);
                Ok(self.put(&resource, object))
            }
            Method::PATCH if self.refuses_patches => Err(500),
            Method::PATCH => {
                let mut object = found.ok_or(404_u16)?;
                merge(&mut object, &body);
                Ok(self.put(&resource, object))
            }
            Method::DELETE => {
                let mut object = found.ok_or(404_u16)?;
                object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                Ok(self.put(&resource, object))
            }
            _ => Err(405),
        }
    }
}

#[async_trait]
impl Transport for FakeApi {
    async fn call(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Error> {
        let path = request.uri().path().to_owned();
        let result = self.0.lock().handle(request.method(), &path, request.body());
        let mut answer = Response::default();
        match result {
            Ok(object) => *answer.body_mut() = object.to_string().into(),
            Err(code) => {
                let reason = match code {
                    404 => "NotFound",
                    409 => "AlreadyExists",
                    _ => "InternalError",
                };
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                    "metadata": {}, "code": code, "reason": reason, "message": "refused"});
                *answer.status_mut() = StatusCode::from_u16(code).unwrap();
                *answer.body_mut() = status.to_string().into();
            }
        }
        Ok(answer)
    }

    async fn watch(&self, scope: &Scope, _: Option<i64>) -> Result<WatchStream, Error> {
        let (sender, stream) = mpsc::channel(EVENTS_MAX);
        let mut store = self.0.lock();
        for ((resource, _), object) in &store.objects {
            if **resource == *scope.gvr.resource {
                sender.try_send(WatchEvent::Added(Store::object(object))).unwrap();
            }
        }
        let revision = store.revision;
        sender.try_send(WatchEvent::Bookmark { revision, initial: true }).unwrap();
        store.watchers.push((scope.gvr.clone(), sender));
        Ok(stream)
    }
}

/// A cluster with a running controller.
struct Cluster {
    api: Arc<FakeApi>,
    tasks: Tasks,
}

impl Cluster {
    fn start(objects: Vec<(&str, Value)>) -> Self {
        let api = Arc::new(FakeApi::default());
        for (resource, object) in objects {
            api.0.lock().put(resource, object);
        }
        let tasks = Tasks::new(Shutdown::new());
        let transport: Arc<dyn Transport> = Arc::clone(&api) as _;
        let client = Client::new(transport, ACCOUNT);
        let informers = Informers::new(client.clone(), tasks.clone());
        let recorder = EventRecorder::new(client.clone(), ACCOUNT, "", &tasks);
        Controller::new(client, recorder, &informers, true).run(&tasks);
        Self { api, tasks }
    }

    fn put(&self, resource: &str, object: Value) {
        self.api.0.lock().put(resource, object);
    }

    fn edit(&self, resource: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let mut store = self.api.0.lock();
        let mut object = store.objects[&(resource.to_owned(), name.to_owned())].clone();
        change(&mut object);
        store.put(resource, object);
    }

    fn remove(&self, resource: &str, name: &str) {
        self.api.0.lock().remove(resource, name);
    }

    fn get(&self, resource: &str, name: &str) -> Option<Value> {
        self.api.0.lock().objects.get(&(resource.to_owned(), name.to_owned())).cloned()
    }

    fn attachment(&self, node: &str) -> Option<Value> {
        self.get("volumeattachments", &attachment_key(node))
    }

    /// external-attacher attaches the volume.
    fn attach(&self, node: &str) {
        self.edit("volumeattachments", &attachment_key(node), |attachment| {
            attachment["status"] = json!({"attached": true});
        });
    }

    fn listed(&self, node: &str) -> Value {
        self.get("nodes", &format!("/{node}")).unwrap()["status"]["volumesAttached"].clone()
    }

    fn use_volume(&self, node: &str, is_used: bool) {
        self.edit("nodes", &format!("/{node}"), |node| {
            node["status"]["volumesInUse"] = if is_used { json!([VOLUME]) } else { json!([]) };
        });
    }

    /// Takes what was requested since the last time, once nothing more happens.
    async fn requests(&self) -> Vec<String> {
        tokio::time::sleep(Duration::from_millis(100)).await;
        std::mem::take(&mut self.api.0.lock().requests)
    }

    fn events(&self) -> Vec<String> {
        std::mem::take(&mut self.api.0.lock().events)
    }

    async fn stop(self) {
        self.tasks.shutdown().request();
        self.tasks.drain(Duration::from_secs(5)).await;
    }
}

fn attachment_key(node: &str) -> String {
    format!("/{}", VolumeName::parse(VOLUME).unwrap().attachment(node))
}

fn node(name: &str) -> (&'static str, Value) {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": name,
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    ("nodes", node)
}

fn pod(name: &str, node: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "a", "uid": name},
        "spec": {"nodeName": node, "containers": [], "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "inline", "csi": {"driver": "csi.example.com"}}]},
        "status": {"phase": "Pending"}})
}

fn claim() -> (&'static str, Value) {
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "a", "uid": "claim"},
        "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}});
    ("persistentvolumeclaims", claim)
}

fn volume() -> (&'static str, Value) {
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": "pv", "uid": "pv"},
        "spec": {"accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "csi.example.com", "volumeHandle": "vol-1"},
            "claimRef": {"namespace": "a", "name": "data", "uid": "claim"}}});
    ("persistentvolumes", volume)
}

fn base_objects() -> Vec<(&'static str, Value)> {
    vec![node("n1"), node("n2"), claim(), volume()]
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_attached_for_a_pod_and_detached_after_it() {
    let cluster = Cluster::start(base_objects());
    assert!(cluster.requests().await.is_empty(), "an idle cluster");
    // A pod is scheduled.
    cluster.put("pods", pod("p", "n1"));
    assert_eq!(cluster.requests().await, ["POST volumeattachments"]);
    assert_eq!(
        cluster.attachment("n1").unwrap()["spec"],
        json!({"attacher": "csi.example.com", "nodeName": "n1",
            "source": {"persistentVolumeName": "pv"}})
    );
    assert!(cluster.listed("n1").is_null());
    // external-attacher attaches the volume.
    cluster.attach("n1");
    assert_eq!(cluster.requests().await, ["PATCH nodes"]);
    assert_eq!(cluster.listed("n1"), json!([{"name": VOLUME, "devicePath": ""}]));
    let success = "SuccessfulAttachVolume AttachVolume.Attach succeeded for volume \"pv\" ";
    assert_eq!(cluster.events(), [success]);
    // The pod runs and is deleted; its volume is still mounted.
    cluster.use_volume("n1", true);
    cluster.remove("pods", "a/p");
    assert!(cluster.requests().await.is_empty());
    // The kubelet has unmounted it.
    cluster.use_volume("n1", false);
    assert_eq!(cluster.requests().await, ["PATCH nodes", "GET nodes", "DELETE volumeattachments"]);
    assert!(cluster.listed("n1").is_null());
    assert!(cluster.attachment("n1").is_some(), "the driver detaches it");
    cluster.remove("volumeattachments", &attachment_key("n1"));
    assert!(cluster.requests().await.is_empty());
    assert!(cluster.events().is_empty());
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_exclusive_volume_moves_to_another_node() {
    let cluster = Cluster::start(base_objects());
    cluster.put("pods", pod("p", "n1"));
    cluster.requests().await;
    cluster.attach("n1");
    cluster.requests().await;
    cluster.put("pods", pod("q", "n2"));
    assert!(cluster.requests().await.is_empty());
    assert_eq!(
        cluster.events()[1..],
        ["FailedAttachVolume Waiting for detach for volume \"pv\" Volume is already used by \
          pod(s) p"]
    );
    cluster.remove("pods", "a/p");
    let detach = ["PATCH nodes", "GET nodes", "DELETE volumeattachments"];
    assert_eq!(cluster.requests().await, detach);
    cluster.remove("volumeattachments", &attachment_key("n1"));
    assert_eq!(cluster.requests().await, ["POST volumeattachments"]);
    cluster.attach("n2");
    assert_eq!(cluster.requests().await, ["PATCH nodes"]);
    assert!(cluster.listed("n1").is_null() && cluster.listed("n2").is_array());
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_detached_while_the_list_cannot_be_written() {
    let cluster = Cluster::start(base_objects());
    cluster.put("pods", pod("p", "n1"));
    cluster.requests().await;
    cluster.attach("n1");
    cluster.requests().await;
    cluster.api.0.lock().refuses_patches = true;
    cluster.remove("pods", "a/p");
    let requests = cluster.requests().await;
    assert!(!requests.is_empty() && requests.iter().all(|r| r == "PATCH nodes"), "{requests:?}");
    cluster.api.0.lock().refuses_patches = false;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let requests = cluster.requests().await;
    assert_eq!(requests.last().unwrap(), "DELETE volumeattachments");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_chain_of_pod_claim_and_volume_may_appear_in_any_order() {
    let pod = || ("pods", pod("p", "n1"));
    for order in [
        [pod(), claim(), volume(), node("n1")],
        [node("n1"), volume(), claim(), pod()],
        [claim(), pod(), node("n1"), volume()],
        [volume(), node("n1"), pod(), claim()],
    ] {
        let cluster = Cluster::start(Vec::new());
        for (resource, object) in order {
            assert!(cluster.requests().await.is_empty());
            cluster.put(resource, object);
        }
        assert_eq!(cluster.requests().await, ["POST volumeattachments"]);
        cluster.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn volumes_that_are_not_to_be_attached_are_left_alone() {
    let mut unmanaged = node("n1").1;
    unmanaged["metadata"]["annotations"] = json!({});
    let driver = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
        "metadata": {"name": "csi.example.com"}, "spec": {"attachRequired": false}});
    let mut in_tree = volume().1;
    in_tree["spec"]["csi"] = Value::Null;
    in_tree["spec"]["nfs"] = json!({"server": "s", "path": "/"});
    let mut lost = claim().1;
    lost["status"]["phase"] = "Lost".into();
    for (resource, object) in [
        ("nodes", unmanaged),
        ("csidrivers", driver),
        ("persistentvolumes", in_tree),
        ("persistentvolumeclaims", lost),
    ] {
        let cluster = Cluster::start(base_objects());
        cluster.put(resource, object);
        cluster.put("pods", pod("p", "n1"));
        assert!(cluster.requests().await.is_empty(), "{resource}");
        cluster.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_continues_with_what_it_finds() {
    let attachment = |node: &str, attached: bool| {
        let name = &attachment_key(node)[1..];
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
            "metadata": {"name": name, "uid": node},
            "spec": {"attacher": "csi.example.com", "nodeName": node,
                "source": {"persistentVolumeName": "pv"}},
            "status": {"attached": attached}})
    };
    for attached in [true, false] {
        // Nothing needs the volume; the node never listed it.
        let mut objects = base_objects();
        objects.push(("volumeattachments", attachment("n1", attached)));
        let cluster = Cluster::start(objects);
        let detach = ["PATCH nodes", "GET nodes", "DELETE volumeattachments"];
        assert_eq!(cluster.requests().await, detach);
        cluster.stop().await;
    }
    // The pod runs: nothing is to be done.
    let mut objects = base_objects();
    objects.push(("volumeattachments", attachment("n1", true)));
    objects.push(("pods", pod("p", "n1")));
    objects[0].1["status"]["volumesAttached"] = json!([{"name": VOLUME, "devicePath": ""}]);
    let cluster = Cluster::start(objects);
    assert!(cluster.requests().await.is_empty() && cluster.events().is_empty());
    // The node registers again, without its list.
    cluster.remove("nodes", "/n1");
    assert!(cluster.requests().await.is_empty());
    let (resource, again) = node("n1");
    cluster.put(resource, again);
    assert_eq!(cluster.requests().await, ["PATCH nodes"]);
    assert_eq!(cluster.listed("n1"), json!([{"name": VOLUME, "devicePath": ""}]));
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_node_loses_what_it_did_not_use() {
    for (is_used, wait) in [(false, 0), (true, 360)] {
        let cluster = Cluster::start(base_objects());
        cluster.put("pods", pod("p", "n1"));
        cluster.requests().await;
        cluster.attach("n1");
        cluster.requests().await;
        cluster.use_volume("n1", is_used);
        cluster.requests().await;
        cluster.remove("nodes", "/n1");
        cluster.remove("pods", "a/p");
        if is_used {
            assert!(cluster.requests().await.is_empty());
        }
        tokio::time::sleep(Duration::from_secs(wait)).await;
        let requests = cluster.requests().await;
        assert_eq!(requests.last().map(String::as_str), Some("DELETE volumeattachments"));
        cluster.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_gone_does_not_release_the_volume_of_a_running_pod() {
    let cluster = Cluster::start(base_objects());
    cluster.put("pods", pod("p", "n1"));
    cluster.requests().await;
    cluster.attach("n1");
    cluster.requests().await;
    cluster.remove("persistentvolumeclaims", "a/data");
    assert!(cluster.requests().await.is_empty());
    cluster.remove("pods", "a/p");
    let detach = ["PATCH nodes", "GET nodes", "DELETE volumeattachments"];
    assert_eq!(cluster.requests().await, detach);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn another_pod_of_the_same_name_does_not_keep_the_volume_on_the_old_node() {
    let cluster = Cluster::start(base_objects());
    cluster.put("pods", pod("p", "n1"));
    cluster.requests().await;
    cluster.attach("n1");
    cluster.requests().await;
    let mut other = pod("p", "n2");
    other["metadata"]["uid"] = "other".into();
    other["spec"]["volumes"] = json!([]);
    cluster.put("pods", other);
    let detach = ["PATCH nodes", "GET nodes", "DELETE volumeattachments"];
    assert_eq!(cluster.requests().await, detach);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_stops_to_need_attachments_loses_them() {
    let cluster = Cluster::start(base_objects());
    cluster.put("pods", pod("p", "n1"));
    cluster.requests().await;
    cluster.attach("n1");
    cluster.requests().await;
    let driver = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
        "metadata": {"name": "csi.example.com"}, "spec": {"attachRequired": false}});
    cluster.use_volume("n1", true);
    cluster.put("csidrivers", driver);
    assert!(cluster.requests().await.is_empty(), "the kubelet still lists it");
    cluster.use_volume("n1", false);
    let detach = ["PATCH nodes", "GET nodes", "DELETE volumeattachments"];
    assert_eq!(cluster.requests().await, detach);
    cluster.stop().await;
}
