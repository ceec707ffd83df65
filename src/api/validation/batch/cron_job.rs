//! Validation of cron jobs.

use serde_json::Value;

use super::job::template_spec;
use super::schedule;
use crate::field::{Error, ErrorList, Path};
use crate::validation::numbers::all_non_negative;
use crate::validation::one_of;
use crate::value::{at, get, str_at, str_in};

/// Maximum length in bytes of a name. The controller appends eleven characters to form the names of
/// jobs.
const NAME_MAX: usize = 52;

/// Validates the spec of a new or updated cron job.
pub fn validate(object: &Value) -> ErrorList {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let mut errors = ErrorList::new();
    let schedule = str_at(spec, "schedule");
    if schedule.is_empty() {
        errors.push(Error::required(&path.child("schedule"), ""));
    } else if let Err(error) = schedule::check(schedule) {
        errors.push(Error::invalid(&path.child("schedule"), schedule, error.to_string()));
    }
    if str_at(spec, "schedule").contains("TZ") {
        let text = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
        errors.push(Error::invalid(&path.child("schedule"), str_at(spec, "schedule"), text));
    }
    all_non_negative(spec, &["startingDeadlineSeconds"], &path, &mut errors);
    if let Some(zone) = get(spec, "timeZone").as_str() {
        let field = path.child("timeZone");
        if zone.is_empty() {
            errors.push(Error::invalid(&field, zone, "timeZone must be nil or non-empty string"));
        } else if zone.eq_ignore_ascii_case("local") {
            errors.push(Error::invalid(&field, zone, "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"));
        } else if jiff::tz::TimeZone::get(zone).is_err() {
            errors.push(Error::invalid(&field, zone, format!("unknown time zone {zone}")));
        }
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

/// Validates a new cron job, including the length of its name (`ValidateCronJobCreate`).
pub fn validate_new(object: &Value) -> ErrorList {
    let mut errors = validate(object);
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
        let said: Vec<String> = validate(&cron).iter().map(ToString::to_string).collect();
        let text = "spec.jobTemplate.spec.selector: Invalid value: {\"matchLabels\":{\"app\":\"x\"}}: `selector` will be auto-generated";
        assert!(said.iter().any(|one| one == text), "{said:?}");
    }
}
