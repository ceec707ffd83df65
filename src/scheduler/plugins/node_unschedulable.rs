//! NodeUnschedulable: a cordoned node takes only pods that tolerate its taint.

use api::k8s::api::core::v1::Taint;

use crate::framework::{Plugin, Snapshot};
use crate::node_info::NodeInfo;
use crate::rejection::Rejection;
use crate::tolerations::tolerates;

#[derive(Debug, Clone)]
pub(super) struct NodeUnschedulable;

impl Plugin for NodeUnschedulable {
    const NAME: &'static str = "NodeUnschedulable";

    fn pre_filter(snapshot: &Snapshot<'_>) -> Option<Self> {
        let taint = Taint {
            key: "node.kubernetes.io/unschedulable".into(),
            effect: "NoSchedule".into(),
            ..Taint::default()
        };
        (!tolerates(snapshot.pod, &taint)).then_some(Self)
    }

    fn filter(&self, _: &Snapshot<'_>, node: &NodeInfo) -> Result<(), Rejection> {
        if node.unschedulable {
            return Err(Rejection::unresolvable("node(s) were unschedulable"));
        }
        Ok(())
    }
}
