//! Helpers for nodes and the pods on them.

use api::Object;
use api::k8s::api::core::v1::{Node, NodeCondition, Pod, Taint};
use client::Informer;
use serde::Deserialize;

/// Index of pods by `spec.nodeName`.
pub(crate) const BY_NODE: &str = "node";

#[derive(Deserialize, Default)]
#[serde(default)]
struct Bound<'a> {
    #[serde(borrow)]
    spec: BoundSpec<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct BoundSpec<'a> {
    #[serde(borrow)]
    node_name: std::borrow::Cow<'a, str>,
}

/// `spec.nodeName` of a pod; `None` while it has no node.
pub(crate) fn node_of(pod: &Object) -> Option<String> {
    let bound: Bound<'_> = serde_json::from_slice(pod.raw()).ok()?;
    Some(bound.spec.node_name.into_owned()).filter(|n| !n.is_empty())
}

/// Makes `pods` searchable by [`BY_NODE`].
pub(crate) fn index_pods(pods: &Informer<Pod>) {
    pods.add_index(BY_NODE, |pod| node_of(pod).into_iter().collect());
}

/// The condition of this type.
pub(crate) fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    node.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == kind)
}

/// `status` of the condition `Ready`: `True`, `False`, `Unknown`; `None` before the node reported
/// it.
pub(crate) fn ready(node: &Node) -> Option<&str> {
    condition(node, "Ready").map(|c| c.status.as_str())
}

/// The taints of a node.
pub(crate) fn taints(node: &Node) -> &[Taint] {
    node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or_default()
}

/// Region and zone, which nodes that fail together share (`GetZoneKey`); empty when the node has
/// neither label.
pub(crate) fn zone(node: &Node) -> String {
    let label = |stable: &str, beta: &str| {
        let labels = node.metadata.labels.as_ref();
        labels.and_then(|l| l.get(stable).or_else(|| l.get(beta))).cloned().unwrap_or_default()
    };
    let region = label("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region");
    let zone = label("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone");
    if region.is_empty() && zone.is_empty() { String::new() } else { format!("{region}:\0:{zone}") }
}
