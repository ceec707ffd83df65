//! The metrics of the controller, with upstream's names, labels and texts.

use api::Object;
use api::k8s::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus};
use base::clock;
use base::metrics::{Family, exponential};
use client::Change;
use serde::Deserialize;
use tokio::time::Instant;

use super::fields::{self, is_indexed};
use super::indexes::Indexes;
use super::{MANAGED_BY, has_finalizer};

/// Upper bounds in seconds.
const BOUNDS: [f64; 15] = exponential(0.004, 2.0);

const SYNC_LABELS: &[&str] = &["action", "completion_mode", "result"];

// Line breaks and tabs are those of upstream's texts; a page has line breaks as `\n`.
static INDEXES_FINISHED: Family = Family::counter(
    "job_controller_job_finished_indexes_total",
    "[ALPHA] The number of finished indexes. Possible values for the\\n\t\t\tstatus label are: \
     \"succeeded\", \"failed\". Possible values for the\\n\t\t\tbackoffLimit label are: \
     \"perIndex\" and \"global\"",
    &["backoffLimit", "status"],
);

static PODS_CREATED: Family = Family::counter(
    "job_controller_job_pods_creation_total",
    "[ALPHA] The number of Pods created by the Job controller labelled with a reason for the Pod \
     creation.\\nThis metric also distinguishes between Pods created using different \
     PodReplacementPolicy settings.\\nPossible values of the \"reason\" label are:\\n\"new\", \
     \"recreate_terminating_or_failed\", \"recreate_failed\".\\nPossible values of the \"status\" \
     label are:\\n\"succeeded\", \"failed\".",
    &["reason", "status"],
);

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

static EXTERNAL: Family = Family::counter(
    "job_controller_jobs_by_external_controller_total",
    "[ALPHA] The number of Jobs managed by an external controller",
    &["controller_name"],
);

static FINISHED: Family = Family::counter(
    "job_controller_jobs_finished_total",
    "[STABLE] The number of finished jobs",
    &["completion_mode", "reason", "result"],
);

static POLICY_ACTIONS: Family = Family::counter(
    "job_controller_pod_failures_handled_by_failure_policy_total",
    "[BETA] The number of failed Pods handled by failure policy with\\n\t\t\trespect to the \
     failure policy action applied based on the matched\\n\t\t\trule. Possible values of the action label \
     correspond to the\\n\t\t\tpossible values for the failure policy rule action, which \
     are:\\n\t\t\t\"FailJob\", \"Ignore\" and \"Count\".",
    &["action"],
);

static STALE_SYNCS: Family = Family::counter(
    "job_controller_stale_sync_skips_total",
    "[ALPHA] Total number of Job syncs skipped due to a stale watch cache.",
    &["group", "resource"],
);

static TRACKED_PODS: Family = Family::counter(
    "job_controller_terminated_pods_tracking_finalizer_total",
    "[BETA] The number of terminated pods (phase=Failed|Succeeded)\\nthat have the finalizer \
     batch.kubernetes.io/job-tracking\\nThe event label can be \"add\" or \"delete\".",
    &["event"],
);

/// The families of this controller, in the order in which they are rendered.
pub(crate) static ALL: [&Family; 10] = [
    &INDEXES_FINISHED,
    &PODS_CREATED,
    &PODS_FINISHED,
    &SYNC_DURATION,
    &SYNCS,
    &EXTERNAL,
    &FINISHED,
    &POLICY_ACTIONS,
    &STALE_SYNCS,
    &TRACKED_PODS,
];

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

/// Records the pods and indexes that the new status counts and the Job's own does not
/// (`recordJobPodFinished`).
pub(super) fn pods_counted(job: &Job, status: &JobStatus) {
    let (old, mode) = (job.status.as_ref(), completion_mode(job));
    let more = |new: Option<i32>, old: Option<i32>| {
        f64::from(new.unwrap_or(0).saturating_sub(old.unwrap_or(0)).max(0))
    };
    let mut succeeded = more(status.succeeded, old.and_then(|s| s.succeeded));
    if let Some(spec) = job.spec.as_ref().filter(|spec| is_indexed(spec)) {
        // Only indexes below the present number of completions count.
        let completions = spec.completions.unwrap_or(0);
        let total = |text: Option<&String>| {
            Some(Indexes::parse(text.map(String::as_str).unwrap_or_default(), completions).total())
        };
        let grown = |new: Option<&String>, old: Option<&String>| match new == old {
            true => 0.0,
            false => more(total(new), total(old)),
        };
        let was = old.and_then(|s| s.completed_indexes.as_ref());
        succeeded = grown(status.completed_indexes.as_ref(), was);
        let is_per_index = spec.backoff_limit_per_index.is_some();
        let limit = if is_per_index { "perIndex" } else { "global" };
        INDEXES_FINISHED.add(&[limit, "succeeded"], succeeded);
        let was = old.and_then(|s| s.failed_indexes.as_ref());
        let failed = grown(status.failed_indexes.as_ref(), was);
        if is_per_index && failed > 0.0 {
            INDEXES_FINISHED.add(&[limit, "failed"], failed);
        }
    }
    PODS_FINISHED.add(&[mode, "succeeded"], succeeded);
    PODS_FINISHED.add(&[mode, "failed"], more(status.failed, old.and_then(|s| s.failed)));
}

/// Why a Job with these numbers of failed and terminating pods gets new ones.
pub(super) fn creation_reason(spec: &JobSpec, failed: i32, terminating: i32) -> &'static str {
    match (fields::replaces_only_failed(spec), failed > 0, terminating > 0) {
        (true, true, _) => "recreate_failed",
        (_, true, _) | (_, _, true) => "recreate_terminating_or_failed",
        (_, false, false) => "new",
    }
}

/// Records requests to create pods.
pub(super) fn pods_created(reason: &str, succeeded: i32, failed: i32) {
    for (status, number) in [("succeeded", succeeded), ("failed", failed)] {
        if number > 0 {
            PODS_CREATED.add(&[reason, status], f64::from(number));
        }
    }
}

/// Records what rules of the pod failure policy did with failed pods.
pub(super) fn policy_applied(actions: &[&'static str]) {
    for action in actions {
        POLICY_ACTIONS.inc(&[action]);
    }
}

/// Records a sync that was skipped because the cache does not have the Job's last status yet.
pub(super) fn stale_sync_skipped() {
    STALE_SYNCS.inc(&["batch", "jobs"]);
}

/// The fields of Jobs and pods that changes are measured by.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Measured {
    spec: MeasuredSpec,
    status: MeasuredStatus,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct MeasuredSpec {
    managed_by: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct MeasuredStatus {
    phase: Option<String>,
}

impl Measured {
    fn of(object: &Object) -> Self {
        serde_json::from_slice(object.raw()).unwrap_or_default()
    }
}

/// Records a new Job of another controller.
pub(super) fn job_changed(change: &Change) {
    let Change::Added(job) = change else { return };
    let manager = Measured::of(job).spec.managed_by.filter(|manager| manager != MANAGED_BY);
    if let Some(manager) = manager {
        EXTERNAL.inc(&[&manager]);
    }
}

/// Records that a finished pod has the finalizer of this controller from now on, or no more.
pub(super) fn pod_changed(change: &Change) {
    let (old, new) = match change {
        Change::Added(new) => (None, Some(new)),
        Change::Updated { old, new } => (Some(old), Some(new)),
        Change::Deleted(old) => (Some(old), None),
    };
    let is_tracked = |pod: &Object| {
        client::meta(pod).is_some_and(|meta| has_finalizer(&meta))
            && matches!(Measured::of(pod).status.phase.as_deref(), Some("Failed" | "Succeeded"))
    };
    let (was, is) = (old.is_some_and(|o| is_tracked(o)), new.is_some_and(|o| is_tracked(o)));
    if was != is {
        TRACKED_PODS.inc(&[if is { "add" } else { "delete" }]);
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
        // A mode of its own, so that no other test adds to its series.
        job.spec.get_or_insert_default().completion_mode = Some("OfThisTest".into());
        pods_counted(&job, &status(Some(3), Some(1)));
        // A Job with fewer completions than before counts fewer.
        pods_counted(&job, &status(Some(0), None));
        assert_eq!(PODS_FINISHED.read(&["OfThisTest", "succeeded"]), 2.0);
        assert_eq!(PODS_FINISHED.read(&["OfThisTest", "failed"]), 1.0);
    }

    /// As `recordJobPodFinished`, for completions that were reduced.
    #[test]
    fn indexes_below_the_completions_are_added() {
        let status = |completed: &str, failed: Option<&str>| JobStatus {
            succeeded: Some(Indexes::parse(completed, 100).total()),
            completed_indexes: Some(completed.to_owned()),
            failed_indexes: failed.map(str::to_owned),
            ..JobStatus::default()
        };
        let mut job = Job { status: Some(status("0,4", Some("1"))), ..Job::default() };
        let spec = job.spec.get_or_insert_default();
        spec.completion_mode = Some("Indexed".into());
        spec.completions = Some(3);
        let read = |limit, status| INDEXES_FINISHED.read(&[limit, status]);
        let before = (read("global", "succeeded"), PODS_FINISHED.read(&["Indexed", "succeeded"]));
        pods_counted(&job, &status("0,1", Some("1,2")));
        assert_eq!(read("global", "succeeded"), before.0 + 1.0);
        assert_eq!(PODS_FINISHED.read(&["Indexed", "succeeded"]), before.1 + 1.0);
        assert_eq!(read("global", "failed"), 0.0);
        job.spec.get_or_insert_default().backoff_limit_per_index = Some(1);
        let before = (read("perIndex", "succeeded"), read("perIndex", "failed"));
        pods_counted(&job, &status("0", Some("1,2")));
        assert_eq!(
            (read("perIndex", "succeeded"), read("perIndex", "failed")),
            (before.0, before.1 + 1.0)
        );
    }

    #[test]
    fn pods_are_created_for_the_reasons_of_upstream() {
        let spec = |policy: &str| JobSpec {
            pod_replacement_policy: Some(policy.to_owned()),
            ..JobSpec::default()
        };
        for (policy, failed, terminating, want) in [
            ("Failed", 0, 0, "new"),
            ("Failed", 1, 0, "recreate_failed"),
            ("Failed", 0, 1, "recreate_terminating_or_failed"),
            ("TerminatingOrFailed", 1, 0, "recreate_terminating_or_failed"),
            ("TerminatingOrFailed", 0, 1, "recreate_terminating_or_failed"),
            ("TerminatingOrFailed", 0, 0, "new"),
        ] {
            assert_eq!(creation_reason(&spec(policy), failed, terminating), want, "{policy}");
        }
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
