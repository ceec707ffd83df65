//! The agent's end of tunnels: keeps a tunnel to every server, and opens connections to the kubelet
//! and to pods that the servers request.

mod answer;
pub(super) mod connect;
mod pods;

use std::collections::HashMap;
use std::mem::Discriminant;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base::{Backoff, Kind, Shutdown, Tasks};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::allow::{LocalMachine, Pods};
use super::{AGENT_STREAM_WINDOW, SEND_BUFFER_MAX, SILENCE_MAX, STREAMS_MAX};
use crate::guarded::Guarded;
use crate::servers::Servers;
use crate::tunnel::heartbeat;
use crate::tunnel::liveness::{ActivityTracker, LastActivity};
use connect::{ConnectError, Connected, ConnectionKind};

pub use pods::NodePods;

/// First delay between attempts to connect.
const RETRY_FIRST: Duration = Duration::from_millis(200);
/// Longest delay between attempts: an agent connects at most 2 s after its server is back. With a
/// thousand agents, the server then receives a thousand TLS handshakes within 2 s.
const RETRY_MAX: Duration = Duration::from_secs(2);
/// Interval at which a persistent failure is logged again.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// Prefix of the key under which `base` lists the problem of a server without a tunnel; the address
/// of the server follows.
pub const PROBLEMS: &str = "servers/";
/// Maximum size of the headers of a request, in bytes.
const HEADER_BYTES_MAX: u32 = 8 * 1024;

/// Configuration and dependencies of the agent's end.
pub struct Agent {
    /// The servers to connect to.
    pub servers: Servers,
    /// TLS configuration with the cluster's CA and the client certificate of the node.
    pub tls: ClientConfig,
    /// The addresses of this machine.
    pub own: LocalMachine,
    /// The pods of this machine.
    pub pods: Arc<dyn Pods>,
    /// Receives the digest of the cluster's settings from the newest tunnel.
    pub settings: watch::Sender<String>,
    /// Owns all tasks.
    pub tasks: Tasks,
}

/// State that all tunnels share.
pub(super) struct Shared {
    servers: Servers,
    tls: Arc<ClientConfig>,
    own: Arc<LocalMachine>,
    pods: Arc<dyn Pods>,
    tasks: Tasks,
    settings: watch::Sender<String>,
    /// The addresses by which the agent has a tunnel to a server, by server id. A server has more
    /// than one only while two tunnels are opened concurrently; the server then keeps the newest.
    up: watch::Sender<HashMap<String, Vec<String>>>,
}

impl Agent {
    /// Keeps a tunnel to every server until shutdown.
    ///
    /// # Errors
    /// Never.
    pub async fn run(self) -> Result<(), std::convert::Infallible> {
        let shared = Shared::new(self);
        let shutdown = shared.tasks.shutdown().clone();
        shared.servers.tunnels_run();
        let mut addresses = shared.servers.addresses();
        let mut running: HashMap<String, Shutdown> = HashMap::new();
        loop {
            let wanted = addresses.borrow_and_update().clone();
            running.retain(|address, stop| {
                let stays = wanted.contains(address);
                if !stays {
                    stop.request();
                }
                stays
            });
            for address in wanted {
                running.entry(address.clone()).or_insert_with(|| {
                    let (shared, stop) = (Arc::clone(&shared), shutdown.child());
                    shared.tasks.clone().spawn(Kind::Request, "tunnel", {
                        let stop = stop.clone();
                        async move {
                            shared.keep_tunnel(&address, &stop).await;
                            Ok::<(), std::convert::Infallible>(())
                        }
                    });
                    stop
                });
            }
            tokio::select! {
                changed = addresses.changed() => if changed.is_err() { return Ok(()) },
                () = shutdown.requested() => return Ok(()),
            }
        }
    }
}

impl Shared {
    /// Creates the shared state from the configuration.
    pub(super) fn new(agent: Agent) -> Arc<Self> {
        let mut tls = agent.tls;
        // The upgrade requires HTTP/1.1.
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Arc::new(Self {
            servers: agent.servers,
            tls: Arc::new(tls),
            own: Arc::new(agent.own),
            pods: agent.pods,
            tasks: agent.tasks,
            settings: agent.settings,
            up: watch::Sender::default(),
        })
    }

    /// Keeps the tunnel to one address until `stop`.
    async fn keep_tunnel(&self, address: &str, stop: &Shutdown) {
        let mut backoff = Backoff::new(RETRY_FIRST, RETRY_MAX);
        let mut reports = FailureReports::default();
        let key = format!("{PROBLEMS}{address}");
        while !stop.is_requested() {
            let connected_ids: Vec<String> = self.up.borrow().keys().cloned().collect();
            let kind = ConnectionKind::Tunnel(&connected_ids);
            let attempt = tokio::select! {
                attempt = connect::connect(address, &self.tls, kind, &self.tasks) => attempt,
                () = stop.requested() => break,
            };
            match attempt {
                Ok(connected) => {
                    self.tasks.problems().clear(&key);
                    (backoff, reports) =
                        (Backoff::new(RETRY_FIRST, RETRY_MAX), FailureReports::default());
                    self.serve_tunnel(address, connected, stop).await;
                }
                Err(ConnectError::Same(id)) => {
                    self.tasks.problems().clear(&key);
                    self.wait_for_other_address(address, &id, stop).await;
                }
                Err(failure) => {
                    self.servers.lost(address, &failure.to_string());
                    self.report_failure(&key, address, &failure, &mut reports);
                }
            }
            // Jitter: many agents that lose a server together must not reconnect together.
            let delay = backoff
                .next_delay()
                .min(RETRY_MAX)
                .mul_f64(0.25 + 0.75 * base::clock::random_f64());
            tokio::select! {
                () = base::clock::sleep(delay) => {}
                () = stop.requested() => break,
            }
        }
        self.tasks.problems().clear(&key);
    }

    /// Adds a failure to the problems of the task set, and logs it if it persists.
    fn report_failure(
        &self,
        key: &str,
        address: &str,
        failure: &ConnectError,
        reports: &mut FailureReports,
    ) {
        let (what, fix) = failure.describe(address);
        match reports.next(std::mem::discriminant(failure), base::clock::now()) {
            FailureReport::None => {}
            FailureReport::First => self.tasks.problems().put(key, what, fix),
            FailureReport::Again(duration) => {
                let seconds = duration.as_secs();
                tracing::warn!(what, seconds, fix, "tunnel: still cannot connect to server");
            }
        }
    }

    /// Waits until the tunnel to the same server by another address ends.
    async fn wait_for_other_address(&self, address: &str, id: &str, stop: &Shutdown) {
        self.servers.connected(address);
        let mut up = self.up.subscribe();
        tokio::select! {
            gone = up.wait_for(|up| !up.contains_key(id)) => drop(gone),
            () = stop.requested() => {}
        }
        self.servers.lost(address, "its tunnel is down");
    }

    /// Serves an established tunnel until it ends.
    pub(super) async fn serve_tunnel(&self, address: &str, connected: Connected, stop: &Shutdown) {
        let Connected { io, id, config, settings, local } = connected;
        // Notifies the node even if the digest is unchanged: after the last change, the node may
        // have fetched the settings from a server that did not have them yet.
        if !settings.is_empty() {
            self.settings.send_replace(settings);
        }
        self.servers.connected(address);
        self.up.send_modify(|up| {
            up.entry(id.clone()).or_default().push(address.to_owned());
        });
        tracing::info!(server = address, "tunnel: connected to server");
        // `all_activity` includes the heartbeat connections. Cancelling `cut` ends the tunnel and
        // the connections through it.
        let (own_activity, all_activity, cut) =
            (LastActivity::new(), LastActivity::new(), CancellationToken::new());
        let io = ActivityTracker::new(io, own_activity.clone(), all_activity.clone());
        let io = TokioIo::new(Guarded::new(io, cut.clone()));
        let (own, pods, tasks) =
            (Arc::clone(&self.own), Arc::clone(&self.pods), self.tasks.clone());
        let service = service_fn(move |request| {
            let (own, pods, tasks) = (Arc::clone(&own), Arc::clone(&pods), tasks.clone());
            async move {
                let response = answer::answer(request, config.interval, &own, &*pods, &tasks).await;
                Ok::<_, std::convert::Infallible>(response)
            }
        });
        let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_MAX)
            .initial_stream_window_size(AGENT_STREAM_WINDOW)
            .initial_connection_window_size(AGENT_STREAM_WINDOW.saturating_mul(STREAMS_MAX))
            .max_send_buf_size(SEND_BUFFER_MAX)
            .max_header_list_size(HEADER_BYTES_MAX)
            .serve_connection(io, service);
        let extra_connections = (0..config.extra_connections)
            .map(|_| self.keep_extra_connection(address, config.interval, &all_activity));
        // Never resolves: keeps the heartbeat connections, if any, as long as the tunnel.
        let extra_connections = async {
            futures::future::join_all(extra_connections).await;
            std::future::pending::<()>().await;
        };
        let server_silence = config.server_silence();
        let why = tokio::select! {
            ended = connection => match ended {
                Ok(()) => "closed by the server".to_owned(),
                Err(error) => error.to_string(),
            },
            () = all_activity.silent(server_silence) => {
                format!("no data received on any connection for {server_silence:?}")
            }
            () = own_activity.silent(SILENCE_MAX) => {
                format!("no data received for {SILENCE_MAX:?}")
            }
            () = extra_connections => "stopping".to_owned(),
            gone = address_removed(&self.own, local) => {
                format!("{gone} is no longer an address of this machine")
            }
            () = stop.requested() => "stopping".to_owned(),
        };
        cut.cancel();
        self.record_end(address, &id, &why);
    }

    /// Records that the tunnel to `address` of the server `id` has ended.
    fn record_end(&self, address: &str, id: &str, why: &str) {
        let mut is_lost = true;
        self.up.send_modify(|up| {
            let left = up.get_mut(id).map_or(0, |addresses| {
                addresses.retain(|a| a != address);
                addresses.len()
            });
            is_lost = left == 0;
            if is_lost {
                up.remove(id);
            }
        });
        if is_lost {
            tracing::info!(server = address, why, "tunnel: connection to server lost");
            self.servers.lost(address, why);
        } else {
            // Another address has a tunnel to the server, so the server is not reported as lost.
            tracing::debug!(server = address, why, "tunnel: replaced by tunnel of another address");
        }
    }
}

/// Resolves when the machine loses the local address of a connection: the connection then receives
/// no more packets, and waiting for the silence to be detected is not necessary. Never resolves if
/// the local address is unknown.
async fn address_removed(own: &LocalMachine, local: Option<IpAddr>) -> IpAddr {
    let mut addresses = own.addresses.clone();
    match local.filter(|local| addresses.borrow().contains(local)) {
        Some(local) if addresses.wait_for(|now| !now.contains(&local)).await.is_ok() => local,
        _ => std::future::pending().await,
    }
}

impl Shared {
    /// Keeps one heartbeat connection in addition to the tunnel; ends when it is dropped.
    async fn keep_extra_connection(
        &self,
        address: &str,
        interval: Duration,
        all_activity: &LastActivity,
    ) {
        let mut backoff = Backoff::new(RETRY_FIRST, RETRY_MAX);
        loop {
            // Jitter, so that the connections are not opened at the same time.
            base::clock::sleep(backoff.next_delay().mul_f64(base::clock::random_f64())).await;
            match connect::connect(address, &self.tls, ConnectionKind::HeartbeatOnly, &self.tasks)
                .await
            {
                Ok(connected) => {
                    backoff.reset();
                    let own_activity = LastActivity::new();
                    let io = ActivityTracker::new(
                        connected.io,
                        own_activity.clone(),
                        all_activity.clone(),
                    );
                    tokio::select! {
                        () = heartbeat::send_heartbeats(io, interval) => {}
                        () = own_activity.silent(SILENCE_MAX) => {}
                    }
                }
                Err(failure) => {
                    tracing::debug!(
                        server = address,
                        error = %failure,
                        "tunnel: cannot open heartbeat connection"
                    );
                }
            }
        }
    }
}

/// Decides when a failure to connect is reported: at once, and then once per [`REPORT_INTERVAL`].
#[derive(Debug, Default)]
struct FailureReports {
    /// When the first failure was reported, of any kind.
    first: Option<Instant>,
    /// When the last failure was reported.
    last: Option<Instant>,
    kind: Option<Discriminant<ConnectError>>,
}

/// What to do about a failure.
#[derive(Debug, PartialEq, Eq)]
enum FailureReport {
    /// Nothing: it was reported less than [`REPORT_INTERVAL`] ago.
    None,
    /// Report it for the first time, or with its new kind.
    First,
    /// Log it again. The connection has failed for this long.
    Again(Duration),
}

impl FailureReports {
    /// Decides about a failure of this kind. A change of the kind is reported at once: a server may
    /// refuse connections while it starts and fail verification afterwards.
    fn next(&mut self, kind: Discriminant<ConnectError>, now: Instant) -> FailureReport {
        let same = self.kind.replace(kind) == Some(kind);
        let Some((first, last)) = self.first.zip(self.last).filter(|_| same) else {
            (self.first, self.last) = (self.first.or(Some(now)), Some(now));
            return FailureReport::First;
        };
        if now.saturating_duration_since(last) < REPORT_INTERVAL {
            return FailureReport::None;
        }
        self.last = Some(now);
        FailureReport::Again(now.saturating_duration_since(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_reported_at_once_then_once_a_minute_and_when_its_kind_changes() {
        let start = base::clock::now();
        let mut reports = FailureReports::default();
        let mut next = |failure: &ConnectError, second| {
            reports.next(std::mem::discriminant(failure), start + Duration::from_secs(second))
        };
        let unreachable = ConnectError::Unreachable(std::io::ErrorKind::ConnectionRefused.into());
        let reported = [0, 2, 59, 60, 61, 121].map(|second| next(&unreachable, second));
        let again = |s| FailureReport::Again(Duration::from_secs(s));
        let none = || FailureReport::None;
        assert_eq!(reported, [FailureReport::First, none(), none(), again(60), none(), again(121)]);
        let other = ConnectError::Tls(std::io::ErrorKind::InvalidData.into());
        let reported = [(&other, 130), (&other, 131), (&other, 190), (&unreachable, 191)]
            .map(|(f, s)| next(f, s));
        assert_eq!(reported, [FailureReport::First, none(), again(190), FailureReport::First]);
    }
}
