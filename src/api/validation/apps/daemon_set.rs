//! Validation of daemon sets.

use serde_json::Value;

use super::{always_restarts, counters};
use crate::field::{Error, ErrorList, Path};
use crate::validation::core::pod;
use crate::validation::immutable_as;
use crate::validation::labels::{convertible, matches, selects_all, validate_selector};
use crate::validation::numbers::{
    int_or_percent_value, non_negative, non_negative_int_or_percent, not_more_than_100_percent,
};
use crate::value::{get, str_at};

/// Validates a new daemon set (`ValidateDaemonSet`).
pub fn validate(object: &Value) -> ErrorList {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let (selector, template) = (get(spec, "selector"), get(spec, "template"));
    let (at_selector, at_template) = (path.child("selector"), path.child("template"));
    let mut errors = validate_selector(selector, &at_selector, false);
    let labels = get(get(template, "metadata"), "labels");
    if convertible(selector) && !(selector.is_object() && matches(selector, labels)) {
        let text = "`selector` does not match template `labels`";
        errors.push(Error::invalid(
            &at_template.child("metadata").child("labels"),
            labels.clone(),
            text,
        ));
    }
    if selector.is_object() && selects_all(selector) {
        errors.push(
            Error::invalid(
                &at_selector,
                selector.clone(),
                "empty selector is invalid for daemonset",
            )
            .printed_as("LabelSelector"),
        );
    }
    errors.extend(pod::template(template, &at_template));
    errors.extend(always_restarts(
        template,
        &at_template,
        "activeDeadlineSeconds in DaemonSet is not Supported",
    ));
    errors.extend(non_negative(spec, "minReadySeconds", &path));
    errors.extend(strategy(get(spec, "updateStrategy"), &path.child("updateStrategy")));
    errors.extend(non_negative(spec, "revisionHistoryLimit", &path));
    errors
}

fn strategy(strategy: &Value, path: &Path) -> ErrorList {
    let (rolling, field) = (get(strategy, "rollingUpdate"), path.child("rollingUpdate"));
    match str_at(strategy, "type") {
        "OnDelete" => return Vec::new(),
        "RollingUpdate" if rolling.is_object() => {}
        "RollingUpdate" => return vec![Error::required(&field, "")],
        _ => {
            let error =
                Error::not_supported(path, strategy.clone(), &["RollingUpdate", "OnDelete"]);
            return vec![error.printed_as("DaemonSetUpdateStrategy")];
        }
    }
    let keys = ["maxUnavailable", "maxSurge"];
    let mut errors: ErrorList =
        keys.iter().flat_map(|key| non_negative_int_or_percent(rolling, key, &field)).collect();
    errors.extend(keys.iter().filter_map(|key| not_more_than_100_percent(rolling, key, &field)));
    let [unavailable, surge] = keys.map(|key| int_or_percent_value(get(rolling, key)) != 0);
    if unavailable && surge {
        let value = get(rolling, "maxSurge").clone();
        errors.push(Error::invalid(
            &field.child("maxSurge"),
            value,
            "may not be set when maxUnavailable is non-zero",
        ));
    } else if !unavailable && !surge {
        errors.push(Error::required(
            &field.child("maxUnavailable"),
            "cannot be 0 when maxSurge is 0",
        ));
    }
    errors
}

/// Validates an update of a daemon set (`ValidateDaemonSetUpdate`).
pub fn validate_change(object: &Value, old: &Value) -> ErrorList {
    let [new, was] = [object, old].map(|o| get(get(o, "spec"), "selector"));
    let mut errors = immutable_as(new, was, &Path::new("spec").child("selector"), "*LabelSelector");
    errors.extend(validate(object));
    errors
}

/// Validates a status update (`ValidateDaemonSetStatusUpdate`).
pub fn validate_subresource(subresource: &str, object: &Value, _: &Value) -> ErrorList {
    if subresource != "status" {
        return Vec::new();
    }
    let keys = [
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "observedGeneration",
        "updatedNumberScheduled",
        "numberAvailable",
        "numberUnavailable",
        "collisionCount",
    ];
    counters(get(object, "status"), &keys, &[], &Path::new("status"))
}
