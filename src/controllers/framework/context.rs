//! What every controller gets.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use api::quantity::Quantity;
use base::Tasks;
use client::{Client, EventRecorder, Informers};
use settings::AddressPool;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::framework::signing::{SignRequest, SignToken};
use crate::framework::tuning::Tuning;

/// Sums what objects of a kind use of a quota, by quota resource; the same count that admission
/// makes. The last argument has the objects of other kinds on which the usage depends.
pub type QuotaUsage = fn(
    &api::Gvr,
    &serde_json::Value,
    &[serde_json::Value],
    &BTreeMap<api::Gvr, Vec<serde_json::Value>>,
) -> BTreeMap<String, Quantity>;

/// The connection that an agent holds to this server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tunnel {
    /// It answers.
    Up,
    /// It does not.
    Lost {
        /// Since when.
        since: Instant,
        /// This server's own network worked then: the node's machine ended the connection, or the
        /// server's link was up.
        proved: bool,
    },
}

/// Tunnels by node name; a node that never had one since the start of this process is absent.
pub type Tunnels = BTreeMap<String, Tunnel>;

/// `--fast-node-loss`: the loss of a node's tunnel for seconds is the loss of the node.
#[derive(Debug, Clone)]
pub struct FastLoss {
    /// The tunnels of all agents, kept current.
    pub tunnels: watch::Receiver<Arc<Tunnels>>,
    /// How long pods stay on an unreachable node that tolerate it for the default 300 seconds, in
    /// seconds.
    pub toleration: i64,
}

/// The protocol of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// Reads the name in an object; empty is the default, TCP.
    pub(crate) fn of(name: &str) -> Option<Self> {
        match name {
            "TCP" | "" => Some(Self::Tcp),
            "UDP" => Some(Self::Udp),
            "SCTP" => Some(Self::Sctp),
            _ => None,
        }
    }
}

/// A port of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortKey {
    /// Its protocol.
    pub protocol: Protocol,
    /// Its number.
    pub number: u16,
}

impl PortKey {
    pub(crate) fn is_tcp(self) -> bool {
        self.protocol == Protocol::Tcp
    }
}

impl fmt::Display for PortKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Sctp => "SCTP",
        };
        write!(f, "{}/{protocol}", self.number)
    }
}

/// A port on which kube-lite itself listens on nodes: no Service is announced on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservedPort {
    /// The port.
    pub port: PortKey,
    /// What listens, such as `the API server`.
    pub purpose: &'static str,
}

/// Settings of the controllers.
#[derive(Debug, Clone)]
pub struct Config {
    /// Pod CIDRs of the cluster, one per family.
    pub cluster_cidrs: Vec<String>,
    /// Service CIDRs, one per family.
    pub service_cidrs: Vec<String>,
    /// PEM bundle published as `kube-root-ca.crt`.
    pub root_ca: String,
    /// The node that runs in this process.
    pub node_name: Option<String>,
    /// Signs the tokens of service-account Secrets.
    pub sign_token: SignToken,
    /// Signs requests for certificates by the cluster's CAs.
    pub sign_request: SignRequest,
    /// How quotas are counted.
    pub quota_usage: QuotaUsage,
    /// Losses of nodes seen by their tunnels; `None` waits for leases alone, as upstream does.
    pub fast_loss: Option<FastLoss>,
    /// Settings of single controllers.
    pub tuning: Tuning,
    /// Ports of nodes on which no Service of type LoadBalancer is announced.
    pub reserved_ports: Vec<ReservedPort>,
    /// Virtual addresses of Services of type LoadBalancer; empty without `--lb-pool`.
    pub lb_pool: AddressPool,
    /// Names of controllers not to start.
    pub disabled: Vec<String>,
}

/// Makes a client that acts as the service account `kube-system/<name>`.
pub type ClientFor = Arc<dyn Fn(&str) -> Client + Send + Sync>;

/// Shared by all controllers; cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// Owner of all tasks.
    pub tasks: Tasks,
    /// Shared caches (read only, under one identity).
    pub informers: Informers,
    /// Settings.
    pub config: Arc<Config>,
    client_for: ClientFor,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({:?})", self.config)
    }
}

impl Context {
    /// A context whose controllers get their clients from `client_for`.
    pub fn new(tasks: Tasks, informers: Informers, config: Config, client_for: ClientFor) -> Self {
        Self { tasks, informers, config: Arc::new(config), client_for }
    }

    /// The client of one controller: every write carries its service account, such as
    /// `replicaset-controller`.
    pub fn client(&self, service_account: &str) -> Client {
        (self.client_for)(service_account)
    }

    /// An event recorder of one controller.
    pub fn recorder(&self, client: &Client, component: &str) -> EventRecorder {
        EventRecorder::new(client.clone(), component, "", &self.tasks)
    }
}
