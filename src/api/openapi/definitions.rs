//! OpenAPI schemas of the types of the schema table.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash as _};

use serde_json::{Map, Value, json};
use sorting::CompactSort as _;

use super::Version;
use crate::object::Gvk;
use crate::schema::{Field, ListType, Schema, Shape, Type, TypeId};

/// The kinds of each type.
pub(super) type Kinds = HashMap<TypeId, Vec<Gvk>>;

/// The names of upstream's types with their own JSON form, for which v2 and v3 have fixed
/// definitions.
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
const TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Time";
const MICRO_TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime";
const DURATION: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Duration";
const FIELDS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1";
const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";
const RAW: &str = "io.k8s.apimachinery.pkg.runtime.RawExtension";
const JSON: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON";
const OR_BOOL: &str =
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool";
const OR_LIST: &str =
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray";
const OR_STRINGS: &str =
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrStringArray";

/// Returns these types and all types to which they refer directly or indirectly.
pub(super) fn closure(schema: &Schema, roots: &BTreeSet<TypeId>) -> BTreeSet<TypeId> {
    let mut found = roots.clone();
    let mut open: Vec<TypeId> = roots.iter().copied().collect();
    while let Some(id) = open.pop() {
        for field in &schema.get(id).fields {
            if let Some(next) = struct_in(&field.shape).filter(|next| found.insert(*next)) {
                open.push(next);
            }
        }
    }
    found
}

fn struct_in(shape: &Shape) -> Option<TypeId> {
    match shape {
        Shape::Struct(id)
        | Shape::PropsOrBool(id)
        | Shape::PropsOrList(id)
        | Shape::PropsOrStrings(id) => Some(*id),
        Shape::List(element) | Shape::Map(element) => struct_in(element),
        Shape::Typed(field) => struct_in(&field.shape),
        _ => None,
    }
}

/// Returns the definitions of these types and of all types to which they refer.
pub(super) fn reachable(
    schema: &Schema,
    roots: &BTreeSet<TypeId>,
    version: Version,
    kinds: &Kinds,
) -> Value {
    let mut out = Map::new();
    let mut leaves: BTreeSet<&'static str> = BTreeSet::from([PATCH]);
    for id in closure(schema, roots) {
        let ty = schema.get(id);
        for field in &ty.fields {
            leaves.extend(leaf_in(&field.shape, ty));
        }
        out.insert(ty.name.to_string(), definition(schema, id, version, kinds));
    }
    for name in leaves {
        out.insert(name.to_owned(), leaf(name, version));
    }
    Value::Object(out)
}

fn leaf_in(shape: &Shape, owner: &Type) -> Option<&'static str> {
    match shape {
        Shape::List(element) | Shape::Map(element) => leaf_in(element, owner),
        other => leaf_name(other, owner),
    }
}

fn leaf_name(shape: &Shape, owner: &Type) -> Option<&'static str> {
    Some(match shape {
        Shape::Quantity => QUANTITY,
        Shape::IntOrString => INT_OR_STRING,
        Shape::Time => TIME,
        Shape::MicroTime => MICRO_TIME,
        Shape::Duration => DURATION,
        Shape::FieldsV1 => FIELDS,
        Shape::RawExtension => RAW,
        Shape::Any if owner.name.starts_with("io.k8s.apiextensions-apiserver.") => JSON,
        Shape::PropsOrBool(_) => OR_BOOL,
        Shape::PropsOrList(_) => OR_LIST,
        Shape::PropsOrStrings(_) => OR_STRINGS,
        _ => return None,
    })
}

fn leaf(name: &str, version: Version) -> Value {
    match (name, version) {
        (QUANTITY, Version::V3) => json!({ "oneOf": [{ "type": "string" }, { "type": "number" }] }),
        (INT_OR_STRING, Version::V3) => {
            json!({ "format": "int-or-string", "oneOf": [{ "type": "integer" }, { "type": "string" }] })
        }
        (INT_OR_STRING, Version::V2) => json!({ "format": "int-or-string", "type": "string" }),
        (TIME | MICRO_TIME, _) => json!({ "format": "date-time", "type": "string" }),
        (QUANTITY | DURATION, _) => json!({ "type": "string" }),
        (RAW | FIELDS | PATCH, _) => json!({ "type": "object" }),
        _ => json!({}),
    }
}

/// Returns the definition of a type.
pub(super) fn definition(schema: &Schema, id: TypeId, version: Version, kinds: &Kinds) -> Value {
    let ty = schema.get(id);
    let mut out = Map::new();
    out.insert("type".into(), "object".into());
    let mut properties = Map::new();
    let mut required: Vec<&str> = Vec::new();
    for field in &ty.fields {
        properties.insert(field.json.to_string(), property(schema, ty, field, version));
        if field.required {
            required.push(&field.json);
        }
    }
    if !properties.is_empty() {
        out.insert("properties".into(), Value::Object(properties));
    }
    if !required.is_empty() {
        out.insert("required".into(), json!(required));
    }
    if ty.atomic {
        out.insert("x-kubernetes-map-type".into(), "atomic".into());
    }
    if ty.open {
        out.insert("x-kubernetes-preserve-unknown-fields".into(), true.into());
    }
    if let Some(kinds) = kinds.get(&id) {
        let list: Vec<Value> = kinds
            .iter()
            .map(|k| {
                let (group, kind, version) = (&*k.group, &*k.kind, &*k.version);
                json!({ "group": group, "kind": kind, "version": version })
            })
            .collect();
        out.insert("x-kubernetes-group-version-kind".into(), list.into());
    }
    Value::Object(out)
}

fn property(schema: &Schema, owner: &Type, field: &Field, version: Version) -> Value {
    let mut extras = Map::new();
    if matches!(field.shape, Shape::List(_)) {
        match &field.list_type {
            ListType::Atomic if field.list_atomic => {
                drop(extras.insert("x-kubernetes-list-type".into(), "atomic".into()))
            }
            ListType::Atomic => {}
            ListType::Set => drop(extras.insert("x-kubernetes-list-type".into(), "set".into())),
            ListType::Map(keys) => {
                let keys: Vec<&str> = keys.iter().map(AsRef::as_ref).collect();
                extras.insert("x-kubernetes-list-type".into(), "map".into());
                extras.insert("x-kubernetes-list-map-keys".into(), json!(keys));
            }
        }
    } else if field.atomic {
        extras.insert("x-kubernetes-map-type".into(), "atomic".into());
    }
    let strategy: Vec<&str> =
        [(field.patch.merge, "merge"), (field.patch.retain_keys, "retainKeys")]
            .iter()
            .filter(|(on, _)| *on)
            .map(|(_, n)| *n)
            .collect();
    if !strategy.is_empty() {
        extras.insert("x-kubernetes-patch-strategy".into(), strategy.join(",").into());
    }
    if let Some(key) = &field.patch.merge_key {
        extras.insert("x-kubernetes-patch-merge-key".into(), key.as_ref().into());
    }
    if let Some(text) = describe(&owner.name, &field.json) {
        extras.insert("description".into(), text.into());
    }
    if version == Version::V3 {
        if let Some(default) = default(field) {
            extras.insert("default".into(), default);
        }
    }
    let mut base = shape_schema(schema, owner, &field.shape, &field.allowed, version);
    if base.get("$ref").is_some() && !extras.is_empty() && version == Version::V3 {
        // OpenAPI 3.0 ignores the siblings of a reference.
        base = json!({ "allOf": [base] });
    }
    if let Value::Object(map) = &mut base {
        map.append(&mut extras);
    }
    base
}

/// Returns the description of a field of `metadata`, in one sentence.
fn describe(owner: &str, field: &str) -> Option<&'static str> {
    if owner != "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta" {
        return None;
    }
    Some(match field {
        "name" => {
            "Name is unique among objects of the kind in the namespace, and cannot be changed."
        }
        "generateName" => "GenerateName is what the server begins a name with when none is given.",
        "namespace" => "Namespace is where the object lives; empty for objects of the cluster.",
        "uid" => "UID tells this object from all others that ever had its name.",
        "resourceVersion" => {
            "ResourceVersion changes with every write; it is to be compared for equality only."
        }
        "generation" => "Generation counts the changes of what is wanted.",
        "creationTimestamp" => {
            "CreationTimestamp is a timestamp of the server's time when the object was created."
        }
        "deletionTimestamp" => {
            "DeletionTimestamp is when the object is to go; set by the server when a client deletes it."
        }
        "deletionGracePeriodSeconds" => {
            "DeletionGracePeriodSeconds is how long the object may take to end."
        }
        "labels" => "Labels are keys and values by which objects are selected.",
        "annotations" => "Annotations are keys and values that tools keep with the object.",
        "ownerReferences" => "OwnerReferences are the objects with which this one goes.",
        "finalizers" => "Finalizers must all be taken away before the object goes.",
        "managedFields" => "ManagedFields says who set which field.",
        _ => return None,
    })
}

/// Returns the default in v3: that of the schema table, an empty object for a struct that is always
/// present, and the zero value for a field that is always written.
fn default(field: &Field) -> Option<Value> {
    if let Some(default) = &field.default {
        return Some(default.as_ref().clone());
    }
    if field.pointer {
        return None;
    }
    match field.shape {
        Shape::Struct(_) => Some(json!({})),
        Shape::String if !field.omit_empty => Some("".into()),
        Shape::Bool if !field.omit_empty => Some(false.into()),
        Shape::Int32 | Shape::Int64 | Shape::Double if !field.omit_empty => Some(0.into()),
        _ => None,
    }
}

fn shape_schema(
    schema: &Schema,
    owner: &Type,
    shape: &Shape,
    allowed: &[std::sync::Arc<str>],
    version: Version,
) -> Value {
    if let Some(name) = leaf_name(shape, owner) {
        return version.reference(name);
    }
    match shape {
        Shape::String if !allowed.is_empty() => {
            let mut values: Vec<&str> = allowed.iter().map(AsRef::as_ref).collect();
            values.compact_sort();
            json!({ "type": "string", "enum": values })
        }
        Shape::String => json!({ "type": "string" }),
        Shape::Bool => json!({ "type": "boolean" }),
        Shape::Int32 => json!({ "type": "integer", "format": "int32" }),
        Shape::Int64 => json!({ "type": "integer", "format": "int64" }),
        Shape::Double => json!({ "type": "number", "format": "double" }),
        Shape::Bytes => json!({ "type": "string", "format": "byte" }),
        Shape::Struct(id) => version.reference(&schema.get(*id).name),
        Shape::List(element) => {
            json!({ "type": "array", "items": shape_schema(schema, owner, element, allowed, version) })
        }
        Shape::Map(element) => {
            json!({ "type": "object", "additionalProperties": shape_schema(schema, owner, element, allowed, version) })
        }
        _ => json!({ "x-kubernetes-preserve-unknown-fields": true }),
    }
}

/// Adds a shape to the hash of a document.
pub(super) fn hash_shape(shape: &Shape, hasher: &mut DefaultHasher) {
    std::mem::discriminant(shape).hash(hasher);
    match shape {
        Shape::List(element) | Shape::Map(element) => hash_shape(element, hasher),
        _ => {}
    }
}
