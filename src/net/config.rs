//! What the network of one node is made with.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use tokio::sync::watch;

use settings::{Cidr, ClusterSettings};

/// Settings of [`crate::run`]; every name that is global to a host is here, so that several nodes
/// share one machine.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name of the Node object.
    pub node_name: String,
    /// The settings of the cluster, with this node's own backend where its flags name one.
    pub cluster: ClusterSettings,
    /// Addresses of this node, preferred family first; changes are sent here.
    pub addresses: watch::Sender<Vec<IpAddr>>,
    /// Pods of this node, `namespace/name`, that Services leave out, whatever their endpoints say;
    /// changes are sent here.
    pub left_out: watch::Sender<BTreeSet<String>>,
    /// The addresses stay as they are; without it they follow the machine's links.
    pub addresses_held: bool,
    /// The link to other nodes; without it the one that has the node's address.
    pub interface: Option<String>,
    /// Addresses at which other nodes send packets of the overlay to this one instead of that of
    /// the link, at most one per family is used.
    pub external_addresses: Vec<IpAddr>,
    /// Name of our nftables tables, one per family.
    pub table: String,
    /// Name of the pods' bridge.
    pub bridge: String,
    /// This node's pods; empty means what `spec.podCIDRs` of the Node says (remembered for starts
    /// without a server).
    pub pod_cidrs: Vec<Cidr>,
    /// Where names outside the cluster are asked: the node's resolver configuration.
    pub resolv_conf: PathBuf,
    /// The state of cluster DNS is kept here.
    pub dns: crate::DnsState,
    /// Durable state: leases of pod addresses.
    pub state_dir: PathBuf,
    /// Socket through which the CNI plugin asks.
    pub socket: PathBuf,
    /// The list of CNI plugins in place of kube-lite's own alone.
    pub cni_list: Option<crate::PluginList>,
    /// Where the runtime looks for network configuration.
    pub cni_conf_dir: PathBuf,
    /// Where the runtime looks for plugins.
    pub cni_bin_dir: PathBuf,
    /// Whether node ports are served at loopback addresses of IPv4.
    pub localhost_node_ports: bool,
    /// Where the proxy's health is served, if at all.
    pub proxy_healthz: Option<SocketAddr>,
    /// The servers that grant virtual addresses; `None` on a machine that holds none.
    pub virtual_addresses: Option<crate::VirtualAddresses>,
    /// An address that this machine may have for a time and that is not its own (`--api-vip`).
    pub api_vip: Option<IpAddr>,
    /// Where the proxy's metrics are served, if at all.
    pub proxy_metrics: Option<SocketAddr>,
    /// Destinations that are closed to pods in addition to those that network policies close, if
    /// any.
    pub guard: Option<Guard>,
    /// Counts what network policies drop, for the metrics of the node.
    pub dropped_packets: crate::DroppedPackets,
}

/// Destinations that pods reach only if a policy that isolates them for egress allows it: these
/// ports of nodes, and the metadata services of clouds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    /// TCP ports that are closed.
    pub closed: Vec<u16>,
    /// TCP ports that are reached through a Service alone.
    pub by_service: Vec<u16>,
}

/// Why the network cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Files, sockets or netlink; the message names what.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The kernel refused our table.
    #[error("{0}")]
    Nftables(String),
    /// A value that cannot work.
    #[error("{0}")]
    Config(String),
    /// The worker that applies network policies panicked.
    #[error("the policy worker panicked")]
    PolicyWorker,
    /// A worker thread panicked.
    #[error("a network worker stopped: {0}")]
    Worker(#[from] tokio::task::JoinError),
}

impl Error {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        |source| Self::Io { what, source }
    }
}

impl Config {
    /// Whether an address moves between machines, so that it is not one of this node's.
    pub(crate) fn is_virtual(&self, ip: IpAddr) -> bool {
        self.cluster.lb_pool.contains(ip) || self.api_vip == Some(ip)
    }
}

impl From<crate::nft::Error> for Error {
    fn from(error: crate::nft::Error) -> Self {
        Self::Nftables(error.to_string())
    }
}
