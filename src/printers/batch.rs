//! Jobs and cron jobs.

use jiff::Timestamp;
use serde_json::Value;

use super::cells::{
    age, at, containers, count, deleted, flag, human_duration, integer, is_true, name, selector,
    since, text, text_or, time,
};
use super::printer::{
    AGE, Column, NAME, Printer, boolean, integer as number, printer, text as col, wide,
};

pub(super) const PRINTERS: &[Printer] =
    &[printer("batch", "Job", JOB, job), printer("batch", "CronJob", CRON_JOB, cron_job)];

const JOB: &[Column] = &[
    NAME,
    col("Status"),
    col("Completions"),
    col("Duration"),
    AGE,
    wide("Containers"),
    wide("Images"),
    wide("Selector"),
];
const CRON_JOB: &[Column] = &[
    NAME,
    col("Schedule"),
    col("Timezone"),
    boolean("Suspend"),
    number("Active"),
    col("Last Schedule"),
    AGE,
    wide("Containers"),
    wide("Images"),
    wide("Selector"),
];

fn job(o: &Value, now: Timestamp) -> Vec<Value> {
    let done = integer(o, &["status", "succeeded"]);
    let completions =
        match (at(o, &["spec", "completions"]).as_i64(), integer(o, &["spec", "parallelism"])) {
            (Some(wanted), _) => format!("{done}/{wanted}"),
            (None, parallelism) if parallelism > 1 => format!("{done}/1 of {parallelism}"),
            (None, _) => format!("{done}/1"),
        };
    let took = time(o, &["status", "startTime"]).map(|start| {
        let end = time(o, &["status", "completionTime"]).unwrap_or(now);
        human_duration(end.duration_since(start).as_secs())
    });
    let is = |kind: &str| is_true(o, kind);
    let status = match () {
        () if is("Complete") => "Complete",
        () if is("Failed") => "Failed",
        () if deleted(o) => "Terminating",
        () if is("Suspended") => "Suspended",
        () if is("FailureTarget") => "FailureTarget",
        () if is("SuccessCriteriaMet") => "SuccessCriteriaMet",
        () => "Running",
    };
    let [names, images] = containers(at(o, &["spec", "template", "spec"]));
    let chosen = selector(at(o, &["spec", "selector"]));
    vec![
        name(o),
        status.into(),
        completions.into(),
        took.unwrap_or_default().into(),
        age(o, now),
        names,
        images,
        chosen.into(),
    ]
}

fn cron_job(o: &Value, now: Timestamp) -> Vec<Value> {
    let last = ["status", "lastScheduleTime"];
    let last = if at(o, &last).is_null() { "<none>".to_owned() } else { since(o, &last, now) };
    // Upstream prints the pointer's value as a word, whatever the column's type.
    let suspend = match at(o, &["spec", "suspend"]) {
        Value::Null => "<unset>",
        _ if flag(o, &["spec", "suspend"]) => "True",
        _ => "False",
    };
    let [names, images] = containers(at(o, &["spec", "jobTemplate", "spec", "template", "spec"]));
    vec![
        name(o),
        text(o, &["spec", "schedule"]).into(),
        text_or(o, &["spec", "timeZone"], "<none>").into(),
        suspend.into(),
        count(o, &["status", "active"]).into(),
        last.into(),
        age(o, now),
        names,
        images,
        selector(at(o, &["spec", "jobTemplate", "spec", "selector"])).into(),
    ]
}
