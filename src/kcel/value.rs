//! Values of expressions. Values in JSON are borrowed from it.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::host::Host;
use crate::json::{Declared, JsonMap};
use crate::types::OPTIONAL;

type Json = serde_json::Value;

/// A value; `'a` is the lifetime of the JSON that it may borrow from.
#[derive(Clone, Debug)]
pub enum Value<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Text<'a>),
    Bytes(Arc<[u8]>),
    Timestamp(Timestamp),
    /// Nanoseconds.
    Duration(i64),
    List(List<'a>),
    Map(Map<'a>),
    Optional(Option<Arc<Value<'a>>>),
    /// A type, identified by its runtime name.
    Type(Arc<str>),
    /// A value of a Kubernetes library.
    Host(Host),
    /// JSON without a declared type under `x-kubernetes-preserve-unknown-fields`: it can only be
    /// compared.
    Preserved(&'a Json),
    /// An object that the expression constructs.
    Object(Arc<Object<'a>>),
}

/// An object that an expression constructs: `Object{...}` or `JSONPatch{...}` of a mutating policy.
#[derive(Clone, Debug)]
pub struct Object<'a> {
    /// Name of its type.
    pub name: String,
    /// The fields that are set.
    pub fields: BTreeMap<String, Value<'a>>,
}

/// A string, shared or borrowed.
#[derive(Clone, Debug)]
pub enum Text<'a> {
    Shared(Arc<str>),
    Borrowed(&'a str),
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Text::Shared(text) => text,
            Text::Borrowed(text) => text,
        }
    }
}

/// A timestamp: seconds since 1970 and nanoseconds of the second; the offset from UTC only affects
/// its text.
#[derive(Clone, Copy, Debug)]
pub struct Timestamp {
    pub seconds: i64,
    pub nanos: u32,
    /// Seconds east of UTC.
    pub offset: i32,
}

impl Timestamp {
    pub(crate) fn order(&self, other: &Timestamp) -> Ordering {
        (self.seconds, self.nanos).cmp(&(other.seconds, other.nanos))
    }
}

/// How a list is compared and appended to: `x-kubernetes-list-type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListKind<'a> {
    Atomic,
    Set,
    /// Elements with the same values of these properties are the same.
    Keyed(&'a [String]),
}

/// A list.
#[derive(Clone, Debug)]
pub struct List<'a> {
    pub(crate) items: Items<'a>,
    pub(crate) kind: ListKind<'a>,
}

#[derive(Clone, Debug)]
pub(crate) enum Items<'a> {
    Owned(Arc<Vec<Value<'a>>>),
    Json(&'a [Json], &'a Declared),
}

impl<'a> List<'a> {
    pub(crate) fn owned(items: Vec<Value<'a>>) -> List<'a> {
        List { items: Items::Owned(Arc::new(items)), kind: ListKind::Atomic }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match &self.items {
            Items::Owned(items) => items.len(),
            Items::Json(items, _) => items.len(),
        }
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the element at an index.
    ///
    /// # Errors
    /// JSON that does not match its declaration, or an index out of range.
    pub fn get(&self, at: usize) -> Result<Value<'a>, Error> {
        let outside = || Error::new(format!("index out of bounds: {at}"));
        match &self.items {
            Items::Owned(items) => items.get(at).cloned().ok_or_else(outside),
            Items::Json(items, declared) => declared.value(items.get(at).ok_or_else(outside)?),
        }
    }

    /// Iterates over the elements.
    pub fn iter(&self) -> impl Iterator<Item = Result<Value<'a>, Error>> + '_ {
        (0..self.len()).map(|at| self.get(at))
    }
}

/// A map.
#[derive(Clone, Debug)]
pub enum Map<'a> {
    Owned(Arc<BTreeMap<Key<'a>, Value<'a>>>),
    /// A lookup of a missing key returns the second value, but the key is not in the map.
    WithDefault(Arc<BTreeMap<Key<'a>, Value<'a>>>, Arc<Value<'a>>),
    Json(JsonMap<'a>),
}

/// A key of a map. Equal numbers of different types are different keys, but a lookup finds both.
#[derive(Clone, Debug)]
pub enum Key<'a> {
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(u64),
    String(Text<'a>),
}

impl PartialEq for Key<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Key<'_> {}

impl PartialOrd for Key<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let rank = |key: &Key<'_>| match key {
            Key::Bool(_) => 0,
            Key::Int(_) => 1,
            Key::Uint(_) => 2,
            Key::Double(_) => 3,
            Key::String(_) => 4,
        };
        match (self, other) {
            (Key::Bool(a), Key::Bool(b)) => a.cmp(b),
            (Key::Int(a), Key::Int(b)) => a.cmp(b),
            (Key::Uint(a), Key::Uint(b)) | (Key::Double(a), Key::Double(b)) => a.cmp(b),
            (Key::String(a), Key::String(b)) => (**a).cmp(&**b),
            _ => rank(self).cmp(&rank(other)),
        }
    }
}

impl<'a> Key<'a> {
    pub(crate) fn of(value: &Value<'a>) -> Option<Key<'a>> {
        Some(match value {
            Value::Bool(v) => Key::Bool(*v),
            Value::Int(v) => Key::Int(*v),
            Value::Uint(v) => Key::Uint(*v),
            Value::Double(v) => Key::Double(v.to_bits()),
            Value::String(v) => Key::String(v.clone()),
            _ => return None,
        })
    }

    pub(crate) fn value(&self) -> Value<'a> {
        match self {
            Key::Bool(v) => Value::Bool(*v),
            Key::Int(v) => Value::Int(*v),
            Key::Uint(v) => Value::Uint(*v),
            Key::Double(v) => Value::Double(f64::from_bits(*v)),
            Key::String(v) => Value::String(v.clone()),
        }
    }
}

impl<'a> Map<'a> {
    pub(crate) fn owned(entries: BTreeMap<Key<'a>, Value<'a>>) -> Map<'a> {
        Map::Owned(Arc::new(entries))
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        match self {
            Map::Owned(entries) | Map::WithDefault(entries, _) => entries.len(),
            Map::Json(map) => map.len(),
        }
    }

    /// Whether the map is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the keys in order.
    pub fn keys(&self) -> Vec<Value<'a>> {
        match self {
            Map::Owned(entries) | Map::WithDefault(entries, _) => {
                entries.keys().map(Key::value).collect()
            }
            Map::Json(map) => map.keys(),
        }
    }

    /// Returns the value of a key, or the default of the map.
    ///
    /// # Errors
    /// JSON that does not match its declaration, or a key of a type that maps do not have.
    pub fn find(&self, key: &Value<'a>) -> Result<Option<Value<'a>>, Error> {
        let found = self.entry(key)?;
        Ok(match self {
            Map::WithDefault(_, default) => found.or_else(|| Some((**default).clone())),
            Map::Owned(_) | Map::Json(_) => found,
        })
    }

    /// Returns the value of a key that the map contains.
    ///
    /// # Errors
    /// As [`Map::find`].
    pub(crate) fn entry(&self, key: &Value<'a>) -> Result<Option<Value<'a>>, Error> {
        let entries = match self {
            Map::Json(map) => return map.find(key),
            Map::Owned(entries) | Map::WithDefault(entries, _) => entries,
        };
        let Some(exact) = Key::of(key) else { return Ok(None) };
        if let Some(value) = entries.get(&exact) {
            return Ok(Some(value.clone()));
        }
        let found = same_number(key).into_iter().find_map(|key| entries.get(&key).cloned());
        Ok(found)
    }
}

/// Returns the equal keys of the other number types.
fn same_number<'a>(key: &Value<'_>) -> Vec<Key<'a>> {
    match key {
        Value::Int(v) => u64::try_from(*v).ok().map(Key::Uint).into_iter().collect(),
        Value::Uint(v) => i64::try_from(*v).ok().map(Key::Int).into_iter().collect(),
        Value::Double(v) => {
            let int = crate::convert::double_to_int(*v).filter(|i| *i as f64 == *v).map(Key::Int);
            let uint =
                crate::convert::double_to_uint(*v).filter(|u| *u as f64 == *v).map(Key::Uint);
            int.into_iter().chain(uint).collect()
        }
        _ => Vec::new(),
    }
}

/// The error of an expression; CEL treats errors as values with a text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    message: Arc<str>,
    /// Whether the cost budget is used up; no operator absorbs this error.
    pub limit: bool,
}

impl Error {
    /// Creates an error with this message.
    pub fn new(message: impl Into<Arc<str>>) -> Error {
        Error { message: message.into(), limit: false }
    }

    pub(crate) fn limit() -> Error {
        Error { message: "operation cancelled: actual cost limit exceeded".into(), limit: true }
    }

    pub(crate) fn no_overload() -> Error {
        Error::new("no such overload")
    }
}

impl<'a> Value<'a> {
    /// Creates a shared string.
    pub fn text(text: impl Into<Arc<str>>) -> Value<'a> {
        Value::String(Text::Shared(text.into()))
    }

    /// Creates a list.
    pub fn list(items: Vec<Value<'a>>) -> Value<'a> {
        Value::List(List::owned(items))
    }

    /// Wraps JSON without a declaration: numbers are ints or doubles, depending on their notation.
    pub fn json(value: &'a Json) -> Value<'a> {
        crate::json::native(value)
    }

    /// Creates a map with string keys.
    pub fn map(entries: impl IntoIterator<Item = (Arc<str>, Value<'a>)>) -> Value<'a> {
        let entries = entries.into_iter().map(|(k, v)| (Key::String(Text::Shared(k)), v));
        Value::Map(Map::owned(entries.collect()))
    }

    /// Creates a map with string keys, in which a lookup of a missing key returns `default`.
    pub fn map_with_default(
        entries: impl IntoIterator<Item = (Arc<str>, Value<'a>)>,
        default: Value<'a>,
    ) -> Value<'a> {
        let entries = entries.into_iter().map(|(k, v)| (Key::String(Text::Shared(k)), v));
        Value::Map(Map::WithDefault(Arc::new(entries.collect()), Arc::new(default)))
    }

    /// Creates a borrowed string.
    pub fn borrowed(text: &'a str) -> Value<'a> {
        Value::String(Text::Borrowed(text))
    }

    pub(crate) fn some(self) -> Value<'a> {
        Value::Optional(Some(Arc::new(self)))
    }

    /// Returns the runtime name of the type.
    pub fn type_name(&self) -> &str {
        match self {
            Value::Null => "null_type",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Uint(_) => "uint",
            Value::Double(_) => "double",
            Value::String(_) => "string",
            Value::Bytes(_) => "bytes",
            Value::Timestamp(_) => "google.protobuf.Timestamp",
            Value::Duration(_) => "google.protobuf.Duration",
            Value::List(_) => "list",
            Value::Map(_) => "map",
            Value::Optional(_) => OPTIONAL,
            Value::Type(_) => "type",
            Value::Host(host) => host.type_name(),
            Value::Preserved(_) => "unknown",
            Value::Object(object) => &object.name,
        }
    }

    /// Returns the string, if the value is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the bool, if the value is one.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// Returns the size that costs depend on: characters, bytes, elements or entries; 1 for other
    /// values.
    pub(crate) fn size(&self) -> u64 {
        let size = match self {
            Value::String(text) => text.chars().count(),
            Value::Bytes(bytes) => bytes.len(),
            Value::List(list) => list.len(),
            Value::Map(map) => map.len(),
            Value::Optional(Some(inner)) => return inner.size(),
            Value::Host(host) => return host.size(),
            _ => 1,
        };
        size as u64
    }
}

impl fmt::Display for Value<'_> {
    /// Formats the value for messages, as Go's `%v`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => out.write_str("null"),
            Value::Bool(value) => write!(out, "{value}"),
            Value::Int(value) => write!(out, "{value}"),
            Value::Uint(value) => write!(out, "{value}"),
            Value::Double(value) => out.write_str(&crate::convert::general(*value)),
            Value::String(value) => out.write_str(value),
            Value::Bytes(bytes) => {
                let bytes: Vec<String> = bytes.iter().map(u8::to_string).collect();
                write!(out, "[{}]", bytes.join(" "))
            }
            Value::Timestamp(value) => out.write_str(&crate::time::shown(value)),
            Value::Duration(value) => out.write_str(&crate::time::go_duration(*value)),
            Value::List(list) => {
                out.write_str("[")?;
                for (at, item) in list.iter().enumerate() {
                    let comma = if at > 0 { ", " } else { "" };
                    match item {
                        Ok(item) => write!(out, "{comma}{item}")?,
                        Err(error) => write!(out, "{comma}{error}")?,
                    }
                }
                out.write_str("]")
            }
            Value::Map(map) => {
                out.write_str("{")?;
                for (at, key) in map.keys().iter().enumerate() {
                    let comma = if at > 0 { ", " } else { "" };
                    match map.find(key) {
                        Ok(Some(value)) => write!(out, "{comma}{key}: {value}")?,
                        Ok(None) => {}
                        Err(error) => write!(out, "{comma}{key}: {error}")?,
                    }
                }
                out.write_str("}")
            }
            Value::Optional(None) => out.write_str("optional.none()"),
            Value::Optional(Some(inner)) => write!(out, "optional({inner})"),
            Value::Type(name) => out.write_str(name),
            Value::Host(host) => write!(out, "{host}"),
            Value::Preserved(json) => write!(out, "{json}"),
            Value::Object(object) => out.write_str(&object.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{check_errors, check_true, check_values};

    /// Rows of CEL's conformance tests, `tests/simple/testdata/fields.textproto` and
    /// `lists.textproto`; `dyn` mixes the types of keys, which Kubernetes forbids in literals.
    #[test]
    fn keys_and_indices_that_are_equal_numbers_are_the_same() {
        check_values(&[
            ("{0:1,2:2,5:3}[5]", "3"),
            ("{true:5}[true]", "5"),
            ("{dyn(1u): 'a', dyn(2): 'b', dyn(3u): 'c'}[dyn(3.0)]", "c"),
            ("{dyn(1u): 'a', dyn(2): 'b', dyn(3u): 'c'}[dyn(2u)]", "b"),
            ("{dyn(1u): 'a', dyn(2): 'b', dyn(3u): 'c'}[dyn(1)]", "a"),
            ("[7, 8, 9][dyn(0.0)]", "7"),
            ("[7, 8, 9][dyn(0u)]", "7"),
            ("dyn({0:1,2:2,5:3}[1]) || true", "true"),
        ]);
        check_errors(&[
            ("{dyn(1u): 'a', dyn(2): 'b', dyn(3u): 'c'}[dyn(3.1)]", "no such key"),
            ("{0:1,2:2,5:3}[1]", "no such key"),
            ("[1, 2, 3][3]", "index out of bounds: 3"),
            ("dyn({0:1,2:2,5:3}[1]) && true", "no such key"),
        ]);
    }

    /// Rows of CEL's conformance tests, `tests/simple/testdata/string.textproto`, `lists.textproto`
    /// and `conversions.textproto`.
    #[test]
    fn values_have_a_size_in_code_points_bytes_or_elements_and_a_type() {
        for (value, size, name) in [
            (Value::borrowed("πέντε"), 5, "string"),
            (Value::borrowed(""), 0, "string"),
            (Value::Bytes(b"abc".as_slice().into()), 3, "bytes"),
            (Value::list(vec![Value::Int(1), Value::Int(2)]), 2, "list"),
            (Value::Null, 1, "null_type"),
            (Value::Uint(64), 1, "uint"),
            (Value::Duration(1), 1, "google.protobuf.Duration"),
            (Value::Type("int".into()), 1, "type"),
        ] {
            assert_eq!((value.size(), value.type_name()), (size, name), "{value}");
        }
        check_true(&["type({4: 16}) == map", "type(7) != type(7u)", "type(type) == type"]);
    }

    /// `Timestamp.Compare` of cel-go's `common/types/timestamp.go`.
    #[test]
    fn timestamps_are_ordered_regardless_of_their_zone() {
        let at = |seconds, nanos, offset| Timestamp { seconds, nanos, offset };
        for (one, other, expected) in [
            (at(1, 0, 0), at(1, 0, 3600), Ordering::Equal),
            (at(1, 1, 0), at(1, 0, 0), Ordering::Greater),
            (at(0, 9, 0), at(1, 0, 0), Ordering::Less),
        ] {
            assert_eq!(one.order(&other), expected);
        }
    }
}
