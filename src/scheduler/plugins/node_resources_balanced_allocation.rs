//! NodeResourcesBalancedAllocation: prefers nodes on which the pod makes the shares in use of CPU and
//! memory more equal.

use crate::framework::{Plugin, Snapshot};
use crate::node_info::NodeInfo;
use crate::plugins::resource_scores::{
    Allocation, MissingRequests, allocations, balance_score, pod_request,
};

#[derive(Debug, Clone)]
pub(super) struct NodeResourcesBalancedAllocation;

impl Plugin for NodeResourcesBalancedAllocation {
    const NAME: &'static str = "NodeResourcesBalancedAllocation";

    /// A pod without requests does not change the balance.
    fn pre_score(snapshot: &Snapshot<'_>, _: &[&NodeInfo]) -> Option<Self> {
        let mut resources = snapshot.args.balanced_resources.iter();
        let request = |name: &str| pod_request(snapshot.pod, name, MissingRequests::Zero);
        resources.any(|resource| request(&resource.name) != 0).then_some(Self)
    }

    fn score(&self, snapshot: &Snapshot<'_>, node: &NodeInfo) -> i64 {
        let resources = &snapshot.args.balanced_resources;
        let all: Vec<Allocation> =
            allocations(resources, snapshot.pod, node, MissingRequests::Zero).collect();
        balance_score(&all)
    }
}
