//! Validation of the kinds of the apps group (upstream's `pkg/apis/apps/validation`).

pub mod daemon_set;
pub mod deployment;
pub mod replica_set;
pub mod stateful_set;

use serde_json::Value;

use super::core::pod;
use super::labels::{convertible, matches, selects_all, validate_selector};
use crate::field::{Error, ErrorList, Path};
use crate::value::{get, has, int_at, str_in};

/// Validates `spec.selector` and `spec.template`. `what` is the name of the kind in upstream's
/// error for an empty selector.
fn selector_and_template(spec: &Value, path: &Path, what: &str) -> ErrorList {
    let mut errors = ErrorList::new();
    let (selector, field) = (get(spec, "selector"), path.child("selector"));
    if selector.is_object() {
        errors.extend(validate_selector(selector, &field, false));
        if selects_all(selector) {
            errors.push(
                Error::invalid(
                    &field,
                    selector.clone(),
                    format!("empty selector is invalid for {what}"),
                )
                .printed_as("LabelSelector"),
            );
        }
        if !convertible(selector) {
            let text = "invalid label selector";
            errors.push(Error::invalid(&field, selector.clone(), text).printed_as("LabelSelector"));
            return errors;
        }
    } else {
        errors.push(Error::required(&field, ""));
    }
    errors.extend(template_matches(spec, path));
    errors
}

/// Validates the template: its labels match the selector, its restart policy is `Always`, and it
/// has no active deadline.
fn template_matches(spec: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let (selector, template, field) =
        (get(spec, "selector"), get(spec, "template"), path.child("template"));
    let labels = get(get(template, "metadata"), "labels");
    let good = selector.is_object() && (selects_all(selector) || matches(selector, labels));
    if !good {
        let text = "`selector` does not match template `labels`";
        errors.push(Error::invalid(&field.child("metadata").child("labels"), labels.clone(), text));
    }
    errors.extend(pod::template(template, &field));
    errors.extend(always_restarts(
        template,
        &field,
        "activeDeadlineSeconds in ReplicaSet is not Supported",
    ));
    errors
}

fn always_restarts(template: &Value, path: &Path, deadline: &str) -> ErrorList {
    let mut errors = ErrorList::new();
    let policy = str_in(template, &["spec", "restartPolicy"]);
    let spec = path.child("spec");
    if policy != "Always" {
        errors.push(Error::not_supported(&spec.child("restartPolicy"), policy, &["Always"]));
    }
    if has(get(template, "spec"), "activeDeadlineSeconds") {
        errors.push(Error::forbidden(&spec.child("activeDeadlineSeconds"), deadline));
    }
    errors
}

/// Validates the counters `keys` of a status: none is negative, and none exceeds its limit. Each
/// entry of `bounds` has a counter, the counter that limits it, and the text of the error.
fn counters(
    status: &Value,
    keys: &[&str],
    bounds: &[(&str, &str, &str)],
    path: &Path,
) -> ErrorList {
    let mut errors = ErrorList::new();
    super::numbers::all_non_negative(status, keys, path, &mut errors);
    for (key, limit, text) in bounds {
        let value = int_at(status, key).unwrap_or_default();
        if value > int_at(status, limit).unwrap_or_default() {
            errors.push(Error::invalid(&path.child(key), value, *text));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::tests::{same, with};
    use serde_json::json;

    /// The spec of a defaulted deployment with these changes.
    pub(super) fn changed(defaults: crate::defaults::Defaulter, changes: Value) -> Value {
        let template = json!({"metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
        let mut object = json!({"metadata": {"name": "n"}, "spec": spec});
        defaults(&mut object);
        with(&object, &json!({ "spec": changes }))
    }

    /// `ValidateDeploymentSpec` and `ValidatePodTemplateSpecForReplicaSet` of
    /// `pkg/apis/apps/validation`.
    #[test]
    fn templates_must_carry_the_labels_of_the_selector_and_restart_always() {
        let check = |changes: Value, expected: &[&str]| {
            let object = changed(crate::defaults::defaulter("apps", "v1", "Deployment"), changes);
            let errors =
                selector_and_template(get(&object, "spec"), &Path::new("spec"), "deployment");
            same(&errors, expected);
        };
        const LABELS: &str = "spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: \
            `selector` does not match template `labels`";
        check(json!({}), &[]);
        check(json!({"selector": {"matchLabels": {"a": "c"}}}), &[LABELS]);
        check(json!({"selector": {"matchLabels": {"c": "d"}}}), &[LABELS]);
        check(json!({"selector": null}), &["spec.selector: Required value", LABELS]);
        check(
            json!({"selector": {"matchLabels": null}}),
            &["spec.selector: Invalid value: {}: empty selector is invalid for deployment"],
        );
        check(
            json!({"selector": {"matchExpressions": [{"key": "a", "operator": "Of"}]}}),
            &[
                "spec.selector.matchExpressions[0].operator: Invalid value: \"Of\": \
                 not a valid selector operator",
                "spec.selector: Invalid value: ...",
            ],
        );
        check(
            json!({"template": {"spec": {"restartPolicy": "Never"}}}),
            &["spec.template.spec.restartPolicy: Unsupported value: \"Never\": \
               supported values: \"Always\""],
        );
        check(
            json!({"template": {"spec": {"activeDeadlineSeconds": 5}}}),
            &["spec.template.spec.activeDeadlineSeconds: Forbidden: \
               activeDeadlineSeconds in ReplicaSet is not Supported"],
        );
    }
}
