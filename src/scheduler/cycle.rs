//! One scheduling cycle: filter, score, select. Pure.

use base::clock;

use crate::framework::{CycleError, CycleState};
use crate::metrics::{self, point, status};
use crate::node_info::NodeInfo;
use crate::rejection::{EXTENDER, FitError, Rejection};

/// Below this number of nodes all are filtered (`minFeasibleNodesToFind`).
const MIN_FEASIBLE_NODES: usize = 100;

/// How many nodes that fit are enough (`numFeasibleNodesToFind`), by a share in percent; 0 is
/// adaptive: 50 % less 1 % per 125 nodes, at least 5 %.
fn feasible_nodes_to_find(nodes: usize, percentage: usize) -> usize {
    if nodes < MIN_FEASIBLE_NODES {
        return nodes;
    }
    let adaptive = 50_usize.saturating_sub(nodes / 125).max(5);
    let percentage = if percentage == 0 { adaptive } else { percentage };
    (nodes * percentage / 100).max(MIN_FEASIBLE_NODES)
}

/// The nodes that fit a pod.
#[derive(Debug, Default)]
pub(crate) struct Feasible {
    /// Their indexes in the snapshot.
    pub(crate) nodes: Vec<usize>,
    /// How many nodes were filtered.
    pub(crate) processed: usize,
}

/// Finds nodes that fit, from the node with the index `start` on.
///
/// # Errors
///
/// No node fits, or a plugin failed.
pub(crate) fn find(state: &CycleState<'_>, start: usize) -> Result<Feasible, FitError> {
    let snapshot = &state.snapshot;
    let fit = FitError { nodes: snapshot.nodes.len(), ..FitError::default() };
    if let Some(rejection) = state.rejection() {
        let error = rejection.is_error.then(|| {
            format!("running PreFilter plugin {:?}: {}", rejection.plugin, rejection.text())
        });
        return Err(FitError { pre_filter: Some(rejection.clone()), error, ..fit });
    }
    if let Some(nominated) = nominated_node(state) {
        return Ok(nominated);
    }
    let began = clock::now();
    let mut fit = fit;
    let found = search(state, start, &mut fit);
    let status = if found.is_err() { status::ERROR } else { status::SUCCESS };
    metrics::extension_point(point::FILTER, status, &state.profile().scheduler_name, began);
    let found = found.and_then(|feasible| pass_extenders(state, feasible, &mut fit));
    match found {
        Err(error) => Err(FitError { error: Some(error.to_string()), ..fit }),
        Ok(feasible) if feasible.nodes.is_empty() => Err(fit),
        Ok(feasible) => Ok(feasible),
    }
}

/// The node for which the pod is nominated, if it fits (`evaluateNominatedNode`).
fn nominated_node(state: &CycleState<'_>) -> Option<Feasible> {
    let snapshot = &state.snapshot;
    let node = snapshot.nodes.find(&snapshot.pod.nominated)?;
    let began = clock::now();
    let result = state.filter_with_nominated_pods(node);
    state.count_filter(&result);
    let status = match &result {
        Err(rejection) if rejection.is_error => status::ERROR,
        _ => status::SUCCESS,
    };
    metrics::extension_point(point::FILTER, status, &state.profile().scheduler_name, began);
    result.ok()?;
    let feasible = Feasible { nodes: vec![node.index], processed: 1 };
    let passed = pass_extenders(state, feasible, &mut FitError::default());
    // An error of an extender shows again when all nodes are filtered.
    passed.ok().filter(|feasible| !feasible.nodes.is_empty())
}

/// The feasible nodes that pass the filters of extenders.
fn pass_extenders(
    state: &CycleState<'_>,
    feasible: Feasible,
    fit: &mut FitError,
) -> Result<Feasible, CycleError> {
    let Some(extenders) = state.snapshot.extenders else { return Ok(feasible) };
    let nodes = extenders.filter(&state.snapshot, feasible.nodes, fit)?;
    Ok(Feasible { nodes, ..feasible })
}

/// Filters nodes until enough fit; adds the rejections to `fit`.
///
/// # Errors
///
/// A plugin failed.
fn search(
    state: &CycleState<'_>,
    start: usize,
    fit: &mut FitError,
) -> Result<Feasible, CycleError> {
    let snapshot = &state.snapshot;
    let allowed: Option<Vec<usize>> = state.restriction().map(|restriction| {
        let named = |(_, node): &(usize, &NodeInfo)| restriction.nodes.contains(&node.name);
        snapshot.nodes.iter().enumerate().filter(named).map(|(index, _)| index).collect()
    });
    fit.restriction = state.restriction().cloned();
    let count = allowed.as_ref().map_or(snapshot.nodes.len(), Vec::len);
    let enough = feasible_nodes_to_find(count, state.profile().percentage_of_nodes_to_score);
    let mut feasible = Feasible::default();
    let first = match &allowed {
        Some(allowed) => allowed.first().copied(),
        None => start.checked_rem(count),
    };
    state.sample_filters(first.and_then(|index| snapshot.nodes.get(index)));
    for offset in 0..count {
        let position = (start + offset) % count;
        let index = match &allowed {
            Some(allowed) => allowed.get(position).copied().unwrap_or(position),
            None => position,
        };
        let Some(node) = snapshot.nodes.get(index) else { continue };
        feasible.processed += 1;
        match state.filter_with_nominated_pods(node) {
            Ok(()) => feasible.nodes.push(index),
            Err(rejection) if rejection.is_error => {
                metrics::volume_error(rejection.plugin, "predicate");
                return Err(filter_error(&rejection));
            }
            Err(rejection) => fit.rejections.push((index, rejection)),
        }
        if feasible.nodes.len() >= enough {
            break;
        }
    }
    fit.processed = feasible.processed;
    state.count_filters(feasible.processed, &fit.rejections);
    Ok(feasible)
}

fn filter_error(rejection: &Rejection) -> CycleError {
    CycleError(format!("running {:?} filter plugin: {}", rejection.plugin, rejection.text()))
}

/// The index of a node with the highest score. `observe` is called with the name of each plugin
/// and its weighted scores, and with those of the extenders.
pub(crate) fn best(
    state: &CycleState<'_>,
    feasible: &Feasible,
    observe: &mut dyn FnMut(&'static str, &[i64]),
) -> usize {
    if let [one] = feasible.nodes.as_slice() {
        return *one;
    }
    let nodes: Vec<&NodeInfo> =
        feasible.nodes.iter().filter_map(|index| state.snapshot.nodes.get(*index)).collect();
    let mut scores = state.score(&nodes, observe);
    if let Some(extenders) = state.snapshot.extenders {
        let mut added = vec![0; nodes.len()];
        extenders.prioritize(&state.snapshot, &nodes, &mut added);
        observe(EXTENDER, &added);
        for (score, added) in scores.iter_mut().zip(added) {
            *score = score.saturating_add(added);
        }
    }
    let best = scores.iter().copied().max().unwrap_or(0);
    let equal: Vec<usize> =
        feasible.nodes.iter().zip(&scores).filter(|(_, s)| **s == best).map(|(i, _)| *i).collect();
    let chosen = (state.snapshot.random)(equal.len().max(1));
    equal.get(chosen).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::Snapshot;
    use crate::pod_info::PodInfo;
    use crate::profile::Profile;
    use crate::resources::Resources;
    use std::sync::Arc;

    fn node(name: &str, cpu: i64) -> NodeInfo {
        let allocatable =
            Resources { milli_cpu: cpu, memory: 1 << 30, pods: 110, ..Resources::default() };
        NodeInfo { name: name.into(), allocatable, ..NodeInfo::default() }
    }

    fn select(pod: &Arc<PodInfo>, nodes: &[NodeInfo]) -> Result<usize, FitError> {
        let profile = Profile::default();
        let state = CycleState::new(Snapshot::of(pod, nodes), &profile);
        find(&state, 0).map(|feasible| best(&state, &feasible, &mut |_, _| {}))
    }

    #[test]
    fn message_counts_reasons_as_upstream() {
        let mut off = node("c", 9000);
        off.unschedulable = true;
        let nodes = [node("a", 100), node("b", 100), off];
        let requests = Resources { milli_cpu: 500, pods: 1, ..Resources::default() };
        let pod = Arc::new(PodInfo { requests, ..PodInfo::default() });
        let fit = select(&pod, &nodes).unwrap_err();
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
            select(&pod, &nodes)
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
        let of = |name: &str, nominated: &str| {
            Arc::new(PodInfo {
                name: name.into(),
                nominated: nominated.into(),
                requests: requests.clone(),
                ..PodInfo::default()
            })
        };
        let (pod, other, profile) = (of("p", ""), [of("q", "a")], Profile::default());
        let fits = |nominated| {
            let snapshot = Snapshot { nominated, ..Snapshot::of(&pod, &nodes) };
            find(&CycleState::new(snapshot, &profile), 0).is_ok()
        };
        assert!(fits(&[]));
        assert!(!fits(&other));
    }

    #[test]
    fn names_of_nodes_restrict_the_search() {
        let nodes = [node("a", 1000), node("b", 1000), node("c", 1)];
        let fit = |names: &[&str]| {
            let field = serde_json::json!(
                {"key": "metadata.name", "operator": "In", "values": names});
            let terms = serde_json::json!([{"matchFields": [field]}]);
            let requests = Resources { milli_cpu: 500, pods: 1, ..Resources::default() };
            let required_nodes = Some(serde_json::from_value(terms).unwrap());
            let pod = PodInfo { requests, required_nodes, ..PodInfo::default() };
            select(&Arc::new(pod), &nodes).map_err(|fit| fit.message())
        };
        assert_eq!(fit(&["b"]), Ok(1));
        assert_eq!(
            fit(&["c"]).unwrap_err(),
            "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't satisfy plugin(s) \
             [NodeAffinity]."
        );
    }

    #[test]
    fn search_of_a_large_cluster_stops_early() {
        let enough = feasible_nodes_to_find;
        assert_eq!((enough(50, 0), enough(1000, 0), enough(6000, 0)), (50, 420, 300));
        assert_eq!((enough(1000, 30), enough(200, 10), enough(300, 100)), (300, 100, 300));
    }
}
