//! A CSI driver for tests, with its registrar, served over unix sockets; and an API server that
//! keeps the objects of a test.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::{Object, WatchEvent};
use async_trait::async_trait;
use base::{Kind, Tasks};
use bytes::{BufMut, Bytes, BytesMut};
use client::{Error, Scope, Transport};
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use prost::Message;
use proto::csi::v1 as csi;
use proto::csi::v1::node_service_capability::{Rpc, Type, rpc};
use proto::pluginregistration::{PluginInfo, RegistrationStatus};
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::sync::{Notify, mpsc};

/// Queued events of a watch; more than a test causes.
const EVENTS_MAX: usize = 256;

/// A call of the node service.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) method: String,
    message: Bytes,
}

impl Call {
    /// Decodes the message of the call.
    pub(crate) fn decode<T: Message + Default>(&self) -> T {
        T::decode(self.message.clone()).unwrap()
    }
}

#[derive(Debug, Default)]
struct State {
    capabilities: Vec<rpc::Type>,
    calls: Vec<Call>,
    /// Codes with which methods fail.
    failures: HashMap<&'static str, tonic::Code>,
    registrations: Vec<RegistrationStatus>,
}

/// A driver that creates the directories at which volumes are published, and mounts nothing.
#[derive(Debug, Clone)]
pub(crate) struct FakeDriver {
    pub(crate) name: String,
    socket: PathBuf,
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

impl FakeDriver {
    /// Serves a driver at a socket until the tasks stop.
    pub(crate) fn serve(
        tasks: &Tasks,
        name: &str,
        socket: &Path,
        capabilities: &[rpc::Type],
    ) -> Self {
        let state = State { capabilities: capabilities.to_vec(), ..State::default() };
        let driver = Self {
            name: name.to_owned(),
            socket: socket.to_owned(),
            state: Arc::new(Mutex::new(state)),
            changed: Arc::default(),
        };
        driver.listen(tasks, socket);
        driver
    }

    /// Serves the same driver at another socket, such as that of its registrar.
    pub(crate) fn listen(&self, tasks: &Tasks, socket: &Path) {
        let listener = UnixListener::bind(socket).unwrap();
        let (driver, own) = (self.clone(), tasks.clone());
        tasks.spawn(Kind::Request, "fake-driver", async move {
            loop {
                let accepted = tokio::select! {
                    () = own.shutdown().requested() => return Ok::<(), Infallible>(()),
                    accepted = listener.accept() => accepted,
                };
                let (stream, _) = accepted.unwrap();
                let driver = driver.clone();
                let service = hyper::service::service_fn(move |request| {
                    let driver = driver.clone();
                    async move { Ok::<_, Infallible>(driver.respond(request).await) }
                });
                let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service);
                own.spawn(Kind::Request, "fake-connection", async move {
                    let _ = connection.await;
                    Ok::<(), Infallible>(())
                });
            }
        });
    }

    /// Lets a method fail, or succeed again.
    pub(crate) fn fail(&self, method: &'static str, code: Option<tonic::Code>) {
        let mut state = self.state.lock();
        match code {
            Some(code) => state.failures.insert(method, code),
            None => state.failures.remove(method),
        };
    }

    /// Returns the calls so far, without those for capabilities, and forgets them.
    pub(crate) fn take_calls(&self) -> Vec<Call> {
        let calls = std::mem::take(&mut self.state.lock().calls);
        calls.into_iter().filter(|call| call.method != "NodeGetCapabilities").collect()
    }

    /// Returns the names of the calls so far, and forgets them.
    pub(crate) fn take_methods(&self) -> Vec<String> {
        self.take_calls().into_iter().map(|call| call.method).collect()
    }

    /// Waits for the next answer of the kubelet about the registration.
    pub(crate) async fn next_registration(&self) -> RegistrationStatus {
        loop {
            let changed = self.changed.notified();
            if let Some(status) = self.state.lock().registrations.pop() {
                return status;
            }
            changed.await;
        }
    }

    async fn respond(
        &self,
        request: Request<Incoming>,
    ) -> Response<http_body_util::combinators::BoxBody<Bytes, Infallible>> {
        let method = request.uri().path().rsplit('/').next().unwrap().to_owned();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        // The first five bytes are the flag of compression and the length.
        let answer = self.answer(&method, body.slice(5..));
        let (code, message) = match &answer {
            Ok(_) => (tonic::Code::Ok, String::new()),
            Err(code) => (*code, format!("{method} fails")),
        };
        let mut frames = Vec::new();
        if let Ok(answer) = answer {
            let mut frame = BytesMut::new();
            frame.put_u8(0);
            frame.put_u32(u32::try_from(answer.len()).unwrap());
            frame.put_slice(&answer);
            frames.push(Frame::data(frame.freeze()));
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", (code as i32).to_string().parse().unwrap());
        trailers.insert("grpc-message", message.replace(' ', "%20").parse().unwrap());
        frames.push(Frame::trailers(trailers));
        let frames = frames.into_iter().map(Ok::<_, Infallible>);
        let body = BodyExt::boxed(StreamBody::new(futures::stream::iter(frames)));
        Response::builder().header("content-type", "application/grpc").body(body).unwrap()
    }

    fn answer(&self, method: &str, message: Bytes) -> Result<Vec<u8>, tonic::Code> {
        let mut state = self.state.lock();
        if method == "NotifyRegistrationStatus" {
            state.registrations.push(RegistrationStatus::decode(message).unwrap());
            self.changed.notify_waiters();
            return Ok(Vec::new());
        }
        state.calls.push(Call { method: method.to_owned(), message: message.clone() });
        if let Some(code) = state.failures.get(method) {
            return Err(*code);
        }
        Ok(match method {
            "GetInfo" => PluginInfo {
                r#type: "CSIPlugin".to_owned(),
                name: self.name.clone(),
                endpoint: self.socket.to_string_lossy().into_owned(),
                supported_versions: vec!["1.0.0".to_owned()],
            }
            .encode_to_vec(),
            "NodeGetInfo" => csi::NodeGetInfoResponse {
                node_id: "id-of-node".to_owned(),
                max_volumes_per_node: 7,
                accessible_topology: Some(csi::Topology {
                    segments: [("example.com/zone".to_owned(), "a".to_owned())].into(),
                }),
            }
            .encode_to_vec(),
            "NodeGetCapabilities" => {
                let of = |t: &rpc::Type| csi::NodeServiceCapability {
                    r#type: Some(Type::Rpc(Rpc { r#type: (*t).into() })),
                };
                let capabilities = state.capabilities.iter().map(of).collect();
                csi::NodeGetCapabilitiesResponse { capabilities }.encode_to_vec()
            }
            "NodeGetVolumeStats" => csi::NodeGetVolumeStatsResponse {
                usage: vec![csi::VolumeUsage {
                    available: 1,
                    total: 3,
                    used: 2,
                    unit: csi::volume_usage::Unit::Bytes.into(),
                }],
            }
            .encode_to_vec(),
            "NodePublishVolume" => {
                let request = csi::NodePublishVolumeRequest::decode(message).unwrap();
                std::fs::create_dir_all(request.target_path).unwrap();
                Vec::new()
            }
            "NodeUnpublishVolume" => {
                let request = csi::NodeUnpublishVolumeRequest::decode(message).unwrap();
                let _ = std::fs::remove_dir_all(request.target_path);
                Vec::new()
            }
            _ => Vec::new(),
        })
    }
}

#[derive(Debug, Default)]
struct Objects {
    by_path: BTreeMap<String, Value>,
    watches: Vec<(String, mpsc::Sender<WatchEvent>)>,
    version: u64,
}

/// Applies a merge patch.
fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else { return *target = patch };
    if !target.is_object() {
        *target = json!({});
    }
    let fields = target.as_object_mut().unwrap();
    for (key, value) in patch {
        if value.is_null() {
            fields.remove(&key);
        } else {
            merge(fields.entry(key).or_insert(Value::Null), value);
        }
    }
}

/// An API server with objects by their path.
#[derive(Debug, Clone, Default)]
pub(crate) struct FakeApi(Arc<Mutex<Objects>>);

impl FakeApi {
    /// Creates or replaces an object.
    pub(crate) fn put(&self, path: &str, mut object: Value) -> Value {
        let mut objects = self.0.lock();
        objects.version += 1;
        object["metadata"]["resourceVersion"] = objects.version.to_string().into();
        objects.by_path.insert(path.to_owned(), object.clone());
        let event = WatchEvent::Modified(Arc::new(Object::from_value(object.clone()).unwrap()));
        let watches = objects.watches.iter().filter(|(prefix, _)| path.starts_with(prefix));
        for (_, watch) in watches {
            watch.try_send(event.clone()).unwrap();
        }
        object
    }

    /// Returns an object.
    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.0.lock().by_path.get(path).cloned()
    }

    fn change(&self, request: &Request<Bytes>) -> Option<Value> {
        let path = request.uri().path();
        let path = path.strip_suffix("/status").unwrap_or(path);
        let body: Value = serde_json::from_slice(request.body()).unwrap_or_default();
        match *request.method() {
            Method::GET => self.get(path),
            Method::POST if path.ends_with("/token") => Some(json!({
                "spec": {"expirationSeconds": 600},
                "status": {"token": "t", "expirationTimestamp": "2026-01-01T00:00:00Z"}})),
            Method::POST => {
                let name = body["metadata"]["name"].as_str()?.to_owned();
                Some(self.put(&format!("{path}/{name}"), body))
            }
            Method::PUT => Some(self.put(path, body)),
            Method::PATCH => {
                let mut object = self.get(path)?;
                merge(&mut object, body);
                Some(self.put(path, object))
            }
            Method::DELETE => self.0.lock().by_path.remove(path),
            _ => None,
        }
    }
}

#[async_trait]
impl Transport for FakeApi {
    async fn call(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Error> {
        let (code, body) = match self.change(&request) {
            Some(object) => (200, object),
            None => {
                let message = format!("{} not found", request.uri().path());
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                    "reason": "NotFound", "code": 404, "message": message});
                (404, status)
            }
        };
        Ok(Response::builder().status(code).body(body.to_string().into()).unwrap())
    }

    async fn watch(
        &self,
        scope: &Scope,
        _resume_from: Option<i64>,
    ) -> Result<mpsc::Receiver<WatchEvent>, Error> {
        let prefix = format!("{}/", client::Client::path(&scope.gvr, "", "", ""));
        let (sender, receiver) = mpsc::channel(EVENTS_MAX);
        let mut objects = self.0.lock();
        for (_, object) in objects.by_path.iter().filter(|(path, _)| path.starts_with(&prefix)) {
            let object = Arc::new(Object::from_value(object.clone()).unwrap());
            sender.try_send(WatchEvent::Added(object)).unwrap();
        }
        let revision = i64::try_from(objects.version).unwrap();
        sender.try_send(WatchEvent::Bookmark { revision, initial: true }).unwrap();
        objects.watches.push((prefix, sender));
        Ok(receiver)
    }
}
