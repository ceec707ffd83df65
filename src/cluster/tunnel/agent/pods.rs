//! Recognizes pods of this node by the CIDRs in its Node object.

use std::net::IpAddr;
use std::time::Duration;

use api::k8s::api::core::v1::Node;
use async_trait::async_trait;
use client::Client;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::tunnel::allow::{Block, Pods};

/// Minimum interval between reads of the Node for unknown addresses.
const READ_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of a read.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads the Node when an address is in no known CIDR. The CIDRs of a Node never change, so an idle
/// node sends no requests.
pub struct NodePods {
    client: Client,
    node: String,
    node_blocks: Mutex<NodeBlocks>,
}

#[derive(Default)]
struct NodeBlocks {
    blocks: Vec<Block>,
    last_read: Option<Instant>,
}

impl NodePods {
    /// `client` must be allowed to get the Node, as the node itself is.
    pub fn new(client: Client, node: &str) -> Self {
        Self { client, node: node.to_owned(), node_blocks: Mutex::default() }
    }
}

#[async_trait]
impl Pods for NodePods {
    async fn is_pod(&self, ip: IpAddr) -> bool {
        {
            let mut node_blocks = self.node_blocks.lock();
            if node_blocks.blocks.iter().any(|b| b.contains(ip)) {
                return true;
            }
            let now = base::clock::now();
            if node_blocks.last_read.is_some_and(|at| now < at + READ_INTERVAL) {
                return false;
            }
            node_blocks.last_read = Some(now);
        }
        let read =
            tokio::time::timeout(READ_TIMEOUT, self.client.get::<Node>("", &self.node)).await;
        let Ok(Ok(node)) = read else { return false };
        let blocks: Vec<Block> = blocks(&node);
        let found = blocks.iter().any(|b| b.contains(ip));
        self.node_blocks.lock().blocks = blocks;
        found
    }
}

fn blocks(node: &Node) -> Vec<Block> {
    let spec = node.spec.as_ref();
    let all = spec.and_then(|s| s.pod_cidrs.clone()).unwrap_or_default();
    let one = spec.and_then(|s| s.pod_cidr.clone()).filter(|_| all.is_empty());
    all.iter().chain(&one).filter_map(|text| Block::parse(text)).collect()
}
