//! Converts the replicas of a workload or custom resource to a Scale and back.

use api::Status;
use api::selector::LabelSelector;
use serde_json::{Value, json};

use super::{Resource, metadata};
use crate::crd;
use crate::response::status;

/// The Scale of an object, and whether the object has a replica count.
///
/// # Errors
/// 500 when a custom resource does not have numbers at the paths of its definition.
pub(crate) fn scale_and_count(row: &Resource, object: &Value) -> Result<(Value, bool), Status> {
    match &row.spec.custom {
        Some(kind) => {
            crd::scale::of(kind, object).map_err(|e| status::unmapped(500, e.to_string()))
        }
        None => Ok((scale_of_workload(row, object), true)),
    }
}

/// The Scale of an object.
///
/// # Errors
/// As [`scale_and_count`].
pub(crate) fn scale_of(row: &Resource, object: &Value) -> Result<Value, Status> {
    scale_and_count(row, object).map(|(scale, _)| scale)
}

/// The Scale of a workload.
fn scale_of_workload(row: &Resource, object: &Value) -> Value {
    let mut shown = serde_json::Map::new();
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        let text = metadata::text(object, field);
        if !text.is_empty() {
            shown.insert(field.into(), text.into());
        }
    }
    let number = |path: &str| object.pointer(path).and_then(Value::as_i64).unwrap_or(0);
    let mut status = json!({"replicas": number("/status/replicas")});
    let selector = selector_text(row, object);
    if let Some(map) = status.as_object_mut().filter(|_| !selector.is_empty()) {
        map.insert("selector".into(), selector.into());
    }
    let mut spec = json!({});
    if let Some(map) = spec.as_object_mut().filter(|_| number("/spec/replicas") != 0) {
        map.insert("replicas".into(), number("/spec/replicas").into());
    }
    json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": shown, "spec": spec, "status": status})
}

/// Sets the replica count of an object to that of a Scale.
///
/// # Errors
/// 500 when the path of the definition leads through a value that is not a map.
pub(crate) fn set_replicas(
    row: &Resource,
    object: &mut Value,
    scale: &Value,
) -> Result<(), Status> {
    let replicas = scale.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(0);
    if let Some(kind) = &row.spec.custom {
        return crd::scale::set_replicas(kind, object, replicas)
            .map_err(|e| status::unmapped(500, e.to_string()));
    }
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert("replicas".into(), replicas.into());
    }
    Ok(())
}

/// The selector as a string; the selector of a replication controller is a plain map.
fn selector_text(row: &Resource, object: &Value) -> String {
    let selector = object.pointer("/spec/selector");
    if &*row.spec.gvk.kind == "ReplicationController" {
        let empty = serde_json::Map::new();
        return LabelSelector::from_map(selector.and_then(Value::as_object).unwrap_or(&empty))
            .to_string();
    }
    LabelSelector::from_value(selector).map(|s| s.to_string()).unwrap_or_default()
}
