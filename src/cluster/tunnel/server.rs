//! The server's end of tunnels: accepts one tunnel per node, opens connections through it, and
//! records the presence of nodes.

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
    EXTRA_CONNECTIONS_HEADER, EXTRA_CONNECTIONS_MAX, FAULT_HEADER, HAVE_HEADER,
    HEARTBEAT_AUTHORITY, HEARTBEAT_ONLY_HEADER, HeartbeatConfig, INTERVAL_HEADER, PROTOCOL,
    SEND_BUFFER_MAX, SERVER_HEADER, SERVER_STREAM_WINDOW, SETTINGS_HEADER, SILENCE_HEADER,
    SILENCE_MAX, STREAMS_MAX,
};
use crate::guarded::Guarded;
use crate::tunnel::heartbeat;
use crate::tunnel::liveness::{ActivityTracker, LastActivity};

/// Timeout from the 101 response to the upgraded connection.
const UPGRADE_MAX: Duration = Duration::from_secs(10);
/// Group of all node users.
const NODES: &str = "system:nodes";
/// Prefix of the user name of a node.
const NODE_PREFIX: &str = "system:node:";

/// Sends requests to the agent over its tunnel.
type TunnelSender = SendRequest<Empty<Bytes>>;

/// The current tunnel of a node.
struct NodeTunnel {
    /// Distinguishes the tunnel from older and newer ones of the node.
    generation: u64,
    sender: TunnelSender,
    /// Ends the tunnel and all connections through it.
    cut: CancellationToken,
    /// Last activity on any connection of the node.
    activity: LastActivity,
    /// Permits for heartbeat connections.
    extra_connections: Arc<Semaphore>,
}

/// The shared state of [`Tunnels`].
struct Inner {
    /// Random id of this process. An agent that reaches it by two addresses keeps one tunnel.
    id: String,
    config: HeartbeatConfig,
    /// Digest of the settings that nodes apply at their start.
    settings: String,
    tasks: Tasks,
    /// By node name.
    tunnels: Mutex<HashMap<String, NodeTunnel>>,
    presences: watch::Sender<Presences>,
    /// The generation of the next tunnel.
    next_generation: std::sync::atomic::AtomicU64,
}

/// The tunnels of all nodes to this server, cheap to clone.
#[derive(Clone)]
pub struct Tunnels(Arc<Inner>);

impl std::fmt::Debug for Tunnels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tunnels({})", self.0.tunnels.lock().len())
    }
}

/// Returns the node name of a user `system:node:NAME` in the group `system:nodes`; `None` for other
/// users.
pub fn node_of<'a>(name: &'a str, groups: &[String]) -> Option<&'a str> {
    let node = name.strip_prefix(NODE_PREFIX).filter(|n| !n.is_empty())?;
    groups.iter().any(|g| g == NODES).then_some(node)
}

impl Tunnels {
    /// Creates a registry without tunnels. Agents receive `config` and `settings`, a digest of the
    /// settings that nodes apply at their start.
    pub fn new(config: HeartbeatConfig, settings: String, tasks: Tasks) -> Self {
        Self(Arc::new(Inner {
            id: base::clock::random_uuid(),
            config,
            settings,
            tasks,
            tunnels: Mutex::default(),
            presences: watch::Sender::default(),
            next_generation: std::sync::atomic::AtomicU64::default(),
        }))
    }

    /// Returns the presence of all nodes; the receiver is notified of each change.
    pub fn presences(&self) -> watch::Receiver<Presences> {
        self.0.presences.subscribe()
    }

    /// Whether a node has a tunnel.
    pub fn has(&self, node: &str) -> bool {
        self.0.tunnels.lock().contains_key(node)
    }

    /// The number of heartbeat connections of a node.
    pub fn extra_connections(&self, node: &str) -> usize {
        let free = self
            .0
            .tunnels
            .lock()
            .get(node)
            .map(|tunnel| tunnel.extra_connections.available_permits());
        free.map_or(0, |free| usize::from(EXTRA_CONNECTIONS_MAX).saturating_sub(free))
    }

    /// Handles [`super::PATH`]. `user` has the name and groups of the client certificate. The
    /// upgrade is in the request's extensions; the tunnel is established after the response has
    /// been sent.
    pub fn accept<B>(
        &self,
        user: Option<(&str, &[String])>,
        request: &mut Request<B>,
    ) -> Response<String> {
        let Some((name, groups)) = user else {
            let text = "a tunnel requires the client certificate of a node";
            return refuse(StatusCode::UNAUTHORIZED, text);
        };
        let Some(node) = node_of(name, groups) else {
            let text = format!(
                "user {name} is not a node: a tunnel requires system:node:NAME in the group {NODES}"
            );
            return refuse(StatusCode::FORBIDDEN, &text);
        };
        let is_upgrade =
            request.headers().get(UPGRADE).is_some_and(|v| v.as_bytes() == PROTOCOL.as_bytes());
        if !is_upgrade || request.version() != Version::HTTP_11 {
            let text = format!("a tunnel requires an upgrade to {PROTOCOL} over HTTP/1.1");
            return refuse(StatusCode::UPGRADE_REQUIRED, &text);
        }
        // The agent may not have detected yet that its tunnel to this server ended: then the new
        // one is accepted.
        if header_contains(request.headers(), HAVE_HEADER, &self.0.id) && self.has(node) {
            let text = "the node already has a tunnel to this server";
            return self.with_server_id(refuse(StatusCode::CONFLICT, text));
        }
        if request.headers().contains_key(HEARTBEAT_ONLY_HEADER) {
            let response = self.accept_heartbeat_connection(node, request);
            return self.with_server_id(response);
        }
        let upgrade = hyper::upgrade::on(request);
        let (this, node) = (self.clone(), node.to_owned());
        self.0.tasks.spawn(Kind::Request, "tunnel", async move {
            if let Err(error) = this.serve_tunnel(&node, upgrade).await {
                tracing::debug!(node, %error, "tunnel: cannot accept tunnel of node");
            }
            Ok::<(), std::convert::Infallible>(())
        });
        self.with_server_id(self.switching_protocols())
    }

    /// Accepts a heartbeat connection, which ends with the node's tunnel.
    fn accept_heartbeat_connection<B>(
        &self,
        node: &str,
        request: &mut Request<B>,
    ) -> Response<String> {
        let found = self.0.tunnels.lock().get(node).and_then(|tunnel| {
            let permit = Arc::clone(&tunnel.extra_connections).try_acquire_owned().ok()?;
            Some((tunnel.activity.clone(), tunnel.cut.clone(), permit))
        });
        let Some((all_activity, cut, permit)) = found else {
            let text = "the node has no tunnel, or the maximum number of heartbeat connections";
            return refuse(StatusCode::CONFLICT, text);
        };
        let (upgrade, interval) = (hyper::upgrade::on(request), self.0.config.interval);
        let shutdown = self.0.tasks.shutdown().clone();
        self.0.tasks.spawn(Kind::Request, "tunnel-heartbeat", async move {
            let _permit = permit;
            let Ok(Ok(upgraded)) = tokio::time::timeout(UPGRADE_MAX, upgrade).await else {
                return Ok(());
            };
            let own_activity = LastActivity::new();
            let io =
                ActivityTracker::new(TokioIo::new(upgraded), own_activity.clone(), all_activity);
            tokio::select! {
                () = heartbeat::send_heartbeats(io, interval) => {}
                () = own_activity.silent(SILENCE_MAX) => {}
                () = cut.cancelled() => {}
                () = shutdown.requested() => {}
            }
            Ok::<(), std::convert::Infallible>(())
        });
        self.switching_protocols()
    }

    /// The 101 response, with the configuration for the agent.
    fn switching_protocols(&self) -> Response<String> {
        let mut response = Response::new(String::new());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static(PROTOCOL));
        if let Ok(settings) = HeaderValue::from_str(&self.0.settings) {
            headers.insert(HeaderName::from_static(SETTINGS_HEADER), settings);
        }
        let extra_connections = HeaderName::from_static(EXTRA_CONNECTIONS_HEADER);
        headers.insert(
            extra_connections,
            HeaderValue::from(u16::from(self.0.config.extra_connections)),
        );
        for (name, duration) in
            [(INTERVAL_HEADER, self.0.config.interval), (SILENCE_HEADER, self.0.config.silence)]
        {
            let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
            headers.insert(HeaderName::from_static(name), HeaderValue::from(millis));
        }
        response
    }

    /// Adds the id of this server to a response.
    fn with_server_id(&self, mut response: Response<String>) -> Response<String> {
        if let Ok(id) = HeaderValue::from_str(&self.0.id) {
            response.headers_mut().insert(SERVER_HEADER, id);
        }
        response
    }

    /// Opens a connection from the node's machine to `host:port`.
    ///
    /// # Errors
    /// `NotConnected` if the node has no tunnel; otherwise the error of the connection that the
    /// agent opens.
    pub async fn dial(&self, node: &str, host: &str, port: u16) -> io::Result<BoxIo> {
        let sender = self.0.tunnels.lock().get(node).map(|tunnel| tunnel.sender.clone());
        let sender = sender.ok_or_else(|| {
            let text = format!("the tunnel of node {node} is down");
            io::Error::new(io::ErrorKind::NotConnected, text)
        })?;
        let host = host.trim_matches(['[', ']']);
        let authority =
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        Ok(Box::new(TokioIo::new(open(sender, &authority).await?)))
    }

    /// Serves one tunnel until it ends.
    async fn serve_tunnel(&self, node: &str, upgrade: OnUpgrade) -> Result<(), TunnelError> {
        let upgraded = tokio::time::timeout(UPGRADE_MAX, upgrade)
            .await
            .map_err(|_| TunnelError::UpgradeTimeout)??;
        // `all_activity` includes the node's heartbeat connections.
        let (own_activity, all_activity, cut) =
            (LastActivity::new(), LastActivity::new(), CancellationToken::new());
        let io = ActivityTracker::new(
            TokioIo::new(upgraded),
            own_activity.clone(),
            all_activity.clone(),
        );
        let io = TokioIo::new(Guarded::new(io, cut.clone()));
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(SERVER_STREAM_WINDOW)
            .initial_connection_window_size(SERVER_STREAM_WINDOW.saturating_mul(STREAMS_MAX))
            .max_send_buf_size(SEND_BUFFER_MAX)
            .handshake(io)
            .await?;
        let generation = self.register(node, sender.clone(), cut.clone(), all_activity.clone());
        let heartbeats = async {
            match open(sender, HEARTBEAT_AUTHORITY).await {
                Ok(io) => {
                    heartbeat::send_heartbeats(TokioIo::new(io), self.0.config.interval).await
                }
                Err(error) => tracing::debug!(node, %error, "tunnel: cannot open heartbeat stream"),
            }
        };
        let state = tokio::select! {
            ended = connection => {
                tracing::debug!(node, ?ended, "tunnel: connection of node ended");
                State::Closed
            }
            () = heartbeats => State::Closed,
            () = cut.cancelled() => State::Closed,
            () = self.watch_silence(node, generation, &all_activity) => State::Silent,
            () = own_activity.silent(SILENCE_MAX) => State::Silent,
            () = self.0.tasks.shutdown().requested() => State::Closed,
        };
        // Also ends the connections through the tunnel.
        cut.cancel();
        self.unregister(node, generation, Presence { state, since: all_activity.at() });
        Ok(())
    }

    /// Publishes when the node becomes silent or active again. Resolves when the silence has lasted
    /// for [`SILENCE_MAX`].
    async fn watch_silence(&self, node: &str, generation: u64, activity: &LastActivity) {
        loop {
            activity.silent(self.0.config.silence).await;
            let since = activity.at();
            self.set_presence(node, generation, Presence { state: State::Silent, since });
            let left = SILENCE_MAX.saturating_sub(self.0.config.silence);
            if tokio::time::timeout(left, activity.resumed(since)).await.is_err() {
                return;
            }
            let since = base::clock::now();
            self.set_presence(node, generation, Presence { state: State::Up, since });
        }
    }

    /// Sets the presence of the node unless the node has a newer tunnel.
    fn set_presence(&self, node: &str, generation: u64, presence: Presence) {
        let tunnels = self.0.tunnels.lock();
        if tunnels.get(node).is_some_and(|tunnel| tunnel.generation == generation) {
            presence::set(&self.0.presences, node, presence);
            drop(tunnels);
            tracing::info!(node, state = presence.state.name(), "tunnel: presence of node changed");
        }
    }

    /// Adds a tunnel, ends an older one of the node, and returns the generation of the new one.
    fn register(
        &self,
        node: &str,
        sender: TunnelSender,
        cut: CancellationToken,
        activity: LastActivity,
    ) -> u64 {
        let generation = self.0.next_generation.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let extra_connections = Arc::new(Semaphore::new(usize::from(EXTRA_CONNECTIONS_MAX)));
        let tunnel = NodeTunnel { generation, sender, cut, activity, extra_connections };
        let mut tunnels = self.0.tunnels.lock();
        if let Some(older) = tunnels.insert(node.to_owned(), tunnel) {
            older.cut.cancel();
        }
        let presence = Presence { state: State::Up, since: base::clock::now() };
        presence::set(&self.0.presences, node, presence);
        drop(tunnels);
        tracing::info!(node, "tunnel: node connected");
        generation
    }

    /// Removes an ended tunnel unless a newer one has replaced it.
    fn unregister(&self, node: &str, generation: u64, presence: Presence) {
        let mut tunnels = self.0.tunnels.lock();
        if tunnels.get(node).is_none_or(|tunnel| tunnel.generation != generation) {
            return;
        }
        tunnels.remove(node);
        presence::set(&self.0.presences, node, presence);
        drop(tunnels);
        tracing::info!(node, state = ?presence.state, "tunnel: connection to node lost");
    }
}

/// Why a tunnel was not established.
#[derive(Debug, thiserror::Error)]
enum TunnelError {
    #[error("the upgrade of the connection timed out")]
    UpgradeTimeout,
    #[error(transparent)]
    Http(#[from] hyper::Error),
}

/// A response that refuses a request.
fn refuse(code: StatusCode, text: &str) -> Response<String> {
    let mut response = Response::new(format!("{text}\n"));
    *response.status_mut() = code;
    response
}

/// Whether a comma-separated header contains a value.
fn header_contains(headers: &HeaderMap, name: &str, value: &str) -> bool {
    let texts = headers.get_all(name).iter().filter_map(|v| v.to_str().ok());
    texts.flat_map(|v| v.split(',')).any(|v| v.trim() == value)
}

/// Opens a stream of the tunnel to an authority: `host:port` or [`HEARTBEAT_AUTHORITY`].
async fn open(mut sender: TunnelSender, authority: &str) -> io::Result<Upgraded> {
    let reset = |e: hyper::Error| io::Error::new(io::ErrorKind::ConnectionReset, e.to_string());
    sender.ready().await.map_err(reset)?;
    let request = Request::connect(authority)
        .body(Empty::new())
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e.to_string()))?;
    let response = sender.send_request(request).await.map_err(reset)?;
    if response.status() == StatusCode::OK {
        return hyper::upgrade::on(response).await.map_err(reset);
    }
    let fault = response.headers().get(FAULT_HEADER).and_then(|v| v.to_str().ok());
    Err(dial_error(response.status(), fault.unwrap_or_default()))
}

/// Converts the agent's response to the error of the connection that the agent could not open.
/// `fault` is the value of [`FAULT_HEADER`].
fn dial_error(status: StatusCode, fault: &str) -> io::Error {
    let kind = match (status, fault) {
        (StatusCode::FORBIDDEN, _) => {
            let text =
                "the node refuses the destination: it is neither the node nor one of its pods";
            return io::Error::new(io::ErrorKind::PermissionDenied, text);
        }
        (_, "refused") => io::ErrorKind::ConnectionRefused,
        (_, "unreachable") => io::ErrorKind::HostUnreachable,
        (_, "timeout") => io::ErrorKind::TimedOut,
        _ => {
            let text = format!("the node responds {status} {fault}");
            return io::Error::other(text.trim_end().to_owned());
        }
    };
    kind.into()
}
