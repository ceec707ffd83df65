//! The agent's end: one tunnel to every server, kept up, and connections made for those servers.

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

use super::allow::{Own, Pods};
use super::{AGENT_STREAM_WINDOW, GIVE_UP, SEND_BUFFER_MAX, STREAMS_MAX};
use crate::guarded::Guarded;
use crate::servers::Servers;
use crate::tunnel::heartbeat;
use crate::tunnel::liveness::{ActivityTracker, LastActivity};
use connect::{Ask, Connected, Failure};

pub use pods::NodePods;

/// The first pause between attempts.
const RETRY_FIRST: Duration = Duration::from_millis(200);
/// The longest: a server that is back is found within 2 s, and a thousand agents are a thousand
/// handshakes in that time.
const RETRY_MAX: Duration = Duration::from_secs(2);
/// A server that stays away is mentioned so often.
const COMPLAIN_INTERVAL: Duration = Duration::from_secs(60);
/// Before the address of a server that has no tunnel, in the key of the problem that says so.
pub const PROBLEMS: &str = "servers/";
/// Bytes of the headers of one request.
const HEADER_BYTES_MAX: u32 = 8 * 1024;

/// What the agent's end needs.
pub struct Agent {
    /// To whom.
    pub servers: Servers,
    /// Trusts the cluster's servers and shows the client certificate of the node.
    pub tls: ClientConfig,
    /// This machine.
    pub own: Own,
    /// Its pods.
    pub pods: Arc<dyn Pods>,
    /// Where it is told which settings the cluster has, as the newest tunnel says.
    pub settings: watch::Sender<String>,
    /// Owns all that runs.
    pub tasks: Tasks,
}

/// What all tunnels of a process share.
pub(super) struct Shared {
    servers: Servers,
    tls: Arc<ClientConfig>,
    own: Arc<Own>,
    pods: Arc<dyn Pods>,
    tasks: Tasks,
    settings: watch::Sender<String>,
    /// Addresses with a tunnel to each server, by the server's own id. Several only when they asked
    /// at once: the server keeps the newest.
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
                            shared.keep(&address, &stop).await;
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
        // The upgrade is one of HTTP/1.1.
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
    async fn keep(&self, address: &str, stop: &Shutdown) {
        let mut backoff = Backoff::new(RETRY_FIRST, RETRY_MAX);
        let mut complaints = Complaints::default();
        let key = format!("{PROBLEMS}{address}");
        while !stop.is_requested() {
            let have: Vec<String> = self.up.borrow().keys().cloned().collect();
            let attempt = tokio::select! {
                attempt = connect::connect(address, &self.tls, Ask::Tunnel(&have), &self.tasks) => attempt,
                () = stop.requested() => break,
            };
            match attempt {
                Ok(connected) => {
                    self.tasks.problems().clear(&key);
                    (backoff, complaints) =
                        (Backoff::new(RETRY_FIRST, RETRY_MAX), Complaints::default());
                    self.carry(address, connected, stop).await;
                }
                Err(Failure::Same(id)) => {
                    self.tasks.problems().clear(&key);
                    self.stand_by(address, &id, stop).await;
                }
                Err(failure) => {
                    self.servers.lost(address, &failure.to_string());
                    self.complain(&key, address, &failure, &mut complaints);
                }
            }
            // A draw below the delay: a thousand agents that lost a server together do not come
            // back together.
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

    fn complain(&self, key: &str, address: &str, failure: &Failure, complaints: &mut Complaints) {
        let (what, fix) = failure.sentences(address);
        match complaints.next(std::mem::discriminant(failure), base::clock::now()) {
            Complaint::None => {}
            Complaint::First => self.tasks.problems().put(key, what, fix),
            Complaint::Again(since) => {
                tracing::warn!(seconds = since.as_secs(), fix, "still: {what}");
            }
        }
    }

    /// Another address has a tunnel to the same server: waits for that one's end.
    async fn stand_by(&self, address: &str, id: &str, stop: &Shutdown) {
        self.servers.connected(address);
        let mut up = self.up.subscribe();
        tokio::select! {
            gone = up.wait_for(|up| !up.contains_key(id)) => drop(gone),
            () = stop.requested() => {}
        }
        self.servers.lost(address, "its tunnel is down");
    }

    /// Serves one tunnel from its beginning to its end.
    pub(super) async fn carry(&self, address: &str, connected: Connected, stop: &Shutdown) {
        let Connected { io, id, pace, settings, local } = connected;
        // Also when it is no news: what was asked for at the last news may have come from a server
        // that did not have it yet.
        if !settings.is_empty() {
            self.settings.send_replace(settings);
        }
        self.servers.connected(address);
        self.up.send_modify(|up| {
            up.entry(id.clone()).or_default().push(address.to_owned());
        });
        tracing::info!(server = address, "tunnel up");
        let (own_heard, all, cut) =
            (LastActivity::new(), LastActivity::new(), CancellationToken::new());
        let io = ActivityTracker::new(io, own_heard.clone(), all.clone());
        let io = TokioIo::new(Guarded::new(io, cut.clone()));
        let (own, pods, tasks) =
            (Arc::clone(&self.own), Arc::clone(&self.pods), self.tasks.clone());
        let service = service_fn(move |request| {
            let (own, pods, tasks) = (Arc::clone(&own), Arc::clone(&pods), tasks.clone());
            async move {
                let response = answer::answer(request, pace.beat, &own, &*pods, &tasks).await;
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
        let besides = (0..pace.besides).map(|_| self.beside(address, pace.beat, &all));
        let besides = async {
            futures::future::join_all(besides).await;
            std::future::pending::<()>().await;
        };
        let why = tokio::select! {
            ended = connection => match ended {
                Ok(()) => "closed by the server".to_owned(),
                Err(error) => error.to_string(),
            },
            () = all.silent(pace.patience()) => format!("nothing was heard for {:?}", pace.patience()),
            () = own_heard.silent(GIVE_UP) => format!("nothing was heard for {GIVE_UP:?}"),
            () = besides => "stopping".to_owned(),
            gone = moved_from(&self.own, local) => format!("{gone} is no address of this machine any more"),
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
            // The server answers: what is connected to it by this address goes on.
            tracing::debug!(server = address, why, "another address has the tunnel");
        }
    }
}

/// Resolves when the machine loses the address that a connection was made from; nothing comes that
/// way any more.
async fn moved_from(own: &Own, local: Option<IpAddr>) -> IpAddr {
    let mut addresses = own.addresses.clone();
    match local.filter(|local| addresses.borrow().contains(local)) {
        Some(local) if addresses.wait_for(|now| !now.contains(&local)).await.is_ok() => local,
        _ => std::future::pending().await,
    }
}

impl Shared {
    /// Keeps one connection of beats beside a tunnel, for as long as it is polled.
    async fn beside(&self, address: &str, interval: Duration, all: &LastActivity) {
        let mut backoff = Backoff::new(RETRY_FIRST, RETRY_MAX);
        loop {
            // Not at the moment of the others.
            base::clock::sleep(backoff.next_delay().mul_f64(base::clock::random_f64())).await;
            match connect::connect(address, &self.tls, Ask::Beside, &self.tasks).await {
                Ok(connected) => {
                    backoff.reset();
                    let own = LastActivity::new();
                    let io = ActivityTracker::new(connected.io, own.clone(), all.clone());
                    tokio::select! {
                        () = heartbeat::send_heartbeats(io, interval) => {}
                        () = own.silent(GIVE_UP) => {}
                    }
                }
                Err(failure) => tracing::debug!(server = address, %failure, "no beats beside"),
            }
        }
    }
}

/// When a server that stays away is mentioned: at once, and then once a minute.
#[derive(Debug, Default)]
struct Complaints {
    first: Option<Instant>,
    last: Option<Instant>,
    kind: Option<Discriminant<Failure>>,
}

#[derive(Debug, PartialEq, Eq)]
enum Complaint {
    None,
    First,
    /// It has been away for so long.
    Again(Duration),
}

impl Complaints {
    /// Of a failure of this kind. Another kind than before is said at once: what was refused while
    /// the server started may be distrusted when it runs.
    fn next(&mut self, kind: Discriminant<Failure>, now: Instant) -> Complaint {
        let same = self.kind.replace(kind) == Some(kind);
        let Some((first, last)) = self.first.zip(self.last).filter(|_| same) else {
            (self.first, self.last) = (self.first.or(Some(now)), Some(now));
            return Complaint::First;
        };
        if now.saturating_duration_since(last) < COMPLAIN_INTERVAL {
            return Complaint::None;
        }
        self.last = Some(now);
        Complaint::Again(now.saturating_duration_since(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_stays_away_is_mentioned_at_once_and_once_a_minute() {
        let start = base::clock::now();
        let mut complaints = Complaints::default();
        let mut next = |failure: &Failure, second| {
            complaints.next(std::mem::discriminant(failure), start + Duration::from_secs(second))
        };
        let away = Failure::Unreachable(std::io::ErrorKind::ConnectionRefused.into());
        let said = [0, 2, 59, 60, 61, 121].map(|second| next(&away, second));
        let again = |s| Complaint::Again(Duration::from_secs(s));
        let none = || Complaint::None;
        assert_eq!(said, [Complaint::First, none(), none(), again(60), none(), again(121)]);
        let other = Failure::Tls(std::io::ErrorKind::InvalidData.into());
        let said =
            [(&other, 130), (&other, 131), (&other, 190), (&away, 191)].map(|(f, s)| next(f, s));
        assert_eq!(said, [Complaint::First, none(), again(190), Complaint::First]);
    }
}
