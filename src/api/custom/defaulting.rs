//! Defaulting by a schema (`pkg/apiserver/schema/defaulting`).

use std::sync::Arc;

use serde_json::Value;

use super::node::{Additional, Node};
use super::pruning::{self, PruneOptions};

/// Sets the defaults of absent fields, and of null fields that are not nullable.
pub(super) fn apply(value: &mut Value, node: Option<&Node>) {
    let Some(node) = node else { return };
    match value {
        Value::Object(map) => {
            for (name, property) in &node.properties {
                let Some(default) = &property.default else { continue };
                match map.get_mut(&**name) {
                    None => {
                        map.insert(String::from(&**name), default.clone());
                    }
                    Some(old) if old.is_null() && !property.nullable => *old = default.clone(),
                    Some(_) => {}
                }
            }
            for (name, value) in map.iter_mut() {
                match (node.properties.get(name.as_str()), &node.additional) {
                    (Some(property), _) => apply(value, Some(property)),
                    (None, Some(Additional::Schema(below))) => {
                        replace_null(value, below);
                        apply(value, Some(below));
                    }
                    _ => {}
                }
            }
        }
        Value::Array(list) => {
            let Some(below) = node.items.as_deref() else { return };
            for value in list {
                replace_null(value, below);
                apply(value, Some(below));
            }
        }
        _ => {}
    }
}

fn replace_null(value: &mut Value, node: &Node) {
    if value.is_null() && !node.nullable {
        *value = node.default.clone().unwrap_or_default();
    }
}

/// Prunes the defaults with the schema itself. Defaults within the metadata of a resource are
/// excluded, since `ObjectMeta` specifies their fields.
pub(super) fn prune_defaults(node: &mut Node) {
    below(node, true);
}

fn below(node: &mut Node, resource: bool) {
    if let Some(mut default) = node.default.take() {
        pruning::prune(&mut default, Some(node), &PruneOptions::default());
        node.default = Some(default);
    }
    let resource = resource || node.embedded;
    if let Some(items) = &mut node.items {
        below(Arc::make_mut(items), false);
    }
    if let Some(Additional::Schema(more)) = &mut node.additional {
        below(Arc::make_mut(more), false);
    }
    for (name, property) in &mut node.properties {
        if !(resource && &**name == "metadata") {
            below(Arc::make_mut(property), false);
        }
    }
}
