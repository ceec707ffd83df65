//! Validation of replica sets.

use serde_json::Value;

use super::{counters, selector_and_template};
use crate::field::{ErrorList, Path};
use crate::validation::immutable_as;
use crate::validation::numbers::all_non_negative;
use crate::value::get;

/// Validates a new replica set (`ValidateReplicaSet`).
pub fn validate(object: &Value) -> ErrorList {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let mut errors = ErrorList::new();
    all_non_negative(spec, &["replicas", "minReadySeconds"], &path, &mut errors);
    errors.extend(selector_and_template(spec, &path, "deployment"));
    errors
}

/// Validates an update of a replica set (`ValidateReplicaSetUpdate`).
pub fn validate_change(object: &Value, old: &Value) -> ErrorList {
    let mut errors = validate(object);
    let [new, was] = [object, old].map(|o| get(get(o, "spec"), "selector"));
    errors.extend(immutable_as(new, was, &Path::new("spec").child("selector"), "*LabelSelector"));
    errors
}

/// Validates a status update (`ValidateReplicaSetStatusUpdate`). Replication controllers use the
/// same rules.
pub fn validate_subresource(subresource: &str, object: &Value, _: &Value) -> ErrorList {
    if subresource != "status" {
        return Vec::new();
    }
    const MORE: &str = "cannot be greater than status.replicas";
    let keys = [
        "replicas",
        "fullyLabeledReplicas",
        "readyReplicas",
        "availableReplicas",
        "observedGeneration",
        "terminatingReplicas",
    ];
    let bounds = [
        ("fullyLabeledReplicas", "replicas", MORE),
        ("readyReplicas", "replicas", MORE),
        ("availableReplicas", "replicas", MORE),
        ("availableReplicas", "readyReplicas", "cannot be greater than readyReplicas"),
    ];
    counters(get(object, "status"), &keys, &bounds, &Path::new("status"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::changed;
    use super::*;
    use crate::validation::tests::same;
    use serde_json::json;

    fn set(changes: Value) -> Value {
        changed(crate::defaults::defaulter("apps", "v1", "ReplicaSet"), changes)
    }

    /// `ValidateReplicaSetSpec` of `pkg/apis/apps/validation`.
    #[test]
    fn replicas_must_not_be_negative_and_the_selector_stays() {
        let check = |changes: Value, expected: &[&str]| same(&validate(&set(changes)), expected);
        check(json!({}), &[]);
        check(
            json!({"replicas": -1, "minReadySeconds": -1}),
            &[
                "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
                "spec.minReadySeconds: Invalid value: -1: must be greater than or equal to 0",
            ],
        );
        // Upstream names the other kind here.
        check(
            json!({"selector": {"matchLabels": null}}),
            &["spec.selector: Invalid value: {}: empty selector is invalid for deployment"],
        );
        let other = json!({"selector": {"matchLabels": {"a": null},
            "matchExpressions": [{"key": "a", "operator": "Exists"}]}});
        same(
            &validate_change(&set(other), &set(json!({}))),
            &["spec.selector: Invalid value: ..."],
        );
    }

    /// `ValidateReplicaSetStatus` of `pkg/apis/apps/validation`.
    #[test]
    fn counters_must_not_exceed_the_replicas() {
        let check = |status: Value, expected: &[&str]| {
            same(
                &validate_subresource("status", &json!({ "status": status }), &Value::Null),
                expected,
            );
        };
        check(
            json!({"replicas": 3, "fullyLabeledReplicas": 3, "readyReplicas": 2,
                "availableReplicas": 1, "observedGeneration": 2}),
            &[],
        );
        check(
            json!({"replicas": -1, "terminatingReplicas": -2, "fullyLabeledReplicas": -1,
                "readyReplicas": -1, "availableReplicas": -1}),
            &[
                "status.replicas: Invalid value: -1: must be greater than or equal to 0",
                "status.fullyLabeledReplicas: Invalid value: -1: \
                 must be greater than or equal to 0",
                "status.readyReplicas: Invalid value: -1: must be greater than or equal to 0",
                "status.availableReplicas: Invalid value: -1: must be greater than or equal to 0",
                "status.terminatingReplicas: Invalid value: -2: \
                 must be greater than or equal to 0",
            ],
        );
        check(
            json!({"replicas": 1, "fullyLabeledReplicas": 2}),
            &["status.fullyLabeledReplicas: Invalid value: 2: \
               cannot be greater than status.replicas"],
        );
        check(
            json!({"replicas": 4, "readyReplicas": 1, "availableReplicas": 3}),
            &["status.availableReplicas: Invalid value: 3: cannot be greater than readyReplicas"],
        );
    }
}
