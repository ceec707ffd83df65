//! NodeDeclaredFeatures: the node declares the features that the pod needs (KEP-5328).

use crate::event::Event;
use crate::framework::{Plugin, Snapshot};
use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;
use crate::rejection::Rejection;

#[derive(Debug, Clone)]
pub(super) struct NodeDeclaredFeatures;

impl Plugin for NodeDeclaredFeatures {
    const NAME: &'static str = "NodeDeclaredFeatures";

    fn queueing_hint(event: &Event<'_>, _: &PodInfo) -> bool {
        matches!(event, Event::Node)
    }

    fn pre_filter(snapshot: &Snapshot<'_>) -> Option<Self> {
        (!snapshot.pod.required_features.is_empty()).then_some(Self)
    }

    fn filter(&self, snapshot: &Snapshot<'_>, node: &NodeInfo) -> Result<(), Rejection> {
        let is_declared =
            |required: &&str| node.declared_features.iter().any(|feature| feature == required);
        if snapshot.pod.required_features.iter().all(is_declared) {
            return Ok(());
        }
        Err(Rejection::unresolvable("node(s) didn't match Pod's required features"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::Arc;

    #[test]
    fn a_pod_that_restarts_all_containers_needs_a_node_that_can() {
        let rules = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In"}}]);
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [
            {"name": "c", "restartPolicyRules": rules}]}});
        let pod = Arc::new(PodInfo::new(&serde_json::from_value(pod).unwrap()));
        let node = |features: &[&str]| NodeInfo {
            declared_features: features.iter().map(|f| (*f).to_owned()).collect(),
            ..NodeInfo::default()
        };
        let snapshot = Snapshot::of(&pod, &[]);
        let plugin = NodeDeclaredFeatures::pre_filter(&snapshot).unwrap();
        let able = node(&["A", "RestartAllContainersOnContainerExits"]);
        assert!(plugin.filter(&snapshot, &able).is_ok());
        assert!(plugin.filter(&snapshot, &node(&["A"])).is_err());
        let pod = Arc::new(PodInfo::default());
        assert!(NodeDeclaredFeatures::pre_filter(&Snapshot::of(&pod, &[])).is_none());
    }
}
