//! RFC 6902 JSON Patch and RFC 7386 merge patch, with the deviations and the limits of upstream's
//! implementation.
//!
//! Upstream's library accepts negative array indices, limits the bytes that `copy` produces and
//! keeps nulls in arrays. The crates for both RFCs do not, so this module implements the patches.

use serde_json::{Map, Value};

use super::gotext::json_kind;
use super::{MAX_JSON_PATCH_COPY_BYTES, MAX_JSON_PATCH_OPERATIONS, bad_request, unprocessable};
use crate::Status;

/// Applies a decoded JSON patch.
///
/// # Errors
/// 400 when the patch is not a list of objects, 413 above [`MAX_JSON_PATCH_OPERATIONS`], 422 when
/// it does not apply.
pub fn json_patch(mut document: Value, patch: &Value) -> Result<Value, Box<Status>> {
    let wrong = |what: &Value| {
        bad_request(format!(
            "error decoding patch: json: cannot unmarshal {} into Go value of type []handlers.jsonPatchOp",
            json_kind(what)
        ))
    };
    let operations = match patch {
        Value::Array(list) => list.as_slice(),
        Value::Null => &[],
        other => return Err(wrong(other)),
    };
    if let Some(other) = operations.iter().find(|o| !o.is_object() && !o.is_null()) {
        return Err(bad_request(format!(
            "error decoding patch: json: cannot unmarshal {} into Go value of type handlers.jsonPatchOp",
            json_kind(other)
        )));
    }
    for (operation, name) in operations.iter().flat_map(|o| ["op", "path", "from"].map(|n| (o, n)))
    {
        if let Some(other) = operation.get(name).filter(|v| !v.is_string() && !v.is_null()) {
            return Err(bad_request(format!(
                "error decoding patch: json: cannot unmarshal {} into Go struct field jsonPatchOp.{name} of type string",
                json_kind(other)
            )));
        }
    }
    if operations.len() > MAX_JSON_PATCH_OPERATIONS {
        let text = format!(
            "Request entity too large: The allowed maximum operations in a JSON patch is {MAX_JSON_PATCH_OPERATIONS}, got {}",
            operations.len()
        );
        return Err(Box::new(Status::failure(413, "RequestEntityTooLarge", text)));
    }
    let mut copied = 0_usize;
    for operation in operations {
        step(&mut document, operation, &mut copied).ok_or_else(unprocessable)?;
    }
    Ok(document)
}

/// The errors of strict field validation for a patch: members of its operations that have no
/// effect.
pub fn json_patch_strict_errors(patch: &Value) -> Vec<String> {
    let operations = patch.as_array().map(Vec::as_slice).unwrap_or_default();
    let mut out = Vec::new();
    for (i, operation) in operations.iter().enumerate() {
        for name in operation.as_object().into_iter().flat_map(Map::keys) {
            if !matches!(name.as_str(), "op" | "path" | "from" | "value") {
                out.push(format!("json patch unknown field \"[{i}].{name}\""));
            }
        }
    }
    out
}

/// Applies one operation; `None` when it does not apply.
pub(super) fn step(document: &mut Value, operation: &Value, copied: &mut usize) -> Option<()> {
    let text = |name: &str| operation.get(name).and_then(Value::as_str);
    let value = || operation.get("value").cloned().unwrap_or(Value::Null);
    let path = text("path")?;
    match text("op")? {
        "add" => add(document, path, value()),
        "remove" => remove(document, path).map(|_| ()),
        "replace" if path.is_empty() => {
            let value = value();
            (value.is_object() || value.is_array()).then(|| *document = value)
        }
        "replace" => {
            // Upstream's library sets an absent member of an object without an error.
            match locate(document, path)? {
                (Value::Object(map), key) => drop(map.insert(key, value())),
                (Value::Array(list), key) => {
                    let at = index(&key, list.len())?;
                    *list.get_mut(at)? = value();
                }
                _ => return None,
            }
            Some(())
        }
        "move" => {
            let value = remove(document, text("from")?)?;
            add(document, path, value)
        }
        "copy" => {
            let value = match locate(document, text("from")?)? {
                (Value::Object(map), key) => map.get(&key).cloned().unwrap_or_default(),
                (Value::Array(list), key) => {
                    let at = index(&key, list.len())?;
                    list.get(at)?.clone()
                }
                _ => return None,
            };
            *copied = copied.saturating_add(serde_json::to_string(&value).ok()?.len());
            if *copied > MAX_JSON_PATCH_COPY_BYTES {
                return None;
            }
            add(document, path, value)
        }
        "test" => {
            let expected = operation.get("value").unwrap_or(&Value::Null);
            if path.is_empty() {
                return (document == expected).then_some(());
            }
            match locate(document, path)? {
                (Value::Object(map), key) => {
                    (map.get(&key).unwrap_or(&Value::Null) == expected).then_some(())
                }
                (Value::Array(list), key) => {
                    let at = index(&key, list.len())?;
                    (list.get(at)? == expected).then_some(())
                }
                _ => None,
            }
        }
        _ => None,
    }
}

/// The container of the value that a JSON pointer references, and the pointer's last element.
pub(super) fn locate<'a>(document: &'a mut Value, path: &str) -> Option<(&'a mut Value, String)> {
    let (parents, last) = path.rsplit_once('/')?;
    let mut here = document;
    for part in parents.split('/').skip(1) {
        let part = unescape(part);
        here = match here {
            Value::Object(map) => map.get_mut(&part)?,
            Value::Array(list) => {
                let at = index(&part, list.len())?;
                list.get_mut(at)?
            }
            _ => return None,
        };
    }
    Some((here, unescape(last)))
}

fn add(document: &mut Value, path: &str, value: Value) -> Option<()> {
    match locate(document, path)? {
        (Value::Object(map), key) => {
            map.insert(key, value);
        }
        (Value::Array(list), key) if key == "-" => list.push(value),
        (Value::Array(list), key) => {
            let at = index(&key, list.len() + 1)?;
            if at > list.len() {
                return None;
            }
            list.insert(at, value);
        }
        _ => return None,
    }
    Some(())
}

fn remove(document: &mut Value, path: &str) -> Option<Value> {
    match locate(document, path)? {
        (Value::Object(map), key) => map.remove(&key),
        (Value::Array(list), key) => {
            let at = index(&key, list.len())?;
            (at < list.len()).then(|| list.remove(at))
        }
        _ => None,
    }
}

/// Parses an array index; a negative index counts from the end of an array of `len` elements.
fn index(text: &str, len: usize) -> Option<usize> {
    let at: i64 = text.parse().ok()?;
    match usize::try_from(at) {
        Ok(at) => Some(at),
        Err(_) => len.checked_sub(usize::try_from(at.unsigned_abs()).ok()?),
    }
}

fn unescape(part: &str) -> String {
    if part.contains('~') { part.replace("~1", "/").replace("~0", "~") } else { part.to_owned() }
}

/// Applies a decoded merge patch.
///
/// # Errors
/// 400 when the patch is not an object.
pub fn merge_patch(document: Value, patch: Value) -> Result<Value, Box<Status>> {
    match (document, patch) {
        (Value::Object(mut document), Value::Object(patch)) => {
            merge(&mut document, patch);
            Ok(Value::Object(document))
        }
        (_, Value::Null | Value::Object(_)) => Err(bad_request("Invalid JSON Patch")),
        (_, other) => {
            let kind = json_kind(&other);
            Err(bad_request(format!(
                "error decoding patch: json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"
            )))
        }
    }
}

fn merge(document: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (key, mut value) in patch {
        if value.is_null() {
            document.remove(&key);
            continue;
        }
        match (document.get_mut(&key), value) {
            (Some(Value::Object(have)), Value::Object(want)) => merge(have, want),
            // Upstream keeps nulls in a value that is not an object and that replaces an object.
            (Some(slot @ Value::Object(_)), want) => *slot = want,
            (_, want) => {
                value = want;
                prune_nulls(&mut value);
                document.insert(key, value);
            }
        }
    }
}

/// Removes null members of objects, including objects in arrays; null elements of arrays are kept.
fn prune_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null());
            map.values_mut().for_each(prune_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(prune_nulls),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn applies_operations() {
        let doc = json!({"metadata":{"labels":{"z":"y"}},"spec":{"replicas":2,"l":[1,2,3]}});
        let patch = json!([
            {"op":"test","path":"/spec/replicas","value":2},
            {"op":"replace","path":"/spec/replicas","value":4},
            {"op":"add","path":"/metadata/labels/q~1r","value":"s"},
            {"op":"copy","from":"/metadata/labels/z","path":"/metadata/labels/zz"},
            {"op":"move","from":"/metadata/labels/zz","path":"/metadata/labels/zzz"},
            {"op":"remove","path":"/spec/l/-1"},
            {"op":"add","path":"/spec/l/-","value":9},
            {"op":"test","path":"/spec/absent","value":null},
            {"op":"replace","path":"/spec/fresh","value":5},
        ]);
        let want = json!({"metadata":{"labels":{"z":"y","q/r":"s","zzz":"y"}},"spec":{"replicas":4,"l":[1,2,9],"fresh":5}});
        assert_eq!(json_patch(doc, &patch).unwrap(), want);
    }

    #[test]
    fn answers_422_without_a_reason_when_it_does_not_apply() {
        for patch in [
            json!([{"op":"test","path":"/spec/replicas","value":77}]),
            json!([{"op":"remove","path":"/spec/nothing"}]),
            json!([{"op":"fly","path":"/spec"}]),
            json!([{"op":"add","path":"/spec/l/4","value":1}]),
        ] {
            let e = json_patch(json!({"spec":{"replicas":1,"l":[]}}), &patch).unwrap_err();
            assert_eq!((e.code, e.reason.as_str()), (422, "Invalid"), "{patch}");
            assert_eq!(e.message, "the server rejected our request due to an error in our request");
        }
    }

    #[test]
    fn refuses_what_is_no_list_and_too_much() {
        let e = json_patch(json!({}), &json!({"not":"list"})).unwrap_err();
        assert_eq!(
            e.message,
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"
        );
        assert_eq!(e.code, 400);
        let many = Value::Array(vec![json!({"op":"test","path":"","value":{}}); 10_001]);
        let e = json_patch(json!({}), &many).unwrap_err();
        assert_eq!(e.code, 413);
        assert!(
            e.message
                .ends_with("The allowed maximum operations in a JSON patch is 10000, got 10001"),
            "{}",
            e.message
        );
        // The limit of a request body applies to the total size of copied values.
        let mut bomb = vec![json!({"op":"add","path":"/a","value":"x".repeat(1000)})];
        bomb.extend((0..40).map(|_| json!({"op":"copy","from":"","path":"/a"})).take(0));
        bomb.extend((0..9000).map(|i| json!({"op":"copy","from":"/a","path":format!("/b{i}")})));
        assert_eq!(json_patch(json!({}), &Value::Array(bomb)).unwrap_err().code, 422);
    }

    #[test]
    fn merges_and_prunes() {
        let doc = json!({"metadata":{"labels":{"a":"b"}},"spec":{"replicas":1,"l":[1]}});
        let patch = json!({"metadata":{"labels":{"a":null,"z":"y"}},"spec":{"replicas":2,"l":[{"x":null},null],"n":{"p":null,"q":1}}});
        let want = json!({"metadata":{"labels":{"z":"y"}},"spec":{"replicas":2,"l":[{},null],"n":{"q":1}}});
        assert_eq!(merge_patch(doc, patch).unwrap(), want);
    }

    #[test]
    fn refuses_a_merge_patch_that_is_no_object() {
        assert_eq!(merge_patch(json!({}), Value::Null).unwrap_err().message, "Invalid JSON Patch");
        let e = merge_patch(json!({}), json!([])).unwrap_err();
        assert_eq!(
            e.message,
            "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}"
        );
    }

    #[test]
    fn names_unknown_members_of_operations() {
        let patch =
            json!([{"op":"test","path":"/a","value":1},{"op":"add","path":"/b","value":1,"foo":2}]);
        assert_eq!(json_patch_strict_errors(&patch), ["json patch unknown field \"[1].foo\""]);
    }
}
