//! The leases of virtual addresses on servers: what this server grants to other machines, and how
//! this machine asks the servers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::{Kind, Tasks};
use net::{
    Arbiter, Holder, HolderConfig, LeaseError, LeaseRequest, LeaseResponse, LeaseServer,
    LeaseServers,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use settings::AddressPool;
use store::{Member, Members, Role};
use tokio::sync::watch;

use crate::control_socket::Reply;
use crate::peer_servers::PeerServers;
use crate::server::config::Config;

/// Timeout of a request to another server: longer than it keeps a request that watches.
const TIMEOUT: Duration = Duration::from_secs(12);

/// Distinguishes this request between servers from the others.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    address_lease: LeaseRequest,
}

/// The virtual addresses of the cluster, and the leases that this server grants.
#[derive(Debug)]
pub(crate) struct AddressLeases {
    arbiter: Arbiter,
    members: Arc<Members>,
    pool: AddressPool,
    api_vip: Option<IpAddr>,
}

impl AddressLeases {
    /// The leases of the server that is this member of the store.
    pub(crate) fn new(config: &Config, members: &Arc<Members>) -> Self {
        Self {
            arbiter: Arbiter::new(format!("{:016x}", members.id()), &config.machine.node_name),
            members: Arc::clone(members),
            pool: config.cluster.lb_pool.clone(),
            api_vip: config.api_vip,
        }
    }

    /// Whether agents may ask for addresses.
    pub(crate) fn has_pool(&self) -> bool {
        !self.pool.is_empty()
    }

    /// The machines that hold an address.
    pub(crate) fn holders(&self) -> BTreeMap<IpAddr, String> {
        self.arbiter.holders()
    }

    fn servers(&self) -> usize {
        self.members.list().iter().filter(|member| member.role == Role::Voter).count()
    }

    /// Answers an agent with this node name, which may have addresses of the pool.
    pub(crate) async fn answer_node(&self, node: &str, mut request: LeaseRequest) -> LeaseResponse {
        node.clone_into(&mut request.holder);
        self.arbiter.answer(request, self.servers(), |ip| self.pool.contains(ip)).await
    }

    /// Answers this server or another one, which may have all virtual addresses.
    async fn answer_server(&self, request: LeaseRequest) -> LeaseResponse {
        let is_virtual = |ip| self.pool.contains(ip) || self.api_vip == Some(ip);
        self.arbiter.answer(request, self.servers(), is_virtual).await
    }

    /// The answer to another server; `None` if the message is another one.
    pub(crate) async fn handle_message(&self, message: &[u8]) -> Option<Vec<u8>> {
        let Envelope { address_lease } = serde_json::from_slice(message).ok()?;
        let answer = Reply::<LeaseResponse>::Ok(self.answer_server(address_lease).await);
        serde_json::to_vec(&answer).ok()
    }
}

/// This server, without a connection.
#[derive(Debug)]
struct OwnServer(Arc<AddressLeases>);

#[async_trait]
impl LeaseServer for OwnServer {
    async fn request(&self, request: &LeaseRequest) -> Result<LeaseResponse, LeaseError> {
        Ok(self.0.answer_server(request.clone()).await)
    }
}

/// Another server, over the connection between members.
struct OtherServer {
    member: Member,
    servers: PeerServers,
}

impl std::fmt::Debug for OtherServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OtherServer({})", self.member.address)
    }
}

#[async_trait]
impl LeaseServer for OtherServer {
    async fn request(&self, request: &LeaseRequest) -> Result<LeaseResponse, LeaseError> {
        let message = Envelope { address_lease: request.clone() };
        let answer = self.servers.call(&self.member, &message, Some(TIMEOUT)).await;
        answer.map_err(|error| LeaseError(format!("{}: {error}", self.member.address)))
    }
}

type ServerList = (Vec<Member>, Vec<Arc<dyn LeaseServer>>);

/// All servers, as this one reaches them.
pub(crate) struct ClusterServers {
    leases: Arc<AddressLeases>,
    peers: PeerServers,
    known: Mutex<ServerList>,
}

impl std::fmt::Debug for ClusterServers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterServers").field("leases", &self.leases).finish_non_exhaustive()
    }
}

impl ClusterServers {
    /// The members of the store, this one with these `leases`.
    pub(crate) fn new(leases: &Arc<AddressLeases>, peers: &PeerServers) -> Arc<Self> {
        let (leases, peers) = (Arc::clone(leases), peers.clone());
        Arc::new(Self { leases, peers, known: Mutex::default() })
    }
}

impl LeaseServers for ClusterServers {
    fn list(&self) -> Vec<Arc<dyn LeaseServer>> {
        let mut members = self.peers.members.list();
        members.retain(|member| member.role == Role::Voter);
        let mut known = self.known.lock();
        if known.0 != members {
            let own = self.peers.members.id();
            let server = |member: &Member| -> Arc<dyn LeaseServer> {
                if member.id == own {
                    return Arc::new(OwnServer(Arc::clone(&self.leases)));
                }
                Arc::new(OtherServer { member: member.clone(), servers: self.peers.clone() })
            };
            *known = (members.clone(), members.iter().map(server).collect());
        }
        known.1.clone()
    }

    fn contested(&self) -> watch::Receiver<bool> {
        self.leases.arbiter.contested()
    }
}

/// Holds the virtual address of the API on one of the servers, until shutdown. `addresses` are this
/// machine's own.
pub(crate) fn hold_api_vip(
    config: &Config,
    servers: Arc<ClusterServers>,
    addresses: watch::Receiver<Vec<IpAddr>>,
    tasks: &Tasks,
) {
    let Some(vip) = config.api_vip else { return };
    let (wanted, seen) = watch::channel(Some(BTreeSet::from([vip])));
    let holder = HolderConfig {
        name: config.machine.node_name.clone(),
        servers,
        wanted: seen,
        addresses,
        is_virtual: Arc::new(move |ip| ip == vip),
        held: watch::Sender::default(),
    };
    let holder = Holder::new(holder, tasks);
    tasks.spawn(Kind::Critical, "api-vip", async move {
        let outcome = holder.run().await;
        // The set of wanted addresses exists as long as the holder.
        drop(wanted);
        outcome
    });
}
