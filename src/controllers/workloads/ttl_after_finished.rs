//! Deletes finished Jobs after `spec.ttlSecondsAfterFinished`.

use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::batch::v1::Job;
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use api::k8s::jiff::Timestamp;
use base::clock;
use client::{Action, Client, DeleteOptions, Error, Informer, Propagation};

use crate::framework::context::Context;
use crate::framework::keyed::{Keyed, settled};
use crate::workloads::job::fields::finished_at;
use crate::workloads::metrics;

/// Name of the controller and of its service account.
const CONTROLLER: &str = "ttl-after-finished-controller";
/// Number of workers (`--concurrent-ttl-after-finished-syncs`).
const WORKERS: usize = 5;

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client(CONTROLLER);
    let jobs: Informer<Job> = context.informers.of();
    let mut keyed = Keyed::new();
    keyed.watches_self(&jobs);
    let state = Arc::new((client, jobs));
    keyed.run(&context.tasks, CONTROLLER, WORKERS, move |(namespace, name)| {
        let state = Arc::clone(&state);
        async move { reconcile(&state.0, &state.1, &namespace, &name).await }
    });
}

/// Returns the second in which the Job becomes due; `None` if it has not finished, has no time to
/// live, or is already being deleted.
fn due_second(job: &Job) -> Option<i64> {
    let ttl = job.spec.as_ref()?.ttl_seconds_after_finished?;
    if job.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let Time(finished) = finished_at(job)?.last_transition_time.as_ref()?;
    Some(finished.as_second().saturating_add(i64::from(ttl)))
}

/// Returns the seconds until the Job is deleted, 0 if it is due; `None` if it never is.
fn seconds_until_deletion(job: &Job, now: Timestamp) -> Option<u64> {
    let left = due_second(job)?.saturating_sub(now.as_second());
    Some(u64::try_from(left).unwrap_or(0))
}

/// Deletes the Job if it is due, otherwise waits until it is.
async fn reconcile(
    client: &Client,
    jobs: &Informer<Job>,
    namespace: &str,
    name: &str,
) -> Result<Action, Error> {
    let Some(job) = jobs.get(namespace, name) else { return Ok(Action::Done) };
    match seconds_until_deletion(&job, Timestamp::now()) {
        None => return Ok(Action::Done),
        Some(0) => {}
        Some(seconds) => return Ok(Action::After(Duration::from_secs(seconds))),
    }
    // The cache may lag: a user may have raised the time to live, or replaced the Job.
    let fresh: Job = match client.get(namespace, name).await {
        Err(error) if error.is_not_found() => return Ok(Action::Done),
        other => other?,
    };
    if fresh.metadata.uid != job.metadata.uid
        || seconds_until_deletion(&fresh, Timestamp::now()) != Some(0)
    {
        return Ok(Action::Done);
    }
    let options = DeleteOptions {
        resource_version: fresh.metadata.resource_version.clone(),
        propagation: Some(Propagation::Foreground),
        ..DeleteOptions::with_uid(fresh.metadata.uid.as_deref().unwrap_or_default())
    };
    match client.delete::<Job>(namespace, name, &options).await {
        Ok(()) => {
            let due = due_second(&fresh).and_then(|second| u64::try_from(second).ok());
            let due = Duration::from_secs(due.unwrap_or(u64::MAX));
            metrics::finished_job_deleted(clock::unix_time().saturating_sub(due));
        }
        failed => settled(failed)?,
    }
    Ok(Action::Done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn only_finished_jobs_with_a_time_to_live_are_deleted() {
        let job = |ttl: Value, kind: &str| -> Job {
            serde_json::from_value(json!({"metadata": {"name": "j"},
                "spec": {"template": {}, "ttlSecondsAfterFinished": ttl},
                "status": {"conditions": [{"type": kind, "status": "True",
                    "lastTransitionTime": "1970-01-01T00:00:10Z"}]}}))
            .unwrap()
        };
        let at = |s| Timestamp::from_second(s).unwrap();
        assert_eq!(seconds_until_deletion(&job(json!(5), "Complete"), at(12)), Some(3));
        assert_eq!(seconds_until_deletion(&job(json!(5), "Failed"), at(20)), Some(0));
        assert_eq!(seconds_until_deletion(&job(json!(5), "FailureTarget"), at(20)), None);
        assert_eq!(seconds_until_deletion(&job(json!(null), "Complete"), at(20)), None);
    }
}
