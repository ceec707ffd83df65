//! Custom resources in server-side apply.

use serde_json::{Value, json};

use super::super::*;
use crate::object::Gvk;
use crate::patch::apply::{Write, apply};
use crate::schema::{ListType, Schema, Shape, TypeId};

fn source() -> Value {
    json!({"type": "object", "description": "A tab", "properties": {
        "spec": {"type": "object", "required": ["image"], "properties": {
            "image": {"type": "string", "description": "what runs"},
            "port": {"x-kubernetes-int-or-string": true},
            "rules": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "properties": {"name": {"type": "string"}, "value": {"type": "string"}}}},
            "names": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "groups": {"type": "object", "additionalProperties": {"type": "array", "x-kubernetes-list-type": "set",
                "items": {"type": "string"}}},
            "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "string"}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "maybe": {"type": "object", "nullable": true, "properties": {"a": {"type": "string"}}},
            "oneof": {"type": "string", "oneOf": [{"pattern": "a"}]},
        }},
    }})
}

fn table() -> (Schema, Gvk, TypeId) {
    let mut schema = Schema::builtin().as_ref().clone();
    let meta = schema.by_name("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").expect("built in");
    let structural = Structural::new(&source()).expect("a schema");
    let id = structural.extend(&mut schema, "com.example.stable.v1.CronTab", &Shape::Struct(meta));
    (schema, Gvk::new("stable.example.com", "v1", "CronTab"), id)
}

#[test]
fn lists_and_maps_merge_as_the_schema_says() {
    let (schema, _, id) = table();
    let root = schema.get(id);
    assert_eq!(&*root.name, "com.example.stable.v1.CronTab");
    let Some(Shape::Struct(spec)) = root.field("spec").map(|f| f.shape.clone()) else {
        panic!("spec")
    };
    let spec = schema.get(spec);
    let list = |name: &str| spec.field(name).map(|f| f.list_type.clone());
    assert_eq!(list("rules"), Some(ListType::Map(vec!["name".into()])));
    assert_eq!(list("names"), Some(ListType::Set));
    assert!(spec.field("whole").is_some_and(|f| f.atomic));
    assert_eq!(spec.field("free").map(|f| f.shape.clone()), Some(Shape::Any));
    assert!(!spec.open);
}

#[test]
fn applies_of_two_managers_share_items() {
    let (schema, gvk, ty) = table();
    let write = |manager| Write {
        schema: &schema,
        ty,
        gvk: &gvk,
        custom: true,
        manager,
        subresource: "",
        reset: None,
        now: "2026-01-01T00:00:01Z",
    };
    let tab = |spec: Value| json!({"apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": {"name": "t"}, "spec": spec});
    let one = tab(
        json!({"rules": [{"name": "a", "value": "1"}], "groups": {"g": ["x"]}, "whole": {"k": "1"}}),
    );
    let live = apply(&write("one"), None, &one, false).expect("applied");
    let two = tab(json!({"rules": [{"name": "b", "value": "2"}], "groups": {"g": ["y"]}}));
    let live = apply(&write("two"), Some(&live), &two, false).expect("applied");
    assert_eq!(
        live["spec"],
        json!({"rules": [{"name": "a", "value": "1"}, {"name": "b", "value": "2"}], "groups": {"g": ["x", "y"]}, "whole": {"k": "1"}})
    );
    let owned =
        |index: usize| live["metadata"]["managedFields"][index]["fieldsV1"]["f:spec"].clone();
    assert_eq!(
        owned(1),
        json!({"f:rules": {"k:{\"name\":\"b\"}": {".": {}, "f:name": {}, "f:value": {}}}, "f:groups": {"f:g": {".": {}, "v:\"y\"": {}}}})
    );
    let conflict = apply(&write("two"), Some(&live), &tab(json!({"whole": {"l": "1"}})), false);
    assert_eq!(conflict.map_err(|e| e.code), Err(409));
    let unknown =
        apply(&write("two"), Some(&live), &tab(json!({"nope": 1})), false).expect_err("unknown");
    assert!(
        unknown.message.contains(".spec.nope: field not declared in schema"),
        "{}",
        unknown.message
    );
}

#[test]
fn formats_that_nobody_checks_are_named_once() {
    let schema = json!({"type": "object", "properties": {
        "a": {"type": "string", "format": "date-time"}, "b": {"type": "string", "format": "nope"},
        "c": {"type": "integer", "format": "nope"}, "d": {"type": "integer", "format": "int64"}}});
    assert_eq!(unrecognized_formats(&schema), ["nope"]);
}
