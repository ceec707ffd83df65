//! Templates as they were: comparison of pod templates, and the ControllerRevisions of DaemonSets and StatefulSets.

use api::k8s::api::core::v1::PodTemplateSpec;
use serde_json::Value;

/// A template for comparison: without the label that the controller added, nulls, and empty lists and label maps.
pub(crate) fn comparable(template: &PodTemplateSpec, own_label: &str) -> Value {
    let mut value = serde_json::to_value(template).unwrap_or_default();
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in ["labels", "annotations"] {
            let entries = metadata.get_mut(field).and_then(Value::as_object_mut);
            if entries.is_some_and(|map| {
                map.remove(own_label);
                map.is_empty()
            }) {
                metadata.remove(field);
            }
        }
        metadata.remove("creationTimestamp");
        if metadata.is_empty() {
            value.as_object_mut().map(|v| v.remove("metadata"));
        }
    }
    drop_empty(&mut value);
    value
}

fn drop_empty(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null() && !v.as_array().is_some_and(Vec::is_empty));
            map.values_mut().for_each(drop_empty);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_empty),
        _ => {}
    }
}
