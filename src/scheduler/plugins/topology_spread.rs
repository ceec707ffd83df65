//! PodTopologySpread: pods that match a selector spread evenly over domains.

use std::collections::BTreeMap;

use super::{Misfit, SCORE_MAX, tolerates};
use crate::node_info::NodeInfo;
use crate::node_selector::allows;
use crate::pod_info::{PodInfo, Spread};

const PLUGIN: &str = "PodTopologySpread";

/// Matching pods per domain, for each constraint of the pod.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spreads {
    hard: Vec<(Spread, BTreeMap<String, i64>)>,
    soft: Vec<(Spread, BTreeMap<String, i64>)>,
}

fn selects(spread: &Spread, owner: &PodInfo, pod: &PodInfo) -> bool {
    let chosen =
        spread.selector.as_ref().is_some_and(|s| client::labels::selects(s, Some(&pod.labels)));
    chosen && pod.namespace == owner.namespace && !pod.deleting
}

/// The node counts for the constraint: has all keys, and is allowed as the constraint's policies say.
fn eligible(spread: &Spread, all: &[&Spread], pod: &PodInfo, node: &NodeInfo) -> bool {
    all.iter().all(|s| node.labels.contains_key(&s.topology_key))
        && (!spread.honor_affinity || allows(pod, node))
        && (!spread.honor_taints
            || node
                .taints
                .iter()
                .filter(|t| matches!(t.effect.as_str(), "NoSchedule" | "NoExecute"))
                .all(|t| tolerates(pod, t)))
}

fn domains(
    spread: &Spread,
    all: &[&Spread],
    pod: &PodInfo,
    nodes: &[NodeInfo],
) -> BTreeMap<String, i64> {
    let mut counts = BTreeMap::new();
    for node in nodes.iter().filter(|n| n.known && eligible(spread, all, pod, n)) {
        let Some(domain) = node.labels.get(&spread.topology_key) else { continue };
        let matching = node.pods.iter().filter(|p| selects(spread, pod, p)).count();
        *counts.entry(domain.clone()).or_insert(0) += i64::try_from(matching).unwrap_or(i64::MAX);
    }
    counts
}

impl Spreads {
    pub(crate) fn new(pod: &PodInfo, nodes: &[NodeInfo]) -> Self {
        let (hard, soft): (Vec<&Spread>, Vec<&Spread>) = pod.spread.iter().partition(|s| s.hard);
        let count = |all: &[&Spread]| {
            all.iter().map(|s| ((*s).clone(), domains(s, all, pod, nodes))).collect()
        };
        Self { hard: count(&hard), soft: count(&soft) }
    }

    /// Placing the pod keeps every hard constraint within its skew.
    pub(crate) fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Misfit> {
        for (spread, counts) in &self.hard {
            let Some(domain) = node.labels.get(&spread.topology_key) else {
                let reason =
                    "node(s) didn't match pod topology spread constraints (missing required label)";
                return Err(Misfit::unresolvable(PLUGIN, reason));
            };
            let mut least = counts.values().copied().min().unwrap_or(0);
            if i64::try_from(counts.len()).unwrap_or(0) < spread.min_domains {
                least = 0;
            }
            let itself = i64::from(selects(spread, pod, pod));
            let here = counts.get(domain).copied().unwrap_or(0);
            if here + itself - least > spread.max_skew {
                return Err(Misfit::new(
                    PLUGIN,
                    "node(s) didn't match pod topology spread constraints",
                ));
            }
        }
        Ok(())
    }

    /// The pod moved onto or off the node: what the counts would be (for preemption).
    pub(crate) fn moved(&mut self, owner: &PodInfo, pod: &PodInfo, node: &NodeInfo, by: i64) {
        for (spread, counts) in &mut self.hard {
            if let Some(count) =
                node.labels.get(&spread.topology_key).and_then(|d| counts.get_mut(d))
            {
                if selects(spread, owner, pod) {
                    *count += by;
                }
            }
        }
    }

    /// Fewer matching pods in a domain score higher; a node without a key scores 0.
    pub(crate) fn score(&self, pod: &PodInfo, nodes: &[&NodeInfo]) -> Vec<i64> {
        if self.soft.is_empty() {
            return vec![0; nodes.len()];
        }
        let raw = |node: &NodeInfo| -> Option<f64> {
            let mut sum = 0.0;
            for (spread, counts) in &self.soft {
                let domain = node.labels.get(&spread.topology_key)?;
                let here = if spread.topology_key == "kubernetes.io/hostname" {
                    node.pods.iter().filter(|p| selects(spread, pod, p)).count() as f64
                } else {
                    counts.get(domain).copied().unwrap_or(0) as f64
                };
                // Keys with many domains weigh more (`topologyNormalizingWeight`).
                sum += here * ((counts.len() + 2) as f64).ln() + (spread.max_skew - 1) as f64;
            }
            Some(sum)
        };
        let scores: Vec<Option<f64>> = nodes.iter().map(|n| raw(n).map(f64::round)).collect();
        let max = scores.iter().flatten().copied().fold(0.0, f64::max);
        let min = scores.iter().flatten().copied().fold(f64::MAX, f64::min);
        let normal = |s: &Option<f64>| match s {
            None => 0,
            Some(_) if max == 0.0 => SCORE_MAX,
            Some(s) => (SCORE_MAX as f64 * (max + min - s) / max) as i64,
        };
        scores.iter().map(normal).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::k8s::apimachinery::pkg::apis::meta::v1::LabelSelector;
    use std::sync::Arc;

    fn node(name: &str, zone: &str, pods: usize) -> NodeInfo {
        let pod = || {
            Arc::new(PodInfo {
                labels: [("a".to_owned(), "b".to_owned())].into(),
                ..PodInfo::default()
            })
        };
        let labels = [("zone".to_owned(), zone.to_owned())].into();
        NodeInfo {
            name: name.into(),
            known: true,
            labels,
            pods: (0..pods).map(|_| pod()).collect(),
            ..NodeInfo::default()
        }
    }

    fn spread(max_skew: i64, min_domains: i64, hard: bool) -> Spread {
        let selector = LabelSelector {
            match_labels: Some([("a".to_owned(), "b".to_owned())].into()),
            match_expressions: None,
        };
        Spread {
            max_skew,
            topology_key: "zone".into(),
            hard,
            selector: Some(selector),
            min_domains,
            honor_affinity: true,
            honor_taints: false,
        }
    }

    #[test]
    fn the_skew_counts_the_pod_itself_and_domains_that_are_missing() {
        let nodes = [node("x", "1", 2), node("y", "2", 1)];
        let labels: client::labels::Labels = [("a".to_owned(), "b".to_owned())].into();
        let mut pod = PodInfo { spread: vec![spread(1, 1, true)], labels, ..PodInfo::default() };
        let spreads = Spreads::new(&pod, &nodes);
        assert!(spreads.filter(&pod, &nodes[0]).is_err());
        assert!(spreads.filter(&pod, &nodes[1]).is_ok());
        pod.spread = vec![spread(1, 3, true)];
        assert!(Spreads::new(&pod, &nodes).filter(&pod, &nodes[1]).is_err());
    }

    #[test]
    fn the_emptier_domain_scores_higher() {
        let nodes = [node("x", "1", 2), node("y", "2", 1)];
        let pod = PodInfo { spread: vec![spread(1, 1, false)], ..PodInfo::default() };
        let scores = Spreads::new(&pod, &nodes).score(&pod, &[&nodes[0], &nodes[1]]);
        assert!(scores[1] > scores[0], "{scores:?}");
    }
}
