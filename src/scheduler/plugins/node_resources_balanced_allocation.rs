//! NodeResourcesBalancedAllocation: prefers nodes that use CPU and memory in equal shares.

use crate::framework::{MAX_NODE_SCORE, Plugin, Snapshot};
use crate::node_info::NodeInfo;

#[derive(Debug, Clone)]
pub(super) struct NodeResourcesBalancedAllocation;

impl Plugin for NodeResourcesBalancedAllocation {
    const NAME: &'static str = "NodeResourcesBalancedAllocation";

    /// A pod without requests does not change the balance.
    fn pre_score(snapshot: &Snapshot<'_>, _: &[&NodeInfo]) -> Option<Self> {
        let requests = &snapshot.pod.requests;
        (requests.milli_cpu != 0 || requests.memory != 0).then_some(Self)
    }

    /// Higher the smaller the difference between the shares in use, with the pod on the node.
    fn score(&self, snapshot: &Snapshot<'_>, node: &NodeInfo) -> i64 {
        let requests = &snapshot.pod.requests;
        let share = |used: i64, capacity: i64| {
            if capacity == 0 { 0.0 } else { (used as f64 / capacity as f64).min(1.0) }
        };
        let cpu = share(node.requested.milli_cpu + requests.milli_cpu, node.allocatable.milli_cpu);
        let memory = share(node.requested.memory + requests.memory, node.allocatable.memory);
        ((1.0 - (cpu - memory).abs() / 2.0) * MAX_NODE_SCORE as f64) as i64
    }
}
