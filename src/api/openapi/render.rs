//! The object `paths` of an OpenAPI document, in either version.

use serde_json::{Map, Value, json};

use super::Version;
use super::operations::Operation;

const READS: &[&str] =
    &["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
const WATCHES: &[&str] = &[
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
];
const PATCHES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];
/// The media types of custom resources, which have no protobuf form and no strategic merge patch.
const CUSTOM_READS: &[&str] = &["application/json", "application/yaml"];
const CUSTOM_PATCHES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
];
const ANY: &[&str] = &["*/*"];

/// Returns the object `paths`.
pub(super) fn paths(operations: &[Operation], version: Version) -> Value {
    let mut out: Map<String, Value> = Map::new();
    for operation in operations {
        let item = out
            .entry(operation.path.as_str())
            .or_insert_with(|| path_item(&operation.path, version));
        if let Value::Object(item) = item {
            item.insert(operation.method.to_owned(), one(operation, version));
        }
    }
    Value::Object(out)
}

/// Returns the item of a path with the parameters of the path.
fn path_item(path: &str, version: Version) -> Value {
    let names: Vec<Value> = ["name", "namespace", "path"]
        .into_iter()
        .filter(|name| path.contains(&format!("{{{name}}}")))
        .map(|name| parameter(name, "path", "string", version))
        .collect();
    if names.is_empty() { json!({}) } else { json!({ "parameters": names }) }
}

fn parameter(name: &str, place: &str, ty: &str, version: Version) -> Value {
    let mut out = match version {
        Version::V2 => json!({ "in": place, "name": name, "type": ty, "uniqueItems": true }),
        Version::V3 => {
            json!({ "in": place, "name": name, "schema": { "type": ty, "uniqueItems": true } })
        }
    };
    if let (Value::Object(map), "path") = (&mut out, place) {
        map.insert("required".into(), true.into());
    }
    out
}

fn one(operation: &Operation, version: Version) -> Value {
    let produces = match operation.action {
        "connect" => ANY,
        _ if operation.custom => CUSTOM_READS,
        "list" | "watch" | "watchlist" => WATCHES,
        _ => READS,
    };
    let consumes = match (operation.patch, operation.custom) {
        (true, true) => CUSTOM_PATCHES,
        (true, false) => PATCHES,
        (false, true) => CUSTOM_READS,
        (false, false) => ANY,
    };
    let mut parameters: Vec<Value> =
        operation.query.iter().map(|(name, ty)| parameter(name, "query", ty, version)).collect();
    let mut out = json!({ "operationId": operation.id, "tags": [operation.tag] });
    let Value::Object(map) = &mut out else { return out };
    if let Some((name, required)) = &operation.body {
        match version {
            Version::V2 => {
                let mut body =
                    json!({ "in": "body", "name": "body", "schema": version.reference(name) });
                if let (Value::Object(body), true) = (&mut body, *required) {
                    body.insert("required".into(), true.into());
                }
                parameters.insert(0, body);
            }
            Version::V3 => {
                let mut body = json!({ "content": content(consumes, &version.reference(name)) });
                if let (Value::Object(body), true) = (&mut body, *required) {
                    body.insert("required".into(), true.into());
                }
                map.insert("requestBody".into(), body);
            }
        }
    }
    if !parameters.is_empty() {
        map.insert("parameters".into(), parameters.into());
    }
    map.insert("responses".into(), responses(operation, version, produces));
    if version == Version::V2 {
        map.insert("consumes".into(), json!(consumes));
        map.insert("produces".into(), json!(produces));
        map.insert("schemes".into(), json!(["https"]));
    }
    if !operation.action.is_empty() {
        map.insert("x-kubernetes-action".into(), operation.action.into());
    }
    if let Some(gvk) = &operation.gvk {
        let gvk = json!({ "group": gvk.group.as_ref(), "kind": gvk.kind.as_ref(), "version": gvk.version.as_ref() });
        map.insert("x-kubernetes-group-version-kind".into(), gvk);
    }
    out
}

/// Returns the responses of an operation by status code.
fn responses(operation: &Operation, version: Version, produces: &[&str]) -> Value {
    let mut responses = Map::new();
    for (code, name) in &operation.responses {
        let schema = name
            .as_ref()
            .map_or_else(|| json!({ "type": "string" }), |name| version.reference(name));
        let description = match code {
            201 => "Created",
            202 => "Accepted",
            _ => "OK",
        };
        let answer = match version {
            Version::V2 => json!({ "description": description, "schema": schema }),
            Version::V3 => {
                json!({ "description": description, "content": content(produces, &schema) })
            }
        };
        responses.insert(code.to_string(), answer);
    }
    responses.insert("401".into(), json!({ "description": "Unauthorized" }));
    Value::Object(responses)
}

fn content(media_types: &[&str], schema: &Value) -> Value {
    Value::Object(
        media_types.iter().map(|m| ((*m).to_owned(), json!({ "schema": schema }))).collect(),
    )
}
