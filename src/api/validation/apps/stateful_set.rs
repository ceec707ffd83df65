//! Stateful sets.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{always_restarts, counters};
use crate::field::{Error, ErrorList, Path};
use crate::validation::checks::{Shape, go_json, printed};
use crate::validation::core::{claim, pod};
use crate::validation::labels::{convertible, matches, selects_all, validate_selector};
use crate::validation::numbers::{
    all_non_negative, int_or_percent_value, non_negative, non_negative_int_or_percent,
    not_more_than_100_percent,
};
use crate::validation::{IMMUTABLE, each, names};
use crate::value::{get, has, items, remove, semantic_equal, set, str_at};

/// An update strategy as upstream prints it.
const STRATEGY: Shape = Shape::Struct(&[
    ("Type", "type", Shape::Text),
    (
        "RollingUpdate",
        "rollingUpdate",
        Shape::Optional(&Shape::Struct(&[
            ("Partition", "partition", Shape::Pointer),
            ("MaxUnavailable", "maxUnavailable", Shape::Pointer),
        ])),
    ),
]);

/// A new stateful set.
pub fn validate(object: &Value) -> ErrorList {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let mut errors = ErrorList::new();
    let field = path.child("podManagementPolicy");
    match str_at(spec, "podManagementPolicy") {
        "" => errors.push(Error::required(&field, "")),
        "OrderedReady" | "Parallel" => {}
        other => errors.push(Error::invalid(&field, other, "must be 'OrderedReady' or 'Parallel'")),
    }
    errors.extend(strategy(get(spec, "updateStrategy"), &path.child("updateStrategy")));
    let retention = get(spec, "persistentVolumeClaimRetentionPolicy");
    for key in ["whenDeleted", "whenScaled"] {
        let at = path.child("persistentVolumeClaimRetentionPolicy").child(key);
        errors.extend(
            get(retention, key)
                .as_str()
                .filter(|policy| !matches!(*policy, "Retain" | "Delete"))
                .map(|policy| Error::not_supported(&at, policy, &["Retain", "Delete"])),
        );
    }
    for (index, template) in items(spec, "volumeClaimTemplates").iter().enumerate() {
        let at = path.child("volumeClaimTemplates").index(index).child("spec");
        errors.extend(claim::claim_spec(get(template, "spec"), &at));
    }
    all_non_negative(spec, &["replicas", "minReadySeconds"], &path, &mut errors);
    let start = crate::value::int_at(get(spec, "ordinals"), "start").filter(|s| *s < 0);
    errors.extend(start.map(|s| {
        Error::invalid(&path.child("ordinals.start"), s, crate::validation::numbers::NEGATIVE)
    }));
    let service = str_at(spec, "serviceName");
    if !service.is_empty() {
        errors.extend(each(&path.child("serviceName"), service, names::dns1123_label(service)));
    }
    errors.extend(selector_and_template(spec, &path));
    errors
}

fn strategy(strategy: &Value, path: &Path) -> ErrorList {
    let (rolling, field) = (get(strategy, "rollingUpdate"), path.child("rollingUpdate"));
    match str_at(strategy, "type") {
        "" => vec![Error::required(path, "")],
        "OnDelete" if rolling.is_object() => {
            vec![Error::invalid(
                &field,
                rolling.clone(),
                "only allowed for updateStrategy 'RollingUpdate'",
            )]
        }
        "OnDelete" => Vec::new(),
        "RollingUpdate" => {
            let mut errors: ErrorList =
                non_negative(rolling, "partition", &field).into_iter().collect();
            if has(rolling, "maxUnavailable") {
                let at = field.child("maxUnavailable");
                errors.extend(non_negative_int_or_percent(rolling, "maxUnavailable", &field));
                if int_or_percent_value(get(rolling, "maxUnavailable")) == 0 {
                    errors.push(Error::invalid(
                        &at,
                        get(rolling, "maxUnavailable").clone(),
                        "cannot be 0",
                    ));
                }
                errors.extend(not_more_than_100_percent(rolling, "maxUnavailable", &field));
            }
            errors
        }
        _ => {
            let text = "must be 'RollingUpdate' or 'OnDelete'";
            vec![printed(path, &go_json(strategy, STRATEGY), text)]
        }
    }
}

fn selector_and_template(spec: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let (selector, field) = (get(spec, "selector"), path.child("selector"));
    if selector.is_object() {
        errors.extend(validate_selector(selector, &field, false));
        if selects_all(selector) {
            let text = "empty selector is invalid for statefulset";
            let error = Error::invalid(&field, selector.clone(), text);
            errors.push(error.printed_as("LabelSelector"));
        }
    } else {
        errors.push(Error::required(&field, ""));
    }
    let mut template = get(spec, "template").clone();
    let at = path.child("template");
    let labels = get(get(&template, "metadata"), "labels").clone();
    if !convertible(selector) {
        errors.push(Error::invalid(&field, selector.clone(), ""));
    } else if !(selector.is_object() && (selects_all(selector) || matches(selector, &labels))) {
        let text = "`selector` does not match template `labels`";
        errors.push(Error::invalid(&at.child("metadata").child("labels"), labels, text));
    }
    let claims: Vec<&str> = items(spec, "volumeClaimTemplates")
        .iter()
        .map(|t| str_at(get(t, "metadata"), "name"))
        .collect();
    if let Some(own) = crate::value::object_mut(&mut template, "spec") {
        remove(own, "subdomain");
        remove(own, "hostname");
        let named: BTreeSet<&str> = claims.iter().copied().collect();
        let mut volumes: Vec<Value> = named
            .iter()
            .map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}))
            .collect();
        volumes.extend(
            items(own, "volumes").iter().filter(|v| !claims.contains(&str_at(v, "name"))).cloned(),
        );
        set(own, "volumes", volumes);
    }
    errors.extend(pod::template(&template, &at));
    errors.extend(always_restarts(
        &template,
        &at,
        "activeDeadlineSeconds in StatefulSet is not Supported",
    ));
    errors
}

/// Claims without their kind, which older objects do not state.
fn comparable(value: &Value) -> Value {
    let mut value = value.clone();
    for claim in value.as_array_mut().into_iter().flatten() {
        remove(claim, "apiVersion");
        remove(claim, "kind");
    }
    value
}

/// A changed stateful set: the identity of its pods stays.
pub fn validate_change(object: &Value, old: &Value) -> ErrorList {
    let mut errors = validate(object);
    let (new, was, path) = (get(object, "spec"), get(old, "spec"), Path::new("spec"));
    for key in ["selector", "volumeClaimTemplates", "serviceName", "podManagementPolicy"] {
        if !semantic_equal(&comparable(get(new, key)), &comparable(get(was, key))) {
            errors.push(Error::invalid(&path.child(key), get(new, key).clone(), IMMUTABLE));
        }
    }
    errors
}

/// A write to the status.
pub fn validate_subresource(subresource: &str, object: &Value, _: &Value) -> ErrorList {
    if subresource != "status" {
        return Vec::new();
    }
    const MORE: &str = "cannot be greater than status.replicas";
    let keys = [
        "replicas",
        "readyReplicas",
        "currentReplicas",
        "updatedReplicas",
        "availableReplicas",
        "observedGeneration",
        "collisionCount",
    ];
    let bounds = [
        ("readyReplicas", "replicas", MORE),
        ("currentReplicas", "replicas", MORE),
        ("updatedReplicas", "replicas", MORE),
        ("availableReplicas", "replicas", MORE),
        ("availableReplicas", "readyReplicas", "cannot be greater than status.readyReplicas"),
    ];
    counters(get(object, "status"), &keys, &bounds, &Path::new("status"))
}
