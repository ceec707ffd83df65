//! Encodes values in normal form as protobuf messages.

use base64::Engine as _;
use serde_json::{Map, Value};

use super::super::time::{Moment, Precision, parse_duration, parse_time};
use super::super::{DEPTH_MAX, leaf};
use super::EncodeError;
use super::wire::Writer;
use crate::schema::{Field, Node, Schema, Shape, Type, TypeId, What};

type Done = Result<(), EncodeError>;

/// Writes the fields of one struct.
pub(super) fn object(schema: &Schema, id: TypeId, value: &Value, out: &mut Writer) -> Done {
    struct_message(schema, id, value, out, 0)
}

fn struct_message(
    schema: &Schema,
    id: TypeId,
    value: &Value,
    out: &mut Writer,
    depth: usize,
) -> Done {
    if depth > DEPTH_MAX {
        return Err(EncodeError::TooDeep);
    }
    let ty = schema.get(id);
    match value {
        Value::Object(map) => nodes(schema, ty, &ty.proto, map, out, depth),
        Value::Null => nodes(schema, ty, &ty.proto, &Map::new(), out, depth),
        other => Err(mismatch(&ty.name, "object", other)),
    }
}

fn nodes(
    schema: &Schema,
    ty: &Type,
    nodes_: &[Node],
    map: &Map<String, Value>,
    out: &mut Writer,
    depth: usize,
) -> Done {
    for node in nodes_ {
        match &node.what {
            What::Inlined(inner) => {
                out.nested(node.tag, |out| nodes(schema, ty, inner, map, out, depth + 1))?
            }
            What::Field(position) => {
                if let Some(f) = ty.fields.get(*position as usize) {
                    field(schema, f, map.get(f.json.as_ref()), out, depth)?;
                }
            }
        }
    }
    Ok(())
}

/// Writes one field. `None` and null are written as the zero value, or not at all for pointers,
/// lists and maps.
pub(super) fn field(
    schema: &Schema,
    f: &Field,
    value: Option<&Value>,
    out: &mut Writer,
    depth: usize,
) -> Done {
    let value = value.unwrap_or(&Value::Null);
    let nothing = f.pointer || matches!(f.shape, Shape::List(_) | Shape::Map(_) | Shape::Bytes);
    if value.is_null() && nothing {
        return Ok(());
    }
    let writer = FieldWriter { schema, field: f, depth };
    match (&f.shape, value) {
        (Shape::List(element), Value::Array(list)) if f.wrapped => {
            out.nested(f.tag, |out| writer.write_all(element, list, 1, out))
        }
        (Shape::List(element), Value::Array(list)) => writer.write_all(element, list, f.tag, out),
        (Shape::Map(element), Value::Object(map)) => map.iter().try_for_each(|(key, item)| {
            out.nested(f.tag, |out| {
                out.bytes(1, key.as_bytes());
                if item.is_null() && matches!(element.as_ref(), Shape::Bytes) {
                    return Ok(());
                }
                writer.write(element, item, 2, out)
            })
        }),
        (Shape::List(_), other) => Err(mismatch(&f.json, "array", other)),
        (Shape::Map(_), other) => Err(mismatch(&f.json, "object", other)),
        (shape, value) => writer.write(shape, value, f.tag, out),
    }
}

/// Writes the values of one field of a struct.
#[derive(Clone, Copy)]
struct FieldWriter<'a> {
    schema: &'a Schema,
    field: &'a Field,
    /// Nesting depth of the struct that has the field.
    depth: usize,
}

impl FieldWriter<'_> {
    /// Writes every value of a list under the same tag.
    fn write_all(self, shape: &Shape, values: &[Value], tag: u32, out: &mut Writer) -> Done {
        values.iter().try_for_each(|value| self.write(shape, value, tag, out))
    }

    /// Writes one value with a tag. The shape is that of the field or that of its elements.
    fn write(self, shape: &Shape, value: &Value, tag: u32, out: &mut Writer) -> Done {
        let bad = |wanted| mismatch(&self.field.json, wanted, value);
        match shape {
            Shape::String => out.bytes(tag, text(value).ok_or_else(|| bad("string"))?.as_bytes()),
            Shape::Bool => {
                out.varint(tag, u64::from(boolean(value).ok_or_else(|| bad("boolean"))?))
            }
            Shape::Int32 | Shape::Int64 => {
                out.varint(tag, integer(value).ok_or_else(|| bad("integer"))?.cast_unsigned())
            }
            Shape::Double => {
                let number = if value.is_null() {
                    0.0
                } else {
                    value.as_f64().ok_or_else(|| bad("number"))?
                };
                out.double(tag, number);
            }
            Shape::Bytes => {
                let raw = leaf::BASE64
                    .decode(text(value).ok_or_else(|| bad("string"))?)
                    .map_err(|_| bad("base64"))?;
                out.bytes(tag, &raw);
            }
            Shape::Quantity
            | Shape::Time
            | Shape::MicroTime
            | Shape::Duration
            | Shape::IntOrString
            | Shape::RawExtension
            | Shape::FieldsV1
            | Shape::Any => self.write_leaf_message(shape, value, tag, out)?,
            Shape::PropsOrBool(_)
            | Shape::PropsOrList(_)
            | Shape::PropsOrStrings(_)
            | Shape::Struct(_)
            | Shape::List(_) => self.write_message(shape, value, tag, out)?,
            // Custom resources have no protobuf form.
            Shape::Map(_) | Shape::Typed(_) => return Err(bad("value that protobuf can hold")),
        }
        Ok(())
    }

    /// Writes a value for which upstream's types use a separate message: a quantity, a time, a
    /// duration, an `IntOrString` or raw JSON.
    fn write_leaf_message(self, shape: &Shape, value: &Value, tag: u32, out: &mut Writer) -> Done {
        let bad = |wanted| mismatch(&self.field.json, wanted, value);
        match shape {
            Shape::Quantity => {
                let amount =
                    crate::quantity::Quantity::from_value(value).map_err(|_| bad("quantity"))?;
                out.nested(tag, |out| {
                    out.bytes(1, amount.to_string().as_bytes());
                    Done::Ok(())
                })?;
            }
            Shape::Time => moment(value, Precision::Seconds)
                .ok_or_else(|| bad("time"))
                .and_then(|m| time(tag, m, out))?,
            Shape::MicroTime => moment(value, Precision::Micros)
                .ok_or_else(|| bad("time"))
                .and_then(|m| time(tag, m, out))?,
            Shape::Duration => {
                let nanos = if value.is_null() {
                    Some(0)
                } else {
                    value.as_str().and_then(|t| parse_duration(t).ok())
                };
                let nanos = nanos.ok_or_else(|| bad("duration"))?;
                out.nested(tag, |out| {
                    out.varint(1, nanos.cast_unsigned());
                    Done::Ok(())
                })?;
            }
            Shape::IntOrString => out.nested(tag, |out| {
                let (kind, number, name) = match value {
                    Value::String(name) => (1, 0, name.as_str()),
                    other => (0, integer(other).ok_or_else(|| bad("integer"))?, ""),
                };
                out.varint(1, kind);
                out.varint(2, number.cast_unsigned());
                out.bytes(3, name.as_bytes());
                Ok(())
            })?,
            Shape::RawExtension | Shape::FieldsV1 | Shape::Any => out.nested(tag, |out| {
                if !value.is_null() {
                    out.bytes(1, &serde_json::to_vec(value).map_err(|_| bad("JSON"))?);
                }
                Ok(())
            })?,
            _ => return Err(bad("message")),
        }
        Ok(())
    }

    /// Writes a value that is a message: a struct, a list inside a list or map, or a union of the
    /// schema of a CustomResourceDefinition.
    fn write_message(self, shape: &Shape, value: &Value, tag: u32, out: &mut Writer) -> Done {
        match shape {
            Shape::PropsOrBool(id) => out.nested(tag, |out| {
                out.varint(1, u64::from(value.is_object() || value.as_bool() == Some(true)));
                if value.is_object() {
                    self.write_struct(*id, value, 2, out)?;
                }
                Ok(())
            }),
            Shape::PropsOrList(id) => out.nested(tag, |out| match value {
                Value::Array(list) => {
                    list.iter().try_for_each(|v| self.write_struct(*id, v, 2, out))
                }
                Value::Null => Ok(()),
                _ => self.write_struct(*id, value, 1, out),
            }),
            Shape::PropsOrStrings(id) => out.nested(tag, |out| match value {
                Value::Array(list) => self.write_all(&Shape::String, list, 2, out),
                Value::Null => Ok(()),
                _ => self.write_struct(*id, value, 1, out),
            }),
            Shape::Struct(id) => self.write_struct(*id, value, tag, out),
            Shape::List(element) => out.nested(tag, |out| match value {
                Value::Array(list) => self.write_all(element, list, 1, out),
                Value::Null => Ok(()),
                other => Err(mismatch(&self.field.json, "array", other)),
            }),
            _ => Err(mismatch(&self.field.json, "message", value)),
        }
    }

    fn write_struct(self, id: TypeId, value: &Value, tag: u32, out: &mut Writer) -> Done {
        out.nested(tag, |out| struct_message(self.schema, id, value, out, self.depth + 1))
    }
}

fn text(value: &Value) -> Option<&str> {
    if value.is_null() { Some("") } else { value.as_str() }
}

fn boolean(value: &Value) -> Option<bool> {
    if value.is_null() { Some(false) } else { value.as_bool() }
}

fn integer(value: &Value) -> Option<i64> {
    if value.is_null() { Some(0) } else { value.as_i64() }
}

/// Parses a time. The outer option is `None` if the value is not a time, the inner one if it is
/// Go's zero time.
#[allow(clippy::option_option, reason = "two different absences")]
fn moment(value: &Value, precision: Precision) -> Option<Option<Moment>> {
    if value.is_null() {
        return Some(None);
    }
    let moment = parse_time(value.as_str()?, precision).ok()?;
    let nanos = if precision == Precision::Seconds { 0 } else { moment.nanos };
    Some(Some(Moment { nanos, ..moment }).filter(|m| !m.is_zero()))
}

fn time(tag: u32, moment: Option<Moment>, out: &mut Writer) -> Done {
    out.nested(tag, |out| {
        if let Some(moment) = moment {
            out.varint(1, moment.seconds.cast_unsigned());
            out.varint(2, u64::from(moment.nanos));
        }
        Ok(())
    })
}

fn mismatch(field: &str, wanted: &'static str, value: &Value) -> EncodeError {
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    };
    EncodeError::Mismatch { field: field.to_owned(), wanted, found: found.to_owned() }
}
