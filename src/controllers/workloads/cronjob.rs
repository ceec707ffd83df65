//! CronJobs: starts Jobs by a schedule.

use std::sync::Arc;
use std::time::Duration;

use api::codec::time::parse_duration;
use api::k8s::api::batch::v1::{CronJob, CronJobStatus, Job};
use api::k8s::api::core::v1::ObjectReference;
use api::k8s::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use api::k8s::jiff::Timestamp;
use client::events::{EventType, reference};
use client::{
    Action, Client, DeleteOptions, Error, EventRecorder, Informer, Propagation, owner_reference,
};
use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::Zoned;
use jiff::tz::TimeZone;
use sorting::CompactSort as _;

use crate::framework::adoption;
use crate::framework::adoption::{BY_CONTROLLER, controller_uid};
use crate::framework::context::Context;
use crate::framework::keyed::{Keyed, settled};
use crate::workloads::job::fields::finished_at;

/// Service account and event source.
const CONTROLLER: &str = "cronjob-controller";
/// Workers (`--concurrent-cron-job-syncs`).
const WORKERS: usize = 5;
/// Annotation of Jobs with the time they were meant for.
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";
/// More missed times than this cause a warning event.
const MISSED_MAX: usize = 100;
/// After the scheduled time, so that clocks agree that it has come.
const DELTA: Duration = Duration::from_millis(100);

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
    keyed.watches_self(&controller.crons);
    let known = controller.crons.clone();
    keyed.watches(&controller.jobs, move |change| {
        adoption::owners_of(change, &known, |_: &CronJob, _| false)
    });
    keyed.run(&context.tasks, CONTROLLER, WORKERS, move |(namespace, name)| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(&namespace, &name).await }
    });
}

/// When something is to happen.
enum Times {
    /// At times of the calendar.
    Calendar(Box<Cron>),
    /// Again and again after so many seconds (`@every 90s`), counted from the last time.
    Every(i64),
}

/// A schedule in its time zone.
struct Schedule {
    times: Times,
    zone: TimeZone,
}

/// Why a schedule cannot be followed: reason and text of the event.
type ScheduleError = (&'static str, String);

impl Schedule {
    fn of(cron: &CronJob) -> Result<Self, ScheduleError> {
        let zone = match cron.spec.time_zone.as_deref() {
            None => TimeZone::system(),
            Some(name) => TimeZone::get(name)
                .map_err(|e| ("UnknownTimeZone", format!("invalid timeZone: {name:?}: {e}")))?,
        };
        let text = &cron.spec.schedule;
        if let Some(delay) = text.strip_prefix("@every ") {
            let nanos = parse_duration(delay).map_err(|e| {
                ("UnparseableSchedule", format!("unparseable schedule: {text:?} : {e}"))
            })?;
            // Whole seconds, at least one, as upstream's cron library has it.
            return Ok(Self { times: Times::Every((nanos / 1_000_000_000).max(1)), zone });
        }
        let parser =
            CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
        let parsed = parser.parse(text).map_err(|e| {
            ("UnparseableSchedule", format!("unparseable schedule: {text:?} : {e}"))
        })?;
        Ok(Self { times: Times::Calendar(Box::new(parsed)), zone })
    }

    fn zoned(&self, at: Timestamp) -> Zoned {
        at.to_zoned(self.zone.clone())
    }

    /// The first time after `at`.
    fn after(&self, at: Timestamp) -> Option<Timestamp> {
        match &self.times {
            Times::Calendar(cron) => {
                let next = cron.find_next_occurrence(&self.zoned(at), false);
                next.ok().map(|z| z.timestamp())
            }
            Times::Every(seconds) => {
                Timestamp::from_second(at.as_second().checked_add(*seconds)?).ok()
            }
        }
    }

    /// The last time that has come since `since`, and whether more than [`MISSED_MAX`] have.
    fn due(&self, since: Timestamp, now: Timestamp) -> Option<(Timestamp, bool)> {
        let last = match &self.times {
            Times::Calendar(cron) => {
                cron.find_previous_occurrence(&self.zoned(now), true).ok()?.timestamp()
            }
            Times::Every(seconds) => {
                let passed =
                    now.as_second().checked_sub(since.as_second())?.checked_div(*seconds)?;
                if passed <= 0 {
                    return None;
                }
                let last = since.as_second().checked_add(passed.checked_mul(*seconds)?)?;
                let many = usize::try_from(passed).is_ok_and(|n| n > MISSED_MAX);
                return Some((Timestamp::from_second(last).ok()?, many));
            }
        };
        if last <= since {
            return None;
        }
        let mut at = since;
        for _ in 0..=MISSED_MAX {
            match self.after(at).filter(|t| *t <= now) {
                Some(next) => at = next,
                None => return Some((last, false)),
            }
        }
        Some((last, true))
    }

    /// RFC 3339 with the zone's offset.
    fn text(&self, at: Timestamp) -> String {
        let zoned = self.zoned(at);
        if zoned.offset().is_zero() {
            return zoned.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        }
        zoned.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
    }
}

/// From when on times count as missed.
fn since(cron: &CronJob, now: Timestamp) -> Timestamp {
    let last = cron.status.as_ref().and_then(|s| s.last_schedule_time.as_ref());
    let Time(start) =
        last.or(cron.metadata.creation_timestamp.as_ref()).cloned().unwrap_or(Time(now));
    let deadline = cron.spec.starting_deadline_seconds;
    let earliest = deadline.and_then(|d| now.as_second().checked_sub(d));
    earliest.and_then(|s| Timestamp::from_second(s).ok()).map_or(start, |e| e.max(start))
}

fn job_name(cron: &CronJob, at: Timestamp) -> String {
    let name = cron.metadata.name.as_deref().unwrap_or_default();
    format!("{name}-{}", at.as_second().div_euclid(60))
}

/// The Job of one scheduled time.
fn new_job(cron: &CronJob, schedule: &Schedule, at: Timestamp) -> Job {
    let template = &cron.spec.job_template;
    let meta = template.metadata.clone().unwrap_or_default();
    let mut annotations = meta.annotations.unwrap_or_default();
    annotations.insert(SCHEDULED.into(), schedule.text(at));
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

impl Controller {
    async fn reconcile(&self, namespace: &str, name: &str) -> Result<Action, Error> {
        let Some(cron) = self.crons.get(namespace, name) else { return Ok(Action::Done) };
        let uid = cron.metadata.uid.as_deref().unwrap_or_default();
        let jobs: Vec<Job> = self.jobs.by_index(BY_CONTROLLER, uid);
        let mut status = cron.status.clone().unwrap_or_default();
        self.note_jobs(&cron, &jobs, &mut status).await?;
        let outcome = self.schedule(&cron, &mut status).await;
        if cron.status.clone().unwrap_or_default() != status {
            let changed = CronJob { status: Some(status), ..cron.clone() };
            self.client.update_status(&changed).await?;
        }
        let (good, bad) =
            (cron.spec.successful_jobs_history_limit, cron.spec.failed_jobs_history_limit);
        for job in surplus(&jobs, "Complete", good).into_iter().chain(surplus(&jobs, "Failed", bad))
        {
            self.delete(&cron, job).await?;
        }
        outcome
    }

    /// Brings the list of active Jobs up to date.
    async fn note_jobs(
        &self,
        cron: &CronJob,
        jobs: &[Job],
        status: &mut CronJobStatus,
    ) -> Result<(), Error> {
        let mut active = status.active.take().unwrap_or_default();
        for job in jobs {
            let (uid, name) = (&job.metadata.uid, job.metadata.name.as_deref().unwrap_or_default());
            let listed = active.iter().position(|r| r.uid == *uid);
            match (finished_at(job), listed) {
                (None, None) => {
                    // The status write of the last sync may not be in the cache yet: nothing is
                    // lost by listing it.
                    active.push(reference(job));
                }
                (Some(last), Some(position)) => {
                    active.remove(position);
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
        let mut kept: Vec<ObjectReference> = Vec::with_capacity(active.len());
        for entry in active {
            if jobs.iter().any(|j| j.metadata.uid == entry.uid) {
                kept.push(entry);
                continue;
            }
            let namespace = entry.namespace.as_deref().unwrap_or_default();
            let name = entry.name.as_deref().unwrap_or_default();
            match self.client.get::<Job>(namespace, name).await {
                Ok(job) if job.metadata.uid == entry.uid => kept.push(entry),
                Err(error) if !error.is_not_found() => return Err(error),
                _ => {
                    let text = format!("Active job went missing: {name}");
                    self.recorder.event(cron, EventType::Normal, "MissingJob", text);
                }
            }
        }
        status.active = (!kept.is_empty()).then_some(kept);
        Ok(())
    }

    async fn schedule(&self, cron: &CronJob, status: &mut CronJobStatus) -> Result<Action, Error> {
        if cron.metadata.deletion_timestamp.is_some() || cron.spec.suspend == Some(true) {
            return Ok(Action::Done);
        }
        let warn = |reason: &str, text: String| {
            self.recorder.event(cron, EventType::Warning, reason, text);
        };
        let schedule = match Schedule::of(cron) {
            Ok(schedule) => schedule,
            Err((reason, text)) => {
                warn(reason, text);
                return Ok(Action::Done);
            }
        };
        let now = Timestamp::now();
        let missed = schedule.due(since(cron, now), now);
        // Intervals count from the last time, not from now.
        let from = match (&schedule.times, missed) {
            (Times::Calendar(_), _) => now,
            (Times::Every(_), Some((last, _))) => last,
            (Times::Every(_), None) => since(cron, now),
        };
        let next = schedule.after(from).map_or(Action::Done, |at| {
            let wait = Duration::try_from(at.duration_since(now)).unwrap_or_default();
            Action::After(wait + DELTA)
        });
        let Some((at, many)) = missed else { return Ok(next) };
        if many {
            let text = "too many missed start times. Set or decrease \
                .spec.startingDeadlineSeconds or check clock skew";
            warn("TooManyMissedTimes", text.to_owned());
        }
        let late = cron
            .spec
            .starting_deadline_seconds
            .is_some_and(|d| at.as_second().saturating_add(d) < now.as_second());
        if late {
            let text = at.strftime("%a, %d %b %Y %H:%M:%S +0000");
            warn("MissSchedule", format!("Missed scheduled time to start a job: {text}"));
            return Ok(next);
        }
        let name = job_name(cron, at);
        let active = status.active.clone().unwrap_or_default();
        if active.iter().any(|r| r.name.as_ref() == Some(&name)) {
            status.last_schedule_time = Some(Time(at));
            return Ok(next);
        }
        match cron.spec.concurrency_policy.as_deref() {
            Some("Forbid") if !active.is_empty() => {
                let text = "Not starting job because prior execution is running and concurrency \
                    policy is Forbid";
                self.recorder.event(cron, EventType::Normal, "JobAlreadyActive", text);
                return Ok(next);
            }
            Some("Replace") => {
                for entry in &active {
                    let namespace = entry.namespace.as_deref().unwrap_or_default();
                    let old = entry.name.as_deref().unwrap_or_default();
                    if let Some(job) = self.jobs.get(namespace, old) {
                        self.delete(cron, &job).await?;
                    }
                }
                status.active = None;
            }
            _ => {}
        }
        self.start(cron, &new_job(cron, &schedule, at), at, status).await?;
        Ok(next)
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
        status.last_schedule_time = Some(Time(at));
        if finished_at(&made).is_none() {
            status.active.get_or_insert_default().push(reference(&made));
        }
        Ok(())
    }

    async fn delete(&self, cron: &CronJob, job: &Job) -> Result<(), Error> {
        let meta = &job.metadata;
        let (namespace, name) = (
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default(),
        );
        let options = DeleteOptions {
            propagation: Some(Propagation::Background),
            ..DeleteOptions::with_uid(meta.uid.as_deref().unwrap_or_default())
        };
        settled(self.client.delete::<Job>(namespace, name, &options).await)?;
        let text = format!("Deleted job {name}");
        self.recorder.event(cron, EventType::Normal, "SuccessfulDelete", text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cron(schedule: &str, zone: &str) -> CronJob {
        serde_json::from_value(json!({"metadata": {"name": "c",
            "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"schedule": schedule, "timeZone": zone,
                "jobTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"template": {}}}}}))
        .unwrap()
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn schedules_follow_their_time_zone() {
        let daily = Schedule::of(&cron("30 8 * * *", "Europe/Berlin")).ok().unwrap();
        assert_eq!(daily.after(at("2026-01-10T08:00:00Z")), Some(at("2026-01-11T07:30:00Z")));
        assert_eq!(daily.after(at("2026-07-10T00:00:00Z")), Some(at("2026-07-10T06:30:00Z")));
        assert_eq!(daily.text(at("2026-07-10T06:30:00Z")), "2026-07-10T08:30:00+02:00");
        let hourly = Schedule::of(&cron("@hourly", "UTC")).ok().unwrap();
        assert_eq!(
            hourly.text(hourly.after(at("2026-01-10T08:00:00Z")).unwrap()),
            "2026-01-10T09:00:00Z"
        );
        assert_eq!(Schedule::of(&cron("* * * *", "UTC")).err().unwrap().0, "UnparseableSchedule");
        assert_eq!(
            Schedule::of(&cron("* * * * *", "Mars/Base")).err().unwrap().0,
            "UnknownTimeZone"
        );
    }

    #[test]
    fn every_counts_from_the_last_time() {
        let every = Schedule::of(&cron("@every 1m30s", "UTC")).ok().unwrap();
        let start = at("2026-01-01T00:00:10Z");
        assert_eq!(every.due(start, at("2026-01-01T00:01:39Z")), None);
        assert_eq!(every.after(start), Some(at("2026-01-01T00:01:40Z")));
        assert_eq!(
            every.due(start, at("2026-01-01T00:05:00Z")),
            Some((at("2026-01-01T00:04:40Z"), false))
        );
        assert_eq!(
            every.due(start, at("2026-01-02T00:00:00Z")),
            Some((at("2026-01-01T23:58:40Z"), true))
        );
        assert_eq!(Schedule::of(&cron("@every x", "UTC")).err().unwrap().0, "UnparseableSchedule");
    }

    #[test]
    fn of_missed_times_only_the_last_is_due() {
        let minute = Schedule::of(&cron("*/5 * * * *", "UTC")).ok().unwrap();
        let now = at("2026-01-01T00:17:30Z");
        assert_eq!(
            minute.due(at("2026-01-01T00:00:00Z"), now),
            Some((at("2026-01-01T00:15:00Z"), false))
        );
        assert_eq!(minute.due(at("2026-01-01T00:15:00Z"), now), None);
        assert_eq!(
            minute.due(at("2025-12-01T00:00:00Z"), now),
            Some((at("2026-01-01T00:15:00Z"), true))
        );
    }

    #[test]
    fn the_deadline_shortens_the_past() {
        let mut c = cron("* * * * *", "UTC");
        let now = at("2026-01-01T01:00:00Z");
        assert_eq!(since(&c, now), at("2026-01-01T00:00:00Z"));
        c.spec.starting_deadline_seconds = Some(60);
        assert_eq!(since(&c, now), at("2026-01-01T00:59:00Z"));
    }

    #[test]
    fn names_are_the_minute_and_old_jobs_go_first() {
        let c = cron("* * * * *", "UTC");
        assert_eq!(job_name(&c, at("1970-01-01T00:02:30Z")), "c-2");
        let job = |name: &str, start: &str| -> Job {
            serde_json::from_value(json!({"metadata": {"name": name},
                "status": {"startTime": start, "conditions": [{"type": "Complete",
                "status": "True"}]}}))
            .unwrap()
        };
        let jobs = [job("new", "2026-01-02T00:00:00Z"), job("old", "2026-01-01T00:00:00Z")];
        let names: Vec<_> = surplus(&jobs, "Complete", Some(1))
            .into_iter()
            .map(|j| j.metadata.name.as_deref().unwrap())
            .collect();
        assert_eq!(names, ["old"]);
        assert!(
            surplus(&jobs, "Failed", Some(0)).is_empty()
                && surplus(&jobs, "Complete", None).is_empty()
        );
    }
}
