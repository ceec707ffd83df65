//! The pods of this node, by the blocks of addresses in its Node object.

use std::net::IpAddr;
use std::time::Duration;

use api::k8s::api::core::v1::Node;
use async_trait::async_trait;
use client::Client;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::tunnel::allow::{Block, Pods};

/// The Node is read again for an unknown address, so often at most.
const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// Time for the answer.
const ASK_MAX: Duration = Duration::from_secs(5);

/// Reads the Node when an address is asked for that lies in no known block: blocks never change
/// while a Node lives, so an idle node costs nothing.
pub struct NodePods {
    client: Client,
    node: String,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    blocks: Vec<Block>,
    asked: Option<Instant>,
}

impl NodePods {
    /// `client` must be allowed to get the Node, as the node itself is.
    pub fn new(client: Client, node: &str) -> Self {
        Self { client, node: node.to_owned(), known: Mutex::default() }
    }
}

#[async_trait]
impl Pods for NodePods {
    async fn is_pod(&self, ip: IpAddr) -> bool {
        {
            let mut known = self.known.lock();
            if known.blocks.iter().any(|b| b.contains(ip)) {
                return true;
            }
            let now = base::clock::now();
            if known.asked.is_some_and(|at| now < at + ASK_INTERVAL) {
                return false;
            }
            known.asked = Some(now);
        }
        let asked = tokio::time::timeout(ASK_MAX, self.client.get::<Node>("", &self.node)).await;
        let Ok(Ok(node)) = asked else { return false };
        let blocks: Vec<Block> = blocks(&node);
        let found = blocks.iter().any(|b| b.contains(ip));
        self.known.lock().blocks = blocks;
        found
    }
}

fn blocks(node: &Node) -> Vec<Block> {
    let spec = node.spec.as_ref();
    let all = spec.and_then(|s| s.pod_cidrs.clone()).unwrap_or_default();
    let one = spec.and_then(|s| s.pod_cidr.clone()).filter(|_| all.is_empty());
    all.iter().chain(&one).filter_map(|text| Block::parse(text)).collect()
}
