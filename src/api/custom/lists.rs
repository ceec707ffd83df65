//! Detection of duplicate items in lists of type set or map (`pkg/apiserver/schema/listtype`).

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::node::{Additional, ListKind, Node};
use crate::field::{Error, ErrorList, Path};

/// Errors of all lists of type set or map within `value`.
pub(super) fn validate(value: &Value, node: &Node, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    walk(value, node, path, &mut errors);
    errors
}

fn walk(value: &Value, node: &Node, path: &Path, errors: &mut ErrorList) {
    if !node.lists_below {
        return;
    }
    match value {
        Value::Object(map) => {
            if let Some(Additional::Schema(below)) = &node.additional {
                for (name, value) in map {
                    walk(value, below, &path.key(name), errors);
                }
            }
            for (name, value) in map {
                if let Some(below) = node.properties.get(name.as_str()) {
                    walk(value, below, &path.child(name), errors);
                }
            }
        }
        Value::Array(list) => {
            match node.list {
                Some(ListKind::Set) => {
                    for index in repeated(list.iter().map(Value::to_string)) {
                        let value = list.get(index).cloned().unwrap_or_default();
                        errors.push(Error::duplicate(&path.index(index), value));
                    }
                }
                Some(ListKind::Map) => map_items(list, node, path, errors),
                _ => {}
            }
            if let Some(below) = node.items.as_deref() {
                for (index, value) in list.iter().enumerate() {
                    walk(value, below, &path.index(index), errors);
                }
            }
        }
        _ => {}
    }
}

/// The indices at which a key occurs for the second time.
fn repeated(keys: impl Iterator<Item = String>) -> Vec<usize> {
    let mut seen: HashMap<String, u32> = HashMap::new();
    let mut places = Vec::new();
    for (index, key) in keys.enumerate() {
        let times = seen.entry(key).or_insert(0);
        *times = times.saturating_add(1);
        if *times == 2 {
            places.push(index);
        }
    }
    places
}

fn map_items(list: &[Value], node: &Node, path: &Path, errors: &mut ErrorList) {
    if let Some(index) = list.iter().position(|item| !item.is_null() && !item.is_object()) {
        let value = list.get(index).cloned().unwrap_or_default();
        let text = "must be an object for an array of list-type map";
        errors.push(Error::invalid(&path.index(index), value, text));
        return;
    }
    let keys: Vec<Map<String, Value>> = list
        .iter()
        .map(|item| {
            let pairs = node
                .list_keys
                .iter()
                .filter_map(|key| Some((key.to_string(), item.get(&**key)?.clone())));
            pairs.collect()
        })
        .collect();
    let texts = keys.iter().map(|key| serde_json::to_string(key).unwrap_or_default());
    for index in repeated(texts) {
        let value = Value::Object(keys.get(index).cloned().unwrap_or_default());
        errors.push(Error::duplicate(&path.index(index), value));
    }
}
