//! Which rules apply to a definition: all to a new one; to a changed one only those that the old
//! definition satisfies.

use serde_json::Value;

use super::{DEPTH_MAX, schema, structural};
use crate::field::Path;
use crate::value::{at, bool_at, entries, get, has, items, str_at};

/// The rules that an old definition may already violate; `true` if the rule applies.
#[derive(Debug)]
pub(super) struct Options {
    /// `conversionReviewVersions` must have a version that this server supports.
    pub review_versions: bool,
    /// Every version must have a schema.
    pub schemas: bool,
    /// Types must be known.
    pub property_types: bool,
    /// Schemas must be structural.
    pub structural: bool,
    /// Defaults must not have fields that the schema does not specify.
    pub pruned_defaults: bool,
    /// Items of lists of type set must be atomic.
    pub atomic_sets: bool,
    /// Keys of lists of type map must be required or have a default.
    pub map_keys: bool,
}

impl Options {
    /// Returns the options for a write; `old` is null for a new definition.
    pub(super) fn of(new: &Value, old: &Value) -> Self {
        let all = |rule: fn(&Value) -> bool| schemas(old).all(rule);
        let preserves = bool_at(get(new, "spec"), "preserveUnknownFields");
        let known = at(old, &["spec", "conversion", "webhook", "conversionReviewVersions"]);
        let known = known.as_array().map_or(&[][..], Vec::as_slice);
        let uses = schemas(new).any(|schema| any(schema, &extended, DEPTH_MAX));
        Self {
            review_versions: known.is_empty() || known.iter().any(|v| v == "v1" || v == "v1beta1"),
            schemas: items(get(old, "spec"), "versions")
                .iter()
                .all(|version| has(get(version, "schema"), "openAPIV3Schema")),
            property_types: all(|schema| !any(schema, &odd_type, DEPTH_MAX)),
            structural: !preserves || uses || all(is_structural),
            pruned_defaults: all(|schema| {
                !is_structural(schema) || crate::custom::has_pruned_defaults(schema)
            }),
            atomic_sets: all(|schema| !any(schema, &loose_set, DEPTH_MAX)),
            map_keys: all(|schema| !any(schema, &loose_keys, DEPTH_MAX)),
        }
    }
}

/// The schemas of all versions.
pub(super) fn schemas(definition: &Value) -> impl Iterator<Item = &Value> {
    items(get(definition, "spec"), "versions")
        .iter()
        .map(|version| at(version, &["schema", "openAPIV3Schema"]))
        .filter(|schema| schema.is_object())
}

fn is_structural(schema: &Value) -> bool {
    structural::unreadable(schema).is_none()
        && structural::errors(schema, &Path::default()).is_empty()
}

/// Whether `such` is true for a schema or a schema below it, down to `depth`.
pub(super) fn any(schema: &Value, such: &dyn Fn(&Value) -> bool, depth: usize) -> bool {
    let Some(depth) = depth.checked_sub(1) else { return false };
    if !schema.is_object() {
        return false;
    }
    such(schema)
        || ["items", "not", "additionalProperties", "additionalItems"]
            .iter()
            .any(|key| any(get(schema, key), such, depth))
        || ["allOf", "anyOf", "oneOf", "items"]
            .iter()
            .any(|key| items(schema, key).iter().any(|one| any(one, such, depth)))
        || ["properties", "patternProperties", "definitions", "dependencies"]
            .iter()
            .any(|key| entries(schema, key).any(|(_, one)| any(one, such, depth)))
}

fn odd_type(schema: &Value) -> bool {
    let types = ["", "array", "boolean", "integer", "number", "object", "string"];
    !types.contains(&str_at(schema, "type"))
}

/// Whether a schema uses a feature that requires structural schemas.
fn extended(schema: &Value) -> bool {
    has(schema, "default")
        || [
            "x-kubernetes-embedded-resource",
            "x-kubernetes-preserve-unknown-fields",
            "x-kubernetes-int-or-string",
            "x-kubernetes-list-map-keys",
            "x-kubernetes-list-type",
            "x-kubernetes-validations",
        ]
        .iter()
        .any(|key| has(schema, key))
}

fn loose_set(schema: &Value) -> bool {
    let item = get(schema, "items");
    let list = str_at(item, "x-kubernetes-list-type");
    str_at(schema, "x-kubernetes-list-type") == "set"
        && match str_at(item, "type") {
            "array" => !matches!(list, "" | "atomic"),
            "object" => str_at(item, "x-kubernetes-map-type") != "atomic",
            _ => false,
        }
}

fn loose_keys(schema: &Value) -> bool {
    let (item, list) = (get(schema, "items"), str_at(schema, "x-kubernetes-list-type"));
    let keys = items(schema, "x-kubernetes-list-map-keys");
    item.is_object()
        && matches!(list, "set" | "map")
        && !schema::whole_items(item, list, keys, &Path::default()).is_empty()
}
