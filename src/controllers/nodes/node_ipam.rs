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
use crate::nodes::metrics;
use crate::nodes::metrics::CidrUse;

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
    state: Arc<Mutex<State>>,
}

/// A CIDR of `--cluster-cidr`.
#[derive(Debug)]
struct ClusterCidr {
    cidr: Prefix,
    /// Where the next search begins, so that a freed CIDR is not reused at once.
    next: u64,
    /// What the metrics show.
    uses: CidrUse,
}

#[derive(Debug)]
struct State {
    clusters: Vec<ClusterCidr>,
    /// `--node-cidr-mask-size-ipv4` and `--node-cidr-mask-size-ipv6`.
    masks: (u8, u8),
    /// What the nodes in the cache have.
    taken: HashMap<String, Vec<Prefix>>,
    /// Given, but not yet seen in the cache.
    given: HashMap<String, Vec<Prefix>>,
    /// All of `taken` and `given`, and the networks of Services.
    used: PrefixSet,
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
    let state = State::new(&clusters, &services, config.tuning.node_masks);
    let state = Arc::new(Mutex::new(state));
    metrics::ipam_started();
    let seen = Arc::clone(&state);
    nodes.on_change(move |change| seen.lock().see(change));
    let controller = Arc::new(Controller { client, recorder, nodes, state });
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

/// The mask of the pod CIDRs in a cluster CIDR.
fn mask_of(cluster: &Prefix, (v4, v6): (u8, u8)) -> u8 {
    if cluster.is_v4() { v4 } else { v6 }
}

/// How many pod CIDRs of `cluster` the networks occupy that are not among `others`.
fn occupied(cluster: &Prefix, mask: u8, networks: &[Prefix], others: &[Prefix]) -> u64 {
    let overlaps = |n: &Prefix| cluster.covers(n) || n.covers(cluster);
    let inside = networks.iter().filter(|n| overlaps(n) && !others.contains(n));
    inside.map(|n| n.count(mask).min(cluster.count(mask))).fold(0, u64::saturating_add)
}

/// The first CIDR of `cluster` from `next` on, wrapping around, that overlaps nothing in `used`,
/// and where the next search begins.
fn free(cluster: &Prefix, masks: (u8, u8), next: u64, used: &PrefixSet) -> Option<(Prefix, u64)> {
    let mask = mask_of(cluster, masks);
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
    /// No node has a CIDR; what Services take of a cluster CIDR is allocated.
    fn new(clusters: &[Prefix], services: &[Prefix], masks: (u8, u8)) -> Self {
        let cluster = |cidr: &Prefix| {
            let uses = CidrUse::new(cidr.to_string(), cidr.count(mask_of(cidr, masks)));
            ClusterCidr { cidr: *cidr, next: 0, uses }
        };
        let clusters = clusters.iter().map(cluster).collect();
        let (taken, given) = (HashMap::new(), HashMap::new());
        let used = PrefixSet::default();
        let mut state = Self { clusters, masks, taken, given, used, is_used_up: false };
        state.replace(&[], services);
        state
    }

    /// Replaces used networks by others, in the metrics too.
    fn replace(&mut self, old: &[Prefix], new: &[Prefix]) {
        new.iter().for_each(|prefix| self.used.insert(*prefix));
        old.iter().for_each(|prefix| self.used.remove(prefix));
        self.is_used_up &= old.is_empty();
        for ClusterCidr { cidr, uses, .. } in &mut self.clusters {
            let mask = mask_of(cidr, self.masks);
            uses.release(occupied(cidr, mask, old, new));
            uses.allocate(occupied(cidr, mask, new, old));
        }
    }

    /// CIDRs for a node, one per cluster CIDR; `None` when one of these is used up.
    fn choose(&mut self, name: &str) -> Option<Vec<Prefix>> {
        if let Some(given) = self.given.get(name) {
            return Some(given.clone());
        }
        if self.is_used_up {
            return None;
        }
        let mut pieces = Vec::new();
        for ClusterCidr { cidr, next, uses } in &mut self.clusters {
            let Some((piece, after)) = free(cidr, self.masks, *next, &self.used) else {
                self.is_used_up = true;
                return None;
            };
            // The search ended before `after`, which may be beyond the end of the cluster CIDR.
            let round = if after > *next { 0 } else { cidr.count(mask_of(cidr, self.masks)) };
            uses.passed(after.wrapping_add(round).wrapping_sub(*next).wrapping_sub(1));
            *next = after;
            pieces.push(piece);
        }
        self.replace(&[], &pieces);
        self.given.insert(name.to_owned(), pieces.clone());
        Some(pieces)
    }

    /// Takes back what was given to a node that is gone.
    fn take_back(&mut self, name: &str) {
        if let Some(given) = self.given.remove(name) {
            self.replace(&given, &[]);
        }
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
        let old = self.taken.remove(&name);
        if networks.is_empty() {
            self.replace(&old.unwrap_or_default(), &[]);
            return;
        }
        let old = old.or_else(|| self.given.remove(&name)).unwrap_or_default();
        self.replace(&old, &networks);
        self.taken.insert(name, networks);
    }
}

impl Controller {
    async fn reconcile(&self, name: &str) -> Result<Action, AllocationError> {
        let Some(node) = self.nodes.get("", name) else {
            self.state.lock().take_back(name);
            return Ok(Action::Done);
        };
        if has_networks(&node) || node.metadata.deletion_timestamp.is_some() {
            return Ok(Action::Done);
        }
        let Some(pieces) = self.state.lock().choose(name) else {
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
        let mut set = PrefixSet::default();
        texts.iter().for_each(|text| set.insert(p(text)));
        set
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
        let node = |network: &str| object(&[network]);
        let cluster = p("10.42.0.0/23");
        let mut state = State::new(&[cluster], &[], MASKS);
        state.see(&Change::Added(node("10.42.0.0/24")));
        assert_eq!(state.taken["a"], [p("10.42.0.0/24")]);
        let (old, new) = (node("10.42.0.0/24"), node("10.42.1.0/24"));
        state.see(&Change::Updated { old, new: Arc::clone(&new) });
        assert_eq!(free(&cluster, MASKS, 1, &state.used), Some((p("10.42.0.0/24"), 1)));
        assert_eq!(state.choose("b"), Some(vec![p("10.42.0.0/24")]));
        assert_eq!(state.choose("c"), None, "both are used");
        state.see(&Change::Deleted(new));
        assert!(state.taken.is_empty());
        assert_eq!(state.choose("c"), Some(vec![p("10.42.1.0/24")]));
        state.take_back("b");
        assert_eq!(free(&cluster, MASKS, 0, &state.used), Some((p("10.42.0.0/24"), 1)));
    }

    fn object(networks: &[&str]) -> Arc<api::Object> {
        let spec = json!({"podCIDR": networks.first(), "podCIDRs": networks});
        let value = json!({"kind": "Node", "apiVersion": "v1",
            "metadata": {"name": "a", "uid": "1"}, "spec": spec});
        Arc::new(api::Object::from_value(value).unwrap())
    }

    /// Allocations, releases, usage, maximum and searches.
    fn values(cluster: &str) -> [f64; 5] {
        [
            "cidrset_cidrs_allocations_total",
            "cidrset_cidrs_releases_total",
            "cidrset_usage_cidrs",
            "cirdset_max_cidrs",
            "cidrset_allocation_tries_per_request",
        ]
        .map(|name| crate::metrics::read(&format!("node_ipam_controller_{name}"), &[cluster]))
    }

    #[test]
    fn metrics_show_what_is_allocated() {
        let (cluster, label) = (p("10.77.0.0/22"), "10.77.0.0/22");
        let mut state = State::new(&[cluster], &[p("10.77.1.0/28")], MASKS);
        // As upstream, what Services have of the pod network is allocated.
        assert_eq!(values(label), [1.0, 0.0, 0.25, 4.0, 0.0]);
        state.see(&Change::Added(object(&["10.77.0.0/24"])));
        assert_eq!(values(label), [2.0, 0.0, 0.5, 4.0, 0.0]);
        assert_eq!(state.choose("b"), Some(vec![p("10.77.2.0/24")]));
        assert_eq!(state.choose("b"), Some(vec![p("10.77.2.0/24")]));
        assert_eq!(values(label), [3.0, 0.0, 0.75, 4.0, 1.0]);
        state.take_back("b");
        assert_eq!(state.choose("a"), Some(vec![p("10.77.3.0/24")]));
        assert_eq!(values(label), [4.0, 1.0, 0.75, 4.0, 2.0]);
        state.see(&Change::Deleted(object(&["10.77.0.0/24"])));
        assert_eq!(values(label), [4.0, 2.0, 0.5, 4.0, 2.0]);
        // What was given appears on the node: nothing new is allocated.
        let (old, new) = (object(&[]), object(&["10.77.3.0/24"]));
        state.see(&Change::Updated { old, new });
        assert_eq!(values(label), [4.0, 2.0, 0.5, 4.0, 2.0]);
        // The first search passed two, the second none, the third would begin again.
        assert_eq!(state.choose("c"), Some(vec![p("10.77.0.0/24")]));
        let mut page = String::new();
        crate::nodes::metrics::ALL[2].render(&mut page);
        assert!(page.contains("_sum{clusterCIDR=\"10.77.0.0/22\"} 2\n"), "{page}");
    }

    #[test]
    fn service_addresses_inside_the_pod_network_are_left_out() {
        let (piece, _) = free(&p("fd00::/62"), MASKS, 0, &used(&["fd00::/112"])).unwrap();
        assert_eq!(piece, p("fd00:0:0:1::/64"));
    }
}
