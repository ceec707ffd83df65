//! This server as a member of the store: connections to other members, answers to them, and what
//! the leader does for them.

mod advertised;
pub(crate) mod join;
pub(crate) mod leadership;
pub(crate) mod nodes;

use std::net::{IpAddr, SocketAddr};
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

use crate::error_catalogue::{CommandError, DATA_DIR, PORT_IN_USE};
use crate::secrets_encrypt::ServerKeys;
use crate::server::config::Config;
use crate::server::virtual_addresses::AddressLeases;

/// The leader treats a member that has not responded for this long as lost: its address is not
/// published, and it is removed once its Node is deleted.
pub(crate) const UNRESPONSIVE_AFTER: Duration = Duration::from_secs(3);
/// Interval of the check for such members, since missing responses cause no event.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of the warning that the store waits for other members.
const WARN_INTERVAL: Duration = Duration::from_secs(60);
/// First and longest delay between attempts to announce a changed address or to promote members.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// Sends the store's messages over the connections between servers.
#[derive(Debug)]
struct PeerTransport(Arc<PeerClient>);

#[async_trait]
impl Transport for PeerTransport {
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

/// MemberPeerService the connections of other servers.
struct MemberPeerService {
    members: Arc<Members>,
    keys: Arc<ServerKeys>,
    data_dir: PathBuf,
    advertise: IpAddr,
    leases: Arc<AddressLeases>,
}

impl PeerService for MemberPeerService {
    fn handler(&self) -> Arc<dyn PeerHandler> {
        Arc::new(PeerSession {
            store: self.members.accept_connection(),
            keys: Arc::clone(&self.keys),
            data_dir: self.data_dir.clone(),
            advertise: self.advertise,
            leases: Arc::clone(&self.leases),
        })
    }
}

/// MemberPeerService one connection of another server.
struct PeerSession {
    store: PeerConnection,
    keys: Arc<ServerKeys>,
    data_dir: PathBuf,
    advertise: IpAddr,
    leases: Arc<AddressLeases>,
}

#[async_trait]
impl PeerHandler for PeerSession {
    async fn answer(&self, message: &[u8]) -> Vec<u8> {
        self.store.answer(message).await
    }

    async fn answer_control(&self, message: &[u8]) -> Vec<u8> {
        if let Some(reply) = advertised::handle_message(self.advertise, message) {
            return reply;
        }
        if let Some(reply) = self.leases.handle_message(message).await {
            return reply;
        }
        match crate::certificates::peers::handle_message(&self.data_dir, message).await {
            Some(reply) => reply,
            None => self.keys.handle_message(message).await,
        }
    }
}

/// The options with which this server opens the store as a member; a server that `joins` waits
/// until the others have added it.
///
/// # Errors
/// Certificates that cannot be used.
pub(crate) fn member_options(
    config: &Config,
    certs: &ServerCerts,
    joins: bool,
    tasks: &Tasks,
) -> Result<(MemberOptions, Arc<PeerClient>), CommandError> {
    let ca = certs.peer_ca().bundle();
    let tls =
        tls::client(&ca, Some(Arc::clone(&certs.peer)), &["h2"]).map_err(|e| DATA_DIR.error(e))?;
    let calls = Arc::new(PeerClient::new(tls, MAX_MESSAGE_BYTES, tasks.clone()));
    let address = SocketAddr::new(config.peer_address, config.peer_port).to_string();
    let transport = Arc::new(PeerTransport(Arc::clone(&calls)));
    Ok((MemberOptions { address, transport, join: joins }, calls))
}

/// The listener for other members. It is bound only once there are other members or they may join.
pub(crate) struct PeerListener {
    address: SocketAddr,
    tls: Arc<rustls::ServerConfig>,
    members: Arc<Members>,
    keys: Arc<ServerKeys>,
    data_dir: PathBuf,
    advertise: IpAddr,
    leases: Arc<AddressLeases>,
    tasks: Tasks,
    bound: OnceLock<()>,
    /// One attempt at a time.
    binding: tokio::sync::Mutex<()>,
}

impl PeerListener {
    /// Creates the listener, which is not bound yet.
    ///
    /// # Errors
    /// Certificates that cannot be used.
    pub(crate) fn new(
        config: &Config,
        certs: &ServerCerts,
        (members, keys, leases): (&Arc<Members>, &Arc<ServerKeys>, &Arc<AddressLeases>),
        tasks: &Tasks,
    ) -> Result<Self, CommandError> {
        let ca = certs.peer_ca().bundle();
        let tls = tls::demanding_server(Arc::clone(&certs.peer), &ca, &["h2"])
            .map_err(|e| DATA_DIR.error(e))?;
        Ok(Self {
            address: SocketAddr::new(config.listen.ip(), config.peer_port),
            tls: Arc::new(tls),
            members: Arc::clone(members),
            keys: Arc::clone(keys),
            data_dir: config.machine.data_dir.clone(),
            advertise: config.advertise,
            leases: Arc::clone(leases),
            tasks: tasks.clone(),
            bound: OnceLock::new(),
            binding: tokio::sync::Mutex::default(),
        })
    }

    /// Binds the port and answers, unless that is the case already.
    ///
    /// # Errors
    /// The port cannot be bound.
    pub(crate) async fn ensure_bound(&self) -> Result<(), CommandError> {
        let _one = self.binding.lock().await;
        if self.bound.get().is_some() {
            return Ok(());
        }
        let listener = TcpListener::bind(self.address).await.map_err(|e| {
            PORT_IN_USE.error(format!("cannot listen on {} for other servers: {e}", self.address))
        })?;
        cluster::tunnel::socket::set_keepalive(&listener);
        let service = Arc::new(MemberPeerService {
            members: Arc::clone(&self.members),
            keys: Arc::clone(&self.keys),
            data_dir: self.data_dir.clone(),
            advertise: self.advertise,
            leases: Arc::clone(&self.leases),
        });
        let serving = peers::serve(
            listener,
            Arc::clone(&self.tls),
            MAX_MESSAGE_BYTES,
            service,
            self.tasks.clone(),
        );
        self.tasks.spawn(Kind::Critical, "peers", async move {
            serving.await;
            Ok::<(), std::convert::Infallible>(())
        });
        let _ = self.bound.set(());
        tracing::info!(address = %self.address, "members: listening for other servers");
        Ok(())
    }
}

/// Waits until a quorum of the members answers.
///
/// # Errors
/// The store has stopped, or shutdown was requested.
pub(crate) async fn wait_until_ready(
    store: &dyn Backend,
    shutdown: &Shutdown,
) -> Result<(), store::StoreError> {
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
    let mut warned = base::clock::now();
    loop {
        let error = match store.read_index().await {
            Ok(_) => return Ok(()),
            Err(error @ store::StoreError::Stopped(_)) => return Err(error),
            Err(error) => error,
        };
        if base::clock::now().duration_since(warned) >= WARN_INTERVAL {
            tracing::warn!(%error, "members: the store waits for a quorum; start the other servers, or see --cluster-reset in `kube-lite server --help`");
            warned = base::clock::now();
        }
        if !backoff.wait(shutdown).await {
            return Err(error);
        }
    }
}

/// Announces the address of this member to the others if it has changed.
pub(crate) async fn announce_address(
    members: Arc<Members>,
    address: String,
    problems: Problems,
    shutdown: Shutdown,
) -> Result<(), store::StoreError> {
    let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1);
    let all = members.list();
    let several = all.len() > 1;
    let before = all.into_iter().find(|member| several && member.id == members.id());
    if let Some(before) = before.filter(|own| !own.address.is_empty() && own.address != address) {
        report_address_change(&before.address, &address, &problems).await;
    }
    loop {
        let all = members.list();
        let own = all.iter().find(|member| member.id == members.id());
        // A single server announces its address when the first other one joins.
        if all.len() < 2 || own.is_none_or(|own| own.address == address) {
            return Ok(());
        }
        match members.add(members.id(), &address).await {
            Ok(()) => return Ok(()),
            Err(error) => {
                tracing::warn!(%error, address, "members: cannot announce the address of this server")
            }
        }
        if !backoff.wait(&shutdown).await {
            return Ok(());
        }
    }
}

/// Warns that this member has another address than before: it has moved, or runs on a copy of the
/// data directory of a server that still runs.
async fn report_address_change(before: &str, now: &str, problems: &Problems) {
    tracing::warn!(before, now, "members: address of this server changed");
    if accepts_connections(before).await {
        problems.put(
            "members/copy",
            format!("a server still answers at {before}, the former address of this member, which is now {now}"),
            "if that server runs on a copy of this data directory, stop one of the two at once; give it an empty data directory to join as a new member",
        );
    }
}

/// Whether something listens at a member's address.
pub(crate) async fn accepts_connections(address: &str) -> bool {
    let connecting = tokio::net::TcpStream::connect(address);
    tokio::time::timeout(CHECK_INTERVAL, connecting).await.is_ok_and(|connected| connected.is_ok())
}

/// Promotes learners to voters while this member leads.
pub(crate) async fn promote(
    members: Arc<Members>,
    shutdown: Shutdown,
) -> Result<(), store::StoreError> {
    let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1);
    loop {
        let ids = tokio::select! {
            ids = members.promotable() => ids,
            () = shutdown.requested() => return Ok(()),
        };
        let names: Vec<String> = ids.iter().map(|id| format!("{id:016x}")).collect();
        match members.promote(ids).await {
            Ok(()) => {
                tracing::info!(members = ?names, "members: promoted to voters");
                backoff.reset();
            }
            Err(error) => {
                tracing::warn!(%error, members = ?names, "members: cannot promote to voters, retrying");
                if !backoff.wait(&shutdown).await {
                    return Ok(());
                }
            }
        }
    }
}
