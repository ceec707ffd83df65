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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn definition(schema: Value) -> Value {
        json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": schema}}]}})
    }

    /// `requireStructuralSchema`, `requireValidPropertyType`, `requireAtomicSetType` and
    /// `requireMapListKeysMapSetValidation` of `pkg/apis/apiextensions/validation`.
    #[test]
    fn rules_that_the_old_definition_broke_are_not_asked() {
        let check = |schema: Value, expected: [bool; 4]| {
            let old = definition(schema);
            let asked = Options::of(&old, &old);
            let found = [asked.property_types, asked.structural, asked.atomic_sets, asked.map_keys];
            assert_eq!(found, expected, "{old}");
        };
        let list = |kind: &str, item: Value| {
            let keys = if kind == "map" { json!(["k"]) } else { json!([]) };
            let list = json!({"type": "array", "x-kubernetes-list-type": kind, "items": item,
                "x-kubernetes-list-map-keys": keys});
            json!({"type": "object", "properties": {"l": list}})
        };
        let keyed = |required: Value| {
            json!({"type": "object", "required": required,
                "properties": {"k": {"type": "string"}}})
        };
        check(json!({"type": "object"}), [true; 4]);
        check(
            json!({"type": "object", "properties": {"p": {"type": "bool"}}}),
            [false, true, true, true],
        );
        check(list("set", json!({"type": "string"})), [true; 4]);
        check(list("set", json!({"type": "object"})), [true, true, false, true]);
        check(list("set", json!({"type": "object", "x-kubernetes-map-type": "atomic"})), [true; 4]);
        check(list("map", keyed(json!(["k"]))), [true; 4]);
        check(list("map", keyed(json!([]))), [true, true, true, false]);
    }

    /// `requireStructuralSchema` and `validateCustomResourceDefinitionSpec` of
    /// `pkg/apis/apiextensions/validation`.
    #[test]
    fn schemas_may_stay_unstructured_where_unknown_fields_are_kept() {
        let of = |preserves: bool, schema: Value| {
            let mut old = definition(schema);
            old["spec"]["preserveUnknownFields"] = json!(preserves);
            Options::of(&old, &old).structural
        };
        let untyped = || json!({"properties": {"p": {}}});
        assert!(!of(true, untyped()));
        assert!(of(false, untyped()));
        assert!(of(true, json!({"type": "object"})));
        assert!(of(true, json!({"properties": {"p": {"x-kubernetes-int-or-string": true}}})));
    }

    /// `ValidateCustomResourceDefinition` of `pkg/apis/apiextensions/validation`.
    #[test]
    fn everything_is_asked_of_a_new_definition() {
        let new = definition(json!({"properties": {"p": {"type": "bool"}}}));
        let asked = Options::of(&new, &Value::Null);
        assert!(asked.review_versions && asked.schemas && asked.property_types);
        assert!(asked.structural && asked.pruned_defaults && asked.atomic_sets && asked.map_keys);
    }

    /// `hasValidConversionReviewVersionOrEmpty` and `requireOpenAPISchema` of
    /// `pkg/apis/apiextensions/validation`.
    #[test]
    fn unknown_review_versions_and_absent_schemas_may_stay() {
        let of = |versions: Value| {
            let webhook = json!({"conversionReviewVersions": versions});
            let old = json!({"spec": {"conversion": {"webhook": webhook}, "versions": [{}]}});
            let asked = Options::of(&old, &old);
            (asked.review_versions, asked.schemas)
        };
        assert_eq!(of(json!(["v1"])), (true, false));
        assert_eq!(of(json!(["v0", "v1beta1"])), (true, false));
        assert_eq!(of(json!(["v0"])), (false, false));
        assert_eq!(of(json!([])), (true, false));
    }
}
