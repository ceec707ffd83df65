//! CronJobs: starts Jobs by a schedule.
//!
//! [`decision`] decides what a CronJob needs at a time, [`times`] which of its scheduled times is
//! due. This file keeps the list of active Jobs and carries the decisions out.

mod decision;
#[cfg(test)]
mod tests;
mod times;

use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::batch::v1::{CronJob, CronJobStatus, Job};
use api::k8s::api::core::v1::ObjectReference;
use api::k8s::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use client::events::{EventType, reference};
use client::informer::decode;
use client::{
    Action, Change, Client, DeleteOptions, Error, EventRecorder, Informer, Propagation,
    owner_reference,
};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use sorting::CompactSort as _;

use self::decision::{JobStart, decide, job_name};
use crate::framework::adoption;
use crate::framework::adoption::{BY_CONTROLLER, controller_uid};
use crate::framework::context::Context;
use crate::framework::keyed::{Keyed, settled};
use crate::workloads::job::fields::finished_at;
use crate::workloads::metrics;

/// Service account and event source.
const CONTROLLER: &str = "cronjob-controller";
/// Workers (`--concurrent-cron-job-syncs`).
const WORKERS: usize = 5;
/// Annotation of Jobs with the time they were meant for.
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

struct Controller {
    client: Client,
    recorder: EventRecorder,
    crons: Informer<CronJob>,
    jobs: Informer<Job>,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client(CONTROLLER);
    let controller = Arc::new(Controller {
        recorder: context.recorder(&client, CONTROLLER),
        client,
        crons: context.informers.of(),
        jobs: context.informers.of(),
    });
    controller.jobs.add_index(BY_CONTROLLER, controller_uid);
    let mut keyed = Keyed::new();
    keyed.waits_for_sync(&controller.crons);
    let (queue, recorder) = (keyed.queue.clone(), controller.recorder.clone());
    controller.crons.on_change(move |change| {
        let key = &change.object().key;
        let key = (key.namespace.to_string(), key.name.to_string());
        match wait_of(change, &recorder) {
            Some(Duration::ZERO) => queue.add(key),
            Some(wait) => queue.add_after(key, wait),
            None => {}
        }
    });
    let known = controller.crons.clone();
    keyed.watches(&controller.jobs, move |change| {
        adoption::owners_of(change, &known, |_: &CronJob, _| false)
    });
    keyed.run(&context.tasks, CONTROLLER, WORKERS, move |(namespace, name)| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(&namespace, &name).await }
    });
}

/// How long a change of a CronJob waits for its sync, with an event if it cannot be synced.
fn wait_of(change: &Change, recorder: &EventRecorder) -> Option<Duration> {
    let Change::Updated { old, new } = change else { return Some(Duration::ZERO) };
    let (Some(old), Some(new)) = (decode::<CronJob>(old), decode::<CronJob>(new)) else {
        return Some(Duration::ZERO);
    };
    let wait = decision::wait_after_change(&old, &new, Timestamp::now(), &TimeZone::system());
    if wait.is_err() {
        let text = format!("unparseable schedule for cronjob: {}", new.spec.schedule);
        recorder.event(&new, EventType::Warning, "UnParseableCronJobSchedule", text);
    }
    wait.ok().map(|wait| Duration::try_from(wait).unwrap_or_default())
}

/// The Job of one scheduled time.
fn new_job(cron: &CronJob, at: Timestamp) -> Job {
    let template = &cron.spec.job_template;
    let meta = template.metadata.clone().unwrap_or_default();
    let mut annotations = meta.annotations.unwrap_or_default();
    annotations.insert(SCHEDULED.into(), scheduled_text(cron, at));
    Job {
        metadata: ObjectMeta {
            name: Some(job_name(cron, at)),
            namespace: cron.metadata.namespace.clone(),
            labels: meta.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![owner_reference(cron)]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// A scheduled time in RFC 3339, in the time zone of the CronJob or UTC.
fn scheduled_text(cron: &CronJob, at: Timestamp) -> String {
    let zoned = at.to_zoned(decision::time_zone(cron).unwrap_or(TimeZone::UTC));
    let form = if zoned.offset().is_zero() { "%Y-%m-%dT%H:%M:%SZ" } else { "%Y-%m-%dT%H:%M:%S%:z" };
    zoned.strftime(form).to_string()
}

/// Finished Jobs above a history limit, oldest first.
fn surplus<'a>(jobs: &'a [Job], kind: &str, limit: Option<i32>) -> Vec<&'a Job> {
    let Some(limit) = limit else { return Vec::new() };
    let finished = |j: &&Job| finished_at(j).is_some_and(|c| c.type_ == kind);
    let mut old: Vec<&Job> = jobs.iter().filter(finished).collect();
    old.compact_sort_by_key(|j| {
        let start = j.status.as_ref().and_then(|s| s.start_time.clone());
        (start.is_none(), start, j.metadata.name.clone())
    });
    old.truncate(old.len().saturating_sub(usize::try_from(limit).unwrap_or(0)));
    old
}

/// Reports whether the status lists a Job as active.
fn is_active(status: &CronJobStatus, job: &Job) -> bool {
    status.active.iter().flatten().any(|entry| entry.uid == job.metadata.uid)
}

/// Reports whether a CronJob lists a Job as active.
fn lists(cron: &CronJob, job: &Job) -> bool {
    cron.status.as_ref().is_some_and(|status| is_active(status, job))
}

/// Removes a Job from the list of active ones.
fn remove_active(status: &mut CronJobStatus, job: &Job) {
    let mut active = status.active.take().unwrap_or_default();
    active.retain(|entry| entry.uid != job.metadata.uid);
    status.active = (!active.is_empty()).then_some(active);
}

impl Controller {
    async fn reconcile(&self, namespace: &str, name: &str) -> Result<Action, Error> {
        let Some(mut cron) = self.crons.get(namespace, name) else { return Ok(Action::Done) };
        let uid = cron.metadata.uid.as_deref().unwrap_or_default();
        let jobs: Vec<Job> = self.jobs.by_index(BY_CONTROLLER, uid);
        let unlisted = |job: &Job| finished_at(job).is_none() && !lists(&cron, job);
        if jobs.iter().any(unlisted) {
            // The cache may not have the status of the last sync yet.
            cron = self.client.get(namespace, name).await?;
        }
        let mut status = cron.status.clone().unwrap_or_default();
        self.delete_surplus(&cron, &jobs, &mut status).await;
        let outcome = match self.update_active(&cron, &jobs, &mut status).await {
            Ok(()) => self.carry_out(&cron, &mut status).await,
            Err(error) => Err(error),
        };
        if cron.status.clone().unwrap_or_default() != status {
            let changed = CronJob { status: Some(status), ..cron.clone() };
            self.client.update_status(&changed).await?;
        }
        outcome
    }

    /// Deletes finished Jobs above the limits of the history (`cleanupFinishedJobs`).
    async fn delete_surplus(&self, cron: &CronJob, jobs: &[Job], status: &mut CronJobStatus) {
        let complete = surplus(jobs, "Complete", cron.spec.successful_jobs_history_limit);
        let failed = surplus(jobs, "Failed", cron.spec.failed_jobs_history_limit);
        for job in complete.into_iter().chain(failed) {
            // The event says so, and the next sync tries again.
            let _ = self.delete(cron, job, status).await;
        }
    }

    /// Brings the list of active Jobs up to date. A Job that is not in it was not started by the
    /// schedule, `kubectl create job --from` for example, and stays out.
    async fn update_active(
        &self,
        cron: &CronJob,
        jobs: &[Job],
        status: &mut CronJobStatus,
    ) -> Result<(), Error> {
        for job in jobs {
            let name = job.metadata.name.as_deref().unwrap_or_default();
            match (finished_at(job), is_active(status, job)) {
                (None, false) => {
                    let text =
                        format!("Saw a job that the controller did not create or forgot: {name}");
                    self.recorder.event(cron, EventType::Warning, "UnexpectedJob", text);
                }
                (Some(last), true) => {
                    remove_active(status, job);
                    let text = format!("Saw completed job: {name}, condition: {}", last.type_);
                    self.recorder.event(cron, EventType::Normal, "SawCompletedJob", text);
                }
                _ => {}
            }
            if finished_at(job).is_some_and(|c| c.type_ == "Complete") {
                let done = job.status.as_ref().and_then(|s| s.completion_time.clone());
                status.last_successful_time = status.last_successful_time.take().max(done);
            }
        }
        let active = status.active.take().unwrap_or_default();
        let mut kept: Vec<ObjectReference> = Vec::with_capacity(active.len());
        for (index, entry) in active.iter().enumerate() {
            match self.is_missing(jobs, entry).await {
                Ok(false) => kept.push(entry.clone()),
                Ok(true) => {
                    let name = entry.name.as_deref().unwrap_or_default();
                    let text = format!("Active job went missing: {name}");
                    self.recorder.event(cron, EventType::Normal, "MissingJob", text);
                }
                Err(error) => {
                    kept.extend(active.into_iter().skip(index));
                    status.active = Some(kept);
                    return Err(error);
                }
            }
        }
        status.active = (!kept.is_empty()).then_some(kept);
        Ok(())
    }

    /// Reports whether the Job of an active entry is gone, also for the API server.
    async fn is_missing(&self, jobs: &[Job], entry: &ObjectReference) -> Result<bool, Error> {
        if jobs.iter().any(|job| job.metadata.uid == entry.uid) {
            return Ok(false);
        }
        let namespace = entry.namespace.as_deref().unwrap_or_default();
        let name = entry.name.as_deref().unwrap_or_default();
        match self.client.get::<Job>(namespace, name).await {
            Ok(job) => Ok(job.metadata.uid != entry.uid),
            Err(error) if error.is_not_found() => Ok(true),
            Err(error) => Err(error),
        }
    }

    async fn carry_out(&self, cron: &CronJob, status: &mut CronJobStatus) -> Result<Action, Error> {
        let decision = decide(cron, status, Timestamp::now(), &TimeZone::system());
        for (kind, reason, text) in decision.events {
            self.recorder.event(cron, kind, reason, text);
        }
        if let Some(JobStart { at, replaces }) = decision.start {
            if replaces {
                self.delete_active(cron, status).await?;
            }
            self.start(cron, &new_job(cron, at), at, status).await?;
        }
        Ok(decision.requeue.map_or(Action::Done, |wait| {
            Action::After(Duration::try_from(wait).unwrap_or_default())
        }))
    }

    /// Deletes the active Jobs, before the next one replaces them.
    async fn delete_active(&self, cron: &CronJob, status: &mut CronJobStatus) -> Result<(), Error> {
        for entry in status.active.clone().unwrap_or_default() {
            let namespace = entry.namespace.as_deref().unwrap_or_default();
            let name = entry.name.as_deref().unwrap_or_default();
            let job: Job = match self.client.get(namespace, name).await {
                Ok(job) => job,
                Err(error) => {
                    let text = format!("Get job: {error}");
                    self.recorder.event(cron, EventType::Warning, "FailedGet", text);
                    return Err(error);
                }
            };
            self.delete(cron, &job, status).await?;
        }
        Ok(())
    }

    async fn start(
        &self,
        cron: &CronJob,
        job: &Job,
        at: Timestamp,
        status: &mut CronJobStatus,
    ) -> Result<(), Error> {
        let namespace = cron.metadata.namespace.as_deref().unwrap_or_default();
        let name = job.metadata.name.as_deref().unwrap_or_default();
        let made = match self.client.create(namespace, job).await {
            Ok(made) => {
                metrics::job_created(&made.metadata, at);
                let text = format!("Created job {name}");
                self.recorder.event(cron, EventType::Normal, "SuccessfulCreate", text);
                made
            }
            Err(error) if error.is_already_exists() => {
                let found: Job = self.client.get(namespace, name).await?;
                let uid = cron.metadata.uid.as_deref().unwrap_or_default();
                if !client::is_controlled_by(&found.metadata, uid) {
                    return Ok(());
                }
                found
            }
            Err(error) if error.is_namespace_terminating() => return Err(error),
            Err(error) => {
                let text = format!("Error creating job: {error}");
                self.recorder.event(cron, EventType::Warning, "FailedCreate", text);
                return Err(error);
            }
        };
        if !is_active(status, &made) {
            status.active.get_or_insert_default().push(reference(&made));
            status.last_schedule_time = Some(Time(at));
        }
        Ok(())
    }

    async fn delete(
        &self,
        cron: &CronJob,
        job: &Job,
        status: &mut CronJobStatus,
    ) -> Result<(), Error> {
        let meta = &job.metadata;
        let (namespace, name) = (
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default(),
        );
        let options = DeleteOptions {
            propagation: Some(Propagation::Background),
            ..DeleteOptions::with_uid(meta.uid.as_deref().unwrap_or_default())
        };
        if let Err(error) = settled(self.client.delete::<Job>(namespace, name, &options).await) {
            let text = format!("Deleted job: {error}");
            self.recorder.event(cron, EventType::Warning, "FailedDelete", text);
            return Err(error);
        }
        remove_active(status, job);
        let text = format!("Deleted job {name}");
        self.recorder.event(cron, EventType::Normal, "SuccessfulDelete", text);
        Ok(())
    }
}
