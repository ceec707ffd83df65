//! An object as everybody holds it: its JSON bytes and a small header.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use kinds::Typed;
use serde::Deserialize;
use serde_json::Value;

/// Group, version, kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gvk {
    /// API group; empty for the core group.
    pub group: Arc<str>,
    /// Version, such as `v1`.
    pub version: Arc<str>,
    /// Kind, such as `Pod`.
    pub kind: Arc<str>,
}

impl Gvk {
    /// From its three parts.
    pub fn new(group: &str, version: &str, kind: &str) -> Self {
        Self { group: group.into(), version: version.into(), kind: kind.into() }
    }

    /// `v1` or `apps/v1`, as the field `apiVersion` has it.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_string()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// From the fields `apiVersion` and `kind`.
    pub fn from_api_version(api_version: &str, kind: &str) -> Self {
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        Self::new(group, version, kind)
    }
}

/// Group, version, resource (lower-case plural).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gvr {
    /// API group; empty for the core group.
    pub group: Arc<str>,
    /// Version, such as `v1`.
    pub version: Arc<str>,
    /// Resource, such as `pods`.
    pub resource: Arc<str>,
}

impl Gvr {
    /// From its three parts.
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

/// Namespace (empty when cluster-scoped) and name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

impl ObjectKey {
    /// From its two parts.
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

/// An immutable object: compact JSON without `metadata.resourceVersion`, and what caches index by.
///
/// The JSON always begins `{"apiVersion":…` or `{"kind":…` and holds a `metadata` object;
/// [`Object::json`] splices the resource version in, so that the bytes at rest are shared by store,
/// caches and answers.
#[derive(Clone)]
pub struct Object {
    raw: Bytes,
    /// Byte offset just behind the `{` of `metadata`.
    splice: u32,
    /// Whether the metadata object is empty, so that no comma follows the spliced field.
    bare: bool,
    /// Revision of the store at which this version was written.
    pub resource_version: i64,
    /// Namespace and name.
    pub key: ObjectKey,
    /// `metadata.uid`.
    pub uid: Arc<str>,
    /// `metadata.labels`, sorted by key.
    pub labels: Arc<[(Arc<str>, Arc<str>)]>,
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Object({} @{}, {} bytes)", self.key, self.resource_version, self.raw.len())
    }
}

/// Why bytes are no object.
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
    /// Reads the header of stored JSON (which must hold no `metadata.resourceVersion`).
    ///
    /// # Errors
    /// When the bytes are no JSON object with an object `metadata`.
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

    /// From a JSON value; `metadata.resourceVersion` is taken out of the value and becomes the
    /// header's.
    ///
    /// # Errors
    /// When the value has no object `metadata` or its resource version is no number.
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

    /// The stored bytes, without the resource version.
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// Appends the full JSON, resource version included (unless it is 0: an object that was not
    /// stored).
    pub fn write_json(&self, out: &mut Vec<u8>) {
        let (head, tail) = self.raw.split_at(self.splice as usize);
        out.extend_from_slice(head);
        self.write_version(out);
        out.extend_from_slice(tail);
    }

    /// Appends the full JSON without what stands in its first `head` bytes, of which the first is
    /// the opening brace: items of typed lists carry no kind and version.
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
            // Writing to memory cannot fail.
            let _ = write!(out, "\"resourceVersion\":\"{}\"{comma}", self.resource_version);
        }
    }

    /// The full JSON, resource version included.
    pub fn json(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.raw.len() + 40);
        self.write_json(&mut out);
        out
    }

    /// The full object as a JSON value, resource version included.
    ///
    /// # Errors
    /// When the bytes are no JSON: cannot happen for an object made by this type.
    pub fn value(&self) -> Result<Value, BadObject> {
        serde_json::from_slice(&self.json()).map_err(|e| BadObject(e.to_string()))
    }

    /// The object as a typed struct, resource version included.
    ///
    /// # Errors
    /// When a field has another JSON type than the struct.
    pub fn decode<T: Typed>(&self) -> Result<T, BadObject> {
        let bad = |e: serde_json::Error| BadObject(format!("{}: {e}", self.key));
        T::from_json(&self.json()).or_else(|error| {
            let mut value = self.value()?;
            let has_changed = set_times(&mut value);
            if has_changed { T::from_value(&value) } else { Err(error) }.map_err(bad)
        })
    }

    /// The value of one label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.iter().find(|(k, _)| k.as_ref() == key).map(|(_, v)| v.as_ref())
    }
}

/// The times of conditions that were not set are null, as Go writes them; typed structs want Go's
/// zero time. Whether there was one.
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

/// One event of a watch.
#[derive(Debug, Clone)]
pub enum WatchEvent {
    /// The object came into being, or into the selection.
    Added(Arc<Object>),
    /// The object changed.
    Modified(Arc<Object>),
    /// The object is gone, or left the selection; its last state at the revision of the deletion.
    Deleted(Arc<Object>),
    /// Everything up to this revision was sent; `initial` ends the initial list of a streaming
    /// list.
    Bookmark {
        /// Revision reached.
        revision: i64,
        /// The annotation `k8s.io/initial-events-end`.
        initial: bool,
    },
    /// The watch ends with this Status; 410 means list again.
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
        // Anything else of the wrong type is still an error.
        let faulty = json!({"metadata": {"name": "a"}, "spec": {"ports": 1}});
        let faulty = Object::from_value(faulty).unwrap();
        assert!(faulty.decode::<crate::k8s::api::core::v1::Service>().is_err());
    }
}
