//! Facts about pods that several controllers need.

use api::k8s::api::core::v1::{Pod, PodCondition, PodTemplateSpec};
use api::k8s::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use api::k8s::jiff::Timestamp;
use client::{Change, Expectations};

/// `status.phase`, empty when unset.
pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

/// Reports the change of a pod to the expectations under `key`; a pod that is being deleted counts
/// as deleted.
pub(crate) fn observed(change: &Change, pod: &ObjectMeta, key: &str, expectations: &Expectations) {
    match change {
        Change::Added(_) => expectations.creation_observed(key),
        Change::Updated { .. } if pod.deletion_timestamp.is_none() => {}
        Change::Updated { .. } | Change::Deleted(_) => {
            expectations.deletion_observed(key, &change.object().uid)
        }
    }
}

/// Neither finished nor being deleted (`controller.IsPodActive`).
pub(crate) fn is_active(pod: &Pod) -> bool {
    !is_terminal(pod) && pod.metadata.deletion_timestamp.is_none()
}

/// Succeeded or Failed.
pub(crate) fn is_terminal(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// The condition of this type.
pub(crate) fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == kind)
}

/// Condition `Ready` is true.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|c| c.status == "True")
}

/// When the pod became ready; `None` while it is not.
pub(crate) fn ready_since(pod: &Pod) -> Option<Timestamp> {
    condition(pod, "Ready")
        .filter(|c| c.status == "True")?
        .last_transition_time
        .as_ref()
        .map(|Time(t)| *t)
}

/// Ready for at least `min_ready_seconds` at `now` (`podutil.IsPodAvailable`).
pub(crate) fn is_available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> bool {
    if !is_ready(pod) {
        return false;
    }
    min_ready_seconds == 0
        || ready_since(pod).is_some_and(|since| {
            now.as_second() - since.as_second() >= i64::from(min_ready_seconds)
        })
}

/// Bound to a node.
pub(crate) fn is_scheduled(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).is_some_and(|n| !n.is_empty())
}

/// Restarts of all containers together.
pub(crate) fn restarts(pod: &Pod) -> i32 {
    let statuses =
        pod.status.as_ref().and_then(|s| s.container_statuses.as_deref()).unwrap_or_default();
    statuses.iter().map(|s| s.restart_count).sum()
}

/// The value of the deletion-cost annotation; 0 when absent or malformed
/// (`controller.kubernetes.io/pod-deletion-cost`).
pub(crate) fn deletion_cost(pod: &Pod) -> i32 {
    let annotations = pod.metadata.annotations.as_ref();
    annotations
        .and_then(|a| a.get("controller.kubernetes.io/pod-deletion-cost"))
        .and_then(|v| v.parse().ok())
        .unwrap_or(0)
}

/// Labels of a template match what a pod made from it would have.
pub(crate) fn template_labels(
    template: Option<&PodTemplateSpec>,
) -> std::collections::BTreeMap<String, String> {
    template.and_then(|t| t.metadata.as_ref()).and_then(|m| m.labels.clone()).unwrap_or_default()
}
