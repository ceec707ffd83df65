//! API objects as JSON bytes with a small header, and the identifiers of kinds, resources and
//! objects.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use kinds::Typed;
use serde::Deserialize;
use serde_json::Value;

/// The group, version and kind of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gvk {
    /// The API group; empty for the core group.
    pub group: Arc<str>,
    /// The version, such as `v1`.
    pub version: Arc<str>,
    /// The kind, such as `Pod`.
    pub kind: Arc<str>,
}

impl Gvk {
    /// Creates the identifier from its parts.
    pub fn new(group: &str, version: &str, kind: &str) -> Self {
        Self { group: group.into(), version: version.into(), kind: kind.into() }
    }

    /// Returns the value of the field `apiVersion`: `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_string()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// Creates the identifier from the fields `apiVersion` and `kind`.
    pub fn from_api_version(api_version: &str, kind: &str) -> Self {
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        Self::new(group, version, kind)
    }
}

/// The group, version and resource (lower-case plural) of a request path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gvr {
    /// The API group; empty for the core group.
    pub group: Arc<str>,
    /// The version, such as `v1`.
    pub version: Arc<str>,
    /// The resource, such as `pods`.
    pub resource: Arc<str>,
}

impl Gvr {
    /// Creates the identifier from its parts.
    pub fn new(group: &str, version: &str, resource: &str) -> Self {
        Self { group: group.into(), version: version.into(), resource: resource.into() }
    }
}

impl fmt::Display for Gvr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() {
            write!(f, "{}/{}", self.version, self.resource)
        } else {
            write!(f, "{}/{}/{}", self.group, self.version, self.resource)
        }
    }
}

/// The namespace and name of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// The namespace; empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl ObjectKey {
    /// Creates the key from its parts.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// An immutable object: compact JSON without `metadata.resourceVersion`, and the fields by which
/// caches index it.
///
/// The JSON always starts with `{"apiVersion":…` or `{"kind":…` and contains an object `metadata`.
/// [`Object::json`] inserts the resource version, so that the store, the caches and the responses
/// share the stored bytes.
#[derive(Clone)]
pub struct Object {
    raw: Bytes,
    /// The byte offset directly after the `{` of `metadata`.
    splice: u32,
    /// Whether `metadata` is empty, so that no comma follows the inserted field.
    bare: bool,
    /// The revision of the store at which this version was written.
    pub resource_version: i64,
    /// The namespace and name.
    pub key: ObjectKey,
    /// The field `metadata.uid`.
    pub uid: Arc<str>,
    /// The field `metadata.labels`, sorted by key.
    pub labels: Arc<[(Arc<str>, Arc<str>)]>,
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Object({} @{}, {} bytes)", self.key, self.resource_version, self.raw.len())
    }
}

/// The reason why bytes or a value are not an object.
#[derive(Debug, thiserror::Error)]
#[error("not a stored object: {0}")]
pub struct BadObject(pub String);

#[derive(Deserialize, Default)]
#[serde(default)]
struct MetaHeader<'a> {
    #[serde(borrow)]
    name: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    namespace: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    uid: std::borrow::Cow<'a, str>,
    labels: Option<std::collections::BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Header<'a> {
    #[serde(borrow)]
    metadata: &'a serde_json::value::RawValue,
}

impl Object {
    /// Reads the header of stored JSON, which must not contain `metadata.resourceVersion`.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a JSON object with an object `metadata`.
    pub fn from_stored(raw: Bytes, resource_version: i64) -> Result<Self, BadObject> {
        let bad = |e: serde_json::Error| BadObject(e.to_string());
        let header: Header<'_> = serde_json::from_slice(&raw).map_err(bad)?;
        let text = header.metadata.get();
        if !text.starts_with('{') {
            return Err(BadObject("metadata is no object".into()));
        }
        let meta: MetaHeader<'_> = serde_json::from_str(text).map_err(bad)?;
        let offset = text.as_ptr() as usize - raw.as_ptr() as usize + 1;
        let bare = text.get(1..).is_some_and(|rest| rest.trim_start().starts_with('}'));
        let labels = meta
            .labels
            .unwrap_or_default()
            .into_iter()
            .map(|(k, v)| (k.into(), v.into()))
            .collect();
        let key = ObjectKey::new(&meta.namespace, &meta.name);
        let uid = meta.uid.as_ref().into();
        let splice = u32::try_from(offset).map_err(|e| BadObject(e.to_string()))?;
        Ok(Self { splice, bare, resource_version, key, uid, labels, raw })
    }

    /// Creates an object from a JSON value. `metadata.resourceVersion` moves from the value to the
    /// header.
    ///
    /// # Errors
    /// Returns an error if the value lacks an object `metadata` or its resource version is not a
    /// number.
    pub fn from_value(mut value: Value) -> Result<Self, BadObject> {
        let meta = value
            .get_mut("metadata")
            .and_then(Value::as_object_mut)
            .ok_or_else(|| BadObject("no metadata".into()))?;
        let version = match meta.remove("resourceVersion") {
            None => 0,
            Some(Value::String(text)) if text.is_empty() => 0,
            Some(Value::String(text)) => {
                text.parse().map_err(|_| BadObject(format!("resourceVersion {text:?}")))?
            }
            Some(other) => return Err(BadObject(format!("resourceVersion {other}"))),
        };
        let raw = serde_json::to_vec(&value).map_err(|e| BadObject(e.to_string()))?;
        Self::from_stored(raw.into(), version)
    }

    /// Returns the stored bytes, without the resource version.
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// Appends the JSON with the resource version. An object that is not stored has the resource
    /// version 0, which is omitted.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        let (head, tail) = self.raw.split_at(self.splice as usize);
        out.extend_from_slice(head);
        self.write_version(out);
        out.extend_from_slice(tail);
    }

    /// Appends the JSON without the content of its first `head` bytes, which include the opening
    /// brace. The items of typed lists have no `kind` and `apiVersion`.
    pub fn write_json_behind(&self, head: usize, out: &mut Vec<u8>) {
        let splice = self.splice as usize;
        let (Some(front), Some(tail)) = (self.raw.get(head..splice), self.raw.get(splice..)) else {
            return self.write_json(out);
        };
        out.push(b'{');
        out.extend_from_slice(front);
        self.write_version(out);
        out.extend_from_slice(tail);
    }

    fn write_version(&self, out: &mut Vec<u8>) {
        use std::io::Write;
        if self.resource_version != 0 {
            let comma = if self.bare { "" } else { "," };
            // A write to memory cannot fail.
            let _ = write!(out, "\"resourceVersion\":\"{}\"{comma}", self.resource_version);
        }
    }

    /// Returns the JSON with the resource version.
    pub fn json(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.raw.len() + 40);
        self.write_json(&mut out);
        out
    }

    /// Returns the object with its resource version as a JSON value.
    ///
    /// # Errors
    /// Returns an error if the bytes are not valid JSON, which cannot occur for an object of this
    /// type.
    pub fn value(&self) -> Result<Value, BadObject> {
        serde_json::from_slice(&self.json()).map_err(|e| BadObject(e.to_string()))
    }

    /// Returns the object with its resource version as a typed struct.
    ///
    /// # Errors
    /// Returns an error if a field has a different JSON type than that of the struct.
    pub fn decode<T: Typed>(&self) -> Result<T, BadObject> {
        let bad = |e: serde_json::Error| BadObject(format!("{}: {e}", self.key));
        T::from_json(&self.json()).or_else(|error| {
            let mut value = self.value()?;
            let has_changed = set_times(&mut value);
            if has_changed { T::from_value(&value) } else { Err(error) }.map_err(bad)
        })
    }

    /// Returns the value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.iter().find(|(k, _)| k.as_ref() == key).map(|(_, v)| v.as_ref())
    }
}

/// Replaces null in `lastTransitionTime` by Go's zero time and returns whether there was one. Go
/// writes an unset time of a condition as null, which typed structs reject.
fn set_times(value: &mut Value) -> bool {
    match value {
        Value::Object(fields) => fields.iter_mut().fold(false, |has_changed, (name, field)| {
            if name == "lastTransitionTime" && field.is_null() {
                *field = Value::from("0001-01-01T00:00:00Z");
                return true;
            }
            set_times(field) | has_changed
        }),
        Value::Array(items) => {
            items.iter_mut().fold(false, |has_changed, item| set_times(item) | has_changed)
        }
        _ => false,
    }
}

/// An event of a watch.
#[derive(Debug, Clone)]
pub enum WatchEvent {
    /// The object was created, or matches the selector from this version on.
    Added(Arc<Object>),
    /// The object was modified.
    Modified(Arc<Object>),
    /// The object was deleted, or no longer matches the selector. The object is its last state, at
    /// the revision of the deletion.
    Deleted(Arc<Object>),
    /// All events up to this revision have been sent; `initial` marks the end of the initial list
    /// of a streaming list.
    Bookmark {
        /// The revision.
        revision: i64,
        /// Whether the bookmark has the annotation `k8s.io/initial-events-end`.
        initial: bool,
    },
    /// The watch ends with this Status; the code 410 requires the client to list again.
    Error(Box<crate::Status>),
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn splices_the_resource_version_into_the_stored_bytes() {
        let raw = Bytes::from_static(br#"{"kind":"ConfigMap","metadata":{"name":"a","namespace":"n","labels":{"x":"y"}},"data":{"metadata":"no"}}"#);
        let object = Object::from_stored(raw, 7).unwrap();
        assert_eq!(object.key.to_string(), "n/a");
        assert_eq!(object.label("x"), Some("y"));
        assert_eq!(
            object.value().unwrap(),
            json!({"kind":"ConfigMap","metadata":{"resourceVersion":"7","name":"a","namespace":"n","labels":{"x":"y"}},"data":{"metadata":"no"}})
        );
    }

    #[test]
    fn takes_the_resource_version_out_of_a_value() {
        let object =
            Object::from_value(json!({"kind":"Node","metadata":{"resourceVersion":"12"}})).unwrap();
        assert_eq!(object.resource_version, 12);
        assert_eq!(
            object.value().unwrap(),
            json!({"kind":"Node","metadata":{"resourceVersion":"12"}})
        );
        assert!(Object::from_value(json!({"metadata":{"resourceVersion":"x"}})).is_err());
    }

    #[test]
    fn a_condition_whose_time_nobody_set_is_decoded() {
        let service = json!({
            "metadata": {"name": "a", "namespace": "n"},
            "status": {"conditions": [
                {"type": "A", "status": "True", "reason": "", "message": "", "lastTransitionTime": null}]},
        });
        let decoded: crate::k8s::api::core::v1::Service =
            Object::from_value(service).unwrap().decode().unwrap();
        let conditions = decoded.status.unwrap().conditions.unwrap();
        assert_eq!(conditions[0].last_transition_time.0.to_string(), "0001-01-01T00:00:00Z");
        // Any other value of a wrong type remains an error.
        let faulty = json!({"metadata": {"name": "a"}, "spec": {"ports": 1}});
        let faulty = Object::from_value(faulty).unwrap();
        assert!(faulty.decode::<crate::k8s::api::core::v1::Service>().is_err());
    }
}
