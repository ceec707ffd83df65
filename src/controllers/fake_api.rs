//! An API that stores objects and delivers them to informers, for tests of whole controllers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use api::{Gvr, Object, WatchEvent};
use async_trait::async_trait;
use base::{Shutdown, Tasks};
use bytes::Bytes;
use client::{Client, Error, EventRecorder, Informers, Scope, Transport, WatchStream};
use http::{Method, Request, Response, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::framework::context::{ClientFor, Config, Context};
use crate::framework::signing::{SignRequest, SignToken};
use crate::framework::tuning::Tuning;

/// Most events of a watch in these tests.
const EVENTS_MAX: usize = 256;

/// An object by resource and `<namespace>/<name>`.
type StoredKey = (String, String);

#[derive(Debug, Default)]
struct Store {
    objects: BTreeMap<StoredKey, Value>,
    watchers: Vec<(Gvr, mpsc::Sender<WatchEvent>)>,
    revision: i64,
    /// Requests other than events, in order: `PATCH pods/status`.
    requests: Vec<String>,
    events: Vec<String>,
    /// What was written to status subresources, by resource, as it is stored.
    statuses: Vec<(String, Value)>,
    /// The next requests of this form fail with this status code.
    failures: VecDeque<(String, u16)>,
}

/// The API server.
#[derive(Debug, Default)]
pub(crate) struct FakeApi(Mutex<Store>);

/// Resource, `<namespace>/<name>` and subresource of a path.
fn parts(path: &str) -> (String, String, String) {
    let mut parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let skipped = if parts[0] == "api" { 2 } else { 3 };
    if parts.len() <= skipped {
        // Discovery.
        return Default::default();
    }
    parts.drain(..skipped);
    let namespace = if parts[0] == "namespaces" && parts.len() > 2 {
        parts.drain(..2).nth(1).unwrap_or_default().to_owned()
    } else {
        String::new()
    };
    let part = |at: usize| parts.get(at).copied().unwrap_or_default();
    (part(0).to_owned(), format!("{namespace}/{}", part(1)), part(2).to_owned())
}

fn stored_key(resource: &str, object: &Value) -> StoredKey {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (resource.to_owned(), format!("{}/{}", text("namespace"), text("name")))
}

/// A status as an API server stores it: without empty lists.
fn normal(status: &Value) -> Value {
    let mut status = status.clone();
    if let Some(fields) = status.as_object_mut() {
        fields.retain(|_, value| value.as_array().is_none_or(|list| !list.is_empty()));
    }
    status
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
        match (field.strip_prefix("$deleteFromPrimitiveList/"), value.as_array()) {
            (Some(list), Some(gone)) => {
                let list = target[list].as_array_mut();
                list.into_iter().for_each(|list| list.retain(|item| !gone.contains(item)));
            }
            _ => merge(&mut target[field], value),
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

    fn put(&mut self, resource: &str, mut object: Value, is_watched: bool) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        let old = self.objects.insert(stored_key(resource, &object), object.clone());
        let new = Self::object(&object);
        let event = if old.is_some() { WatchEvent::Modified(new) } else { WatchEvent::Added(new) };
        if is_watched {
            self.notify(resource, &event);
        }
        object
    }

    fn remove(&mut self, resource: &str, name: &str) {
        let Some(mut object) = self.objects.remove(&(resource.into(), name.into())) else { return };
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        self.notify(resource, &WatchEvent::Deleted(Self::object(&object)));
    }

    fn handle(&mut self, method: &Method, path: &str, body: &[u8]) -> Result<Value, u16> {
        let (resource, name, subresource) = parts(path);
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        if resource == "events" {
            if method == Method::POST {
                let text = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
                self.events.push(format!("{} {}", text("reason"), text("message")));
            }
            return Ok(body);
        }
        let slash = if subresource.is_empty() { "" } else { "/" };
        let request = format!("{method} {resource}{slash}{subresource}");
        self.requests.push(request.clone());
        if self.failures.front().is_some_and(|(failing, _)| *failing == request) {
            return Err(self.failures.pop_front().map_or(500, |(_, code)| code));
        }
        let found = self.objects.get(&(resource.clone(), name.clone())).cloned();
        match *method {
            Method::GET => found.ok_or(404),
            Method::POST => {
                let (mut object, number) = (body, self.revision + 1);
                if let Some(prefix) = object["metadata"]["generateName"].as_str() {
                    object["metadata"]["name"] = format!("{prefix}{number}").into();
                }
                object["metadata"]["uid"] = format!("uid-{number}").into();
                object["metadata"]["creationTimestamp"] = "2027-01-15T08:00:00Z".into();
                Ok(self.put(&resource, object, true))
            }
            Method::PUT => {
                let mut object = found.ok_or(404_u16)?;
                let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
                if version(&object) != version(&body) {
                    return Err(409);
                }
                if subresource == "status" {
                    object["status"] = normal(&body["status"]);
                    self.statuses.push((resource.clone(), object["status"].clone()));
                    if self.objects.get(&stored_key(&resource, &object)) == Some(&object) {
                        // Nothing changed: there is no new version.
                        return Ok(object);
                    }
                } else {
                    let status = object["status"].take();
                    object = body;
                    if !status.is_null() {
                        object["status"] = status;
                    }
                }
                self.settle(&resource, object)
            }
            Method::PATCH => {
                let mut object = found.ok_or(404_u16)?;
                merge(&mut object, &body);
                Ok(self.put(&resource, object, true))
            }
            Method::DELETE => {
                let object = found.ok_or(404_u16)?;
                let uid = &body["preconditions"]["uid"];
                if !uid.is_null() && *uid != object["metadata"]["uid"] {
                    return Err(409);
                }
                let mut object = object;
                object["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z".into();
                self.settle(&resource, object)
            }
            _ => Err(405),
        }
    }

    /// Stores an object, or removes it if it is deleted and has no finalizer.
    fn settle(&mut self, resource: &str, object: Value) -> Result<Value, u16> {
        let meta = &object["metadata"];
        let is_held = meta["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        if meta["deletionTimestamp"].is_null() || is_held {
            return Ok(self.put(resource, object, true));
        }
        self.remove(resource, &stored_key(resource, &object).1);
        Ok(object)
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
                    409 => "Conflict",
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

/// The resource of an object.
fn resource_of(object: &Value) -> String {
    let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
    match kind.as_str() {
        "deviceclass" | "storageclass" => kind + "es",
        "endpoints" => kind,
        _ => kind + "s",
    }
}

/// A cluster for one controller.
pub(crate) struct Cluster {
    api: Arc<FakeApi>,
    pub(crate) tasks: Tasks,
    pub(crate) client: Client,
    pub(crate) informers: Informers,
    pub(crate) recorder: EventRecorder,
}

impl Cluster {
    /// A cluster with these objects, before the controller starts.
    pub(crate) fn new(objects: &[Value]) -> Self {
        let api = Arc::new(FakeApi::default());
        for object in objects {
            api.0.lock().put(&resource_of(object), object.clone(), true);
        }
        let tasks = Tasks::new(Shutdown::new());
        let transport: Arc<dyn Transport> = Arc::clone(&api) as _;
        let client = Client::new(transport, "test");
        let informers = Informers::new(client.clone(), tasks.clone());
        let recorder = EventRecorder::new(client.clone(), "test", "", &tasks);
        Self { api, tasks, client, informers, recorder }
    }

    /// What controllers get, with default settings.
    pub(crate) fn context(&self) -> Context {
        let config = Config {
            cluster_cidrs: vec!["10.88.0.0/16".to_owned()],
            service_cidrs: vec!["10.89.0.0/16".to_owned()],
            root_ca: "pem".to_owned(),
            node_name: None,
            sign_token: SignToken::new(|_, _, _, _| Ok(String::new())),
            sign_request: SignRequest::new(|_, _, _, _| Ok(String::new())),
            quota_usage: |_, _, _, _| BTreeMap::new(),
            fast_loss: None,
            tuning: Tuning::default(),
            reserved_ports: Vec::new(),
            lb_pool: settings::AddressPool::default(),
            disabled: Vec::new(),
        };
        let client = self.client.clone();
        let client_for: ClientFor = Arc::new(move |_| client.clone());
        Context::new(self.tasks.clone(), self.informers.clone(), config, client_for)
    }

    /// Creates or replaces an object.
    pub(crate) fn put(&self, object: &Value) {
        self.api.0.lock().put(&resource_of(object), object.clone(), true);
    }

    /// Creates an object of which informers do not know yet.
    pub(crate) fn put_unseen(&self, object: &Value) {
        self.api.0.lock().put(&resource_of(object), object.clone(), false);
    }

    pub(crate) fn edit(&self, resource: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let mut store = self.api.0.lock();
        let mut object = store.objects[&(resource.to_owned(), name.to_owned())].clone();
        change(&mut object);
        store.put(resource, object, true);
    }

    pub(crate) fn remove(&self, resource: &str, name: &str) {
        self.api.0.lock().remove(resource, name);
    }

    /// An object by `<namespace>/<name>`.
    pub(crate) fn get(&self, resource: &str, name: &str) -> Option<Value> {
        self.api.0.lock().objects.get(&(resource.to_owned(), name.to_owned())).cloned()
    }

    /// All objects of a resource.
    pub(crate) fn list(&self, resource: &str) -> Vec<Value> {
        let store = self.api.0.lock();
        let found = store.objects.iter().filter(|((of, _), _)| of == resource);
        found.map(|(_, object)| object.clone()).collect()
    }

    /// The next request of this form fails.
    pub(crate) fn fail(&self, request: &str, code: u16) {
        self.api.0.lock().failures.push_back((request.to_owned(), code));
    }

    /// Takes what was requested since the last time, once nothing more happens for a moment.
    pub(crate) async fn requests(&self) -> Vec<String> {
        tokio::time::sleep(Duration::from_millis(100)).await;
        std::mem::take(&mut self.api.0.lock().requests)
    }

    /// Takes the events since the last time.
    pub(crate) fn events(&self) -> Vec<String> {
        std::mem::take(&mut self.api.0.lock().events)
    }

    /// Takes what was written to the status subresource of a resource since the last time.
    pub(crate) fn statuses(&self, resource: &str) -> Vec<Value> {
        let written = std::mem::take(&mut self.api.0.lock().statuses);
        let of = written.into_iter().filter(|(of, _)| of == resource);
        of.map(|(_, status)| status).collect()
    }

    pub(crate) async fn stop(self) {
        self.tasks.shutdown().request();
        self.tasks.drain(Duration::from_secs(5)).await;
    }
}
