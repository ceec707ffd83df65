//! Rules of `metadata` for every kind: system fields, fields that an update cannot change, and
//! validation.

use std::collections::HashSet;

use api::field::{Error, ErrorList, Path};
use api::validation::meta;
use serde_json::{Map, Value, json};

use super::strategy::Strategy;

/// Upstream's `FieldManagerMaxLength`.
const MANAGER_LENGTH_MAX: usize = 128;
/// Longest name that `generateName` may lead to: 63 less 5 of suffix
/// (`k8s.io/apiserver/pkg/storage/names`).
const GENERATED_PREFIX_MAX: usize = 58;

/// The metadata of an object, created when it is absent.
pub fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    if !object.is_object() {
        *object = json!({});
    }
    // Both branches leave an object in place, so the fallbacks are never taken.
    let map = match object {
        Value::Object(map) => map,
        _ => unreachable!("made an object above"),
    };
    let slot = map.entry("metadata").or_insert_with(|| json!({}));
    if !slot.is_object() {
        *slot = json!({});
    }
    match slot {
        Value::Object(map) => map,
        _ => unreachable!("made an object above"),
    }
}

/// A string field of `metadata`; empty when absent.
pub fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get("metadata").and_then(|m| m.get(field)).and_then(Value::as_str).unwrap_or_default()
}

/// A number field of `metadata`.
pub fn number(object: &Value, field: &str) -> Option<i64> {
    object.get("metadata").and_then(|m| m.get(field)).and_then(Value::as_i64)
}

/// `metadata.finalizers`.
pub fn finalizers(object: &Value) -> Vec<String> {
    let list = object.get("metadata").and_then(|m| m.get("finalizers")).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

/// Sets or removes `metadata.finalizers`.
pub fn set_finalizers(object: &mut Value, finalizers: &[String]) {
    let metadata = metadata_mut(object);
    if finalizers.is_empty() {
        metadata.remove("finalizers");
    } else {
        metadata.insert("finalizers".into(), json!(finalizers));
    }
}

/// The current time in the form of `metav1.Time`.
pub fn now() -> String {
    rfc3339(i64::try_from(base::clock::unix_time().as_secs()).unwrap_or(i64::MAX))
}

/// Seconds since the epoch in the form of `metav1.Time`.
pub fn rfc3339(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds)
        .unwrap_or_default()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string()
}

/// The seconds of a `metav1.Time`.
pub fn seconds(time: &str) -> Option<i64> {
    time.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_second)
}

/// Sets the fields that the server sets on creation; `generateName` gets its suffix.
pub fn fill_on_create(object: &mut Value) {
    let metadata = metadata_mut(object);
    metadata.insert("uid".into(), base::clock::random_uuid().into());
    metadata.insert("creationTimestamp".into(), now().into());
    generate_name(object);
}

/// Removes the fields that a client cannot set on creation (upstream's
/// `WipeObjectMetaSystemFields`).
pub fn reset_system_fields(object: &mut Value) {
    let metadata = metadata_mut(object);
    for field in
        ["creationTimestamp", "uid", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"]
    {
        metadata.remove(field);
    }
}

/// Sets a missing name to `generateName` with a suffix; returns whether it did.
pub fn generate_name(object: &mut Value) -> bool {
    let metadata = metadata_mut(object);
    let given = |key: &str| metadata.get(key).and_then(Value::as_str).filter(|s| !s.is_empty());
    let Some(prefix) = given("generateName").filter(|_| given("name").is_none()) else {
        return false;
    };
    let end = prefix
        .char_indices()
        .map(|(at, c)| at + c.len_utf8())
        .take_while(|end| *end <= GENERATED_PREFIX_MAX)
        .last()
        .unwrap_or(0);
    let name =
        format!("{}{}", prefix.get(..end).unwrap_or_default(), base::clock::random_suffix(5));
    metadata.insert("name".into(), name.into());
    true
}

/// Restores the fields of `metadata` that an update cannot change.
pub fn keep_on_update(object: &mut Value, old: &Value) {
    let old = old.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    let metadata = metadata_mut(object);
    let absent = |metadata: &Map<String, Value>, key: &str| {
        metadata.get(key).is_none_or(|v| v.is_null() || v.as_str() == Some(""))
    };
    if absent(metadata, "uid") {
        copy(metadata, &old, "uid");
    }
    for key in ["creationTimestamp", "deletionTimestamp"] {
        if old.get(key).is_some_and(|v| !v.is_null()) {
            copy(metadata, &old, key);
        }
    }
    if absent(metadata, "deletionGracePeriodSeconds") {
        copy(metadata, &old, "deletionGracePeriodSeconds");
    }
    metadata.remove("selfLink");
}

/// Restores the generation of the stored object, before the strategy increments it.
pub fn keep_generation(object: &mut Value, old: &Value) {
    let generation = number(old, "generation");
    let metadata = metadata_mut(object);
    match generation {
        Some(generation) if generation != 0 => {
            metadata.insert("generation".into(), generation.into())
        }
        _ => metadata.remove("generation"),
    };
}

fn copy(metadata: &mut Map<String, Value>, old: &Map<String, Value>, key: &str) {
    match old.get(key) {
        Some(value) => metadata.insert(key.to_owned(), value.clone()),
        None => metadata.remove(key),
    };
}

/// Errors of the metadata of a new object, in upstream's order.
pub fn validate(object: &Value, namespaced: bool, strategy: &dyn Strategy) -> ErrorList {
    let path = Path::new("metadata");
    let mut errors = Vec::new();
    for (field, prefix) in [("generateName", true), ("name", false)] {
        let name = text(object, field);
        if !name.is_empty() {
            let texts = strategy.validate_name(name, prefix);
            errors.extend(texts.into_iter().map(|m| Error::invalid(&path.child(field), name, m)));
        }
    }
    // The strategy has validated the form of the name above.
    errors.extend(meta::validate_create(object, namespaced, |_, _| Vec::new()));
    errors
}

/// Errors of changed metadata, in upstream's order: first those of the new metadata, then those of
/// the change.
pub fn validate_update(object: &Value, old: &Value, namespaced: bool) -> ErrorList {
    let mut errors = meta::validate_create(object, namespaced, path_segment);
    errors.extend(meta::validate_update(object, old));
    errors
}

/// Removes repeated owner references and returns their uids.
pub fn dedup_owner_references(object: &mut Value) -> Vec<String> {
    let Some(list) = object.pointer_mut("/metadata/ownerReferences").and_then(Value::as_array_mut)
    else {
        return Vec::new();
    };
    let mut gone = Vec::new();
    let mut known: HashSet<Value> = HashSet::with_capacity(list.len());
    list.retain(|owner| {
        let first = known.insert(owner.clone());
        if !first {
            let uid = owner.get("uid").and_then(Value::as_str).unwrap_or_default();
            gone.push(uid.to_owned());
        }
        first
    });
    gone
}

/// Errors of a text as a segment of a URL path, which every name must be.
pub fn path_segment(name: &str, prefix: bool) -> Vec<String> {
    if !prefix && matches!(name, "." | "..") {
        return vec![format!("may not be '{name}'")];
    }
    let bad = ["/", "%"].into_iter().filter(|c| name.contains(c));
    bad.map(|c| format!("may not contain '{c}'")).collect()
}

/// Errors of the name of a field manager.
pub fn field_manager(manager: &str, path: &Path) -> ErrorList {
    let mut errors = Vec::new();
    if manager.len() > MANAGER_LENGTH_MAX {
        errors.push(Error::too_long(path, MANAGER_LENGTH_MAX));
    }
    for (at, c) in manager.char_indices().filter(|(_, c)| c.is_control()) {
        errors.push(Error::invalid(
            path,
            manager,
            format!("invalid character U+{:04X} (at position {at})", c as u32),
        ));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_owner_references_are_removed() {
        let owner = |uid: &str, kind: &str| json!({"kind": kind, "uid": uid});
        let mut object = json!({"metadata": {"ownerReferences": [
            owner("1", "A"), owner("1", "B"), owner("1", "A"), owner("2", "A"),
        ]}});
        assert_eq!(dedup_owner_references(&mut object), ["1"]);
        assert_eq!(
            object["metadata"]["ownerReferences"],
            json!([owner("1", "A"), owner("1", "B"), owner("2", "A")])
        );
        assert!(dedup_owner_references(&mut object).is_empty());
    }
}
