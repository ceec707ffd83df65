//! Schemas, values and expected results of upstream's tests.

use serde_json::json;

use super::*;

mod random;
mod recorded;
mod rules;
mod table;

fn schema(schema: Value) -> Structural {
    Structural::new(&schema).expect("a schema")
}

fn texts(errors: &[Error]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

/// A schema of an object whose only property `field` has the schema `of`.
fn field(of: Value) -> Structural {
    schema(json!({"type": "object", "properties": {"field": of}}))
}

fn told(schema: &Structural, value: Value) -> Vec<String> {
    texts(&schema.validate(&value, None, &Path::default()))
}

fn of(schema: Value, value: Value) -> Vec<String> {
    told(&field(schema), json!({"field": value}))
}

// `TestValidateCustomResource` of pkg/apiserver/validation/validation_test.go.
#[test]
fn types_and_null() {
    for (value, name) in [
        (json!("foo"), "string"),
        (json!(42), "integer"),
        (json!(true), "boolean"),
        (json!(1.2), "number"),
        (json!([]), "array"),
        (Value::Null, "null"),
    ] {
        let wanted = format!(
            "field: Invalid value: \"{name}\": field in body must be of type object: \"{name}\""
        );
        assert_eq!(of(json!({"type": "object"}), value.clone()).join("; "), wanted);
        let nullable = of(json!({"type": "object", "nullable": true}), value.clone());
        if value.is_null() {
            assert_eq!(nullable, [""; 0]);
        } else {
            assert_eq!(nullable, [wanted]);
        }
        assert_eq!(of(json!({"nullable": true}), value), [""; 0]);
    }
    let either = json!({"x-kubernetes-int-or-string": true});
    assert_eq!(of(either.clone(), json!(42)), [""; 0]);
    assert_eq!(of(either.clone(), json!("foo")), [""; 0]);
    assert_eq!(
        of(either, json!(1.2)),
        [
            "field: Invalid value: \"number\": field in body must be of type integer,string: \"number\""
        ]
    );
    assert_eq!(
        of(json!({"type": "integer"}), json!("x")),
        ["field: Invalid value: \"string\": field in body must be of type integer: \"string\""]
    );
    assert_eq!(of(json!({"type": "integer"}), json!(5.0)), [""; 0]);
    assert_eq!(of(json!({"type": "number"}), json!(5)), [""; 0]);
}

#[test]
fn the_alternative_that_matched_most_is_told() {
    let any = json!({"nullable": true, "x-kubernetes-int-or-string": true,
        "anyOf": [{"type": "integer"}, {"type": "string"}]});
    assert_eq!(of(any.clone(), Value::Null), [""; 0]);
    assert_eq!(
        of(any, json!(1.2)),
        [
            "field: Invalid value: \"number\": field in body must be of type integer,string: \"number\"",
            "<nil>: Invalid value: \"\": \"field\" must validate at least one schema (anyOf)",
            "field: Invalid value: \"number\": field in body must be of type integer: \"number\"",
            "<nil>: Invalid value: \"\": Checked value must be of type integer (default format) in field",
        ]
    );
    let all = json!({"nullable": true, "x-kubernetes-int-or-string": true,
        "allOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}]});
    assert_eq!(
        of(all, json!(true)),
        [
            "field: Invalid value: \"boolean\": field in body must be of type integer,string: \"boolean\"",
            "<nil>: Invalid value: \"\": \"field\" must validate at least one schema (anyOf)",
            "field: Invalid value: \"boolean\": field in body must be of type integer: \"boolean\"",
            "<nil>: Invalid value: \"\": \"field\" must validate all the schemas (allOf). None validated",
        ]
    );
    let one = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}], "not": {"required": ["c"]}});
    assert_eq!(of(one.clone(), json!({"a": "x"})), [""; 0]);
    assert_eq!(
        of(one.clone(), json!({"a": "x", "b": "y"})),
        [
            "<nil>: Invalid value: \"\": \"field\" must validate one and only one schema (oneOf). Found 2 valid alternatives"
        ]
    );
    assert_eq!(
        of(one, json!({"c": "x"})),
        [
            "<nil>: Invalid value: \"\": \"field\" must validate one and only one schema (oneOf). Found none valid",
            "field.a: Required value",
            "<nil>: Invalid value: \"\": \"field\" must not validate the schema (not)",
        ]
    );
}

#[test]
fn required_enums_sizes_and_patterns() {
    let required = schema(json!({"type": "object", "required": ["field"], "properties": {
        "field": {"type": "object", "required": ["nested"], "properties": {"nested": {}}}}}));
    assert_eq!(told(&required, json!({"test": "a"})), ["field: Required value"]);
    assert_eq!(told(&required, json!({"field": {}})), ["field.nested: Required value"]);
    let enums = json!({"type": "object", "required": ["nestedint", "nestedstring"], "properties": {
        "nestedint": {"type": "integer", "enum": [1, 2]}, "nestedstring": {"type": "string", "enum": ["a", "b"]}}});
    assert_eq!(
        of(enums, json!({"nestedint": "x", "nestedstring": true})),
        [
            "field.nestedint: Invalid value: \"string\": field.nestedint in body must be of type integer: \"string\"",
            "field.nestedint: Unsupported value: \"x\": supported values: \"1\", \"2\"",
            "field.nestedstring: Invalid value: \"boolean\": field.nestedstring in body must be of type string: \"boolean\"",
            "field.nestedstring: Unsupported value: true: supported values: \"a\", \"b\"",
        ]
    );
    assert_eq!(
        of(json!({"type": "string", "nullable": true, "enum": ["a", null]}), Value::Null),
        ["field: Unsupported value: null: supported values: \"a\", \"null\""]
    );
    assert_eq!(
        of(json!({"type": "object", "maxProperties": 2}), json!({"a": true, "b": true, "c": true})),
        ["field: Too many: 3: must have at most 2 items"]
    );
    assert_eq!(
        of(json!({"type": "array", "maxItems": 2}), json!(["a", "b", "c"])),
        ["field: Too many: 3: must have at most 2 items"]
    );
    assert_eq!(
        of(json!({"type": "string", "maxLength": 5}), json!("somestring")),
        ["field: Too long: may not be more than 5 bytes"]
    );
    assert_eq!(
        of(json!({"type": "string", "minLength": 2}), json!("ä")),
        ["field: Invalid value: \"ä\": field in body should be at least 2 chars long"]
    );
    assert_eq!(
        of(json!({"type": "string", "pattern": "^a+$"}), json!("b")),
        ["field: Invalid value: \"b\": field in body should match '^a+$'"]
    );
    assert_eq!(
        of(json!({"type": "string", "pattern": "+"}), json!("foo")),
        [
            "field: Invalid value: \"foo\": field in body should match '+, but pattern is invalid: error parsing regexp: missing argument to repetition operator: `+`'"
        ]
    );
    assert_eq!(
        of(
            json!({"type": "array", "items": {"type": "object", "required": ["x"]}}),
            json!([{"x": 1}, {}])
        ),
        ["field[1].x: Required value"]
    );
    assert_eq!(
        of(json!({"type": "object", "additionalProperties": {"type": "string"}}), json!({"k": 1})),
        [
            "field.k: Invalid value: \"integer\": field.k in body must be of type string: \"integer\""
        ]
    );
}

#[test]
fn bounds_are_compared_as_the_type_has_them() {
    let int = json!({"type": "integer", "minimum": 1, "maximum": 10, "multipleOf": 3});
    assert_eq!(of(int.clone(), json!(9)), [""; 0]);
    assert_eq!(
        of(int.clone(), json!(0)),
        ["field: Invalid value: 0: field in body should be greater than or equal to 1"]
    );
    assert_eq!(
        of(int, json!(11)),
        [
            "field: Invalid value: 11: field in body should be a multiple of 3",
            "field: Invalid value: 11: field in body should be less than or equal to 10",
        ]
    );
    assert_eq!(
        of(
            json!({"type": "number", "exclusiveMaximum": true, "maximum": 1_000_000.0}),
            json!(1_000_000.5)
        ),
        ["field: Invalid value: 1.0000005e+06: field in body should be less than 1e+06"]
    );
    assert_eq!(
        of(json!({"type": "integer", "format": "int32"}), json!(3_000_000_000_i64)),
        [
            "<nil>: Invalid value: \"\": Checked value must be of type integer with format int32 in field"
        ]
    );
    assert_eq!(
        of(json!({"type": "number", "multipleOf": 0.1}), json!(0.35)),
        ["field: Invalid value: 0.35: field in body should be a multiple of 0.1"]
    );
    assert_eq!(
        of(json!({"type": "string", "format": "date"}), json!("today")),
        ["field: Invalid value: \"today\": field in body must be of type date: \"today\""]
    );
    assert_eq!(
        of(json!({"type": "string", "format": "date"}), json!(5)),
        ["field: Invalid value: \"int64\": field in body must be of type date: \"int64\""]
    );
}

// `TestPrune` and `TestPruneUnknownFields…` of pkg/apiserver/schema/pruning/algorithm_test.go.
#[test]
fn what_is_not_specified_goes() {
    let pruned = |schema: Value, value: Value, resource: bool| {
        let mut value = value;
        let options = PruneOptions { resource, collect: true };
        let paths = Structural::new(&schema).expect("a schema").prune(&mut value, &options);
        (value, paths)
    };
    let (value, paths) = pruned(
        json!({"type": "object", "properties": {
            "specified": {"type": "object", "properties": {"a": {"type": "string"}}},
            "array": {"type": "array", "items": {"type": "object", "properties": {"s": {"type": "string"}}}},
            "keep": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                "properties": {"inner": {"type": "object"}}},
            "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"v": {"type": "string"}}}},
            "open": {"type": "object", "additionalProperties": true},
        }}),
        json!({"apiVersion": "v1", "kind": "K", "metadata": {"whatever": 1}, "unspecified": "bar",
            "specified": {"a": "x", "b": "y"}, "array": [{"s": "x", "t": 1}, {"u": 2}],
            "keep": {"x": {"y": 1}, "inner": {"z": 1}}, "map": {"k": {"v": "1", "w": 2}}, "open": {"o": {"p": 1}}}),
        true,
    );
    assert_eq!(
        value,
        json!({"apiVersion": "v1", "kind": "K", "metadata": {"whatever": 1}, "specified": {"a": "x"},
            "array": [{"s": "x"}, {}], "keep": {"x": {"y": 1}, "inner": {}}, "map": {"k": {"v": "1"}}, "open": {"o": {}}})
    );
    assert_eq!(
        paths,
        [
            "array[0].t",
            "array[1].u",
            "keep.inner.z",
            "map.k.w",
            "open.o.p",
            "specified.b",
            "unspecified"
        ]
    );
    let embedded = json!({"type": "object", "properties": {"pod": {"type": "object", "x-kubernetes-embedded-resource": true,
        "properties": {"spec": {"type": "object"}}}}});
    let (value, paths) = pruned(
        embedded,
        json!({"pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"a": 1}, "status": {}}}),
        true,
    );
    assert_eq!(
        value,
        json!({"pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {}}})
    );
    assert_eq!(paths, ["pod.spec.a", "pod.status"]);
}

// `TestDefault` and `TestPruneNonNullableNulls` of pkg/apiserver/schema/defaulting.
#[test]
fn defaults_replace_what_is_absent_and_nulls_that_may_not_be() {
    let with = schema(json!({"type": "object", "properties": {
        "a": {"type": "string", "default": "A"},
        "b": {"type": "object", "default": {}, "properties": {"c": {"type": "string", "default": "C"}}},
        "n": {"type": "string", "nullable": true, "default": "N"},
        "x": {"type": "string"},
        "l": {"type": "array", "items": {"type": "object", "properties": {"d": {"type": "integer", "default": 1}}}},
        "m": {"type": "object", "additionalProperties": {"type": "string", "default": "M"}},
    }}));
    let mut value = json!({"a": null, "n": null, "x": null, "l": [{}, {"d": 2}], "m": {"k": null}});
    assert_eq!(with.prune(&mut value, &PruneOptions::default()), [""; 0]);
    assert_eq!(value, json!({"a": null, "n": null, "l": [{}, {"d": 2}], "m": {"k": null}}));
    with.default(&mut value);
    assert_eq!(
        value,
        json!({"a": "A", "b": {"c": "C"}, "n": null, "l": [{"d": 1}, {"d": 2}], "m": {"k": "M"}})
    );
    let unknown = schema(
        json!({"type": "object", "properties": {"b": {"type": "object", "default": {"gone": 1}}}}),
    );
    let mut value = json!({});
    unknown.default(&mut value);
    assert_eq!(value, json!({"b": {}}));
}

// `TestValidateListSetsAndMaps` of pkg/apiserver/schema/listtype/validation_test.go.
#[test]
fn sets_and_maps_hold_nothing_twice() {
    let set =
        json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}});
    assert_eq!(of(set.clone(), json!(["a", "b", "a", "a"])), ["field[2]: Duplicate value: \"a\""]);
    let map = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a", "b"],
        "items": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}});
    assert_eq!(
        of(map, json!([{"a": "1", "b": "2"}, {"a": "1"}, {"b": "2", "a": "1"}, {"a": "1"}])),
        [
            "field[2]: Duplicate value: {\"a\":\"1\",\"b\":\"2\"}",
            "field[3]: Duplicate value: {\"a\":\"1\"}",
        ]
    );
    let schema = field(set);
    let (new, old) = (json!({"field": ["a", "a"]}), json!({"field": ["b", "b"]}));
    assert_eq!(schema.validate(&new, Some(&old), &Path::default()), []);
}

// `TestValidate` and `TestCoerce` of pkg/apiserver/schema/objectmeta.
#[test]
fn embedded_resources_have_kinds_and_metadata() {
    let pod = field(
        json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
    );
    assert_eq!(
        told(&pod, json!({"field": {}})),
        ["field.apiVersion: Required value", "field.kind: Required value"]
    );
    assert_eq!(
        told(
            &pod,
            json!({"field": {"apiVersion": "a/b/c", "kind": "1-", "metadata": {"name": "a/b"}}})
        ),
        [
            "field.apiVersion: Invalid value: \"a/b/c\": unexpected GroupVersion string: a/b/c",
            "field.kind: Invalid value: \"1-\": may have mixed case, but should otherwise match: a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')",
            "field.metadata.name: Invalid value: \"a/b\": may not contain '/'",
        ]
    );
    let mut value = json!({"field": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "nope": 1, "creationTimestamp": null}}});
    assert_eq!(pod.coerce(&mut value, false), Ok(vec!["field.metadata.nope".to_owned()]));
    assert_eq!(value["field"]["metadata"], json!({"name": "x"}));
    let mut bad = json!({"field": {"apiVersion": 1, "kind": "Pod", "metadata": {"name": 1, "labels": {"a": "b"}}}});
    let error = pod.coerce(&mut bad.clone(), false).expect_err("no string");
    assert_eq!(error.to_string(), "field.apiVersion: Invalid value: 1: must be a string");
    assert_eq!(pod.coerce(&mut bad, true), Ok(vec![]));
    assert_eq!(bad, json!({"field": {"kind": "Pod", "metadata": {"labels": {"a": "b"}}}}));
}

// KEP-4008; `TestRatchetingFunctionality` of test/integration/ratcheting_test.go has the same
// cases.
#[test]
fn what_did_not_change_is_no_error() {
    let with = schema(json!({"type": "object", "properties": {
        "a": {"type": "string", "enum": ["x"]},
        "b": {"type": "string", "maxLength": 2},
        "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "properties": {"name": {"type": "string"}, "v": {"type": "string", "minLength": 2}}}},
        "plain": {"type": "array", "items": {"type": "string", "minLength": 2}},
    }}));
    let update = |new: Value, old: Value| texts(&with.validate(&new, Some(&old), &Path::default()));
    let old = json!({"a": "old", "b": "ok", "list": [{"name": "1", "v": "a"}, {"name": "2", "v": "b"}], "plain": ["a"]});
    assert_eq!(update(old.clone(), old.clone()), [""; 0]);
    let mut new = old.clone();
    new["b"] = json!("long");
    assert_eq!(update(new, old.clone()), ["b: Too long: may not be more than 2 bytes"]);
    let mut moved = old.clone();
    moved["list"] =
        json!([{"name": "2", "v": "b"}, {"name": "3", "v": "c"}, {"name": "1", "v": "a"}]);
    assert_eq!(
        update(moved, old.clone()),
        ["list[1].v: Invalid value: \"c\": list[1].v in body should be at least 2 chars long"]
    );
    let mut longer = old.clone();
    longer["plain"] = json!(["a", "long"]);
    assert_eq!(
        update(longer, old),
        ["plain[0]: Invalid value: \"a\": plain[0] in body should be at least 2 chars long"]
    );
}
