//! This server as a member of the store: the way to the others, what they are answered, and what a leader does for them.

pub(crate) mod join;
pub(crate) mod leadership;
pub(crate) mod nodes;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use base::pki::tls;
use base::{Backoff, Kind, Problems, Shutdown, Tasks};
use bytes::Bytes;
use cluster::certs::ServerCerts;
use cluster::peers::{self, PeerClient, PeerHandler, PeerService};
use store::{
    Backend, CallError, Lane, MAX_MESSAGE_BYTES, MemberOptions, Members, Peer, PeerConnection,
    Transport,
};
use tokio::net::TcpListener;

use crate::error_catalogue::{DATA_DIR, PORT_IN_USE, Refusal};
use crate::secrets_encrypt::Place;
use crate::server::config::Config;

/// A member that the leader has not heard for so long is lost: no address of the API, and removed when its Node was deleted.
pub(crate) const SILENT: Duration = Duration::from_secs(3);
/// How often that is looked at; silence is no event.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// What the store waits for is told this often.
const TOLD_INTERVAL: Duration = Duration::from_secs(60);
/// First and longest wait between attempts to have a changed address known.
const WAIT: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// The store's messages over connections of peers.
#[derive(Debug)]
struct Way(Arc<PeerClient>);

#[async_trait]
impl Transport for Way {
    async fn call(&self, to: &Peer, lane: Lane, request: Bytes) -> Result<Bytes, CallError> {
        let lane = match lane {
            Lane::Steps => 0,
            Lane::Bulk => 1,
        };
        self.0.call(&to.address, lane, request).await.map_err(|error| match error {
            peers::CallError::NotSent(why) => CallError::NotSent(why),
            peers::CallError::Unanswered(why) => CallError::Unanswered(why),
        })
    }
}

struct Here(Arc<Members>, Arc<Place>, PathBuf);

impl PeerService for Here {
    fn handler(&self) -> Arc<dyn PeerHandler> {
        Arc::new(Peering(self.0.accept_connection(), Arc::clone(&self.1), self.2.clone()))
    }
}

struct Peering(PeerConnection, Arc<Place>, PathBuf);

#[async_trait]
impl PeerHandler for Peering {
    async fn answer(&self, message: &[u8]) -> Vec<u8> {
        self.0.answer(message).await
    }

    async fn answer_control(&self, message: &[u8]) -> Vec<u8> {
        match crate::certificates::peers::answer(&self.2, message).await {
            Some(told) => told,
            None => self.1.answer(message).await,
        }
    }
}

/// The place that this server takes among others. Whoever `joins` waits to be added.
///
/// # Errors
/// Certificates that cannot be used.
pub(crate) fn seat(
    config: &Config,
    certs: &ServerCerts,
    joins: bool,
    tasks: &Tasks,
) -> Result<(MemberOptions, Arc<PeerClient>), Refusal> {
    let ca = certs.peer_ca().bundle();
    let tls =
        tls::client(&ca, Some(Arc::clone(&certs.peer)), &["h2"]).map_err(|e| DATA_DIR.refuse(e))?;
    let calls = Arc::new(PeerClient::new(tls, MAX_MESSAGE_BYTES, tasks.clone()));
    let address = SocketAddr::new(config.advertise, config.peer_port).to_string();
    let transport = Arc::new(Way(Arc::clone(&calls)));
    Ok((MemberOptions { address, transport, join: joins }, calls))
}

/// The listener for other members, bound once there are or may be some: a server alone has none.
pub(crate) struct Listener {
    address: SocketAddr,
    tls: Arc<rustls::ServerConfig>,
    members: Arc<Members>,
    place: Arc<Place>,
    data_dir: PathBuf,
    tasks: Tasks,
    bound: OnceLock<()>,
    /// One attempt at a time.
    binding: tokio::sync::Mutex<()>,
}

impl Listener {
    /// Not bound yet.
    ///
    /// # Errors
    /// Certificates that cannot be used.
    pub(crate) fn new(
        config: &Config,
        certs: &ServerCerts,
        members: &Arc<Members>,
        place: &Arc<Place>,
        tasks: &Tasks,
    ) -> Result<Self, Refusal> {
        let ca = certs.peer_ca().bundle();
        let tls = tls::demanding_server(Arc::clone(&certs.peer), &ca, &["h2"])
            .map_err(|e| DATA_DIR.refuse(e))?;
        Ok(Self {
            address: SocketAddr::new(config.listen.ip(), config.peer_port),
            tls: Arc::new(tls),
            members: Arc::clone(members),
            place: Arc::clone(place),
            data_dir: config.machine.data_dir.clone(),
            tasks: tasks.clone(),
            bound: OnceLock::new(),
            binding: tokio::sync::Mutex::default(),
        })
    }

    /// Binds and answers, if that is not so yet.
    ///
    /// # Errors
    /// A port that cannot be had.
    pub(crate) async fn ensure(&self) -> Result<(), Refusal> {
        let _one = self.binding.lock().await;
        if self.bound.get().is_some() {
            return Ok(());
        }
        let listener = TcpListener::bind(self.address).await.map_err(|e| {
            PORT_IN_USE.refuse(format!("other servers cannot be heard on {}: {e}", self.address))
        })?;
        cluster::tunnel::socket::set_keepalive(&listener);
        let (members, place) = (Arc::clone(&self.members), Arc::clone(&self.place));
        let here = Arc::new(Here(members, place, self.data_dir.clone()));
        let serving = peers::serve(
            listener,
            Arc::clone(&self.tls),
            MAX_MESSAGE_BYTES,
            here,
            self.tasks.clone(),
        );
        self.tasks.spawn(Kind::Critical, "peers", async move {
            serving.await;
            Ok::<(), std::convert::Infallible>(())
        });
        let _ = self.bound.set(());
        tracing::info!(address = %self.address, "other servers may come");
        Ok(())
    }
}

/// Waits until the store answers: until a quorum of its members has found together.
///
/// # Errors
/// When the store has stopped, or this server is asked to.
pub(crate) async fn until_answering(
    store: &dyn Backend,
    shutdown: &Shutdown,
) -> Result<(), store::StoreError> {
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
    let mut told = base::clock::now();
    loop {
        let error = match store.read_index().await {
            Ok(_) => return Ok(()),
            Err(error @ store::StoreError::Stopped(_)) => return Err(error),
            Err(error) => error,
        };
        if base::clock::now().duration_since(told) >= TOLD_INTERVAL {
            tracing::warn!(%error, "the store waits for its other members; start them, or see `kube-lite server --help` for --cluster-reset");
            told = base::clock::now();
        }
        if !backoff.wait(shutdown).await {
            return Err(error);
        }
    }
}

/// Tells the members where this one is reached, when that is not what they know.
pub(crate) async fn tell_address(
    members: Arc<Members>,
    address: String,
    problems: Problems,
    shutdown: Shutdown,
) -> Result<(), store::StoreError> {
    let mut backoff = Backoff::new(WAIT.0, WAIT.1);
    let all = members.list();
    let several = all.len() > 1;
    let before = all.into_iter().find(|member| several && member.id == members.id());
    if let Some(before) = before.filter(|own| !own.address.is_empty() && own.address != address) {
        warn_of_move(&before.address, &address, &problems).await;
    }
    loop {
        let all = members.list();
        let own = all.iter().find(|member| member.id == members.id());
        // A server alone says it when the first other one comes.
        if all.len() < 2 || own.is_none_or(|own| own.address == address) {
            return Ok(());
        }
        match members.add(members.id(), &address).await {
            Ok(()) => return Ok(()),
            Err(error) => {
                tracing::warn!(%error, address, "the other servers cannot be told where this one is")
            }
        }
        if !backoff.wait(&shutdown).await {
            return Ok(());
        }
    }
}

/// A member that comes back with another address has moved, or is a copy of one that still runs.
async fn warn_of_move(before: &str, now: &str, problems: &Problems) {
    tracing::warn!(
        before,
        now,
        "this member was reached at another address: the members are told the new one"
    );
    if answers(before).await {
        problems.put(
            "members/copy",
            format!("a server still answers at {before}, where this member was reached before it came to {now}"),
            "if that server runs on a copy of this data directory, stop one of the two at once; give it an empty data directory to join as a new member",
        );
    }
}

/// Whether something listens at a member's address.
pub(crate) async fn answers(address: &str) -> bool {
    let connecting = tokio::net::TcpStream::connect(address);
    tokio::time::timeout(LOOK_INTERVAL, connecting).await.is_ok_and(|connected| connected.is_ok())
}

/// Makes voters of learners while this member leads.
pub(crate) async fn promote(
    members: Arc<Members>,
    shutdown: Shutdown,
) -> Result<(), store::StoreError> {
    let mut backoff = Backoff::new(WAIT.0, WAIT.1);
    loop {
        let ids = tokio::select! {
            ids = members.promotable() => ids,
            () = shutdown.requested() => return Ok(()),
        };
        let names: Vec<String> = ids.iter().map(|id| format!("{id:016x}")).collect();
        match members.promote(ids).await {
            Ok(()) => {
                tracing::info!(members = ?names, "became voters");
                backoff.reset();
            }
            Err(error) => {
                tracing::warn!(%error, members = ?names, "cannot become voters, trying again");
                if !backoff.wait(&shutdown).await {
                    return Ok(());
                }
            }
        }
    }
}
