//! Validation of the metrics and the scaling behavior of a HorizontalPodAutoscaler of
//! `autoscaling/v2`.

use serde_json::Value;

use super::version_of;
use crate::field::{Error, ErrorList, Path};
use crate::validation::checks::{required_as, segment};
use crate::validation::core::resources::container_resource_name;
use crate::validation::numbers::{non_negative_quantity, quantity};
use crate::validation::{each, names, one_of};
use crate::value::{get, has, int_at, items, str_at};

/// Maximum period of a scaling policy, in seconds.
const PERIOD_MAX: i64 = 1800;
/// Maximum stabilization window, in seconds.
const WINDOW_MAX: i64 = 3600;
const TYPES: [&str; 5] = ["ContainerResource", "External", "Object", "Pods", "Resource"];
const SELECT: [&str; 3] = ["Disabled", "Max", "Min"];
/// The fields of metric sources in the order in which upstream validates them, with their types.
const SOURCES: [(&str, &str); 5] = [
    ("object", "Object"),
    ("external", "External"),
    ("pods", "Pods"),
    ("resource", "Resource"),
    ("containerResource", "ContainerResource"),
];

/// Validates `spec.metrics` and `spec.behavior`.
pub(super) fn metrics_and_behavior(spec: &Value, path: &Path) -> ErrorList {
    let (list, field) = (items(spec, "metrics"), path.child("metrics"));
    let mut errors: ErrorList = list
        .iter()
        .enumerate()
        .flat_map(|(index, metric)| self::metric(metric, &field.index(index)))
        .collect();
    let outside = |metric: &Value| matches!(str_at(metric, "type"), "Object" | "External");
    if int_at(spec, "minReplicas") == Some(0) && !list.iter().any(outside) {
        let text = "must specify at least one Object or External metric to support scaling to zero replicas";
        errors.push(Error::forbidden(&field, text));
    }
    for key in ["scaleUp", "scaleDown"] {
        let rules = get(get(spec, "behavior"), key);
        if rules.is_object() {
            errors.extend(scaling(rules, &path.child("behavior").child(key)));
        }
    }
    errors
}

fn metric(metric: &Value, path: &Path) -> ErrorList {
    let (kind, field) = (str_at(metric, "type"), path.child("type"));
    let mut errors = ErrorList::new();
    if kind.is_empty() {
        errors.push(Error::required(&field, "must specify a metric source type"));
    }
    errors.extend(one_of(kind, &TYPES, &field));
    let present: Vec<&str> =
        SOURCES.iter().map(|(key, _)| *key).filter(|key| has(metric, key)).collect();
    if let Some(first) = present.first() {
        errors.extend(source(get(metric, first), first, &path.child(first)));
    }
    let expected = SOURCES.iter().find(|(_, name)| *name == kind).map(|(key, _)| *key);
    if let Some(key) = expected.filter(|key| !has(metric, key)) {
        let text = "must populate information for the given metric source";
        errors.push(Error::required(&path.child(key), text));
    }
    if present.len() > 1 {
        for key in present.iter().filter(|key| Some(**key) != expected) {
            let text = "must populate the given metric source only";
            errors.push(Error::forbidden(&path.child(key), text));
        }
    }
    errors
}

fn source(source: &Value, kind: &str, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    match kind {
        "object" => {
            errors
                .extend(reference(get(source, "describedObject"), &path.child("describedObject")));
            errors.extend(identifier(source, path));
        }
        "external" | "pods" => errors.extend(identifier(source, path)),
        _ => errors.extend(resource(source, kind == "containerResource", path)),
    }
    let (goal, field) = (get(source, "target"), path.child("target"));
    errors.extend(target(goal, &field));
    let set = |key: &str| has(goal, key);
    let missing = match kind {
        "object" if !set("value") && !set("averageValue") => {
            Some(("averageValue", "must set either a target value or averageValue"))
        }
        "external" if !set("value") && !set("averageValue") => {
            Some(("averageValue", "must set either a target value for metric or a per-pod target"))
        }
        "pods" if !set("averageValue") => {
            Some(("averageValue", "must specify a positive target averageValue"))
        }
        "resource" | "containerResource" if !set("averageUtilization") && !set("averageValue") => {
            Some((
                "averageUtilization",
                "must set either a target raw value or a target utilization",
            ))
        }
        _ => None,
    };
    errors.extend(missing.map(|(key, text)| Error::required(&field.child(key), text)));
    let both = match kind {
        "external" if set("value") && set("averageValue") => {
            Some(("value", "may not set both a target value for metric and a per-pod target"))
        }
        "resource" | "containerResource" if set("averageUtilization") && set("averageValue") => {
            Some(("averageValue", "may not set both a target raw value and a target utilization"))
        }
        _ => None,
    };
    errors.extend(both.map(|(key, text)| Error::forbidden(&field.child(key), text)));
    errors
}

fn reference(reference: &Value, path: &Path) -> ErrorList {
    let mut errors = required_as(reference, "kind", path, segment);
    errors.extend(required_as(reference, "name", path, segment));
    errors.extend(version_of(reference, &path.child("apiVersion"), true));
    errors
}

fn identifier(source: &Value, path: &Path) -> ErrorList {
    let (name, field) = (str_at(get(source, "metric"), "name"), path.child("metric").child("name"));
    if name.is_empty() {
        return vec![Error::required(&field, "must specify a metric name")];
    }
    each(&field, name, segment(name)).collect()
}

fn resource(source: &Value, container: bool, path: &Path) -> ErrorList {
    let (name, field) = (str_at(source, "name"), path.child("name"));
    let mut errors = if name.is_empty() {
        vec![Error::required(&field, "must specify a resource name")]
    } else if container {
        container_resource_name(name, &field)
    } else {
        ErrorList::new()
    };
    if container {
        let (name, field) = (str_at(source, "container"), path.child("container"));
        if name.is_empty() {
            errors.push(Error::required(&field, "must specify a container"));
        } else {
            errors.extend(each(&field, name, names::dns1123_label(name)));
        }
    }
    errors
}

fn target(target: &Value, path: &Path) -> ErrorList {
    let (kind, field) = (str_at(target, "type"), path.child("type"));
    let mut errors = ErrorList::new();
    if kind.is_empty() {
        errors.push(Error::required(&field, "must specify a metric target type"));
    }
    if !matches!(kind, "Utilization" | "Value" | "AverageValue") {
        let text = "must be either Utilization, Value, or AverageValue";
        errors.push(Error::invalid(&field, kind, text));
    }
    for key in ["value", "averageValue"] {
        if quantity(get(target, key)).is_some_and(|amount| amount.sign() != 1) {
            errors.push(Error::invalid(
                &path.child(key),
                get(target, key).clone(),
                "must be positive",
            ));
        }
    }
    if let Some(share) = int_at(target, "averageUtilization").filter(|share| *share < 1) {
        let field = path.child("averageUtilization");
        errors.push(Error::invalid(&field, share, "must be greater than 0"));
    }
    errors
}

fn scaling(rules: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let field = path.child("stabilizationWindowSeconds");
    match int_at(rules, "stabilizationWindowSeconds") {
        Some(window) if window < 0 => {
            let text = "must be greater than or equal to zero";
            errors.push(Error::invalid(&field, window, text));
        }
        Some(window) if window > WINDOW_MAX => {
            let text = format!("must be less than or equal to {WINDOW_MAX}");
            errors.push(Error::invalid(&field, window, text));
        }
        _ => {}
    }
    let select = get(rules, "selectPolicy").as_str();
    errors.extend(select.and_then(|s| one_of(s, &SELECT, &path.child("selectPolicy"))));
    let (policies, field) = (items(rules, "policies"), path.child("policies"));
    if policies.is_empty() {
        errors.push(Error::required(&field, "must specify at least one Policy"));
    }
    for (index, policy) in policies.iter().enumerate() {
        errors.extend(self::policy(policy, &field.index(index)));
    }
    if has(rules, "tolerance") {
        errors.extend(non_negative_quantity(get(rules, "tolerance"), &path.child("tolerance")));
    }
    errors
}

fn policy(policy: &Value, path: &Path) -> ErrorList {
    let mut errors: ErrorList =
        one_of(str_at(policy, "type"), &["Percent", "Pods"], &path.child("type"))
            .into_iter()
            .collect();
    for key in ["value", "periodSeconds"] {
        let number = int_at(policy, key).unwrap_or_default();
        if number <= 0 {
            errors.push(Error::invalid(&path.child(key), number, "must be greater than zero"));
        } else if key == "periodSeconds" && number > PERIOD_MAX {
            let text = format!("must be less than or equal to {PERIOD_MAX}");
            errors.push(Error::invalid(&path.child(key), number, text));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn bodies(spec: Value) -> Vec<String> {
        let errors = metrics_and_behavior(&spec, &Path::new("spec"));
        errors.iter().map(|e| format!("{}: {}", e.field, e.body())).collect()
    }

    #[test]
    fn metrics_say_what_and_how_much() {
        assert_eq!(
            bodies(
                json!({"metrics": [{"type": "Resource", "resource": {"target": {"type": "Utilization"}}}]})
            ),
            [
                "spec.metrics[0].resource.name: Required value: must specify a resource name",
                "spec.metrics[0].resource.target.averageUtilization: Required value: must set either a target raw value or a target utilization",
            ]
        );
        assert_eq!(
            bodies(json!({"metrics": [{"type": "Pods"}]})),
            [
                "spec.metrics[0].pods: Required value: must populate information for the given metric source"
            ]
        );
    }

    #[test]
    fn policies_have_a_period() {
        assert_eq!(
            bodies(
                json!({"behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 1801}]}}})
            ),
            [
                "spec.behavior.scaleUp.policies[0].periodSeconds: Invalid value: 1801: must be less than or equal to 1800"
            ]
        );
        assert_eq!(
            bodies(json!({"behavior": {"scaleDown": {}}})),
            ["spec.behavior.scaleDown.policies: Required value: must specify at least one Policy"]
        );
    }
}
