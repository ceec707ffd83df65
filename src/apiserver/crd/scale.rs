//! The `scale` subresource of custom resources: a Scale whose values are at the JSON paths of the
//! definition (`ScaleREST` in `pkg/registry/customresource/etcd.go` of apiextensions).

use serde_json::{Map, Value, json};

use super::error::ScaleError;
use super::kind::Kind;
use super::strategy::{nested_integer, nested_text};
use crate::registry::metadata;

/// Replaces an absent replica count in a Scale, so that a patch that sets none can be detected (the
/// smallest `int32`).
pub(crate) const ABSENT: i64 = i32::MIN as i64;

/// The Scale of an object, and whether the object has a replica count.
///
/// # Errors
/// If a value at one of the paths has the wrong type.
pub(crate) fn of(kind: &Kind, object: &Value) -> Result<(Value, bool), ScaleError> {
    let paths = kind.scale().ok_or(ScaleError::NoSubresource)?;
    let (desired, has_count) = nested_integer(object, &paths.spec_replicas_path)?;
    let (current, _) = nested_integer(object, &paths.status_replicas_path)?;
    let selector = match paths.label_selector_path.as_deref().filter(|path| !path.is_empty()) {
        Some(path) => nested_text(object, path)?,
        None => "",
    };
    let mut scale_metadata = Map::new();
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        let text = metadata::text(object, field);
        if !text.is_empty() {
            scale_metadata.insert(field.into(), text.into());
        }
    }
    let mut status = json!({"replicas": current});
    if let Some(map) = status.as_object_mut().filter(|_| !selector.is_empty()) {
        map.insert("selector".into(), selector.into());
    }
    let spec = if desired == 0 { json!({}) } else { json!({"replicas": desired}) };
    let scale = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": scale_metadata, "spec": spec,
        "status": status,
    });
    Ok((scale, has_count))
}

/// The keys of a JSON path such as `.spec.replicas`.
fn path_keys(path: &str) -> Vec<String> {
    path.strip_prefix('.').unwrap_or(path).split('.').map(str::to_owned).collect()
}

/// Sets the replica count; absent parents are created.
///
/// # Errors
/// If a parent is not an object.
pub(crate) fn set_replicas(
    kind: &Kind,
    object: &mut Value,
    replicas: i64,
) -> Result<(), ScaleError> {
    let path = kind.scale().map(|paths| paths.spec_replicas_path.as_str()).unwrap_or_default();
    let not_a_map = || ScaleError::NotAMap { path: path.to_owned() };
    let mut keys = path_keys(path);
    let last = keys.pop().unwrap_or_default();
    let mut parent = object;
    for key in &keys {
        let Value::Object(map) = parent else { return Err(not_a_map()) };
        parent = map.entry(key.as_str()).or_insert_with(|| json!({}));
    }
    let Value::Object(map) = parent else { return Err(not_a_map()) };
    map.insert(last, replicas.into());
    Ok(())
}

/// The keys of `specReplicasPath` of each version of the definition, by `apiVersion`; empty for
/// versions without the subresource.
pub(crate) fn paths(kind: &Kind) -> Vec<(String, Vec<String>)> {
    let definition = kind.definition();
    let version_path = |version: &super::definition::Version| {
        let path = version.scale().map(|scale| path_keys(&scale.spec_replicas_path));
        (format!("{}/{}", definition.group, version.name), path.unwrap_or_default())
    };
    definition.versions.iter().map(version_path).collect()
}
