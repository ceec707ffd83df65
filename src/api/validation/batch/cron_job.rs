//! Validation of cron jobs.

use jiff::tz::TimeZone;
use serde_json::Value;

use super::job::template_spec;
use crate::cron::{Schedule, load_location};
use crate::field::{Error, ErrorList, Path};
use crate::validation::numbers::all_non_negative;
use crate::validation::one_of;
use crate::value::{at, get, str_at, str_in};

/// Maximum length in bytes of a name. The controller appends eleven characters to form the names of
/// jobs.
const NAME_MAX: usize = 52;
/// Maximum length of a part of the name of a time zone.
const ZONE_PART_MAX: usize = 14;

/// Validates the spec of a new cron job, or of one that replaces `old`.
pub fn validate(object: &Value, old: Option<&Value>) -> ErrorList {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let old = old.map(|old| get(old, "spec"));
    let mut errors = schedule(spec, old, &path.child("schedule"));
    all_non_negative(spec, &["startingDeadlineSeconds"], &path, &mut errors);
    if old.is_none_or(|old| get(old, "timeZone") != get(spec, "timeZone")) {
        errors.extend(time_zone(spec, &path.child("timeZone")));
    }
    match str_at(spec, "concurrencyPolicy") {
        "" => errors.push(Error::required(&path.child("concurrencyPolicy"), "")),
        policy => errors.extend(one_of(
            policy,
            &["Allow", "Forbid", "Replace"],
            &path.child("concurrencyPolicy"),
        )),
    }
    let template = path.child("jobTemplate").child("spec");
    errors.extend(template_spec(at(spec, &["jobTemplate", "spec"]), &template));
    let own = at(spec, &["jobTemplate", "spec"]);
    let selector = get(own, "selector");
    if !selector.is_null() {
        let text = "`selector` will be auto-generated";
        errors.push(Error::invalid(&template.child("selector"), selector.clone(), text));
    }
    if get(own, "manualSelector").as_bool() == Some(true) {
        errors.push(Error::not_supported(
            &template.child("manualSelector"),
            true,
            &["nil", "false"],
        ));
    }
    all_non_negative(
        spec,
        &["successfulJobsHistoryLimit", "failedJobsHistoryLimit"],
        &path,
        &mut errors,
    );
    errors
}

/// Validates the schedule; a time zone in it is allowed while the old object has one
/// (`validateScheduleFormat`).
fn schedule(spec: &Value, old: Option<&Value>, field: &Path) -> ErrorList {
    let text = str_at(spec, "schedule");
    if text.is_empty() {
        return vec![Error::required(field, "")];
    }
    let mut errors = ErrorList::new();
    if let Err(error) = Schedule::parse(text, &TimeZone::UTC) {
        errors.push(Error::invalid(field, text, error.to_string()));
    }
    let zone_allowed = old.is_some_and(|old| str_at(old, "schedule").contains("TZ"));
    if text.contains("TZ") && !zone_allowed {
        let why = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
        errors.push(Error::invalid(field, text, why));
    } else if text.contains("TZ") && get(spec, "timeZone").is_string() {
        let why = "cannot use both timeZone field and TZ or CRON_TZ in schedule";
        errors.push(Error::invalid(field, text, why));
    }
    errors
}

/// Validates the time zone (`validateTimeZone`).
fn time_zone(spec: &Value, field: &Path) -> ErrorList {
    let Some(zone) = get(spec, "timeZone").as_str() else { return ErrorList::new() };
    let invalid = |text: String| Error::invalid(field, zone, text);
    if zone.is_empty() {
        return vec![invalid("timeZone must be nil or non-empty string".into())];
    }
    let is_part = |part: &str| {
        (1..=ZONE_PART_MAX).contains(&part.len())
            && !matches!(part, "." | "..")
            && !part.starts_with('-')
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_+".contains(&b))
    };
    if !zone.split('/').all(is_part) {
        return vec![invalid(format!("unknown time zone {zone}"))];
    }
    let mut errors = ErrorList::new();
    if zone.eq_ignore_ascii_case("local") {
        errors.push(invalid(
            "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
                .into(),
        ));
    }
    if let Err(error) = load_location(zone) {
        errors.push(invalid(error.to_string()));
    }
    errors
}

/// Validates a new cron job, including the length of its name (`ValidateCronJobCreate`).
pub fn validate_new(object: &Value) -> ErrorList {
    let mut errors = validate(object, None);
    let name = str_in(object, &["metadata", "name"]);
    if name.len() > NAME_MAX {
        let text = format!("must be no more than {NAME_MAX} characters");
        errors.push(Error::invalid(&Path::new("metadata").child("name"), name, text));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The expected text is the response of kube-apiserver 1.37.1.
    #[test]
    fn the_selector_of_a_template_is_made_later() {
        let job = json!({"selector": {"matchLabels": {"app": "x"}}, "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}});
        let cron = json!({"metadata": {"name": "cj"}, "spec": {"schedule": "*/5 * * * *", "concurrencyPolicy": "Forbid", "jobTemplate": {"spec": job}}});
        let said: Vec<String> = validate(&cron, None).iter().map(ToString::to_string).collect();
        let text = "spec.jobTemplate.spec.selector: Invalid value: {\"matchLabels\":{\"app\":\"x\"}}: `selector` will be auto-generated";
        assert!(said.iter().any(|one| one == text), "{said:?}");
    }
}
