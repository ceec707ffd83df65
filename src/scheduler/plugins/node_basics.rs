//! NodeUnschedulable, NodeName, NodeAffinity, NodePorts, and the refusal of resource claims.

use api::k8s::api::core::v1::Taint;

use super::{Misfit, normalize, tolerates};
use crate::node_info::NodeInfo;
use crate::node_selector::{allows, term_matches};
use crate::pod_info::PodInfo;

/// No node allocates devices, so a pod with resource claims stays pending instead of failing on the
/// node that it is bound to. Preemption cannot help.
pub(super) fn resource_claims(pod: &PodInfo) -> Result<(), Misfit> {
    if pod.has_resource_claims {
        return Err(Misfit::unresolvable(
            "DynamicResources",
            "node(s) do not support resource claims",
        ));
    }
    Ok(())
}

pub(super) fn unschedulable(pod: &PodInfo, node: &NodeInfo) -> Result<(), Misfit> {
    let taint = Taint {
        key: "node.kubernetes.io/unschedulable".into(),
        effect: "NoSchedule".into(),
        ..Taint::default()
    };
    if node.unschedulable && !tolerates(pod, &taint) {
        return Err(Misfit::unresolvable("NodeUnschedulable", "node(s) were unschedulable"));
    }
    Ok(())
}

pub(super) fn name(pod: &PodInfo, node: &NodeInfo) -> Result<(), Misfit> {
    if !pod.node_name.is_empty() && pod.node_name != node.name {
        return Err(Misfit::unresolvable(
            "NodeName",
            "node(s) didn't match the requested node name",
        ));
    }
    Ok(())
}

pub(super) fn affinity(pod: &PodInfo, node: &NodeInfo) -> Result<(), Misfit> {
    if allows(pod, node) {
        return Ok(());
    }
    Err(Misfit::unresolvable("NodeAffinity", "node(s) didn't match Pod's node affinity/selector"))
}

pub(super) fn ports(pod: &PodInfo, node: &NodeInfo) -> Result<(), Misfit> {
    let taken = |port| node.pods.iter().any(|p| p.ports.iter().any(|other| other.conflicts(port)));
    if pod.ports.iter().any(taken) {
        return Err(Misfit::new(
            "NodePorts",
            "node(s) didn't have free ports for the requested pod ports",
        ));
    }
    Ok(())
}

pub(super) fn score_affinity(pod: &PodInfo, nodes: &[&NodeInfo]) -> Vec<i64> {
    let weight = |node: &NodeInfo| -> i64 {
        pod.preferred_nodes
            .iter()
            .filter(|(_, term)| term_matches(term, &node.name, &node.labels))
            .map(|(weight, _)| *weight)
            .sum()
    };
    normalize(nodes.iter().map(|n| weight(n)).collect(), false)
}
