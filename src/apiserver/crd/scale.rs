//! The `scale` subresource of custom resources: a Scale whose numbers stand where the definition
//! says.
//!
//! Source: `ScaleREST` in `pkg/registry/customresource/etcd.go` of apiextensions.

use serde_json::{Map, Value, json};

use super::kind::Kind;
use super::strategy::{nested_integer, nested_text};
use crate::registry::metadata;

/// What stands for a count that the object does not have, so that a patch which sets none is told
/// (the smallest `int32`).
pub(crate) const ABSENT: i64 = i32::MIN as i64;

/// The Scale of an object, and whether the object has a count.
///
/// # Errors
/// Upstream's words when a value at one of the paths has another type.
pub(crate) fn of(kind: &Kind, object: &Value) -> Result<(Value, bool), String> {
    let Some(paths) = kind.scale() else { return Err("there is no scale subresource".into()) };
    let (wanted, found) = nested_integer(object, &paths.spec_replicas_path)?;
    let (there, _) = nested_integer(object, &paths.status_replicas_path)?;
    let selector = match paths.label_selector_path.as_deref().filter(|path| !path.is_empty()) {
        Some(path) => nested_text(object, path)?,
        None => "",
    };
    let mut shown = Map::new();
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        let text = metadata::text(object, field);
        if !text.is_empty() {
            shown.insert(field.into(), text.into());
        }
    }
    let mut status = json!({"replicas": there});
    if let Some(map) = status.as_object_mut().filter(|_| !selector.is_empty()) {
        map.insert("selector".into(), selector.into());
    }
    let spec = if wanted == 0 { json!({}) } else { json!({"replicas": wanted}) };
    let scale = json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": shown, "spec": spec, "status": status});
    Ok((scale, found))
}

fn steps(path: &str) -> Vec<String> {
    path.strip_prefix('.').unwrap_or(path).split('.').map(str::to_owned).collect()
}

/// Puts the count where it belongs; maps on the way are made.
///
/// # Errors
/// When something on the way is no map.
pub(crate) fn set_replicas(kind: &Kind, object: &mut Value, replicas: i64) -> Result<(), String> {
    let path = kind.scale().map(|paths| paths.spec_replicas_path.as_str()).unwrap_or_default();
    let mut steps = steps(path);
    let last = steps.pop().unwrap_or_default();
    let mut at = object;
    for step in &steps {
        let Value::Object(map) = at else {
            return Err(format!(
                "value cannot be set because {path} is not a map[string]interface{{}}"
            ));
        };
        at = map.entry(step.as_str()).or_insert_with(|| json!({}));
    }
    match at {
        Value::Object(map) => {
            map.insert(last, replicas.into());
            Ok(())
        }
        _ => Err(format!("value cannot be set because {path} is not a map[string]interface{{}}")),
    }
}

/// Where each version of the definition has its count, by `apiVersion`; empty where it has no
/// scale.
pub(crate) fn paths(kind: &Kind) -> Vec<(String, Vec<String>)> {
    let definition = kind.definition();
    let one = |version: &super::definition::Version| {
        let path = version.scale().map(|scale| steps(&scale.spec_replicas_path));
        (format!("{}/{}", definition.group, version.name), path.unwrap_or_default())
    };
    definition.versions.iter().map(one).collect()
}
