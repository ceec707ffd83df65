//! `apiVersion`, `kind` and `metadata` of embedded resources (`pkg/apiserver/schema/objectmeta`).

use std::sync::LazyLock;

use serde_json::{Map, Value};
use sorting::CompactSort as _;

use super::node::Node;
use crate::codec::{DecodeError, Decoded, json};
use crate::field::{Error, ErrorList, Path};
use crate::schema::{Schema, TypeId};
use crate::validation::meta as rules;
use crate::validation::names;

/// Maximum number of unknown fields that are reported.
const UNKNOWN_MAX: usize = 1000;

static OBJECT_META: LazyLock<Option<TypeId>> =
    LazyLock::new(|| Schema::builtin().by_name("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"));

/// Why a value is not an `ObjectMeta`.
#[derive(Debug, thiserror::Error)]
enum MetaError {
    #[error("the table of types has no ObjectMeta")]
    NoType,
    #[error(transparent)]
    Encode(#[from] serde_json::Error),
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

/// Decodes a value as an `ObjectMeta`.
fn decode(meta: &Value) -> Result<Decoded, MetaError> {
    let id = OBJECT_META.ok_or(MetaError::NoType)?;
    let bytes = serde_json::to_vec(meta)?;
    let mut decoded = json::decode_strict(&Schema::builtin(), id, &bytes)?;
    if let Some(map) = decoded.value.as_object_mut()
        && map.get("creationTimestamp").is_some_and(Value::is_null)
    {
        map.remove("creationTimestamp");
    }
    Ok(decoded)
}

/// Decodes field by field and omits fields of a wrong type; `None` when the value is not an object.
fn decode_leniently(meta: &Value) -> Option<Decoded> {
    let mut whole = Decoded { value: Value::Object(Map::new()), ..Decoded::default() };
    for (name, value) in meta.as_object()? {
        let one = Value::Object(Map::from_iter([(name.clone(), value.clone())]));
        let Ok(decoded) = decode(&one) else { continue };
        if let (Value::Object(all), Value::Object(part)) = (&mut whole.value, decoded.value) {
            all.extend(part);
        }
        whole.strict_errors.extend(decoded.strict_errors);
    }
    Some(whole)
}

/// Coerces the metadata of a resource, and of the resources embedded in it, to `ObjectMeta`.
pub(super) fn coerce_root(value: &mut Value, node: &Node) -> Result<(), Box<Error>> {
    let mut coercer = Coercer { drop_invalid: false, unknown: Vec::new() };
    if let Some(map) = value.as_object_mut() {
        coercer.resource(map, &Path::default())?;
    }
    coercer.walk(value, node, &Path::default())
}

/// Coerces the metadata of embedded resources to `ObjectMeta`; returns the sorted paths of unknown
/// fields.
pub(super) fn coerce(
    value: &mut Value,
    node: &Node,
    path: &Path,
    drop_invalid: bool,
) -> Result<Vec<String>, Box<Error>> {
    let mut coercer = Coercer { drop_invalid, unknown: Vec::new() };
    coercer.walk(value, node, path)?;
    coercer.unknown.compact_sort();
    Ok(coercer.unknown)
}

struct Coercer {
    drop_invalid: bool,
    unknown: Vec<String>,
}

impl Coercer {
    fn walk(&mut self, value: &mut Value, node: &Node, path: &Path) -> Result<(), Box<Error>> {
        if !node.embedded_below {
            return Ok(());
        }
        match value {
            Value::Object(map) => {
                if node.embedded {
                    self.resource(map, path)?;
                }
                for (name, value) in map {
                    if let Some(below) = node.properties.get(name.as_str()) {
                        self.walk(value, below, &path.child(name))?;
                    } else if let Some(below) = node.field(name) {
                        self.walk(value, below, &path.key(name))?;
                    }
                }
            }
            Value::Array(list) => {
                let Some(below) = node.items.as_deref() else { return Ok(()) };
                for (index, value) in list.iter_mut().enumerate() {
                    self.walk(value, below, &path.index(index))?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn resource(&mut self, map: &mut Map<String, Value>, path: &Path) -> Result<(), Box<Error>> {
        for key in ["apiVersion", "kind"] {
            let Some(value) = map.get(key).filter(|value| !value.is_string()) else { continue };
            if !self.drop_invalid {
                let error = Error::invalid(&path.child(key), value.clone(), "must be a string");
                return Err(Box::new(error));
            }
            map.remove(key);
        }
        let Some(meta) = map.get("metadata") else { return Ok(()) };
        let field = path.child("metadata");
        let decoded = match decode(meta) {
            Ok(decoded) => decoded,
            Err(error) if !self.drop_invalid => {
                return Err(Box::new(Error::invalid(&field, meta.clone(), error.to_string())));
            }
            Err(_) => match decode_leniently(meta) {
                Some(decoded) => decoded,
                None => return Ok(()),
            },
        };
        for text in decoded.strict_errors {
            let name = text.split('"').nth(1).unwrap_or(&text);
            if self.unknown.len() < UNKNOWN_MAX {
                self.unknown.push(format!("{field}.{name}"));
            }
        }
        map.insert("metadata".into(), decoded.value);
        Ok(())
    }
}

/// Errors of embedded resources; with `root`, the value itself is a resource as well.
pub(super) fn validate(value: &Value, node: &Node, path: &Path, root: bool) -> ErrorList {
    let mut errors = ErrorList::new();
    walk(value, node, path, root, &mut errors);
    errors
}

fn walk(value: &Value, node: &Node, path: &Path, root: bool, errors: &mut ErrorList) {
    if !node.embedded_below && !root {
        return;
    }
    match value {
        Value::Object(map) => {
            if node.embedded || root {
                resource(map, path, errors);
            }
            for (name, value) in map {
                if let Some(below) = node.properties.get(name.as_str()) {
                    walk(value, below, &path.child(name), false, errors);
                } else if let Some(below) = node.field(name) {
                    walk(value, below, &path.key(name), false, errors);
                }
            }
        }
        Value::Array(list) => {
            let Some(below) = node.items.as_deref() else { return };
            for (index, value) in list.iter().enumerate() {
                walk(value, below, &path.index(index), false, errors);
            }
        }
        _ => {}
    }
}

fn resource(map: &Map<String, Value>, path: &Path, errors: &mut ErrorList) {
    for key in ["apiVersion", "kind"] {
        if !map.contains_key(key) {
            errors.push(Error::required(&path.child(key), ""));
        }
    }
    for key in ["apiVersion", "kind"] {
        let field = path.child(key);
        match map.get(key) {
            None => {}
            Some(Value::String(text)) if text.is_empty() => {
                errors.push(Error::invalid(&field, "", "must not be empty"));
            }
            Some(Value::String(text)) => {
                let why = if key == "kind" { fault_of_kind(text) } else { fault_of_version(text) };
                errors.extend(why.map(|why| Error::invalid(&field, text.as_str(), why)));
            }
            Some(other) => errors.push(Error::invalid(&field, other.clone(), "must be a string")),
        }
    }
    if let Some(meta) = map.get("metadata") {
        match decode(meta) {
            Err(error) => {
                let field = path.child("metadata");
                errors.push(Error::invalid(&field, meta.clone(), error.to_string()));
            }
            Ok(decoded) => errors.extend(of_meta(decoded.value, path)),
        }
    }
}

fn fault_of_version(text: &str) -> Option<String> {
    (text.matches('/').count() > 1).then(|| format!("unexpected GroupVersion string: {text}"))
}

fn fault_of_kind(text: &str) -> Option<String> {
    let bad = names::dns1035_label(&text.to_lowercase()).join(",");
    let intro = "may have mixed case, but should otherwise match: ";
    (!bad.is_empty()).then(|| format!("{intro}{bad}"))
}

/// Errors of a well-formed `metadata`. The name is optional.
fn of_meta(mut meta: Value, path: &Path) -> ErrorList {
    if let Some(map) = meta.as_object_mut()
        && map.get("name").is_none_or(|name| name == "")
    {
        map.insert("name".into(), "fakename".into());
    }
    let namespaced = meta.get("namespace").is_some_and(|namespace| namespace != "");
    let object = serde_json::json!({"apiVersion": "embedded/v1", "metadata": meta});
    let mut errors = rules::validate_create(&object, namespaced, names::name_is_path_segment);
    for error in &mut errors {
        error.field = path.child(&error.field.to_string());
    }
    errors
}
