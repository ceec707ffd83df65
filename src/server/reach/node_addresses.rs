//! Maps addresses of nodes and pods to the name of their node.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use cluster::tunnel::allow::Block;
use serde::Deserialize;

/// The fields of a Node that the map reads.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct NodeRecord {
    spec: Spec,
    status: Status,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    #[serde(rename = "podCIDR")]
    pod_cidr: String,
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Vec<String>,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Status {
    addresses: Vec<Address>,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Address {
    address: String,
}

#[derive(Default)]
pub(super) struct NodeIndex {
    known: HashMap<Arc<str>, NodeRecord>,
    hosts: HashMap<String, Arc<str>>,
    blocks: HashMap<Block, Arc<str>>,
    /// Number of blocks by prefix length.
    lengths: HashMap<u8, usize>,
}

/// The form in which hosts are compared: canonical addresses, names in lower case.
fn normalize(host: &str) -> String {
    host.parse::<IpAddr>().map_or_else(|_| host.to_lowercase(), |ip| ip.to_canonical().to_string())
}

impl NodeRecord {
    fn hosts(&self) -> impl Iterator<Item = String> {
        self.status
            .addresses
            .iter()
            .filter(|a| !a.address.is_empty())
            .map(|a| normalize(&a.address))
    }

    fn blocks(&self) -> impl Iterator<Item = Block> {
        let all = self.spec.pod_cidrs.iter();
        let one = Some(&self.spec.pod_cidr).filter(|_| self.spec.pod_cidrs.is_empty());
        all.chain(one).filter_map(|text| Block::parse(text))
    }
}

impl NodeIndex {
    /// Adds a node or replaces its record.
    pub(super) fn put(&mut self, node: &str, record: NodeRecord) {
        if self.known.get(node) == Some(&record) {
            return;
        }
        self.remove(node);
        let name: Arc<str> = node.into();
        for host in record.hosts() {
            self.hosts.insert(host, Arc::clone(&name));
        }
        for block in record.blocks() {
            if self.blocks.insert(block, Arc::clone(&name)).is_none() {
                *self.lengths.entry(block.prefix()).or_default() += 1;
            }
        }
        self.known.insert(name, record);
    }

    /// Removes a node.
    pub(super) fn remove(&mut self, node: &str) {
        let Some(record) = self.known.remove(node) else { return };
        for host in record.hosts() {
            if self.hosts.get(&host).is_some_and(|owner| **owner == *node) {
                self.hosts.remove(&host);
            }
        }
        for block in record.blocks() {
            if self.blocks.get(&block).is_none_or(|owner| **owner != *node) {
                continue;
            }
            self.blocks.remove(&block);
            if let Some(count) = self.lengths.get_mut(&block.prefix()) {
                *count = count.saturating_sub(1);
            }
            self.lengths.retain(|_, count| *count > 0);
        }
    }

    /// The node with this address or name.
    pub(super) fn of_host(&self, host: &str) -> Option<Arc<str>> {
        self.hosts.get(&normalize(host)).cloned()
    }

    /// The node whose pod range contains this address.
    pub(super) fn of_pod(&self, ip: IpAddr) -> Option<Arc<str>> {
        let ip = ip.to_canonical();
        let block = |length: &u8| self.blocks.get(&Block::around(ip, *length)?).cloned();
        self.lengths.keys().find_map(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn record(addresses: &[&str], cidrs: &[&str]) -> NodeRecord {
        let addresses: Vec<_> =
            addresses.iter().map(|a| json!({"type": "InternalIP", "address": a})).collect();
        let cidr = cidrs.first().copied().unwrap_or_default();
        serde_json::from_value(json!({
            "metadata": {"name": "ignored"},
            "spec": {"podCIDR": cidr, "podCIDRs": cidrs, "taints": []},
            "status": {"addresses": addresses, "nodeInfo": {}},
        }))
        .unwrap()
    }

    #[test]
    fn addresses_names_and_pods_map_to_their_node() {
        let mut nodes = NodeIndex::default();
        nodes.put(
            "a",
            record(&["192.0.2.1", "Worker-A", "fd00::A"], &["10.42.1.0/24", "fd00:42:1::/64"]),
        );
        nodes.put("b", record(&["192.0.2.2"], &["10.42.2.0/23"]));
        let host = |h: &str| nodes.of_host(h).map(|n| n.to_string());
        let pod = |ip: &str| nodes.of_pod(ip.parse().unwrap()).map(|n| n.to_string());
        assert_eq!(host("192.0.2.2").as_deref(), Some("b"));
        assert_eq!(host("worker-a").as_deref(), Some("a"));
        assert_eq!(host("fd00:0::a").as_deref(), Some("a"));
        assert_eq!(host("192.0.2.3"), None);
        assert_eq!(pod("10.42.1.200").as_deref(), Some("a"));
        assert_eq!(pod("10.42.3.7").as_deref(), Some("b"));
        assert_eq!(pod("fd00:42:1::7").as_deref(), Some("a"));
        assert_eq!(pod("10.42.4.7"), None);
    }

    #[test]
    fn an_address_that_moved_to_another_node_stays_with_it() {
        let mut nodes = NodeIndex::default();
        nodes.put("a", record(&["192.0.2.1"], &["10.42.1.0/24"]));
        // Another node has taken the address and, after a rejoin, the block.
        nodes.put("b", record(&["192.0.2.1"], &["10.42.1.0/24"]));
        nodes.put("a", record(&["192.0.2.9"], &["10.42.9.0/24"]));
        assert_eq!(nodes.of_host("192.0.2.1").as_deref(), Some("b"));
        assert_eq!(nodes.of_pod("10.42.1.1".parse().unwrap()).as_deref(), Some("b"));
        nodes.remove("b");
        nodes.remove("a");
        assert_eq!(nodes.of_host("192.0.2.9"), None);
        assert_eq!(nodes.of_pod("10.42.9.1".parse().unwrap()), None);
        assert!(nodes.lengths.is_empty() && nodes.hosts.is_empty() && nodes.blocks.is_empty());
    }
}
