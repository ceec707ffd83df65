//! The rules of schemas.

use super::*;
use crate::validation::tests::{same, with};
use serde_json::json;

fn check(schema: Value, status: bool, expected: &[&str]) {
    let options = Options::of(&Value::Null, &Value::Null);
    let schema = with(&json!({"type": "object"}), &schema);
    same(&root(&schema, &Value::Null, status, &Path::new("s"), &options), expected);
}

/// A schema with one property.
fn property(schema: Value, expected: &[&str]) {
    check(json!({"properties": {"p": schema}}), false, expected);
}

/// `ValidateCustomResourceDefinitionOpenAPISchema` and `specStandardValidatorV3` of
/// `pkg/apis/apiextensions/validation`.
#[test]
fn parts_that_no_schema_may_have_are_forbidden() {
    property(json!({"type": "string", "maxLength": 5}), &[]);
    check(
        json!({"nullable": true}),
        false,
        &["s.nullable: Forbidden: nullable cannot be true at the root"],
    );
    property(
        json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true}),
        &["s.properties[p].uniqueItems: Forbidden: uniqueItems cannot be set to true since \
           the runtime complexity becomes quadratic"],
    );
    property(
        json!({"type": "bool"}),
        &["s.properties[p].type: Unsupported value: \"bool\": supported values: \
           \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\""],
    );
    property(
        json!({"type": "object", "properties": {"a": {"type": "string"}},
            "additionalProperties": {"type": "string"}}),
        &["s.properties[p].additionalProperties: Forbidden: \
           additionalProperties and properties are mutual exclusive"],
    );
    for key in ["additionalItems", "dependencies", "patternProperties", "definitions"] {
        let text = format!("s.properties[p].{key}: Forbidden: {key} is not supported");
        property(json!({"type": "object", key: {"a": {"type": "string"}}}), &[&text]);
    }
}

/// `ValidateCustomResourceDefinitionOpenAPISchema` of `pkg/apis/apiextensions/validation`.
#[test]
fn lists_of_type_map_have_keys_that_are_always_there() {
    let list = |changes: Value, expected: &[&str]| {
        let item = json!({"type": "object", "required": ["k"],
            "properties": {"k": {"type": "string"}, "o": {"type": "object"}}});
        let list = json!({"type": "array", "x-kubernetes-list-type": "map", "items": item,
            "x-kubernetes-list-map-keys": ["k"]});
        property(with(&list, &changes), expected);
    };
    const AT: &str = "s.properties[p]";
    list(json!({}), &[]);
    list(
        json!({"x-kubernetes-list-map-keys": null}),
        &[&format!(
            "{AT}.x-kubernetes-list-map-keys: Required value: \
             must not be empty if x-kubernetes-list-type is map"
        )],
    );
    list(
        json!({"x-kubernetes-list-map-keys": ["x"]}),
        &[&format!(
            "{AT}.x-kubernetes-list-map-keys: Invalid value: [\"x\"]: \
             entries must all be names of item properties"
        )],
    );
    list(
        json!({"x-kubernetes-list-map-keys": ["k", "k"]}),
        &[&format!(
            "{AT}.x-kubernetes-list-map-keys: Invalid value: [\"k\",\"k\"]: \
             must not contain duplicate entries"
        )],
    );
    list(
        json!({"items": {"required": null}}),
        &[&format!(
            "{AT}.items.properties[k].default: Required value: this property is in \
             x-kubernetes-list-map-keys, so it must have a default or be a required property"
        )],
    );
    list(
        json!({"items": {"nullable": true}}),
        &[&format!(
            "{AT}.items.nullable: Forbidden: \
             cannot be nullable when x-kubernetes-list-type is map"
        )],
    );
    list(
        json!({"x-kubernetes-list-type": "list", "x-kubernetes-list-map-keys": null}),
        &[&format!(
            "{AT}.x-kubernetes-list-type: Unsupported value: \"list\": \
             supported values: \"atomic\", \"set\", \"map\""
        )],
    );
    list(
        json!({"x-kubernetes-list-type": null}),
        &[&format!(
            "{AT}.x-kubernetes-list-type: Required value: \
             must be map if x-kubernetes-list-map-keys is non-empty"
        )],
    );
    property(
        json!({"type": "string", "x-kubernetes-map-type": "atomic"}),
        &[&format!(
            "{AT}.type: Invalid value: \"string\": \
             must be object if x-kubernetes-map-type is specified"
        )],
    );
}

/// `validateCustomResourceDefinitionValidation` of `pkg/apis/apiextensions/validation`.
#[test]
fn a_status_subresource_leaves_few_fields_at_the_root() {
    let described = json!({"description": "d", "required": ["spec"], "properties": {}});
    check(described, true, &[]);
    check(json!({"maxProperties": 1}), false, &[]);
    check(json!({"maxProperties": 1}), true, &["s: Invalid value: ..."]);
    check(json!({"oneOf": [{"required": ["a"]}]}), false, &[]);
}

/// `ValidateCustomResourceDefinitionOpenAPISchema` of `pkg/apis/apiextensions/validation`.
#[test]
fn messages_of_rules_are_one_line_of_text() {
    let rule = |rule: Value, expected: &[&str]| {
        property(json!({"type": "string", "x-kubernetes-validations": [rule]}), expected);
    };
    const AT: &str = "s.properties[p].x-kubernetes-validations[0]";
    rule(json!({"rule": "self == ''", "message": "m", "reason": "FieldValueInvalid"}), &[]);
    rule(json!({"rule": " "}), &[&format!("{AT}.rule: Required value: rule is not specified")]);
    rule(
        json!({"rule": "true", "message": " "}),
        &[&format!("{AT}.message: Invalid value: \" \": must be non-empty if specified")],
    );
    rule(
        json!({"rule": "true", "message": "a\nb"}),
        &[&format!("{AT}.message: Invalid value: \"a\\nb\": must not contain line breaks")],
    );
    rule(
        json!({"rule": "self\n== ''"}),
        &[&format!(
            "{AT}.message: Required value: \
             message must be specified if rule contains line breaks"
        )],
    );
    rule(
        json!({"rule": "true", "reason": "Other"}),
        &[&format!(
            "{AT}.reason: Unsupported value: \"Other\": supported values: \
             \"FieldValueDuplicate\", \"FieldValueForbidden\", \"FieldValueInvalid\", \
             \"FieldValueRequired\""
        )],
    );
    rule(
        json!({"rule": "true", "fieldPath": ".x"}),
        &[&format!("{AT}.fieldPath: Invalid value: \".x\": must be a valid path")],
    );
}
