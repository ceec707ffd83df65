//! Validation of structural schemas: every field has a type outside of `allOf`, `anyOf`, `oneOf`
//! and `not`, and these only restrict fields that the schema specifies
//! (`pkg/apiserver/schema/validation.go`, `complete.go`).

use serde_json::{Value, json};
use sorting::CompactSort as _;

use super::DEPTH_MAX;
use crate::field::{Error, ErrorList, Path};
use crate::value::{bool_at, entries, get, has, is_empty, items, str_at};

const INT_OR_STRING: &str = "x-kubernetes-int-or-string";
const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
const EMBEDDED: &str = "x-kubernetes-embedded-resource";
const LIST_TYPE: &str = "x-kubernetes-list-type";
const LIST_KEYS: &str = "x-kubernetes-list-map-keys";
const MAP_TYPE: &str = "x-kubernetes-map-type";
const RULES: &str = "x-kubernetes-validations";

/// The position of a schema.
#[derive(Clone, Copy, PartialEq)]
enum Level {
    Root,
    Item,
    Field,
}

/// Returns why a schema cannot be converted to a structural one; the caller reports it only if
/// there is no other error.
pub(super) fn unreadable(schema: &Value) -> Option<String> {
    unreadable_below(schema, DEPTH_MAX)
}

fn unreadable_below(schema: &Value, depth: usize) -> Option<String> {
    let depth = depth.checked_sub(1).filter(|_| schema.is_object())?;
    for (key, name) in [
        ("id", "id"),
        ("$schema", "schema"),
        ("$ref", "$ref"),
        ("patternProperties", "patternProperties"),
        ("dependencies", "dependencies"),
        ("additionalItems", "additionalItems"),
        ("definitions", "definitions"),
    ] {
        let said = if key == "additionalItems" { has(schema, key) } else { !is_empty(schema, key) };
        if said {
            return Some(format!("OpenAPIV3Schema '{name}' is not supported"));
        }
    }
    if get(schema, "items").is_array() {
        return Some("OpenAPIV3Schema 'items' must be a schema, but is an array".into());
    }
    if get(schema, PRESERVE) == &Value::Bool(false) {
        return Some(
            "internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined"
                .into(),
        );
    }
    let alone = ["not", "items", "additionalProperties"].into_iter().map(|key| get(schema, key));
    let many = ["allOf", "anyOf", "oneOf"].into_iter().flat_map(|key| items(schema, key));
    let named = entries(schema, "properties").map(|(_, below)| below);
    alone.chain(many).chain(named).find_map(|below| unreadable_below(below, depth))
}

/// Returns all errors, sorted by their texts.
pub(super) fn errors(schema: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    invariants(schema, Level::Root, path, &mut errors, DEPTH_MAX);
    of_validation(schema, schema, path, path, &mut errors, DEPTH_MAX);
    errors.compact_sort_by_cached_key(ToString::to_string);
    errors
}

fn either() -> Value {
    json!([{"type": "integer"}, {"type": "string"}])
}

fn invariants(schema: &Value, level: Level, path: &Path, errors: &mut ErrorList, depth: usize) {
    let Some(depth) = depth.checked_sub(1) else { return };
    let (kind, at_type) = (str_at(schema, "type"), path.child("type"));
    let (embedded, preserve) = (bool_at(schema, EMBEDDED), bool_at(schema, PRESERVE));
    if kind == "array" && !has(schema, "items") {
        errors.push(Error::required(&path.child("items"), "must be specified"));
    }
    if get(schema, "items").is_object() {
        invariants(get(schema, "items"), Level::Item, &path.child("items"), errors, depth);
    }
    for (name, property) in entries(schema, "properties") {
        let field = path.child("properties").key(name);
        invariants(property, Level::Field, &field, errors, depth);
    }
    let (more, at_more) = (get(schema, "additionalProperties"), path.child("additionalProperties"));
    if !more.is_null() && level == Level::Root {
        errors.push(Error::forbidden(&at_more, "must not be used at the root"));
    }
    if more.is_object() {
        invariants(more, Level::Field, &at_more, errors, depth);
    }
    if bool_at(schema, INT_OR_STRING) {
        let text = "must be false if x-kubernetes-int-or-string is true";
        for key in [PRESERVE, EMBEDDED].into_iter().filter(|key| bool_at(schema, key)) {
            errors.push(Error::invalid(&path.child(key), true, text));
        }
    }
    let any = get(schema, "anyOf") == &either();
    let all = items(schema, "allOf").first().is_some_and(|one| get(one, "anyOf") == &either());
    validation(schema, (any, all), path, errors, depth);
    if embedded && kind != "object" {
        let text = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(if kind.is_empty() {
            Error::required(&at_type, text)
        } else {
            Error::invalid(&at_type, kind, text)
        });
    } else if kind.is_empty() && !bool_at(schema, INT_OR_STRING) && !preserve {
        let text = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.push(Error::required(&at_type, text));
    }
    if embedded && !more.is_null() {
        let text = "must not be used if x-kubernetes-embedded-resource is set";
        errors.push(Error::forbidden(&at_more, text));
    }
    if level == Level::Root && !matches!(kind, "" | "object") {
        errors.push(Error::invalid(&at_type, kind, "must be object at the root"));
    }
    metadata(schema, level, path, errors);
    if embedded && !preserve && is_empty(schema, "properties") {
        let text = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        errors.push(Error::required(&path.child("properties"), text));
    }
}

/// Checks `kind`, `apiVersion` and `metadata` of a resource schema; at the root, the schema of
/// `metadata` may only specify `name` and `generateName`.
fn metadata(schema: &Value, level: Level, path: &Path, errors: &mut ErrorList) {
    let checked = level == Level::Root || bool_at(schema, EMBEDDED);
    let (properties, path) = (get(schema, "properties"), path.child("properties"));
    for key in ["kind", "apiVersion"].into_iter().filter(|key| checked && has(properties, key)) {
        let kind = str_at(get(properties, key), "type");
        if kind != "string" {
            errors.push(Error::invalid(&path.key(key).child("type"), kind, "must be string"));
        }
    }
    if !has(properties, "metadata") {
        return;
    }
    let (meta, path) = (get(properties, "metadata"), path.key("metadata"));
    let kind = str_at(meta, "type");
    if checked && kind != "object" {
        errors.push(Error::invalid(&path.child("type"), kind, "must be object"));
    }
    if level == Level::Root {
        let names = |name: &String| matches!(name.as_str(), "name" | "generateName");
        let plain = meta.as_object().into_iter().flatten().all(|(key, value)| match key.as_str() {
            "type" | "default" => true,
            "properties" => entries(meta, "properties").all(|(name, _)| names(name)),
            key => is_empty(meta, key) || value == &Value::Bool(false),
        });
        if !plain {
            let text = "must not specify anything other than name and generateName, but metadata is implicitly specified";
            errors.push(Error::forbidden(&path, text));
        }
    }
}

/// Checks the value validations of a schema: `allOf`, `anyOf`, `oneOf`, `not` and `pattern`. `skip`
/// is whether `anyOf` of the schema, and of the first schema of its `allOf`, is the standard form
/// of int-or-string, which is not checked.
fn validation(
    schema: &Value,
    skip: (bool, bool),
    path: &Path,
    errors: &mut ErrorList,
    depth: usize,
) {
    for key in ["anyOf", "allOf", "oneOf"] {
        for (index, below) in items(schema, key).iter().enumerate() {
            let field = path.child(key).index(index);
            if key == "anyOf" && skip.0 {
                continue;
            }
            nested(below, key == "allOf" && index == 0 && skip.1, &field, errors, depth);
        }
    }
    if has(schema, "not") {
        nested(get(schema, "not"), false, &path.child("not"), errors, depth);
    }
    let pattern = str_at(schema, "pattern");
    if let Err(why) = crate::custom::check_pattern(pattern) {
        let text = format!("must be a valid regular expression, but isn't: {why}");
        errors.push(Error::invalid(&path.child("pattern"), pattern, text));
    }
}

/// Checks a schema below `allOf`, `anyOf`, `oneOf` or `not`, which may only have value validations.
fn nested(schema: &Value, skip_any: bool, path: &Path, errors: &mut ErrorList, depth: usize) {
    let Some(depth) = depth.checked_sub(1) else { return };
    validation(schema, (skip_any, false), path, errors, depth);
    if has(schema, "items") {
        nested(get(schema, "items"), false, &path.child("items"), errors, depth);
    }
    for (name, property) in entries(schema, "properties") {
        nested(property, false, &path.child("properties").key(name), errors, depth);
    }
    let mut forbid = |key: &str, told: bool, text: &str| {
        if told {
            errors.push(Error::forbidden(
                &path.child(key),
                format!("must be {text} to be structural"),
            ));
        }
    };
    let more = get(schema, "additionalProperties");
    forbid("type", !is_empty(schema, "type"), "empty");
    forbid("additionalProperties", !matches!(more, Value::Null | Value::Bool(false)), "undefined");
    forbid("default", has(schema, "default"), "undefined");
    forbid("title", !is_empty(schema, "title"), "empty");
    forbid("description", !is_empty(schema, "description"), "empty");
    forbid("nullable", bool_at(schema, "nullable"), "false");
    for key in [PRESERVE, EMBEDDED, INT_OR_STRING] {
        forbid(key, bool_at(schema, key), "false");
    }
    forbid(LIST_KEYS, !is_empty(schema, LIST_KEYS), "empty");
    forbid(LIST_TYPE, has(schema, LIST_TYPE), "undefined");
    forbid(MAP_TYPE, has(schema, MAP_TYPE), "undefined");
    forbid(RULES, !is_empty(schema, RULES), "empty");
    if has(get(schema, "properties"), "metadata") {
        let field = path.child("properties").key("metadata");
        errors.push(Error::forbidden(&field, "must not be specified in a nested context"));
    }
}

/// Checks that `schema` specifies every field that `said` restricts below `allOf`, `anyOf`, `oneOf`
/// and `not`.
fn of_validation(
    said: &Value,
    schema: &Value,
    at_schema: &Path,
    at_said: &Path,
    errors: &mut ErrorList,
    depth: usize,
) {
    if has(said, "not") {
        complete(get(said, "not"), schema, at_schema, &at_said.child("not"), errors, depth);
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        for (index, below) in items(said, key).iter().enumerate() {
            let path = at_said.child(key).index(index);
            complete(below, schema, at_schema, &path, errors, depth);
        }
    }
}

fn complete(
    said: &Value,
    schema: &Value,
    at_schema: &Path,
    at_said: &Path,
    errors: &mut ErrorList,
    depth: usize,
) {
    let Some(depth) = depth.checked_sub(1) else { return };
    let because = |path: &Path| format!("because it is defined in {path}");
    if !schema.is_object() {
        errors.push(Error::required(at_schema, because(at_said)));
        return;
    }
    of_validation(said, schema, at_schema, at_said, errors, depth);
    if has(said, "items") {
        let (below, path) = (at_schema.child("items"), at_said.child("items"));
        complete(get(said, "items"), get(schema, "items"), &below, &path, errors, depth);
    }
    for (name, property) in entries(said, "properties") {
        let specified = get(get(schema, "properties"), name);
        let below = at_schema.child("properties").key(name);
        let path = at_said.child("properties").key(name);
        complete(property, specified, &below, &path, errors, depth);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::tests::same;

    fn check(schema: Value, expected: &[&str]) {
        same(&errors(&schema, &Path::new("s")), expected);
    }

    /// `validateStructuralInvariants` of `pkg/apiserver/schema`.
    #[test]
    fn every_field_has_a_type() {
        let property = |schema: Value, expected: &[&str]| {
            check(json!({"type": "object", "properties": {"p": schema}}), expected);
        };
        const AT: &str = "s.properties[p]";
        property(json!({"type": "string"}), &[]);
        property(json!({"x-kubernetes-int-or-string": true, "anyOf": either()}), &[]);
        property(json!({"x-kubernetes-preserve-unknown-fields": true}), &[]);
        check(json!({}), &["s.type: Required value: must not be empty at the root"]);
        check(
            json!({"type": "array", "items": {"type": "string"}}),
            &["s.type: Invalid value: \"array\": must be object at the root"],
        );
        check(
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
            &["s.additionalProperties: Forbidden: must not be used at the root"],
        );
        property(
            json!({}),
            &[&format!("{AT}.type: Required value: must not be empty for specified object fields")],
        );
        property(
            json!({"type": "array"}),
            &[&format!("{AT}.items: Required value: must be specified")],
        );
        property(
            json!({"type": "array", "items": {}}),
            &[&format!(
                "{AT}.items.type: Required value: must not be empty for specified array items"
            )],
        );
        property(
            json!({"x-kubernetes-embedded-resource": true, "type": "string"}),
            &[
                &format!(
                    "{AT}.properties: Required value: must not be empty if \
                     x-kubernetes-embedded-resource is true without \
                     x-kubernetes-preserve-unknown-fields"
                ),
                &format!(
                    "{AT}.type: Invalid value: \"string\": \
                     must be object if x-kubernetes-embedded-resource is true"
                ),
            ],
        );
        property(
            json!({"x-kubernetes-int-or-string": true,
                "x-kubernetes-preserve-unknown-fields": true}),
            &[&format!(
                "{AT}.x-kubernetes-preserve-unknown-fields: Invalid value: true: \
                 must be false if x-kubernetes-int-or-string is true"
            )],
        );
    }

    /// `TestValidateStructuralMetadataInvariants` of `pkg/apiserver/schema`.
    #[test]
    fn metadata_at_the_root_restricts_names_only() {
        let meta = |schema: Value, expected: &[&str]| {
            check(json!({"type": "object", "properties": {"metadata": schema}}), expected);
        };
        const AT: &str = "s.properties[metadata]";
        let name = json!({"type": "string", "pattern": "^a"});
        meta(json!({"type": "object", "properties": {"name": name, "generateName": name}}), &[]);
        const OTHER: &str = "must not specify anything other than name and generateName, but \
            metadata is implicitly specified";
        meta(
            json!({"type": "object", "properties": {"labels": {"type": "object"}}}),
            &[&format!("{AT}: Forbidden: {OTHER}")],
        );
        meta(
            json!({"type": "object", "minProperties": 1}),
            &[&format!("{AT}: Forbidden: {OTHER}")],
        );
        meta(
            json!({"type": "string"}),
            &[&format!("{AT}.type: Invalid value: \"string\": must be object")],
        );
        check(
            json!({"type": "object", "properties": {"kind": {"type": "integer"}}}),
            &["s.properties[kind].type: Invalid value: \"integer\": must be string"],
        );
    }

    /// `validateNestedValueValidation` and `validateStructuralCompleteness` of
    /// `pkg/apiserver/schema`.
    #[test]
    fn conditions_restrict_specified_fields_only() {
        let of = |key: &str, below: Value| {
            let fields = json!({"a": {"type": "string"}});
            json!({"type": "object", "properties": fields, key: [below]})
        };
        check(of("anyOf", json!({"properties": {"a": {"minLength": 1}}})), &[]);
        check(
            of("oneOf", json!({"properties": {"b": {"minLength": 1}}})),
            &["s.properties[b]: Required value: \
               because it is defined in s.oneOf[0].properties[b]"],
        );
        check(
            of("allOf", json!({"type": "object", "nullable": true, "default": {}})),
            &[
                "s.allOf[0].default: Forbidden: must be undefined to be structural",
                "s.allOf[0].nullable: Forbidden: must be false to be structural",
                "s.allOf[0].type: Forbidden: must be empty to be structural",
            ],
        );
        let not = json!({"type": "object", "not": {"description": "d"}});
        check(not, &["s.not.description: Forbidden: must be empty to be structural"]);
    }

    /// `validateUnsupportedFields` of `pkg/apiserver/schema`.
    #[test]
    fn unsupported_fields_make_a_schema_unreadable() {
        let some = json!({"a": {}});
        for (key, value) in [
            ("id", json!("x")),
            ("$ref", json!("x")),
            ("patternProperties", some.clone()),
            ("dependencies", some.clone()),
            ("additionalItems", json!(true)),
            ("definitions", some),
        ] {
            let schema = json!({"type": "object", "properties": {"p": { key: value }}});
            let text = format!("OpenAPIV3Schema '{key}' is not supported");
            assert_eq!(unreadable(&schema), Some(text));
        }
        assert_eq!(unreadable(&json!({"type": "object"})), None);
    }
}
