//! The agent's end: keeps a tunnel to every server and opens connections on behalf of the servers.

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

/// The first delay between attempts.
const RETRY_FIRST: Duration = Duration::from_millis(200);
/// The longest delay: a returning server is found within 2 s, at the cost of a thousand handshakes
/// in that time for a thousand agents.
const RETRY_MAX: Duration = Duration::from_secs(2);
/// How often a lasting failure is logged.
const COMPLAIN_INTERVAL: Duration = Duration::from_secs(60);
/// Prefix of the problem key of a server without a tunnel; its address follows.
pub const PROBLEMS: &str = "servers/";
/// Maximum size of the headers of a request, in bytes.
const HEADER_BYTES_MAX: u32 = 8 * 1024;

/// Configuration and dependencies of the agent's end.
pub struct Agent {
    /// The servers to connect to.
    pub servers: Servers,
    /// TLS configuration with the cluster's CA and the client certificate of the node.
    pub tls: ClientConfig,
    /// This machine.
    pub own: LocalMachine,
    /// Its pods.
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
    /// Addresses with a tunnel to each server, by server id. More than one only while two connect
    /// concurrently: the server keeps the newest.
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
            let have: Vec<String> = self.up.borrow().keys().cloned().collect();
            let kind = ConnectionKind::Tunnel(&have);
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
            FailureReport::Again(since) => {
                tracing::warn!(seconds = since.as_secs(), fix, "still: {what}");
            }
        }
    }

    /// Another address has a tunnel to the same server: waits until that tunnel ends.
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
        // Also when unchanged: after the last change, the node may have fetched the settings from a
        // server that did not have them yet.
        if !settings.is_empty() {
            self.settings.send_replace(settings);
        }
        self.servers.connected(address);
        self.up.send_modify(|up| {
            up.entry(id.clone()).or_default().push(address.to_owned());
        });
        tracing::info!(server = address, "tunnel up");
        let (own_activity, all, cut) =
            (LastActivity::new(), LastActivity::new(), CancellationToken::new());
        let io = ActivityTracker::new(io, own_activity.clone(), all.clone());
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
            .map(|_| self.keep_extra_connection(address, config.interval, &all));
        let extra_connections = async {
            futures::future::join_all(extra_connections).await;
            std::future::pending::<()>().await;
        };
        let patience = config.server_silence();
        let why = tokio::select! {
            ended = connection => match ended {
                Ok(()) => "closed by the server".to_owned(),
                Err(error) => error.to_string(),
            },
            () = all.silent(patience) => format!("nothing was heard for {patience:?}"),
            () = own_activity.silent(SILENCE_MAX) => format!("nothing was heard for {SILENCE_MAX:?}"),
            () = extra_connections => "stopping".to_owned(),
            gone = address_removed(&self.own, local) => {
                format!("{gone} is no address of this machine any more")
            }
            () = stop.requested() => "stopping".to_owned(),
        };
        cut.cancel();
        let mut is_lost = true;
        self.up.send_modify(|up| {
            let left = up.get_mut(&id).map_or(0, |addresses| {
                addresses.retain(|a| a != address);
                addresses.len()
            });
            is_lost = left == 0;
            if is_lost {
                up.remove(&id);
            }
        });
        if is_lost {
            tracing::info!(server = address, why, "tunnel lost");
            self.servers.lost(address, &why);
        } else {
            // The server is reachable: connections by this address continue.
            tracing::debug!(server = address, why, "tunnel continues by another address");
        }
    }
}

/// Resolves when the machine loses the local address of a connection, which no packet can reach
/// then.
async fn address_removed(own: &LocalMachine, local: Option<IpAddr>) -> IpAddr {
    let mut addresses = own.addresses.clone();
    match local.filter(|local| addresses.borrow().contains(local)) {
        Some(local) if addresses.wait_for(|now| !now.contains(&local)).await.is_ok() => local,
        _ => std::future::pending().await,
    }
}

impl Shared {
    /// Keeps one heartbeat connection in addition to the tunnel, as long as it is polled.
    async fn keep_extra_connection(&self, address: &str, interval: Duration, all: &LastActivity) {
        let mut backoff = Backoff::new(RETRY_FIRST, RETRY_MAX);
        loop {
            // Jitter, so that the connections are not opened at the same time.
            base::clock::sleep(backoff.next_delay().mul_f64(base::clock::random_f64())).await;
            match connect::connect(address, &self.tls, ConnectionKind::HeartbeatOnly, &self.tasks)
                .await
            {
                Ok(connected) => {
                    backoff.reset();
                    let own = LastActivity::new();
                    let io = ActivityTracker::new(connected.io, own.clone(), all.clone());
                    tokio::select! {
                        () = heartbeat::send_heartbeats(io, interval) => {}
                        () = own.silent(SILENCE_MAX) => {}
                    }
                }
                Err(failure) => {
                    tracing::debug!(server = address, %failure, "no heartbeat connection")
                }
            }
        }
    }
}

/// Decides when a failure is reported: at once, and then once a minute.
#[derive(Debug, Default)]
struct FailureReports {
    first: Option<Instant>,
    last: Option<Instant>,
    kind: Option<Discriminant<ConnectError>>,
}

#[derive(Debug, PartialEq, Eq)]
enum FailureReport {
    None,
    First,
    /// The failure has lasted for this long.
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
        if now.saturating_duration_since(last) < COMPLAIN_INTERVAL {
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
    fn a_lasting_failure_is_reported_at_once_and_then_once_a_minute() {
        let start = base::clock::now();
        let mut reports = FailureReports::default();
        let mut next = |failure: &ConnectError, second| {
            reports.next(std::mem::discriminant(failure), start + Duration::from_secs(second))
        };
        let away = ConnectError::Unreachable(std::io::ErrorKind::ConnectionRefused.into());
        let reported = [0, 2, 59, 60, 61, 121].map(|second| next(&away, second));
        let resumed = |s| FailureReport::Again(Duration::from_secs(s));
        let none = || FailureReport::None;
        assert_eq!(
            reported,
            [FailureReport::First, none(), none(), resumed(60), none(), resumed(121)]
        );
        let other = ConnectError::Tls(std::io::ErrorKind::InvalidData.into());
        let reported =
            [(&other, 130), (&other, 131), (&other, 190), (&away, 191)].map(|(f, s)| next(f, s));
        assert_eq!(reported, [FailureReport::First, none(), resumed(190), FailureReport::First]);
    }
}
