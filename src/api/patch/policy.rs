//! Patches of mutating admission policies: the merge of an apply configuration into an object, and
//! JSON Patch with upstream's error texts (upstream's `policy/mutating/patch`).

use serde_json::Value;

use super::json::{locate, step};
use super::typed::{self, InvalidObject, Kind, Ty};
use crate::schema::{Schema, TypeId};

/// An apply configuration of a mutating policy that cannot be merged; the texts are those of
/// upstream's `admission/plugin/policy/mutating/patch`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// The configuration does not fit the schema.
    #[error("failed to convert patch object to typed object: {0}")]
    Configuration(#[source] InvalidObject),
    /// The configuration sets values that can only be replaced as a whole.
    #[error(
        "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {}",
        .paths.join(", ")
    )]
    Atomic {
        /// Their paths.
        paths: Vec<String>,
    },
    /// The object does not fit the schema.
    #[error("failed to convert original object to typed object: {0}")]
    Original(#[source] InvalidObject),
}

/// Merges an apply configuration into an object; the ownership of fields does not change.
///
/// # Errors
/// Upstream's error when the configuration does not match the schema, or sets a value that can only
/// be replaced as a whole.
pub fn merge_configuration(
    schema: &Schema,
    ty: TypeId,
    live: &Value,
    configuration: &Value,
) -> Result<Value, MergeError> {
    let root = typed::root(schema, ty);
    typed::validate(schema, root, configuration, false).map_err(MergeError::Configuration)?;
    let mut atomics = Vec::new();
    find_atomics(schema, root, configuration, &mut String::new(), &mut atomics);
    if !atomics.is_empty() {
        return Err(MergeError::Atomic { paths: atomics });
    }
    typed::validate(schema, root, live, true).map_err(MergeError::Original)?;
    Ok(typed::merge(schema, root, live, configuration))
}

/// Paths of maps, structs and lists in a value that can only be replaced as a whole.
fn find_atomics(
    schema: &Schema,
    ty: Ty<'_>,
    value: &Value,
    path: &mut String,
    found: &mut Vec<String>,
) {
    let length = path.len();
    match (ty.kind, value) {
        (Kind::Struct(_) | Kind::Map(_), Value::Object(map)) => {
            if ty.atomic {
                found.push(path.clone());
            }
            // Only declared fields are inspected, not members of maps.
            let Kind::Struct(id) = ty.kind else { return };
            for (name, value) in map {
                if let Some(field) = schema.get(id).field(name) {
                    path.push('.');
                    path.push_str(name);
                    find_atomics(schema, typed::of_field(schema, field), value, path, found);
                    path.truncate(length);
                }
            }
        }
        (Kind::List(element, _), Value::Array(items)) => {
            if ty.atomic {
                found.push(path.clone());
            }
            for (index, item) in items.iter().enumerate() {
                path.push_str(&format!("[{index}]"));
                find_atomics(schema, typed::of_element(schema, element), item, path, found);
                path.truncate(length);
            }
        }
        _ => {}
    }
}

/// The first operation of a JSON patch that does not apply, with the text of upstream's library
/// (`gopkg.in/evanphx/json-patch.v4`).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct JsonPatchError(String);

/// Applies the operations of a JSON patch; returns `None` if one of its tests fails.
///
/// # Errors
///
/// The error of the first operation that does not apply.
pub fn json_patch_explained(
    mut document: Value,
    operations: &[Value],
) -> Result<Option<Value>, JsonPatchError> {
    let mut copied = 0;
    for operation in operations {
        if step(&mut document, operation, &mut copied).is_some() {
            continue;
        }
        return match explain(&mut document, operation) {
            Some(why) => Err(JsonPatchError(why)),
            None => Ok(None),
        };
    }
    Ok(Some(document))
}

/// The length of the list that contains the value at a path (`None` for an object), and the last
/// element of the path.
fn at(document: &mut Value, path: &str) -> Option<(Option<usize>, String)> {
    let (container, key) = locate(document, path)?;
    Some((container.as_array().map(Vec::len), key))
}

/// Why a path does not reference a value in its container.
fn inside(document: &mut Value, path: &str) -> String {
    match at(document, path) {
        Some((None, key)) => format!("Unable to remove nonexistent key: {key}: missing value"),
        Some((Some(_), key)) => match key.parse::<i64>() {
            Ok(index) => {
                format!("Unable to access invalid index: {index}: invalid index referenced")
            }
            Err(_) => {
                let quoted = crate::field::go_quote(&key);
                format!(
                    "value was not a proper array index: '{key}': strconv.Atoi: parsing {quoted}: invalid syntax"
                )
            }
        },
        None => "missing value".to_owned(),
    }
}

/// Why an operation does not apply; `None` for a test that finds a different value.
fn explain(document: &mut Value, operation: &Value) -> Option<String> {
    let text = |name: &str| operation.get(name).and_then(Value::as_str).unwrap_or_default();
    let (kind, path, from) = (text("op"), text("path"), text("from"));
    let holds = |document: &mut Value, path: &str| {
        let found = locate(document, path);
        found.is_some_and(|(container, _)| container.is_object() || container.is_array())
    };
    let is_array =
        |document: &mut Value, path: &str| matches!(at(document, path), Some((Some(_), _)));
    Some(match kind {
        "add" if !holds(document, path) => {
            format!("add operation does not apply: doc is missing path: \"{path}\": missing value")
        }
        "add" => format!("error in add for path: '{path}': {}", inside(document, path)),
        "remove" if !holds(document, path) => {
            format!(
                "remove operation does not apply: doc is missing path: \"{path}\": missing value"
            )
        }
        "remove" => format!("error in remove for path: '{path}': {}", inside(document, path)),
        "replace" if !holds(document, path) => {
            format!("replace operation does not apply: doc is missing path: {path}: missing value")
        }
        "replace" => {
            format!("replace operation does not apply: doc is missing key: {path}: missing value")
        }
        "move" | "copy" if !holds(document, from) => {
            format!(
                "{kind} operation does not apply: doc is missing from path: {from}: missing value"
            )
        }
        "move" | "copy" if !holds(document, path) => {
            format!(
                "{kind} operation does not apply: doc is missing destination path: {path}: missing value"
            )
        }
        "move" => format!("error in move for path: '{from}': {}", inside(document, from)),
        "copy" => format!("error in copy for from: '{from}': {}", inside(document, from)),
        "test" if !path.is_empty() && !holds(document, path) => {
            format!("test operation does not apply: is missing path: {path}: missing value")
        }
        "test" if is_array(document, path) => {
            let (length, key) = at(document, path)?;
            let index =
                key.parse::<i64>().ok().and_then(|i| usize::try_from(i.unsigned_abs()).ok());
            if index.is_some_and(|index| index < length.unwrap_or_default()) {
                return None;
            }
            format!("error in test for path: '{path}': {}", inside(document, path))
        }
        "test" => return None,
        other => format!("Unexpected kind: {other}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Gvk;
    use serde_json::json;

    fn merge(live: &Value, configuration: &Value) -> Result<Value, MergeError> {
        let schema = Schema::builtin();
        let ty = schema.kind(&Gvk::new("apps", "v1", "Deployment")).unwrap();
        merge_configuration(&schema, ty, live, configuration)
    }

    /// Cases of upstream's `smd_test.go`.
    #[test]
    fn configurations_are_merged_by_the_schema() {
        let head =
            |spec: Value| json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": spec});
        let env = |list: Value| {
            head(json!({"template": {"spec": {"containers": [{"name": "nginx", "env": list}]}}}))
        };
        assert_eq!(
            merge(&head(json!({"replicas": 1})), &head(json!({"replicas": 100}))).unwrap(),
            head(json!({"replicas": 100}))
        );
        assert_eq!(
            merge(
                &env(json!([{"name": "test", "value": "a"}])),
                &env(json!([{"name": "x", "value": "y"}]))
            )
            .unwrap(),
            env(json!([{"name": "test", "value": "a"}, {"name": "x", "value": "y"}]))
        );
        assert_eq!(
            merge(
                &env(json!([{"name": "test", "value": "a"}, {"name": "test", "value": "b"}, {"name": "foo", "value": "bar"}])),
                &env(json!([{"name": "test", "value": "c"}]))
            )
            .unwrap(),
            env(json!([{"name": "test", "value": "c"}, {"name": "foo", "value": "bar"}]))
        );
        assert_eq!(
            merge(
                &head(json!({"replicas": 1})),
                &head(json!({"selector": {"matchLabels": {"l": "v"}}}))
            )
            .unwrap_err()
            .to_string(),
            "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.selector"
        );
        let wrong =
            merge(&head(json!({})), &head(json!({"notreplicas": 1}))).unwrap_err().to_string();
        assert_eq!(
            wrong,
            "failed to convert patch object to typed object: .spec.notreplicas: field not declared in schema"
        );
    }

    /// Error texts of `gopkg.in/evanphx/json-patch.v4`.
    #[test]
    fn errors_of_operations_have_the_texts_of_the_library() {
        let document = json!({"spec": {"replicas": 1, "list": [1]}});
        let patch = |operations: Value| {
            json_patch_explained(document.clone(), operations.as_array().unwrap())
        };
        let why = |operation: Value| patch(json!([operation])).unwrap_err().to_string();
        assert_eq!(
            patch(
                json!([{"op": "test", "path": "/spec/replicas", "value": 2}, {"op": "remove", "path": "/spec"}])
            ),
            Ok(None)
        );
        assert_eq!(
            patch(
                json!([{"op": "test", "path": "/spec/replicas", "value": 1}, {"op": "remove", "path": "/spec/list"}])
            ),
            Ok(Some(json!({"spec": {"replicas": 1}})))
        );
        assert_eq!(
            why(json!({"op": "add", "path": "/none/x", "value": 1})),
            "add operation does not apply: doc is missing path: \"/none/x\": missing value"
        );
        // The library's maps return nil for an absent key, without an error.
        assert_eq!(
            patch(json!([{"op": "replace", "path": "/spec/none", "value": 1}])),
            Ok(Some(json!({"spec": {"replicas": 1, "list": [1], "none": 1}})))
        );
        assert_eq!(
            why(json!({"op": "replace", "path": "/spec/list/5", "value": 1})),
            "replace operation does not apply: doc is missing key: /spec/list/5: missing value"
        );
        assert_eq!(
            why(json!({"op": "remove", "path": "/spec/none"})),
            "error in remove for path: '/spec/none': Unable to remove nonexistent key: none: missing value"
        );
        assert_eq!(
            why(json!({"op": "add", "path": "/spec/list/5", "value": 1})),
            "error in add for path: '/spec/list/5': Unable to access invalid index: 5: invalid index referenced"
        );
        assert_eq!(why(json!({"op": "set", "path": "/spec"})), "Unexpected kind: set");
    }
}
