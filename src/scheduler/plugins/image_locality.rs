//! ImageLocality: nodes that hold the pod's images already, weighted by size and spread.

use super::{Round, SCORE_MAX};
use crate::node_info::NodeInfo;

/// Below this no gain, above the second no more (`minThreshold`, `maxContainerThreshold` in bytes).
const MIN: i64 = 23 << 20;
const MAX_PER_CONTAINER: i64 = 1000 << 20;

pub(super) fn score(round: &Round<'_>, nodes: &[&NodeInfo]) -> Vec<i64> {
    let images: Vec<String> = round.pod.images.iter().map(|i| normalized(i)).collect();
    let total = round.nodes.iter().filter(|n| n.known).count().max(1) as f64;
    let spread: Vec<f64> = images
        .iter()
        .map(|i| round.nodes.iter().filter(|n| n.images.contains_key(i)).count() as f64 / total)
        .collect();
    let max = MAX_PER_CONTAINER * i64::try_from(round.pod.containers.max(1)).unwrap_or(1);
    let one = |node: &&NodeInfo| {
        let sum: i64 = images
            .iter()
            .zip(&spread)
            .filter_map(|(i, s)| node.images.get(i).map(|size| (*size as f64 * s) as i64))
            .sum();
        (sum.clamp(MIN, max) - MIN) * SCORE_MAX / (max - MIN)
    };
    nodes.iter().map(one).collect()
}

/// A name without tag means `:latest`.
fn normalized(image: &str) -> String {
    let tail = image.rsplit('/').next().unwrap_or_default();
    if tail.contains(':') || tail.contains('@') {
        image.to_owned()
    } else {
        format!("{image}:latest")
    }
}
