//! InterPodAffinity: pods near or away from other pods.

use std::borrow::Cow;
use std::collections::HashMap;

use client::labels::Labels;

use crate::event::Event;
use crate::framework::{MAX_NODE_SCORE, Plugin, Snapshot};
use crate::node_info::NodeInfo;
use crate::pod_info::{AffinityTerm, PodInfo};
use crate::rejection::Rejection;

/// A count or weight per topology key and value.
#[derive(Debug, Clone, Default)]
struct TopologyCounts(HashMap<String, HashMap<String, i64>>);

impl TopologyCounts {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds to the topology that the node is in; nothing without the label.
    fn add(&mut self, key: &str, node: &NodeInfo, by: i64) {
        let Some(value) = node.labels.get(key) else { return };
        if !self.0.contains_key(key) {
            self.0.insert(key.to_owned(), HashMap::new());
        }
        let Some(values) = self.0.get_mut(key) else { return };
        match values.get_mut(value) {
            Some(count) => *count += by,
            None => drop(values.insert(value.clone(), by)),
        }
    }

    /// The count of the topology that the node is in; 0 without the label.
    fn of(&self, key: &str, node: &NodeInfo) -> i64 {
        let values = self.0.get(key).zip(node.labels.get(key));
        values.and_then(|(values, value)| values.get(value)).copied().unwrap_or(0)
    }

    /// Whether the node is in a topology with a count above 0.
    fn any(&self, node: &NodeInfo) -> bool {
        self.0.keys().any(|key| self.of(key, node) > 0)
    }

    /// The sum over all topologies that the node is in.
    fn sum(&self, node: &NodeInfo) -> i64 {
        self.0.keys().map(|key| self.of(key, node)).sum()
    }

    /// Whether no topology has a count.
    fn is_zero(&self) -> bool {
        self.0.values().flat_map(HashMap::values).all(|count| *count == 0)
    }
}

/// Terms of the incoming pod, with the namespaces that their selectors select.
#[derive(Debug, Clone, Default)]
struct OwnTerms {
    affinity: Vec<AffinityTerm>,
    anti_affinity: Vec<AffinityTerm>,
}

/// Counts per topology, gathered once per cycle.
#[derive(Debug, Clone, Default)]
pub(super) struct InterPodAffinity {
    terms: OwnTerms,
    /// Labels of the incoming pod's namespace.
    namespace_labels: Option<Labels>,
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
        let pod = snapshot.pod;
        let mut state = Self::new(snapshot);
        state.terms.affinity = with_namespaces(snapshot, pod.affinity.iter());
        state.terms.anti_affinity = with_namespaces(snapshot, pod.anti_affinity.iter());
        let has_terms = !pod.affinity.is_empty() || !pod.anti_affinity.is_empty();
        for node in snapshot.nodes.iter().filter(|node| node.known) {
            if has_terms || node.repelling_pods > 0 {
                for existing in &node.pods {
                    state.update(pod, existing, node, 1);
                }
            }
        }
        (has_terms || !state.existing_anti_affinity.is_empty()).then_some(state)
    }

    fn filter(&self, snapshot: &Snapshot<'_>, node: &NodeInfo) -> Result<(), Rejection> {
        if !self.satisfies_affinity(snapshot.pod, node) {
            return Err(Rejection::unresolvable("node(s) didn't match pod affinity rules"));
        }
        let mut terms = self.terms.anti_affinity.iter();
        if terms.any(|term| self.anti_affinity.of(&term.topology_key, node) > 0) {
            return Err(Rejection::new("node(s) didn't match pod anti-affinity rules"));
        }
        if self.existing_anti_affinity.any(node) {
            return Err(Rejection::new("node(s) didn't satisfy existing pods anti-affinity rules"));
        }
        Ok(())
    }

    fn add_pod(&mut self, snapshot: &Snapshot<'_>, pod: &PodInfo, node: &NodeInfo) {
        self.update(snapshot.pod, pod, node, 1);
    }

    fn remove_pod(&mut self, snapshot: &Snapshot<'_>, pod: &PodInfo, node: &NodeInfo) {
        self.update(snapshot.pod, pod, node, -1);
    }

    fn pre_score(snapshot: &Snapshot<'_>, _: &[&NodeInfo]) -> Option<Self> {
        let pod = snapshot.pod;
        let affinity = weighted(snapshot, &pod.preferred_affinity);
        let anti_affinity = weighted(snapshot, &pod.preferred_anti_affinity);
        let has_terms = !affinity.is_empty() || !anti_affinity.is_empty();
        if snapshot.args.ignore_preferred_terms_of_existing_pods && !has_terms {
            return None;
        }
        let mut state = Self::new(snapshot);
        for node in snapshot.nodes.iter().filter(|node| node.known) {
            if !has_terms && node.affine_pods == 0 {
                continue;
            }
            for existing in &node.pods {
                for (weight, term) in &affinity {
                    state.weigh(term, existing, None, node, *weight);
                }
                for (weight, term) in &anti_affinity {
                    state.weigh(term, existing, None, node, -weight);
                }
                if existing.has_affinity() {
                    state.weigh_existing(snapshot, existing, node);
                }
            }
        }
        (!state.weights.is_empty()).then_some(state)
    }

    fn score(&self, _: &Snapshot<'_>, node: &NodeInfo) -> i64 {
        self.weights.sum(node)
    }

    /// The lowest score becomes 0, the highest `MAX_NODE_SCORE`. The division is upstream's, in
    /// floating point.
    fn normalize_score(&self, scores: &mut [i64]) {
        let min = scores.iter().copied().min().unwrap_or(0);
        let max = scores.iter().copied().max().unwrap_or(0);
        for score in scores {
            let share = (*score - min) as f64 / (max - min) as f64;
            *score = if max == min { 0 } else { (MAX_NODE_SCORE as f64 * share) as i64 };
        }
    }
}

/// The terms with the namespaces that their selectors select
/// (`mergeAffinityTermNamespacesIfNotEmpty`).
fn with_namespaces<'a>(
    snapshot: &Snapshot<'_>,
    terms: impl Iterator<Item = &'a AffinityTerm>,
) -> Vec<AffinityTerm> {
    terms.map(|term| with_selected_namespaces(snapshot, term).into_owned()).collect()
}

fn with_selected_namespaces<'a>(
    snapshot: &Snapshot<'_>,
    term: &'a AffinityTerm,
) -> Cow<'a, AffinityTerm> {
    match &term.namespace_selector {
        Some(selector) if !client::labels::is_empty(selector) => {
            let mut term = term.clone();
            term.namespaces.extend(snapshot.listers.namespaces(selector));
            term.namespace_selector = None;
            Cow::Owned(term)
        }
        _ => Cow::Borrowed(term),
    }
}

fn weighted<'a>(
    snapshot: &Snapshot<'_>,
    terms: &'a [(i64, AffinityTerm)],
) -> Vec<(i64, Cow<'a, AffinityTerm>)> {
    terms.iter().map(|(weight, term)| (*weight, with_selected_namespaces(snapshot, term))).collect()
}

impl InterPodAffinity {
    fn new(snapshot: &Snapshot<'_>) -> Self {
        let namespace_labels = snapshot.listers.namespace_labels(&snapshot.pod.namespace);
        Self { namespace_labels, ..Self::default() }
    }

    /// Counts `existing` on `node`, or no longer (`by` is -1).
    fn update(&mut self, pod: &PodInfo, existing: &PodInfo, node: &NodeInfo, by: i64) {
        let terms = &self.terms;
        let matches = |term: &AffinityTerm| term.matches(existing, None);
        if !terms.affinity.is_empty() && terms.affinity.iter().all(matches) {
            for term in &terms.affinity {
                self.affinity.add(&term.topology_key, node, by);
            }
        }
        for term in terms.anti_affinity.iter().filter(|term| matches(term)) {
            self.anti_affinity.add(&term.topology_key, node, by);
        }
        let labels = self.namespace_labels.as_ref();
        for term in existing.anti_affinity.iter().filter(|term| term.matches(pod, labels)) {
            self.existing_anti_affinity.add(&term.topology_key, node, by);
        }
    }

    /// Adds the weight of a term to the topology of a node if the term matches the pod.
    fn weigh(
        &mut self,
        term: &AffinityTerm,
        pod: &PodInfo,
        namespace_labels: Option<&Labels>,
        node: &NodeInfo,
        weight: i64,
    ) {
        if term.matches(pod, namespace_labels) {
            self.weights.add(&term.topology_key, node, weight);
        }
    }

    /// Adds the terms of an existing pod that match the incoming one.
    fn weigh_existing(&mut self, snapshot: &Snapshot<'_>, existing: &PodInfo, node: &NodeInfo) {
        let labels = self.namespace_labels.take();
        let hard = snapshot.args.hard_pod_affinity_weight;
        let required = existing.affinity.iter().map(|term| (hard, term));
        let preferred = existing.preferred_affinity.iter().map(|(weight, term)| (*weight, term));
        let anti = existing.preferred_anti_affinity.iter().map(|(weight, term)| (-weight, term));
        for (weight, term) in required.filter(|_| hard > 0).chain(preferred).chain(anti) {
            self.weigh(term, snapshot.pod, labels.as_ref(), node, weight);
        }
        self.namespace_labels = labels;
    }

    fn satisfies_affinity(&self, pod: &PodInfo, node: &NodeInfo) -> bool {
        let terms = &self.terms.affinity;
        if terms.iter().any(|term| !node.labels.contains_key(&term.topology_key)) {
            return false;
        }
        if terms.iter().all(|term| self.affinity.of(&term.topology_key, node) > 0) {
            return true;
        }
        // The first pod of a group with affinity to itself has no other pod to match.
        self.affinity.is_zero() && terms.iter().all(|term| term.matches(pod, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let node = |zone: &str| NodeInfo {
            known: true,
            labels: [("zone".to_owned(), zone.to_owned())].into(),
            ..NodeInfo::default()
        };
        let mut first = node("1");
        first.add_pod(Arc::new(on_first));
        [first, node("2")]
    }

    /// Outcome of the filter for each node.
    fn filter(pod: &PodInfo, nodes: &[NodeInfo]) -> Vec<Result<(), Rejection>> {
        let pod = Arc::new(pod.clone());
        let snapshot = Snapshot::of(&pod, nodes);
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
        let snapshot = Snapshot::of(&pod, &nodes);
        assert!(InterPodAffinity::pre_filter(&snapshot).is_none());
        assert!(InterPodAffinity::pre_score(&snapshot, &[]).is_none());
    }
}
