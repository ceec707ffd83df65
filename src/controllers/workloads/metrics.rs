//! The metrics of CronJobs, finished Jobs, collected pods, ReplicaSets and StatefulSets, with
//! upstream's names, labels and texts.

use std::time::Duration;

use api::k8s::api::core::v1::Pod;
use api::k8s::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use api::k8s::jiff::Timestamp;
use base::metrics::{Family, exponential};

use crate::framework::pods;

const SKEW_BOUNDS: [f64; 10] = exponential(1.0, 2.0);
const JOB_DELETION_BOUNDS: [f64; 14] = exponential(0.1, 2.0);
const AGE_BOUNDS: [f64; 6] = exponential(0.25, 2.0);

const POD_LABELS: &[&str] = &["namespace", "reason"];
const SET_LABELS: &[&str] = &["pod_management_policy", "statefulset_name", "statefulset_namespace"];

static CREATION_SKEW: Family = Family::histogram(
    "cronjob_controller_job_creation_skew_duration_seconds",
    "[STABLE] Time between when a cronjob is scheduled to be run, and when the corresponding job \
     is created",
    &[],
    &SKEW_BOUNDS,
);

static JOB_DELETION_DURATION: Family = Family::histogram(
    "ttl_after_finished_controller_job_deletion_duration_seconds",
    "[ALPHA] The time it took to delete the job since it became eligible for deletion",
    &[],
    &JOB_DELETION_BOUNDS,
);

static POD_DELETION_ERRORS: Family = Family::counter(
    "pod_gc_collector_force_delete_pod_errors_total",
    "[ALPHA] Number of errors encountered when forcefully deleting the pods since the Pod GC \
     Controller started.",
    POD_LABELS,
);

static POD_DELETIONS: Family = Family::counter(
    "pod_gc_collector_force_delete_pods_total",
    "[ALPHA] Number of pods that are being forcefully deleted since the Pod GC Controller started.",
    POD_LABELS,
);

static DELETION_AGE_RATIO: Family = Family::histogram(
    "replicaset_controller_sorting_deletion_age_ratio",
    "[ALPHA] The ratio of chosen deleted pod's ages to the current youngest pod's age (at the \
     time). Should be <2. The intent of this metric is to measure the rough efficacy of the \
     sorting (and deletion) of pods when a replicaset scales down. This only considers Ready pods \
     when calculating and reporting.",
    &[],
    &AGE_BOUNDS,
);

/// The limit of rolling updates of each StatefulSet.
pub(super) static MAX_UNAVAILABLE: Family = Family::gauge(
    "statefulset_controller_statefulset_max_unavailable",
    "[ALPHA] Maximum number of unavailable pods allowed during StatefulSet rolling updates",
    SET_LABELS,
);

/// The pods of each StatefulSet that are missing or not available.
pub(super) static UNAVAILABLE_REPLICAS: Family = Family::gauge(
    "statefulset_controller_statefulset_unavailable_replicas",
    "[ALPHA] Current number of unavailable pods in StatefulSet",
    SET_LABELS,
);

/// The families, in the order in which they are rendered.
pub(crate) static ALL: [&Family; 7] = [
    &CREATION_SKEW,
    &JOB_DELETION_DURATION,
    &POD_DELETION_ERRORS,
    &POD_DELETIONS,
    &DELETION_AGE_RATIO,
    &MAX_UNAVAILABLE,
    &UNAVAILABLE_REPLICAS,
];

/// Milliseconds from one time to another.
fn milliseconds(from: Timestamp, to: Timestamp) -> i64 {
    to.as_millisecond() - from.as_millisecond()
}

/// Records a Job that was created for a scheduled time.
pub(super) fn job_created(job: &ObjectMeta, scheduled: Timestamp) {
    if let Some(Time(created)) = &job.creation_timestamp {
        CREATION_SKEW.observe(&[], milliseconds(scheduled, *created) as f64 / 1e3);
    }
}

/// Records a finished Job that was deleted, and how long after the end of its time to live.
pub(super) fn finished_job_deleted(late: Duration) {
    JOB_DELETION_DURATION.took(&[], late);
}

/// Records the deletion of a pod. `reason` is `terminated`, `out-of-service`, `orphaned` or
/// `unscheduled`.
pub(super) fn pod_collected(namespace: &str, reason: &str, is_success: bool) {
    POD_DELETIONS.inc(&[namespace, reason]);
    if !is_success {
        POD_DELETION_ERRORS.inc(&[namespace, reason]);
    }
}

/// Records the pods that a ReplicaSet deletes because it is scaled down.
pub(super) fn scaled_down(all: &[&Pod], deleted: &[&Pod], now: Timestamp) {
    for ratio in age_ratios(all, deleted, now) {
        DELETION_AGE_RATIO.observe(&[], ratio);
    }
}

/// The ages of the ready pods among `deleted`, in multiples of the age of the youngest ready pod,
/// rounded down (`reportSortingDeletionAgeRatioMetric`).
fn age_ratios(all: &[&Pod], deleted: &[&Pod], now: Timestamp) -> Vec<f64> {
    let created = |pod: &Pod| {
        let time = pod.metadata.creation_timestamp.as_ref().filter(|_| pods::is_ready(pod));
        time.map(|Time(time)| milliseconds(*time, now))
    };
    let Some(youngest) = all.iter().filter_map(|pod| created(pod)).min() else { return Vec::new() };
    let ages = deleted.iter().filter_map(|pod| created(pod));
    // A pod of this very millisecond is as old as itself.
    ages.map(|age| age.checked_div(youngest).unwrap_or(1) as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(created: &str, ready: &str) -> Pod {
        serde_json::from_value(json!({"metadata": {"creationTimestamp": created},
            "status": {"conditions": [{"type": "Ready", "status": ready}]}}))
        .unwrap()
    }

    #[test]
    fn ages_of_deleted_pods_are_multiples_of_the_age_of_the_youngest() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let all = [
            pod("2026-01-01T00:59:59Z", "False"),
            pod("2026-01-01T00:50:00Z", "True"),
            pod("2026-01-01T00:15:00Z", "True"),
        ];
        let all = all.each_ref();
        // The ratio of 4.5 is 4; a pod that is not ready counts in neither way.
        assert_eq!(age_ratios(&all, &[all[0], all[2], all[1]], now), [4.0, 1.0]);
        assert!(age_ratios(&all[..1], &[all[0]], now).is_empty());
    }
}
