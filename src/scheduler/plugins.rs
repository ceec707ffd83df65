//! The default plugins, in upstream's order and with upstream's weights.

mod image_locality;
mod inter_pod_affinity;
mod node_basics;
mod node_resources;
mod taint_toleration;
mod topology_spread;

use std::sync::Arc;

use client::labels::Labels;

use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;
use crate::volumes::VolumeView;

pub(crate) use inter_pod_affinity::Affinities;
pub(crate) use taint_toleration::tolerates;
pub(crate) use topology_spread::Spreads;

/// Why a node does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Misfit {
    /// Plugin that refused, for requeueing.
    pub(crate) plugin: &'static str,
    /// Texts as kube-scheduler prints them.
    pub(crate) reasons: Vec<String>,
    /// Removing pods would not help.
    pub(crate) unresolvable: bool,
}

impl Misfit {
    pub(crate) fn new(plugin: &'static str, reason: &str) -> Self {
        Self { plugin, reasons: vec![reason.to_owned()], unresolvable: false }
    }

    pub(crate) fn unresolvable(plugin: &'static str, reason: &str) -> Self {
        Self { unresolvable: true, ..Self::new(plugin, reason) }
    }
}

/// What filters and scores look at: all nodes and what was computed once for this pod.
pub(crate) struct Round<'a> {
    pub(crate) pod: &'a Arc<PodInfo>,
    pub(crate) nodes: &'a [NodeInfo],
    pub(crate) namespace_labels: &'a dyn Fn(&str) -> Option<Labels>,
    pub(crate) affinities: Affinities,
    pub(crate) spreads: Spreads,
    pub(crate) volumes: &'a VolumeView,
}

impl<'a> Round<'a> {
    pub(crate) fn new(
        pod: &'a Arc<PodInfo>,
        nodes: &'a [NodeInfo],
        namespace_labels: &'a dyn Fn(&str) -> Option<Labels>,
        volumes: &'a VolumeView,
    ) -> Self {
        let affinities = Affinities::new(pod, nodes, namespace_labels);
        let spreads = Spreads::new(pod, nodes);
        Self { pod, nodes, namespace_labels, affinities, spreads, volumes }
    }
}

/// Asks every filter; the first that refuses decides, as upstream.
pub(crate) fn filter(round: &Round<'_>, node: &NodeInfo) -> Result<(), Misfit> {
    let pod = round.pod;
    node_basics::resource_claims(pod)?;
    node_basics::unschedulable(pod, node)?;
    node_basics::name(pod, node)?;
    taint_toleration::filter(pod, node)?;
    node_basics::affinity(pod, node)?;
    node_basics::ports(pod, node)?;
    node_resources::fit(pod, node)?;
    round.volumes.filter(node)?;
    round.spreads.filter(pod, node)?;
    round.affinities.filter(pod, node)
}

/// Scores of the nodes that fit (same order), all plugins weighted and summed.
pub(crate) fn score(round: &Round<'_>, fitting: &[&NodeInfo]) -> Vec<i64> {
    let mut total = vec![0; fitting.len()];
    let mut add = |weight: i64, scores: Vec<i64>| {
        for (sum, score) in total.iter_mut().zip(scores) {
            *sum += weight * score;
        }
    };
    add(3, taint_toleration::score(round.pod, fitting));
    add(2, node_basics::score_affinity(round.pod, fitting));
    add(1, fitting.iter().map(|n| node_resources::least_allocated(round.pod, n)).collect());
    add(2, round.spreads.score(round.pod, fitting));
    add(2, inter_pod_affinity::score(round, fitting));
    add(1, fitting.iter().map(|n| node_resources::balanced(round.pod, n)).collect());
    add(1, image_locality::score(round, fitting));
    total
}

/// Best score of one plugin (`framework.MaxNodeScore`).
pub(crate) const SCORE_MAX: i64 = 100;

/// Scales scores so that the largest becomes 100; `reverse` turns them round (`helper.DefaultNormalizeScore`).
pub(crate) fn normalize(mut scores: Vec<i64>, reverse: bool) -> Vec<i64> {
    let max = scores.iter().copied().max().unwrap_or(0);
    for score in &mut scores {
        *score = if max == 0 { 0 } else { *score * SCORE_MAX / max };
        if reverse {
            *score = SCORE_MAX - *score;
        }
    }
    scores
}
