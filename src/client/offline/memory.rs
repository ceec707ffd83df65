//! The cached objects of one scope at a revision: how events change them, and their file format.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{Gvr, Object, ObjectKey, WatchEvent};
use serde_json::{Map, Value};

use crate::transport::Scope;

/// Magic bytes and version of the file format.
const MAGIC: &[u8; 4] = b"KLM1";

/// The objects of a scope as last received from a server.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// The objects at `revision`; `None` before a list was complete.
    known: Option<BTreeMap<ObjectKey, Arc<Object>>>,
    revision: i64,
}

/// The incomplete list of one stream.
pub(super) type Listing = Option<BTreeMap<ObjectKey, Arc<Object>>>;

impl Memory {
    /// Creates a cache with a complete list.
    pub(super) fn new(objects: Vec<Arc<Object>>, revision: i64) -> Self {
        let known = objects.into_iter().map(|o| (o.key.clone(), o)).collect();
        Self { known: Some(known), revision }
    }

    pub(super) fn is_known(&self) -> bool {
        self.known.is_some()
    }

    /// The events of a list of the cached objects; `None` if nothing is cached.
    pub(super) fn as_list(&self) -> Option<Vec<WatchEvent>> {
        let objects = self.known.as_ref()?.values().map(|o| WatchEvent::Added(Arc::clone(o)));
        let end = WatchEvent::Bookmark { revision: self.revision, initial: true };
        Some(objects.chain([end]).collect())
    }

    /// The only object of a scope that names one.
    pub(super) fn only(&self) -> Option<Arc<Object>> {
        self.known.as_ref()?.values().next().cloned()
    }

    /// Records an event of a stream; returns whether the change must be written. Several streams
    /// may report the same scope; none of them undoes newer changes of another.
    pub(super) fn apply(&mut self, gvr: &Gvr, listing: &mut Listing, event: &WatchEvent) -> bool {
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                if let Some(listing) = listing {
                    listing.insert(object.key.clone(), Arc::clone(object));
                    return false;
                }
                if !self.is_news(object) {
                    return false;
                }
                let Some(known) = &mut self.known else { return false };
                let old = known.insert(object.key.clone(), Arc::clone(object));
                old.is_none_or(|old| differs(gvr, &old, object))
            }
            WatchEvent::Deleted(object) => {
                if let Some(listing) = listing {
                    listing.remove(&object.key);
                    return false;
                }
                if !self.is_news(object) {
                    return false;
                }
                self.known.as_mut().is_some_and(|k| k.remove(&object.key).is_some())
            }
            WatchEvent::Bookmark { revision, initial } => {
                if *initial && let Some(listing) = listing.take() {
                    self.revision = *revision;
                    return self.replace(gvr, listing);
                }
                if listing.is_none() {
                    self.revision = self.revision.max(*revision);
                }
                false
            }
            WatchEvent::Error(_) => false,
        }
    }

    /// Whether this version is not older than the cached one.
    fn is_news(&mut self, object: &Object) -> bool {
        let known = self.known.as_ref().and_then(|k| k.get(&object.key));
        if known.is_some_and(|k| k.resource_version > object.resource_version) {
            return false;
        }
        self.revision = self.revision.max(object.resource_version);
        true
    }

    /// Records the result of a read by name: the object, or that it does not exist.
    pub(super) fn set_only(&mut self, gvr: &Gvr, object: Option<Arc<Object>>) -> bool {
        self.replace(gvr, object.into_iter().map(|o| (o.key.clone(), o)).collect())
    }

    fn replace(&mut self, gvr: &Gvr, now: BTreeMap<ObjectKey, Arc<Object>>) -> bool {
        let same = self.known.as_ref().is_some_and(|before| {
            before.len() == now.len()
                && now.iter().all(|(key, object)| {
                    before.get(key).is_some_and(|old| !differs(gvr, old, object))
                })
        });
        self.known = Some(now);
        !same
    }

    /// A cheap copy of what is written to the file.
    pub(super) fn snapshot(&self) -> Option<(i64, Vec<Arc<Object>>)> {
        Some((self.revision, self.known.as_ref()?.values().cloned().collect()))
    }
}

/// Whether two versions differ in what a node needs to start without a server. Pods and nodes
/// update their status frequently, and the node knows that status better itself.
fn differs(gvr: &Gvr, old: &Object, new: &Object) -> bool {
    if old.uid != new.uid {
        return true;
    }
    if old.resource_version == new.resource_version || old.raw() == new.raw() {
        return false;
    }
    if !gvr.group.is_empty() || !matches!(&*gvr.resource, "pods" | "nodes") {
        return true;
    }
    without_reported_status(old) != without_reported_status(new)
}

/// An object without its reported status.
fn without_reported_status(object: &Object) -> Value {
    let mut value: Value = serde_json::from_slice(object.raw()).unwrap_or_default();
    if let Some(meta) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        meta.remove("managedFields");
    }
    let Some(status) = value.get_mut("status").and_then(Value::as_object_mut) else { return value };
    // Of a pod: whether it has started or ended, its addresses and its resources. Of a node: its
    // addresses.
    let directory = ["phase", "startTime", "addresses", "podIPs"];
    let mut out: Map<String, Value> =
        directory.iter().filter_map(|k| Some(((*k).to_owned(), status.remove(*k)?))).collect();
    let given = status.get("containerStatuses").and_then(Value::as_array).into_iter().flatten();
    let given =
        given.map(|c| [&c["allocatedResources"], &c["resources"]].map(Value::clone).to_vec());
    out.insert("given".to_owned(), given.map(Value::from).collect());
    value["status"] = out.into();
    value
}

/// Encodes the content of a file.
pub(super) fn encode(scope: &Scope, revision: i64, objects: &[Arc<Object>]) -> Vec<u8> {
    let size: usize = objects.iter().map(|o| o.raw().len() + 12).sum();
    let mut out = Vec::with_capacity(size + 256);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&revision.to_le_bytes());
    let name = name_of(scope);
    let chunk = |out: &mut Vec<u8>, bytes: &[u8]| {
        // Objects have at most some MiB, and the total is bounded before it is written.
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(bytes);
    };
    chunk(&mut out, name.as_bytes());
    for object in objects {
        out.extend_from_slice(&object.resource_version.to_le_bytes());
        chunk(&mut out, object.raw());
    }
    out
}

/// Why the content of a cache file cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub(super) enum DecodeError {
    /// The file ends too early.
    #[error("it ends in the middle")]
    Truncated,
    /// The file has another format.
    #[error("it is of another version")]
    Version,
    /// The file belongs to another scope.
    #[error("it is about something else")]
    Scope,
    /// An object is invalid.
    #[error("{0}")]
    Object(#[source] api::object::BadObject),
}

/// Decodes the content of a file of this scope.
///
/// # Errors
/// [`DecodeError`].
pub(super) fn decode(scope: &Scope, content: &[u8]) -> Result<Memory, DecodeError> {
    fn take<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], DecodeError> {
        let (head, tail) = rest.split_at_checked(length).ok_or(DecodeError::Truncated)?;
        *rest = tail;
        Ok(head)
    }
    fn number(rest: &mut &[u8]) -> Result<i64, DecodeError> {
        let bytes = take(rest, 8)?.try_into().map_err(|_| DecodeError::Truncated)?;
        Ok(i64::from_le_bytes(bytes))
    }
    fn chunk<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], DecodeError> {
        let bytes = take(rest, 4)?.try_into().map_err(|_| DecodeError::Truncated)?;
        let length = u32::from_le_bytes(bytes);
        take(rest, usize::try_from(length).map_err(|_| DecodeError::Truncated)?)
    }
    let mut rest = content;
    if take(&mut rest, 4)? != MAGIC {
        return Err(DecodeError::Version);
    }
    let revision = number(&mut rest)?;
    if chunk(&mut rest)? != name_of(scope).as_bytes() {
        return Err(DecodeError::Scope);
    }
    let mut objects = Vec::new();
    while !rest.is_empty() {
        let version = number(&mut rest)?;
        let raw = bytes::Bytes::copy_from_slice(chunk(&mut rest)?);
        objects.push(Arc::new(Object::from_stored(raw, version).map_err(DecodeError::Object)?));
    }
    Ok(Memory::new(objects, revision))
}

fn name_of(scope: &Scope) -> String {
    let Scope { gvr, namespace, label_selector, field_selector } = scope;
    format!("{gvr}\n{namespace}\n{label_selector}\n{field_selector}")
}

/// The file name of a scope: the resource for readability, and a digest.
pub(super) fn file_name(scope: &Scope) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, name_of(scope).as_bytes());
    let hex: String = digest.as_ref().iter().take(8).map(|b| format!("{b:02x}")).collect();
    let resource: String =
        scope.gvr.resource.chars().filter(char::is_ascii_alphanumeric).take(60).collect();
    format!("{PREFIX}{resource}-{hex}")
}

/// Prefix of the names of cache files.
pub(super) const PREFIX: &str = "last-";
