//! Claims, drivers and the health of devices with a driver at a unix socket.

mod drivers;
mod fake_driver;
mod health;
mod pods;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::{Object, WatchEvent};
use async_trait::async_trait;
use base::{Shutdown, Tasks};
use bytes::Bytes;
use client::{Client, Error, Informers, Scope, Transport};
use http::{Method, Request, Response};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::checkpoint;
use super::claims::ClaimCache;
use super::health::HealthCache;
use super::resource_slices::SliceCleaner;
use super::{DraPluginHandler, DynamicResources};
use crate::plugins::{Plugin, PluginHandler as _};
use crate::pods::pod::{Pod, PodOrigin};
use fake_driver::FakeDriver;

const DRIVER: &str = "d.example.com";
/// Long enough for everything that a test waits for.
const SOON: Duration = Duration::from_secs(20);
/// Does not pass during a test.
const NEVER: Duration = Duration::from_secs(3600);

/// An API server with a node and ResourceClaims.
#[derive(Debug, Clone, Default)]
struct FakeApi {
    claims: Arc<Mutex<Vec<Value>>>,
    /// Watches end with the sender of their events.
    watches: Arc<Mutex<Vec<mpsc::Sender<WatchEvent>>>>,
    /// The targets of deletions.
    deletions: Arc<Mutex<Vec<String>>>,
}

impl FakeApi {
    /// Stores an allocated claim with a device of each driver, reserved for pods.
    fn put(&self, name: &str, drivers: &[&str], pods: &[&str]) {
        let results: Vec<Value> = drivers
            .iter()
            .map(|d| json!({"driver": d, "pool": "pool", "device": name, "request": "r"}))
            .collect();
        let reserved: Vec<Value> =
            pods.iter().map(|uid| json!({"resource": "pods", "name": uid, "uid": uid})).collect();
        self.put_status(
            name,
            json!({"allocation": {"devices": {"results": results}},
            "reservedFor": reserved}),
        );
    }

    fn put_status(&self, name: &str, status: Value) {
        let object = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "d", "uid": format!("uid-{name}")},
            "spec": {}, "status": status});
        self.claims.lock().push(object);
    }

    /// Adds an owner to the claim that was stored last.
    fn own(&self, owner: &str) {
        let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": owner,
            "controller": true}]);
        self.claims.lock().last_mut().unwrap()["metadata"]["ownerReferences"] = owner;
    }
}

#[async_trait]
impl Transport for FakeApi {
    async fn call(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Error> {
        let (path, name) = (request.uri().path(), request.uri().path().rsplit('/').next());
        let found = match *request.method() {
            Method::DELETE => {
                self.deletions.lock().push(request.uri().to_string());
                Some(json!({}))
            }
            _ => {
                let claims = self.claims.lock();
                let named = claims.iter().rev().find(|c| c["metadata"]["name"].as_str() == name);
                named.cloned()
            }
        };
        let (code, body) = match found {
            Some(object) => (200, object),
            None => {
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                    "reason": "NotFound", "code": 404, "message": format!("{path} not found")});
                (404, status)
            }
        };
        Ok(Response::builder().status(code).body(body.to_string().into()).unwrap())
    }

    async fn watch(
        &self,
        _scope: &Scope,
        _resume_from: Option<i64>,
    ) -> Result<mpsc::Receiver<WatchEvent>, Error> {
        let (sender, receiver) = mpsc::channel(2);
        let node = json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "n", "uid": "n", "resourceVersion": "1"}});
        let node = Arc::new(Object::from_value(node).unwrap());
        sender.try_send(WatchEvent::Added(node)).unwrap();
        sender.try_send(WatchEvent::Bookmark { revision: 1, initial: true }).unwrap();
        self.watches.lock().push(sender);
        Ok(receiver)
    }
}

/// A node with the state of claims, and an API server.
struct Bench {
    home: tempfile::TempDir,
    tasks: Tasks,
    api: FakeApi,
    resources: Arc<DynamicResources>,
    cleaner: Arc<SliceCleaner>,
    handler: DraPluginHandler,
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.tasks.shutdown().request();
    }
}

impl Bench {
    fn new() -> Self {
        Self::with_delays(SOON, NEVER)
    }

    /// Creates a node with a deadline of calls, and a delay before ResourceSlices are removed.
    fn with_delays(call_timeout: Duration, wiping_delay: Duration) -> Self {
        let (home, tasks) = (tempfile::tempdir().unwrap(), Tasks::new(Shutdown::new()));
        let api = FakeApi::default();
        let client = Client::new(Arc::new(api.clone()), "test");
        let informers = Informers::new(client.clone(), tasks.clone());
        let cleaner = SliceCleaner::new(&client, informers.of(), "n", wiping_delay, &tasks);
        let root = home.path();
        let claims = ClaimCache::of_states(checkpoint::load(root).unwrap());
        let claims = (claims, root.join(checkpoint::CHECKPOINT));
        let health = HealthCache::open(root);
        let resources =
            DynamicResources::new(&client, Arc::clone(&cleaner), claims, health, &tasks);
        let resources = Arc::new(DynamicResources { call_timeout, ..resources });
        let handler = DraPluginHandler::new(&resources, &tasks);
        Self { home, tasks, api, resources, cleaner, handler }
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Serves a driver and registers it; returns when it is connected.
    async fn start(&self, name: &str, driver: &FakeDriver, versions: &[&str]) -> Shutdown {
        let socket = self.socket(&format!("{name}.sock"));
        let end = driver.serve(&self.tasks, &socket);
        self.handler.register(&plugin(name, socket, versions)).await.unwrap();
        let plugin = self.resources.drivers.plugin(name).unwrap();
        tokio::time::timeout(SOON, plugin.connection.connected()).await.unwrap();
        end
    }

    /// Starts [`DRIVER`] with the newest services.
    async fn start_default(&self) -> FakeDriver {
        let driver = FakeDriver::new(&[fake_driver::V1, fake_driver::HEALTH_V1]);
        self.start(DRIVER, &driver, &["v1.DRAPlugin"]).await;
        driver
    }

    async fn prepare(&self, pod: &Pod) -> Result<(), String> {
        self.resources.prepare(pod).await.map_err(|error| error.to_string())
    }

    async fn unprepare(&self, pod: &Pod) -> Result<(), String> {
        self.resources.unprepare(&pod.uid).await.map_err(|error| error.to_string())
    }

    /// The names of the devices of the first container of a pod.
    fn cdi_devices(&self, pod: &Pod) -> Result<Vec<String>, String> {
        let devices = self.resources.cdi_devices(pod, &pod.containers[0]);
        let devices = devices.map_err(|error| error.to_string())?;
        Ok(devices.into_iter().map(|device| device.name).collect())
    }

    /// The claims that the file has.
    fn recorded(&self) -> Vec<String> {
        let states = checkpoint::load(self.home.path()).unwrap();
        states.into_iter().map(|state| state.claim_name).collect()
    }
}

fn plugin(name: &str, endpoint: PathBuf, versions: &[&str]) -> Plugin {
    let versions = versions.iter().map(|v| (*v).to_owned()).collect();
    Plugin { name: name.to_owned(), endpoint, versions }
}

/// A pod with one container that uses claims directly.
fn pod(uid: &str, claims: &[&str]) -> Pod {
    let references: Vec<Value> = claims.iter().map(|claim| json!({"name": claim})).collect();
    let listed: Vec<Value> =
        claims.iter().map(|claim| json!({"name": claim, "resourceClaimName": claim})).collect();
    pod_of(
        uid,
        json!({"containers": [{"name": "a", "resources": {"claims": references}}],
        "resourceClaims": listed}),
        json!({}),
    )
}

fn pod_of(uid: &str, spec: Value, status: Value) -> Pod {
    let object = json!({"metadata": {"name": uid, "namespace": "d", "uid": uid}, "spec": spec,
        "status": status});
    Pod::new(serde_json::from_value(object).unwrap(), PodOrigin::Api).unwrap()
}

/// Waits until a condition holds.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(SOON, wait).await.is_ok(), "{what}");
}
