//! Validation of stateful sets.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use sorting::CollectOrdered as _;

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

/// An update strategy in the form in which upstream prints it.
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

/// Validates a new stateful set (`ValidateStatefulSet`).
pub fn validate(object: &Value) -> ErrorList {
    checked(object, true)
}

/// Validates a stateful set. The claim templates and the service name are validated only if the
/// object is new: they are immutable, and a stored object may have invalid ones.
fn checked(object: &Value, is_new: bool) -> ErrorList {
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
    let claims = if is_new { items(spec, "volumeClaimTemplates") } else { &[] };
    for (index, template) in claims.iter().enumerate() {
        let at = path.child("volumeClaimTemplates").index(index).child("spec");
        errors.extend(claim::claim_spec(get(template, "spec"), &at));
    }
    all_non_negative(spec, &["replicas", "minReadySeconds"], &path, &mut errors);
    let start = crate::value::int_at(get(spec, "ordinals"), "start").filter(|s| *s < 0);
    errors.extend(start.map(|s| {
        Error::invalid(&path.child("ordinals.start"), s, crate::validation::numbers::NEGATIVE)
    }));
    let service = str_at(spec, "serviceName");
    if is_new && !service.is_empty() {
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
    let is_readable = convertible(selector);
    if !is_readable {
        // Upstream does not validate the template if it cannot convert the selector.
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
        let named: BTreeSet<&str> = claims.iter().copied().collect_set();
        let mut volumes: Vec<Value> = named
            .iter()
            .map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}))
            .collect();
        volumes.extend(
            items(own, "volumes").iter().filter(|v| !named.contains(str_at(v, "name"))).cloned(),
        );
        set(own, "volumes", volumes);
    }
    if is_readable {
        errors.extend(pod::template(&template, &at));
    }
    errors.extend(always_restarts(
        &template,
        &at,
        "activeDeadlineSeconds in StatefulSet is not Supported",
    ));
    errors
}

/// Returns claims without `apiVersion` and `kind`, which older objects do not have.
fn comparable(value: &Value) -> Value {
    let mut value = value.clone();
    for claim in value.as_array_mut().into_iter().flatten() {
        remove(claim, "apiVersion");
        remove(claim, "kind");
    }
    value
}

/// Validates an update of a stateful set (`ValidateStatefulSetUpdate`): the fields that determine
/// the identity of its pods are immutable.
pub fn validate_change(object: &Value, old: &Value) -> ErrorList {
    let mut errors = checked(object, false);
    let (new, was, path) = (get(object, "spec"), get(old, "spec"), Path::new("spec"));
    for key in ["selector", "volumeClaimTemplates", "serviceName", "podManagementPolicy"] {
        if !semantic_equal(&comparable(get(new, key)), &comparable(get(was, key))) {
            let error = Error::invalid(&path.child(key), get(new, key).clone(), IMMUTABLE);
            errors.push(if key == "selector" { error.printed_as("LabelSelector") } else { error });
        }
    }
    errors
}

/// Validates a status update (`ValidateStatefulSetStatusUpdate`).
pub fn validate_subresource(subresource: &str, object: &Value, old: &Value) -> ErrorList {
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
    let (status, path) = (get(object, "status"), Path::new("status"));
    let mut errors = counters(status, &keys, &bounds, &path);
    errors.extend(super::deployment::collisions(status, get(old, "status"), &path));
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    // Expected texts: `ValidateStatefulSetUpdate` and `ValidateStatefulSetStatusUpdate` of
    // pkg/apis/apps/validation.
    #[test]
    fn what_cannot_change_is_not_looked_at_again() {
        let set = |service: &str, storage: Value, selector: Value| {
            json!({"spec": {"serviceName": service, "podManagementPolicy": "OrderedReady", "replicas": 1,
                "updateStrategy": {"type": "RollingUpdate"}, "selector": {"matchLabels": selector},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst",
                    "terminationGracePeriodSeconds": 30, "containers": [{"name": "c", "image": "i", "imagePullPolicy": "Always",
                        "terminationMessagePolicy": "File"}]}},
                "volumeClaimTemplates": [{"metadata": {"name": "d"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": storage}}}]}})
        };
        let labels = json!({"a": "b"});
        let old = set("s", json!({"storage": "1Gi"}), labels.clone());
        let fields = |errors: ErrorList| -> Vec<String> {
            errors.iter().map(|e| e.field.to_string()).collect()
        };
        assert_eq!(fields(validate(&old)), [""; 0]);
        let bad = set("a\nb", json!({}), labels);
        assert_eq!(
            fields(validate(&bad)),
            ["spec.volumeClaimTemplates[0].spec.resources[storage]", "spec.serviceName"]
        );
        assert_eq!(
            fields(validate_change(&bad, &old)),
            ["spec.volumeClaimTemplates", "spec.serviceName"]
        );
        // The template is not validated if the selector cannot be converted.
        let mut unread = set("s", json!({"storage": "1Gi"}), json!({"a": "b", "a/b/c": "x"}));
        unread["spec"]["template"]["spec"]["containers"][0]["name"] = json!("");
        let told = fields(validate(&unread));
        assert!(told.iter().all(|field| field.starts_with("spec.selector")), "{told:?}");
    }

    #[test]
    fn collisions_are_counted_up() {
        let told = |new: Value, old: Value| {
            let object = |status: Value| json!({"status": status});
            let errors = validate_subresource("status", &object(new), &object(old));
            errors.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(told(json!({"collisionCount": 1}), json!({})), [""; 0]);
        let less = "status.collisionCount: Invalid value: 1: cannot be decremented";
        assert_eq!(told(json!({"collisionCount": 1}), json!({"collisionCount": 2})), [less]);
        let none = "status.collisionCount: Invalid value: 0: cannot be decremented";
        assert_eq!(told(json!({}), json!({"collisionCount": 2})), [none]);
    }
}
