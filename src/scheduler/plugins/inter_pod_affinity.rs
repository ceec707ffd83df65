//! InterPodAffinity: pods near or away from other pods.

use std::collections::HashMap;

use crate::event::Event;
use crate::framework::{MAX_NODE_SCORE, Plugin, Snapshot};
use crate::node_info::NodeInfo;
use crate::pod_info::{AffinityTerm, PodInfo};
use crate::rejection::Rejection;

/// Weight of a required affinity term of an existing pod, for the incoming one
/// (`hardPodAffinityWeight`).
const HARD_POD_AFFINITY_WEIGHT: i64 = 1;

/// A count or weight per topology key and value.
type TopologyCounts = HashMap<(String, String), i64>;

/// Counts per topology, gathered once per cycle.
#[derive(Debug, Clone, Default)]
pub(super) struct InterPodAffinity {
    /// For `filter`: pods that match every required affinity term of the incoming pod.
    affinity: TopologyCounts,
    /// For `filter`: pods that match a required anti-affinity term of the incoming pod.
    anti_affinity: TopologyCounts,
    /// For `filter`: required anti-affinity terms of existing pods that match the incoming one.
    existing_anti_affinity: TopologyCounts,
    /// For `score`: weights of the preferred terms of all pods.
    weights: TopologyCounts,
}

impl Plugin for InterPodAffinity {
    const NAME: &'static str = "InterPodAffinity";

    fn queueing_hint(event: &Event<'_>, _: &PodInfo) -> bool {
        matches!(
            event,
            Event::Node | Event::AssignedPodDelete(_) | Event::AssignedPodAdd | Event::Namespace
        )
    }

    fn pre_filter(snapshot: &Snapshot<'_>) -> Option<Self> {
        let mut state = Self::default();
        for node in snapshot.nodes {
            for existing in &node.pods {
                state.update(snapshot, existing, node, 1);
            }
        }
        let pod = snapshot.pod;
        let needed = !pod.affinity.is_empty()
            || !pod.anti_affinity.is_empty()
            || !state.existing_anti_affinity.is_empty();
        needed.then_some(state)
    }

    fn filter(&self, snapshot: &Snapshot<'_>, node: &NodeInfo) -> Result<(), Rejection> {
        let pod = snapshot.pod;
        if !self.satisfies_affinity(pod, node) {
            return Err(Rejection::unresolvable("node(s) didn't match pod affinity rules"));
        }
        if pod.anti_affinity.iter().any(|term| count(&self.anti_affinity, term, node) > 0) {
            return Err(Rejection::new("node(s) didn't match pod anti-affinity rules"));
        }
        let mut existing = self.existing_anti_affinity.iter();
        if existing.any(|((key, value), n)| *n > 0 && node.labels.get(key) == Some(value)) {
            return Err(Rejection::new("node(s) didn't satisfy existing pods anti-affinity rules"));
        }
        Ok(())
    }

    fn add_pod(&mut self, snapshot: &Snapshot<'_>, pod: &PodInfo, node: &NodeInfo) {
        self.update(snapshot, pod, node, 1);
    }

    fn remove_pod(&mut self, snapshot: &Snapshot<'_>, pod: &PodInfo, node: &NodeInfo) {
        self.update(snapshot, pod, node, -1);
    }

    fn pre_score(snapshot: &Snapshot<'_>, _: &[&NodeInfo]) -> Option<Self> {
        let mut state = Self::default();
        for node in snapshot.nodes {
            for existing in &node.pods {
                state.weigh(snapshot, existing, node);
            }
        }
        (!state.weights.is_empty()).then_some(state)
    }

    fn score(&self, _: &Snapshot<'_>, node: &NodeInfo) -> i64 {
        let weights = self.weights.iter();
        weights
            .filter(|((key, value), _)| node.labels.get(key) == Some(value))
            .map(|(_, weight)| *weight)
            .sum()
    }

    /// The lowest score becomes 0, the highest `MAX_NODE_SCORE`.
    fn normalize_score(&self, scores: &mut [i64]) {
        let min = scores.iter().copied().min().unwrap_or(0);
        let max = scores.iter().copied().max().unwrap_or(0);
        for score in scores {
            *score = if max == min { 0 } else { (*score - min) * MAX_NODE_SCORE / (max - min) };
        }
    }
}

fn add(counts: &mut TopologyCounts, term: &AffinityTerm, node: &NodeInfo, by: i64) {
    if let Some(value) = node.labels.get(&term.topology_key) {
        *counts.entry((term.topology_key.clone(), value.clone())).or_insert(0) += by;
    }
}

/// The count of the topology that the node is in; 0 without the label.
fn count(counts: &TopologyCounts, term: &AffinityTerm, node: &NodeInfo) -> i64 {
    let Some(value) = node.labels.get(&term.topology_key) else { return 0 };
    counts.get(&(term.topology_key.clone(), value.clone())).copied().unwrap_or(0)
}

impl InterPodAffinity {
    /// Counts `existing` on `node`, or no longer (`by` is -1).
    fn update(&mut self, snapshot: &Snapshot<'_>, existing: &PodInfo, node: &NodeInfo, by: i64) {
        let pod = snapshot.pod;
        let labels = |namespace: &str| snapshot.listers.namespace_labels(namespace);
        if !pod.affinity.is_empty() && pod.affinity.iter().all(|t| t.matches(existing, &labels)) {
            for term in &pod.affinity {
                add(&mut self.affinity, term, node, by);
            }
        }
        for term in pod.anti_affinity.iter().filter(|t| t.matches(existing, &labels)) {
            add(&mut self.anti_affinity, term, node, by);
        }
        for term in existing.anti_affinity.iter().filter(|t| t.matches(pod, &labels)) {
            add(&mut self.existing_anti_affinity, term, node, by);
        }
    }

    /// Adds the preferred terms of the incoming pod that match `existing`, and the other way round.
    fn weigh(&mut self, snapshot: &Snapshot<'_>, existing: &PodInfo, node: &NodeInfo) {
        let pod = snapshot.pod;
        let labels = |namespace: &str| snapshot.listers.namespace_labels(namespace);
        for (owner, other) in [(&**pod, existing), (existing, &**pod)] {
            for (weight, term) in &owner.preferred_affinity {
                if term.matches(other, &labels) {
                    add(&mut self.weights, term, node, *weight);
                }
            }
            for (weight, term) in &owner.preferred_anti_affinity {
                if term.matches(other, &labels) {
                    add(&mut self.weights, term, node, -*weight);
                }
            }
        }
        for term in existing.affinity.iter().filter(|t| t.matches(pod, &labels)) {
            add(&mut self.weights, term, node, HARD_POD_AFFINITY_WEIGHT);
        }
    }

    fn satisfies_affinity(&self, pod: &PodInfo, node: &NodeInfo) -> bool {
        if pod.affinity.iter().any(|term| !node.labels.contains_key(&term.topology_key)) {
            return false;
        }
        if pod.affinity.iter().all(|term| count(&self.affinity, term, node) > 0) {
            return true;
        }
        // The first pod of a group with affinity to itself has no other pod to match.
        self.affinity.values().all(|n| *n <= 0)
            && pod.affinity.iter().all(|term| term.matches(pod, &|_| None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listers::NoObjects;
    use api::k8s::apimachinery::pkg::apis::meta::v1::LabelSelector;
    use std::sync::Arc;

    fn term() -> AffinityTerm {
        let selector = LabelSelector {
            match_labels: Some([("app".to_owned(), "x".to_owned())].into()),
            match_expressions: None,
        };
        AffinityTerm {
            namespaces: ["n".to_owned()].into(),
            namespace_selector: None,
            selector: Some(selector),
            topology_key: "zone".into(),
        }
    }

    fn pod(app: &str) -> PodInfo {
        PodInfo {
            namespace: "n".into(),
            labels: [("app".to_owned(), app.to_owned())].into(),
            ..PodInfo::default()
        }
    }

    fn nodes(on_first: PodInfo) -> [NodeInfo; 2] {
        let node = |zone: &str, pods| NodeInfo {
            known: true,
            labels: [("zone".to_owned(), zone.to_owned())].into(),
            pods,
            ..NodeInfo::default()
        };
        [node("1", vec![Arc::new(on_first)]), node("2", vec![])]
    }

    /// Outcome of the filter for each node.
    fn filter(pod: &PodInfo, nodes: &[NodeInfo]) -> Vec<Result<(), Rejection>> {
        let pod = Arc::new(pod.clone());
        let snapshot = Snapshot { pod: &pod, nodes, listers: &NoObjects };
        let plugin = InterPodAffinity::pre_filter(&snapshot).unwrap();
        nodes.iter().map(|node| plugin.filter(&snapshot, node)).collect()
    }

    #[test]
    fn affinity_needs_a_matching_pod_in_the_topology() {
        let outcome = filter(&PodInfo { affinity: vec![term()], ..pod("x") }, &nodes(pod("x")));
        assert!(outcome[0].is_ok());
        assert!(outcome[1].as_ref().unwrap_err().unresolvable);
    }

    #[test]
    fn first_pod_of_a_group_satisfies_its_own_affinity() {
        let outcome = |app| {
            filter(&PodInfo { affinity: vec![term()], ..pod(app) }, &nodes(pod("y")))[1].is_ok()
        };
        assert!(outcome("x"));
        assert!(!outcome("y"));
    }

    #[test]
    fn anti_affinity_holds_in_both_directions() {
        let outcome =
            filter(&PodInfo { anti_affinity: vec![term()], ..pod("z") }, &nodes(pod("x")));
        assert!(outcome[0].is_err());
        assert!(outcome[1].is_ok());
        let occupied = nodes(PodInfo { anti_affinity: vec![term()], ..pod("z") });
        let outcome = filter(&pod("x"), &occupied);
        assert_eq!(
            outcome[0].as_ref().unwrap_err().reasons,
            ["node(s) didn't satisfy existing pods anti-affinity rules"]
        );
    }

    #[test]
    fn pod_without_affinity_among_such_pods_skips_the_filter() {
        let (pod, nodes) = (Arc::new(pod("x")), nodes(pod("y")));
        let snapshot = Snapshot { pod: &pod, nodes: &nodes, listers: &NoObjects };
        assert!(InterPodAffinity::pre_filter(&snapshot).is_none());
        assert!(InterPodAffinity::pre_score(&snapshot, &[]).is_none());
    }
}
