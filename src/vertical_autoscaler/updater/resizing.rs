//! Whether a pod is resized in place or evicted, by the conditions of its last resize
//! (`pkg/updater/restriction`).

use std::collections::HashMap;
use std::time::Duration;

use api::k8s::jiff::Timestamp;

use super::budget::DisruptionBudget;
use crate::admission::startup_boost;
use crate::policy::capping::{Recommended, has_lower_target, recommended};
use crate::policy::pod::PodView;
use crate::policy::{Features, update_mode};
use crate::types::{UpdateMode, VerticalPodAutoscaler};

/// A resize that the kubelet has deferred for longer falls back to eviction
/// (`DeferredResizeUpdateTimeout`).
const DEFERRED_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// A resize that is in progress for longer falls back to eviction
/// (`InProgressResizeUpdateTimeout`).
const IN_PROGRESS_TIMEOUT: Duration = Duration::from_secs(60 * 60);

const RESIZE_PENDING: &str = "PodResizePending";
const RESIZE_IN_PROGRESS: &str = "PodResizeInProgress";

/// What the conditions of a pod say about its last resize (`ResizeStatus`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResizeStatus {
    /// No resize is pending or in progress.
    None,
    /// The kubelet has postponed the resize.
    Deferred,
    /// The node cannot have the resized pod.
    Infeasible,
    /// The kubelet resizes the pod.
    InProgress,
    /// The resize failed.
    Error,
    /// Another reason.
    Unknown,
}

/// What to do with a pod (`InPlaceDecision`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InPlaceDecision {
    /// Resize it.
    Approved,
    /// Wait for the next loop.
    Deferred,
    /// Evict it.
    Evict,
    /// The node cannot have the resized pod; try again.
    Infeasible,
    /// As [`InPlaceDecision::Infeasible`], and the recommendation is not lower since then.
    InfeasibleCached,
}

/// What the updater remembers of resizes between loops, by uid of the pod.
#[derive(Debug, Default)]
pub(super) struct ResizeMemory {
    /// When a resize was first observed.
    pub(super) observed: HashMap<String, Timestamp>,
    /// The recommendation whose resize was infeasible.
    pub(super) infeasible: HashMap<String, Vec<Recommended>>,
}

impl ResizeMemory {
    /// Forgets pods that are not among the live ones, and resizes that ended.
    pub(super) fn retain<'a>(&mut self, live: impl Fn(&str) -> Option<&'a PodView>) {
        self.observed.retain(|uid, _| live(uid).is_some_and(is_resizing));
        self.infeasible.retain(|uid, _| live(uid).is_some());
    }

    /// Remembers that the recommendation cannot be applied to the pod in place.
    pub(super) fn record_infeasible(&mut self, pod: &PodView, autoscaler: &VerticalPodAutoscaler) {
        let recommendation = autoscaler.status.recommendation.as_ref();
        let recommended = recommendation.map(recommended).unwrap_or_default();
        self.infeasible.insert(pod.uid.clone(), recommended);
    }

    /// Whether a resize of the pod was infeasible and `new` is not lower for any resource.
    pub(super) fn is_still_infeasible(&self, pod: &PodView, new: &[Recommended]) -> bool {
        self.infeasible.get(&pod.uid).is_some_and(|last| !has_lower_target(last, new))
    }
}

/// Whether a resize of the pod is pending or in progress (`isInPlaceUpdating`).
pub(super) fn is_resizing(pod: &PodView) -> bool {
    let mut conditions = pod.conditions.iter();
    let first = conditions.find(|c| [RESIZE_PENDING, RESIZE_IN_PROGRESS].contains(&&*c.kind));
    first.is_some_and(|condition| condition.is_true)
}

/// `getResizeStatus`.
pub(super) fn resize_status(pod: &PodView) -> ResizeStatus {
    if !is_resizing(pod) {
        return ResizeStatus::None;
    }
    if let Some(pending) = pod.condition(RESIZE_PENDING) {
        return match &*pending.reason {
            "Deferred" => ResizeStatus::Deferred,
            "Infeasible" => ResizeStatus::Infeasible,
            _ => ResizeStatus::Unknown,
        };
    }
    let progress = pod.condition(RESIZE_IN_PROGRESS);
    match progress.map(|progress| (&*progress.reason, &*progress.message)) {
        Some(("", "")) => ResizeStatus::InProgress,
        Some(("Error", _)) => ResizeStatus::Error,
        _ => ResizeStatus::Unknown,
    }
}

/// Whether the resize of a pod has failed or takes too long, and its budget admits an eviction
/// (`CanEvictInPlacingPod`).
fn can_evict_resizing(
    pod: &PodView,
    budget: &DisruptionBudget,
    memory: &mut ResizeMemory,
    now: Timestamp,
) -> bool {
    let since = *memory.observed.entry(pod.uid.clone()).or_insert(now);
    let elapsed = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    budget.is_disruptable(pod)
        && match resize_status(pod) {
            ResizeStatus::None => false,
            ResizeStatus::Deferred => elapsed > DEFERRED_TIMEOUT,
            ResizeStatus::InProgress => elapsed > IN_PROGRESS_TIMEOUT,
            ResizeStatus::Infeasible | ResizeStatus::Error | ResizeStatus::Unknown => true,
        }
}

/// Whether a pod may be evicted now (`CanEvict`).
pub(super) fn can_evict(
    pod: &PodView,
    budget: &DisruptionBudget,
    memory: &mut ResizeMemory,
    now: Timestamp,
) -> bool {
    if !budget.covers(pod) {
        return false;
    }
    if pod.is_pending() {
        return true;
    }
    if is_resizing(pod) {
        return can_evict_resizing(pod, budget, memory, now);
    }
    budget.is_disruptable(pod)
}

/// Whether a pod is resized in place now (`CanInPlaceUpdate`).
pub(super) fn decide(
    pod: &PodView,
    autoscaler: &VerticalPodAutoscaler,
    budget: &DisruptionBudget,
    memory: &mut ResizeMemory,
    (features, now): (Features, Timestamp),
) -> InPlaceDecision {
    let is_in_place = update_mode(autoscaler) == UpdateMode::InPlace;
    if is_in_place && !features.in_place || !budget.covers(pod) || pod.is_pending() {
        return InPlaceDecision::Deferred;
    }
    let Some(recommendation) = &autoscaler.status.recommendation else {
        return InPlaceDecision::Deferred;
    };
    if is_in_place && memory.is_still_infeasible(pod, &recommended(recommendation)) {
        return InPlaceDecision::InfeasibleCached;
    }
    match resize_status(pod) {
        ResizeStatus::None if budget.is_disruptable(pod) => InPlaceDecision::Approved,
        ResizeStatus::None => InPlaceDecision::Deferred,
        ResizeStatus::Infeasible if is_in_place => InPlaceDecision::Infeasible,
        _ if is_in_place => InPlaceDecision::Deferred,
        _ if can_evict_resizing(pod, budget, memory, now) => InPlaceDecision::Evict,
        _ => InPlaceDecision::Deferred,
    }
}

/// Whether the boost of a container of the pod ends now (`CanUnboost`).
pub(super) fn can_unboost(
    pod: &PodView,
    autoscaler: &VerticalPodAutoscaler,
    budget: &DisruptionBudget,
    now: Timestamp,
) -> bool {
    !pod.is_pending()
        && !startup_boost::expired(pod, autoscaler, now).is_empty()
        && !is_resizing(pod)
        && budget.is_disruptable(pod)
}

#[cfg(test)]
mod tests;
