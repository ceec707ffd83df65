//! InterPodAffinity: pods near or away from other pods.

use std::borrow::Cow;
use std::sync::Arc;

use client::labels::Labels;

use crate::event::Event;
use crate::framework::{MAX_NODE_SCORE, Plugin, Snapshot};
use crate::node_info::NodeInfo;
use crate::pod_info::{AffinityTerm, PodInfo};
use crate::rejection::Rejection;
use crate::topology::Topology;

/// A count or weight for each domain of a topology key.
#[derive(Debug, Clone)]
struct DomainCounts {
    key: String,
    topology: Arc<Topology>,
    counts: Vec<i64>,
    /// The sum of `counts`.
    total: i64,
}

impl DomainCounts {
    fn new(snapshot: &Snapshot<'_>, key: &str) -> Self {
        let topology = snapshot.nodes.topology(key);
        let counts = vec![0; topology.len()];
        Self { key: key.to_owned(), topology, counts, total: 0 }
    }

    /// Adds to the domains of nodes by their indexes; nothing for nodes without the label. Returns
    /// whether a node has it.
    fn add(&mut self, nodes: impl Iterator<Item = (usize, i64)>) -> bool {
        let mut has_domain = false;
        for (node, by) in nodes {
            let domain = self.topology.domain_at(node);
            if let Some(count) = domain.and_then(|domain| self.counts.get_mut(domain)) {
                *count += by;
                self.total += by;
                has_domain = true;
            }
        }
        has_domain
    }

    /// The count of the domain of the node; 0 without the label.
    fn of(&self, node: &NodeInfo) -> i64 {
        let domain = self.topology.domain(node);
        domain.and_then(|domain| self.counts.get(domain)).copied().unwrap_or(0)
    }
}

/// Counts of several topology keys.
#[derive(Debug, Clone, Default)]
struct TopologyCounts(Vec<DomainCounts>);

impl TopologyCounts {
    /// Adds to the domains of nodes under a key; see [`DomainCounts::add`].
    fn add(
        &mut self,
        snapshot: &Snapshot<'_>,
        key: &str,
        nodes: impl Iterator<Item = (usize, i64)>,
    ) -> bool {
        if let Some(counts) = self.0.iter_mut().find(|counts| counts.key == key) {
            return counts.add(nodes);
        }
        let mut counts = DomainCounts::new(snapshot, key);
        let has_domain = counts.add(nodes);
        self.0.push(counts);
        has_domain
    }

    /// Whether the node is in a domain with a count above 0.
    fn any(&self, node: &NodeInfo) -> bool {
        self.0.iter().any(|counts| counts.of(node) > 0)
    }

    /// The sum over all domains that the node is in.
    fn sum(&self, node: &NodeInfo) -> i64 {
        self.0.iter().map(|counts| counts.of(node)).sum()
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
    /// For `filter`: pods that match every required affinity term of the incoming pod, by term.
    affinity: Vec<DomainCounts>,
    /// For `filter`: pods that match a required anti-affinity term of the incoming pod, by term.
    anti_affinity: Vec<DomainCounts>,
    /// For `filter`: required anti-affinity terms of existing pods that match the incoming one.
    existing_anti_affinity: TopologyCounts,
    /// For `score`: weights of the preferred terms of all pods.
    weights: TopologyCounts,
}

/// What a class of existing pods means to the filters of the incoming pod.
#[derive(Debug, Clone, Default)]
struct ClassMatch {
    /// Its pods match all affinity terms.
    affinity: bool,
    /// The anti-affinity terms that its pods match.
    anti_affinity: Vec<usize>,
    /// The topology keys of its anti-affinity terms that match the incoming pod.
    existing: Vec<String>,
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
        let has_terms = !pod.affinity.is_empty() || !pod.anti_affinity.is_empty();
        if !has_terms && !snapshot.nodes.have_repelling_pods() {
            return None;
        }
        let mut state = Self::new(snapshot);
        state.terms.affinity = with_namespaces(snapshot, pod.affinity.iter());
        state.terms.anti_affinity = with_namespaces(snapshot, pod.anti_affinity.iter());
        let counts = |terms: &[AffinityTerm]| -> Vec<DomainCounts> {
            terms.iter().map(|term| DomainCounts::new(snapshot, &term.topology_key)).collect()
        };
        state.affinity = counts(&state.terms.affinity);
        state.anti_affinity = counts(&state.terms.anti_affinity);
        let terms = state.terms.affinity.iter().chain(&state.terms.anti_affinity);
        let keys: Vec<&str> = terms.flat_map(label_keys).collect();
        for class in snapshot.nodes.classes(&keys).iter() {
            let matching = state.class_match(pod, class.example());
            let nodes = class.nodes().map(|(node, count)| (node, count.pods));
            state.add(snapshot, &matching, nodes);
        }
        (has_terms || !state.existing_anti_affinity.0.is_empty()).then_some(state)
    }

    fn filter(&self, snapshot: &Snapshot<'_>, node: &NodeInfo) -> Result<(), Rejection> {
        if !self.satisfies_affinity(snapshot.pod, node) {
            return Err(Rejection::unresolvable("node(s) didn't match pod affinity rules"));
        }
        if self.anti_affinity.iter().any(|counts| counts.of(node) > 0) {
            return Err(Rejection::new("node(s) didn't match pod anti-affinity rules"));
        }
        if self.existing_anti_affinity.any(node) {
            return Err(Rejection::new("node(s) didn't satisfy existing pods anti-affinity rules"));
        }
        Ok(())
    }

    fn add_pod(&mut self, snapshot: &Snapshot<'_>, pod: &PodInfo, node: &NodeInfo) {
        let matching = self.class_match(snapshot.pod, pod);
        self.add(snapshot, &matching, std::iter::once((node.index, 1)));
    }

    fn remove_pod(&mut self, snapshot: &Snapshot<'_>, pod: &PodInfo, node: &NodeInfo) {
        let matching = self.class_match(snapshot.pod, pod);
        self.add(snapshot, &matching, std::iter::once((node.index, -1)));
    }

    fn pre_score(snapshot: &Snapshot<'_>, _: &[&NodeInfo]) -> Option<Self> {
        let pod = snapshot.pod;
        let has_terms =
            !pod.preferred_affinity.is_empty() || !pod.preferred_anti_affinity.is_empty();
        let ignores_others = snapshot.args.ignore_preferred_terms_of_existing_pods
            || !snapshot.nodes.have_affine_pods();
        if ignores_others && !has_terms {
            return None;
        }
        let mut state = Self::new(snapshot);
        let own = own_weights(snapshot);
        let hard = snapshot.args.hard_pod_affinity_weight;
        let keys: Vec<&str> = own.iter().flat_map(|(_, term)| label_keys(term)).collect();
        let mut has_weights = false;
        for class in snapshot.nodes.classes(&keys).iter() {
            let example = class.example();
            let own = own.iter().filter(|(_, term)| term.matches(example, None));
            let own = own.map(|(weight, term)| (*weight, term.as_ref()));
            let existing = existing_weights(example, hard);
            let labels = state.namespace_labels.as_ref();
            let existing = existing.filter(|(_, term)| term.matches(pod, labels));
            for (weight, term) in own.chain(existing) {
                let nodes = class.nodes().map(|(node, count)| (node, weight * count.pods));
                has_weights |= state.weights.add(snapshot, &term.topology_key, nodes);
            }
        }
        has_weights.then_some(state)
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

/// The keys of the labels that the term reads of other pods.
fn label_keys(term: &AffinityTerm) -> impl Iterator<Item = &str> {
    client::labels::keys(term.selector.as_ref())
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

/// The preferred terms of the incoming pod, those of anti-affinity with negative weights.
fn own_weights<'a>(snapshot: &Snapshot<'a>) -> Vec<(i64, Cow<'a, AffinityTerm>)> {
    let pod: &'a PodInfo = snapshot.pod;
    let affinity = pod.preferred_affinity.iter().map(|(weight, term)| (*weight, term));
    let anti = pod.preferred_anti_affinity.iter().map(|(weight, term)| (-weight, term));
    affinity
        .chain(anti)
        .map(|(weight, term)| (weight, with_selected_namespaces(snapshot, term)))
        .collect()
}

/// The terms of an existing pod with their weights: `hard` for the required ones if it is above 0,
/// negative ones for anti-affinity.
fn existing_weights(existing: &PodInfo, hard: i64) -> impl Iterator<Item = (i64, &AffinityTerm)> {
    let required = existing.affinity.iter().map(move |term| (hard, term));
    let preferred = existing.preferred_affinity.iter().map(|(weight, term)| (*weight, term));
    let anti = existing.preferred_anti_affinity.iter().map(|(weight, term)| (-weight, term));
    required.filter(move |_| hard > 0).chain(preferred).chain(anti)
}

impl InterPodAffinity {
    fn new(snapshot: &Snapshot<'_>) -> Self {
        let namespace_labels = snapshot.listers.namespace_labels(&snapshot.pod.namespace);
        Self { namespace_labels, ..Self::default() }
    }

    fn class_match(&self, pod: &PodInfo, existing: &PodInfo) -> ClassMatch {
        let terms = &self.terms;
        let matches = |term: &AffinityTerm| term.matches(existing, None);
        let anti = terms.anti_affinity.iter().enumerate();
        let labels = self.namespace_labels.as_ref();
        let existing_terms = existing.anti_affinity.iter();
        ClassMatch {
            affinity: !terms.affinity.is_empty() && terms.affinity.iter().all(matches),
            anti_affinity: anti.filter(|(_, term)| matches(term)).map(|(i, _)| i).collect(),
            existing: existing_terms
                .filter(|term| term.matches(pod, labels))
                .map(|term| term.topology_key.clone())
                .collect(),
        }
    }

    /// Counts so many pods of a class on nodes with these indexes.
    fn add(
        &mut self,
        snapshot: &Snapshot<'_>,
        class: &ClassMatch,
        nodes: impl Iterator<Item = (usize, i64)> + Clone,
    ) {
        if class.affinity {
            for counts in &mut self.affinity {
                counts.add(nodes.clone());
            }
        }
        for term in &class.anti_affinity {
            if let Some(counts) = self.anti_affinity.get_mut(*term) {
                counts.add(nodes.clone());
            }
        }
        for key in &class.existing {
            self.existing_anti_affinity.add(snapshot, key, nodes.clone());
        }
    }

    fn satisfies_affinity(&self, pod: &PodInfo, node: &NodeInfo) -> bool {
        if self.affinity.iter().any(|counts| counts.topology.domain(node).is_none()) {
            return false;
        }
        if self.affinity.iter().all(|counts| counts.of(node) > 0) {
            return true;
        }
        // The first pod of a group with affinity to itself has no other pod to match.
        let is_zero = self.affinity.iter().all(|counts| counts.total == 0);
        is_zero && self.terms.affinity.iter().all(|term| term.matches(pod, None))
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
            name: zone.to_owned(),
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
        snapshot.nodes.iter().map(|node| plugin.filter(&snapshot, node)).collect()
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
