//! The metrics of the controller, with upstream's names, labels and texts.

use api::k8s::api::batch::v1::{Job, JobCondition, JobStatus};
use base::clock;
use base::metrics::{Family, exponential};
use tokio::time::Instant;

/// Upper bounds in seconds.
const BOUNDS: [f64; 15] = exponential(0.004, 2.0);

const SYNC_LABELS: &[&str] = &["action", "completion_mode", "result"];

static PODS_FINISHED: Family = Family::counter(
    "job_controller_job_pods_finished_total",
    "[STABLE] The number of finished Pods that are fully tracked",
    &["completion_mode", "result"],
);

static SYNC_DURATION: Family = Family::histogram(
    "job_controller_job_sync_duration_seconds",
    "[STABLE] The time it took to sync a job",
    SYNC_LABELS,
    &BOUNDS,
);

static SYNCS: Family = Family::counter(
    "job_controller_job_syncs_total",
    "[STABLE] The number of job syncs",
    SYNC_LABELS,
);

static FINISHED: Family = Family::counter(
    "job_controller_jobs_finished_total",
    "[STABLE] The number of finished jobs",
    &["completion_mode", "reason", "result"],
);

/// The families of this controller, in the order in which they are rendered.
pub(crate) static ALL: [&Family; 4] = [&PODS_FINISHED, &SYNC_DURATION, &SYNCS, &FINISHED];

fn completion_mode(job: &Job) -> &str {
    let mode = job.spec.as_ref().and_then(|spec| spec.completion_mode.as_deref());
    mode.unwrap_or("NonIndexed")
}

/// What a sync did with pods.
pub(super) fn action(satisfied: bool, created: bool, deleted: bool) -> &'static str {
    match (satisfied, created, deleted) {
        (false, ..) => "reconciling",
        (true, true, _) => "pods_created",
        (true, false, true) => "pods_deleted",
        (true, false, false) => "tracking",
    }
}

/// Records a sync that has ended.
pub(super) fn synced(job: &Job, action: &str, began: Instant, is_success: bool) {
    let labels = [action, completion_mode(job), if is_success { "success" } else { "error" }];
    SYNC_DURATION.took(&labels, clock::now() - began);
    SYNCS.inc(&labels);
}

/// Records the pods that the new status counts and the Job's own does not.
pub(super) fn pods_counted(job: &Job, status: &JobStatus) {
    let old = job.status.as_ref();
    for (result, new, old) in [
        ("succeeded", status.succeeded, old.and_then(|s| s.succeeded)),
        ("failed", status.failed, old.and_then(|s| s.failed)),
    ] {
        let difference = new.unwrap_or(0) - old.unwrap_or(0);
        if difference > 0 {
            PODS_FINISHED.add(&[completion_mode(job), result], f64::from(difference));
        }
    }
}

/// Records the end of a Job.
pub(super) fn finished(job: &Job, last: &JobCondition) {
    let result = if last.type_ == "Complete" { "succeeded" } else { "failed" };
    let reason = last.reason.as_deref().unwrap_or_default();
    FINISHED.inc(&[completion_mode(job), reason, result]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newly_counted_pods_are_added() {
        let status = |succeeded, failed| JobStatus { succeeded, failed, ..JobStatus::default() };
        let mut job = Job { status: Some(status(Some(1), None)), ..Job::default() };
        job.spec.get_or_insert_default().completion_mode = Some("Indexed".into());
        pods_counted(&job, &status(Some(3), Some(1)));
        // A Job with fewer completions than before counts fewer.
        pods_counted(&job, &status(Some(0), None));
        assert_eq!(PODS_FINISHED.read(&["Indexed", "succeeded"]), 2.0);
        assert_eq!(PODS_FINISHED.read(&["Indexed", "failed"]), 1.0);
    }

    #[test]
    fn syncs_are_named_by_what_they_did() {
        for (satisfied, created, deleted, want) in [
            (false, false, false, "reconciling"),
            (true, true, false, "pods_created"),
            (true, false, true, "pods_deleted"),
            (true, false, false, "tracking"),
        ] {
            assert_eq!(action(satisfied, created, deleted), want);
        }
    }
}
