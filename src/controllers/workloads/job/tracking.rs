//! Counting finished pods exactly once: uids go through the status before their finalizers go.

use std::collections::HashSet;

use api::k8s::api::batch::v1::{JobCondition, JobStatus};
use api::k8s::api::core::v1::Pod;

use super::plan::{View, failed_for};
use super::policy::{self, Verdict};
use crate::framework::pods;
use crate::workloads::job::fields;
use crate::workloads::job::fields::{condition, index_of, is_failed, is_indexed};

/// Uids held in the status at once; more pods wait for the next sync.
const UNCOUNTED_MAX: usize = 500;

/// What follows from [`track_finished`].
#[derive(Debug, Default)]
pub(super) struct TrackingResult {
    /// Pods that lose their finalizer once the status is written.
    pub(super) release: Vec<Pod>,
    /// The condition that ends the Job when all is counted.
    pub(super) finished: Option<JobCondition>,
    /// Some pods were left for the next sync.
    pub(super) partial: bool,
    /// The actions of the pod failure policy for pods that failed.
    pub(super) policy_actions: Vec<&'static str>,
}

/// Moves uids whose pods have no finalizer any more into the counters.
pub(super) fn remove_counted(status: &mut JobStatus, tracked: &HashSet<String>) {
    let Some(uncounted) = &mut status.uncounted_terminated_pods else { return };
    let settled = |list: &mut Option<Vec<String>>| {
        let Some(uids) = list else { return 0 };
        let before = uids.len();
        uids.retain(|u| tracked.contains(u));
        let gone = i32::try_from(before - uids.len()).unwrap_or(0);
        if uids.is_empty() {
            *list = None;
        }
        gone
    };
    let (succeeded, failed) = (settled(&mut uncounted.succeeded), settled(&mut uncounted.failed));
    let add = |counter: &mut Option<i32>, more: i32| {
        if more > 0 {
            *counter = Some(counter.unwrap_or(0).saturating_add(more));
        }
    };
    add(&mut status.succeeded, succeeded);
    add(&mut status.failed, failed);
}

fn may_release(view: &View<'_>, pod: &Pod, over: bool) -> bool {
    if view.deleting || over || pods::phase(pod) == "Succeeded" {
        return true;
    }
    if !is_failed(view.spec, pod) {
        return false;
    }
    // The pod carries the failures of its index until it is replaced.
    let index = index_of(view.spec, pod);
    let kept = index.and_then(|i| view.delayed.get(&i));
    kept.is_none_or(|p| p.metadata.uid != pod.metadata.uid)
}

/// Notes finished pods and conditions in `status`. `finished` is why the Job is over, if it is.
pub(super) fn track_finished(
    view: &View<'_>,
    status: &mut JobStatus,
    finished: Option<JobCondition>,
) -> TrackingResult {
    let mut result = TrackingResult { finished, ..TrackingResult::default() };
    let indexed = is_indexed(view.spec);
    let over = result.finished.is_some();
    let failed_job = result.finished.as_ref().is_some_and(|c| c.type_ != "SuccessCriteriaMet");
    let tracked: HashSet<String> = tracked_uids(view);
    remove_counted(status, &tracked);
    let uncounted = status.uncounted_terminated_pods.get_or_insert_default();
    let mut succeeded = uncounted.succeeded.take().unwrap_or_default();
    let mut failed = uncounted.failed.take().unwrap_or_default();
    let mut indexes = Vec::new();
    for pod in view.pods.iter().filter(|p| view.is_tracked(p)) {
        if !may_release(view, pod, over) {
            continue;
        }
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let known_failed = failed.contains(&uid);
        if pods::phase(pod) == "Succeeded" && !known_failed {
            if indexed {
                let index = index_of(view.spec, pod);
                indexes.extend(index.filter(|i| !view.succeeded_before.has(*i)));
            } else if !succeeded.contains(&uid) {
                succeeded.push(uid);
            }
        } else if (is_failed(view.spec, pod) || failed_job)
            && !known_failed
            && (!indexed || index_of(view.spec, pod).is_some())
        {
            let rule = policy::matching_rule(view.spec, pod);
            result.policy_actions.extend(rule.as_ref().map(Verdict::action));
            if rule != Some(Verdict::Ignore) {
                failed.push(uid);
            }
        }
        result.release.push(pod.clone());
        if indexes.len() + succeeded.len() + failed.len() >= UNCOUNTED_MAX {
            result.partial = true;
            break;
        }
    }
    uncounted.succeeded = (!succeeded.is_empty()).then_some(succeeded);
    uncounted.failed = (!failed.is_empty()).then_some(failed);
    if indexed {
        let all = view.succeeded_before.with(indexes);
        status.succeeded = Some(all.total()).filter(|n| *n != 0);
        status.completed_indexes = Some(all.to_string()).filter(|s| !s.is_empty());
        status.failed_indexes = view.failed_indexes.as_ref().map(ToString::to_string);
    }
    if let Some(reason) = result.finished.take() {
        result.finished = Some(announce(view, status, reason));
    }
    result
}

/// Sets the condition with the reason first, and returns the final condition that follows.
fn announce(view: &View<'_>, status: &mut JobStatus, reason: JobCondition) -> JobCondition {
    match reason.type_.as_str() {
        "FailureTarget" => {
            let last = failed_for(&reason, view.now);
            fields::ensure(status, reason);
            last
        }
        "SuccessCriteriaMet" => {
            let text = |t: &Option<String>| t.clone().unwrap_or_default();
            let last = condition(
                "Complete",
                "True",
                &text(&reason.reason),
                &text(&reason.message),
                view.now,
            );
            if fields::true_condition(status, "SuccessCriteriaMet").is_none() {
                fields::ensure(status, reason);
            }
            last
        }
        _ => reason,
    }
}

/// Pods that still hold our finalizer.
pub(super) fn tracked_uids(view: &View<'_>) -> HashSet<String> {
    let tracked = view.pods.iter().filter(|p| view.is_tracked(p));
    tracked.filter_map(|p| p.metadata.uid.clone()).collect()
}

/// Ends the Job unless something is uncounted or still terminating; true when it ended.
pub(super) fn finish(status: &mut JobStatus, accounted: &TrackingResult) -> bool {
    let uncounted = status.uncounted_terminated_pods.as_ref();
    let waits = uncounted.is_some_and(|u| u.succeeded.is_some() || u.failed.is_some());
    let Some(last) = accounted.finished.clone() else { return false };
    if waits || accounted.partial || status.terminating.unwrap_or(0) > 0 {
        return false;
    }
    if last.type_ == "Complete" {
        status.completion_time.clone_from(&last.last_transition_time);
    }
    fields::ensure(status, last);
    true
}
