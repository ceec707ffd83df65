//! One scheduling cycle: filter, score, select. Pure.

use std::sync::Arc;

use crate::framework::CycleState;
use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;
use crate::rejection::{FitError, Rejection};

/// Below this number of nodes all are filtered (`minFeasibleNodesToFind`).
const MIN_FEASIBLE_NODES: usize = 100;

/// How many nodes that fit are enough (`numFeasibleNodesToFind`): adaptive, 50 % less 1 % per 125
/// nodes, at least 5 %.
fn feasible_nodes_to_find(nodes: usize) -> usize {
    if nodes < MIN_FEASIBLE_NODES {
        return nodes;
    }
    let percent = 50_usize.saturating_sub(nodes / 125).max(5);
    (nodes * percent / 100).max(MIN_FEASIBLE_NODES)
}

/// The index of the best node. `start` rotates where the search begins; `nominated` returns the
/// pods that are nominated for a node and must fit, too; `pick` chooses among `n` nodes of equal
/// score.
pub(crate) fn select(
    state: &CycleState<'_>,
    start: usize,
    nominated: &dyn Fn(&NodeInfo) -> Vec<Arc<PodInfo>>,
    pick: &dyn Fn(usize) -> usize,
) -> Result<usize, FitError> {
    let nodes = state.snapshot.nodes;
    let known: Vec<usize> =
        nodes.iter().enumerate().filter(|(_, n)| n.known).map(|(i, _)| i).collect();
    let enough = feasible_nodes_to_find(known.len());
    let mut fit = FitError { nodes: known.len(), ..FitError::default() };
    if let Some(rejection) = state.rejection() {
        let error = rejection.is_error.then(|| {
            format!("running PreFilter plugin {:?}: {}", rejection.plugin, rejection.text())
        });
        return Err(FitError { pre_filter: Some(rejection.clone()), error, ..fit });
    }
    let mut feasible: Vec<usize> = Vec::new();
    for offset in 0..known.len() {
        let Some(&index) = known.get((start + offset) % known.len()) else { break };
        let Some(node) = nodes.get(index) else { continue };
        match filter_with_nominated_pods(state, node, nominated) {
            Ok(()) => feasible.push(index),
            Err(rejection) if rejection.is_error => {
                let plugin = rejection.plugin;
                let text = format!("running {plugin:?} filter plugin: {}", rejection.text());
                return Err(FitError { error: Some(text), ..fit });
            }
            Err(rejection) => fit.rejections.push((index, rejection)),
        }
        if feasible.len() >= enough {
            break;
        }
    }
    match feasible.as_slice() {
        [] => Err(fit),
        [one] => Ok(*one),
        many => {
            let nodes: Vec<&NodeInfo> = many.iter().filter_map(|i| nodes.get(*i)).collect();
            let scores = state.score(&nodes);
            let best = scores.iter().copied().max().unwrap_or(0);
            let equal: Vec<usize> =
                many.iter().zip(&scores).filter(|(_, s)| **s == best).map(|(i, _)| *i).collect();
            Ok(equal.get(pick(equal.len())).copied().unwrap_or(0))
        }
    }
}

/// The pod fits the node both with and without the pods nominated for it: they may or may not come
/// (`RunFilterPluginsWithNominatedPods`).
fn filter_with_nominated_pods(
    state: &CycleState<'_>,
    node: &NodeInfo,
    nominated: &dyn Fn(&NodeInfo) -> Vec<Arc<PodInfo>>,
) -> Result<(), Rejection> {
    let pods = nominated(node);
    if !pods.is_empty() {
        let mut with_pods = node.clone();
        for pod in pods {
            with_pods.add_pod(pod);
        }
        state.filter(&with_pods)?;
    }
    state.filter(node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::Snapshot;
    use crate::listers::NoObjects;
    use crate::plugins::PLUGINS;
    use crate::resources::Resources;

    fn node(name: &str, cpu: i64) -> NodeInfo {
        let allocatable =
            Resources { milli_cpu: cpu, memory: 1 << 30, pods: 110, ..Resources::default() };
        NodeInfo { name: name.into(), known: true, allocatable, ..NodeInfo::default() }
    }

    fn state<'a>(pod: &'a Arc<PodInfo>, nodes: &'a [NodeInfo]) -> CycleState<'a> {
        CycleState::new(Snapshot { pod, nodes, listers: &NoObjects }, PLUGINS)
    }

    #[test]
    fn message_counts_reasons_as_upstream() {
        let mut off = node("c", 9000);
        off.unschedulable = true;
        let nodes = [node("a", 100), node("b", 100), off];
        let requests = Resources { milli_cpu: 500, pods: 1, ..Resources::default() };
        let pod = Arc::new(PodInfo { requests, ..PodInfo::default() });
        let fit = select(&state(&pod, &nodes), 0, &|_| Vec::new(), &|_| 0).unwrap_err();
        assert_eq!(
            fit.message(),
            "0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient cpu."
        );
        assert_eq!(fit.plugins(), ["NodeResourcesFit", "NodeUnschedulable"]);
    }

    #[test]
    fn pod_with_an_unknown_claim_fits_no_node() {
        let nodes = [node("a", 1000), node("b", 1000)];
        let outcome = |claims: serde_json::Value| {
            let value = serde_json::json!({"metadata": {"name": "p", "namespace": "d"},
                "spec": {"containers": [{"name": "c"}], "resourceClaims": claims}});
            let pod = Arc::new(PodInfo::new(&serde_json::from_value(value).unwrap()));
            select(&state(&pod, &nodes), 0, &|_| Vec::new(), &|_| 0)
        };
        let fit = outcome(serde_json::json!([{"name": "gpu", "resourceClaimName": "g"}]));
        let fit = fit.unwrap_err();
        assert_eq!(fit.message(), "0/2 nodes are available: could not find ResourceClaim \"d/g\".");
        assert_eq!(fit.plugins(), ["DynamicResources"]);
        assert!(fit.rejections.is_empty(), "no node was filtered");
        assert!(outcome(serde_json::json!([])).is_ok());
    }

    #[test]
    fn nominated_pod_keeps_its_resources() {
        let nodes = [node("a", 1000)];
        let requests = Resources { milli_cpu: 600, pods: 1, ..Resources::default() };
        let pod = Arc::new(PodInfo { requests, ..PodInfo::default() });
        let state = state(&pod, &nodes);
        assert_eq!(select(&state, 0, &|_| Vec::new(), &|_| 0).unwrap(), 0);
        assert!(select(&state, 0, &|_| vec![Arc::clone(&pod)], &|_| 0).is_err());
    }

    #[test]
    fn search_of_a_large_cluster_stops_early() {
        let enough = feasible_nodes_to_find;
        assert_eq!((enough(50), enough(1000), enough(6000)), (50, 420, 300));
    }
}
