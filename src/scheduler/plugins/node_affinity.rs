//! NodeAffinity: node selector and node affinity of the pod.

use crate::framework::{Plugin, Snapshot, default_normalize_score};
use crate::node_info::NodeInfo;
use crate::node_selector::{allows, term_matches};
use crate::rejection::Rejection;

#[derive(Debug, Clone)]
pub(super) struct NodeAffinity;

impl Plugin for NodeAffinity {
    const NAME: &'static str = "NodeAffinity";

    fn pre_filter(snapshot: &Snapshot<'_>) -> Option<Self> {
        let pod = snapshot.pod;
        (!pod.node_selector.is_empty() || pod.required_nodes.is_some()).then_some(Self)
    }

    fn filter(&self, snapshot: &Snapshot<'_>, node: &NodeInfo) -> Result<(), Rejection> {
        if allows(snapshot.pod, node) {
            return Ok(());
        }
        Err(Rejection::unresolvable("node(s) didn't match Pod's node affinity/selector"))
    }

    fn pre_score(snapshot: &Snapshot<'_>, _: &[&NodeInfo]) -> Option<Self> {
        (!snapshot.pod.preferred_nodes.is_empty()).then_some(Self)
    }

    /// Sum of the weights of the preferred terms that select the node.
    fn score(&self, snapshot: &Snapshot<'_>, node: &NodeInfo) -> i64 {
        let terms = snapshot.pod.preferred_nodes.iter();
        terms
            .filter(|(_, term)| term_matches(term, &node.name, &node.labels))
            .map(|(weight, _)| *weight)
            .sum()
    }

    fn normalize_score(&self, scores: &mut [i64]) {
        default_normalize_score(scores, false);
    }
}
