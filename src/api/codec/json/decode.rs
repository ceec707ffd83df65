//! The schema-driven decoder: one pass from bytes to a value in normal form.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::super::TextError;
use super::super::time::Precision;
use super::super::{DecodeError, Decoded, STRICT_ERRORS_MAX, leaf, normal};
use super::scan::{Kind, Scanner, Syntax, number_value};
use crate::schema::{Field, Schema, Shape, Type, TypeId};

struct Decoder<'a> {
    schema: &'a Schema,
    scanner: Scanner<'a>,
    strict: Vec<String>,
    /// The number of enclosing values for which upstream runs a separate, lenient decoder.
    lenient: usize,
    /// The path of the current value, as strict errors print it.
    path: Vec<Step<'a>>,
    /// The stack of Go struct fields, as type errors print it.
    fields: Vec<&'a Field>,
    structs: Vec<&'a Type>,
    /// The error of a custom decoder. Go's decoder stops at such an error.
    fatal: Option<String>,
    /// The first type error. Go's decoder continues and reports it at the end.
    saved: Option<String>,
}

enum Step<'a> {
    Field(&'a Field),
    Key(Cow<'a, str>),
    Index(usize),
}

pub(super) fn decode(
    schema: &Schema,
    type_id: TypeId,
    body: &[u8],
) -> Result<Decoded, DecodeError> {
    let shape = Shape::Struct(type_id);
    let mut decoder = Decoder {
        schema,
        scanner: Scanner::new(body),
        strict: Vec::new(),
        lenient: 0,
        path: Vec::new(),
        fields: Vec::new(),
        structs: Vec::new(),
        fatal: None,
        saved: None,
    };
    let value = decoder.value(&shape, None)?;
    decoder.scanner.end()?;
    if let Some(message) = decoder.fatal.or(decoder.saved) {
        return Err(DecodeError::Type(message));
    }
    let value = value.unwrap_or_else(|| normal::zero_struct(schema, type_id, 0));
    Ok(Decoded { value, strict_errors: decoder.strict })
}

impl<'a> Decoder<'a> {
    /// Decodes a value of this shape; returns `None` for null and for a value of a wrong type.
    /// `named` is the Go type if it is a named type.
    fn value(&mut self, shape: &'a Shape, named: Option<&'a str>) -> Result<Option<Value>, Syntax> {
        let kind = self.scanner.peek()?;
        if kind == Kind::Null {
            self.scanner.literal(kind)?;
            return Ok(None);
        }
        match (shape, kind) {
            (Shape::String, Kind::String) => {
                Ok(Some(Value::String(self.scanner.string()?.into_owned())))
            }
            (Shape::Bool, Kind::Bool(value)) => {
                self.scanner.literal(kind)?;
                Ok(Some(Value::Bool(value)))
            }
            (Shape::Int32 | Shape::Int64 | Shape::Double, Kind::Number) => {
                self.number(shape, named)
            }
            (Shape::Struct(id), Kind::Object) => self.object(self.schema.get(*id)).map(Some),
            (Shape::List(element), Kind::Array) => {
                self.list(element, element_name(named, "[]")).map(Some)
            }
            (Shape::Map(element), Kind::Object) => {
                self.map(element, element_name(named, "map[string]")).map(Some)
            }
            (Shape::Bytes, Kind::String) => {
                let text = self.scanner.string()?.into_owned();
                // Go's decoder continues after invalid base64.
                leaf::bytes(&text).map(Some).or_else(|error| {
                    self.saved.get_or_insert_with(|| error.to_string());
                    Ok(None)
                })
            }
            (Shape::Bytes, Kind::Array) => self.listed_bytes().map(Some),
            (Shape::Quantity, _) => {
                let raw = self.scanner.skip()?;
                let raw =
                    raw.strip_prefix(b"\"").and_then(|r| r.strip_suffix(b"\"")).unwrap_or(raw);
                Ok(self.custom(leaf::quantity(&String::from_utf8_lossy(raw))))
            }
            (Shape::Time, _) => {
                let within = self.structs.last().map_or("", |ty| &*ty.name);
                let precision = leaf::precision_of(within);
                self.text(kind, |t| leaf::time(t, precision))
            }
            (Shape::MicroTime, _) => self.text(kind, |t| leaf::time(t, Precision::Micros)),
            (Shape::Duration, _) => self.text(kind, leaf::duration),
            (Shape::IntOrString, _) => self.int_or_string(kind),
            (Shape::RawExtension | Shape::FieldsV1 | Shape::Any, _) => self.scanner.any().map(Some),
            (Shape::Typed(field), _) => self.value(&field.shape, named),
            (Shape::PropsOrBool(id), _) => self.props_or_bool(*id, kind),
            (Shape::PropsOrList(id), _) => self.props_or(*id, kind, None),
            (Shape::PropsOrStrings(id), _) => self.props_or(*id, kind, Some(&Shape::String)),
            (_, _) => {
                self.scanner.skip()?;
                let go = self.go_type(shape, named);
                self.mismatch(kind.name(), &go);
                Ok(None)
            }
        }
    }

    fn object(&mut self, ty: &'a Type) -> Result<Value, Syntax> {
        self.scanner.open()?;
        let mut map = Map::new();
        let mut seen = SeenKeys::default();
        let mut first = true;
        self.structs.push(ty);
        while let Some(key) = self.scanner.key(&mut first)? {
            let Some((position, field)) =
                ty.position(&key).and_then(|p| ty.fields.get(p).map(|f| (p, f)))
            else {
                if ty.open {
                    let value = self.scanner.any()?;
                    map.insert(key.into_owned(), value);
                } else {
                    self.strict_error("unknown field", &key);
                    self.scanner.skip()?;
                }
                continue;
            };
            if seen.again(position) {
                self.strict_error("duplicate field", &key);
            }
            self.path.push(Step::Field(field));
            self.fields.push(field);
            let value = self.value(&field.shape, field.go_type.as_deref())?;
            self.fields.pop();
            self.path.pop();
            match value {
                Some(value) => {
                    map.insert(key.into_owned(), value);
                }
                None => {
                    map.remove(key.as_ref());
                }
            }
        }
        self.structs.pop();
        normal::finish_sent(self.schema, ty, &mut map, self.path.len());
        Ok(Value::Object(map))
    }

    fn list(&mut self, element: &'a Shape, named: Option<&'a str>) -> Result<Value, Syntax> {
        self.scanner.open()?;
        let mut list = Vec::new();
        let mut first = true;
        while self.scanner.element(&mut first)? {
            self.path.push(Step::Index(list.len()));
            let value = self.value(element, named)?;
            self.path.pop();
            list.push(value.unwrap_or_else(|| normal::zero(self.schema, element, self.path.len())));
        }
        Ok(Value::Array(list))
    }

    fn map(&mut self, element: &'a Shape, named: Option<&'a str>) -> Result<Value, Syntax> {
        self.scanner.open()?;
        let mut map = Map::new();
        let mut first = true;
        while let Some(key) = self.scanner.key(&mut first)? {
            if map.contains_key(key.as_ref()) {
                self.strict_error("duplicate field", &key);
            }
            let owned = key.clone().into_owned();
            self.path.push(Step::Key(key));
            let value = self.value(element, named)?;
            self.path.pop();
            map.insert(
                owned,
                value.unwrap_or_else(|| normal::zero(self.schema, element, self.path.len())),
            );
        }
        Ok(Value::Object(map))
    }

    /// Decodes bytes from a list of numbers, which Go's decoder accepts.
    fn listed_bytes(&mut self) -> Result<Value, Syntax> {
        let mut bytes = Vec::new();
        if let Value::Array(items) = self.scanner.any()? {
            for item in items {
                match (item.as_u64().and_then(|number| u8::try_from(number).ok()), item) {
                    (Some(byte), _) => bytes.push(byte),
                    (None, Value::Null) => bytes.push(0),
                    (None, Value::Number(number)) => {
                        self.mismatch(&format!("number {number}"), "uint8")
                    }
                    (None, Value::Bool(_)) => self.mismatch("bool", "uint8"),
                    (None, Value::String(_)) => self.mismatch("string", "uint8"),
                    (None, Value::Array(_)) => self.mismatch("array", "uint8"),
                    (None, Value::Object(_)) => self.mismatch("object", "uint8"),
                }
            }
        }
        Ok(Value::String(leaf::base64_text(&bytes)))
    }

    fn number(
        &mut self,
        shape: &'a Shape,
        named: Option<&'a str>,
    ) -> Result<Option<Value>, Syntax> {
        let text = self.scanner.number()?;
        let value = match shape {
            Shape::Int32 => text.parse::<i32>().ok().map(Value::from),
            Shape::Int64 => text.parse::<i64>().ok().map(Value::from),
            _ => Some(number_value(text)).filter(|_| text.parse::<f64>().is_ok_and(f64::is_finite)),
        };
        if value.is_none() {
            let go = self.go_type(shape, named);
            self.mismatch(&format!("number {text}"), &go);
        }
        Ok(value)
    }

    /// Decodes a string with a custom decoder.
    fn text(
        &mut self,
        kind: Kind,
        read: impl Fn(&str) -> Result<Value, TextError>,
    ) -> Result<Option<Value>, Syntax> {
        if kind != Kind::String {
            self.scanner.skip()?;
            return Ok(self.custom_mismatch(kind.name(), "string"));
        }
        let text = self.scanner.string()?;
        Ok(self.custom(read(&text)).filter(|v| !v.is_null()))
    }

    fn int_or_string(&mut self, kind: Kind) -> Result<Option<Value>, Syntax> {
        match kind {
            Kind::String => Ok(Some(Value::String(self.scanner.string()?.into_owned()))),
            Kind::Number => {
                let text = self.scanner.number()?;
                match text.parse::<i32>() {
                    Ok(number) => Ok(Some(number.into())),
                    Err(_) => Ok(self.custom_mismatch(&format!("number {text}"), "int32")),
                }
            }
            _ => {
                self.scanner.skip()?;
                Ok(self.custom_mismatch(kind.name(), "int32"))
            }
        }
    }

    fn props_or_bool(&mut self, id: TypeId, kind: Kind) -> Result<Option<Value>, Syntax> {
        match kind {
            Kind::Object => self.nested(id).map(Some),
            Kind::Bool(value) => {
                self.scanner.literal(kind)?;
                Ok(Some(Value::Bool(value)))
            }
            _ => {
                self.scanner.skip()?;
                Ok(self.custom(Err("boolean or JSON schema expected")))
            }
        }
    }

    /// Decodes a schema, or a list of strings or schemas; any other value is ignored without an
    /// error, as upstream.
    fn props_or(
        &mut self,
        id: TypeId,
        kind: Kind,
        element: Option<&'a Shape>,
    ) -> Result<Option<Value>, Syntax> {
        match kind {
            Kind::Object => self.nested(id).map(Some),
            Kind::Array => {
                self.lenient += 1;
                let list = match element {
                    Some(element) => self.list(element, None)?,
                    None => {
                        self.scanner.open()?;
                        let mut list = Vec::new();
                        let mut first = true;
                        while self.scanner.element(&mut first)? {
                            list.push(match self.scanner.peek()? {
                                Kind::Object => self.object(self.schema.get(id))?,
                                other => {
                                    self.scanner.skip()?;
                                    let go = self.schema.get(id).go_type();
                                    self.mismatch(other.name(), go);
                                    normal::zero_struct(self.schema, id, self.path.len())
                                }
                            });
                        }
                        Value::Array(list)
                    }
                };
                self.lenient -= 1;
                Ok(Some(list).filter(|l| l.as_array().is_some_and(|l| !l.is_empty())))
            }
            _ => {
                self.scanner.skip()?;
                Ok(None)
            }
        }
    }

    fn nested(&mut self, id: TypeId) -> Result<Value, Syntax> {
        self.lenient += 1;
        let value = self.object(self.schema.get(id));
        self.lenient -= 1;
        value
    }

    /// Returns the value of a custom decoder; its error ends the decoding.
    fn custom<E: ToString>(&mut self, result: Result<Value, E>) -> Option<Value> {
        result.map_err(|error| self.fatal.get_or_insert_with(|| error.to_string()).len()).ok()
    }

    fn custom_mismatch(&mut self, value: &str, go: &str) -> Option<Value> {
        let message = self.mismatch_text(value, go);
        self.custom(Err(message))
    }

    fn mismatch(&mut self, value: &str, go: &str) {
        if self.saved.is_none() {
            self.saved = Some(self.mismatch_text(value, go));
        }
    }

    fn mismatch_text(&self, value: &str, go: &str) -> String {
        let Some(outer) = self.structs.last() else {
            return format!("json: cannot unmarshal {value} into Go value of type {go}");
        };
        let mut path = outer.go_name().to_owned();
        for field in &self.fields {
            for part in field.embedded.as_deref().into_iter().chain([field.json.as_ref()]) {
                path.push('.');
                path.push_str(part);
            }
        }
        format!("json: cannot unmarshal {value} into Go struct field {path} of type {go}")
    }

    fn strict_error(&mut self, what: &str, key: &str) {
        if self.lenient > 0 || self.strict.len() >= STRICT_ERRORS_MAX {
            return;
        }
        let mut path = String::new();
        for step in &self.path {
            match step {
                Step::Index(i) => path.push_str(&format!("[{i}]")),
                Step::Field(_) | Step::Key(_) => {
                    if !path.is_empty() {
                        path.push('.');
                    }
                    path.push_str(match step {
                        Step::Field(field) => &field.json,
                        Step::Key(key) => key,
                        Step::Index(_) => "",
                    });
                }
            }
        }
        if !path.is_empty() {
            path.push('.');
        }
        let message = format!("{what} {}", crate::field::go_quote(&(path + key)));
        if !self.strict.contains(&message) {
            self.strict.push(message);
        }
    }

    fn go_type(&self, shape: &Shape, named: Option<&str>) -> String {
        named.map_or_else(|| normal::go_type(self.schema, shape), str::to_owned)
    }
}

/// Returns the Go type of an element if the type of its list or map contains a named type: the
/// elements of `[]v1.Capability` are `v1.Capability`.
fn element_name<'a>(named: Option<&'a str>, prefix: &str) -> Option<&'a str> {
    named.and_then(|n| n.strip_prefix(prefix))
}

/// The fields that the decoder has read in one object.
#[derive(Default)]
struct SeenKeys {
    low: u128,
    high: Vec<usize>,
}

impl SeenKeys {
    fn again(&mut self, position: usize) -> bool {
        if position < 128 {
            let bit = 1 << position;
            let again = self.low & bit != 0;
            self.low |= bit;
            return again;
        }
        let again = self.high.contains(&position);
        self.high.push(position);
        again
    }
}
