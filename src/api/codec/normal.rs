//! The normal form of objects: the JSON that Go writes after it has read an object. It omits the
//! zero values that `omitempty` drops and contains all others.

use serde_json::{Map, Value};

use super::leaf::{self, TextError};
use super::time::Precision;
use crate::schema::{Field, Schema, Shape, Type, TypeId};

/// The deepest nesting of zero structs. The structs of the table are nested less deeply, because
/// every recursive struct is a pointer.
const ZERO_DEPTH_MAX: usize = super::DEPTH_MAX;

/// Converts an object of this type to normal form. Defaults, patches and other changes of the tree
/// require it.
///
/// Values of a wrong type stay unchanged, because only a decoder rejects them.
pub fn normalize(schema: &Schema, type_id: TypeId, value: &mut Value) {
    normalize_shape(schema, &Shape::Struct(type_id), value, 0);
}

/// Converts like [`normalize`] an object of a kind that upstream stores as protobuf. Protobuf does
/// not distinguish an empty list or map from an absent one, nor empty bytes from nil.
pub fn normalize_stored(schema: &Schema, type_id: TypeId, value: &mut Value) {
    normalize(schema, type_id, value);
    nil_empty(schema, &Shape::Struct(type_id), value, 0);
}

fn nil_empty(schema: &Schema, shape: &Shape, value: &mut Value, depth: usize) {
    if depth > ZERO_DEPTH_MAX {
        return;
    }
    match (shape, value) {
        (Shape::Struct(id), Value::Object(map)) => {
            let ty = schema.get(*id);
            for (key, inner) in map {
                if let Some(field) = ty.field(key) {
                    match (&field.shape, &*inner) {
                        (Shape::List(_), Value::Array(list)) if list.is_empty() => {
                            *inner = Value::Null;
                        }
                        (Shape::Map(_), Value::Object(entries)) if entries.is_empty() => {
                            *inner = Value::Null;
                        }
                        (shape, _) => nil_empty(schema, shape, inner, depth + 1),
                    }
                }
            }
        }
        (Shape::List(element), Value::Array(list)) => {
            list.iter_mut().for_each(|inner| nil_empty(schema, element, inner, depth + 1));
        }
        // For a map of bytes, protobuf keeps the key of a nil value and decodes it as empty bytes.
        (Shape::Map(element), Value::Object(map)) if matches!(**element, Shape::Bytes) => {
            let none = map.values_mut().filter(|inner| inner.is_null());
            none.for_each(|inner| *inner = Value::String(String::new()));
        }
        (Shape::Map(element), Value::Object(map)) => {
            map.values_mut().for_each(|inner| nil_empty(schema, element, inner, depth + 1));
        }
        _ => {}
    }
}

fn normalize_shape(schema: &Schema, shape: &Shape, value: &mut Value, depth: usize) {
    if depth > ZERO_DEPTH_MAX {
        return;
    }
    match (shape, &mut *value) {
        (
            Shape::Struct(id)
            | Shape::PropsOrBool(id)
            | Shape::PropsOrStrings(id)
            | Shape::PropsOrList(id),
            Value::Object(map),
        ) => {
            let ty = schema.get(*id);
            map.retain(|key, _| ty.open || ty.position(key).is_some());
            for (key, inner) in map.iter_mut() {
                let Some(field) = ty.field(key) else { continue };
                if let (Shape::Time, Value::String(text)) = (&field.shape, &*inner) {
                    replace(leaf::time(text, leaf::precision_of(&ty.name)), inner);
                } else {
                    normalize_shape(schema, &field.shape, inner, depth + 1);
                }
            }
            finish(schema, ty, map, depth);
        }
        (Shape::List(element), Value::Array(list)) => {
            for inner in list {
                normalize_element(schema, element, inner, depth);
            }
        }
        (Shape::PropsOrList(id), Value::Array(list)) => {
            for inner in list {
                normalize_shape(schema, &Shape::Struct(*id), inner, depth + 1);
            }
        }
        (Shape::Map(element), Value::Object(map)) => {
            for (_, inner) in map.iter_mut() {
                normalize_element(schema, element, inner, depth);
            }
        }
        (Shape::Quantity, Value::String(text)) => replace(leaf::quantity(text), value),
        (Shape::Quantity, Value::Number(number)) => {
            replace(leaf::quantity(&number.to_string()), value)
        }
        (Shape::Time, Value::String(text)) => replace(leaf::time(text, Precision::Seconds), value),
        (Shape::MicroTime, Value::String(text)) => {
            replace(leaf::time(text, Precision::Micros), value)
        }
        (Shape::Duration, Value::String(text)) => replace(leaf::duration(text), value),
        (Shape::Bytes, Value::String(text)) => replace(leaf::bytes(text), value),
        _ => {}
    }
}

fn normalize_element(schema: &Schema, element: &Shape, value: &mut Value, depth: usize) {
    if value.is_null() {
        *value = zero(schema, element, depth + 1);
    } else {
        normalize_shape(schema, element, value, depth + 1);
    }
}

fn replace(normal: Result<Value, TextError>, value: &mut Value) {
    if let Ok(normal) = normal {
        *value = normal;
    }
}

/// Returns whether an object contains empty lists or maps that the normal form omits. The decoder
/// keeps those of the request until the object is stored, because errors distinguish them from
/// absent values.
pub fn has_empties(schema: &Schema, type_id: TypeId, value: &Value) -> bool {
    shape_has_empties(schema, &Shape::Struct(type_id), value, 0)
}

fn shape_has_empties(schema: &Schema, shape: &Shape, value: &Value, depth: usize) -> bool {
    if depth > ZERO_DEPTH_MAX {
        return false;
    }
    let inner = |shape: &Shape, value: &Value| shape_has_empties(schema, shape, value, depth + 1);
    match (shape, value) {
        (Shape::Struct(id), Value::Object(map)) => {
            let ty = schema.get(*id);
            map.iter().filter_map(|(key, value)| Some((ty.field(key)?, value))).any(
                |(field, value)| {
                    is_container(value) && (dropped(field, value) || inner(&field.shape, value))
                },
            )
        }
        (Shape::List(element), Value::Array(list)) => {
            list.iter().any(|value| is_container(value) && inner(element, value))
        }
        (Shape::Map(element), Value::Object(map)) => {
            map.values().any(|value| is_container(value) && inner(element, value))
        }
        _ => false,
    }
}

fn is_container(value: &Value) -> bool {
    value.is_array() || value.is_object()
}

/// Completes a struct whose values are in normal form: adds the fields that Go always writes and
/// removes those that it omits.
pub(super) fn finish(schema: &Schema, ty: &Type, map: &mut Map<String, Value>, depth: usize) {
    complete(schema, ty, map, depth, false);
}

/// Completes like [`finish`] a struct of a request, and keeps its empty lists and maps.
pub(super) fn finish_sent(schema: &Schema, ty: &Type, map: &mut Map<String, Value>, depth: usize) {
    complete(schema, ty, map, depth, true);
}

fn complete(schema: &Schema, ty: &Type, map: &mut Map<String, Value>, depth: usize, sent: bool) {
    for field in &ty.fields {
        match map.get(field.json.as_ref()) {
            Some(value) => {
                if value.is_null() && (field.pointer || !keeps_null(field)) {
                    map.remove(field.json.as_ref());
                } else if dropped(field, value) && !(sent && is_container(value)) {
                    map.remove(field.json.as_ref());
                    continue;
                } else {
                    continue;
                }
            }
            None if field.omit_empty && (field.pointer || !always_written(&field.shape)) => {
                continue;
            }
            None => {}
        }
        if let Some(value) = absent(schema, field, depth) {
            map.insert(field.json.to_string(), value);
        }
    }
}

/// Returns whether Go writes null for the zero value of the field.
fn keeps_null(field: &Field) -> bool {
    matches!(field.shape, Shape::Any)
}

/// Returns whether `omitempty` never drops the shape, which applies to Go structs.
fn always_written(shape: &Shape) -> bool {
    matches!(
        shape,
        Shape::Struct(_)
            | Shape::Quantity
            | Shape::Time
            | Shape::MicroTime
            | Shape::Duration
            | Shape::IntOrString
            | Shape::RawExtension
            | Shape::FieldsV1
            | Shape::Any
            | Shape::PropsOrBool(_)
            | Shape::PropsOrList(_)
            | Shape::PropsOrStrings(_)
    )
}

/// Returns whether `omitempty` drops this value.
fn dropped(field: &Field, value: &Value) -> bool {
    if !field.omit_empty {
        return false;
    }
    match (&field.shape, value) {
        (Shape::List(_), Value::Array(list)) => list.is_empty(),
        (Shape::Map(_), Value::Object(map)) => map.is_empty(),
        (Shape::Bytes, Value::String(text)) => text.is_empty(),
        (Shape::String, Value::String(text)) => !field.pointer && text.is_empty(),
        (Shape::Bool, Value::Bool(value)) => !field.pointer && !value,
        (Shape::Int32 | Shape::Int64, Value::Number(number)) => {
            !field.pointer && number.as_i64() == Some(0)
        }
        (Shape::Double, Value::Number(number)) => !field.pointer && number.as_f64() == Some(0.0),
        _ => false,
    }
}

/// Returns the value that Go writes for an absent field, if any.
fn absent(schema: &Schema, field: &Field, depth: usize) -> Option<Value> {
    if field.pointer {
        return (!field.omit_empty).then_some(Value::Null);
    }
    if field.omit_zero || field.omit_empty && !always_written(&field.shape) {
        return None;
    }
    Some(zero(schema, &field.shape, depth + 1))
}

/// Returns the value that Go writes for the zero value of a shape.
pub(super) fn zero(schema: &Schema, shape: &Shape, depth: usize) -> Value {
    match shape {
        Shape::String => Value::String(String::new()),
        Shape::Bool => Value::Bool(false),
        Shape::Int32 | Shape::Int64 | Shape::Double | Shape::IntOrString => Value::from(0),
        Shape::Quantity => Value::String("0".into()),
        Shape::Duration => Value::String("0s".into()),
        Shape::Struct(id) => zero_struct(schema, *id, depth),
        Shape::PropsOrBool(_) => Value::Bool(false),
        _ => Value::Null,
    }
}

/// Returns the value that Go writes for a zero struct.
pub(super) fn zero_struct(schema: &Schema, id: TypeId, depth: usize) -> Value {
    let mut map = Map::new();
    if depth < ZERO_DEPTH_MAX {
        finish(schema, schema.get(id), &mut map, depth);
    }
    Value::Object(map)
}

/// Returns the Go type of a shape in the form of error messages.
pub(super) fn go_type(schema: &Schema, shape: &Shape) -> String {
    match shape {
        Shape::String => "string".into(),
        Shape::Bool => "bool".into(),
        Shape::Int32 => "int32".into(),
        Shape::Int64 => "int64".into(),
        Shape::Double => "float64".into(),
        Shape::Bytes => "[]uint8".into(),
        Shape::Quantity => "resource.Quantity".into(),
        Shape::Time => "v1.Time".into(),
        Shape::MicroTime => "v1.MicroTime".into(),
        Shape::Duration => "v1.Duration".into(),
        Shape::IntOrString => "intstr.IntOrString".into(),
        Shape::RawExtension => "runtime.RawExtension".into(),
        Shape::FieldsV1 => "v1.FieldsV1".into(),
        Shape::Any => "v1.JSON".into(),
        Shape::PropsOrBool(_) => "v1.JSONSchemaPropsOrBool".into(),
        Shape::PropsOrList(_) => "v1.JSONSchemaPropsOrArray".into(),
        Shape::PropsOrStrings(_) => "v1.JSONSchemaPropsOrStringArray".into(),
        Shape::Struct(id) => schema.get(*id).go_type().to_owned(),
        Shape::List(element) => format!("[]{}", go_type(schema, element)),
        Shape::Map(element) => format!("map[string]{}", go_type(schema, element)),
        Shape::Typed(field) => go_type(schema, &field.shape),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Gvk;
    use serde_json::json;

    #[test]
    fn what_protobuf_stores_knows_no_empty_lists() {
        let schema = Schema::builtin();
        let role = schema.kind(&Gvk::new("rbac.authorization.k8s.io", "v1", "Role")).unwrap();
        let mut value = json!({"kind": "Role", "metadata": {"name": "r"}, "rules": []});
        normalize_stored(&schema, role, &mut value);
        assert_eq!(value["rules"], Value::Null);
        let mut value = json!({"kind": "Role", "metadata": {"name": "r"}, "rules": []});
        normalize(&schema, role, &mut value);
        assert_eq!(value["rules"], json!([]));
    }
}
