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
