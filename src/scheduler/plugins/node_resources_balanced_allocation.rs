//! NodeResourcesBalancedAllocation: prefers nodes on which the pod makes the shares in use of CPU
//! and memory more equal.

use crate::framework::{Plugin, Snapshot};
use crate::node_info::NodeInfo;
use crate::plugins::resource_scores::{
    MissingRequests, allocations, balance_score, pod_request, scored_devices,
};

#[derive(Debug, Clone)]
pub(super) struct NodeResourcesBalancedAllocation;

impl Plugin for NodeResourcesBalancedAllocation {
    const NAME: &'static str = "NodeResourcesBalancedAllocation";

    /// A pod without requests does not change the balance.
    fn pre_score(snapshot: &Snapshot<'_>, _: &[&NodeInfo]) -> Option<Self> {
        let mut resources = snapshot.args.balanced_resources.iter();
        let request = |resource| pod_request(snapshot.pod, resource, MissingRequests::Zero);
        resources.any(|resource| request(&resource.resource) != 0).then_some(Self)
    }

    fn score(&self, snapshot: &Snapshot<'_>, node: &NodeInfo) -> i64 {
        let resources = &snapshot.args.balanced_resources;
        let devices = scored_devices(resources, snapshot);
        let missing = MissingRequests::Zero;
        balance_score(allocations(resources, snapshot.pod, node, devices.as_ref(), missing))
    }
}
