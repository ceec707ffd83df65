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

#[cfg(test)]
mod tests {
    use super::super::tests::changed;
    use super::*;
    use crate::validation::tests::same;
    use serde_json::json;

    fn deployment(changes: Value) -> Value {
        changed(crate::defaults::defaulter("apps", "v1", "Deployment"), changes)
    }

    /// `ValidateDeploymentSpec` of `pkg/apis/apps/validation`.
    #[test]
    fn numbers_must_not_be_negative_and_the_deadline_above_the_minimum() {
        let check =
            |changes: Value, expected: &[&str]| same(&validate(&deployment(changes)), expected);
        check(json!({}), &[]);
        check(json!({"replicas": 0, "revisionHistoryLimit": 0}), &[]);
        check(
            json!({"replicas": -1, "minReadySeconds": -2, "revisionHistoryLimit": -3}),
            &[
                "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
                "spec.minReadySeconds: Invalid value: -2: must be greater than or equal to 0",
                "spec.revisionHistoryLimit: Invalid value: -3: must be greater than or equal to 0",
            ],
        );
        check(
            json!({"progressDeadlineSeconds": 10, "minReadySeconds": 10}),
            &["spec.progressDeadlineSeconds: Invalid value: 10: \
               must be greater than minReadySeconds"],
        );
        check(json!({"progressDeadlineSeconds": 11, "minReadySeconds": 10}), &[]);
    }

    /// `ValidateDeploymentStrategy` and `ValidateRollingUpdateDeployment` of
    /// `pkg/apis/apps/validation`.
    #[test]
    fn surge_and_unavailable_must_not_both_be_zero() {
        let check = |strategy: Value, expected: &[&str]| {
            same(&validate(&deployment(json!({ "strategy": strategy }))), expected);
        };
        const AT: &str = "spec.strategy.rollingUpdate";
        check(json!({"type": "Recreate", "rollingUpdate": null}), &[]);
        check(
            json!({"type": "Recreate"}),
            &[&format!("{AT}: Forbidden: may not be specified when strategy `type` is 'Recreate'")],
        );
        check(
            json!({"rollingUpdate": null}),
            &[&format!("{AT}: Required value: this should be defaulted and never be nil")],
        );
        check(json!({"rollingUpdate": {"maxUnavailable": 0, "maxSurge": "150%"}}), &[]);
        check(
            json!({"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 0}}),
            &[&format!("{AT}.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0")],
        );
        check(
            json!({"rollingUpdate": {"maxUnavailable": "101%"}}),
            &[&format!(
                "{AT}.maxUnavailable: Invalid value: \"101%\": must not be greater than 100%"
            )],
        );
        check(
            json!({"rollingUpdate": {"maxSurge": "20Percent"}}),
            &[&format!(
                "{AT}.maxSurge: Invalid value: \"20Percent\": a valid percent string must be..."
            )],
        );
        check(
            json!({"rollingUpdate": {"maxSurge": -1}}),
            &[&format!("{AT}.maxSurge: Invalid value: -1: must be greater than or equal to 0")],
        );
    }

    /// `ValidateDeploymentUpdate` and `ValidateDeploymentStatusUpdate` of
    /// `pkg/apis/apps/validation`.
    #[test]
    fn counters_must_not_exceed_the_replicas() {
        let check = |status: Value, expected: &[&str]| {
            let new = json!({ "status": status });
            let old = json!({"status": {"collisionCount": 2}});
            same(&validate_subresource("status", &new, &old), expected);
        };
        check(json!({"replicas": 2, "readyReplicas": 2, "collisionCount": 2}), &[]);
        check(
            json!({"replicas": 1, "updatedReplicas": 2, "collisionCount": 3}),
            &["status.updatedReplicas: Invalid value: 2: cannot be greater than status.replicas"],
        );
        check(
            json!({"replicas": 3, "readyReplicas": 1, "availableReplicas": 2, "collisionCount": 2}),
            &["status.availableReplicas: Invalid value: 2: cannot be greater than readyReplicas"],
        );
        check(
            json!({"collisionCount": 1}),
            &["status.collisionCount: Invalid value: 1: cannot be decremented"],
        );
        let labels = json!({"a": "b", "c": "d"});
        let more = json!({"selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}}});
        same(
            &validate_change(&deployment(more), &deployment(json!({}))),
            &["spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"b\",\"c\":\"d\"}}: \
               field is immutable"],
        );
    }
}
