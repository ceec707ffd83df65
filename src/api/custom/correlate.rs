//! Correlation of values in a new object with values in the old object, and detection of changes
//! (`k8s.io/apiserver/pkg/cel/common`).

use std::collections::HashMap;

use serde_json::Value;

use super::node::{ListKind, Node, Type};

/// The key that identifies an item in a list of type map; `None` when a key field is missing or not
/// a scalar.
pub(super) fn key_of(item: &Value, node: &Node) -> Option<String> {
    let map = item.as_object()?;
    let mut key = String::new();
    for name in &node.list_keys {
        match map.get(&**name)? {
            Value::Null | Value::Array(_) | Value::Object(_) => return None,
            scalar => {
                key.push('\0');
                key.push_str(&scalar.to_string());
            }
        }
    }
    Some(key)
}

/// The items of an old list by key; of items with equal keys, the first one is kept.
pub(super) struct OldItems<'a>(HashMap<String, &'a Value>);

impl<'a> OldItems<'a> {
    /// Returns `None` unless the list is of type map.
    pub(super) fn of(old: Option<&'a Value>, node: &Node) -> Option<Self> {
        if node.list != Some(ListKind::Map) {
            return None;
        }
        let list = old?.as_array()?;
        let mut items = HashMap::new();
        if node.kind == Some(Type::Array) && !node.list_keys.is_empty() {
            for item in list {
                if let Some(key) = key_of(item, node) {
                    items.entry(key).or_insert(item);
                }
            }
        }
        Some(Self(items))
    }

    /// The old item with the key of the new item.
    pub(super) fn get(&self, item: &Value, node: &Node) -> Option<&'a Value> {
        self.0.get(&key_of(item, node)?).copied()
    }
}

/// The old value of a field, provided that the schema specifies the field.
pub(super) fn field<'a>(old: Option<&'a Value>, name: &str, node: &Node) -> Option<&'a Value> {
    node.field(name)?;
    old?.as_object()?.get(name)
}

/// Whether a value is equal to the old value. The order of items in a list of type map is
/// irrelevant; objects with fields that the schema does not specify count as changed, since
/// upstream does not correlate such fields.
pub(super) fn unchanged(new: &Value, old: &Value, node: &Node) -> bool {
    match (new, old) {
        (Value::Object(new), Value::Object(before)) => {
            new.len() == before.len()
                && new.iter().all(|(name, value)| {
                    let below = node.field(name);
                    below
                        .zip(before.get(name))
                        .is_some_and(|(below, old)| unchanged(value, old, below))
                })
        }
        (Value::Array(list), Value::Array(before)) => {
            if list.len() != before.len() {
                return false;
            }
            match (OldItems::of(Some(old), node), node.items.as_deref()) {
                (Some(items), Some(below)) => list.iter().all(|item| {
                    items.get(item, node).is_some_and(|old| unchanged(item, old, below))
                }),
                _ => list == before,
            }
        }
        _ => new == old,
    }
}
