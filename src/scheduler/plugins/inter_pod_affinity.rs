//! InterPodAffinity: pods near or away from pods.

use std::collections::HashMap;

use client::labels::Labels;

use super::{Misfit, Round, SCORE_MAX};
use crate::node_info::NodeInfo;
use crate::pod_info::{PodInfo, Term};

const PLUGIN: &str = "InterPodAffinity";
/// Weight of a required affinity term of an existing pod, for the incoming one (`hardPodAffinityWeight`).
const HARD_WEIGHT: i64 = 1;

/// Counts per (topology key, value), gathered once per pod.
#[derive(Debug, Clone, Default)]
pub(crate) struct Affinities {
    /// Pods that match every required affinity term of the incoming pod.
    affinity: HashMap<(String, String), i64>,
    /// Pods that match a required anti-affinity term of the incoming pod.
    anti: HashMap<(String, String), i64>,
    /// Required anti-affinity terms of existing pods that are about the incoming one.
    existing_anti: HashMap<(String, String), i64>,
}

fn count(map: &mut HashMap<(String, String), i64>, term: &Term, node: &NodeInfo, by: i64) {
    if let Some(value) = node.labels.get(&term.topology_key) {
        *map.entry((term.topology_key.clone(), value.clone())).or_insert(0) += by;
    }
}

impl Affinities {
    pub(crate) fn new(
        pod: &PodInfo,
        nodes: &[NodeInfo],
        namespace_labels: &dyn Fn(&str) -> Option<Labels>,
    ) -> Self {
        let mut out = Self::default();
        for node in nodes {
            for existing in &node.pods {
                out.moved(pod, existing, node, 1, namespace_labels);
            }
        }
        out
    }

    /// `existing` came onto (`by` 1) or left (-1) `node`.
    pub(crate) fn moved(
        &mut self,
        pod: &PodInfo,
        existing: &PodInfo,
        node: &NodeInfo,
        by: i64,
        labels: &dyn Fn(&str) -> Option<Labels>,
    ) {
        if !pod.affinity.is_empty() && pod.affinity.iter().all(|t| t.is_about(existing, labels)) {
            for term in &pod.affinity {
                count(&mut self.affinity, term, node, by);
            }
        }
        for term in pod.anti_affinity.iter().filter(|t| t.is_about(existing, labels)) {
            count(&mut self.anti, term, node, by);
        }
        for term in existing.anti_affinity.iter().filter(|t| t.is_about(pod, labels)) {
            count(&mut self.existing_anti, term, node, by);
        }
    }

    pub(crate) fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Misfit> {
        if !self.affinity_holds(pod, node) {
            return Err(Misfit::unresolvable(PLUGIN, "node(s) didn't match pod affinity rules"));
        }
        let clashes = |term: &Term| {
            let value = node.labels.get(&term.topology_key);
            value.is_some_and(|v| {
                self.anti.get(&(term.topology_key.clone(), v.clone())).is_some_and(|n| *n > 0)
            })
        };
        if pod.anti_affinity.iter().any(clashes) {
            return Err(Misfit::new(PLUGIN, "node(s) didn't match pod anti-affinity rules"));
        }
        let clashes = |((key, value), n): (&(String, String), &i64)| {
            *n > 0 && node.labels.get(key) == Some(value)
        };
        if self.existing_anti.iter().any(clashes) {
            return Err(Misfit::new(
                PLUGIN,
                "node(s) didn't satisfy existing pods anti-affinity rules",
            ));
        }
        Ok(())
    }

    fn affinity_holds(&self, pod: &PodInfo, node: &NodeInfo) -> bool {
        let mut all = true;
        for term in &pod.affinity {
            let Some(value) = node.labels.get(&term.topology_key) else { return false };
            all &= self
                .affinity
                .get(&(term.topology_key.clone(), value.clone()))
                .is_some_and(|n| *n > 0);
        }
        // The first of a group that wants to be together matches itself.
        let nobody = self.affinity.values().all(|n| *n <= 0);
        all || (nobody && pod.affinity.iter().all(|t| t.is_about(pod, &|_| None)))
    }
}

/// Preferred terms of the pod and of existing pods, summed over topology and scaled to 0..100.
pub(super) fn score(round: &Round<'_>, nodes: &[&NodeInfo]) -> Vec<i64> {
    let pod = round.pod;
    let mine = !pod.preferred_affinity.is_empty() || !pod.preferred_anti_affinity.is_empty();
    let mut weights: HashMap<(String, String), i64> = HashMap::new();
    let labels = round.namespace_labels;
    for node in round.nodes {
        for existing in &node.pods {
            if mine {
                for (weight, term) in
                    pod.preferred_affinity.iter().filter(|(_, t)| t.is_about(existing, labels))
                {
                    count(&mut weights, term, node, *weight);
                }
                for (weight, term) in
                    pod.preferred_anti_affinity.iter().filter(|(_, t)| t.is_about(existing, labels))
                {
                    count(&mut weights, term, node, -*weight);
                }
            }
            for term in existing.affinity.iter().filter(|t| t.is_about(pod, labels)) {
                count(&mut weights, term, node, HARD_WEIGHT);
            }
            for (weight, term) in
                existing.preferred_affinity.iter().filter(|(_, t)| t.is_about(pod, labels))
            {
                count(&mut weights, term, node, *weight);
            }
            for (weight, term) in
                existing.preferred_anti_affinity.iter().filter(|(_, t)| t.is_about(pod, labels))
            {
                count(&mut weights, term, node, -*weight);
            }
        }
    }
    let raw = |node: &&NodeInfo| -> i64 {
        weights
            .iter()
            .filter(|((key, value), _)| node.labels.get(key) == Some(value))
            .map(|(_, weight)| *weight)
            .sum()
    };
    let scores: Vec<i64> = nodes.iter().map(raw).collect();
    let (min, max) =
        (scores.iter().copied().min().unwrap_or(0), scores.iter().copied().max().unwrap_or(0));
    scores
        .iter()
        .map(|s| if max == min { 0 } else { (s - min) * SCORE_MAX / (max - min) })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::k8s::apimachinery::pkg::apis::meta::v1::LabelSelector;
    use std::sync::Arc;

    fn term() -> Term {
        let selector = LabelSelector {
            match_labels: Some([("app".to_owned(), "x".to_owned())].into()),
            match_expressions: None,
        };
        Term {
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

    #[test]
    fn affinity_wants_a_domain_with_a_match_and_the_first_of_a_group_matches_itself() {
        let wants = PodInfo { affinity: vec![term()], ..pod("x") };
        let nodes_with = nodes(pod("x"));
        let affinities = Affinities::new(&wants, &nodes_with, &|_| None);
        assert!(affinities.filter(&wants, &nodes_with[0]).is_ok());
        assert!(affinities.filter(&wants, &nodes_with[1]).unwrap_err().unresolvable);
        let nodes_without = nodes(pod("y"));
        let affinities = Affinities::new(&wants, &nodes_without, &|_| None);
        assert!(affinities.filter(&wants, &nodes_without[1]).is_ok());
        let stranger = PodInfo { affinity: vec![term()], ..pod("y") };
        assert!(
            Affinities::new(&stranger, &nodes_without, &|_| None)
                .filter(&stranger, &nodes_without[1])
                .is_err()
        );
    }

    #[test]
    fn anti_affinity_works_in_both_directions() {
        let shy = PodInfo { anti_affinity: vec![term()], ..pod("z") };
        let crowd = nodes(pod("x"));
        assert!(Affinities::new(&shy, &crowd, &|_| None).filter(&shy, &crowd[0]).is_err());
        assert!(Affinities::new(&shy, &crowd, &|_| None).filter(&shy, &crowd[1]).is_ok());
        let occupied = nodes(PodInfo { anti_affinity: vec![term()], ..pod("z") });
        let incoming = pod("x");
        let misfit = Affinities::new(&incoming, &occupied, &|_| None)
            .filter(&incoming, &occupied[0])
            .unwrap_err();
        assert_eq!(misfit.reasons, ["node(s) didn't satisfy existing pods anti-affinity rules"]);
    }
}
