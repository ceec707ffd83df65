//! JSON as values of expressions, with a declared type or without.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;

use crate::escape::{escape, unescape};
use crate::types::{ObjectType, Type};
use crate::value::{Error, Items, List, ListKind, Map, Text, Value};

type Json = serde_json::Value;

/// The declared type of JSON: the part of a schema that affects values.
#[derive(Clone, Debug)]
pub enum Declared {
    /// Any JSON.
    Dyn,
    /// The values of Go's decoder: every number is a double. Members can also be selected by their
    /// escaped names (upstream's claims of tokens).
    Claims,
    Boolean,
    Integer,
    Number,
    String(Format),
    /// `x-kubernetes-int-or-string`.
    IntOrString,
    /// A nullable value.
    Nullable(Box<Declared>),
    Array {
        items: Box<Declared>,
        list: ListType,
    },
    /// `additionalProperties`.
    Map(Box<Declared>),
    /// `properties`; other properties are not visible.
    Object(Arc<Properties>),
    /// `type: object` without `properties` and `additionalProperties`.
    Unspecified,
    /// No type, but `x-kubernetes-preserve-unknown-fields`: values can only be compared.
    Preserved,
}

/// The properties of an object.
#[derive(Debug)]
pub struct Properties {
    /// Name of the object type.
    pub name: String,
    /// The properties by their names in JSON.
    pub fields: BTreeMap<String, Declared>,
}

/// `format` of a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Plain,
    Date,
    DateTime,
    Duration,
    Byte,
}

/// `x-kubernetes-list-type`.
#[derive(Clone, Debug)]
pub enum ListType {
    Atomic,
    Set,
    /// A list with `x-kubernetes-list-map-keys`.
    Map(Vec<String>),
}

impl Declared {
    /// Returns the type for the checker.
    pub fn to_type(&self) -> Type {
        match self {
            Declared::Dyn | Declared::Claims | Declared::IntOrString | Declared::Preserved => {
                Type::Dyn
            }
            Declared::Boolean => Type::Bool,
            Declared::Integer => Type::Int,
            Declared::Number => Type::Double,
            Declared::String(Format::Plain) => Type::String,
            Declared::String(Format::Byte) => Type::Bytes,
            Declared::String(Format::Duration) => Type::Duration,
            Declared::String(Format::Date | Format::DateTime) => Type::Timestamp,
            Declared::Nullable(inner) => inner.to_type(),
            Declared::Array { items, .. } => Type::list(items.to_type()),
            Declared::Map(values) => Type::map(Type::String, values.to_type()),
            Declared::Unspecified => Type::object("object", BTreeMap::new()),
            Declared::Object(properties) => {
                let fields = properties.fields.iter();
                let fields = fields.filter_map(|(name, of)| Some((escape(name)?, of.to_type())));
                Type::Object(Arc::new(ObjectType {
                    name: properties.name.as_str().into(),
                    fields: fields.collect(),
                }))
            }
        }
    }

    /// Converts JSON to a value.
    ///
    /// # Errors
    /// JSON that does not match its declaration, with upstream's text.
    pub fn value<'a>(&'a self, json: &'a Json) -> Result<Value<'a>, Error> {
        let (declared, nullable) = match self {
            Declared::Nullable(inner) => (&**inner, true),
            Declared::Dyn => return Ok(native(json)),
            Declared::Claims => return Ok(claims(json)),
            other => (other, false),
        };
        if json.is_null() {
            return if nullable {
                Ok(Value::Null)
            } else {
                Err(Error::new("invalid data, got null for schema with nullable=false"))
            };
        }
        match (declared, json) {
            (Declared::Boolean, Json::Bool(value)) => Ok(Value::Bool(*value)),
            (Declared::Boolean, other) => Err(unfit("bool", other)),
            (Declared::Integer, Json::Number(number)) => {
                number.as_i64().map(Value::Int).ok_or_else(|| unfit("int", json))
            }
            (Declared::Integer, other) => Err(unfit("int", other)),
            (Declared::Number, Json::Number(number)) => {
                number.as_f64().map(Value::Double).ok_or_else(|| unfit("float", json))
            }
            (Declared::Number, other) => Err(unfit("float", other)),
            (Declared::String(format), Json::String(text)) => formatted(*format, text),
            (Declared::String(_), other) => Err(unfit("string", other)),
            (Declared::IntOrString, Json::String(text)) => Ok(Value::borrowed(text)),
            (Declared::IntOrString, other) => other.as_i64().map(Value::Int).ok_or_else(|| {
                Error::new(
                    "invalid data, expected XIntOrString value to be either a string or integer",
                )
            }),
            (Declared::Array { items, list }, Json::Array(elements)) => {
                let kind = match list {
                    ListType::Atomic => ListKind::Atomic,
                    ListType::Set => ListKind::Set,
                    ListType::Map(keys) => ListKind::Keyed(keys),
                };
                Ok(Value::List(List { items: Items::Json(elements, items), kind }))
            }
            (Declared::Array { .. }, _) => Err(Error::new(
                "invalid data, expected an array for the provided schema with type=array",
            )),
            (
                Declared::Map(_) | Declared::Object(_) | Declared::Unspecified,
                Json::Object(object),
            ) => Ok(Value::Map(Map::Json(JsonMap { object, declared }))),
            (Declared::Map(_) | Declared::Object(_) | Declared::Unspecified, _) => Err(Error::new(
                "invalid data, expected a map for the provided schema with type=object",
            )),
            (Declared::Preserved, other) => Ok(Value::Preserved(other)),
            (Declared::Nullable(inner), other) => inner.value(other),
            (Declared::Dyn, other) => Ok(native(other)),
            (Declared::Claims, other) => Ok(claims(other)),
        }
    }
}

fn unfit(expected: &str, json: &Json) -> Error {
    let got = match json {
        Json::Null => "<nil>",
        Json::Bool(_) => "bool",
        Json::Number(number) if number.is_i64() => "int64",
        Json::Number(_) => "float64",
        Json::String(_) => "string",
        Json::Array(_) => "[]interface {}",
        Json::Object(_) => "map[string]interface {}",
    };
    Error::new(format!("invalid data, expected {expected}, got {got}"))
}

fn formatted(format: Format, text: &str) -> Result<Value<'_>, Error> {
    match format {
        Format::Plain => Ok(Value::borrowed(text)),
        Format::Duration => crate::time::parse_lenient_duration(text)
            .map(Value::Duration)
            .ok_or_else(|| Error::new(format!("Invalid duration {text}: unable to parse"))),
        Format::Date => crate::time::parse_date(text)
            .map(Value::Timestamp)
            .ok_or_else(|| Error::new(format!("Invalid date formatted string {text}"))),
        Format::DateTime => crate::time::parse_lenient_datetime(text)
            .map(Value::Timestamp)
            .ok_or_else(|| Error::new(format!("Invalid date-time formatted string {text}"))),
        Format::Byte => base64::engine::general_purpose::STANDARD
            .decode(text)
            .map(|bytes| Value::Bytes(bytes.into()))
            .map_err(|error| Error::new(format!("Invalid byte formatted string {text}: {error}"))),
    }
}

/// The declaration of values without a declared type.
static DYN: Declared = Declared::Dyn;

/// JSON without a declaration.
pub(crate) fn native(json: &Json) -> Value<'_> {
    match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => match number.as_i64() {
            Some(value) => Value::Int(value),
            None => Value::Double(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::borrowed(text),
        Json::Array(items) => {
            Value::List(List { items: Items::Json(items, &DYN), kind: ListKind::Atomic })
        }
        Json::Object(object) => Value::Map(Map::Json(JsonMap { object, declared: &DYN })),
    }
}

static CLAIMS: Declared = Declared::Claims;

fn claims(json: &Json) -> Value<'_> {
    match json {
        Json::Number(number) => Value::Double(number.as_f64().unwrap_or(f64::NAN)),
        Json::Array(items) => {
            Value::List(List { items: Items::Json(items, &CLAIMS), kind: ListKind::Atomic })
        }
        Json::Object(object) => Value::Map(Map::Json(JsonMap { object, declared: &CLAIMS })),
        other => native(other),
    }
}

/// A JSON object.
#[derive(Clone, Copy, Debug)]
pub struct JsonMap<'a> {
    pub(crate) object: &'a serde_json::Map<String, Json>,
    pub(crate) declared: &'a Declared,
}

impl<'a> JsonMap<'a> {
    pub(crate) fn len(&self) -> usize {
        self.object.len()
    }

    pub(crate) fn keys(&self) -> Vec<Value<'a>> {
        let names = self.object.keys();
        match self.declared {
            Declared::Object(properties) => names
                .filter(|name| properties.fields.contains_key(*name))
                .map(|name| match escape(name) {
                    Some(escaped) if escaped != *name => Value::text(escaped),
                    _ => Value::borrowed(name),
                })
                .collect(),
            Declared::Unspecified => Vec::new(),
            _ => names.map(|name| Value::borrowed(name)).collect(),
        }
    }

    pub(crate) fn find(&self, key: &Value<'a>) -> Result<Option<Value<'a>>, Error> {
        let Value::String(key) = key else {
            return match self.declared {
                Declared::Dyn | Declared::Claims => Ok(None),
                _ => Err(Error::no_overload()),
            };
        };
        match self.declared {
            Declared::Object(properties) => {
                let Some(name) = unescape(key) else { return Ok(None) };
                let found = self.object.get(&name).filter(|value| !value.is_null());
                match (found, properties.fields.get(&name)) {
                    (Some(value), Some(declared)) => declared.value(value).map(Some),
                    _ => Ok(None),
                }
            }
            Declared::Map(values) => {
                self.object.get(&**key).map(|value| values.value(value)).transpose()
            }
            Declared::Unspecified => Ok(None),
            Declared::Claims => {
                let plain = unescape(key);
                Ok(self.object.get(plain.as_deref().unwrap_or(key)).map(claims))
            }
            _ => Ok(self.object.get(&**key).map(native)),
        }
    }

    /// Returns the raw value of a property and whether its type is declared.
    pub(crate) fn declares(&self, name: &str) -> bool {
        match self.declared {
            Declared::Object(properties) => properties.fields.contains_key(name),
            Declared::Unspecified => false,
            _ => true,
        }
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Text<'a> {
        Text::Borrowed(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(declared: &Declared, text: &str) -> Result<String, String> {
        let json: Json = serde_json::from_str(text).unwrap();
        declared.value(&json).map(|value| value.to_string()).map_err(|error| error.to_string())
    }

    /// `UnstructuredToVal` of `pkg/cel/common/valuesunstructured.go` in k8s.io/apiserver.
    #[test]
    fn json_that_does_not_match_its_declaration_is_an_error() {
        let list = Declared::Array { items: Box::new(Declared::Dyn), list: ListType::Atomic };
        let map = Declared::Map(Box::new(Declared::Dyn));
        for (declared, json, expected) in [
            (&Declared::Integer, "\"a\"", "invalid data, expected int, got string"),
            (&Declared::Boolean, "1", "invalid data, expected bool, got int64"),
            (&Declared::Number, "true", "invalid data, expected float, got bool"),
            (
                &Declared::String(Format::Plain),
                "[]",
                "invalid data, expected string, got []interface {}",
            ),
            (
                &Declared::String(Format::Plain),
                "null",
                "invalid data, got null for schema with nullable=false",
            ),
            (
                &Declared::IntOrString,
                "true",
                "invalid data, expected XIntOrString value to be either a string or integer",
            ),
            (
                &list,
                "{}",
                "invalid data, expected an array for the provided schema with type=array",
            ),
            (&map, "[]", "invalid data, expected a map for the provided schema with type=object"),
        ] {
            assert_eq!(shown(declared, json), Err(expected.to_owned()), "{declared:?} {json}");
        }
    }

    /// `UnstructuredToVal` of `pkg/cel/common/valuesunstructured.go` in k8s.io/apiserver.
    #[test]
    fn formats_of_strings_determine_the_type_of_the_value() {
        for (declared, json, kind) in [
            (Declared::Integer, "1", "int"),
            (Declared::Number, "1", "double"),
            (Declared::IntOrString, "1", "int"),
            (Declared::IntOrString, "\"1\"", "string"),
            (Declared::Nullable(Box::new(Declared::Boolean)), "null", "null_type"),
            (Declared::String(Format::Duration), "\"1h\"", "google.protobuf.Duration"),
            (Declared::String(Format::Date), "\"2024-02-29\"", "google.protobuf.Timestamp"),
            (
                Declared::String(Format::DateTime),
                "\"2024-02-29T12:30:45Z\"",
                "google.protobuf.Timestamp",
            ),
            (Declared::String(Format::Byte), "\"aGVsbG8=\"", "bytes"),
            (Declared::Dyn, "1", "int"),
            (Declared::Dyn, "1.5", "double"),
            (Declared::Claims, "1", "double"),
        ] {
            let json: Json = serde_json::from_str(json).unwrap();
            assert_eq!(declared.value(&json).unwrap().type_name(), kind, "{declared:?} {json}");
        }
        for format in [Format::Duration, Format::Date, Format::DateTime, Format::Byte] {
            let error = shown(&Declared::String(format), "\"?\"").unwrap_err();
            assert!(error.starts_with("Invalid "), "{error}");
        }
    }

    /// `unstructuredMap` of `pkg/cel/common/valuesunstructured.go` in k8s.io/apiserver.
    #[test]
    fn objects_show_only_declared_properties_and_escape_their_names() {
        let fields = [("a-b", Declared::Integer), ("none", Declared::Integer)];
        let fields = fields.map(|(name, of)| (name.to_owned(), of)).into();
        let object = Declared::Object(Arc::new(Properties { name: "O".into(), fields }));
        let json: Json = serde_json::from_str(r#"{"a-b": 1, "none": null, "other": 2}"#).unwrap();
        let Value::Map(map) = object.value(&json).unwrap() else { panic!("no map") };
        for (key, expected) in
            [("a__dash__b", Some("1")), ("a-b", Some("1")), ("none", None), ("other", None)]
        {
            let found = map.find(&Value::borrowed(key)).unwrap().map(|value| value.to_string());
            assert_eq!(found.as_deref(), expected, "{key}");
        }
        assert_eq!(object.to_type().name(), "O");
    }
}
