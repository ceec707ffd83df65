//! Removal of fields that a schema does not specify (`pkg/apiserver/schema/pruning`), and of null
//! fields that are not nullable.

use std::fmt::Write;

use serde_json::Value;
use sorting::CompactSort as _;

use super::node::{Additional, Node};

/// Maximum number of unknown fields that are reported.
const PATHS_MAX: usize = 1000;
/// Maximum total size of the reported paths in bytes: names can be long, and many paths can share a
/// long prefix.
const PATH_BYTES_MAX: usize = 1 << 20;

/// Options of pruning.
#[derive(Debug, Clone, Copy, Default)]
pub struct PruneOptions {
    /// The value is a resource: its `apiVersion`, `kind` and `metadata` are kept regardless of the
    /// schema.
    pub resource: bool,
    /// Return the paths of the removed fields.
    pub collect: bool,
}

fn is_meta(name: &str) -> bool {
    matches!(name, "apiVersion" | "kind" | "metadata")
}

struct Pruner {
    collect: bool,
    path: String,
    found: Vec<String>,
    bytes: usize,
}

impl Pruner {
    fn enter(&mut self, name: &str) -> usize {
        let before = self.path.len();
        if self.collect {
            if before > 0 {
                self.path.push('.');
            }
            self.path.push_str(name);
        }
        before
    }

    fn enter_item(&mut self, index: usize) -> usize {
        let before = self.path.len();
        if self.collect {
            // Writing to a string cannot fail.
            let _ = write!(self.path, "[{index}]");
        }
        before
    }

    fn record(&mut self, name: &str) {
        if !self.collect || self.found.len() >= PATHS_MAX || self.bytes > PATH_BYTES_MAX {
            return;
        }
        let before = self.enter(name);
        self.bytes += self.path.len();
        self.found.push(self.path.clone());
        self.path.truncate(before);
    }

    fn prune(&mut self, value: &mut Value, node: Option<&Node>, embedded: bool) {
        if let Some(node) = node.filter(|node| node.preserve) {
            self.keep(value, node, embedded);
            return;
        }
        match (value, node) {
            (Value::Object(map), None) => {
                for name in map.keys() {
                    self.record(name);
                }
                map.clear();
            }
            (Value::Object(map), Some(node)) => map.retain(|name, value| {
                if embedded && is_meta(name) {
                    return true;
                }
                let below = match (node.properties.get(name.as_str()), &node.additional) {
                    (Some(below), _) | (None, Some(Additional::Schema(below))) => Some(&**below),
                    (None, Some(Additional::Any(_))) => None,
                    (None, None) => {
                        if !is_meta(name) || !self.path.is_empty() {
                            self.record(name);
                        }
                        return false;
                    }
                };
                let before = self.enter(name);
                self.prune(value, below, below.is_some_and(|b| b.embedded));
                self.path.truncate(before);
                true
            }),
            (Value::Array(list), node) => {
                let below = node.and_then(|node| node.items.as_deref());
                for (index, value) in list.iter_mut().enumerate() {
                    let before = self.enter_item(index);
                    self.prune(value, below, below.is_some_and(|b| b.embedded));
                    self.path.truncate(before);
                }
            }
            _ => {}
        }
    }

    /// Prunes only specified fields below `x-kubernetes-preserve-unknown-fields`.
    fn keep(&mut self, value: &mut Value, node: &Node, embedded: bool) {
        match value {
            Value::Object(map) => {
                for (name, value) in map.iter_mut() {
                    if embedded && is_meta(name) {
                        continue;
                    }
                    let below = match (node.properties.get(name.as_str()), &node.additional) {
                        (Some(below), _) | (None, Some(Additional::Schema(below))) => {
                            Some(&**below)
                        }
                        (None, Some(Additional::Any(_))) => None,
                        (None, None) => continue,
                    };
                    let before = self.enter(name);
                    self.prune(value, below, below.is_some_and(|b| b.embedded));
                    self.path.truncate(before);
                }
            }
            Value::Array(list) => {
                let Some(below) = node.items.as_deref() else { return };
                for (index, value) in list.iter_mut().enumerate() {
                    let before = self.enter_item(index);
                    self.keep(value, below, below.embedded);
                    self.path.truncate(before);
                }
            }
            _ => {}
        }
    }
}

/// Prunes `value`; without a schema, no field is specified.
pub(super) fn prune(value: &mut Value, node: Option<&Node>, options: &PruneOptions) -> Vec<String> {
    let mut pruner =
        Pruner { collect: options.collect, path: String::new(), found: Vec::new(), bytes: 0 };
    let embedded = options.resource || node.is_some_and(|node| node.embedded);
    pruner.prune(value, node, embedded);
    pruner.found.compact_sort();
    pruner.found
}

/// Removes null fields that are neither nullable nor have a default.
pub(super) fn drop_nulls(value: &mut Value, node: Option<&Node>) {
    let Some(node) = node else { return };
    match value {
        Value::Object(map) => map.retain(|name, value| {
            let below = node.field(name);
            let gone = value.is_null()
                && below.is_some_and(|below| !below.nullable && below.default.is_none());
            if !gone {
                drop_nulls(value, below.map(|b| &**b));
            }
            !gone
        }),
        Value::Array(list) => {
            for value in list {
                drop_nulls(value, node.items.as_deref());
            }
        }
        _ => {}
    }
}
