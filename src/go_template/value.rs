//! Values of templates, with the types that Go's reflection tells apart.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::Failure;
use crate::signature::Param;
use crate::time::Time;

/// A value of a template. Cloning copies a reference: maps are shared as in Go.
#[derive(Clone)]
pub enum Value {
    /// Go's zero `reflect.Value`: a missing value whose fields are missing too. Functions see
    /// [`Value::Nil`] instead.
    Invalid,
    /// A nil `interface {}`.
    Nil,
    Bool(bool),
    /// Go's `int`: literals of templates, lengths and indices.
    Int(i64),
    /// Go's `int64`: results of sprig's arithmetic.
    Int64(i64),
    /// Go's `uint8`: a byte of a string, by `index`.
    Byte(u8),
    /// Go's `uint64`: parts of a semantic version.
    Uint64(u64),
    /// Go's `float64`: every number of values.yaml.
    Float(f64),
    String(Arc<str>),
    /// A Go string that is not UTF-8.
    Binary(Arc<[u8]>),
    /// Go's `[]byte`.
    Bytes(Arc<[u8]>),
    List(List),
    Map(Map),
    Time(Time),
    /// Go's `time.Duration` in nanoseconds.
    Duration(i64),
    Object(Arc<dyn Object>),
}

/// The element type of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Elem {
    Any,
    String,
    Int,
    /// `[][]interface {}`
    List,
    /// `common.VersionSet` of Helm: strings, with the method `Has`.
    Versions,
}

#[derive(Clone)]
pub struct List {
    pub elem: Elem,
    /// A nil slice, which JSON writes as `null`.
    pub nil: bool,
    pub items: Arc<Items>,
}

/// The elements of a list.
pub struct Items(Vec<Value>);

impl std::ops::Deref for Items {
    type Target = [Value];

    fn deref(&self) -> &[Value] {
        &self.0
    }
}

impl Drop for Items {
    fn drop(&mut self) {
        drop_all(std::mem::take(&mut self.0));
    }
}

/// The type of a map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// `map[string]interface {}`
    Any,
    /// `map[string]string`
    Strings,
    /// `engine.files` of Helm: bytes of files by path, with methods.
    Files,
}

/// Keys and values in the order of the keys.
pub type Entries = BTreeMap<Arc<str>, Value>;

#[derive(Clone)]
pub struct Map {
    pub class: Class,
    inner: Arc<Inner>,
}

/// The entries of a map.
struct Inner(Mutex<Entries>);

impl Drop for Inner {
    fn drop(&mut self) {
        drop_all(std::mem::take(self.0.get_mut()).into_values().collect());
    }
}

/// Drops values and what is in them one after another: a template can nest lists and maps deeper
/// than the stack has room for.
fn drop_all(mut open: Vec<Value>) {
    while let Some(mut value) = open.pop() {
        match &mut value {
            Value::List(list) => {
                if let Some(items) = Arc::get_mut(&mut list.items) {
                    open.append(&mut items.0);
                }
            }
            Value::Map(map) => {
                if let Some(inner) = Arc::get_mut(&mut map.inner) {
                    open.extend(std::mem::take(inner.0.get_mut()).into_values());
                }
            }
            _ => {}
        }
    }
}

/// A Go struct: fields and methods by name.
pub trait Object: Send + Sync {
    /// Go's name of the type.
    fn type_name(&self) -> &'static str;
    fn field(&self, name: &str) -> Option<Value>;
    /// The parameters of a method, `None` when there is none of that name.
    fn method(&self, _name: &str) -> Option<&'static [Param]> {
        None
    }
    /// Runs a method whose parameters [`Object::method`] named.
    fn call(&self, name: &str, _args: &[Value]) -> Result<Value, Failure> {
        Err(Failure::new(format!("no method {name}")))
    }
    /// What `%v` prints.
    fn text(&self) -> String;
    /// What JSON and YAML show.
    fn data(&self) -> Value {
        Value::from(self.text())
    }
}

impl Map {
    pub fn new(entries: Entries) -> Self {
        Self::of(Class::Any, entries)
    }

    pub fn of(class: Class, entries: Entries) -> Self {
        Self { class, inner: Arc::new(Inner(Mutex::new(entries))) }
    }

    pub fn get(&self, key: &str) -> Option<Value> {
        self.inner.0.lock().get(key).cloned()
    }

    pub fn contains(&self, key: &str) -> bool {
        self.inner.0.lock().contains_key(key)
    }

    pub fn len(&self) -> usize {
        self.inner.0.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Changes the map for everyone who holds it.
    pub fn insert(&self, key: impl Into<Arc<str>>, value: Value) {
        // The replaced value is dropped after the lock is released.
        let _old = self.inner.0.lock().insert(key.into(), value);
    }

    pub fn remove(&self, key: &str) {
        let _old = self.inner.0.lock().remove(key);
    }

    /// A copy of the entries; the values are shared.
    pub fn entries(&self) -> Entries {
        self.inner.0.lock().clone()
    }

    /// The entries as a list, in the order of the keys.
    pub fn pairs(&self) -> Vec<(Arc<str>, Value)> {
        self.inner.0.lock().iter().map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl List {
    pub fn any(items: Vec<Value>) -> Self {
        Self::of(Elem::Any, items)
    }

    pub fn of(elem: Elem, items: Vec<Value>) -> Self {
        Self { elem, nil: false, items: Arc::new(Items(items)) }
    }

    /// A list of the same type with other elements.
    pub fn with(&self, items: Vec<Value>) -> Self {
        Self { elem: self.elem, nil: self.nil, items: Arc::new(Items(items)) }
    }

    pub fn none(elem: Elem) -> Self {
        Self { elem, nil: true, items: Arc::new(Items(Vec::new())) }
    }
}

impl Value {
    pub fn map() -> Self {
        Self::Map(Map::new(Entries::new()))
    }

    pub fn list(items: Vec<Self>) -> Self {
        Self::List(List::any(items))
    }

    /// Go's `[]string`.
    pub fn strings<T: Into<Arc<str>>>(items: impl IntoIterator<Item = T>) -> Self {
        let items = items.into_iter().map(|item| Self::String(item.into())).collect();
        Self::List(List::of(Elem::String, items))
    }

    /// A Go string of any bytes.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) => Self::from(text),
            Err(error) => Self::Binary(error.into_bytes().into()),
        }
    }

    /// The files of a chart by their path, as `.Files`.
    pub fn files(files: impl IntoIterator<Item = (String, Vec<u8>)>) -> Self {
        let entries = files
            .into_iter()
            .map(|(name, data)| (Arc::from(name), Self::Bytes(data.into())))
            .collect();
        Self::Map(Map::of(Class::Files, entries))
    }

    /// An entry of a map.
    pub fn get(&self, key: &str) -> Option<Self> {
        match self {
            Self::Map(map) => map.get(key),
            _ => None,
        }
    }

    pub fn is_nil(&self) -> bool {
        matches!(self, Self::Nil | Self::Invalid)
    }

    /// The bytes of a Go string.
    pub fn string_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::String(text) => Some(text.as_bytes()),
            Self::Binary(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Go's name of the type, as `%T` prints it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Invalid => "<nil>",
            Self::Nil => "interface {}",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Int64(_) => "int64",
            Self::Byte(_) => "uint8",
            Self::Uint64(_) => "uint64",
            Self::Float(_) => "float64",
            Self::String(_) | Self::Binary(_) => "string",
            Self::Bytes(_) => "[]uint8",
            Self::List(list) => match list.elem {
                Elem::Any => "[]interface {}",
                Elem::String => "[]string",
                Elem::Int => "[]int",
                Elem::List => "[][]interface {}",
                Elem::Versions => "common.VersionSet",
            },
            Self::Map(map) => match map.class {
                Class::Any => "map[string]interface {}",
                Class::Strings => "map[string]string",
                Class::Files => "engine.files",
            },
            Self::Time(_) => "time.Time",
            Self::Duration(_) => "time.Duration",
            Self::Object(object) => object.type_name(),
        }
    }

    /// Go's name of the kind, as `reflect.Kind` prints it.
    pub fn kind_name(&self) -> &'static str {
        match self {
            Self::Invalid | Self::Nil => "invalid",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Int64(_) | Self::Duration(_) => "int64",
            Self::Byte(_) => "uint8",
            Self::Uint64(_) => "uint64",
            Self::Float(_) => "float64",
            Self::String(_) | Self::Binary(_) => "string",
            Self::Bytes(_) | Self::List(_) => "slice",
            Self::Map(_) => "map",
            Self::Time(_) => "struct",
            Self::Object(object) if object.type_name().starts_with('*') => "ptr",
            Self::Object(_) => "struct",
        }
    }

    /// Whether Go's templates take the value for true. sprig's `empty` is the negation.
    pub fn truth(&self) -> bool {
        match self {
            Self::Invalid | Self::Nil => false,
            Self::Bool(value) => *value,
            Self::Int(value) | Self::Int64(value) | Self::Duration(value) => *value != 0,
            Self::Byte(value) => *value != 0,
            Self::Uint64(value) => *value != 0,
            Self::Float(value) => *value != 0.0,
            Self::String(text) => !text.is_empty(),
            Self::Binary(bytes) | Self::Bytes(bytes) => !bytes.is_empty(),
            Self::List(list) => !list.items.is_empty(),
            Self::Map(map) => !map.is_empty(),
            Self::Time(_) | Self::Object(_) => true,
        }
    }

    /// The elements of a list, or the bytes of a `[]byte`.
    pub fn items(&self) -> Option<Vec<Self>> {
        match self {
            Self::List(list) => Some(list.items.to_vec()),
            Self::Bytes(bytes) => Some(bytes.iter().map(|byte| Self::Byte(*byte)).collect()),
            _ => None,
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::String(text.into())
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<Entries> for Value {
    fn from(entries: Entries) -> Self {
        Self::Map(Map::new(entries))
    }
}

impl FromIterator<(&'static str, Value)> for Value {
    fn from_iter<I: IntoIterator<Item = (&'static str, Self)>>(pairs: I) -> Self {
        let entries: Entries = pairs.into_iter().map(|(key, value)| (key.into(), value)).collect();
        Self::from(entries)
    }
}

/// Decodes as Go's `encoding/json` does into `interface {}`: every number is a `float64`.
impl From<serde_json::Value> for Value {
    fn from(value: serde_json::Value) -> Self {
        match value {
            serde_json::Value::Null => Self::Nil,
            serde_json::Value::Bool(value) => Self::Bool(value),
            serde_json::Value::Number(number) => Self::Float(number.as_f64().unwrap_or(f64::NAN)),
            serde_json::Value::String(text) => Self::from(text),
            serde_json::Value::Array(items) => {
                Self::list(items.into_iter().map(Self::from).collect())
            }
            serde_json::Value::Object(object) => {
                let entries = object.into_iter().map(|(k, v)| (k.into(), Self::from(v)));
                Self::from(entries.collect::<Entries>())
            }
        }
    }
}
