//! PodTopologySpread: pods that match a selector spread evenly over topology domains.

use std::collections::BTreeMap;

use crate::event::Event;
use crate::framework::{MAX_NODE_SCORE, Plugin, Snapshot};
use crate::node_info::NodeInfo;
use crate::node_selector::allows;
use crate::pod_info::{PodInfo, SpreadConstraint};
use crate::rejection::Rejection;
use crate::tolerations::tolerates_all;

/// Score of a node without the label of a constraint, before normalization.
const INVALID_SCORE: i64 = -1;

/// The constraints of one phase (`DoNotSchedule` for the filter, `ScheduleAnyway` for scores), each
/// with the number of matching pods per domain.
#[derive(Debug, Clone, Default)]
pub(super) struct PodTopologySpread {
    constraints: Vec<(SpreadConstraint, BTreeMap<String, i64>)>,
}

impl Plugin for PodTopologySpread {
    const NAME: &'static str = "PodTopologySpread";

    fn queueing_hint(event: &Event<'_>, _: &PodInfo) -> bool {
        matches!(event, Event::Node | Event::AssignedPodDelete(_) | Event::AssignedPodAdd)
    }

    fn pre_filter(snapshot: &Snapshot<'_>) -> Option<Self> {
        Self::new(snapshot, true)
    }

    /// With the pod on the node, every constraint stays within its skew.
    fn filter(&self, snapshot: &Snapshot<'_>, node: &NodeInfo) -> Result<(), Rejection> {
        let pod = snapshot.pod;
        for (constraint, counts) in &self.constraints {
            let Some(domain) = node.labels.get(&constraint.topology_key) else {
                return Err(Rejection::unresolvable(
                    "node(s) didn't match pod topology spread constraints (missing required label)",
                ));
            };
            let mut least = counts.values().copied().min().unwrap_or(0);
            if i64::try_from(counts.len()).unwrap_or(0) < constraint.min_domains {
                least = 0;
            }
            let itself = i64::from(selects(constraint, pod, pod));
            let here = counts.get(domain).copied().unwrap_or(0);
            if here + itself - least > constraint.max_skew {
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

    fn pre_score(snapshot: &Snapshot<'_>, _: &[&NodeInfo]) -> Option<Self> {
        Self::new(snapshot, false)
    }

    /// Number of matching pods in the domains of the node, before normalization.
    fn score(&self, snapshot: &Snapshot<'_>, node: &NodeInfo) -> i64 {
        let mut sum = 0.0;
        for (constraint, counts) in &self.constraints {
            let Some(domain) = node.labels.get(&constraint.topology_key) else {
                return INVALID_SCORE;
            };
            let here = if constraint.topology_key == "kubernetes.io/hostname" {
                let pods = node.pods.iter().filter(|p| selects(constraint, snapshot.pod, p));
                pods.count() as f64
            } else {
                counts.get(domain).copied().unwrap_or(0) as f64
            };
            // Keys with many domains weigh more (`topologyNormalizingWeight`).
            let weight = ((counts.len() + 2) as f64).ln();
            sum += here * weight + (constraint.max_skew - 1) as f64;
        }
        sum.round() as i64
    }

    /// Fewer matching pods score higher; a node without the label of a constraint scores 0.
    fn normalize_score(&self, scores: &mut [i64]) {
        let valid = || scores.iter().copied().filter(|score| *score != INVALID_SCORE);
        let (min, max) = (valid().min().unwrap_or(0), valid().max().unwrap_or(0));
        for score in scores {
            *score = match *score {
                INVALID_SCORE => 0,
                _ if max == 0 => MAX_NODE_SCORE,
                score => MAX_NODE_SCORE * (max + min - score) / max,
            };
        }
    }
}

/// The constraint counts `pod`, as a constraint of `owner`.
fn selects(constraint: &SpreadConstraint, owner: &PodInfo, pod: &PodInfo) -> bool {
    let selector = constraint.selector.as_ref();
    let chosen = selector.is_some_and(|s| client::labels::selects(s, Some(&pod.labels)));
    chosen && pod.namespace == owner.namespace && !pod.deleting
}

/// The node counts for the constraint: it has the labels of all constraints, and the policies of
/// this one include it.
fn is_eligible(
    constraint: &SpreadConstraint,
    all: &[&SpreadConstraint],
    pod: &PodInfo,
    node: &NodeInfo,
) -> bool {
    all.iter().all(|c| node.labels.contains_key(&c.topology_key))
        && (!constraint.honor_affinity || allows(pod, node))
        && (!constraint.honor_taints || tolerates_all(pod, &node.taints))
}

impl PodTopologySpread {
    fn new(snapshot: &Snapshot<'_>, hard: bool) -> Option<Self> {
        let pod = snapshot.pod;
        let all: Vec<&SpreadConstraint> = pod.spread.iter().filter(|c| c.hard == hard).collect();
        let counts = |constraint: &SpreadConstraint| {
            let mut counts = BTreeMap::new();
            for node in snapshot.nodes.iter().filter(|node| node.known) {
                let Some(domain) = node.labels.get(&constraint.topology_key) else { continue };
                if is_eligible(constraint, &all, pod, node) {
                    let matching = node.pods.iter().filter(|p| selects(constraint, pod, p)).count();
                    *counts.entry(domain.clone()).or_insert(0) +=
                        i64::try_from(matching).unwrap_or(i64::MAX);
                }
            }
            counts
        };
        let constraints: Vec<_> = all.iter().map(|c| ((*c).clone(), counts(c))).collect();
        (!constraints.is_empty()).then_some(Self { constraints })
    }

    /// `pod` came onto or left the node.
    fn update(&mut self, owner: &PodInfo, pod: &PodInfo, node: &NodeInfo, by: i64) {
        for (constraint, counts) in &mut self.constraints {
            let domain = node.labels.get(&constraint.topology_key);
            if let Some(count) = domain.and_then(|domain| counts.get_mut(domain)) {
                if selects(constraint, owner, pod) {
                    *count += by;
                }
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
    use std::sync::Arc;

    fn labels() -> Labels {
        [("a".to_owned(), "b".to_owned())].into()
    }

    fn node(name: &str, zone: &str, pods: usize) -> NodeInfo {
        let pod = || Arc::new(PodInfo { labels: labels(), ..PodInfo::default() });
        let labels = [("zone".to_owned(), zone.to_owned())].into();
        NodeInfo {
            name: name.into(),
            known: true,
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
        let snapshot = Snapshot { pod: &Arc::new(info), nodes, listers: &NoObjects };
        let plugin = PodTopologySpread::pre_filter(&snapshot).unwrap();
        nodes.iter().map(|node| plugin.filter(&snapshot, node).is_ok()).collect()
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
        let snapshot = Snapshot { pod: &Arc::new(info), nodes: &nodes, listers: &NoObjects };
        let plugin = PodTopologySpread::pre_score(&snapshot, &[]).unwrap();
        let mut scores: Vec<i64> = nodes.iter().map(|n| plugin.score(&snapshot, n)).collect();
        plugin.normalize_score(&mut scores);
        assert!(scores[1] > scores[0], "{scores:?}");
        assert_eq!(scores[2], 0);
    }
}
