//! Decodes protobuf messages to JSON values in normal form (see `codec::normal`).
//!
//! Parameters named `kind` are the wire type of the current field.

use base64::Engine as _;
use serde_json::{Map, Number, Value};

use super::super::time::{Moment, Precision, ZERO_SECONDS, duration_text};
use super::super::{DEPTH_MAX, DecodeError, json, leaf, normal};
use super::wire::Reader;
use super::{decode_object, is_enveloped};
use crate::schema::{Field, Node, Schema, Shape, Type, TypeId, What};

/// The last second of the year 9999, the latest time in JSON.
const SECONDS_MAX: i64 = 253_402_300_799;

/// Decodes a message of the type `id`.
pub(super) fn message(schema: &Schema, id: TypeId, data: &[u8]) -> Result<Value, DecodeError> {
    struct_value(schema, id, data, 0)
}

fn struct_value(
    schema: &Schema,
    id: TypeId,
    data: &[u8],
    depth: usize,
) -> Result<Value, DecodeError> {
    if depth > DEPTH_MAX {
        return Err(DecodeError::Syntax("exceeded max depth".into()));
    }
    let ty = schema.get(id);
    let mut map = Map::new();
    fields(schema, ty, &ty.proto, data, &mut map, depth)?;
    normal::finish(schema, ty, &mut map, depth);
    Ok(Value::Object(map))
}

/// Decodes all fields of a message into `map`. `nodes` are the known tags of the message, sorted;
/// unknown tags are skipped. The fields of an inlined struct go into the same map.
fn fields(
    schema: &Schema,
    ty: &Type,
    nodes: &[Node],
    data: &[u8],
    map: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), DecodeError> {
    let mut reader = Reader::new(data);
    while let Some((tag, kind)) = reader.key()? {
        let node = nodes.binary_search_by_key(&tag, |n| n.tag).ok().and_then(|i| nodes.get(i));
        match node.map(|n| &n.what) {
            Some(What::Inlined(inner)) => {
                fields(schema, ty, inner, reader.bytes(kind)?, map, depth + 1)?
            }
            Some(What::Field(position)) => match ty.fields.get(*position as usize) {
                Some(field) => add_field(schema, field, &mut reader, kind, map, depth)?,
                None => reader.skip(kind)?,
            },
            None => reader.skip(kind)?,
        }
    }
    Ok(())
}

/// Decodes one occurrence of a field into the object. An occurrence extends a list or a map and
/// replaces any other value.
fn add_field(
    schema: &Schema,
    field: &Field,
    reader: &mut Reader<'_>,
    kind: u8,
    map: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), DecodeError> {
    match &field.shape {
        Shape::List(element) if field.wrapped => {
            let list = wrapped_list(schema, element, reader.bytes(kind)?, depth)?;
            map.insert(field.json.to_string(), list);
        }
        Shape::List(element) => {
            let slot = map.entry(field.json.as_ref()).or_insert_with(|| Value::Array(Vec::new()));
            let Value::Array(list) = slot else { return Ok(()) };
            // A length-delimited field (wire type 2) contains packed numbers.
            let packed =
                kind == 2 && matches!(element.as_ref(), Shape::Int32 | Shape::Int64 | Shape::Bool);
            if packed {
                let mut inner = Reader::new(reader.bytes(kind)?);
                while !inner.is_empty() {
                    // Each packed number is a varint (wire type 0).
                    list.push(value_of_shape(schema, element, &mut inner, 0, depth)?);
                }
            } else {
                list.push(value_of_shape(schema, element, reader, kind, depth)?);
            }
        }
        Shape::Map(element) => {
            let (key, value) = map_entry(schema, element, reader.bytes(kind)?, depth)?;
            let slot = map.entry(field.json.as_ref()).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(inner) = slot {
                inner.insert(key, value);
            }
        }
        shape => {
            let value = value_of_shape(schema, shape, reader, kind, depth)?;
            map.insert(field.json.to_string(), value);
        }
    }
    Ok(())
}

/// Decodes an entry of a map: a message with the key under tag 1 and the value under tag 2.
fn map_entry(
    schema: &Schema,
    element: &Shape,
    data: &[u8],
    depth: usize,
) -> Result<(String, Value), DecodeError> {
    let mut reader = Reader::new(data);
    let (mut key, mut value) = (String::new(), None);
    while let Some((tag, kind)) = reader.key()? {
        match tag {
            1 => key = reader.text(kind)?,
            2 => value = Some(value_of_shape(schema, element, &mut reader, kind, depth)?),
            _ => reader.skip(kind)?,
        }
    }
    let absent = || match element {
        // Upstream's generated code initializes the value with empty bytes instead of nil.
        Shape::Bytes => Value::String(String::new()),
        _ => normal::zero(schema, element, depth + 1),
    };
    Ok((key, value.unwrap_or_else(absent)))
}

/// Decodes a list that protobuf wraps in a separate message; the elements have tag 1.
fn wrapped_list(
    schema: &Schema,
    element: &Shape,
    data: &[u8],
    depth: usize,
) -> Result<Value, DecodeError> {
    let mut reader = Reader::new(data);
    let mut list = Vec::new();
    while let Some((tag, kind)) = reader.key()? {
        if tag == 1 {
            list.push(value_of_shape(schema, element, &mut reader, kind, depth)?);
        } else {
            reader.skip(kind)?;
        }
    }
    Ok(Value::Array(list))
}

/// Decodes one value of this shape.
fn value_of_shape(
    schema: &Schema,
    shape: &Shape,
    reader: &mut Reader<'_>,
    kind: u8,
    depth: usize,
) -> Result<Value, DecodeError> {
    Ok(match shape {
        Shape::String => Value::String(reader.text(kind)?),
        Shape::Bool => Value::Bool(reader.varint(kind)? != 0),
        Shape::Int32 => Value::from(int32(reader.varint(kind)?)),
        Shape::Int64 => Value::from(reader.varint(kind)?.cast_signed()),
        Shape::Double => double(reader.double(kind)?),
        Shape::Bytes => Value::String(leaf::BASE64.encode(reader.bytes(kind)?)),
        Shape::Quantity => quantity(reader.bytes(kind)?)?,
        Shape::Time => time(reader.bytes(kind)?, Precision::Seconds)?,
        Shape::MicroTime => time(reader.bytes(kind)?, Precision::Micros)?,
        Shape::Duration => {
            let nanos = last_varint(reader.bytes(kind)?, 1)?.cast_signed();
            Value::String(duration_text(nanos))
        }
        Shape::IntOrString => int_or_string(reader.bytes(kind)?)?,
        Shape::RawExtension | Shape::FieldsV1 | Shape::Any => {
            embedded_object(schema, reader.bytes(kind)?)?
        }
        Shape::PropsOrBool(id) => schema_or_other(schema, *id, reader.bytes(kind)?, (2, 0), depth)?,
        Shape::PropsOrList(id) => schema_or_other(schema, *id, reader.bytes(kind)?, (1, 2), depth)?,
        Shape::PropsOrStrings(id) => schema_or_strings(schema, *id, reader.bytes(kind)?, depth)?,
        Shape::Struct(id) => struct_value(schema, *id, reader.bytes(kind)?, depth + 1)?,
        Shape::List(element) => wrapped_list(schema, element, reader.bytes(kind)?, depth)?,
        Shape::Map(_) | Shape::Typed(_) => {
            return Err(DecodeError::Syntax("proto: a map inside a list or map".into()));
        }
    })
}

/// Converts a number to the form in which Go encodes it in JSON: whole numbers without a fraction.
fn double(number: f64) -> Value {
    match number.to_string().parse::<i64>() {
        Ok(whole) => Value::Number(whole.into()),
        Err(_) => Number::from_f64(number).map_or(Value::Null, Value::Number),
    }
}

/// Truncates a varint to 32 bits: protobuf sign-extends 32-bit numbers to 64 bits.
#[allow(clippy::cast_possible_truncation, reason = "as protobuf defines it")]
fn int32(value: u64) -> i32 {
    value as i32
}

/// Returns the last varint of a message with this tag, or zero.
fn last_varint(data: &[u8], wanted: u32) -> Result<u64, DecodeError> {
    let mut reader = Reader::new(data);
    let mut value = 0;
    while let Some((tag, kind)) = reader.key()? {
        if tag == wanted {
            value = reader.varint(kind)?;
        } else {
            reader.skip(kind)?;
        }
    }
    Ok(value)
}

/// Decodes a Quantity: a message with the text under tag 1.
fn quantity(data: &[u8]) -> Result<Value, DecodeError> {
    let mut reader = Reader::new(data);
    let mut value = Value::String("0".into());
    while let Some((tag, kind)) = reader.key()? {
        if tag == 1 {
            value = leaf::quantity(&reader.text(kind)?)
                .map_err(|error| DecodeError::Type(error.to_string()))?;
        } else {
            reader.skip(kind)?;
        }
    }
    Ok(value)
}

/// Decodes a Time or MicroTime: seconds under tag 1 and nanoseconds under tag 2. The zero time is
/// null.
fn time(data: &[u8], precision: Precision) -> Result<Value, DecodeError> {
    if data.is_empty() {
        return Ok(Value::Null);
    }
    let seconds = last_varint(data, 1)?.cast_signed();
    let nanos = if precision == Precision::Micros { int32(last_varint(data, 2)?) } else { 0 };
    let nanos = u32::try_from(nanos).ok().filter(|n| *n < 1_000_000_000);
    let moment = nanos
        .filter(|_| (ZERO_SECONDS..=SECONDS_MAX).contains(&seconds))
        .map(|nanos| Moment { seconds, nanos });
    let moment = moment.ok_or_else(|| {
        DecodeError::Type("Time.MarshalJSON: year outside of range [0,9999]".into())
    })?;
    Ok(if moment.is_zero() { Value::Null } else { Value::String(moment.text(precision)) })
}

/// Decodes an IntOrString: its type under tag 1, the number under tag 2, the string under tag 3.
fn int_or_string(data: &[u8]) -> Result<Value, DecodeError> {
    let mut reader = Reader::new(data);
    let (mut value_type, mut number, mut text) = (0, 0, String::new());
    while let Some((tag, kind)) = reader.key()? {
        match tag {
            1 => value_type = reader.varint(kind)?,
            2 => number = int32(reader.varint(kind)?),
            3 => text = reader.text(kind)?,
            _ => reader.skip(kind)?,
        }
    }
    match value_type {
        0 => Ok(number.into()),
        1 => Ok(text.into()),
        _ => Err(DecodeError::Type("impossible IntOrString.Type".into())),
    }
}

/// Decodes embedded JSON, or an embedded object with the envelope of Kubernetes' protobuf.
fn embedded_object(schema: &Schema, data: &[u8]) -> Result<Value, DecodeError> {
    let mut reader = Reader::new(data);
    let mut value = Value::Null;
    while let Some((tag, kind)) = reader.key()? {
        if tag != 1 {
            reader.skip(kind)?;
            continue;
        }
        let bytes = reader.bytes(kind)?;
        value = if bytes.is_empty() {
            Value::Null
        } else if is_enveloped(bytes) {
            decode_object(schema, bytes)?.1
        } else {
            json::parse(bytes)?
        };
    }
    Ok(value)
}

/// Decodes `JSONSchemaPropsOrBool` or `JSONSchemaPropsOrArray`: a schema under the first of `tags`,
/// a list of schemas under the second (0 if there is none), otherwise a boolean under tag 1.
fn schema_or_other(
    schema: &Schema,
    id: TypeId,
    data: &[u8],
    tags: (u32, u32),
    depth: usize,
) -> Result<Value, DecodeError> {
    let mut reader = Reader::new(data);
    let (mut single, mut list, mut allows) = (None, Vec::new(), false);
    while let Some((tag, kind)) = reader.key()? {
        if tag == tags.0 {
            single = Some(struct_value(schema, id, reader.bytes(kind)?, depth + 1)?);
        } else if tag == tags.1 {
            list.push(struct_value(schema, id, reader.bytes(kind)?, depth + 1)?);
        } else if tag == 1 {
            allows = reader.varint(kind)? != 0;
        } else {
            reader.skip(kind)?;
        }
    }
    Ok(match single {
        _ if !list.is_empty() => Value::Array(list),
        Some(single) => single,
        None if tags.1 == 0 => Value::Bool(allows),
        None => Value::Null,
    })
}

/// Decodes `JSONSchemaPropsOrStringArray`: a schema under tag 1, or strings under tag 2.
fn schema_or_strings(
    schema: &Schema,
    id: TypeId,
    data: &[u8],
    depth: usize,
) -> Result<Value, DecodeError> {
    let mut reader = Reader::new(data);
    let (mut single, mut list) = (Value::Null, Vec::new());
    while let Some((tag, kind)) = reader.key()? {
        match tag {
            1 => single = struct_value(schema, id, reader.bytes(kind)?, depth + 1)?,
            2 => list.push(Value::String(reader.text(kind)?)),
            _ => reader.skip(kind)?,
        }
    }
    Ok(if list.is_empty() { single } else { Value::Array(list) })
}
