//! Conversion of the result of a strategic merge patch into a typed object, with the errors of
//! upstream's converter from maps to structs (`apimachinery/pkg/runtime/converter.go`). Unlike the
//! JSON decoder, the converter has its own error texts and truncates numbers to the width of their
//! field.

use serde_json::{Map, Number, Value};

use super::gotext;
use crate::codec::{self, TextError};
use crate::schema::{Field, Schema, Shape, TypeId};

/// A value that does not match its type; the texts are those of apimachinery's
/// `runtime.DefaultUnstructuredConverter`, which name no field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// `from` is Go's kind of the value.
    #[error("cannot restore struct from: {from}")]
    Struct { from: &'static str },
    /// A list or map field with a value of another kind; `to` is Go's kind of the field.
    #[error("cannot restore {to} from {from}")]
    Container { to: &'static str, from: &'static str },
    /// A value of a type other than Go's type of the field.
    #[error("unrecognized type: {0}")]
    Unrecognized(&'static str),
    /// A number that Go does not convert.
    #[error("cannot convert {from} to {to}")]
    Convert { from: &'static str, to: String },
    /// A value of the wrong kind for a type that implements `json.Unmarshaler`.
    #[error("json: cannot unmarshal {value} into Go value of type {to}")]
    Unmarshal { value: String, to: &'static str },
    /// Bytes that are not base64.
    #[error("error decoding from json: {0}")]
    Bytes(#[source] TextError),
    /// A string that is not a time, duration or quantity.
    #[error(transparent)]
    Text(#[from] TextError),
}

/// Converts `value` in place to a value of the type.
///
/// # Errors
///
/// The first error of upstream's converter.
pub fn restore(schema: &Schema, ty: TypeId, value: &mut Value) -> Result<(), RestoreError> {
    match value {
        Value::Null => Ok(()),
        Value::Object(map) => fields(schema, ty, map),
        other => Err(RestoreError::Struct { from: kind(other) }),
    }
}

fn fields(schema: &Schema, ty: TypeId, map: &mut Map<String, Value>) -> Result<(), RestoreError> {
    for field in &schema.get(ty).fields {
        if let Some(value) = map.get_mut(&*field.json) {
            one(schema, &field.shape, Some(field), value)?;
        }
    }
    Ok(())
}

/// Go's kind of a decoded value.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Array(_) => "slice",
        Value::Object(_) => "map",
        other => gotext::type_name(other),
    }
}

fn one(
    schema: &Schema,
    shape: &Shape,
    field: Option<&Field>,
    value: &mut Value,
) -> Result<(), RestoreError> {
    if value.is_null() {
        return Ok(());
    }
    match shape {
        Shape::String => match value {
            Value::String(_) => Ok(()),
            // Go's integers are convertible to strings, but the converter rejects the conversion.
            Value::Number(n) if !n.is_f64() => Err(cannot("int64", named(field, "string"))),
            _ => Err(RestoreError::Unrecognized("string")),
        },
        Shape::Bool => match value {
            Value::Bool(_) => Ok(()),
            _ => Err(RestoreError::Unrecognized("bool")),
        },
        Shape::Int32 => integer(value, "int32", field, |n| i64::from(wrapped(n))),
        Shape::Int64 => integer(value, "int64", field, |n| n),
        Shape::Double => match value {
            Value::Number(_) => Ok(()),
            _ => Err(RestoreError::Unrecognized("float64")),
        },
        Shape::Struct(ty) => restore(schema, *ty, value),
        Shape::List(element) => match value {
            Value::Array(items) => {
                items.iter_mut().try_for_each(|item| one(schema, element, None, item))
            }
            other => Err(RestoreError::Container { to: "slice", from: kind(other) }),
        },
        Shape::Map(element) => match value {
            Value::Object(map) => {
                map.values_mut().try_for_each(|item| one(schema, element, None, item))
            }
            other => Err(RestoreError::Container { to: "map", from: kind(other) }),
        },
        Shape::Bytes => match value {
            Value::String(text) => codec::base64(text).map_err(RestoreError::Bytes),
            Value::Array(list) => {
                let is_number = |byte: &Value| byte.is_number() || byte.is_null();
                match list.iter().all(is_number) {
                    true => Ok(()),
                    false => Err(RestoreError::Unrecognized("uint8")),
                }
            }
            other => Err(RestoreError::Container { to: "slice", from: kind(other) }),
        },
        // These types implement `json.Unmarshaler`.
        Shape::Time | Shape::MicroTime | Shape::Duration if !value.is_string() => {
            Err(unmarshal(value, "string"))
        }
        Shape::Time | Shape::MicroTime | Shape::Duration | Shape::Quantity if value.is_string() => {
            Ok(codec::check_text(shape, value.as_str().unwrap_or_default())?)
        }
        Shape::IntOrString if !value.is_string() && !value.is_number() => {
            Err(unmarshal(value, "int32"))
        }
        Shape::IntOrString
            if value.as_i64().is_none_or(|n| i32::try_from(n).is_err()) && !value.is_string() =>
        {
            Err(RestoreError::Unmarshal { value: format!("number {value}"), to: "int32" })
        }
        // The decoder reports errors of the other types with the same texts.
        _ => Ok(()),
    }
}

fn named<'a>(field: Option<&'a Field>, plain: &'a str) -> &'a str {
    field.and_then(|f| f.go_type.as_deref()).map_or(plain, |name| name.trim_start_matches('*'))
}

fn unmarshal(value: &Value, to: &'static str) -> RestoreError {
    RestoreError::Unmarshal { value: gotext::json_kind(value).to_owned(), to }
}

fn cannot(from: &'static str, to: &str) -> RestoreError {
    RestoreError::Convert { from, to: to.to_owned() }
}

/// Truncates a number to 32 bits, as Go's conversion does.
fn wrapped(number: i64) -> i32 {
    #[expect(clippy::cast_possible_truncation, reason = "Go's conversion keeps the low 32 bits")]
    let low = number as i32;
    low
}

fn integer(
    value: &mut Value,
    plain: &'static str,
    field: Option<&Field>,
    fit: fn(i64) -> i64,
) -> Result<(), RestoreError> {
    let Value::Number(number) = value else {
        return Err(RestoreError::Unrecognized(plain));
    };
    let whole = match (number.as_i64(), number.as_f64()) {
        (Some(whole), _) => whole,
        // The result of Go's conversion of a number outside the range of int64, on the processors
        // that upstream supports.
        (None, Some(float)) if float.abs() >= 9_223_372_036_854_775_808.0 => i64::MIN,
        #[expect(clippy::cast_possible_truncation, reason = "whole, and within i64")]
        (None, Some(float)) if float.fract() == 0.0 => float as i64,
        _ => return Err(cannot("float64", named(field, plain))),
    };
    *value = Value::Number(Number::from(fit(whole)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Gvk;
    use serde_json::json;

    fn restored(
        group: &str,
        version: &str,
        kind: &str,
        mut value: Value,
    ) -> Result<Value, RestoreError> {
        let schema = Schema::builtin();
        let ty = schema.kind(&Gvk::new(group, version, kind)).unwrap();
        restore(&schema, ty, &mut value).map(|()| value)
    }

    /// Recorded answers of kube-apiserver 1.37.1 to strategic merge patches.
    #[test]
    fn errors_have_the_texts_of_the_converter() {
        let refused =
            |group, kind, value| restored(group, "v1", kind, value).unwrap_err().to_string();
        let job = |spec| json!({"spec": spec});
        assert_eq!(
            refused("batch", "CronJob", job(json!({"timeZone": -1}))),
            "cannot convert int64 to string"
        );
        assert_eq!(
            refused("", "Event", json!({"reportingComponent": [1]})),
            "unrecognized type: string"
        );
        let surge = json!({"spec": {"updateStrategy": {"rollingUpdate": {"maxSurge": -2_147_483_649_i64}}}});
        assert_eq!(
            refused("apps", "DaemonSet", surge),
            "json: cannot unmarshal number -2147483649 into Go value of type int32"
        );
        assert_eq!(
            refused("storage.k8s.io", "CSINode", job(json!({"drivers": "a"}))),
            "cannot restore slice from string"
        );
        assert_eq!(refused("", "Pod", job(json!(1))), "cannot restore struct from: int64");
        assert_eq!(
            refused("", "ConfigMap", json!({"metadata": []})),
            "cannot restore struct from: slice"
        );
        assert_eq!(refused("", "ConfigMap", json!({"data": true})), "cannot restore map from bool");
        assert_eq!(
            refused("", "Service", job(json!({"ports": [{"port": "x"}]}))),
            "unrecognized type: int32"
        );
        assert_eq!(
            refused("", "Service", job(json!({"ports": [{"port": 1.5}]}))),
            "cannot convert float64 to int32"
        );
        assert_eq!(
            refused("", "Pod", job(json!({"restartPolicy": 7}))),
            "cannot convert int64 to v1.RestartPolicy"
        );
        assert_eq!(
            refused("", "Secret", json!({"data": {"a": "é"}})),
            "error decoding from json: illegal base64 data at input byte 0"
        );
    }

    #[test]
    fn numbers_are_cut_to_their_field() {
        let service = json!({"spec": {"ports": [{"port": 4_294_967_376_i64}, {"port": 80.0}]}});
        let made = restored("", "v1", "Service", service).unwrap();
        assert_eq!(made, json!({"spec": {"ports": [{"port": 80}, {"port": 80}]}}));
    }
}
