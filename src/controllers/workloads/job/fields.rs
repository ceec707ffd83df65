//! Facts about a Job and its pods.

use api::k8s::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus};
use api::k8s::api::core::v1::Pod;
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use api::k8s::jiff::Timestamp;

use crate::framework::pods;

/// Keeps a pod until it is counted.
pub(super) const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
/// Annotation and label of a pod's completion index.
pub(super) const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Annotations of how often pods of this index failed before, counted and ignored.
pub(super) const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
pub(super) const IGNORED_FAILURES: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

pub(super) fn is_indexed(spec: &JobSpec) -> bool {
    spec.completion_mode.as_deref() == Some("Indexed")
}

pub(super) fn is_suspended(spec: &JobSpec) -> bool {
    spec.suspend == Some(true)
}

/// Pods are replaced only when they have failed, not as soon as they are being deleted.
pub(super) fn replaces_only_failed(spec: &JobSpec) -> bool {
    spec.pod_replacement_policy.as_deref() == Some("Failed")
}

/// The condition of this type that is true.
pub(super) fn true_condition<'a>(status: &'a JobStatus, kind: &str) -> Option<&'a JobCondition> {
    let mut all = status.conditions.iter().flatten();
    all.find(|c| c.type_ == kind && c.status == "True")
}

/// `Complete` or `Failed` is true.
pub(crate) fn is_finished(job: &Job) -> bool {
    finished_at(job).is_some()
}

/// The condition by which the Job is finished.
pub(crate) fn finished_at(job: &Job) -> Option<&JobCondition> {
    let status = job.status.as_ref()?;
    true_condition(status, "Complete").or_else(|| true_condition(status, "Failed"))
}

pub(super) fn condition(
    kind: &str,
    status: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> JobCondition {
    JobCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_probe_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    }
}

/// Sets a condition; true when it changed. A condition that is false is not added.
pub(super) fn ensure(status: &mut JobStatus, new: JobCondition) -> bool {
    match status.conditions.iter_mut().flatten().find(|c| c.type_ == new.type_) {
        Some(old)
            if (&old.status, &old.reason, &old.message)
                == (&new.status, &new.reason, &new.message) =>
        {
            false
        }
        Some(old) => {
            *old = new;
            true
        }
        // No empty list either: it would make the status differ from that of the API server.
        None if new.status == "False" => false,
        None => {
            status.conditions.get_or_insert_default().push(new);
            true
        }
    }
}

/// The completion index; `None` when absent, malformed, or not below `spec.completions`.
pub(super) fn index_of(spec: &JobSpec, pod: &Pod) -> Option<i32> {
    let text = pod.metadata.annotations.as_ref()?.get(INDEX)?;
    text.parse().ok().filter(|i| (0..spec.completions.unwrap_or(0)).contains(i))
}

fn annotation(pod: &Pod, key: &str) -> i32 {
    let text = pod.metadata.annotations.as_ref().and_then(|a| a.get(key));
    text.and_then(|t| t.parse().ok()).filter(|n| *n >= 0).unwrap_or(0)
}

/// Earlier failures of the pod's index, counted and ignored.
pub(super) fn failures_of(pod: &Pod) -> (i32, i32) {
    (annotation(pod, FAILURES), annotation(pod, IGNORED_FAILURES))
}

pub(super) fn is_tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.as_ref().is_some_and(|f| f.iter().any(|f| f == FINALIZER))
}

pub(super) fn is_failed(spec: &JobSpec, pod: &Pod) -> bool {
    let phase = pods::phase(pod);
    phase == "Failed"
        || (!replaces_only_failed(spec)
            && pod.metadata.deletion_timestamp.is_some()
            && phase != "Succeeded")
}

pub(super) fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some() && !pods::is_terminal(pod)
}

/// When the pod's last container ended, or the nearest that is known to it.
pub(super) fn finished_time(pod: &Pod) -> Timestamp {
    let status = pod.status.as_ref();
    let mut latest = None;
    for container in status.and_then(|s| s.container_statuses.as_ref()).into_iter().flatten() {
        let ended = container.state.as_ref().and_then(|s| s.terminated.as_ref());
        match ended.and_then(|t| t.finished_at.as_ref()) {
            Some(Time(time)) => latest = latest.max(Some(*time)),
            None => {
                latest = None;
                break;
            }
        }
    }
    let not_ready = || {
        let ready = pods::condition(pod, "Ready").filter(|c| c.status == "False")?;
        ready.last_transition_time.as_ref().map(|Time(t)| *t)
    };
    let deleted = || {
        let Time(at) = pod.metadata.deletion_timestamp.as_ref()?;
        let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
        Timestamp::from_second(at.as_second().saturating_sub(grace)).ok()
    };
    let created = || pod.metadata.creation_timestamp.as_ref().map(|Time(t)| *t);
    latest.or_else(not_ready).or_else(deleted).or_else(created).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Seconds that a new pod waits after `failures` in a row, the last at `since`: 10 s, doubled each
/// time, at most 10 min.
pub(super) fn back_off(failures: i32, since: Timestamp, now: Timestamp) -> i64 {
    if failures <= 0 {
        return 0;
    }
    let doublings = u32::try_from(failures - 1).unwrap_or(0).min(10);
    let wait = (10_i64 << doublings).min(600);
    (wait - (now.as_second() - since.as_second())).max(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_back_off_doubles_up_to_ten_minutes() {
        let at = |s| Timestamp::from_second(s).unwrap();
        assert_eq!(back_off(0, at(0), at(0)), 0);
        assert_eq!(back_off(1, at(0), at(4)), 6);
        assert_eq!(back_off(3, at(0), at(0)), 40);
        assert_eq!(back_off(60, at(0), at(0)), 600);
        assert_eq!(back_off(1, at(0), at(11)), 0);
    }
}
