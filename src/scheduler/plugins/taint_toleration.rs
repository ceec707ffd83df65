//! TaintToleration: taints of a node keep pods away that do not tolerate them.

use crate::framework::{Plugin, Snapshot, default_normalize_score};
use crate::node_info::NodeInfo;
use crate::rejection::Rejection;
use crate::tolerations::{tolerates, tolerates_all};

#[derive(Debug, Clone)]
pub(super) struct TaintToleration;

impl Plugin for TaintToleration {
    const NAME: &'static str = "TaintToleration";

    fn pre_filter(_: &Snapshot<'_>) -> Option<Self> {
        Some(Self)
    }

    fn filter(&self, snapshot: &Snapshot<'_>, node: &NodeInfo) -> Result<(), Rejection> {
        if tolerates_all(snapshot.pod, &node.taints) {
            return Ok(());
        }
        Err(Rejection::unresolvable("node(s) had untolerated taint(s)"))
    }

    /// Without a soft taint all nodes score the same.
    fn pre_score(_: &Snapshot<'_>, feasible: &[&NodeInfo]) -> Option<Self> {
        let mut taints = feasible.iter().flat_map(|node| &node.taints);
        taints.any(|taint| taint.effect == "PreferNoSchedule").then_some(Self)
    }

    /// Number of soft taints that the pod does not tolerate, before normalization.
    fn score(&self, snapshot: &Snapshot<'_>, node: &NodeInfo) -> i64 {
        let soft = node.taints.iter().filter(|taint| taint.effect == "PreferNoSchedule");
        soft.filter(|taint| !tolerates(snapshot.pod, taint)).map(|_| 1).sum()
    }

    fn normalize_score(&self, scores: &mut [i64]) {
        default_normalize_score(scores, true);
    }
}
