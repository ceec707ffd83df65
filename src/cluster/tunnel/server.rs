//! The servers' end: one tunnel per node, connections through it, and whose tunnel is up.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use base::io::BoxIo;
use base::{Kind, Tasks};
use bytes::Bytes;
use http::header::{CONNECTION, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use http::{Request, Response, StatusCode, Version};
use http_body_util::Empty;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::presence::{self, Presence, Presences, State};
use super::{
    BEAT, BEAT_HEADER, BESIDE_HEADER, BESIDES_HEADER, BESIDES_MAX, FAULT_HEADER, GIVE_UP,
    HAVE_HEADER, PROTOCOL, Pace, SEND_BUFFER_MAX, SERVER_HEADER, SERVER_STREAM_WINDOW,
    SETTINGS_HEADER, SILENCE_HEADER, STREAMS_MAX,
};
use crate::guarded::Guarded;
use crate::tunnel::heartbeat;
use crate::tunnel::liveness::{ActivityTracker, LastActivity};

/// From the answer 101 to the upgraded connection.
const UPGRADE_MAX: Duration = Duration::from_secs(10);
/// Group of nodes.
const NODES: &str = "system:nodes";
/// Before the name of a node in the name of its user.
const NODE_PREFIX: &str = "system:node:";

type Sender = SendRequest<Empty<Bytes>>;

struct Entry {
    generation: u64,
    sender: Sender,
    cut: CancellationToken,
    /// When any connection of the node was heard.
    heard: LastActivity,
    /// Room for connections beside the tunnel.
    besides: Arc<Semaphore>,
}

struct Inner {
    id: String,
    pace: Pace,
    settings: String,
    tasks: Tasks,
    entries: Mutex<HashMap<String, Entry>>,
    presences: watch::Sender<Presences>,
    generations: std::sync::atomic::AtomicU64,
}

/// The tunnels of all nodes to this server, cheap to clone.
#[derive(Clone)]
pub struct Tunnels(Arc<Inner>);

impl std::fmt::Debug for Tunnels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tunnels({})", self.0.entries.lock().len())
    }
}

/// The node that a user is: `system:node:NAME` of the group `system:nodes`.
pub fn node_of<'a>(name: &'a str, groups: &[String]) -> Option<&'a str> {
    let node = name.strip_prefix(NODE_PREFIX).filter(|n| !n.is_empty())?;
    groups.iter().any(|g| g == NODES).then_some(node)
}

impl Tunnels {
    /// No tunnels yet. `pace` is what agents are told, and so is `settings`: a digest of what nodes
    /// take at their start.
    pub fn new(pace: Pace, settings: String, tasks: Tasks) -> Self {
        Self(Arc::new(Inner {
            id: base::clock::random_uuid(),
            pace,
            settings,
            tasks,
            entries: Mutex::default(),
            presences: watch::Sender::default(),
            generations: std::sync::atomic::AtomicU64::default(),
        }))
    }

    /// Whose tunnel is up or lost, told anew with each change.
    pub fn presences(&self) -> watch::Receiver<Presences> {
        self.0.presences.subscribe()
    }

    /// Whether a node has a tunnel.
    pub fn has(&self, node: &str) -> bool {
        self.0.entries.lock().contains_key(node)
    }

    /// Connections of beats that a node has beside its tunnel.
    pub fn besides(&self, node: &str) -> usize {
        let free = self.0.entries.lock().get(node).map(|e| e.besides.available_permits());
        free.map_or(0, |free| usize::from(BESIDES_MAX).saturating_sub(free))
    }

    /// Answers [`super::PATH`]. `user` is the name and the groups of whom the client certificate
    /// proves. The upgrade is in the request's extensions; the tunnel stands once the answer has
    /// been sent.
    pub fn accept<B>(
        &self,
        user: Option<(&str, &[String])>,
        request: &mut Request<B>,
    ) -> Response<String> {
        let Some((name, groups)) = user else {
            return refuse(StatusCode::UNAUTHORIZED, "show the client certificate of a node");
        };
        let Some(node) = node_of(name, groups) else {
            let text = format!("{name} is no node: tunnels are for system:node:NAME of {NODES}");
            return refuse(StatusCode::FORBIDDEN, &text);
        };
        let wanted =
            request.headers().get(UPGRADE).is_some_and(|v| v.as_bytes() == PROTOCOL.as_bytes());
        if !wanted || request.version() != Version::HTTP_11 {
            let text = format!("ask over HTTP/1.1 for an upgrade to {PROTOCOL}");
            return refuse(StatusCode::UPGRADE_REQUIRED, &text);
        }
        if lists(request.headers(), HAVE_HEADER, &self.0.id) && self.has(node) {
            return self.named(refuse(StatusCode::CONFLICT, "there is a tunnel to this server"));
        }
        if request.headers().contains_key(BESIDE_HEADER) {
            let response = self.accept_beside(node, request);
            return self.named(response);
        }
        let upgrade = hyper::upgrade::on(request);
        let (this, node) = (self.clone(), node.to_owned());
        self.0.tasks.spawn(Kind::Request, "tunnel", async move {
            if let Err(error) = this.carry(&node, upgrade).await {
                tracing::debug!(node, %error, "a tunnel did not come about");
            }
            Ok::<(), std::convert::Infallible>(())
        });
        self.named(self.switch())
    }

    /// A connection of beats beside the node's tunnel, which it ends with.
    fn accept_beside<B>(&self, node: &str, request: &mut Request<B>) -> Response<String> {
        let found = self.0.entries.lock().get(node).and_then(|e| {
            let place = Arc::clone(&e.besides).try_acquire_owned().ok()?;
            Some((e.heard.clone(), e.cut.clone(), place))
        });
        let Some((all, cut, place)) = found else {
            return refuse(StatusCode::CONFLICT, "the node has no tunnel, or enough beside it");
        };
        let (upgrade, interval) = (hyper::upgrade::on(request), self.0.pace.beat);
        let shutdown = self.0.tasks.shutdown().clone();
        self.0.tasks.spawn(Kind::Request, "tunnel-beside", async move {
            let _place = place;
            let Ok(Ok(upgraded)) = tokio::time::timeout(UPGRADE_MAX, upgrade).await else {
                return Ok(());
            };
            let own = LastActivity::new();
            let io = ActivityTracker::new(TokioIo::new(upgraded), own.clone(), all);
            tokio::select! {
                () = heartbeat::send_heartbeats(io, interval) => {}
                () = own.silent(GIVE_UP) => {}
                () = cut.cancelled() => {}
                () = shutdown.requested() => {}
            }
            Ok::<(), std::convert::Infallible>(())
        });
        self.switch()
    }

    fn switch(&self) -> Response<String> {
        let mut response = Response::new(String::new());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static(PROTOCOL));
        if let Ok(settings) = HeaderValue::from_str(&self.0.settings) {
            headers.insert(HeaderName::from_static(SETTINGS_HEADER), settings);
        }
        let besides = HeaderName::from_static(BESIDES_HEADER);
        headers.insert(besides, HeaderValue::from(u16::from(self.0.pace.besides)));
        for (name, duration) in
            [(BEAT_HEADER, self.0.pace.beat), (SILENCE_HEADER, self.0.pace.silence)]
        {
            let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
            headers.insert(HeaderName::from_static(name), HeaderValue::from(millis));
        }
        response
    }

    fn named(&self, mut response: Response<String>) -> Response<String> {
        if let Ok(id) = HeaderValue::from_str(&self.0.id) {
            response.headers_mut().insert(SERVER_HEADER, id);
        }
        response
    }

    /// A connection from the node's machine to `host:port`.
    ///
    /// # Errors
    /// `NotConnected` when the node has no tunnel, otherwise what happened there.
    pub async fn dial(&self, node: &str, host: &str, port: u16) -> io::Result<BoxIo> {
        let sender = self.0.entries.lock().get(node).map(|e| e.sender.clone());
        let sender = sender.ok_or_else(|| {
            let text = format!("the tunnel of node {node} is down");
            io::Error::new(io::ErrorKind::NotConnected, text)
        })?;
        let host = host.trim_matches(['[', ']']);
        let authority =
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        Ok(Box::new(TokioIo::new(open(sender, &authority).await?)))
    }

    /// Holds one tunnel from its beginning to its end.
    async fn carry(&self, node: &str, upgrade: OnUpgrade) -> Result<(), Broken> {
        let upgraded =
            tokio::time::timeout(UPGRADE_MAX, upgrade).await.map_err(|_| Broken::Late)??;
        let (own, all, cut) = (LastActivity::new(), LastActivity::new(), CancellationToken::new());
        let io = ActivityTracker::new(TokioIo::new(upgraded), own.clone(), all.clone());
        let io = TokioIo::new(Guarded::new(io, cut.clone()));
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(SERVER_STREAM_WINDOW)
            .initial_connection_window_size(SERVER_STREAM_WINDOW.saturating_mul(STREAMS_MAX))
            .max_send_buf_size(SEND_BUFFER_MAX)
            .handshake(io)
            .await?;
        let generation = self.register(node, sender.clone(), cut.clone(), all.clone());
        let beats = async {
            match open(sender, BEAT).await {
                Ok(io) => heartbeat::send_heartbeats(TokioIo::new(io), self.0.pace.beat).await,
                Err(error) => tracing::debug!(node, %error, "no beats"),
            }
        };
        let state = tokio::select! {
            ended = connection => {
                tracing::debug!(node, ?ended, "a tunnel ended");
                State::Closed
            }
            () = beats => State::Closed,
            () = cut.cancelled() => State::Closed,
            () = self.judge(node, generation, &all) => State::Silent,
            () = own.silent(GIVE_UP) => State::Silent,
            () = self.0.tasks.shutdown().requested() => State::Closed,
        };
        // Also ends what goes through it.
        cut.cancel();
        self.forget(node, generation, Presence { state, since: all.at() });
        Ok(())
    }

    /// Tells of the node's silence, and of its end. Resolves when the silence has lasted so long
    /// that the tunnel is given up.
    async fn judge(&self, node: &str, generation: u64, all: &LastActivity) {
        loop {
            all.silent(self.0.pace.silence).await;
            let since = all.at();
            self.tell(node, generation, Presence { state: State::Silent, since });
            let left = GIVE_UP.saturating_sub(self.0.pace.silence);
            if tokio::time::timeout(left, all.again(since)).await.is_err() {
                return;
            }
            let since = base::clock::now();
            self.tell(node, generation, Presence { state: State::Up, since });
        }
    }

    /// Notes a change of the tunnel, as long as it is the node's newest.
    fn tell(&self, node: &str, generation: u64, presence: Presence) {
        let entries = self.0.entries.lock();
        if entries.get(node).is_some_and(|e| e.generation == generation) {
            presence::set(&self.0.presences, node, presence);
            drop(entries);
            tracing::info!(node, state = presence.state.name(), "tunnel");
        }
    }

    fn register(
        &self,
        node: &str,
        sender: Sender,
        cut: CancellationToken,
        heard: LastActivity,
    ) -> u64 {
        let generation = self.0.generations.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let besides = Arc::new(Semaphore::new(usize::from(BESIDES_MAX)));
        let entry = Entry { generation, sender, cut, heard, besides };
        let mut entries = self.0.entries.lock();
        if let Some(older) = entries.insert(node.to_owned(), entry) {
            older.cut.cancel();
        }
        let presence = Presence { state: State::Up, since: base::clock::now() };
        presence::set(&self.0.presences, node, presence);
        drop(entries);
        tracing::info!(node, "tunnel up");
        generation
    }

    /// The tunnel ended, unless a newer one has taken its place.
    fn forget(&self, node: &str, generation: u64, presence: Presence) {
        let mut entries = self.0.entries.lock();
        if entries.get(node).is_none_or(|e| e.generation != generation) {
            return;
        }
        entries.remove(node);
        presence::set(&self.0.presences, node, presence);
        drop(entries);
        tracing::info!(node, state = ?presence.state, "tunnel lost");
    }
}

#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("the connection was not handed over in time")]
    Late,
    #[error(transparent)]
    Http(#[from] hyper::Error),
}

fn refuse(code: StatusCode, text: &str) -> Response<String> {
    let mut response = Response::new(format!("{text}\n"));
    *response.status_mut() = code;
    response
}

/// Whether a header names a value among others.
fn lists(headers: &HeaderMap, name: &str, value: &str) -> bool {
    let texts = headers.get_all(name).iter().filter_map(|v| v.to_str().ok());
    texts.flat_map(|v| v.split(',')).any(|v| v.trim() == value)
}

/// Opens a stream.
async fn open(mut sender: Sender, authority: &str) -> io::Result<Upgraded> {
    let broken = |e: hyper::Error| io::Error::new(io::ErrorKind::ConnectionReset, e.to_string());
    sender.ready().await.map_err(broken)?;
    let request = Request::connect(authority)
        .body(Empty::new())
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e.to_string()))?;
    let response = sender.send_request(request).await.map_err(broken)?;
    if response.status() == StatusCode::OK {
        return hyper::upgrade::on(response).await.map_err(broken);
    }
    let fault = response.headers().get(FAULT_HEADER).and_then(|v| v.to_str().ok());
    Err(fault_of(response.status(), fault.unwrap_or_default()))
}

/// The error that the agent met.
fn fault_of(status: StatusCode, fault: &str) -> io::Error {
    let kind = match (status, fault) {
        (StatusCode::FORBIDDEN, _) => {
            let text = "the node refuses: neither its own address nor one of its pods";
            return io::Error::new(io::ErrorKind::PermissionDenied, text);
        }
        (_, "refused") => io::ErrorKind::ConnectionRefused,
        (_, "unreachable") => io::ErrorKind::HostUnreachable,
        (_, "timeout") => io::ErrorKind::TimedOut,
        _ => {
            let text = format!("the node answers {status} {fault}");
            return io::Error::other(text.trim_end().to_owned());
        }
    };
    kind.into()
}
