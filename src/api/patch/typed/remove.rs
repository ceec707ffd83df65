//! Removal of fields from a value, and the insertion of named struct fields into a set.

use serde_json::{Map, Value};

use super::{Form, Kind, Ty, form, item_element, of_element, of_member};
use crate::fields::{Element, Set};
use crate::schema::Schema;

/// Removes the members of the set from a value. As in upstream, a container that loses its last
/// member becomes null.
pub(in crate::patch) fn remove(schema: &Schema, ty: Ty<'_>, value: &Value, items: &Set) -> Value {
    if items.is_empty() {
        return value.clone();
    }
    match (form(ty.kind, value), ty.kind) {
        (Form::Map(Some(map)), kind) => {
            if ty.atomic || map.is_empty() {
                return Value::Null;
            }
            let mut out = Map::new();
            for (name, value) in map {
                let (member, below) = items.get(&Element::field(name));
                if member {
                    continue;
                }
                let kept = match of_member(schema, kind, name) {
                    Some((child, _)) if !below.is_empty() => remove(schema, child, value, below),
                    _ => value.clone(),
                };
                out.insert(name.clone(), kept);
            }
            if out.is_empty() { Value::Null } else { Value::Object(out) }
        }
        (Form::List(Some(list)), Kind::List(shape, list_type)) => {
            if ty.atomic || list.is_empty() {
                return Value::Null;
            }
            let mut out = Vec::with_capacity(list.len());
            for item in list {
                let Ok(element) = item_element(schema, shape, list_type, item) else {
                    out.push(item.clone());
                    continue;
                };
                let (member, below) = items.get(&element);
                if !member {
                    out.push(remove(schema, of_element(schema, shape), item, below));
                }
            }
            if out.is_empty() { Value::Null } else { Value::Array(out) }
        }
        _ => value.clone(),
    }
}

/// Adds every declared struct field on the path to a member to the set.
pub(in crate::patch) fn named_fields(schema: &Schema, ty: Option<Ty<'_>>, set: &Set) -> Set {
    let mut out = Set::new();
    for (element, member, below) in set.iter() {
        let (child, declared) = match (element.name(), ty.map(|t| t.kind)) {
            (Some(name), Some(kind)) => of_member(schema, kind, name)
                .map_or((None, false), |(ty, declared)| (Some(ty), declared)),
            (None, Some(Kind::List(shape, _))) => (Some(of_element(schema, shape)), false),
            _ => (None, false),
        };
        out.put(
            element.clone(),
            member || (declared && !below.is_empty()),
            named_fields(schema, child, below),
        );
    }
    out
}

/// Removes null members of structs, as decoding into Go's types does.
pub(in crate::patch) fn drop_nulls(schema: &Schema, ty: Ty<'_>, value: &mut Value) {
    match (ty.kind, value) {
        (Kind::Struct(_) | Kind::Map(_), Value::Object(map)) => {
            if matches!(ty.kind, Kind::Struct(_)) {
                map.retain(|_, v| !v.is_null());
            }
            for (name, value) in map.iter_mut() {
                if let Some((child, _)) = of_member(schema, ty.kind, name) {
                    drop_nulls(schema, child, value);
                }
            }
        }
        (Kind::List(shape, _), Value::Array(list)) => {
            list.iter_mut().for_each(|item| drop_nulls(schema, of_element(schema, shape), item));
        }
        _ => {}
    }
}
