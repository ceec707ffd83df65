//! Schemas of custom resources: structural, so that every field has a type outside of `anyOf` and its like.

use serde_json::Value;

use crate::field::{Error, ErrorList, Path};
use crate::value::{bool_at, entries, get, has, is_empty, items, str_at};

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
const INT_OR_STRING: &str = "x-kubernetes-int-or-string";
const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
const EMBEDDED: &str = "x-kubernetes-embedded-resource";
/// Deepest schema that is looked into; the decoder refuses deeper bodies before.
const DEPTH_MAX: usize = 100;

#[derive(Clone, Copy, PartialEq)]
enum Level {
    Root,
    Item,
    Field,
}

/// The schema of a version.
pub(super) fn root(schema: &Value, path: &Path) -> ErrorList {
    if schema.is_object() {
        structural(schema, Level::Root, path, DEPTH_MAX)
    } else {
        ErrorList::new()
    }
}

fn structural(schema: &Value, level: Level, path: &Path, depth: usize) -> ErrorList {
    let Some(depth) = depth.checked_sub(1) else { return ErrorList::new() };
    let mut errors = plain(schema, path);
    let (kind, at_type) = (str_at(schema, "type"), path.child("type"));
    let (embedded, preserve) = (bool_at(schema, EMBEDDED), bool_at(schema, PRESERVE));
    let (either, inner) = (bool_at(schema, INT_OR_STRING), get(schema, "items"));
    if kind == "array" && inner.is_null() {
        errors.push(Error::required(&path.child("items"), "must be specified"));
    }
    if inner.is_object() {
        errors.extend(structural(inner, Level::Item, &path.child("items"), depth));
    }
    for (name, property) in entries(schema, "properties") {
        let field = path.child("properties").key(name);
        errors.extend(structural(property, Level::Field, &field, depth));
    }
    let (more, at_more) = (get(schema, "additionalProperties"), path.child("additionalProperties"));
    if !more.is_null() {
        if level == Level::Root {
            errors.push(Error::forbidden(&at_more, "must not be used at the root"));
        }
        if more.is_object() {
            errors.extend(structural(more, Level::Field, &at_more, depth));
        }
        if embedded {
            let text = "must not be used if x-kubernetes-embedded-resource is set";
            errors.push(Error::forbidden(&at_more, text));
        }
        if more != &Value::Bool(true) && !is_empty(schema, "properties") {
            let text = "additionalProperties and properties are mutual exclusive";
            errors.push(Error::forbidden(&at_more, text));
        }
    }
    if either {
        let text = "must be false if x-kubernetes-int-or-string is true";
        for key in [PRESERVE, EMBEDDED].into_iter().filter(|key| bool_at(schema, key)) {
            errors.push(Error::invalid(&path.child(key), true, text));
        }
    }
    if embedded && kind != "object" {
        let text = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(if kind.is_empty() {
            Error::required(&at_type, text)
        } else {
            Error::invalid(&at_type, kind, text)
        });
    } else if kind.is_empty() && !either && !preserve {
        let text = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.push(Error::required(&at_type, text));
    }
    if level == Level::Root && !matches!(kind, "" | "object") {
        errors.push(Error::invalid(&at_type, kind, "must be object at the root"));
    }
    if embedded && !preserve && is_empty(schema, "properties") {
        let text = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        errors.push(Error::required(&path.child("properties"), text));
    }
    for (index, rule) in items(schema, "x-kubernetes-validations").iter().enumerate() {
        if str_at(rule, "rule").trim().is_empty() {
            let field = path.child("x-kubernetes-validations").index(index).child("rule");
            errors.push(Error::required(&field, "rule is not specified"));
        }
    }
    errors
}

/// What no schema may use.
fn plain(schema: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let kind = str_at(schema, "type");
    if !kind.is_empty() && !TYPES.contains(&kind) {
        errors.push(Error::not_supported(&path.child("type"), kind, &TYPES));
    }
    for key in ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"]
    {
        if has(schema, key) && !is_empty(schema, key) {
            errors.push(Error::forbidden(&path.child(key), format!("{key} is not supported")));
        }
    }
    if kind == "null" {
        let text = "type cannot be set to null, use nullable as an alternative";
        errors.push(Error::forbidden(&path.child("type"), text));
    }
    if get(schema, "items").is_array() {
        let text = "items must be a schema object and not an array";
        errors.push(Error::forbidden(&path.child("items"), text));
    }
    if bool_at(schema, "uniqueItems") {
        let text =
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errors.push(Error::forbidden(&path.child("uniqueItems"), text));
    }
    errors
}
