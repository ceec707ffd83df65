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
