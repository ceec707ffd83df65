//! A driver for tests, served over a unix socket.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use base::{Kind, Shutdown, Tasks};
use bytes::{BufMut, Bytes, BytesMut};
use futures::StreamExt;
use http::{HeaderMap, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use prost::Message;
use proto::dra::v1 as dra;
use proto::dra_health as health;
use tokio::net::UnixListener;
use tokio::sync::mpsc;

pub(super) const V1: &str = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin";
pub(super) const V1BETA1: &str = "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin";
pub(super) const HEALTH_V1: &str = "v1.DRAResourceHealth";
pub(super) const HEALTH_V1ALPHA1: &str = "v1alpha1.DRAResourceHealth";
/// Reports of a stream that are not sent yet; more than a test sends.
const REPORTS_MAX: usize = 16;

/// How the driver answers calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behaviour {
    /// Each claim gets a device with the name of the claim.
    Succeed,
    /// Each claim gets an empty result.
    NoDevices,
    /// No claim gets a result.
    Skip,
    /// Each claim gets an error.
    Fail,
    /// A claim that was not in the call gets a result.
    Confuse,
    /// The call is not answered.
    Block,
}

/// A call: the method, the uids of its claims, and its deadline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) method: String,
    pub(super) claims: BTreeSet<String>,
    pub(super) timeout: Option<String>,
}

#[derive(Debug)]
struct State {
    behaviour: Behaviour,
    calls: Vec<Call>,
    connections: usize,
    streams: Vec<mpsc::Sender<health::NodeWatchResourcesResponse>>,
    /// How often a stream was opened.
    opened: usize,
}

#[derive(Debug, Clone)]
pub(super) struct FakeDriver {
    services: &'static [&'static str],
    state: Arc<Mutex<State>>,
}

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

fn data(message: &impl Message) -> Frame<Bytes> {
    let message = message.encode_to_vec();
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap());
    frame.put_slice(&message);
    Frame::data(frame.freeze())
}

fn trailers(code: tonic::Code, message: &str) -> Frame<Bytes> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", (code as i32).to_string().parse().unwrap());
    trailers.insert("grpc-message", message.replace(' ', "%20").parse().unwrap());
    Frame::trailers(trailers)
}

fn answer(frames: impl futures::Stream<Item = Frame<Bytes>> + Send + 'static) -> Answer {
    let body = BodyExt::boxed_unsync(StreamBody::new(frames.map(Ok::<_, Infallible>)));
    Response::builder().header("content-type", "application/grpc").body(body).unwrap()
}

impl FakeDriver {
    pub(super) fn new(services: &'static [&'static str]) -> Self {
        let state = State {
            behaviour: Behaviour::Succeed,
            calls: Vec::new(),
            connections: 0,
            streams: Vec::new(),
            opened: 0,
        };
        Self { services, state: Arc::new(Mutex::new(state)) }
    }

    /// Serves at a socket until the returned token is requested, which also closes connections.
    pub(super) fn serve(&self, tasks: &Tasks, socket: &Path) -> Shutdown {
        let listener = UnixListener::bind(socket).unwrap();
        let (driver, own, end) = (self.clone(), tasks.clone(), tasks.shutdown().child());
        let stop = end.clone();
        tasks.spawn(Kind::Request, "fake-driver", async move {
            loop {
                let accepted = tokio::select! {
                    () = stop.requested() => return Ok::<(), Infallible>(()),
                    accepted = listener.accept() => accepted,
                };
                driver.state.lock().connections += 1;
                let (driver, stop) = (driver.clone(), stop.clone());
                let service = hyper::service::service_fn(move |request| {
                    let driver = driver.clone();
                    async move { Ok::<_, Infallible>(driver.respond(request).await) }
                });
                let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(accepted.unwrap().0), service);
                own.spawn(Kind::Request, "fake-connection", async move {
                    tokio::select! {
                        () = stop.requested() => {}
                        _ = connection => {}
                    }
                    Ok::<(), Infallible>(())
                });
            }
        });
        end
    }

    pub(super) fn behave(&self, behaviour: Behaviour) {
        self.state.lock().behaviour = behaviour;
    }

    /// Returns the calls so far, and forgets them.
    pub(super) fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.state.lock().calls)
    }

    /// Number of connections so far.
    pub(super) fn connections(&self) -> usize {
        self.state.lock().connections
    }

    /// Number of health streams so far.
    pub(super) fn opened(&self) -> usize {
        self.state.lock().opened
    }

    /// Reports the health of a device at all streams.
    pub(super) async fn report(&self, device: &str, status: health::HealthStatus, message: &str) {
        let id = health::DeviceIdentifier {
            pool_name: "pool".to_owned(),
            device_name: device.to_owned(),
        };
        let device = health::DeviceHealth {
            device: Some(id),
            health: status.into(),
            message: message.to_owned(),
            ..health::DeviceHealth::default()
        };
        let report = health::NodeWatchResourcesResponse { devices: vec![device] };
        let streams = self.state.lock().streams.clone();
        for stream in streams {
            stream.send(report.clone()).await.unwrap();
        }
    }

    /// Ends all health streams.
    pub(super) fn end_streams(&self) {
        self.state.lock().streams.clear();
    }

    async fn respond(&self, request: Request<Incoming>) -> Answer {
        let path = request.uri().path().to_owned();
        let (service, method) = path.trim_start_matches('/').split_once('/').unwrap();
        let timeout = request.headers().get("grpc-timeout");
        let timeout = timeout.map(|t| t.to_str().unwrap().to_owned());
        let body = request.into_body().collect().await.unwrap().to_bytes();
        if !self.services.contains(&service) {
            let text = format!("unknown service {service}");
            return answer(futures::stream::iter([trailers(tonic::Code::Unimplemented, &text)]));
        }
        if method == "NodeWatchResources" {
            return self.watch();
        }
        // The first five bytes are the flag of compression and the length.
        let claims = dra::NodePrepareResourcesRequest::decode(body.slice(5..)).unwrap().claims;
        let uids = claims.iter().map(|claim| claim.uid.clone()).collect();
        let behaviour = {
            let mut state = self.state.lock();
            state.calls.push(Call { method: method.to_owned(), claims: uids, timeout });
            state.behaviour
        };
        if behaviour == Behaviour::Block {
            return std::future::pending().await;
        }
        let message = match method {
            "NodePrepareResources" => data(&prepared(&claims, behaviour)),
            _ => data(&unprepared(&claims, behaviour)),
        };
        answer(futures::stream::iter([message, trailers(tonic::Code::Ok, "")]))
    }

    fn watch(&self) -> Answer {
        let (sender, receiver) = mpsc::channel(REPORTS_MAX);
        let mut state = self.state.lock();
        state.streams.push(sender);
        state.opened += 1;
        let reports = futures::stream::unfold(receiver, |mut receiver| async move {
            let report: health::NodeWatchResourcesResponse = receiver.recv().await?;
            Some((data(&report), receiver))
        });
        answer(reports.chain(futures::stream::iter([trailers(tonic::Code::Ok, "")])))
    }
}

fn prepared(claims: &[dra::Claim], behaviour: Behaviour) -> dra::NodePrepareResourcesResponse {
    let result = |claim: &dra::Claim| {
        let device = dra::Device {
            request_names: vec!["r".to_owned()],
            pool_name: "pool".to_owned(),
            device_name: claim.name.clone(),
            cdi_device_ids: vec![format!("example.com/dev={}", claim.name)],
            share_id: (claim.name == "shared").then(|| "share".to_owned()),
        };
        let mut result = dra::NodePrepareResourceResponse::default();
        match behaviour {
            Behaviour::Fail => result.error = "no power".to_owned(),
            Behaviour::NoDevices => {}
            _ => result.devices = vec![device],
        }
        result
    };
    let mut out = dra::NodePrepareResourcesResponse::default();
    match behaviour {
        Behaviour::Skip => {}
        Behaviour::Confuse => drop(out.claims.insert("other".to_owned(), Default::default())),
        _ => out.claims.extend(claims.iter().map(|claim| (claim.uid.clone(), result(claim)))),
    }
    out
}

fn unprepared(claims: &[dra::Claim], behaviour: Behaviour) -> dra::NodeUnprepareResourcesResponse {
    let error = if behaviour == Behaviour::Fail { "no power" } else { "" };
    let result = dra::NodeUnprepareResourceResponse { error: error.to_owned() };
    let mut out = dra::NodeUnprepareResourcesResponse::default();
    match behaviour {
        Behaviour::Skip => {}
        Behaviour::Confuse => drop(out.claims.insert("other".to_owned(), Default::default())),
        _ => out.claims.extend(claims.iter().map(|claim| (claim.uid.clone(), result.clone()))),
    }
    out
}
