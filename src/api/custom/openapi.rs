//! OpenAPI of custom resources, rendered from the schema of their definition (`pkg/controller/openapi/builder`).

use serde_json::{Map, Value, json};

use crate::value::{bool_at, get, items, str_at};

/// Upstream's descriptions of the fields that every object has.
const API_VERSION: &str = "APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources";
const KIND: &str = "Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";
const METADATA: &str = "Standard object's metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";
const LIST_METADATA: &str = "Standard list metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";
const EMBEDDED_API_VERSION: &str = "apiVersion defines the versioned schema of this representation of an object. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources";
const EMBEDDED_KIND: &str = "kind is a string value representing the type of this object. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";

const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
const EITHER: &str = "x-kubernetes-int-or-string";

/// What the two versions of the format write differently.
#[derive(Clone, Copy)]
pub(crate) struct Style<'a> {
    /// OpenAPI v2: no alternatives, no nullable values, nothing within what preserves unknown fields.
    pub v2: bool,
    /// Makes a reference to a definition.
    pub reference: &'a dyn Fn(&str) -> Value,
}

impl Style<'_> {
    fn described(&self, name: &str, text: &str) -> Value {
        let reference = (self.reference)(name);
        if self.v2 {
            let mut out = reference;
            crate::value::set(&mut out, "description", text);
            out
        } else {
            // Siblings of a reference are ignored in OpenAPI 3.0.
            json!({"allOf": [reference], "description": text})
        }
    }
}

/// The definition of a kind; a missing schema says nothing about its objects.
pub(crate) fn definition(source: &Value, style: &Style<'_>) -> Value {
    let vague = !source.is_object() || style.v2 && bool_at(source, PRESERVE);
    if vague {
        // Properties would make kubectl refuse all others.
        return json!({"type": "object"});
    }
    let mut out = schema(source, style);
    let mut properties = match out.remove("properties") {
        Some(Value::Object(properties)) => properties,
        _ => Map::new(),
    };
    properties.insert("apiVersion".into(), json!({"type": "string", "description": API_VERSION}));
    properties.insert("kind".into(), json!({"type": "string", "description": KIND}));
    let meta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    properties.insert("metadata".into(), reference_to(meta, METADATA, style));
    out.insert("properties".into(), Value::Object(properties));
    Value::Object(out)
}

/// The definition of a kind's lists.
pub(crate) fn list(item: &str, list_kind: &str, plural: &str, style: &Style<'_>) -> Value {
    let kind = item.rsplit('.').next().unwrap_or(item);
    let meta = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
    json!({
        "type": "object",
        "description": format!("{list_kind} is a list of {kind}"),
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string", "description": API_VERSION},
            "kind": {"type": "string", "description": KIND},
            "metadata": reference_to(meta, LIST_METADATA, style),
            "items": {
                "type": "array",
                "description": format!("List of {plural}. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md"),
                "items": (style.reference)(item),
            },
        },
    })
}

fn reference_to(name: &str, text: &str, style: &Style<'_>) -> Value {
    style.described(name, text)
}

/// One schema. Below the alternatives of v3 nothing but int-or-string is changed.
fn schema(source: &Value, style: &Style<'_>) -> Map<String, Value> {
    let mut out = source.as_object().cloned().unwrap_or_default();
    let preserve = bool_at(source, PRESERVE);
    if style.v2 {
        for key in ["allOf", "oneOf", "anyOf", "not"] {
            out.remove(key);
        }
        if out.remove("nullable") == Some(Value::Bool(true)) {
            for key in ["type", "items", "properties"] {
                out.remove(key);
            }
        }
        if preserve {
            out.remove("items");
            out.remove("properties");
        }
        let kind = out.get("type").and_then(Value::as_str).unwrap_or_default();
        if kind == "array" && !out.contains_key("items") || preserve && kind == "object" {
            out.remove("type");
        }
        required(source, &mut out);
    } else if bool_at(source, EITHER) {
        either(&mut out);
    }
    if let Some(Value::Object(properties)) = out.get_mut("properties") {
        for property in properties.values_mut() {
            *property = Value::Object(schema(property, style));
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(below) = out.get_mut(key).filter(|below| below.is_object()) {
            *below = Value::Object(schema(below, style));
        }
    }
    if bool_at(source, "x-kubernetes-embedded-resource") && !(style.v2 && preserve) {
        embedded(&mut out, style);
    }
    out
}

/// Fields that may be null have no type in v2, and kubectl would ask for them all the same.
fn required(source: &Value, out: &mut Map<String, Value>) {
    let nullable = |name: &Value| {
        let name = name.as_str().unwrap_or_default();
        bool_at(get(get(source, "properties"), name), "nullable")
    };
    let all = bool_at(get(source, "additionalProperties"), "nullable");
    let kept: Vec<Value> = if out.contains_key("properties") {
        let list = items(source, "required").iter().filter(|name| !nullable(name));
        list.cloned().collect()
    } else {
        items(source, "required").to_vec()
    };
    if all || kept.is_empty() {
        out.remove("required");
    } else {
        out.insert("required".into(), Value::Array(kept));
    }
}

/// Says in v3 that a value is an integer or a string, unless the schema does so itself.
fn either(out: &mut Map<String, Value>) {
    let pattern = json!([{"type": "integer"}, {"type": "string"}]);
    let said = out.get("anyOf") == Some(&pattern)
        || out
            .get("allOf")
            .and_then(|all| all.get(0))
            .is_some_and(|one| get(one, "anyOf") == &pattern);
    if said {
        return;
    }
    if !out.contains_key("anyOf") {
        out.insert("anyOf".into(), pattern);
        return;
    }
    let mut all = vec![json!({"anyOf": pattern})];
    if let Some(Value::Array(list)) = out.remove("allOf") {
        all.extend(list);
    }
    out.insert("allOf".into(), Value::Array(all));
}

fn embedded(out: &mut Map<String, Value>, style: &Style<'_>) {
    let meta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    let own = [
        ("apiVersion", json!({"type": "string", "description": EMBEDDED_API_VERSION})),
        ("kind", json!({"type": "string", "description": EMBEDDED_KIND})),
        ("metadata", reference_to(meta, METADATA, style)),
    ];
    let properties = out.entry("properties").or_insert_with(|| json!({}));
    for (name, value) in own {
        crate::value::set(properties, name, value);
    }
    let required = out.entry("required").or_insert_with(|| json!([]));
    if let Value::Array(list) = required {
        for name in ["kind", "apiVersion"] {
            if !list.iter().any(|one| one == name) {
                list.push(name.into());
            }
        }
    }
}

/// The names of formats that Kubernetes 1.37 does not check, each once, in the order of the fields; told as warnings when a
/// definition is written.
pub fn unrecognized_formats(source: &Value) -> Vec<String> {
    let mut found = Vec::new();
    collect(source, &mut found, 0);
    found
}

fn collect(source: &Value, found: &mut Vec<String>, depth: usize) {
    if depth > crate::codec::DEPTH_MAX {
        return;
    }
    let kind = match str_at(source, "type") {
        _ if bool_at(source, EITHER) => None,
        name => super::node::Type::parse(name),
    };
    let format = str_at(source, "format");
    if !super::formats::Format::known(format, kind) && !found.iter().any(|known| known == format) {
        found.push(format.to_owned());
    }
    for key in ["items", "additionalProperties", "not"] {
        collect(get(source, key), found, depth + 1);
    }
    for below in get(source, "properties").as_object().into_iter().flat_map(Map::values) {
        collect(below, found, depth + 1);
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        for below in items(source, key) {
            collect(below, found, depth + 1);
        }
    }
}
