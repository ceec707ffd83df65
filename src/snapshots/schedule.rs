//! Scheduled snapshots: at the times of a cron expression in the machine's time zone, or at an
//! interval (`--etcd-snapshot-schedule-cron`).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use api::cron;
use base::{Kind, Tasks};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::{Error, SnapshotLocations, Snapshots, s3};
use crate::command_line::DurationError;

/// Maximum time between two comparisons with the wall clock, which may be set while a sleep lasts.
const SLEEP_MAX: Duration = Duration::from_secs(600);

/// Key of the problem that `kube-lite status` shows while scheduled snapshots fail.
const PROBLEM: &str = "snapshots";

/// When snapshots are due.
#[derive(Debug, Clone)]
pub(crate) enum Schedule {
    /// A cron expression of five fields, or a descriptor such as `@daily`, in the time zone of the
    /// machine.
    Calendar(Box<cron::Schedule>),
    /// `@every DURATION`: the interval since the start of the server or the last snapshot.
    Every(Duration),
}

/// Why a text is not a schedule.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ScheduleError {
    /// `@every` with an invalid duration.
    #[error(transparent)]
    Duration(#[from] DurationError),
    /// `@every` with a duration below a second.
    #[error("must be a second or more")]
    TooShort,
    /// An invalid cron expression.
    #[error("is not a cron schedule: {0}")]
    Cron(#[from] cron::ScheduleError),
}

impl std::str::FromStr for Schedule {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        if let Some(every) = text.strip_prefix("@every ") {
            let every = crate::command_line::duration(every)?;
            return match every.as_secs() {
                0 => Err(ScheduleError::TooShort),
                seconds => Ok(Self::Every(Duration::from_secs(seconds))),
            };
        }
        let schedule = cron::Schedule::parse(text, &TimeZone::system())?;
        Ok(Self::Calendar(Box::new(schedule)))
    }
}

impl Schedule {
    /// The first time after `at`; `None` if there is none, as for 30 February.
    fn after(&self, at: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Calendar(schedule) => schedule.next(at),
            Self::Every(every) => at.checked_add(SignedDuration::try_from(*every).ok()?).ok(),
        }
    }
}

/// Starts the task that takes snapshots when they are due and applies the retention, until
/// shutdown.
pub(crate) fn follow(snapshots: &Arc<Snapshots>, tasks: &Tasks) {
    let Some(schedule) = snapshots.settings.schedule.clone() else { return };
    let (snapshots, snapshot_tasks) = (Arc::clone(snapshots), tasks.clone());
    tasks.spawn(Kind::Critical, "snapshots", async move {
        let mut last = Timestamp::now();
        loop {
            let Some(due) = schedule.after(last) else {
                // A critical task must not end before shutdown.
                snapshot_tasks.shutdown().requested().await;
                break;
            };
            if !wait_until(due, &snapshot_tasks).await {
                break;
            }
            // Times that have passed, during a suspend for example, result in one snapshot. If the
            // clock was set back, the same time is not due again.
            last = due.max(Timestamp::now());
            take_and_report(&snapshots, &snapshot_tasks).await;
        }
        Ok::<(), Infallible>(())
    });
}

/// Waits until a wall-clock time; `false` at shutdown.
async fn wait_until(due: Timestamp, tasks: &Tasks) -> bool {
    loop {
        let left = due.duration_since(Timestamp::now());
        let Ok(left) = Duration::try_from(left) else { return true };
        if left.is_zero() {
            return true;
        }
        tokio::select! {
            () = base::clock::sleep(left.min(SLEEP_MAX)) => {}
            () = tasks.shutdown().requested() => return false,
        }
    }
}

/// Takes a snapshot and applies the retention; returns the names of deleted snapshots.
async fn save_and_prune(snapshots: &Snapshots) -> Result<Vec<String>, Error> {
    let settings = &snapshots.settings;
    let opened = snapshots.locations(settings.folder.clone(), settings.s3.as_ref()).await;
    let (locations, failed) = match opened {
        Ok(locations) => (locations, None),
        // Without the bucket, a snapshot in the folder is better than none.
        Err(error) => {
            (SnapshotLocations { folder: settings.folder.clone(), bucket: None }, Some(error))
        }
    };
    let saved = snapshots.save(&locations, &settings.name, settings.compress).await;
    let keep_in_bucket = locations.bucket.as_ref().map_or(0, s3::Bucket::retention);
    let prune = async |locations: &SnapshotLocations| {
        let keep = settings.retention;
        locations.prune(&settings.name, &settings.node, keep, keep_in_bucket).await
    };
    match (saved, failed) {
        (Ok(_), None) => prune(&locations).await,
        (Ok(_), Some(error)) => {
            prune(&locations).await?;
            Err(error)
        }
        (Err(error), _) if locations.bucket.is_some() => {
            // The snapshot may be in the folder and only its upload failed, so the folder is
            // pruned: it must not grow while the bucket fails. The first error is the one that is
            // reported.
            let folder_only = SnapshotLocations { folder: settings.folder.clone(), bucket: None };
            let _ = prune(&folder_only).await;
            Err(error)
        }
        (Err(error), _) => Err(error),
    }
}

/// Takes a snapshot; a failure becomes a problem of `tasks` until the next success.
async fn take_and_report(snapshots: &Snapshots, tasks: &Tasks) {
    let outcome = save_and_prune(snapshots).await;
    snapshots.record().await;
    match outcome {
        Ok(deleted) => {
            tasks.problems().clear(PROBLEM);
            if !deleted.is_empty() {
                tracing::info!(?deleted, "snapshots: deleted snapshots beyond the retention");
            }
        }
        Err(error) => {
            let fix = "free disk space or correct what the message names, then run `kube-lite etcd-snapshot save`";
            let what = format!("the scheduled snapshot failed: {error}");
            tasks.problems().put(PROBLEM, what, fix);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cron_expressions_and_intervals_give_the_next_time() {
        let next = |schedule: &str, at: &str| {
            let schedule: Schedule = schedule.parse().unwrap();
            schedule.after(at.parse().unwrap()).unwrap().to_string()
        };
        assert_eq!(next("TZ=UTC 0 */12 * * *", "2026-03-01T00:00:00Z"), "2026-03-01T12:00:00Z");
        assert_eq!(next("TZ=UTC 0 */12 * * *", "2026-03-01T12:00:01Z"), "2026-03-02T00:00:00Z");
        assert_eq!(next("@every 90m", "2026-03-01T12:00:01Z"), "2026-03-01T13:30:01Z");
        assert_eq!(next("TZ=UTC @daily", "2026-03-01T12:00:01Z"), "2026-03-02T00:00:00Z");
        for invalid in ["", "0 */12 * *", "never", "@every 0s", "@every soon", "0 0 0 */12 * *"] {
            assert!(invalid.parse::<Schedule>().is_err(), "{invalid}");
        }
    }
}
