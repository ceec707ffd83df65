//! Writes the annotation `node.alpha.kubernetes.io/ttl` on nodes: how many seconds a kubelet may
//! keep Secrets and ConfigMaps in its cache. Larger clusters keep them longer.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::k8s::api::core::v1::Node;
use client::{Action, Change, Client, Error, Informer, Patch};
use parking_lot::Mutex;
use serde_json::json;

use crate::framework::context::Context;
use crate::framework::keyed::{Key, Keyed, settled};

/// Service account and name of the controller.
const CONTROLLER: &str = "ttl-controller";
/// Workers (`ConcurrentTTLSyncs`).
const WORKERS: usize = 5;
const ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";

/// A range of cluster sizes with its value.
struct Boundary {
    min: usize,
    max: usize,
    seconds: u32,
}

/// The ranges overlap, so that a cluster whose size varies around a boundary keeps its value.
const BOUNDARIES: &[Boundary] = &[
    Boundary { min: 0, max: 100, seconds: 0 },
    Boundary { min: 90, max: 500, seconds: 15 },
    Boundary { min: 450, max: 1000, seconds: 30 },
    Boundary { min: 900, max: 2000, seconds: 60 },
    Boundary { min: 1800, max: usize::MAX, seconds: 300 },
];

/// The nodes of the cluster, and the range that their number is in. An informer may report a node
/// as added twice, so that the names are needed to count them.
#[derive(Debug, Default)]
struct ClusterSize {
    nodes: BTreeSet<String>,
    step: usize,
}

impl ClusterSize {
    fn boundary(&self) -> &'static Boundary {
        &BOUNDARIES[self.step]
    }

    /// Counts a node; true when the value of all nodes changes.
    fn add(&mut self, node: &str) -> bool {
        let crosses = self.nodes.insert(node.to_owned()) && self.nodes.len() > self.boundary().max;
        self.step += usize::from(crosses);
        crosses
    }

    /// No longer counts a node; true when the value of all nodes changes.
    fn remove(&mut self, node: &str) -> bool {
        let crosses = self.nodes.remove(node) && self.nodes.len() < self.boundary().min;
        self.step -= usize::from(crosses);
        crosses
    }
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client(CONTROLLER);
    let nodes: Informer<Node> = context.informers.of();
    let size: Arc<Mutex<ClusterSize>> = Arc::default();
    let mut keyed = Keyed::new();
    let (all, counted) = (nodes.clone(), Arc::clone(&size));
    keyed.watches(&nodes, move |change| changed_keys(change, &counted, &all));
    let state = Arc::new((client, nodes, size));
    keyed.run(&context.tasks, CONTROLLER, WORKERS, move |(_, name)| {
        let state = Arc::clone(&state);
        async move { reconcile(&state.0, &state.1, &state.2, &name).await }
    });
}

/// The nodes whose annotation may have to change: the changed one, or all after a boundary.
/// Upstream waits for the next status update of the other nodes.
fn changed_keys(change: &Change, size: &Mutex<ClusterSize>, nodes: &Informer<Node>) -> Vec<Key> {
    let name = change.object().key.name.to_string();
    let crosses = match change {
        Change::Added(_) => size.lock().add(&name),
        Change::Deleted(_) => size.lock().remove(&name),
        Change::Updated { .. } => false,
    };
    let mut keys = vec![(String::new(), name)];
    if crosses {
        let all = nodes.cache().list("");
        keys.extend(all.iter().map(|node| (String::new(), node.key.name.to_string())));
    }
    keys
}

/// The annotation has the value. An unreadable value counts as none.
fn has_value(node: &Node, seconds: u32) -> bool {
    let annotation = node.metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION));
    annotation.and_then(|value| value.parse::<u32>().ok()) == Some(seconds)
}

async fn reconcile(
    client: &Client,
    nodes: &Informer<Node>,
    size: &Mutex<ClusterSize>,
    name: &str,
) -> Result<Action, Error> {
    let Some(node) = nodes.get("", name) else { return Ok(Action::Done) };
    let seconds = size.lock().boundary().seconds;
    if !has_value(&node, seconds) {
        let patch = json!({"metadata": {"annotations": {ANNOTATION: seconds.to_string()}}});
        settled(client.patch::<Node>("", name, "", &Patch::Strategic(&patch)).await)?;
    }
    Ok(Action::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets the cluster grow or shrink to `nodes`, one node at a time; counts the changes of the
    /// value.
    fn resize(size: &mut ClusterSize, nodes: usize) -> usize {
        let mut changes = 0;
        while size.nodes.len() < nodes {
            changes += usize::from(size.add(&size.nodes.len().to_string()));
        }
        while size.nodes.len() > nodes {
            changes += usize::from(size.remove(&(size.nodes.len() - 1).to_string()));
        }
        changes
    }

    #[test]
    fn value_follows_the_size_of_the_cluster_with_hysteresis() {
        let mut size = ClusterSize::default();
        for (nodes, seconds, changes) in [
            (0, 0, 0),
            (100, 0, 0),
            (101, 15, 1),
            (90, 15, 0),
            (89, 0, 1),
            (100, 0, 0),
            (500, 15, 1),
            (501, 30, 1),
            (450, 30, 0),
            (449, 15, 1),
            (1000, 30, 1),
            (1001, 60, 1),
            (900, 60, 0),
            (899, 30, 1),
            (2000, 60, 1),
            (2001, 300, 1),
            (1800, 300, 0),
            (1799, 60, 1),
            (5000, 300, 1),
            (0, 0, 4),
        ] {
            assert_eq!(resize(&mut size, nodes), changes, "changes until {nodes} nodes");
            assert_eq!(size.boundary().seconds, seconds, "{nodes} nodes");
        }
    }

    #[test]
    fn node_reported_twice_counts_once() {
        let mut size = ClusterSize::default();
        resize(&mut size, 100);
        assert!(!size.add("0"));
        assert!(size.add("100"));
        assert!(!size.remove("unknown"));
        assert_eq!(size.boundary().seconds, 15);
    }

    #[test]
    fn node_is_written_only_when_the_value_differs() {
        for (annotation, seconds, want) in [
            (None, 0, false),
            (Some("0"), 0, true),
            (Some("15"), 0, false),
            (Some("15"), 15, true),
            (Some("soon"), 0, false),
        ] {
            let mut node = Node::default();
            let annotation = annotation.map(|value| (ANNOTATION.to_owned(), value.to_owned()));
            node.metadata.annotations = Some(annotation.clone().into_iter().collect());
            assert_eq!(has_value(&node, seconds), want, "{annotation:?} {seconds}");
        }
    }

    #[test]
    fn neighbouring_ranges_overlap() {
        for pair in BOUNDARIES.windows(2) {
            assert!(pair[1].min < pair[0].max, "{}", pair[0].max);
            assert!(pair[0].seconds < pair[1].seconds);
        }
    }
}
