//! OpenAPI documents as protobuf, in the messages of gnostic's `openapiv2` and `openapiv3`, which
//! Go clients request.

use serde_json::{Map, Value};

use super::Version;
use crate::codec::protobuf::wire::Writer;

/// The document has content that its protobuf message cannot represent.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("OpenAPI protobuf: {0}")]
pub struct NotEncodable(String);

type Done = Result<(), NotEncodable>;

/// The protobuf form of a field.
#[derive(Debug, Clone, Copy)]
enum Form {
    Text,
    Texts,
    Flag,
    Whole,
    Real,
    /// Any value as YAML text; JSON is valid YAML.
    Any,
    Anys,
    /// A scalar. An object or a list leaves the message empty, as in gnostic.
    Scalar,
    One(Message),
    Many(Message),
}

/// The messages of gnostic. The digit in a name is the OpenAPI version of a message that only that
/// version has.
#[derive(Debug, Clone, Copy)]
enum Message {
    Document2,
    Document3,
    Info2,
    Info3,
    Paths2,
    Paths3,
    PathItem2,
    PathItem3,
    Operation2,
    Operation3,
    /// A parameter or a reference to a parameter.
    Parameter2,
    Parameter3,
    BodyParameter2,
    QueryParameter2,
    PathParameter2,
    RequestBody3,
    Responses2,
    Responses3,
    Response2,
    Response3,
    MediaTypes3,
    MediaType3,
    /// The wrapper of a schema in OpenAPI v2.
    SchemaItem2,
    Schema2,
    /// A schema or a reference to a schema.
    SchemaOr3,
    Schema3,
    Items2,
    Items3,
    Types2,
    Additional2,
    Additional3,
    Schemas2,
    Schemas3,
    Components3,
    SecurityDefinitions2,
    SecuritySchemes3,
    ApiKey2,
    SecurityScheme3,
    Requirement,
    ExternalDocs,
}

type Fields = &'static [(&'static str, u32, Form)];

/// Returns the fields of a message with their JSON names, and the field number of its extensions
/// (`x-…`).
#[expect(clippy::too_many_lines, reason = "a table of gnostic's messages")]
fn layout(message: Message) -> (Fields, u32) {
    use Form::{Any, Anys, Flag, Many, One, Real, Scalar, Text, Texts, Whole};
    use Message as M;
    match message {
        M::Document2 => (
            &[
                ("swagger", 1, Text),
                ("info", 2, One(M::Info2)),
                ("host", 3, Text),
                ("basePath", 4, Text),
                ("schemes", 5, Texts),
                ("consumes", 6, Texts),
                ("produces", 7, Texts),
                ("paths", 8, One(M::Paths2)),
                ("definitions", 9, One(M::Schemas2)),
                ("security", 12, Many(M::Requirement)),
                ("securityDefinitions", 13, One(M::SecurityDefinitions2)),
                ("externalDocs", 15, One(M::ExternalDocs)),
            ],
            16,
        ),
        M::Document3 => (
            &[
                ("openapi", 1, Text),
                ("info", 2, One(M::Info3)),
                ("paths", 4, One(M::Paths3)),
                ("components", 5, One(M::Components3)),
                ("security", 6, Many(M::Requirement)),
                ("externalDocs", 8, One(M::ExternalDocs)),
            ],
            9,
        ),
        M::Info2 => (
            &[
                ("title", 1, Text),
                ("version", 2, Text),
                ("description", 3, Text),
                ("termsOfService", 4, Text),
            ],
            7,
        ),
        M::Info3 => (
            &[
                ("title", 1, Text),
                ("description", 2, Text),
                ("termsOfService", 3, Text),
                ("version", 6, Text),
                ("summary", 8, Text),
            ],
            7,
        ),
        M::PathItem2 => (
            &[
                ("$ref", 1, Text),
                ("get", 2, One(M::Operation2)),
                ("put", 3, One(M::Operation2)),
                ("post", 4, One(M::Operation2)),
                ("delete", 5, One(M::Operation2)),
                ("options", 6, One(M::Operation2)),
                ("head", 7, One(M::Operation2)),
                ("patch", 8, One(M::Operation2)),
                ("parameters", 9, Many(M::Parameter2)),
            ],
            10,
        ),
        M::PathItem3 => (
            &[
                ("$ref", 1, Text),
                ("summary", 2, Text),
                ("description", 3, Text),
                ("get", 4, One(M::Operation3)),
                ("put", 5, One(M::Operation3)),
                ("post", 6, One(M::Operation3)),
                ("delete", 7, One(M::Operation3)),
                ("options", 8, One(M::Operation3)),
                ("head", 9, One(M::Operation3)),
                ("patch", 10, One(M::Operation3)),
                ("trace", 11, One(M::Operation3)),
                ("parameters", 13, Many(M::Parameter3)),
            ],
            14,
        ),
        M::Operation2 => (
            &[
                ("tags", 1, Texts),
                ("summary", 2, Text),
                ("description", 3, Text),
                ("externalDocs", 4, One(M::ExternalDocs)),
                ("operationId", 5, Text),
                ("produces", 6, Texts),
                ("consumes", 7, Texts),
                ("parameters", 8, Many(M::Parameter2)),
                ("responses", 9, One(M::Responses2)),
                ("schemes", 10, Texts),
                ("deprecated", 11, Flag),
                ("security", 12, Many(M::Requirement)),
            ],
            13,
        ),
        M::Operation3 => (
            &[
                ("tags", 1, Texts),
                ("summary", 2, Text),
                ("description", 3, Text),
                ("externalDocs", 4, One(M::ExternalDocs)),
                ("operationId", 5, Text),
                ("parameters", 6, Many(M::Parameter3)),
                ("requestBody", 7, One(M::RequestBody3)),
                ("responses", 8, One(M::Responses3)),
                ("deprecated", 10, Flag),
                ("security", 11, Many(M::Requirement)),
            ],
            13,
        ),
        M::BodyParameter2 => (
            &[
                ("description", 1, Text),
                ("name", 2, Text),
                ("in", 3, Text),
                ("required", 4, Flag),
                ("schema", 5, One(M::Schema2)),
            ],
            6,
        ),
        M::QueryParameter2 => (
            &[
                ("required", 1, Flag),
                ("in", 2, Text),
                ("description", 3, Text),
                ("name", 4, Text),
                ("allowEmptyValue", 5, Flag),
                ("type", 6, Text),
                ("format", 7, Text),
                ("default", 10, Any),
                ("pattern", 17, Text),
                ("uniqueItems", 20, Flag),
                ("enum", 21, Anys),
            ],
            23,
        ),
        M::PathParameter2 => (
            &[
                ("required", 1, Flag),
                ("in", 2, Text),
                ("description", 3, Text),
                ("name", 4, Text),
                ("type", 5, Text),
                ("format", 6, Text),
                ("default", 9, Any),
                ("pattern", 16, Text),
                ("uniqueItems", 19, Flag),
                ("enum", 20, Anys),
            ],
            22,
        ),
        M::Parameter3 => (
            &[
                ("name", 1, Text),
                ("in", 2, Text),
                ("description", 3, Text),
                ("required", 4, Flag),
                ("deprecated", 5, Flag),
                ("allowEmptyValue", 6, Flag),
                ("style", 7, Text),
                ("explode", 8, Flag),
                ("allowReserved", 9, Flag),
                ("schema", 10, One(M::SchemaOr3)),
                ("example", 11, Any),
                ("content", 13, One(M::MediaTypes3)),
            ],
            14,
        ),
        M::RequestBody3 => (
            &[("description", 1, Text), ("content", 2, One(M::MediaTypes3)), ("required", 3, Flag)],
            4,
        ),
        M::Response2 => (&[("description", 1, Text), ("schema", 2, One(M::SchemaItem2))], 5),
        M::Response3 => (&[("description", 1, Text), ("content", 3, One(M::MediaTypes3))], 5),
        M::MediaType3 => (&[("schema", 1, One(M::SchemaOr3)), ("example", 2, Any)], 5),
        M::Schema2 => (
            &[
                ("$ref", 1, Text),
                ("format", 2, Text),
                ("title", 3, Text),
                ("description", 4, Text),
                ("default", 5, Any),
                ("multipleOf", 6, Real),
                ("maximum", 7, Real),
                ("exclusiveMaximum", 8, Flag),
                ("minimum", 9, Real),
                ("exclusiveMinimum", 10, Flag),
                ("maxLength", 11, Whole),
                ("minLength", 12, Whole),
                ("pattern", 13, Text),
                ("maxItems", 14, Whole),
                ("minItems", 15, Whole),
                ("uniqueItems", 16, Flag),
                ("maxProperties", 17, Whole),
                ("minProperties", 18, Whole),
                ("required", 19, Texts),
                ("enum", 20, Anys),
                ("additionalProperties", 21, One(M::Additional2)),
                ("type", 22, One(M::Types2)),
                ("items", 23, One(M::Items2)),
                ("allOf", 24, Many(M::Schema2)),
                ("properties", 25, One(M::Schemas2)),
                ("discriminator", 26, Text),
                ("readOnly", 27, Flag),
                ("externalDocs", 29, One(M::ExternalDocs)),
                ("example", 30, Any),
            ],
            31,
        ),
        M::Schema3 => (
            &[
                ("nullable", 1, Flag),
                ("readOnly", 3, Flag),
                ("writeOnly", 4, Flag),
                ("externalDocs", 6, One(M::ExternalDocs)),
                ("example", 7, Any),
                ("deprecated", 8, Flag),
                ("title", 9, Text),
                ("multipleOf", 10, Real),
                ("maximum", 11, Real),
                ("exclusiveMaximum", 12, Flag),
                ("minimum", 13, Real),
                ("exclusiveMinimum", 14, Flag),
                ("maxLength", 15, Whole),
                ("minLength", 16, Whole),
                ("pattern", 17, Text),
                ("maxItems", 18, Whole),
                ("minItems", 19, Whole),
                ("uniqueItems", 20, Flag),
                ("maxProperties", 21, Whole),
                ("minProperties", 22, Whole),
                ("required", 23, Texts),
                ("enum", 24, Anys),
                ("type", 25, Text),
                ("allOf", 26, Many(M::SchemaOr3)),
                ("oneOf", 27, Many(M::SchemaOr3)),
                ("anyOf", 28, Many(M::SchemaOr3)),
                ("not", 29, One(M::Schema3)),
                ("items", 30, One(M::Items3)),
                ("properties", 31, One(M::Schemas3)),
                ("additionalProperties", 32, One(M::Additional3)),
                ("default", 33, Scalar),
                ("description", 34, Text),
                ("format", 35, Text),
            ],
            36,
        ),
        M::Components3 => (
            &[("schemas", 1, One(M::Schemas3)), ("securitySchemes", 7, One(M::SecuritySchemes3))],
            10,
        ),
        M::ApiKey2 => {
            (&[("type", 1, Text), ("name", 2, Text), ("in", 3, Text), ("description", 4, Text)], 5)
        }
        M::SecurityScheme3 => (
            &[
                ("type", 1, Text),
                ("description", 2, Text),
                ("name", 3, Text),
                ("in", 4, Text),
                ("scheme", 5, Text),
                ("bearerFormat", 6, Text),
            ],
            9,
        ),
        M::ExternalDocs => (&[("description", 1, Text), ("url", 2, Text)], 3),
        // `message` writes these messages without a layout.
        _ => (&[], 0),
    }
}

/// Encodes a document.
///
/// # Errors
/// Returns an error with the first key that its message lacks.
pub(super) fn document(version: Version, document: &Value) -> Result<Vec<u8>, NotEncodable> {
    let mut writer = Writer::with_capacity(1 << 20);
    let top = match version {
        Version::V2 => Message::Document2,
        Version::V3 => Message::Document3,
    };
    message(&mut writer, top, document)?;
    Ok(writer.finish())
}

fn wrong(what: &str, value: &Value) -> NotEncodable {
    NotEncodable(format!("{what}: {}", value.to_string().chars().take(80).collect::<String>()))
}

fn object(of: Message, value: &Value) -> Result<&Map<String, Value>, NotEncodable> {
    value.as_object().ok_or_else(|| wrong(&format!("{of:?} is no object"), value))
}

/// Writes the body of a message.
fn message(w: &mut Writer, of: Message, value: &Value) -> Done {
    use Message as M;
    match of {
        M::Paths2 => entries(
            w,
            of,
            value,
            |key| if extension(key) { None } else { Some(2) },
            1,
            M::PathItem2,
        ),
        M::Paths3 => entries(
            w,
            of,
            value,
            |key| if extension(key) { None } else { Some(1) },
            2,
            M::PathItem3,
        ),
        M::Responses2 => object(of, value)?
            .iter()
            .try_for_each(|(key, v)| named(w, 1, key, |w| or_reference(w, M::Response2, v))),
        M::Responses3 => object(of, value)?.iter().try_for_each(|(key, v)| match key.as_str() {
            "default" => w.nested(1, |w| or_reference(w, M::Response3, v)),
            _ => named(w, 2, key, |w| or_reference(w, M::Response3, v)),
        }),
        M::MediaTypes3 => entries(w, of, value, |_| Some(1), 0, M::MediaType3),
        M::Schemas2 => entries(w, of, value, |_| Some(1), 0, M::Schema2),
        M::Schemas3 => entries(w, of, value, |_| Some(1), 0, M::SchemaOr3),
        M::SecurityDefinitions2 => object(of, value)?.iter().try_for_each(|(key, v)| {
            if v.get("type").and_then(Value::as_str) != Some("apiKey") {
                return Err(wrong("a security definition other than apiKey", v));
            }
            named(w, 1, key, |w| w.nested(2, |w| message(w, M::ApiKey2, v)))
        }),
        M::SecuritySchemes3 => object(of, value)?
            .iter()
            .try_for_each(|(key, v)| named(w, 1, key, |w| or_reference(w, M::SecurityScheme3, v))),
        M::Requirement => {
            object(of, value)?.iter().try_for_each(|(key, v)| named(w, 1, key, |w| texts(w, 1, v)))
        }
        M::SchemaItem2 => w.nested(1, |w| message(w, M::Schema2, value)),
        M::SchemaOr3 => or_reference(w, M::Schema3, value),
        M::Parameter2 => parameter(w, value),
        M::Parameter3 | M::RequestBody3 => or_reference(w, of, value),
        M::Types2 if value.is_array() => texts(w, 1, value),
        M::Types2 => {
            w.bytes(1, value.as_str().ok_or_else(|| wrong("a type", value))?.as_bytes());
            Ok(())
        }
        M::Items2 | M::Items3 => {
            let inner = if matches!(of, M::Items2) { M::Schema2 } else { M::SchemaOr3 };
            match value.as_array() {
                Some(list) => list.iter().try_for_each(|v| w.nested(1, |w| message(w, inner, v))),
                None => w.nested(1, |w| message(w, inner, value)),
            }
        }
        M::Additional2 | M::Additional3 => match value {
            Value::Bool(allowed) => {
                // A member of a oneof is written even if it is false.
                w.varint(2, u64::from(*allowed));
                Ok(())
            }
            _ if matches!(of, M::Additional2) => w.nested(1, |w| message(w, M::Schema2, value)),
            _ => w.nested(1, |w| message(w, M::SchemaOr3, value)),
        },
        _ => fields(w, of, value),
    }
}

fn extension(key: &str) -> bool {
    key.starts_with("x-")
}

/// Writes a message of fields and extensions.
fn fields(w: &mut Writer, of: Message, value: &Value) -> Done {
    let (fields, extensions) = layout(of);
    for (key, value) in object(of, value)? {
        match fields.iter().find(|(name, _, _)| name == key) {
            Some((_, number, form)) => field(w, *number, *form, value)
                .map_err(|NotEncodable(inner)| NotEncodable(format!("{key}: {inner}")))?,
            None if extension(key) => named(w, extensions, key, |w| any(w, value))?,
            None => return Err(NotEncodable(format!("{of:?} has no field {key}"))),
        }
    }
    Ok(())
}

fn field(w: &mut Writer, number: u32, form: Form, value: &Value) -> Done {
    match form {
        Form::Text => match value.as_str().ok_or_else(|| wrong("no text", value))? {
            "" => {}
            text => w.bytes(number, text.as_bytes()),
        },
        Form::Texts => return texts(w, number, value),
        Form::Flag => {
            if value.as_bool().ok_or_else(|| wrong("no boolean", value))? {
                w.varint(number, 1);
            }
        }
        Form::Whole => match value.as_u64().ok_or_else(|| wrong("no whole number", value))? {
            0 => {}
            whole => w.varint(number, whole),
        },
        Form::Real => {
            let real = value.as_f64().ok_or_else(|| wrong("no number", value))?;
            if real != 0.0 {
                w.double(number, real);
            }
        }
        Form::Any => return w.nested(number, |w| any(w, value)),
        Form::Anys => {
            let list = value.as_array().ok_or_else(|| wrong("no list", value))?;
            return list.iter().try_for_each(|v| w.nested(number, |w| any(w, v)));
        }
        Form::Scalar => {
            return w.nested(number, |w| {
                match value {
                    Value::Number(n) => w.double(1, n.as_f64().unwrap_or_default()),
                    Value::Bool(b) => w.varint(2, u64::from(*b)),
                    Value::String(s) => w.bytes(3, s.as_bytes()),
                    _ => {}
                }
                Ok(())
            });
        }
        Form::One(of) => return w.nested(number, |w| message(w, of, value)),
        Form::Many(of) => {
            let list = value.as_array().ok_or_else(|| wrong("no list", value))?;
            return list.iter().try_for_each(|v| w.nested(number, |w| message(w, of, v)));
        }
    }
    Ok(())
}

fn texts(w: &mut Writer, number: u32, value: &Value) -> Done {
    for text in value.as_array().ok_or_else(|| wrong("no list", value))? {
        w.bytes(number, text.as_str().ok_or_else(|| wrong("no text", text))?.as_bytes());
    }
    Ok(())
}

/// Writes gnostic's message `Any`: the value as YAML.
fn any(w: &mut Writer, value: &Value) -> Done {
    w.bytes(2, format!("{value}\n").as_bytes());
    Ok(())
}

/// Writes a pair of a name and a value, which is an entry of gnostic's maps.
fn named(w: &mut Writer, number: u32, name: &str, value: impl FnOnce(&mut Writer) -> Done) -> Done {
    w.nested(number, |w| {
        w.bytes(1, name.as_bytes());
        w.nested(2, value)
    })
}

/// Writes a map. `number` returns the field number of an entry; other entries are extensions.
fn entries(
    w: &mut Writer,
    of: Message,
    value: &Value,
    number: impl Fn(&str) -> Option<u32>,
    extensions: u32,
    inner: Message,
) -> Done {
    object(of, value)?.iter().try_for_each(|(key, v)| match number(key) {
        Some(number) => named(w, number, key, |w| message(w, inner, v)),
        None => named(w, extensions, key, |w| any(w, v)),
    })
}

/// Writes a oneof of a value (field 1) and a reference (field 2).
fn or_reference(w: &mut Writer, of: Message, value: &Value) -> Done {
    match value.get("$ref").and_then(Value::as_str) {
        Some(reference) => w.nested(2, |w| {
            w.bytes(1, reference.as_bytes());
            Ok(())
        }),
        None => w.nested(1, |w| fields(w, of, value)),
    }
}

/// Writes a parameter. OpenAPI v2 has one message for each value of `in`.
fn parameter(w: &mut Writer, value: &Value) -> Done {
    if value.get("$ref").is_some() {
        return or_reference(w, Message::BodyParameter2, value);
    }
    let (number, of) = match value.get("in").and_then(Value::as_str) {
        Some("body") => {
            return w.nested(1, |w| w.nested(1, |w| fields(w, Message::BodyParameter2, value)));
        }
        Some("query") => (3, Message::QueryParameter2),
        Some("path") => (4, Message::PathParameter2),
        _ => return Err(wrong("a parameter in another place", value)),
    };
    w.nested(1, |w| w.nested(2, |w| w.nested(number, |w| fields(w, of, value))))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_document_has_gnostics_numbers() {
        let small = json!({"swagger": "2.0", "security": [{"B": []}], "definitions": {"A": {"type": "object", "x-a": [1]}}});
        let bytes = document(Version::V2, &small).unwrap();
        let definitions = b"\x4a\x22\x0a\x20\x0a\x01A\x12\x1b\xb2\x01\x08\x0a\x06object\xfa\x01\x0d\x0a\x03x-a\x12\x06\x12\x04[1]\n";
        let rest = b"\x62\x07\x0a\x05\x0a\x01B\x12\x00\x0a\x032.0";
        assert_eq!(bytes, [definitions.as_slice(), rest].concat());
    }

    #[test]
    fn what_a_message_cannot_hold_is_an_error_by_name() {
        let error = document(Version::V2, &json!({"info": {"colour": 1}})).unwrap_err();
        assert_eq!(error.to_string(), "OpenAPI protobuf: info: Info2 has no field colour");
    }
}
