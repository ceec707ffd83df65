//! NodeResourcesFit and NodeResourcesBalancedAllocation.

use super::{Misfit, SCORE_MAX};
use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;

pub(super) fn fit(pod: &PodInfo, node: &NodeInfo) -> Result<(), Misfit> {
    let mut reasons = Vec::new();
    let mut unresolvable = false;
    if node.pods.len() as i64 + 1 > node.allocatable.pods {
        reasons.push("Too many pods".to_owned());
    }
    for (name, wanted) in pod.requests.iter() {
        let allocatable = node.allocatable.get(name);
        if wanted > 0 && wanted > allocatable - node.requested.get(name) {
            reasons.push(format!("Insufficient {name}"));
            unresolvable |= wanted > allocatable;
        }
    }
    if reasons.is_empty() {
        Ok(())
    } else {
        Err(Misfit { plugin: "NodeResourcesFit", reasons, unresolvable })
    }
}

/// Mean of the free shares of CPU and memory, 0 to 100.
pub(super) fn least_allocated(pod: &PodInfo, node: &NodeInfo) -> i64 {
    let free = |used: i64, capacity: i64| {
        if capacity == 0 || used > capacity { 0 } else { (capacity - used) * SCORE_MAX / capacity }
    };
    let pairs = [
        (node.non_zero_cpu + pod.non_zero_cpu, node.allocatable.milli_cpu),
        (node.non_zero_memory + pod.non_zero_memory, node.allocatable.memory),
    ];
    let counted = pairs.iter().filter(|(_, capacity)| *capacity > 0).count();
    if counted == 0 {
        return 0;
    }
    pairs.iter().map(|(used, capacity)| free(*used, *capacity)).sum::<i64>()
        / i64::try_from(counted).unwrap_or(1)
}

/// Higher when CPU and memory are used in equal shares: the gain in balance by this pod, centred on 50
/// (the form of `NodeResourcesBalancedAllocation` since 1.33).
pub(super) fn balanced(pod: &PodInfo, node: &NodeInfo) -> i64 {
    let requests = &pod.requests;
    // A pod without requests does not change the balance (upstream skips it).
    if requests.milli_cpu == 0 && requests.memory == 0 {
        return 0;
    }
    let score = |cpu: i64, memory: i64| {
        let share = |used: i64, capacity: i64| {
            if capacity == 0 { 0.0 } else { (used as f64 / capacity as f64).min(1.0) }
        };
        let (a, b) =
            (share(cpu, node.allocatable.milli_cpu), share(memory, node.allocatable.memory));
        (1.0 - (a - b).abs() / 2.0) * SCORE_MAX as f64
    };
    let with = score(
        node.requested.milli_cpu + requests.milli_cpu,
        node.requested.memory + requests.memory,
    );
    with as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::Resources;

    fn node(cpu: i64, pods: i64) -> NodeInfo {
        NodeInfo {
            allocatable: Resources {
                milli_cpu: cpu,
                memory: 1 << 30,
                pods,
                ..Resources::default()
            },
            ..NodeInfo::default()
        }
    }

    fn pod(cpu: i64) -> PodInfo {
        PodInfo {
            requests: Resources { milli_cpu: cpu, pods: 1, ..Resources::default() },
            non_zero_cpu: cpu,
            ..PodInfo::default()
        }
    }

    #[test]
    fn every_resource_that_lacks_is_named() {
        let misfit = fit(&pod(500), &node(400, 0)).unwrap_err();
        assert_eq!(misfit.reasons, ["Too many pods", "Insufficient cpu"]);
        assert!(misfit.unresolvable);
        assert!(fit(&pod(400), &node(400, 1)).is_ok());
    }

    #[test]
    fn the_emptier_node_scores_higher() {
        assert_eq!(least_allocated(&pod(500), &node(1000, 1)), (50 + 100) / 2);
        assert!(
            least_allocated(&pod(500), &node(2000, 1)) > least_allocated(&pod(500), &node(1000, 1))
        );
    }
}
