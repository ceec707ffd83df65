//! Validation of HorizontalPodAutoscalers and PodDisruptionBudgets.

mod metrics;

use serde_json::Value;

use super::checks::{required_as, segment, selector};
use super::numbers::{
    NEGATIVE, all_non_negative, non_negative, non_negative_int_or_percent,
    not_more_than_100_percent,
};
use super::{conditions, one_of};
use crate::field::{Error, ErrorList, Path};
use crate::value::{at, get, has, int_at, items, str_at};

/// The annotation in which `autoscaling/v1` stores metrics for which it has no fields.
const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";

/// Validates a new HorizontalPodAutoscaler of `autoscaling/v1`.
pub fn autoscaler(object: &Value) -> ErrorList {
    let mut errors = bounds(object);
    errors.extend(version(object));
    errors.extend(cpu(object));
    errors
}

/// Validates an update of a HorizontalPodAutoscaler of `autoscaling/v1`; the API group of the
/// target is validated only if its version or kind changes.
pub fn autoscaler_change(object: &Value, old: &Value) -> ErrorList {
    let mut errors = bounds(object);
    errors.extend(changed_version(object, old));
    errors.extend(cpu(object));
    errors
}

fn cpu(object: &Value) -> ErrorList {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let mut errors = ErrorList::new();
    let field = path.child("metrics");
    let more = has(at(object, &["metadata", "annotations"]), METRICS);
    if int_at(spec, "minReplicas") == Some(0) && !more {
        let text = "must specify at least one Object or External metric to support scaling to zero replicas";
        errors.push(Error::forbidden(&field, text));
    }
    if let Some(value) = int_at(spec, "targetCPUUtilizationPercentage").filter(|v| *v < 1) {
        let field = field.index(0).child("resource").child("target").child("averageUtilization");
        errors.push(Error::invalid(&field, value, "must be greater than 0"));
    }
    errors
}

/// Validates a new HorizontalPodAutoscaler of `autoscaling/v2`.
pub fn autoscaler_v2(object: &Value) -> ErrorList {
    let mut errors = bounds(object);
    errors.extend(version(object));
    errors.extend(metrics_and_behavior(object));
    errors
}

/// Validates an update of a HorizontalPodAutoscaler of `autoscaling/v2`.
pub fn autoscaler_v2_change(object: &Value, old: &Value) -> ErrorList {
    let mut errors = bounds(object);
    errors.extend(changed_version(object, old));
    errors.extend(metrics_and_behavior(object));
    errors
}

fn metrics_and_behavior(object: &Value) -> ErrorList {
    metrics::metrics_and_behavior(get(object, "spec"), &Path::new("spec"))
}

fn changed_version(object: &Value, old: &Value) -> Option<Error> {
    let target = |object| get(get(object, "spec"), "scaleTargetRef");
    let same = ["apiVersion", "kind"]
        .iter()
        .all(|key| str_at(target(object), key) == str_at(target(old), key));
    if same { None } else { version(object) }
}

/// Checks that the target has an API group; only a ReplicationController may have none.
fn version(object: &Value) -> Option<Error> {
    let target = get(get(object, "spec"), "scaleTargetRef");
    let field = Path::new("spec").child("scaleTargetRef").child("apiVersion");
    version_of(target, &field, str_at(target, "kind") == "ReplicationController")
}

fn version_of(target: &Value, field: &Path, bare_allowed: bool) -> Option<Error> {
    let version = str_at(target, "apiVersion");
    let slashes = version.matches('/').count();
    if slashes > 1 {
        let text = format!("unexpected GroupVersion string: {version}");
        return Some(Error::invalid(field, version, text));
    }
    let bare = slashes == 0 || version.starts_with('/');
    (bare && !bare_allowed)
        .then(|| Error::invalid(field, version, "apiVersion must specify API group"))
}

fn bounds(object: &Value) -> ErrorList {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let mut errors = ErrorList::new();
    let (min, max) = (int_at(spec, "minReplicas"), int_at(spec, "maxReplicas").unwrap_or_default());
    if let Some(min) = min.filter(|m| *m < 0) {
        errors.push(Error::invalid(&path.child("minReplicas"), min, NEGATIVE));
    }
    let field = path.child("maxReplicas");
    if max == 0 {
        errors.push(Error::required(&field, ""));
    } else if max < 0 {
        errors.push(Error::invalid(&field, max, "must be greater than or equal to 1"));
    }
    if min.is_some_and(|min| max < min) {
        let text = "must be greater than or equal to `minReplicas`";
        errors.push(Error::invalid(&field, max, text));
    }
    let (target, path) = (get(spec, "scaleTargetRef"), path.child("scaleTargetRef"));
    errors.extend(required_as(target, "kind", &path, segment));
    errors.extend(required_as(target, "name", &path, segment));
    errors
}

/// Validates an update of the status of a HorizontalPodAutoscaler.
pub fn autoscaler_status(subresource: &str, object: &Value, _: &Value) -> ErrorList {
    if subresource != "status" {
        return Vec::new();
    }
    let (status, path) = (get(object, "status"), Path::new("status"));
    let mut errors = ErrorList::new();
    for (index, condition) in items(status, "conditions").iter().enumerate() {
        let field = path.child("conditions").index(index);
        errors.extend(non_negative(condition, "observedGeneration", &field));
    }
    all_non_negative(status, &["currentReplicas", "desiredReplicas"], &path, &mut errors);
    errors
}

/// Validates an update of the status of a PodDisruptionBudget.
pub fn disruption_budget_status(subresource: &str, object: &Value, _: &Value) -> ErrorList {
    if subresource != "status" {
        return Vec::new();
    }
    let (status, path) = (get(object, "status"), Path::new("status"));
    let mut errors = conditions::validate(items(status, "conditions"), &path.child("conditions"));
    let keys = ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"];
    all_non_negative(status, &keys, &path, &mut errors);
    errors
}

/// Validates a new PodDisruptionBudget.
pub fn disruption_budget(object: &Value) -> ErrorList {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let mut errors = ErrorList::new();
    if has(spec, "minAvailable") && has(spec, "maxUnavailable") {
        let text = "minAvailable and maxUnavailable cannot be both set";
        errors.push(Error::invalid(&path, Value::Object(serde_json::Map::new()), text));
    }
    for key in ["minAvailable", "maxUnavailable"] {
        errors.extend(non_negative_int_or_percent(spec, key, &path));
        errors.extend(not_more_than_100_percent(spec, key, &path));
    }
    errors.extend(selector(spec, "selector", &path));
    let policy = get(spec, "unhealthyPodEvictionPolicy").as_str();
    let known = ["AlwaysAllow", "IfHealthyBudget"];
    let field = path.child("unhealthyPodEvictionPolicy");
    errors.extend(policy.and_then(|policy| one_of(policy, &known, &field)));
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Cases of upstream's `TestValidatePodDisruptionBudgetStatus` and of its tests of the status
    /// of autoscalers.
    #[test]
    fn statuses_count_up_from_nothing() {
        let texts =
            |errors: ErrorList| -> Vec<String> { errors.iter().map(ToString::to_string).collect() };
        let budget = json!({"status": {"disruptionsAllowed": -1, "expectedPods": 1,
            "conditions": [{"type": "A", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        assert_eq!(
            texts(disruption_budget_status("status", &budget, &budget)),
            [
                "status.conditions[0].reason: Required value",
                "status.disruptionsAllowed: Invalid value: -1: must be greater than or equal to 0",
            ]
        );
        let scaler =
            json!({"status": {"currentReplicas": -2, "conditions": [{"observedGeneration": -1}]}});
        assert_eq!(
            texts(autoscaler_status("status", &scaler, &scaler)),
            [
                "status.conditions[0].observedGeneration: Invalid value: -1: must be greater than or equal to 0",
                "status.currentReplicas: Invalid value: -2: must be greater than or equal to 0",
            ]
        );
    }

    #[test]
    fn bounds_are_ordered() {
        let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"});
        let scaler = |max: i64| json!({"spec": {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": max}});
        assert!(autoscaler(&scaler(2)).is_empty());
        assert_eq!(
            autoscaler(&scaler(1))[0].to_string(),
            "spec.maxReplicas: Invalid value: 1: must be greater than or equal to `minReplicas`"
        );
    }
}
