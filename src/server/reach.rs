//! Connections of the API server to nodes and pods: through the tunnel of the node that has the
//! address, otherwise directly.

mod node_addresses;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::Object;
use api::k8s::api::core::v1::Node;
use async_trait::async_trait;
use base::io::{BoxIo, Dial, Tcp};
use client::{Change, Informers};
use cluster::tunnel::Tunnels;
use parking_lot::RwLock;

use node_addresses::{NodeIndex, NodeRecord};

/// Timeout of a direct connection to a node that has lost its tunnel, which rarely succeeds.
const DIRECT_AFTER_LOSS_MAX: Duration = Duration::from_secs(5);

/// Dials nodes and pods through tunnels.
pub(crate) struct NodeDialer {
    tunnels: Tunnels,
    nodes: RwLock<NodeIndex>,
}

impl NodeDialer {
    /// Creates a dialer that knows no nodes yet.
    pub(crate) fn new(tunnels: Tunnels) -> Arc<Self> {
        Arc::new(Self { tunnels, nodes: RwLock::default() })
    }

    /// Follows the addresses of all nodes.
    pub(crate) fn follow(self: &Arc<Self>, informers: &Informers) {
        let this = Arc::clone(self);
        informers.of::<Node>().on_change(move |change| this.on_node_change(change));
    }

    fn on_node_change(&self, change: &Change) {
        match change {
            Change::Deleted(node) => self.nodes.write().remove(&node.key.name),
            Change::Added(node) | Change::Updated { new: node, .. } => self.put(node),
        }
    }

    fn put(&self, node: &Object) {
        match serde_json::from_slice::<NodeRecord>(node.raw()) {
            Ok(record) => self.nodes.write().put(&node.key.name, record),
            Err(error) => {
                tracing::warn!(node = %node.key, %error, "dialer: cannot read the addresses of a node")
            }
        }
    }

    /// The node whose address or pod range contains `host`.
    fn node_of(&self, host: &str) -> Option<Arc<str>> {
        let host = host.trim_matches(['[', ']']);
        let nodes = self.nodes.read();
        let by_block = || host.parse::<IpAddr>().ok().and_then(|ip| nodes.of_pod(ip));
        nodes.of_host(host).or_else(by_block)
    }
}

#[async_trait]
impl Dial for NodeDialer {
    async fn dial(&self, host: &str, port: u16) -> io::Result<BoxIo> {
        let Some(node) = self.node_of(host) else { return Tcp.dial(host, port).await };
        if self.tunnels.has(&node) {
            return self.tunnels.dial(&node, host, port).await;
        }
        if !self.tunnels.presences().borrow().contains_key(&*node) {
            return Tcp.dial(host, port).await;
        }
        let direct = tokio::time::timeout(DIRECT_AFTER_LOSS_MAX, Tcp.dial(host, port)).await;
        let because = match direct {
            Ok(Ok(io)) => return Ok(io),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "i/o timeout".to_owned(),
        };
        let text = format!("{because} (the tunnel of node {node} is down)");
        Err(io::Error::new(io::ErrorKind::NotConnected, text))
    }
}
