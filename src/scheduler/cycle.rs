//! One scheduling cycle: filter, score, select. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::node_info::NodeInfo;
use crate::plugins::{Misfit, Round, filter, score};
use crate::pod_info::PodInfo;

/// Below this number of nodes all are looked at (`minFeasibleNodesToFind`).
const FEASIBLE_MIN: usize = 100;

/// No node fits.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unfit {
    /// Per node index, why.
    pub(crate) misfits: Vec<(usize, Misfit)>,
    /// Nodes there are.
    pub(crate) nodes: usize,
}

impl Unfit {
    /// `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable.`
    pub(crate) fn message(&self) -> String {
        if self.nodes == 0 {
            return "no nodes available to schedule pods".into();
        }
        format!(
            "0/{} nodes are available: {}.",
            self.nodes,
            histogram(self.misfits.iter().flat_map(|(_, m)| &m.reasons))
        )
    }

    /// Plugins that refused.
    pub(crate) fn plugins(&self) -> Vec<&'static str> {
        let mut all: Vec<&'static str> = self.misfits.iter().map(|(_, m)| m.plugin).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// `2 reason, 1 other`, sorted as text.
pub(crate) fn histogram<'a>(reasons: impl Iterator<Item = &'a String>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for reason in reasons {
        *counts.entry(reason).or_default() += 1;
    }
    let mut parts: Vec<String> = counts.iter().map(|(reason, n)| format!("{n} {reason}")).collect();
    parts.sort();
    parts.join(", ")
}

/// How many fitting nodes are enough (`numFeasibleNodesToFind`, adaptive: 50 % less 1 % per 125 nodes, at least 5 %).
fn enough(nodes: usize) -> usize {
    if nodes < FEASIBLE_MIN {
        return nodes;
    }
    let percent = 50_usize.saturating_sub(nodes / 125).max(5);
    (nodes * percent / 100).max(FEASIBLE_MIN)
}

/// The index of the best node. `start` rotates where the search begins; `nominated` gives pods promised to a node that
/// must be respected; `pick` chooses among `n` equal ones.
pub(crate) fn select(
    round: &Round<'_>,
    start: usize,
    nominated: &dyn Fn(&NodeInfo) -> Vec<Arc<PodInfo>>,
    pick: &dyn Fn(usize) -> usize,
) -> Result<usize, Unfit> {
    let known: Vec<usize> =
        round.nodes.iter().enumerate().filter(|(_, n)| n.known).map(|(i, _)| i).collect();
    let wanted = enough(known.len());
    let mut unfit = Unfit { nodes: known.len(), misfits: Vec::new() };
    let mut fitting: Vec<usize> = Vec::new();
    for offset in 0..known.len() {
        let Some(&index) = known.get((start + offset) % known.len()) else { break };
        let Some(node) = round.nodes.get(index) else { continue };
        match fits(round, node, nominated) {
            Ok(()) => fitting.push(index),
            Err(misfit) => unfit.misfits.push((index, misfit)),
        }
        if fitting.len() >= wanted {
            break;
        }
    }
    match fitting.as_slice() {
        [] => Err(unfit),
        [one] => Ok(*one),
        many => {
            let nodes: Vec<&NodeInfo> = many.iter().filter_map(|i| round.nodes.get(*i)).collect();
            let scores = score(round, &nodes);
            let best = scores.iter().copied().max().unwrap_or(0);
            let equal: Vec<usize> =
                many.iter().zip(&scores).filter(|(_, s)| **s == best).map(|(i, _)| *i).collect();
            Ok(equal.get(pick(equal.len())).copied().unwrap_or(0))
        }
    }
}

/// The node fits, also when the pods nominated for it come.
fn fits(
    round: &Round<'_>,
    node: &NodeInfo,
    nominated: &dyn Fn(&NodeInfo) -> Vec<Arc<PodInfo>>,
) -> Result<(), Misfit> {
    let promised = nominated(node);
    if !promised.is_empty() {
        let mut with = node.clone();
        for pod in promised {
            with.add_pod(pod);
        }
        filter(round, &with)?;
    }
    filter(round, node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::Resources;
    use crate::volumes::VolumeView;

    fn node(name: &str, cpu: i64) -> NodeInfo {
        let allocatable =
            Resources { milli_cpu: cpu, memory: 1 << 30, pods: 110, ..Resources::default() };
        NodeInfo { name: name.into(), known: true, allocatable, ..NodeInfo::default() }
    }

    #[test]
    fn the_message_counts_reasons_as_upstream() {
        let mut off = node("c", 9000);
        off.unschedulable = true;
        let nodes = [node("a", 100), node("b", 100), off];
        let requests = Resources { milli_cpu: 500, pods: 1, ..Resources::default() };
        let pod = Arc::new(PodInfo { requests, ..PodInfo::default() });
        let volumes = VolumeView::default();
        let round = Round::new(&pod, &nodes, &|_| None, &volumes);
        let unfit = select(&round, 0, &|_| Vec::new(), &|_| 0).unwrap_err();
        assert_eq!(
            unfit.message(),
            "0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient cpu."
        );
    }

    #[test]
    fn pod_with_resource_claims_fits_no_node() {
        let nodes = [node("a", 1000), node("b", 1000)];
        let volumes = VolumeView::default();
        let outcome = |claims: serde_json::Value| {
            let value = serde_json::json!({"metadata": {"name": "p", "namespace": "d"},
                "spec": {"containers": [{"name": "c"}], "resourceClaims": claims}});
            let pod = Arc::new(PodInfo::new(&serde_json::from_value(value).unwrap()));
            select(&Round::new(&pod, &nodes, &|_| None, &volumes), 0, &|_| Vec::new(), &|_| 0)
        };
        let unfit = outcome(serde_json::json!([{"name": "gpu", "resourceClaimName": "g"}]));
        let unfit = unfit.unwrap_err();
        assert_eq!(
            unfit.message(),
            "0/2 nodes are available: 2 node(s) do not support resource claims."
        );
        assert!(unfit.misfits.iter().all(|(_, misfit)| misfit.unresolvable));
        assert!(outcome(serde_json::json!([])).is_ok());
    }

    #[test]
    fn a_nominated_pod_keeps_its_place() {
        let nodes = [node("a", 1000)];
        let requests = Resources { milli_cpu: 600, pods: 1, ..Resources::default() };
        let pod = Arc::new(PodInfo { requests, ..PodInfo::default() });
        let volumes = VolumeView::default();
        let round = Round::new(&pod, &nodes, &|_| None, &volumes);
        assert_eq!(select(&round, 0, &|_| Vec::new(), &|_| 0).unwrap(), 0);
        assert!(select(&round, 0, &|_| vec![Arc::clone(&pod)], &|_| 0).is_err());
    }

    #[test]
    fn large_clusters_are_not_searched_whole() {
        assert_eq!((enough(50), enough(1000), enough(6000)), (50, 420, 300));
    }
}
