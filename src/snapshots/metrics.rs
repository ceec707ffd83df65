//! Durations of snapshots, with k3s's names, texts and buckets (`pkg/etcd/snapshotmetrics`).

use base::metrics::{Family, exponential};
use tokio::time::Instant;

/// Upper bounds in seconds.
const BOUNDS: [f64; 15] = exponential(0.008, 2.0);

/// A whole snapshot, with its upload.
pub(super) static SAVE: Family = Family::histogram(
    "k3s_etcd_snapshot_save_duration_seconds",
    "Total time in seconds taken to complete the etcd snapshot process, labeled by \
     success/failure status.",
    &["status"],
    &BOUNDS,
);
/// The file in the folder.
pub(super) static SAVE_LOCAL: Family = Family::histogram(
    "k3s_etcd_snapshot_save_local_duration_seconds",
    "Total time in seconds taken to save a local snapshot file, labeled by success/failure status.",
    &["status"],
    &BOUNDS,
);
/// The upload into the bucket.
pub(super) static SAVE_S3: Family = Family::histogram(
    "k3s_etcd_snapshot_save_s3_duration_seconds",
    "Total time in seconds taken to upload a snapshot file to S3, labeled by success/failure \
     status.",
    &["status"],
    &BOUNDS,
);

/// The objects made equal to what is stored.
pub(super) static RECONCILE: Family = Family::histogram(
    "k3s_etcd_snapshot_reconcile_duration_seconds",
    "Total time in seconds taken to sync the list of etcd snapshots, labeled by success/failure \
     status.",
    &["status"],
    &BOUNDS,
);
/// The list of the folder for that.
pub(super) static RECONCILE_LOCAL: Family = Family::histogram(
    "k3s_etcd_snapshot_reconcile_local_duration_seconds",
    "Total time in seconds taken to list local snapshot files, labeled by success/failure status.",
    &["status"],
    &BOUNDS,
);
/// The list of the bucket for that.
pub(super) static RECONCILE_S3: Family = Family::histogram(
    "k3s_etcd_snapshot_reconcile_s3_duration_seconds",
    "Total time in seconds taken to list S3 snapshot files, labeled by success/failure status.",
    &["status"],
    &BOUNDS,
);

/// All families.
pub(crate) static ALL: [&Family; 6] =
    [&SAVE, &SAVE_LOCAL, &SAVE_S3, &RECONCILE, &RECONCILE_LOCAL, &RECONCILE_S3];

/// Records the duration of an operation that has ended.
pub(super) fn observe<T, E>(family: &Family, started: Instant, outcome: &Result<T, E>) {
    let status = if outcome.is_ok() { "success" } else { "error" };
    family.took(&[status], started.elapsed());
}
