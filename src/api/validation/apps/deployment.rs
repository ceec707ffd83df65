//! Validation of deployments.

use serde_json::Value;

use super::{counters, selector_and_template};
use crate::field::{Error, ErrorList, Path};
use crate::validation::immutable_as;
use crate::validation::numbers::{
    int_or_percent_value, non_negative, non_negative_int_or_percent, not_more_than_100_percent,
};
use crate::value::{get, int_at, str_at};

/// Validates a new deployment (`ValidateDeployment`).
pub fn validate(object: &Value) -> ErrorList {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let mut errors: ErrorList = non_negative(spec, "replicas", &path).into_iter().collect();
    errors.extend(selector_and_template(spec, &path, "deployment"));
    errors.extend(strategy(get(spec, "strategy"), &path.child("strategy")));
    errors.extend(non_negative(spec, "minReadySeconds", &path));
    errors.extend(non_negative(spec, "revisionHistoryLimit", &path));
    if let Some(deadline) = int_at(spec, "progressDeadlineSeconds") {
        errors.extend(non_negative(spec, "progressDeadlineSeconds", &path));
        if deadline <= int_at(spec, "minReadySeconds").unwrap_or_default() {
            let field = path.child("progressDeadlineSeconds");
            errors.push(Error::invalid(&field, deadline, "must be greater than minReadySeconds"));
        }
    }
    errors
}

fn strategy(strategy: &Value, path: &Path) -> ErrorList {
    let (rolling, field) = (get(strategy, "rollingUpdate"), path.child("rollingUpdate"));
    match str_at(strategy, "type") {
        "Recreate" if rolling.is_object() => {
            vec![Error::forbidden(
                &field,
                "may not be specified when strategy `type` is 'Recreate'",
            )]
        }
        "Recreate" => Vec::new(),
        "RollingUpdate" if rolling.is_object() => rolling_update(rolling, &field),
        "RollingUpdate" => {
            vec![Error::required(&field, "this should be defaulted and never be nil")]
        }
        _ => {
            let error =
                Error::not_supported(path, strategy.clone(), &["Recreate", "RollingUpdate"]);
            vec![error.printed_as("DeploymentStrategy")]
        }
    }
}

/// Validates `rollingUpdate` of a deployment (`ValidateRollingUpdateDeployment`).
fn rolling_update(rolling: &Value, path: &Path) -> ErrorList {
    let mut errors = non_negative_int_or_percent(rolling, "maxUnavailable", path);
    errors.extend(non_negative_int_or_percent(rolling, "maxSurge", path));
    let [unavailable, surge] = ["maxUnavailable", "maxSurge"].map(|key| get(rolling, key));
    if int_or_percent_value(unavailable) == 0 && int_or_percent_value(surge) == 0 {
        errors.push(Error::invalid(
            &path.child("maxUnavailable"),
            unavailable.clone(),
            "may not be 0 when `maxSurge` is 0",
        ));
    }
    errors.extend(not_more_than_100_percent(rolling, "maxUnavailable", path));
    errors
}

/// Validates an update of a deployment (`ValidateDeploymentUpdate`).
pub fn validate_change(object: &Value, old: &Value) -> ErrorList {
    let mut errors = validate(object);
    let [new, was] = [object, old].map(|o| get(get(o, "spec"), "selector"));
    errors.extend(immutable_as(new, was, &Path::new("spec").child("selector"), "*LabelSelector"));
    errors
}

/// Validates a status update (`ValidateDeploymentStatusUpdate`).
pub fn validate_subresource(subresource: &str, object: &Value, old: &Value) -> ErrorList {
    if subresource != "status" {
        return Vec::new();
    }
    let (status, path) = (get(object, "status"), Path::new("status"));
    const MORE: &str = "cannot be greater than status.replicas";
    let keys = [
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "terminatingReplicas",
        "collisionCount",
    ];
    let bounds = [
        ("updatedReplicas", "replicas", MORE),
        ("readyReplicas", "replicas", MORE),
        ("availableReplicas", "replicas", MORE),
        ("availableReplicas", "readyReplicas", "cannot be greater than readyReplicas"),
    ];
    let mut errors = counters(status, &keys, &bounds, &path);
    errors.extend(collisions(status, get(old, "status"), &path));
    errors
}

/// Rejects a decrease or the removal of `collisionCount`.
pub(super) fn collisions(status: &Value, old: &Value, path: &Path) -> Option<Error> {
    let [new, was] = [status, old].map(|s| int_at(s, "collisionCount"));
    let is_less = was.is_some_and(|was| new.is_none_or(|new| new < was));
    let (field, new) = (path.child("collisionCount"), new.unwrap_or_default());
    is_less.then(|| Error::invalid(&field, new, "cannot be decremented"))
}
