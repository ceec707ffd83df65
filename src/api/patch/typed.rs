//! Operations on values with a schema, as structured-merge-diff defines them: validation, field
//! sets, comparison, merge and removal.

mod compare;
mod merge;
mod remove;
mod validate;

use serde_json::{Map, Value};

pub(super) use compare::{Comparison, compare};
pub(super) use merge::merge;
pub(super) use remove::{drop_nulls, named_fields, remove};
pub use validate::InvalidObject;
pub(super) use validate::{field_set, validate};

use crate::fields::{Element, Set};
use crate::schema::{Field, ListType, Schema, Shape, TypeId};

/// The schema of one value.
#[derive(Clone, Copy)]
pub(super) enum Kind<'a> {
    Struct(TypeId),
    Map(&'a Shape),
    List(&'a Shape, &'a ListType),
    Scalar(Scalar),
    /// No schema: maps are granular, all other values are replaced as a whole.
    Deduced,
}

/// The types of scalars that validation distinguishes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scalar {
    String,
    Number,
    Bool,
    Any,
}

/// A kind, and whether the value is replaced as a whole.
#[derive(Clone, Copy)]
pub(super) struct Ty<'a> {
    pub kind: Kind<'a>,
    pub atomic: bool,
}

static ATOMIC_LIST: ListType = ListType::Atomic;

pub(super) const DEDUCED: Ty<'static> = Ty { kind: Kind::Deduced, atomic: false };

/// The type of an object's root.
pub(super) fn root(schema: &Schema, id: TypeId) -> Ty<'static> {
    Ty { kind: Kind::Struct(id), atomic: schema.get(id).atomic }
}

fn of_shape<'a>(schema: &Schema, shape: &'a Shape, list: &'a ListType, atomic: bool) -> Ty<'a> {
    let kind = match shape {
        Shape::String | Shape::Bytes | Shape::Duration => Kind::Scalar(Scalar::String),
        Shape::Int32 | Shape::Int64 | Shape::Double => Kind::Scalar(Scalar::Number),
        Shape::Bool => Kind::Scalar(Scalar::Bool),
        Shape::Quantity | Shape::Time | Shape::MicroTime => Kind::Scalar(Scalar::Any),
        // A value that is a number or a string has no type in the schema: validation accepts
        // anything, and the decoder reports errors.
        Shape::FieldsV1 | Shape::Any | Shape::IntOrString => Kind::Deduced,
        // Embedded objects and JSON values of several forms are replaced as a whole.
        Shape::RawExtension
        | Shape::PropsOrBool(_)
        | Shape::PropsOrList(_)
        | Shape::PropsOrStrings(_) => {
            return Ty { kind: Kind::Deduced, atomic: true };
        }
        Shape::Struct(id) => {
            return Ty { kind: Kind::Struct(*id), atomic: atomic || schema.get(*id).atomic };
        }
        Shape::List(element) => {
            return Ty { kind: Kind::List(element, list), atomic: *list == ListType::Atomic };
        }
        Shape::Map(value) => Kind::Map(value),
        Shape::Typed(field) => return of_field(schema, field),
    };
    Ty { kind, atomic }
}

/// The type of a shape without a field: a list's element or a map's value.
pub(super) fn of_element<'a>(schema: &Schema, shape: &'a Shape) -> Ty<'a> {
    of_shape(schema, shape, &ATOMIC_LIST, false)
}

pub(super) fn of_field<'a>(schema: &Schema, field: &'a Field) -> Ty<'a> {
    let mut ty = of_shape(schema, &field.shape, &field.list_type, field.atomic);
    // References are replaced as a whole, except for `claimRef` (`+structType=granular` in
    // `k8s.io/api/core/v1`).
    if let Kind::Struct(id) = ty.kind
        && &*field.json == "claimRef"
        && &*schema.get(id).name == "io.k8s.api.core.v1.ObjectReference"
    {
        ty.atomic = false;
    }
    ty
}

/// The type of a member of a map or struct, and whether the struct declares it; `None` when the
/// schema does not allow the member.
pub(super) fn of_member<'a>(
    schema: &'a Schema,
    kind: Kind<'a>,
    name: &str,
) -> Option<(Ty<'a>, bool)> {
    match kind {
        Kind::Struct(id) => {
            let ty = schema.get(id);
            match ty.field(name) {
                Some(field) => Some((of_field(schema, field), true)),
                None => ty.open.then_some((DEDUCED, false)),
            }
        }
        Kind::Map(value) => Some((of_element(schema, value), false)),
        Kind::Deduced => Some((DEDUCED, false)),
        Kind::List(..) | Kind::Scalar(_) => None,
    }
}

/// The form in which a value is processed. For null, upstream prefers map, then scalar, then list.
pub(super) enum Form<'a> {
    Map(Option<&'a Map<String, Value>>),
    List(Option<&'a Vec<Value>>),
    Leaf,
}

/// The form of a value under a kind; a value whose form differs from that of its kind is a leaf.
pub(super) fn form<'a>(kind: Kind<'_>, value: &'a Value) -> Form<'a> {
    match (kind, value) {
        (Kind::Struct(_) | Kind::Map(_) | Kind::Deduced, Value::Object(map)) => {
            Form::Map(Some(map))
        }
        (Kind::Struct(_) | Kind::Map(_) | Kind::Deduced, Value::Null) => Form::Map(None),
        (Kind::List(..), Value::Array(list)) => Form::List(Some(list)),
        (Kind::List(..), Value::Null) => Form::List(None),
        _ => Form::Leaf,
    }
}

/// An element of a list that has no path element; the texts are those of structured-merge-diff.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ElementError {
    #[error("invalid indexing of non-associative list")]
    NotAssociative,
    #[error("associative list without keys has an element that's a map type")]
    SetOfMaps,
    #[error("not supported: associative list with lists as elements")]
    SetOfLists,
    #[error("associative list without keys has an element that's an explicit null")]
    SetOfNull,
    #[error("associative list with keys may not have a null element")]
    NullElement,
    #[error("associative list with keys may not have non-map elements")]
    NoMapElement,
    /// `names` are the quoted names of the keys.
    #[error(
        "associative list with keys has an element that omits all key fields [{}] (and doesn't \
         have default values for any key fields)",
        .names.join(" ")
    )]
    NoKeys { names: Vec<String> },
}

/// The path element of an item of a set or an associative list.
///
/// # Errors
/// Upstream's error when the item has no key or value that identifies it.
pub(super) fn item_element(
    schema: &Schema,
    element: &Shape,
    list: &ListType,
    item: &Value,
) -> Result<Element, ElementError> {
    match list {
        ListType::Atomic => Err(ElementError::NotAssociative),
        ListType::Set => match item {
            Value::Object(_) => Err(ElementError::SetOfMaps),
            Value::Array(_) => Err(ElementError::SetOfLists),
            Value::Null => Err(ElementError::SetOfNull),
            scalar => Ok(Element::value(scalar)),
        },
        ListType::Map(keys) => {
            let map = match item {
                Value::Object(map) => map,
                Value::Null => {
                    return Err(ElementError::NullElement);
                }
                _ => return Err(ElementError::NoMapElement),
            };
            let ty = match element {
                Shape::Struct(id) => Some(schema.get(*id)),
                _ => None,
            };
            let set: Vec<(&str, &Value)> = keys
                .iter()
                .filter_map(|key| {
                    let default = || ty.and_then(|t| t.field(key)).and_then(key_default);
                    map.get(&**key).or_else(default).map(|value| (&**key, value))
                })
                .collect();
            if set.is_empty() && !keys.is_empty() {
                let names: Vec<String> = keys.iter().map(|k| crate::field::go_quote(k)).collect();
                return Err(ElementError::NoKeys { names });
            }
            Ok(Element::keys(set))
        }
    }
}

static NO_TEXT: Value = Value::String(String::new());
static NO_NUMBER: std::sync::LazyLock<Value> = std::sync::LazyLock::new(|| Value::from(0));

/// The value of a key field that an element omits: the field's default, which is the zero value for
/// fields that Go always encodes (`kube-openapi/pkg/generators`, `defaultFromComments` and
/// `mustEnforceDefault`).
fn key_default(field: &Field) -> Option<&Value> {
    if let Some(default) = field.default.as_deref() {
        return Some(default);
    }
    match field.shape {
        _ if field.pointer || field.omit_empty => None,
        Shape::String => Some(&NO_TEXT),
        Shape::Int32 | Shape::Int64 => Some(&NO_NUMBER),
        _ => None,
    }
}

/// The zero value of a Go struct as JSON. It represents an object before its creation, so that
/// fields which are never omitted count as present.
pub(super) fn zero(schema: &Schema, id: TypeId, depth: usize) -> Value {
    let mut map = Map::new();
    // A struct type contains itself only through a pointer or a list, so the recursion ends; the
    // limit is an additional safeguard.
    if depth < 32 {
        for field in schema.get(id).fields.iter().filter(|f| !(f.pointer && f.omit_empty)) {
            let value = match &field.shape {
                // A pointer that Go always encodes, such as a selector, is null.
                _ if field.pointer => Value::Null,
                Shape::Struct(inner) => zero(schema, *inner, depth + 1),
                // Go's `omitempty` never omits a time.
                Shape::Time | Shape::MicroTime if !field.omit_zero => Value::Null,
                _ if field.omit_empty => continue,
                Shape::String => Value::from(""),
                Shape::Bool => Value::from(false),
                Shape::Int32 | Shape::Int64 | Shape::Double | Shape::IntOrString => Value::from(0),
                Shape::Quantity => Value::from("0"),
                Shape::Duration => Value::from("0s"),
                _ => Value::Null,
            };
            map.insert(field.json.to_string(), value);
        }
    }
    Value::Object(map)
}

/// Adapts a set that was written under an older schema: a field that has become atomic is owned as
/// a whole.
pub(super) fn reconcile(schema: &Schema, ty: Ty<'_>, set: &Set) -> Set {
    let mut out = Set::new();
    for (element, member, below) in set.iter() {
        let child = match (element.name(), ty.kind) {
            (Some(name), kind) => of_member(schema, kind, name).map(|(ty, _)| ty),
            (None, Kind::List(shape, _)) => Some(of_element(schema, shape)),
            (None, _) => None,
        };
        match child {
            Some(child) if child.atomic && !below.is_empty() => {
                out.put(element.clone(), true, Set::new())
            }
            Some(child) => out.put(element.clone(), member, reconcile(schema, child, below)),
            None => out.put(element.clone(), member, below.clone()),
        }
    }
    out
}
