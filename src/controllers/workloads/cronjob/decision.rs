//! What a CronJob needs at a time, as upstream's controller decides it (`syncCronJob` in
//! `pkg/controller/cronjob/cronjob_controllerv2.go`): a pure function of the object and the time.

use std::borrow::Cow;

use api::cron::{LocationError, Schedule, ScheduleError, load_location};
use api::field::go_quote;
use api::k8s::api::batch::v1::{CronJob, CronJobStatus};
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use client::events::EventType;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::times::{MissedTimes, most_recent, until_next};

/// An event of a decision: type, reason and message.
pub(super) type DecisionEvent = (EventType, &'static str, String);

/// The start of a Job.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct JobStart {
    /// The scheduled time.
    pub(super) at: Timestamp,
    /// The active Jobs are deleted first.
    pub(super) replaces: bool,
}

/// What a sync does after the list of active Jobs is up to date.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Decision {
    /// Events, in their order.
    pub(super) events: Vec<DecisionEvent>,
    /// The Job to start.
    pub(super) start: Option<JobStart>,
    /// When to sync again; `None`: after a change only.
    pub(super) requeue: Option<SignedDuration>,
}

impl Decision {
    fn warn(&mut self, reason: &'static str, message: String) {
        self.events.push((EventType::Warning, reason, message));
    }
}

/// The schedule of a CronJob as upstream parses it: with `spec.timeZone` as its `TZ=`, unless the
/// schedule contains `TZ` itself (`formatSchedule`).
pub(super) fn parse(cron: &CronJob, local: &TimeZone) -> Result<Schedule, ScheduleError> {
    let text = &cron.spec.schedule;
    let zone = cron.spec.time_zone.as_deref().filter(|_| !text.contains("TZ"));
    let text = match zone {
        Some(zone) if load_location(zone).is_ok() => Cow::Owned(format!("TZ={zone} {text}")),
        _ => Cow::Borrowed(text),
    };
    Schedule::parse(&text, local)
}

/// The time zone of the field, UTC without one. It is that of the annotation of Jobs.
pub(super) fn time_zone(cron: &CronJob) -> Result<TimeZone, LocationError> {
    load_location(cron.spec.time_zone.as_deref().unwrap_or_default())
}

/// The name of the Job of a scheduled time, which holds its minute.
pub(super) fn job_name(cron: &CronJob, at: Timestamp) -> String {
    let name = cron.metadata.name.as_deref().unwrap_or_default();
    format!("{name}-{}", at.as_second() / 60)
}

/// Decides for a CronJob with the status `status`. Schedules without a time zone follow `local`.
pub(super) fn decide(
    cron: &CronJob,
    status: &CronJobStatus,
    now: Timestamp,
    local: &TimeZone,
) -> Decision {
    let mut decision = Decision::default();
    if cron.metadata.deletion_timestamp.is_some() {
        return decision;
    }
    let text = &cron.spec.schedule;
    if let Err(error) = time_zone(cron) {
        let zone = go_quote(cron.spec.time_zone.as_deref().unwrap_or_default());
        decision.warn("UnknownTimeZone", format!("invalid timeZone: {zone}: {error}"));
        return decision;
    }
    if cron.spec.suspend == Some(true) {
        return decision;
    }
    if text.contains("TZ") {
        decision.warn(
            "UnsupportedSchedule",
            format!(
                "CRON_TZ or TZ used in schedule {} is not officially supported, see \
                https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more \
                details",
                go_quote(text)
            ),
        );
    }
    let schedule = match parse(cron, local) {
        Ok(schedule) => schedule,
        Err(error) => {
            let message = format!("unparseable schedule: {} : {error}", go_quote(text));
            decision.warn("UnparseableSchedule", message);
            return decision;
        }
    };
    let deadline = cron.spec.starting_deadline_seconds;
    let since = since(cron, status, now);
    match most_recent(&schedule, since, deadline, now) {
        Err(error) => {
            decision.warn("InvalidSchedule", format!("invalid schedule: {text} : {error}"));
        }
        Ok(recent) => {
            decision.requeue = until_next(&schedule, since, now);
            if let Some(at) = recent.latest {
                if recent.missed == MissedTimes::Many {
                    let message = "too many missed start times. Set or decrease \
                        .spec.startingDeadlineSeconds or check clock skew";
                    decision.warn("TooManyMissedTimes", message.to_owned());
                }
                start(cron, status, at, now, &mut decision);
            }
            if let Some(started) = &decision.start {
                decision.requeue = until_next(&schedule, started.at, now);
            }
        }
    }
    decision
}

/// Decides how long a changed CronJob waits for its sync: not at all, but with another schedule or
/// time zone until the next time, so that it starts no Job for a time before the change
/// (`updateCronJob`).
///
/// # Errors
///
/// Returns the error of a schedule that cannot be parsed.
pub(super) fn wait_after_change(
    old: &CronJob,
    new: &CronJob,
    now: Timestamp,
    local: &TimeZone,
) -> Result<SignedDuration, ScheduleError> {
    if (&old.spec.schedule, &old.spec.time_zone) == (&new.spec.schedule, &new.spec.time_zone) {
        return Ok(SignedDuration::ZERO);
    }
    let schedule = parse(new, local)?;
    let since = since(new, &new.status.clone().unwrap_or_default(), now);
    Ok(until_next(&schedule, since, now).unwrap_or_default())
}

/// The time after which times count as missed: the last scheduled time, or the creation.
pub(super) fn since(cron: &CronJob, status: &CronJobStatus, now: Timestamp) -> Timestamp {
    let last = status.last_schedule_time.as_ref();
    last.or(cron.metadata.creation_timestamp.as_ref()).map_or(now, |Time(time)| *time)
}

/// Decides whether the Job of a scheduled time starts.
fn start(
    cron: &CronJob,
    status: &CronJobStatus,
    at: Timestamp,
    now: Timestamp,
    decision: &mut Decision,
) {
    let deadline = cron.spec.starting_deadline_seconds.map(SignedDuration::from_secs);
    if deadline.and_then(|d| at.checked_add(d).ok()).is_some_and(|latest| latest < now) {
        let text = at.strftime("%a, %d %b %Y %H:%M:%S +0000");
        decision.warn("MissSchedule", format!("Missed scheduled time to start a job: {text}"));
        return;
    }
    let active = status.active.as_deref().unwrap_or_default();
    let name = job_name(cron, at);
    let is_active = active
        .iter()
        .any(|job| job.name.as_ref() == Some(&name) && job.namespace == cron.metadata.namespace);
    if is_active || status.last_schedule_time.as_ref().is_some_and(|last| last.0 == at) {
        return;
    }
    let policy = cron.spec.concurrency_policy.as_deref().unwrap_or_default();
    if policy == "Forbid" && !active.is_empty() {
        let message = "Not starting job because prior execution is running and concurrency \
            policy is Forbid";
        decision.events.push((EventType::Normal, "JobAlreadyActive", message.to_owned()));
        return;
    }
    decision.start = Some(JobStart { at, replaces: policy == "Replace" });
}
