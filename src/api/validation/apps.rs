//! The apps group.

pub mod daemon_set;
pub mod deployment;
pub mod replica_set;
pub mod stateful_set;

use serde_json::Value;

use super::core::pod;
use super::labels::{convertible, matches, selects_all, validate_selector};
use crate::field::{Error, ErrorList, Path};
use crate::value::{get, has, int_at, str_in};

/// `spec.selector` and `spec.template`; `what` stands in upstream's text about empty selectors.
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

/// The template carries the selector's labels and runs for ever.
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

/// Counters of a status: not negative, and none above another one.
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
