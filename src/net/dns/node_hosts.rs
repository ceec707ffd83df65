//! Names of nodes, as k3s's file `NodeHosts` has them for CoreDNS: each node's host name leads to
//! its internal addresses, and back.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use api::k8s::api::core::v1::Node;
use arc_swap::ArcSwap;
use client::informer::decode;
use client::{Change, Informer};
use hickory_proto::op::Message;
use parking_lot::Mutex;

use crate::dns::plugins::hosts::Hosts;

/// TTL of the names (k3s's value).
const TTL: u32 = 60;

type HostEntry = (String, Vec<IpAddr>);

/// The names of all nodes that are watched.
#[derive(Debug, Default)]
pub(crate) struct NodeHosts {
    known: Mutex<BTreeMap<String, HostEntry>>,
    table: ArcSwap<Hosts>,
}

/// The host name and the internal addresses of a node.
fn entry(name: &str, node: &Node) -> HostEntry {
    let addresses = node.status.as_ref().and_then(|status| status.addresses.as_ref());
    let of = |kind: &str| {
        let fitting = addresses.into_iter().flatten().filter(move |a| a.type_ == kind);
        fitting.map(|a| a.address.as_str()).collect::<Vec<_>>()
    };
    let host = of("Hostname").first().map_or(name, |host| *host).to_owned();
    (host, of("InternalIP").into_iter().filter_map(|text| text.parse().ok()).collect())
}

impl NodeHosts {
    /// Follows the nodes of an informer.
    pub(crate) fn follow(nodes: &Informer<Node>) -> Arc<Self> {
        let hosts = Arc::new(Self::default());
        let changed = Arc::clone(&hosts);
        nodes.on_change(move |change| {
            let object = change.object();
            let found = match change {
                Change::Deleted(_) => None,
                _ => decode::<Node>(object).map(|node| entry(&object.key.name, &node)),
            };
            changed.set(&object.key.name, found);
        });
        hosts
    }

    fn set(&self, node: &str, found: Option<HostEntry>) {
        let mut known = self.known.lock();
        let same = known.get(node) == found.as_ref();
        if same {
            return;
        }
        match found {
            Some(entry) => known.insert(node.to_owned(), entry),
            None => known.remove(node),
        };
        let pairs = known.values().flat_map(|(host, list)| list.iter().map(move |ip| (*ip, host)));
        self.table.store(Arc::new(Hosts::of(pairs, TTL)));
    }

    /// The answer to a question about a node, if it is one.
    pub(crate) fn answer(&self, request: &Message) -> Option<Message> {
        self.table.load().answer(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_proto::op::Query;
    use hickory_proto::rr::{Name, RecordType};
    use serde_json::json;

    fn ask(hosts: &NodeHosts, name: &str, kind: RecordType) -> String {
        let mut request = Message::query();
        request.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        let Some(answer) = hosts.answer(&request) else { return "next".into() };
        let shown = |r: &hickory_proto::rr::Record| format!("{} {}", r.ttl, r.data);
        answer.answers.iter().map(shown).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn nodes_have_their_internal_addresses() {
        let node: Node = serde_json::from_value(json!({"status": {"addresses": [
            {"type": "InternalIP", "address": "192.0.2.7"},
            {"type": "InternalIP", "address": "2001:db8::7"},
            {"type": "ExternalIP", "address": "203.0.113.7"},
            {"type": "Hostname", "address": "host-a"}]}}))
        .unwrap();
        let hosts = NodeHosts::default();
        assert_eq!(ask(&hosts, "host-a.", RecordType::A), "next");
        hosts.set("a", Some(entry("a", &node)));
        hosts.set("b", Some(entry("b", &Node::default())));
        assert_eq!(ask(&hosts, "host-a.", RecordType::A), "60 192.0.2.7");
        assert_eq!(ask(&hosts, "HOST-A.", RecordType::AAAA), "60 2001:db8::7");
        assert_eq!(ask(&hosts, "7.2.0.192.in-addr.arpa.", RecordType::PTR), "60 host-a.");
        assert_eq!(ask(&hosts, "a.", RecordType::A), "next");
        assert_eq!(ask(&hosts, "b.", RecordType::A), "next");
        hosts.set("a", None);
        assert_eq!(ask(&hosts, "host-a.", RecordType::A), "next");
    }
}
