//! NodeName: a pod that names a node fits that node only.

use crate::framework::{Plugin, Snapshot};
use crate::node_info::NodeInfo;
use crate::rejection::Rejection;

#[derive(Debug, Clone)]
pub(super) struct NodeName;

impl Plugin for NodeName {
    const NAME: &'static str = "NodeName";

    fn pre_filter(snapshot: &Snapshot<'_>) -> Option<Self> {
        (!snapshot.pod.node_name.is_empty()).then_some(Self)
    }

    fn filter(&self, snapshot: &Snapshot<'_>, node: &NodeInfo) -> Result<(), Rejection> {
        if snapshot.pod.node_name == node.name {
            return Ok(());
        }
        Err(Rejection::unresolvable("node(s) didn't match the requested node name"))
    }
}
