//! PodTopologySpread: pods that match a selector spread evenly over topology domains.

mod default_constraints;

use std::borrow::Cow;
use std::sync::Arc;

use crate::event::Event;
use crate::framework::{MAX_NODE_SCORE, Plugin, Snapshot};
use crate::node_info::NodeInfo;
use crate::node_selector::allows;
use crate::pod_info::{PodInfo, SpreadConstraint};
use crate::rejection::Rejection;
use crate::tolerations::tolerates_all;
use crate::topology::Topology;

/// Score of a node that lacks a label of a constraint, before normalization (`invalidScore`).
const IGNORED: i64 = -1;
/// Domains of this key are single nodes, whose pods are counted when the node is scored.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// A constraint with the number of matching pods per domain.
#[derive(Debug, Clone)]
struct CountedConstraint {
    constraint: SpreadConstraint,
    topology: Arc<Topology>,
    /// By domain of the topology; `None` where no node of the domain counts.
    counts: Vec<Option<i64>>,
    /// How many of `counts` are known, and the least of them.
    domains: usize,
    least: Option<i64>,
    /// The number of pods that the constraint counts, by index of the node.
    matching: Arc<[i64]>,
    /// The constraint selects the pod itself.
    selects_itself: bool,
    /// Keys with many domains weigh more in scores (`topologyNormalizingWeight`).
    weight: f64,
}

/// The constraints of one phase: `DoNotSchedule` for the filter, `ScheduleAnyway` for scores.
#[derive(Debug, Clone)]
pub(super) struct PodTopologySpread {
    constraints: Vec<CountedConstraint>,
    /// Nodes without the label of one of the constraints do not count. They do for upstream's
    /// default constraints, so that nodes outside of zones are spread over, too.
    requires_all_labels: bool,
}

impl Plugin for PodTopologySpread {
    const NAME: &'static str = "PodTopologySpread";

    fn queueing_hint(event: &Event<'_>, _: &PodInfo) -> bool {
        matches!(event, Event::Node | Event::AssignedPodDelete(_) | Event::AssignedPodAdd)
    }

    fn pre_filter(snapshot: &Snapshot<'_>) -> Option<Self> {
        let constraints = constraints(snapshot, true);
        if constraints.is_empty() {
            return None;
        }
        let mut state = Self::new(snapshot, &constraints, true);
        for node in snapshot.nodes.iter() {
            state.count(snapshot, node, true);
        }
        state.constraints.iter_mut().for_each(CountedConstraint::sum_up);
        Some(state)
    }

    /// With the pod on the node, every constraint stays within its skew.
    fn filter(&self, _: &Snapshot<'_>, node: &NodeInfo) -> Result<(), Rejection> {
        for counted in &self.constraints {
            let constraint = &counted.constraint;
            let Some(domain) = counted.topology.domain(node) else {
                return Err(Rejection::unresolvable(
                    "node(s) didn't match pod topology spread constraints (missing required label)",
                ));
            };
            let is_short = i64::try_from(counted.domains).unwrap_or(0) < constraint.min_domains;
            // Without any eligible domain the least number is that of an int32 that was never
            // lowered, so that no skew is too great (`criticalPaths`).
            let least = if is_short { Some(0) } else { counted.least };
            let here = counted.counts.get(domain).copied().flatten().unwrap_or(0);
            let itself = i64::from(counted.selects_itself);
            let skew = here + itself - least.unwrap_or(i64::from(i32::MAX));
            if skew > constraint.max_skew {
                return Err(Rejection::new("node(s) didn't match pod topology spread constraints"));
            }
        }
        Ok(())
    }

    fn add_pod(&mut self, snapshot: &Snapshot<'_>, pod: &PodInfo, node: &NodeInfo) {
        self.update(snapshot.pod, pod, node, 1);
    }

    fn remove_pod(&mut self, snapshot: &Snapshot<'_>, pod: &PodInfo, node: &NodeInfo) {
        self.update(snapshot.pod, pod, node, -1);
    }

    fn pre_score(snapshot: &Snapshot<'_>, feasible: &[&NodeInfo]) -> Option<Self> {
        let constraints = constraints(snapshot, false);
        if constraints.is_empty() {
            return None;
        }
        let uses_system_defaults = snapshot.pod.spread.is_empty()
            && default_constraints::are_system_defaults(snapshot.args);
        let mut state = Self::new(snapshot, &constraints, !uses_system_defaults);
        state.add_domains(feasible);
        for node in snapshot.nodes.iter() {
            state.count(snapshot, node, false);
        }
        Some(state)
    }

    /// Number of matching pods in the domains of the node, before normalization.
    fn score(&self, _: &Snapshot<'_>, node: &NodeInfo) -> i64 {
        if self.requires_all_labels && !self.has_all_labels(node) {
            return IGNORED;
        }
        let mut sum = 0.0;
        for counted in &self.constraints {
            let Some(domain) = counted.topology.domain(node) else { continue };
            let count = if counted.constraint.topology_key == HOSTNAME {
                counted.matching_pods(node)
            } else {
                counted.counts.get(domain).copied().flatten().unwrap_or(0)
            };
            sum += count as f64 * counted.weight + (counted.constraint.max_skew - 1) as f64;
        }
        sum.round() as i64
    }

    /// Fewer matching pods score higher; a node without the label of a constraint scores 0.
    fn normalize_score(&self, scores: &mut [i64]) {
        let valid = || scores.iter().copied().filter(|score| *score != IGNORED);
        let (min, max) = (valid().min().unwrap_or(i64::MAX), valid().max().unwrap_or(0));
        for score in scores {
            *score = match *score {
                IGNORED => 0,
                _ if max == 0 => MAX_NODE_SCORE,
                score => MAX_NODE_SCORE * (max + min - score) / max,
            };
        }
    }
}

/// The constraints of one phase: those of the pod, or the default ones.
fn constraints<'a>(snapshot: &Snapshot<'a>, is_hard: bool) -> Vec<Cow<'a, SpreadConstraint>> {
    let own = &snapshot.pod.spread;
    if own.is_empty() {
        let defaults = default_constraints::of_pod(snapshot, is_hard);
        return defaults.into_iter().map(Cow::Owned).collect();
    }
    own.iter().filter(|c| c.hard == is_hard).map(Cow::Borrowed).collect()
}

impl CountedConstraint {
    /// Number of pods on the node that the constraint counts.
    fn matching_pods(&self, node: &NodeInfo) -> i64 {
        self.matching.get(node.index).copied().unwrap_or(0)
    }

    /// Finds the number of domains and the least of their counts.
    fn sum_up(&mut self) {
        let known = self.counts.iter().flatten();
        self.domains = known.clone().count();
        self.least = known.min().copied();
    }
}

/// The number of pods of the namespace that the constraint selects, by index of the node. Pods that
/// are being deleted do not count.
fn matching_pods(
    snapshot: &Snapshot<'_>,
    constraint: &SpreadConstraint,
    namespace: &str,
) -> Arc<[i64]> {
    let mut matching = vec![0; snapshot.nodes.len()];
    // A selector without requirements, which selects every pod elsewhere, counts none
    // (`countPodsMatchSelector`).
    if constraint.is_selector_empty() {
        return matching.into();
    }
    let keys: Vec<&str> = client::labels::keys(constraint.selector.as_ref()).collect();
    for class in snapshot.nodes.classes(&keys).iter() {
        let example = class.example();
        if example.namespace != namespace || !constraint.selects(&example.labels) {
            continue;
        }
        for (node, count) in class.nodes() {
            if let Some(sum) = matching.get_mut(node) {
                *sum += count.staying;
            }
        }
    }
    matching.into()
}

/// The policies of the constraint include the node (`matchNodeInclusionPolicies`).
fn is_included(constraint: &SpreadConstraint, pod: &PodInfo, node: &NodeInfo) -> bool {
    (!constraint.honor_affinity || allows(pod, node))
        && (!constraint.honor_taints || tolerates_all(pod, &node.taints))
}

impl PodTopologySpread {
    /// The constraints with no counts yet.
    fn new(
        snapshot: &Snapshot<'_>,
        constraints: &[Cow<'_, SpreadConstraint>],
        requires_all_labels: bool,
    ) -> Self {
        let pod = snapshot.pod;
        let mut all: Vec<CountedConstraint> = Vec::with_capacity(constraints.len());
        for constraint in constraints {
            let topology = snapshot.nodes.topology(&constraint.topology_key);
            // Most constraints of a pod, and all default ones, have the same selector.
            let same = all.iter().find(|c| c.constraint.selector == constraint.selector);
            let matching = same.map(|counted| Arc::clone(&counted.matching));
            all.push(CountedConstraint {
                selects_itself: constraint.selects(&pod.labels),
                matching: matching
                    .unwrap_or_else(|| matching_pods(snapshot, constraint, &pod.namespace)),
                constraint: constraint.clone().into_owned(),
                counts: vec![None; topology.len()],
                topology,
                domains: 0,
                least: None,
                weight: 0.0,
            });
        }
        Self { constraints: all, requires_all_labels }
    }

    fn has_all_labels(&self, node: &NodeInfo) -> bool {
        self.constraints.iter().all(|c| c.topology.domain(node).is_some())
    }

    /// Adds the domains of the nodes that fit, and the weights by their number
    /// (`initPreScoreState`).
    fn add_domains(&mut self, feasible: &[&NodeInfo]) {
        let mut nodes = feasible.to_vec();
        if self.requires_all_labels {
            nodes.retain(|node| self.has_all_labels(node));
        }
        for counted in &mut self.constraints {
            let mut size = nodes.len();
            if counted.constraint.topology_key != HOSTNAME {
                // Nodes without the label are a domain of their own, which no node is scored by.
                let mut without_label = 0;
                for node in &nodes {
                    match counted.topology.domain(node) {
                        Some(domain) => {
                            if let Some(count) = counted.counts.get_mut(domain) {
                                count.get_or_insert(0);
                            }
                        }
                        None => without_label = 1,
                    }
                }
                size = counted.counts.iter().flatten().count() + without_label;
            }
            counted.weight = ((size + 2) as f64).ln();
        }
    }

    /// Counts the matching pods of a node. In the filter's phase the node adds its domain; in that
    /// of scores only domains of nodes that fit are of interest.
    fn count(&mut self, snapshot: &Snapshot<'_>, node: &NodeInfo, adds_domain: bool) {
        if self.requires_all_labels && !self.has_all_labels(node) {
            return;
        }
        for counted in &mut self.constraints {
            let Some(domain) = counted.topology.domain(node) else { continue };
            let is_wanted = adds_domain || counted.counts.get(domain).is_some_and(Option::is_some);
            if !is_wanted || !is_included(&counted.constraint, snapshot.pod, node) {
                continue;
            }
            let matching = counted.matching_pods(node);
            if let Some(count) = counted.counts.get_mut(domain) {
                *count.get_or_insert(0) += matching;
            }
        }
    }

    /// `pod` came onto or left the node.
    fn update(&mut self, owner: &PodInfo, pod: &PodInfo, node: &NodeInfo, by: i64) {
        if pod.namespace != owner.namespace || !self.has_all_labels(node) {
            return;
        }
        for counted in &mut self.constraints {
            let constraint = &counted.constraint;
            if !constraint.selects(&pod.labels) || !is_included(constraint, owner, node) {
                continue;
            }
            let domain = counted.topology.domain(node);
            if let Some(count) = domain.and_then(|domain| counted.counts.get_mut(domain)) {
                *count.get_or_insert(0) += by;
                counted.sum_up();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listers::NoObjects;
    use api::k8s::apimachinery::pkg::apis::meta::v1::LabelSelector;
    use client::labels::Labels;

    fn labels() -> Labels {
        [("a".to_owned(), "b".to_owned())].into()
    }

    fn node(name: &str, zone: &str, pods: usize) -> NodeInfo {
        let pod = || Arc::new(PodInfo { labels: labels(), ..PodInfo::default() });
        let labels = [("zone".to_owned(), zone.to_owned())].into();
        NodeInfo {
            name: name.into(),
            labels,
            pods: (0..pods).map(|_| pod()).collect(),
            ..NodeInfo::default()
        }
    }

    fn constraint(max_skew: i64, min_domains: i64, hard: bool) -> SpreadConstraint {
        let selector = LabelSelector { match_labels: Some(labels()), match_expressions: None };
        SpreadConstraint {
            max_skew,
            topology_key: "zone".into(),
            hard,
            selector: Some(selector),
            min_domains,
            honor_affinity: true,
            honor_taints: false,
        }
    }

    /// Outcome of the filter for each node, for a pod that the constraint selects.
    fn fits(constraint: SpreadConstraint, nodes: &[NodeInfo]) -> Vec<bool> {
        let info = PodInfo { spread: vec![constraint], labels: labels(), ..PodInfo::default() };
        let (pod, listers) = (&Arc::new(info), &NoObjects);
        let snapshot = Snapshot::with(pod, nodes, listers);
        let plugin = PodTopologySpread::pre_filter(&snapshot).unwrap();
        snapshot.nodes.iter().map(|node| plugin.filter(&snapshot, node).is_ok()).collect()
    }

    #[test]
    fn skew_counts_the_pod_itself_and_missing_domains() {
        let nodes = [node("x", "1", 2), node("y", "2", 1)];
        assert_eq!(fits(constraint(1, 1, true), &nodes), [false, true]);
        assert_eq!(fits(constraint(1, 3, true), &nodes), [false, false]);
    }

    #[test]
    fn emptier_domain_scores_higher() {
        let mut unlabelled = node("z", "", 0);
        unlabelled.labels.clear();
        let nodes = [node("x", "1", 2), node("y", "2", 1), unlabelled];
        let info = PodInfo { spread: vec![constraint(1, 1, false)], ..PodInfo::default() };
        let (pod, listers) = (&Arc::new(info), &NoObjects);
        let snapshot = Snapshot::with(pod, &nodes, listers);
        let feasible: Vec<&NodeInfo> = snapshot.nodes.iter().collect();
        let plugin = PodTopologySpread::pre_score(&snapshot, &feasible).unwrap();
        let mut scores: Vec<i64> =
            feasible.iter().map(|node| plugin.score(&snapshot, node)).collect();
        plugin.normalize_score(&mut scores);
        assert!(scores[1] > scores[0], "{scores:?}");
        assert_eq!(scores[2], 0);
    }
}
