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

#[cfg(test)]
mod tests {
    use super::super::tests::changed;
    use super::*;
    use crate::validation::tests::same;
    use serde_json::json;

    fn set(changes: Value) -> Value {
        changed(crate::defaults::defaulter("apps", "v1", "DaemonSet"), changes)
    }

    /// `ValidateDaemonSetSpec` of `pkg/apis/apps/validation`.
    #[test]
    fn one_of_surge_and_unavailable_must_be_zero() {
        let check = |rolling: Value, expected: &[&str]| {
            let changes = json!({"updateStrategy": {"rollingUpdate": rolling}});
            same(&validate(&set(changes)), expected);
        };
        const AT: &str = "spec.updateStrategy.rollingUpdate";
        check(json!({}), &[]);
        check(json!({"maxUnavailable": 0, "maxSurge": "10%"}), &[]);
        check(
            json!({"maxUnavailable": 0}),
            &[&format!("{AT}.maxUnavailable: Required value: cannot be 0 when maxSurge is 0")],
        );
        check(
            json!({"maxSurge": 1}),
            &[&format!(
                "{AT}.maxSurge: Invalid value: 1: may not be set when maxUnavailable is non-zero"
            )],
        );
        check(
            json!({"maxUnavailable": "101%"}),
            &[&format!(
                "{AT}.maxUnavailable: Invalid value: \"101%\": must not be greater than 100%"
            )],
        );
        check(Value::Null, &[&format!("{AT}: Required value")]);
    }

    /// `ValidateDaemonSetSpec` of `pkg/apis/apps/validation`.
    #[test]
    fn selectors_must_match_the_template_and_not_be_empty() {
        let check = |changes: Value, expected: &[&str]| same(&validate(&set(changes)), expected);
        const LABELS: &str = "spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: \
            `selector` does not match template `labels`";
        check(json!({"updateStrategy": {"type": "OnDelete", "rollingUpdate": null}}), &[]);
        check(json!({"selector": null}), &[LABELS]);
        check(json!({"selector": {"matchLabels": {"a": "c"}}}), &[LABELS]);
        check(
            json!({"selector": {"matchLabels": null}}),
            &["spec.selector: Invalid value: {}: empty selector is invalid for daemonset"],
        );
        check(
            json!({"minReadySeconds": -1, "revisionHistoryLimit": -2}),
            &[
                "spec.minReadySeconds: Invalid value: -1: must be greater than or equal to 0",
                "spec.revisionHistoryLimit: Invalid value: -2: must be greater than or equal to 0",
            ],
        );
        check(
            json!({"template": {"spec": {"activeDeadlineSeconds": 5}}}),
            &["spec.template.spec.activeDeadlineSeconds: Forbidden: \
               activeDeadlineSeconds in DaemonSet is not Supported"],
        );
    }

    /// `ValidateDaemonSetUpdate` and `ValidateDaemonSetStatusUpdate` of
    /// `pkg/apis/apps/validation`.
    #[test]
    fn selectors_are_immutable_and_counters_not_negative() {
        let labels = json!({"a": "b", "c": "d"});
        let more = json!({"selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}}});
        let text = "spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"b\",\"c\":\"d\"}}: \
            field is immutable";
        same(&validate_change(&set(more.clone()), &set(json!({}))), &[text]);
        same(&validate_change(&set(more.clone()), &set(more)), &[]);
        let status = json!({"status": {"numberReady": -1, "numberAvailable": 2}});
        same(
            &validate_subresource("status", &status, &Value::Null),
            &["status.numberReady: Invalid value: -1: must be greater than or equal to 0"],
        );
    }
}
