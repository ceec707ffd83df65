//! Accessors for JSON objects. An absent field, null and a field of a wrong type read as the zero
//! value.

use serde_json::{Map, Value};

static NULL: Value = Value::Null;

/// Returns the field, or null.
pub fn get<'a>(value: &'a Value, key: &str) -> &'a Value {
    value.get(key).unwrap_or(&NULL)
}

/// Returns the field at a path of keys, or null.
pub fn at<'a>(value: &'a Value, path: &[&str]) -> &'a Value {
    path.iter().fold(value, |v, key| get(v, key))
}

/// Returns whether the field is present and not null.
pub fn has(value: &Value, key: &str) -> bool {
    !get(value, key).is_null()
}

/// Returns a string field, or the empty string.
pub fn str_at<'a>(value: &'a Value, key: &str) -> &'a str {
    get(value, key).as_str().unwrap_or_default()
}

/// Returns the string at a path of keys, or the empty string.
pub fn str_in<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    at(value, path).as_str().unwrap_or_default()
}

/// Returns an integer field.
pub fn int_at(value: &Value, key: &str) -> Option<i64> {
    get(value, key).as_i64()
}

/// Returns a boolean field, or false.
pub fn bool_at(value: &Value, key: &str) -> bool {
    get(value, key).as_bool().unwrap_or_default()
}

/// Returns the elements of a list field, or none.
pub fn items<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    get(value, key).as_array().map_or(&[], Vec::as_slice)
}

/// Returns the mutable elements of a list field, or none.
pub fn items_mut<'a>(value: &'a mut Value, key: &str) -> &'a mut [Value] {
    value.get_mut(key).and_then(Value::as_array_mut).map_or(&mut [], Vec::as_mut_slice)
}

/// Returns the condition of a type in the status of an object.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    let conditions = items(get(object, "status"), "conditions");
    conditions.iter().find(|condition| str_at(condition, "type") == kind)
}

/// Returns whether the status of an object has the condition of a type, and it is `True`.
pub fn is_condition_true(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some_and(|condition| str_at(condition, "status") == "True")
}

/// Returns the entries of an object field in key order, or none.
pub fn entries<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    get(value, key).as_object().into_iter().flatten()
}

/// Returns whether a field is absent, null, or an empty string, list or object.
pub fn is_empty(value: &Value, key: &str) -> bool {
    match get(value, key) {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Returns a mutable object field and creates it if it is absent. Returns `None` and changes
/// nothing if the field is not an object.
pub fn ensure_object<'a>(value: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    let field = value.as_object_mut()?.entry(key).or_insert(Value::Null);
    if field.is_null() {
        *field = Value::Object(Map::new());
    }
    field.is_object().then_some(field)
}

/// Returns a mutable field if it is an object.
pub fn object_mut<'a>(value: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    value.get_mut(key).filter(|v| v.is_object())
}

/// Sets a pointer field that is absent or null to the default.
pub fn default_to(value: &mut Value, key: &str, default: impl Into<Value>) {
    if let Some(map) = value.as_object_mut() {
        let field = map.entry(key).or_insert(Value::Null);
        if field.is_null() {
            *field = default.into();
        }
    }
}

/// Sets a string field that is absent or empty to the default.
pub fn default_str(value: &mut Value, key: &str, default: &str) {
    let field = get(value, key);
    if field.is_null() || field.as_str() == Some("") {
        set(value, key, default);
    }
}

/// Sets an integer field that is absent or zero to the default.
pub fn default_int(value: &mut Value, key: &str, default: i64) {
    if int_at(value, key).unwrap_or_default() == 0 {
        set(value, key, default);
    }
}

/// Sets a field of an object; does nothing if `value` is not an object.
pub fn set(value: &mut Value, key: &str, new: impl Into<Value>) {
    if let Some(map) = value.as_object_mut() {
        map.insert(key.to_owned(), new.into());
    }
}

/// Removes a field of an object and returns its value.
pub fn remove(value: &mut Value, key: &str) -> Option<Value> {
    value.as_object_mut().and_then(|map| map.remove(key))
}

/// Copies a field from `source` to `target`, or removes it if `source` lacks it.
pub fn restore(target: &mut Value, source: &Value, key: &str) {
    match source.get(key) {
        Some(old) => set(target, key, old.clone()),
        None => {
            remove(target, key);
        }
    }
}

/// Compares two values like upstream's `apiequality.Semantic`: null, an empty list and an empty
/// object equal absence.
pub fn semantic_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            x.iter().all(|(k, v)| semantic_equal(v, y.get(k).unwrap_or(&NULL)))
                && y.iter().all(|(k, v)| x.contains_key(k) || semantic_equal(&NULL, v))
        }
        (Value::Array(x), Value::Array(y)) => {
            x.len() == y.len() && x.iter().zip(y).all(|(p, q)| semantic_equal(p, q))
        }
        _ if a == b => true,
        _ => vacant(a) && vacant(b),
    }
}

fn vacant(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.values().all(vacant),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn absent_and_empty_are_equal() {
        assert!(semantic_equal(&json!({"a": 1, "b": []}), &json!({"a": 1, "c": {}})));
        assert!(!semantic_equal(&json!({"a": 1}), &json!({"a": 2})));
        assert!(!semantic_equal(&json!({"a": 0}), &json!({})));
    }
}
