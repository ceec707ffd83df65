//! NodePorts: the host ports of the pod are free on the node.

use crate::event::Event;
use crate::framework::{Plugin, Snapshot};
use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;
use crate::rejection::Rejection;

#[derive(Debug, Clone)]
pub(super) struct NodePorts;

impl Plugin for NodePorts {
    const NAME: &'static str = "NodePorts";

    fn queueing_hint(event: &Event<'_>, _: &PodInfo) -> bool {
        matches!(event, Event::Node | Event::AssignedPodDelete(_))
    }

    fn pre_filter(snapshot: &Snapshot<'_>) -> Option<Self> {
        (!snapshot.pod.ports.is_empty()).then_some(Self)
    }

    fn filter(&self, snapshot: &Snapshot<'_>, node: &NodeInfo) -> Result<(), Rejection> {
        let mut taken = node.pods.iter().flat_map(|pod| &pod.ports);
        if taken.any(|taken| snapshot.pod.ports.iter().any(|port| taken.conflicts(port))) {
            return Err(Rejection::new(
                "node(s) didn't have free ports for the requested pod ports",
            ));
        }
        Ok(())
    }
}
