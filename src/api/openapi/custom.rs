//! OpenAPI schemas of custom resources: the schema of the CustomResourceDefinition with the fields
//! of every object.
//!
//! The rules are those of `pkg/controller/openapi/builder` and `pkg/controller/openapi/v2` of
//! apiextensions-apiserver.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::Version;
use crate::object::Gvk;

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";

/// The fields of a CustomResourceDefinition, besides its names, that the document of its resource
/// requires.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CustomSchema {
    /// The field `openAPIV3Schema` of the version as JSON text, if present.
    pub text: Option<Arc<str>>,
    /// The kind of the lists.
    pub list_kind: String,
    /// The field `spec.preserveUnknownFields` of the CustomResourceDefinition.
    pub preserve: bool,
    /// The fields that field selectors support, without the leading dot.
    pub selectable: Vec<String>,
}

/// Returns the name of a type: the elements of the group in reverse order, the version and the
/// kind.
pub(super) fn model(gvk: &Gvk) -> String {
    let mut parts: Vec<&str> = gvk.group.split('.').collect();
    parts.reverse();
    format!("{}.{}.{}", parts.join("."), gvk.version, gvk.kind)
}

/// The types to which the definitions refer.
pub(super) const REFERRED: [&str; 2] = [OBJECT_META, LIST_META];

fn type_meta(properties: &mut Map<String, Value>) {
    properties.insert("apiVersion".into(), json!({"type": "string",
        "description": "APIVersion defines the group and version of the schema that this object is written in."}));
    properties.insert(
        "kind".into(),
        json!({"type": "string",
        "description": "Kind is the type of this object, in CamelCase. It cannot be changed."}),
    );
}

fn metadata(name: &str, version: Version) -> Value {
    let text = "Standard object's metadata.";
    let mut reference = version.reference(name);
    if version == Version::V3 {
        reference = json!({ "allOf": [reference] });
    }
    if let Some(map) = reference.as_object_mut() {
        map.insert("description".into(), text.into());
    }
    reference
}

fn kinds(gvk: &Gvk) -> Value {
    json!([{"group": *gvk.group, "kind": *gvk.kind, "version": *gvk.version}])
}

fn is(schema: &Value, key: &str) -> bool {
    schema.get(key).and_then(Value::as_bool).unwrap_or(false)
}

/// Returns the definition of the objects.
pub(super) fn object(gvk: &Gvk, custom: &CustomSchema, version: Version) -> Value {
    let parsed = custom.text.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
    let bare = || json!({ "type": "object" });
    let mut out = match parsed {
        None => bare(),
        // kubectl rejects fields that the document lacks, so the document lists no fields if all
        // are permitted.
        Some(schema)
            if version == Version::V2
                && (custom.preserve || is(&schema, "x-kubernetes-preserve-unknown-fields")) =>
        {
            bare()
        }
        Some(mut schema) => {
            if version == Version::V2 {
                for_v2(&mut schema);
            } else {
                unfold(&mut schema);
            }
            let properties = properties_mut(&mut schema);
            type_meta(properties);
            properties.insert("metadata".into(), metadata(OBJECT_META, version));
            embedded(&mut schema, version);
            schema
        }
    };
    if let Some(map) = out.as_object_mut() {
        map.insert("x-kubernetes-group-version-kind".into(), kinds(gvk));
        selectable(map, custom);
    }
    out
}

fn selectable(map: &mut Map<String, Value>, custom: &CustomSchema) {
    if !custom.selectable.is_empty() {
        let fields: Vec<Value> =
            custom.selectable.iter().map(|path| json!({ "fieldPath": path })).collect();
        map.insert("x-kubernetes-selectable-fields".into(), fields.into());
    }
}

/// Returns the definition of the lists.
pub(super) fn list(gvk: &Gvk, plural: &str, custom: &CustomSchema, version: Version) -> Value {
    let of = Gvk::new(&gvk.group, &gvk.version, &custom.list_kind);
    let mut properties = Map::new();
    type_meta(&mut properties);
    properties.insert("metadata".into(), metadata(LIST_META, version));
    properties.insert(
        "items".into(),
        json!({ "type": "array", "description": format!("List of {plural}."), "items": version.reference(&model(gvk)) }),
    );
    let description = format!("{} is a list of {}", custom.list_kind, gvk.kind);
    let mut out = json!({ "type": "object", "description": description, "required": ["items"],
        "properties": properties, "x-kubernetes-group-version-kind": kinds(&of) });
    if let Some(map) = out.as_object_mut() {
        selectable(map, custom);
    }
    out
}

fn properties_mut(schema: &mut Value) -> &mut Map<String, Value> {
    if !schema.is_object() {
        *schema = json!({});
    }
    let Value::Object(map) = schema else { unreachable!("made an object above") };
    let slot = map.entry("properties").or_insert_with(|| json!({}));
    if !slot.is_object() {
        *slot = json!({});
    }
    match slot {
        Value::Object(map) => map,
        _ => unreachable!("made an object above"),
    }
}

/// Visits every direct subschema of a schema.
fn each(schema: &mut Value, visit: &mut dyn FnMut(&mut Value)) {
    let Some(map) = schema.as_object_mut() else { return };
    if let Some(properties) = map.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(&mut *visit);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = map.get_mut(key).filter(|inner| inner.is_object()) {
            visit(inner);
        }
    }
}

/// Adds the fields of every object to embedded resources.
fn embedded(schema: &mut Value, version: Version) {
    each(schema, &mut |inner| embedded(inner, version));
    let kept = version == Version::V2 && is(schema, "x-kubernetes-preserve-unknown-fields");
    if kept || !is(schema, "x-kubernetes-embedded-resource") {
        return;
    }
    let properties = properties_mut(schema);
    type_meta(properties);
    properties.insert("metadata".into(), metadata(OBJECT_META, version));
    let Some(map) = schema.as_object_mut() else { return };
    let required = map.entry("required").or_insert_with(|| json!([]));
    if let Some(list) = required.as_array_mut() {
        for name in ["kind", "apiVersion"] {
            if !list.iter().any(|have| have.as_str() == Some(name)) {
                list.push(name.into());
            }
        }
    }
}

/// Adds the types of `x-kubernetes-int-or-string` as an explicit `anyOf`.
fn unfold(schema: &mut Value) {
    each(schema, &mut unfold);
    if is(schema, "x-kubernetes-int-or-string")
        && let Some(map) = schema.as_object_mut()
        && !map.contains_key("anyOf")
    {
        let either = json!([{ "type": "integer" }, { "type": "string" }]);
        if let Some(all) = map.get_mut("allOf").and_then(Value::as_array_mut) {
            if !all.iter().any(|one| one.get("anyOf").is_some()) {
                all.insert(0, json!({ "anyOf": either }));
            }
        } else {
            map.insert("anyOf".into(), either);
        }
    }
}

/// Removes the parts that OpenAPI v2 cannot express or that cause kubectl to reject valid objects
/// (`ToStructuralOpenAPIV2`).
fn for_v2(schema: &mut Value) {
    let Some(map) = schema.as_object_mut() else { return };
    for key in ["allOf", "oneOf", "anyOf", "not"] {
        map.remove(key);
    }
    let yes = |map: &Map<String, Value>, key: &str| {
        map.get(key).and_then(Value::as_bool).unwrap_or(false)
    };
    let typed = |map: &Map<String, Value>, name: &str| {
        map.get("type").and_then(Value::as_str) == Some(name)
    };
    if yes(map, "nullable") {
        for key in ["type", "nullable", "items", "properties"] {
            map.remove(key);
        }
    }
    let keeps = yes(map, "x-kubernetes-preserve-unknown-fields");
    if keeps {
        map.remove("items");
        map.remove("properties");
    }
    if (!map.contains_key("items") && typed(map, "array")) || (keeps && typed(map, "object")) {
        map.remove("type");
    }
    let nullable: Vec<String> = map
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter(|(_, inner)| is(inner, "nullable"))
        .map(|(name, _)| name.clone())
        .collect();
    if let Some(required) = map.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| !nullable.iter().any(|n| name.as_str() == Some(n)));
        if required.is_empty() {
            map.remove("required");
        }
    }
    if map.get("additionalProperties").is_some_and(|inner| is(inner, "nullable")) {
        map.remove("required");
    }
    each(schema, &mut for_v2);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn custom(schema: &Value) -> CustomSchema {
        CustomSchema {
            text: Some(schema.to_string().into()),
            list_kind: "FooList".into(),
            preserve: false,
            selectable: vec!["spec.color".into()],
        }
    }

    fn gvk() -> Gvk {
        Gvk::new("stable.example.com", "v1", "Foo")
    }

    #[test]
    fn types_are_named_from_behind() {
        assert_eq!(model(&gvk()), "com.example.stable.v1.Foo");
    }

    #[test]
    fn version_2_leaves_out_what_it_cannot_say() {
        let schema = json!({"type": "object", "properties": {
            "a": {"type": "object", "nullable": true, "properties": {"b": {"type": "string"}}},
            "c": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"d": {"type": "string"}}},
            "e": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
        }, "required": ["a", "e"]});
        let out = object(&gvk(), &custom(&schema), Version::V2);
        assert_eq!(out["properties"]["a"], json!({}));
        assert_eq!(out["properties"]["c"], json!({"x-kubernetes-preserve-unknown-fields": true}));
        assert_eq!(out["properties"]["e"], json!({"x-kubernetes-int-or-string": true}));
        assert_eq!(out["required"], json!(["e"]));
        assert_eq!(out["x-kubernetes-selectable-fields"], json!([{"fieldPath": "spec.color"}]));
        assert_eq!(
            out["properties"]["metadata"]["$ref"],
            "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
        );
    }

    #[test]
    fn unknown_fields_at_the_root_leave_version_2_open() {
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"type": "string"}}});
        let out = object(&gvk(), &custom(&schema), Version::V2);
        assert_eq!(out.get("properties"), None);
        let out = object(&gvk(), &custom(&schema), Version::V3);
        assert_eq!(out["properties"]["a"], json!({"type": "string"}));
    }

    #[test]
    fn embedded_resources_have_kind_and_version() {
        let schema = json!({"type": "object", "properties": {"t": {"type": "object", "x-kubernetes-embedded-resource": true}}});
        let out = object(&gvk(), &custom(&schema), Version::V3);
        assert_eq!(out["properties"]["t"]["required"], json!(["kind", "apiVersion"]));
    }
}
