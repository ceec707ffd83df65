//! Decisions compared with upstream: the tables of its tests, and recorded syncs of its controller
//! while the clock moves forwards and backwards (`tests/cronjobs/record`, all of them
//! `tests/cronjobs/compare`).

use std::io::Read as _;
use std::path::PathBuf;

use client::events::EventType;
use jiff::SignedDuration;
use serde::Deserialize;
use serde_json::json;

use super::decision::{Decision, parse, since, wait_after_change};
use super::times::{MissedTimes, most_recent, until_next};
use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn cron(schedule: &str) -> CronJob {
    serde_json::from_value(json!({
        "metadata": {"name": "cron", "namespace": "default", "uid": "uid"},
        "spec": {"schedule": schedule, "jobTemplate": {"spec": {"template": {}}}},
    }))
    .unwrap()
}

fn reference_to(name: &str) -> ObjectReference {
    ObjectReference {
        name: Some(name.to_owned()),
        namespace: Some("default".to_owned()),
        uid: Some(format!("uid-{name}")),
        ..ObjectReference::default()
    }
}

/// The rows of `TestControllerV2SyncCronJob` in which the API server answers without an error:
/// schedule, time zone, policy, suspended, deadline, creation, last scheduled time, time of the
/// active Job, present; then whether a Job starts, the wait without its 100 ms, warnings. Days are
/// those of May 2016.
const SYNCS: &str = "\
0 * * * ?|-|Allow|-|-|19T08:59:00|19T09:01:00|-|19T09:59:00|-|60|0
0 * * * ?|-|Allow|-|-|19T08:59:00|19T09:01:00|-|19T10:01:00|start|3540|0
0 * * * ?|-|Allow|-|-|19T08:59:00|19T09:01:00|-|26T10:00:00|start|3600|1
0 * * * ?|-|Allow|-|-|19T08:59:00|19T09:01:00|19T09:01:00|19T09:59:00|-|60|0
0 * * * ?|-|Allow|-|-|19T08:59:00|19T09:01:00|19T09:01:00|19T10:01:00|start|3540|0
0 * * * ?|-|Allow|-|-|19T09:59:00|-|-|19T10:01:00|start|3540|0
0 * * * ?|-|Allow|-|1000000|19T08:59:00|19T09:01:00|-|19T10:01:00|start|3540|0
0 * * * ?|-|Allow|-|1000000|19T08:59:00|19T09:01:00|-|26T10:00:00|start|3600|1
0 * * * ?|-|Allow|-|1000000|19T08:59:00|19T09:01:00|19T09:01:00|19T10:01:00|start|3540|0
0 * * * ?|-|Allow|-|1000000|19T08:59:00|19T09:01:00|19T10:00:00.1|19T10:01:00.1|-|3539.9|0
0 * * * ?|-|Allow|-|1000000|19T09:59:00|-|-|19T10:01:00|start|3540|0
0 * * * ?|-|Allow|-|10|19T08:59:00|19T09:01:00|-|19T10:01:00|-|3540|0
0 * * * ?|-|Allow|-|10|19T08:59:00|19T09:01:00|-|26T10:00:00|start|3600|0
0 * * * ?|-|Allow|-|10|19T08:59:00|19T09:01:00|19T09:01:00|19T10:01:00|-|3540|0
0 * * * ?|-|Allow|-|10|19T09:59:00|-|-|19T10:12:00|-|2880|0
0 * * * ?|-|Allow|-|7200|19T08:59:00|19T09:01:00|-|26T10:00:00|start|3600|0
0 * * * ?|-|Allow|suspend|-|19T08:59:00|19T09:01:00|-|19T10:01:00|-|-|0
0 * * * ?|-|Allow|suspend|-|19T08:59:00|19T09:01:00|19T09:01:00|19T10:01:00|-|-|0
0 * * * ?|-|Allow|suspend|-|19T09:59:00|-|-|19T10:01:00|-|-|0
0 * * * ?|-|Forbid|-|-|19T08:59:00|19T09:01:00|-|19T09:59:00|-|60|0
0 * * * ?|-|Forbid|-|-|19T08:59:00|19T09:01:00|-|19T10:01:00|start|3540|0
0 * * * ?|-|Forbid|-|-|19T08:59:00|19T09:01:00|-|26T10:00:00|start|3600|1
0 * * * ?|-|Forbid|-|-|19T08:59:00|19T09:01:00|19T09:01:00|19T09:59:00|-|60|0
0 * * * ?|-|Forbid|-|-|19T08:59:00|19T09:01:00|19T09:01:00|19T10:01:00|-|3540|0
0 * * * ?|-|Forbid|-|-|19T09:59:00|-|-|19T09:59:00|-|60|0
0 * * * ?|-|Forbid|-|-|19T09:59:00|-|-|19T10:01:00|start|3540|0
0 * * * ?|-|Forbid|-|1000000|19T08:59:00|19T09:01:00|-|26T10:00:00|start|3600|1
0 * * * ?|-|Forbid|-|1000000|19T08:59:00|19T09:01:00|19T10:00:00.1|19T10:01:00.1|-|3539.9|0
0 * * * ?|-|Forbid|-|10|19T08:59:00|19T09:01:00|-|26T10:00:00|start|3600|0
0 * * * ?|-|Forbid|-|7200|19T08:59:00|19T09:01:00|-|26T10:00:00|start|3600|0
0 * * * ?|-|Replace|-|-|19T08:59:00|19T09:01:00|-|19T09:59:00|-|60|0
0 * * * ?|-|Replace|-|-|19T08:59:00|19T09:01:00|-|19T10:01:00|start|3540|0
0 * * * ?|-|Replace|-|-|19T08:59:00|19T09:01:00|-|26T10:00:00|start|3600|1
0 * * * ?|-|Replace|-|-|19T08:59:00|19T09:01:00|19T09:01:00|19T09:59:00|-|60|0
0 * * * ?|-|Replace|-|-|19T08:59:00|19T09:01:00|19T09:01:00|19T10:01:00|start|3540|0
0 * * * ?|-|Replace|-|-|19T09:59:00|-|-|19T09:59:00|-|60|0
0 * * * ?|-|Replace|-|-|19T09:59:00|-|-|19T10:01:00|start|3540|0
0 * * * ?|-|Replace|-|1000000|19T08:59:00|19T09:01:00|-|26T10:00:00|start|3600|1
0 * * * ?|-|Replace|-|1000000|19T08:59:00|19T09:01:00|19T10:00:00.1|19T10:01:00.1|-|3539.9|0
0 * * * ?|-|Replace|-|10|19T08:59:00|19T09:01:00|-|26T10:00:00|start|3600|0
0 * * * ?|-|Replace|-|7200|19T08:59:00|19T09:01:00|-|26T10:00:00|start|3600|0
0 * * * ?|America/New_York|Allow|-|-|19T09:59:00|-|-|19T09:59:00|-|60|0
0 * * * ?|America/New_York|Allow|-|-|19T09:59:00|-|-|19T10:01:00|start|3540|0
0 * * * ?|bad timezone|Allow|-|-|19T09:59:00|-|-|19T09:59:00|-|-|1
@every 1h|-|Allow|-|-|19T08:59:00|-|-|19T09:59:00|start|3600|0
@every 1h|-|Allow|-|-|19T08:59:00|19T08:59:00|19T08:59:00|19T10:01:00|start|3480|0
@every 1h|-|Allow|-|-|19T08:59:00|19T09:59:00|-|19T10:00:00|-|3540|0
@every 1h|-|Allow|-|-|19T08:59:00|19T09:59:00|-|19T11:00:00|start|3540|0
@every 1h|-|Allow|-|-|19T08:59:00|19T09:59:00|19T09:59:00|19T10:00:00|-|3540|0
@every 1h|-|Allow|-|-|19T09:01:00|19T10:01:00|-|26T10:00:00|start|60|1
@every 1h|-|Allow|-|-|19T09:59:00|-|-|19T10:00:00|-|3540|0
@every 1h|-|Allow|-|1000000|19T08:59:00|-|-|19T09:59:09|start|3591|0
@every 1h|-|Allow|-|1000000|19T08:59:00|19T09:59:00|19T09:59:00|19T10:59:09|start|3591|0
@every 1h|-|Allow|-|10|19T08:59:00|-|-|19T09:59:11|-|3589|0
@every 1h|-|Allow|-|10|19T08:59:00|19T09:59:00|-|19T10:59:11|-|3589|0
@every 1h|-|Allow|-|10|19T08:59:00|19T09:59:00|19T09:59:00|19T10:59:11|-|3589|0
@every 1h|-|Allow|-|10|19T09:01:00|19T10:01:00|-|26T10:01:11|-|3589|0
TZ=UTC 0 * * * ?|America/New_York|Allow|-|-|19T09:59:00|-|-|19T10:01:00|start|3540|1
obvious error schedule|-|Allow|-|-|19T09:59:00|-|-|19T09:59:00|-|-|1
obvious error schedule|-|Forbid|-|-|19T09:59:00|-|-|19T09:59:00|-|-|1
";

#[test]
fn syncs_decide_as_in_upstreams_table() {
    let time = |text: &str| (text != "-").then(|| at(&format!("2016-05-{text}Z")));
    for row in SYNCS.lines() {
        let column: Vec<&str> = row.split('|').collect();
        let mut cron = cron(column[0]);
        cron.spec.time_zone = (column[1] != "-").then(|| column[1].to_owned());
        cron.spec.concurrency_policy = Some(column[2].to_owned());
        cron.spec.suspend = Some(column[3] == "suspend");
        cron.spec.starting_deadline_seconds = column[4].parse().ok();
        cron.metadata.creation_timestamp = time(column[5]).map(Time);
        let active = time(column[7]).map(|at| vec![reference_to(&job_name(&cron, at))]);
        let status = CronJobStatus {
            last_schedule_time: time(column[6]).map(Time),
            active,
            ..CronJobStatus::default()
        };
        let decision = decide(&cron, &status, time(column[8]).unwrap(), &TimeZone::UTC);
        assert_eq!(decision.start.is_some(), column[9] == "start", "{row}");
        if let Ok(wait) = column[10].parse::<f64>() {
            let wait = SignedDuration::from_secs_f64(wait + 0.1);
            assert_eq!(decision.requeue.unwrap(), wait, "{row}");
        }
        let warnings = decision.events.iter().filter(|event| event.0 == EventType::Warning);
        assert_eq!(warnings.count().to_string(), column[11], "{row}");
    }
}

/// A time so many seconds after that of the tables.
fn hour(seconds: i64) -> Timestamp {
    at("2016-05-19T10:00:00Z") + SignedDuration::from_secs(seconds)
}

const MINUTE: i64 = 60;
const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

/// `TestMostRecentScheduleTime`: schedule, creation or last scheduled time, deadline, present;
/// then the earliest and the most recent time and the number of missed ones.
#[test]
fn the_most_recent_time_is_as_in_upstreams_table() {
    use MissedTimes::{Few, Many, None as Zero};
    let weekdays = "30 6-16/4 * * 1-5";
    for (schedule, begin, deadline, now, earliest, latest, missed) in [
        ("0 * * * *", 0, None, 30, 0, None, Zero),
        ("0 * * * *", 0, None, 61 * MINUTE, 0, Some(HOUR), Zero),
        ("0 * * * *", 10, None, 301 * MINUTE, 10, Some(300 * MINUTE), Few),
        (weekdays, 30 * MINUTE, None, DAY + 31 * MINUTE, 30 * MINUTE, Some(DAY + 30 * MINUTE), Few),
        ("30 10,11,12 * * 1-5", 30 * MINUTE, None, 30 * HOUR + 30 * MINUTE, 30 * MINUTE, None, Few),
        (
            weekdays,
            30 * MINUTE,
            None,
            4 * DAY + 31 * MINUTE,
            30 * MINUTE,
            Some(4 * DAY + 30 * MINUTE),
            Few,
        ),
        (weekdays, 0, None, DAY + 31 * MINUTE, 0, Some(DAY + 30 * MINUTE), Few),
        ("@every 1h", MINUTE, None, 7 * DAY, MINUTE, Some(6 * DAY + 23 * HOUR + MINUTE), Many),
        ("0 * * * *", 0, None, 30, 0, None, Zero),
        ("*/5 * * * *", 30 * MINUTE, None, 31 * MINUTE, 30 * MINUTE, None, Zero),
        ("*/5 * * * *", 30 * MINUTE, Some(60), 32 * MINUTE, 31 * MINUTE, None, Zero),
    ] {
        let parsed = parse(&cron(schedule), &TimeZone::UTC).unwrap();
        let recent = most_recent(&parsed, hour(begin), deadline, hour(now)).unwrap();
        let ours = (recent.earliest, recent.latest, recent.missed);
        assert_eq!(ours, (hour(earliest), latest.map(hour), missed), "{schedule} {now}");
    }
    let never = parse(&cron("59 23 31 2 *"), &TimeZone::UTC).unwrap();
    assert!(most_recent(&never, hour(10), None, hour(HOUR)).is_err());
}

/// `TestNextScheduleTimeDuration`.
#[test]
fn the_wait_is_as_in_upstreams_table() {
    for (schedule, begin, now, wait) in [
        ("30 6-16/4 * * 1-5", 30 * MINUTE, DAY + 31 * MINUTE, 3 * HOUR + 59 * MINUTE),
        ("30 10,11,12 * * 1-5", 30 * MINUTE, 30 * HOUR + 30 * MINUTE, 66 * HOUR),
        ("0 12 * * 4", 2 * HOUR, 19 * DAY + HOUR + 30 * MINUTE, 2 * DAY + 30 * MINUTE),
        ("0 12 * * 5", 0, 6 * HOUR, 20 * HOUR),
    ] {
        let parsed = parse(&cron(schedule), &TimeZone::UTC).unwrap();
        let expected = SignedDuration::from_secs(wait) + SignedDuration::from_millis(100);
        assert_eq!(until_next(&parsed, hour(begin), hour(now)), Some(expected), "{schedule}");
    }
}

/// `TestNextScheduleTime`.
#[test]
fn the_next_time_is_as_in_upstreams_table() {
    for (begin, now, deadline, due) in [
        (-10 * MINUTE, -7 * MINUTE, None, false),
        (-10 * MINUTE, 2, None, true),
        (0, 2 * MINUTE, None, false),
        (0, HOUR + 5 * MINUTE, None, true),
        (-HOUR, HOUR + 5 * MINUTE, None, true),
        (-HOUR, HOUR + 10 * DAY, None, true),
        (-HOUR, HOUR + 10 * DAY, Some(2 * HOUR), true),
    ] {
        let parsed = parse(&cron("0 * * * ?"), &TimeZone::UTC).unwrap();
        let recent = most_recent(&parsed, hour(begin), deadline, hour(now)).unwrap();
        let newest = hour(now.div_euclid(HOUR) * HOUR);
        assert_eq!(recent.latest, due.then_some(newest), "{begin} {now}");
    }
}

/// `TestControllerV2UpdateCronJob`, and a change of the time zone with a schedule.
#[test]
fn a_changed_schedule_waits_for_its_next_time() {
    let last = hour(-MINUTE);
    let wait = |old: (&str, &str), new: (&str, &str)| {
        let cron = |(schedule, zone): (&str, &str)| {
            let mut cron = cron(schedule);
            cron.spec.time_zone = Some(zone.to_owned());
            cron.status = Some(CronJobStatus {
                last_schedule_time: Some(Time(last)),
                ..CronJobStatus::default()
            });
            cron
        };
        wait_after_change(&cron(old), &cron(new), hour(-1), &TimeZone::UTC)
            .map(|wait| wait.as_millis())
    };
    let (utc, york) = ("UTC", "America/New_York");
    assert_eq!(wait(("30 * * * *", utc), ("30 * * * *", utc)), Ok(0));
    assert_eq!(wait(("30 * * * *", utc), ("*/1 * * * *", utc)), Ok(1100));
    assert_eq!(wait(("@every 1m", utc), ("@every 3m", utc)), Ok(121_100));
    assert_eq!(wait(("@every 3m", utc), ("@every 1m", utc)), Ok(1100));
    assert_eq!(wait(("0 6 * * *", utc), ("0 6 * * *", york)), Ok(1100));
    assert!(wait(("0 6 * * *", utc), ("0 6 * *", utc)).is_err());
}

#[test]
fn a_deadline_of_centuries_leaves_no_time_out() {
    let parsed = parse(&cron("0 * * * *"), &TimeZone::UTC).unwrap();
    let recent = most_recent(&parsed, hour(0), Some(i64::MAX), hour(HOUR)).unwrap();
    assert_eq!(recent.latest, Some(hour(HOUR)));
    let mut cron = cron("0 * * * *");
    cron.metadata.creation_timestamp = Some(Time(hour(0)));
    cron.spec.starting_deadline_seconds = Some(i64::MAX);
    let decision = decide(&cron, &CronJobStatus::default(), hour(HOUR), &TimeZone::UTC);
    assert_eq!(decision.start, Some(JobStart { at: hour(HOUR), replaces: false }));
}

/// A sync of upstream's controller: the state before it and its result.
#[derive(Debug, Deserialize)]
struct Step {
    schedule: String,
    zone: Option<String>,
    created: i64,
    last: Option<i64>,
    deadline: Option<i64>,
    policy: String,
    #[serde(default)]
    suspend: bool,
    #[serde(default)]
    active: Vec<String>,
    now: Timestamp,
    #[serde(default)]
    events: Vec<String>,
    requeue: Option<i64>,
    job: Option<String>,
    r#for: Option<String>,
    #[serde(default)]
    deleted: Vec<String>,
    changed: Option<i64>,
}

/// What is compared of a sync: events, wait, Job and its annotation, deleted Jobs, and the wait
/// after a change of the schedule.
type Outcome = (Vec<String>, Option<i64>, Option<String>, Option<String>, Vec<String>, Option<i64>);

impl Step {
    fn expected(&self) -> Outcome {
        let step = self;
        // Without a next time upstream waits as short as it can count.
        let changed = step.changed.filter(|wait| *wait != i64::MIN);
        let (events, deleted) = (step.events.clone(), step.deleted.clone());
        (events, step.requeue, step.job.clone(), step.r#for.clone(), deleted, changed)
    }

    fn outcome(&self) -> Outcome {
        let second = |second| Time(Timestamp::from_second(second).unwrap());
        let mut cron = cron(&self.schedule);
        cron.metadata.creation_timestamp = Some(second(self.created));
        cron.spec.time_zone.clone_from(&self.zone);
        cron.spec.starting_deadline_seconds = self.deadline;
        cron.spec.concurrency_policy = Some(self.policy.clone());
        cron.spec.suspend = Some(self.suspend);
        let status = CronJobStatus {
            active: Some(self.active.iter().map(|name| reference_to(name)).collect()),
            last_schedule_time: self.last.map(second),
            ..CronJobStatus::default()
        };
        let nanos = |wait: SignedDuration| i64::try_from(wait.as_nanos()).unwrap();
        let decision: Decision = decide(&cron, &status, self.now, &TimeZone::UTC);
        let event = |(kind, reason, text)| format!("{kind:?} {reason} {text}");
        let (mut job, mut time, mut deleted) = (None, None, Vec::new());
        if let Some(start) = &decision.start {
            let made = new_job(&cron, start.at);
            job = made.metadata.name;
            time = made.metadata.annotations.and_then(|mut all| all.remove(SCHEDULED));
            if start.replaces {
                deleted.clone_from(&self.active);
            }
        }
        let changed = parse(&cron, &TimeZone::UTC)
            .ok()
            .and_then(|schedule| until_next(&schedule, since(&cron, &status, self.now), self.now));
        let events = decision.events.into_iter().map(event).collect();
        (events, decision.requeue.map(nanos), job, time, deleted, changed.map(nanos))
    }
}

#[derive(Deserialize)]
struct Line {
    step: Step,
}

#[test]
fn recorded_syncs_decide_as_upstreams_controller() {
    let kept = || PathBuf::from("testdata/cronjobs.jsonl.gz");
    #[allow(clippy::disallowed_methods, reason = "a file for more than the tree keeps")]
    let file = std::env::var("KUBE_LITE_CRONJOBS").map_or_else(|_| kept(), PathBuf::from);
    let mut text = String::new();
    let file = std::fs::File::open(file).unwrap();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
    let (mut count, mut starts, mut differences) = (0, 0, Vec::new());
    for line in text.lines().filter(|line| line.starts_with("{\"step\"")) {
        let Line { step } = serde_json::from_str(line).unwrap();
        count += 1;
        starts += usize::from(step.job.is_some());
        let ours = step.outcome();
        if ours != step.expected() {
            differences.push(format!("{step:?}: {ours:?}"));
        }
    }
    assert!(count > 1000 && starts > 300, "{count} {starts}");
    let result = format!("{count} syncs compared, {} differences", differences.len());
    differences.truncate(20);
    assert!(differences.is_empty(), "{result}\n{}", differences.join("\n"));
    // For `cargo test -- --nocapture`.
    #[allow(clippy::print_stdout, reason = "the number is the result of tests/cronjobs/compare")]
    {
        println!("{result}");
    }
}

#[test]
fn of_finished_jobs_above_the_limit_the_oldest_go_first() {
    let job = |name: &str, start: Option<&str>| -> Job {
        serde_json::from_value(json!({"metadata": {"name": name},
            "status": {"startTime": start, "conditions": [{"type": "Complete",
            "status": "True"}]}}))
        .unwrap()
    };
    let (early, late) = (Some("2026-01-01T00:00:00Z"), Some("2026-01-02T00:00:00Z"));
    let names = |jobs: &[Job], limit: i32| -> Vec<String> {
        let old = surplus(jobs, "Complete", Some(limit));
        old.into_iter().filter_map(|job| job.metadata.name.clone()).collect()
    };
    // The orders of `TestByJobStartTime`.
    for (jobs, order) in [
        ([job("b", None), job("a", None)], ["a", "b"]),
        ([job("a", None), job("b", early)], ["b", "a"]),
        ([job("a", early), job("b", None)], ["a", "b"]),
        ([job("b", early), job("a", early)], ["a", "b"]),
        ([job("a", late), job("b", early)], ["b", "a"]),
    ] {
        assert_eq!(names(&jobs, 0), order);
        assert_eq!(names(&jobs, 1), order[..1]);
        assert!(surplus(&jobs, "Failed", Some(0)).is_empty());
        assert!(surplus(&jobs, "Complete", None).is_empty());
    }
}
