//! Assigns pod CIDRs to nodes: by default a /24 of IPv4, a /64 of IPv6.

use std::collections::HashMap;
use std::sync::Arc;

use api::k8s::api::core::v1::Node;
use client::events::EventType;
use client::{Action, Change, Client, Error, EventRecorder, Informer, Patch};
use parking_lot::Mutex;
use serde_json::json;

use crate::framework::context::Context;
use crate::framework::ip_prefix::{InvalidPrefix, Prefix};
use crate::framework::keyed::{Keyed, settled};
use crate::framework::prefix_set::PrefixSet;

/// Why a node gets no pod CIDRs.
#[derive(Debug, thiserror::Error)]
enum AllocationError {
    /// Every CIDR of `--cluster-cidr` is allocated.
    #[error("no piece of the pod networks is left for node {node}; enlarge --cluster-cidr")]
    ClusterCidrUsedUp { node: String },
    /// The node could not be patched.
    #[error(transparent)]
    Client(#[from] Error),
}

struct Controller {
    client: Client,
    recorder: EventRecorder,
    nodes: Informer<Node>,
    clusters: Vec<Prefix>,
    /// `--node-cidr-mask-size-ipv4` and `--node-cidr-mask-size-ipv6`.
    masks: (u8, u8),
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// What the nodes in the cache have.
    taken: HashMap<String, Vec<Prefix>>,
    /// Given, but not yet seen in the cache.
    given: HashMap<String, Vec<Prefix>>,
    /// All of `taken` and `given`, and the networks of Services.
    used: PrefixSet,
    /// Where the next search begins, per cluster CIDR, so that a freed CIDR is not reused at once.
    next: Vec<u64>,
    /// A search found none, and none was freed since: nodes without a CIDR try again and again.
    is_used_up: bool,
}

/// Starts the controller. One worker: two nodes must never get the same CIDR.
pub(crate) fn start(context: &Context) {
    let parse = |texts: &[String]| -> Result<Vec<Prefix>, InvalidPrefix> {
        texts.iter().map(|t| t.parse()).collect()
    };
    let config = &context.config;
    let (clusters, services) = match (parse(&config.cluster_cidrs), parse(&config.service_cidrs)) {
        (Ok(clusters), Ok(services)) => (clusters, services),
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(%error, "pod CIDRs are not allocated: --cluster-cidr or \
                --service-cidr is invalid");
            return;
        }
    };
    let client = context.client("node-controller");
    let recorder = context.recorder(&client, "cidrAllocator");
    let nodes = context.informers.of::<Node>();
    let mut keyed = Keyed::new();
    keyed.watches_self(&nodes);
    let state = Arc::new(Mutex::new(State::new(&services)));
    let seen = Arc::clone(&state);
    nodes.on_change(move |change| seen.lock().see(change));
    let controller = Arc::new(Controller {
        client,
        recorder,
        nodes,
        clusters,
        masks: config.tuning.node_masks,
        state,
    });
    keyed.run(&context.tasks, "node-ipam-controller", 1, move |(_, name)| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(&name).await }
    });
}

fn networks(node: &Node) -> impl Iterator<Item = Prefix> {
    let spec = node.spec.as_ref();
    let all = spec.and_then(|s| s.pod_cidrs.as_deref()).unwrap_or_default();
    let one = spec.and_then(|s| s.pod_cidr.as_deref()).filter(|_| all.is_empty());
    all.iter().map(String::as_str).chain(one).filter_map(|t| t.parse().ok())
}

fn has_networks(node: &Node) -> bool {
    let spec = node.spec.as_ref();
    spec.is_some_and(|s| {
        s.pod_cidrs.as_ref().is_some_and(|c| !c.is_empty())
            || s.pod_cidr.as_ref().is_some_and(|c| !c.is_empty())
    })
}

/// The first CIDR of `cluster` from `next` on, wrapping around, that overlaps nothing in `used`,
/// and where the next search begins.
fn free(
    cluster: &Prefix,
    (v4, v6): (u8, u8),
    next: u64,
    used: &PrefixSet,
) -> Option<(Prefix, u64)> {
    let mask = if cluster.is_v4() { v4 } else { v6 };
    let count = cluster.count(mask);
    // A node's CIDR blocks one try; a larger network may block many, but never more than there are
    // CIDRs.
    (0..count).find_map(|offset| {
        let index = next.checked_add(offset).filter(|i| *i < count);
        let index = index.unwrap_or_else(|| next.wrapping_add(offset).wrapping_sub(count));
        let piece = cluster.subnet(mask, index)?;
        (!used.overlaps(&piece)).then(|| (piece, (index + 1) % count))
    })
}

impl State {
    fn new(services: &[Prefix]) -> Self {
        let mut state = Self::default();
        services.iter().for_each(|prefix| state.used.insert(*prefix));
        state
    }

    fn see(&mut self, change: &Change) {
        let object = change.object();
        let name = object.key.name.to_string();
        let networks: Vec<Prefix> = match change {
            Change::Deleted(_) => Vec::new(),
            Change::Added(_) | Change::Updated { .. } => {
                client::informer::decode(object).iter().flat_map(networks).collect()
            }
        };
        for prefix in &networks {
            self.used.insert(*prefix);
        }
        let old = if networks.is_empty() {
            self.taken.remove(&name)
        } else {
            self.taken.insert(name, networks)
        };
        self.release(old);
    }

    /// Notes that a node exists with its CIDRs, or does not exist.
    fn forget_given(&mut self, name: &str) {
        let old = self.given.remove(name);
        self.release(old);
    }

    fn release(&mut self, prefixes: Option<Vec<Prefix>>) {
        for prefix in prefixes.iter().flatten() {
            self.used.remove(prefix);
            self.is_used_up = false;
        }
    }

    /// CIDRs for a node, one per cluster CIDR; `None` when one of these is used up.
    fn choose(&mut self, name: &str, clusters: &[Prefix], masks: (u8, u8)) -> Option<Vec<Prefix>> {
        if let Some(given) = self.given.get(name) {
            return Some(given.clone());
        }
        if self.is_used_up {
            return None;
        }
        self.next.resize(clusters.len(), 0);
        let mut pieces = Vec::new();
        for (cluster, next) in clusters.iter().zip(&mut self.next) {
            let Some((piece, after)) = free(cluster, masks, *next, &self.used) else {
                self.is_used_up = true;
                return None;
            };
            *next = after;
            pieces.push(piece);
        }
        pieces.iter().for_each(|piece| self.used.insert(*piece));
        self.given.insert(name.to_owned(), pieces.clone());
        Some(pieces)
    }
}

impl Controller {
    async fn reconcile(&self, name: &str) -> Result<Action, AllocationError> {
        let Some(node) = self.nodes.get("", name) else {
            self.state.lock().forget_given(name);
            return Ok(Action::Done);
        };
        if has_networks(&node) {
            self.state.lock().forget_given(name);
            return Ok(Action::Done);
        }
        if node.metadata.deletion_timestamp.is_some() {
            return Ok(Action::Done);
        }
        let chosen = self.state.lock().choose(name, &self.clusters, self.masks);
        let Some(pieces) = chosen else {
            let reference = client::events::reference(&node);
            let text = format!("Node {name} status is now: CIDRNotAvailable");
            self.recorder.event_for(reference, EventType::Normal, "CIDRNotAvailable", text);
            return Err(AllocationError::ClusterCidrUsedUp { node: name.to_owned() });
        };
        let texts: Vec<String> = pieces.iter().map(ToString::to_string).collect();
        let patch = json!({
            "metadata": {"uid": node.metadata.uid},
            "spec": {"podCIDR": texts.first(), "podCIDRs": texts},
        });
        settled(self.client.patch::<Node>("", name, "", &Patch::Merge(&patch)).await)?;
        Ok(Action::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MASKS: (u8, u8) = (24, 64);

    fn p(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    fn used(texts: &[&str]) -> PrefixSet {
        let prefixes: Vec<Prefix> = texts.iter().map(|text| p(text)).collect();
        State::new(&prefixes).used
    }

    #[test]
    fn pieces_go_round_and_skip_what_is_taken() {
        let cluster = p("10.42.0.0/22");
        let taken = used(&["10.42.0.0/24", "10.42.2.0/25"]);
        let (piece, next) = free(&cluster, MASKS, 0, &taken).unwrap();
        assert_eq!((piece, next), (p("10.42.1.0/24"), 2));
        assert_eq!(free(&cluster, MASKS, next, &taken), Some((p("10.42.3.0/24"), 0)));
        assert_eq!(
            free(&cluster, MASKS, 3, &used(&["10.42.3.0/24"])),
            Some((p("10.42.0.0/24"), 1))
        );
        assert_eq!(free(&cluster, MASKS, 1, &used(&["10.42.0.0/22"])), None);
    }

    #[test]
    fn what_nodes_have_is_known_until_they_are_gone() {
        let node = |network: &str| {
            let spec = serde_json::json!({"podCIDR": network, "podCIDRs": [network]});
            let value = serde_json::json!({"kind": "Node", "apiVersion": "v1",
                "metadata": {"name": "a", "uid": "1"}, "spec": spec});
            Arc::new(api::Object::from_value(value).unwrap())
        };
        let (mut state, cluster) = (State::default(), p("10.42.0.0/23"));
        state.see(&Change::Added(node("10.42.0.0/24")));
        assert_eq!(state.taken["a"], [p("10.42.0.0/24")]);
        let (old, new) = (node("10.42.0.0/24"), node("10.42.1.0/24"));
        state.see(&Change::Updated { old, new: Arc::clone(&new) });
        assert_eq!(free(&cluster, MASKS, 1, &state.used), Some((p("10.42.0.0/24"), 1)));
        assert_eq!(state.choose("b", &[cluster], MASKS), Some(vec![p("10.42.0.0/24")]));
        assert_eq!(state.choose("b", &[cluster], MASKS), Some(vec![p("10.42.0.0/24")]));
        assert_eq!(state.choose("c", &[cluster], MASKS), None, "both are used");
        state.see(&Change::Deleted(new));
        assert!(state.taken.is_empty());
        assert_eq!(state.choose("c", &[cluster], MASKS), Some(vec![p("10.42.1.0/24")]));
        state.forget_given("b");
        assert_eq!(free(&cluster, MASKS, 0, &state.used), Some((p("10.42.0.0/24"), 1)));
    }

    #[test]
    fn service_addresses_inside_the_pod_network_are_left_out() {
        let (piece, _) = free(&p("fd00::/62"), MASKS, 0, &used(&["fd00::/112"])).unwrap();
        assert_eq!(piece, p("fd00:0:0:1::/64"));
    }
}
