//! Scores by the allocation of resources, for NodeResourcesFit and
//! NodeResourcesBalancedAllocation (upstream's `resourceAllocationScorer`).

use crate::devices::allocator::Allocator;
use crate::framework::{MAX_NODE_SCORE, Snapshot};
use crate::node_info::NodeInfo;
use crate::plugin_args::{ResourceWeight, ScoredResource, ScoringStrategy, UtilizationPoint};
use crate::pod_claims::may_be_served;
use crate::pod_info::PodInfo;

/// The allocation of a resource on a node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allocation {
    /// Weight of the resource.
    pub(super) weight: i64,
    /// What pods request, without the pod that needs a node.
    pub(super) allocated: i64,
    /// What pods request, with that pod.
    pub(super) requested: i64,
    /// What the node has; not 0.
    pub(super) allocatable: i64,
}

/// Which amounts of CPU and memory count for containers without requests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MissingRequests {
    /// The defaults for scores.
    Assumed,
    /// None.
    Zero,
}

/// What the pod requests of a resource.
#[inline]
pub(super) fn pod_request(
    pod: &PodInfo,
    resource: &ScoredResource,
    missing: MissingRequests,
) -> i64 {
    let is_assumed = missing == MissingRequests::Assumed;
    match resource {
        ScoredResource::Cpu if is_assumed => pod.scored.milli_cpu,
        ScoredResource::Cpu => pod.requests.milli_cpu,
        ScoredResource::Memory if is_assumed => pod.scored.memory,
        ScoredResource::Memory => pod.requests.memory,
        ScoredResource::EphemeralStorage => pod.requests.ephemeral_storage,
        ScoredResource::Other(name) => pod.requests.get(name),
    }
}

/// What the node has of a resource, and what pods request of it.
#[inline]
fn on_node(node: &NodeInfo, resource: &ScoredResource, missing: MissingRequests) -> (i64, i64) {
    let (all, used) = (&node.allocatable, &node.requested);
    let is_assumed = missing == MissingRequests::Assumed;
    match resource {
        ScoredResource::Cpu if is_assumed => (all.milli_cpu, node.non_zero.milli_cpu),
        ScoredResource::Cpu => (all.milli_cpu, used.milli_cpu),
        ScoredResource::Memory if is_assumed => (all.memory, node.non_zero.memory),
        ScoredResource::Memory => (all.memory, used.memory),
        ScoredResource::EphemeralStorage => (all.ephemeral_storage, used.ephemeral_storage),
        ScoredResource::Other(name) => (all.get(name), used.get(name)),
    }
}

/// The devices, if the pod requests one of the resources and a device class serves it.
pub(super) fn scored_devices(
    resources: &[ResourceWeight],
    snapshot: &Snapshot<'_>,
) -> Option<Allocator> {
    let mut requested = resources.iter().filter_map(|weighted| match &weighted.resource {
        ScoredResource::Other(name) if snapshot.pod.requests.get(name) != 0 => Some(name),
        _ => None,
    });
    let devices = snapshot.listers.devices()?;
    let is_served =
        |name: &String| may_be_served(name) && devices.classes().serving(name).is_some();
    requested.any(is_served).then(|| devices.allocator())
}

/// The allocations of the resources that the node has; of those that it has not, the devices of the
/// class that serves them count. A pod is not scored by huge pages and extended resources that it
/// does not request.
#[inline]
pub(super) fn allocations(
    resources: &[ResourceWeight],
    pod: &PodInfo,
    node: &NodeInfo,
    devices: Option<&Allocator>,
    missing: MissingRequests,
) -> impl Iterator<Item = Allocation> + Clone {
    resources.iter().filter_map(move |ResourceWeight { resource, weight }| {
        let request = pod_request(pod, resource, missing);
        if request == 0 && matches!(resource, ScoredResource::Other(_)) {
            return None;
        }
        let (mut allocatable, mut allocated) = on_node(node, resource, missing);
        if let (0, Some(devices), ScoredResource::Other(name)) = (allocatable, devices, resource) {
            (allocatable, allocated) = devices.totals(name, node);
        }
        let (weight, requested) = (*weight, allocated + request);
        (allocatable != 0).then_some(Allocation { weight, allocated, requested, allocatable })
    })
}

/// Score of NodeResourcesFit, 0 to 100.
pub(super) fn strategy_score(
    strategy: &ScoringStrategy,
    allocations: impl Iterator<Item = Allocation>,
) -> i64 {
    let (mut sum, mut weights) = (0, 0);
    for allocation in allocations {
        let Allocation { requested, allocatable, .. } = allocation;
        let score = match strategy {
            ScoringStrategy::LeastAllocated if requested > allocatable => 0,
            ScoringStrategy::LeastAllocated => {
                (allocatable - requested) * MAX_NODE_SCORE / allocatable
            }
            ScoringStrategy::MostAllocated => {
                requested.min(allocatable) * MAX_NODE_SCORE / allocatable
            }
            ScoringStrategy::RequestedToCapacityRatio(shape) => {
                let utilization =
                    if requested > allocatable { 100 } else { requested * 100 / allocatable };
                let score = broken_linear(shape, utilization);
                if score <= 0 {
                    continue;
                }
                score
            }
        };
        sum += score * allocation.weight;
        weights += allocation.weight;
    }
    match strategy {
        _ if weights == 0 => 0,
        ScoringStrategy::RequestedToCapacityRatio(_) => {
            (sum as f64 / weights as f64).round() as i64
        }
        ScoringStrategy::LeastAllocated | ScoringStrategy::MostAllocated => sum / weights,
    }
}

/// The value of a function that is linear between its points (`BuildBrokenLinearFunction`).
fn broken_linear(shape: &[UtilizationPoint], utilization: i64) -> i64 {
    let Some(index) = shape.iter().position(|point| utilization <= point.utilization) else {
        return shape.last().map_or(0, |point| point.score);
    };
    let before = index.checked_sub(1).and_then(|index| shape.get(index));
    match (before, shape.get(index)) {
        (Some(from), Some(to)) => {
            let part = (to.score - from.score) * (utilization - from.utilization);
            from.score + part / (to.utilization - from.utilization)
        }
        (None, Some(first)) => first.score,
        (_, None) => 0,
    }
}

/// Score of NodeResourcesBalancedAllocation: 75 if the pod leaves the balance as it is, up to 100
/// if it becomes more balanced, down to 50 if less (`balancedResourceScorer`).
pub(super) fn balance_score(allocations: impl Iterator<Item = Allocation> + Clone) -> i64 {
    let share = |part: i64, whole: i64| (part as f64 / whole as f64).min(1.0);
    let with = balance(allocations.clone().map(|a| share(a.requested, a.allocatable)));
    let without = balance(allocations.map(|a| share(a.allocated, a.allocatable)));
    MAX_NODE_SCORE / 2 + (MAX_NODE_SCORE / 2 + with - without) / 2
}

/// 100 less the standard deviation of the shares in percent.
#[inline]
fn balance(shares: impl Iterator<Item = f64> + Clone) -> i64 {
    let count = shares.clone().count();
    let deviation = match count {
        0 | 1 => 0.0,
        2 => {
            let mut shares = shares;
            let (first, second) = (shares.next().unwrap_or(0.0), shares.next().unwrap_or(0.0));
            ((first - second) / 2.0).abs()
        }
        _ => {
            let mean = shares.clone().sum::<f64>() / count as f64;
            let squares = shares.map(|share| (share - mean) * (share - mean));
            (squares.sum::<f64>() / count as f64).sqrt()
        }
    };
    ((1.0 - deviation) * MAX_NODE_SCORE as f64) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(weight: i64, requested: i64, allocatable: i64) -> Allocation {
        Allocation { weight, allocated: 0, requested, allocatable }
    }

    #[test]
    fn strategies_weigh_resources() {
        let all = [of(1, 500, 1000), of(3, 0, 1000)];
        let score = |strategy: &ScoringStrategy| strategy_score(strategy, all.into_iter());
        assert_eq!(score(&ScoringStrategy::LeastAllocated), (50 + 3 * 100) / 4);
        assert_eq!(score(&ScoringStrategy::MostAllocated), 50 / 4);
    }

    /// Cases of `TestResourceBinPackingSingleExtended` and of `helper.BuildBrokenLinearFunction`.
    #[test]
    fn a_shape_is_linear_between_its_points() {
        let points = [(10, 10), (90, 100)];
        let shape = points.map(|(utilization, score)| UtilizationPoint { utilization, score });
        for (utilization, score) in [(0, 10), (10, 10), (50, 55), (90, 100), (100, 100)] {
            assert_eq!(broken_linear(&shape, utilization), score, "{utilization}");
        }
    }

    #[test]
    fn a_pod_that_makes_the_shares_equal_scores_above_75() {
        let allocation =
            |allocated, requested| Allocation { weight: 1, allocated, requested, allocatable: 100 };
        let score = |all: [Allocation; 2]| balance_score(all.into_iter());
        assert_eq!(score([allocation(0, 50), allocation(50, 50)]), 87);
        assert_eq!(score([allocation(0, 10), allocation(0, 10)]), 75);
        assert_eq!(score([allocation(0, 100), allocation(0, 0)]), 50);
    }
}
