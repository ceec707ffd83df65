//! Reads and writes objects in the store: compact JSON under upstream's keys, encrypted when a
//! transformer covers the resource, written with preconditions.

mod transaction;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api::{Object, Status};
use bytes::Bytes;
use serde_json::{Map, Value};
use store::Revision;
use store::{Backend, Durability, KeyRange, KeyValue, Op, RangeRequest, RangeResponse, StoreError};
use tokio::sync::RwLock;
use transaction::{Change, Outcome};

use super::Resource;
use super::leases::Leases;
use super::unreadable::{Step, Unreadable};
use crate::crd::Read;
use crate::metrics::storage as metrics;
use crate::registry::convert;
use crate::request_tracing;
use crate::response::status;
pub(crate) use encryption::NoKeyConfigured;
pub use encryption::{Opened, TransformError, Transformer};
use webhook::Callout;

/// Prefix of encrypted values.
const ENCRYPTED_PREFIX: &[u8] = b"k8s:enc:";

/// Reads and writes objects of any row.
#[derive(Debug)]
pub struct Storage {
    backend: Arc<dyn Backend>,
    transformer: Option<Arc<dyn Transformer>>,
    leases: Leases,
    /// Calls the webhooks that convert custom resources.
    callout: OnceLock<Callout>,
    event_ttl: OnceLock<Duration>,
    /// Family of the cluster's first service range.
    primary_family: OnceLock<&'static str>,
}

/// The outcome of a write: done, or its precondition did not hold.
#[derive(Debug)]
pub enum Written {
    /// Stored.
    Done(Object),
    /// The stored object has another revision or does not exist.
    Changed(Option<Object>),
}

/// The outcome of a deletion: done, or its precondition did not hold.
#[derive(Debug)]
pub enum Deletion {
    /// Deleted, at this revision.
    Done(i64),
    /// The stored object has another revision; `None` when it does not exist or is unknown.
    Changed(Option<Object>),
}

/// An object in its stored form, ready to be written.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// Not encrypted yet.
    plain: Bytes,
    /// The resource version that the write replaces; 0 for a new object.
    expected: i64,
    durability: Durability,
}

/// Another object that is written in the same transaction.
#[derive(Debug)]
pub(crate) struct LinkedWrite {
    /// The row of the object; not a custom resource.
    pub(crate) row: Arc<Resource>,
    /// The object.
    pub(crate) value: Value,
    /// The resource version that the write replaces.
    pub(crate) expected: i64,
}

impl Storage {
    /// Storage over a backend.
    pub fn new(backend: Arc<dyn Backend>, transformer: Option<Arc<dyn Transformer>>) -> Self {
        Self {
            backend,
            transformer,
            leases: Leases::default(),
            callout: OnceLock::new(),
            event_ttl: OnceLock::new(),
            primary_family: OnceLock::new(),
        }
    }

    /// Sets the family of the cluster's first service range, which Services without families have.
    pub(crate) fn set_primary_family(&self, family: &'static str) {
        // It is set only once, at start.
        let _ = self.primary_family.set(family);
    }

    fn primary_family(&self) -> &'static str {
        self.primary_family.get().copied().unwrap_or("IPv4")
    }

    /// Sets how conversion webhooks are called; later calls are ignored.
    pub fn reach_webhooks(&self, callout: Callout) {
        // It is set only once, at start.
        let _ = self.callout.set(callout);
    }

    /// Sets how long events are stored; later calls are ignored.
    pub fn set_event_ttl(&self, ttl: Duration) {
        // It is set only once, at start.
        let _ = self.event_ttl.set(ttl);
    }

    /// The transformer that encrypts values.
    pub(crate) fn transformer(&self) -> Option<&Arc<dyn Transformer>> {
        self.transformer.as_ref()
    }

    /// The store below.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// The newest version of one object, consistent with every write acknowledged before.
    ///
    /// # Errors
    /// When the store refuses or the value cannot be read.
    pub async fn get(
        &self,
        row: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Object>, Status> {
        self.backend.read_index().await.map_err(|e| status::of_store(&e))?;
        let key = row.key(namespace, name);
        let (begun, mut span) =
            (base::clock::now(), request_tracing::of_store("Get etcd3", &row.spec.gvr, &key));
        let found = self.backend.range(RangeRequest::new(KeyRange::key(key))).await;
        span.event(if found.is_ok() { "Get call succeeded" } else { "Get call failed" }, Vec::new);
        metrics::asked(&row.spec.gvr, "get", begun, found.is_ok());
        let found = found.map_err(|e| status::of_store(&e))?;
        match found.kvs.first() {
            Some(kv) => self.read(row, kv).await.map(Some),
            None => Ok(None),
        }
    }

    /// The values of a row, of one namespace or all, at an exact revision, from the key suffix
    /// `start` on.
    ///
    /// # Errors
    /// The error of the store.
    pub async fn range_at(
        &self,
        row: &Resource,
        namespace: &str,
        start: Option<&str>,
        revision: Option<Revision>,
        limit: usize,
    ) -> Result<RangeResponse, StoreError> {
        let mut range = KeyRange::prefix(Bytes::from(row.key_prefix(namespace)));
        if let Some(start) = start {
            range.start = Bytes::from(format!("{}{start}", row.key_prefix("")));
        }
        let begun = base::clock::now();
        let _span = request_tracing::of_store(
            "List(recursive=true) etcd3",
            &row.spec.gvr,
            &row.key_prefix(namespace),
        );
        let request = RangeRequest { range, revision, limit, keys_only: false, count_only: false };
        let found = self.backend.range(request).await;
        metrics::asked(&row.spec.gvr, "list", begun, found.is_ok());
        found
    }

    /// A stored value as an object of the storage version; of a custom resource, as one of the
    /// row's version.
    ///
    /// # Errors
    /// 500 that names the key when the value cannot be read, or has the reason why it cannot be
    /// converted.
    pub async fn read(&self, row: &Resource, kv: &KeyValue) -> Result<Object, Status> {
        let read = self.read_all(row, &[kv]).await.into_iter().next();
        Ok(read.ok_or_else(|| Status::internal("nothing was read"))??)
    }

    /// As [`Storage::read`] for many objects, with one call of the conversion webhook.
    pub async fn read_all(
        &self,
        row: &Resource,
        kvs: &[&KeyValue],
    ) -> Vec<Result<Object, Unreadable>> {
        self.fetch(row, kvs).await;
        self.read_opened(row, kvs, Self::open).await
    }

    async fn read_opened(
        &self,
        row: &Resource,
        kvs: &[&KeyValue],
        open: fn(&Self, &Resource, &KeyValue) -> Result<Bytes, Unreadable>,
    ) -> Vec<Result<Object, Unreadable>> {
        let Some(custom) = &row.spec.custom else {
            return kvs.iter().map(|kv| self.decode(row, kv)).collect();
        };
        let (mut out, mut foreign, mut foreign_kvs) =
            (Vec::with_capacity(kvs.len()), Vec::new(), Vec::new());
        for kv in kvs {
            let revision = kv.mod_revision.0;
            let read = open(self, row, kv).and_then(|bytes| {
                custom.read(bytes, revision).map_err(|error| undecodable(kv, error.to_string()))
            });
            match read {
                Ok(Read::Ready(object)) => out.push(Ok(object)),
                Err(error) => out.push(Err(error)),
                Ok(Read::Foreign(value)) => {
                    foreign_kvs.push((out.len(), *kv));
                    foreign.push(value);
                    out.push(Err(undecodable(kv, "the object was not converted".into())));
                }
            }
        }
        if foreign.is_empty() {
            return out;
        }
        // Boxed because the future of a webhook call is large and rarely needed.
        let converted = Box::pin(custom.convert(foreign, self.callout.get())).await;
        let mut values = match converted {
            Ok(values) => values.into_iter(),
            Err(error) => {
                for (at, kv) in foreign_kvs {
                    if let Some(slot) = out.get_mut(at) {
                        *slot = Err(undecodable(kv, error.to_string()));
                    }
                }
                return out;
            }
        };
        for (at, kv) in foreign_kvs {
            if let (Some(slot), Some(value)) = (out.get_mut(at), values.next()) {
                let finished = custom.finish(value, kv.mod_revision.0);
                *slot = finished.map_err(|error| undecodable(kv, error.to_string()));
            }
        }
        out
    }

    /// A stored value as an object of the version that it is stored in.
    ///
    /// # Errors
    /// Names the key when the value cannot be read.
    pub fn decode(&self, row: &Resource, kv: &KeyValue) -> Result<Object, Unreadable> {
        let value = self.open(row, kv)?;
        Object::from_stored(value, kv.mod_revision.0).map_err(|e| undecodable(kv, e.to_string()))
    }

    /// The plain JSON of a stored value.
    fn open(&self, row: &Resource, kv: &KeyValue) -> Result<Bytes, Unreadable> {
        let opened = self.opened(row, kv);
        let value = opened.map_err(|e| Unreadable::new(kv, Step::Transform, e.to_string()))?.plain;
        convert::stored_json(row, value, self.primary_family())
            .map_err(|error| undecodable(kv, error.to_string()))
    }

    fn opened(&self, row: &Resource, kv: &KeyValue) -> Result<Opened, TransformError> {
        match &self.transformer {
            Some(transformer) => {
                let key = String::from_utf8_lossy(&kv.key);
                transformer.open(&row.spec.gvr, &key, &kv.value)
            }
            None if kv.value.starts_with(ENCRYPTED_PREFIX) => {
                Err(TransformError::new(NoKeyConfigured))
            }
            None => Ok(Opened { plain: kv.value.clone(), stale: false }),
        }
    }

    /// Fetches the keys that decrypt these values, for [`Storage::decode`].
    pub(crate) async fn fetch(&self, row: &Resource, kvs: &[&KeyValue]) {
        let Some(transformer) = &self.transformer else { return };
        let encrypted: Vec<&Bytes> = kvs
            .iter()
            .map(|kv| &kv.value)
            .filter(|value| value.starts_with(ENCRYPTED_PREFIX))
            .collect();
        if !encrypted.is_empty() {
            transformer.fetch(&row.spec.gvr, &encrypted).await;
        }
    }

    /// Whether the stored version `found` is encrypted with an outdated key; false when it changed
    /// since.
    ///
    /// # Errors
    /// The error of the store.
    pub async fn is_stale(&self, row: &Resource, found: &Object) -> Result<bool, Status> {
        if !self.transformer.as_ref().is_some_and(|t| t.covers(&row.spec.gvr)) {
            return Ok(false);
        }
        let key = row.key(&found.key.namespace, &found.key.name);
        let there = self.backend.range(RangeRequest::new(KeyRange::key(key))).await;
        let there = there.map_err(|e| status::of_store(&e))?;
        let Some(kv) = there.kvs.first().filter(|kv| kv.mod_revision.0 == found.resource_version)
        else {
            return Ok(false);
        };
        self.fetch(row, &[kv]).await;
        let opened = self.opened(row, kv);
        Ok(opened.map_err(|e| Unreadable::new(kv, Step::Transform, e.to_string()))?.stale)
    }

    fn seal(&self, row: &Resource, key: &str, plain: &Bytes) -> Result<Bytes, Status> {
        let Some(transformer) = &self.transformer else { return Ok(plain.clone()) };
        let sealed = transformer.seal(&row.spec.gvr, key, plain);
        sealed.map_err(|e| Status::internal(&e.to_string()))
    }

    /// Writes a new object.
    ///
    /// # Errors
    /// The error of the store.
    pub async fn create(&self, row: &Resource, value: &Value) -> Result<Written, Status> {
        self.write(row, value, 0).await
    }

    /// Writes an object over the version `expected` (0: absent).
    ///
    /// # Errors
    /// The error of the store.
    pub async fn write(
        &self,
        row: &Resource,
        value: &Value,
        expected: i64,
    ) -> Result<Written, Status> {
        let prepared = self.prepare(row, value, expected).await?;
        // Without linked writes only the object itself can conflict.
        Ok(self.put(row, &prepared, &[]).await?.unwrap_or(Written::Changed(None)))
    }

    /// The bytes of an object that is written over the version `expected` (0: absent).
    ///
    /// # Errors
    /// 500 when a custom resource cannot be converted to its storage version.
    pub(crate) async fn prepare(
        &self,
        row: &Resource,
        value: &Value,
        expected: i64,
    ) -> Result<Prepared, Status> {
        let plain = self.plain(row, value).await?;
        Ok(Prepared { plain, expected, durability: row.spec.durability(false) })
    }

    /// Encodes an object that replaces `old` at revision `expected`. Consumes both, because trees
    /// are many times larger than the bytes that wait for the disk.
    ///
    /// # Errors
    /// As [`Storage::prepare`].
    pub(crate) async fn prepare_replace(
        &self,
        row: &Resource,
        old: Value,
        value: Value,
        expected: i64,
    ) -> Result<Prepared, Status> {
        let durability = row.spec.durability(is_renewal(&old, &value));
        drop(old);
        Ok(Prepared { plain: self.plain(row, &value).await?, expected, durability })
    }

    /// The bytes that are stored for a value, before encryption.
    async fn plain(&self, row: &Resource, value: &Value) -> Result<Bytes, Status> {
        let Some(custom) = &row.spec.custom else { return Ok(Bytes::from(encode(row, value))) };
        let bytes = Box::pin(custom.to_stored(value, &row.spec.storage, self.callout.get())).await;
        bytes.map_err(|e| status::unmapped(500, e.to_string()))
    }

    /// Writes the prepared object and `linked` atomically. `None` when a linked object has changed.
    ///
    /// # Errors
    /// The error of the store.
    pub(crate) async fn put(
        &self,
        row: &Resource,
        prepared: &Prepared,
        linked: &[LinkedWrite],
    ) -> Result<Option<Written>, Status> {
        let mut object = self.as_read(row, &prepared.plain).await?;
        let key = row.key(&object.key.namespace, &object.key.name);
        let mut gates: Vec<Arc<RwLock<()>>> = Vec::new();
        for gvr in [&row.spec.gvr].into_iter().chain(linked.iter().map(|l| &l.row.spec.gvr)) {
            let gate = self.transformer.as_ref().and_then(|t| t.gate(gvr));
            // Locking a gate twice deadlocks when a writer waits between.
            gates.extend(gate.filter(|gate| !gates.iter().any(|held| Arc::ptr_eq(held, gate))));
        }
        let mut held = Vec::new();
        for gate in &gates {
            held.push(gate.read().await);
        }
        let stored = self.seal(row, &key, &prepared.plain)?;
        let lease = match row.spec.ttl {
            Some(ttl) => {
                let ttl = self.event_ttl.get().copied().unwrap_or(ttl);
                let lease = self.leases.for_ttl(self.backend.as_ref(), ttl).await;
                lease.map_err(|e| status::of_store(&e))?
            }
            None => 0,
        };
        let put = Op::Put { key: key.clone().into(), value: stored, lease, prev_kv: false };
        let Prepared { expected, durability, .. } = *prepared;
        let change = Change { row, key: &key, expected, op: put, durability };
        let written = self.guarded(change, linked).await;
        if written.is_err() {
            // The lease may have expired; granting a new one is cheap.
            self.leases.forget(lease);
        }
        Ok(match written? {
            Outcome::Done(revision) => {
                object.resource_version = revision;
                Some(Written::Done(object))
            }
            Outcome::Changed(current) => Some(Written::Changed(current)),
            Outcome::LinkedChanged => None,
        })
    }

    /// The object that a read of these bytes returns.
    async fn as_read(&self, row: &Resource, plain: &Bytes) -> Result<Object, Status> {
        if row.spec.custom.is_none() {
            let filled = convert::filled(row, plain.clone(), self.primary_family());
            return Object::from_stored(filled, 0).map_err(|e| Status::internal(&e.to_string()));
        }
        let kv = KeyValue {
            key: Bytes::new(),
            value: plain.clone(),
            create_revision: Revision(0),
            mod_revision: Revision(0),
            version: 0,
            lease: 0,
        };
        let open = |_: &Self, _: &Resource, kv: &KeyValue| Ok(kv.value.clone());
        let read = self.read_opened(row, &[&kv], open).await.into_iter().next();
        read.ok_or_else(|| Status::internal("nothing was read"))?
            .map_err(|unreadable| status::unmapped(500, unreadable.why))
    }

    /// Whether writing `value` would store the bytes that `found` already has; false when they
    /// changed since.
    ///
    /// # Errors
    /// The error of the store.
    pub async fn is_stored(
        &self,
        row: &Resource,
        found: &Object,
        value: &Value,
    ) -> Result<bool, Status> {
        let Some(custom) = &row.spec.custom else { return Ok(false) };
        let key = row.key(&found.key.namespace, &found.key.name);
        let there = self.backend.range(RangeRequest::new(KeyRange::key(key))).await;
        let there = there.map_err(|e| status::of_store(&e))?;
        let wanted = Box::pin(custom.to_stored(value, &row.spec.storage, self.callout.get())).await;
        let wanted = wanted.map_err(|e| status::unmapped(500, e.to_string()))?;
        let Some(kv) = there.kvs.first().filter(|kv| kv.mod_revision.0 == found.resource_version)
        else {
            return Ok(false);
        };
        self.fetch(row, &[kv]).await;
        let opened = self.opened(row, kv);
        let opened = opened.map_err(|e| Unreadable::new(kv, Step::Transform, e.to_string()))?;
        Ok(!opened.stale && opened.plain == wanted)
    }

    /// Compacts the history before `revision`.
    ///
    /// # Errors
    /// The error of the store.
    pub async fn compact(&self, revision: i64) -> Result<(), StoreError> {
        self.backend.compact(Revision(revision)).await
    }
}

/// Whether a change of a Lease only renews it. Losing a renewal in a crash looks like a late
/// renewal; losing a change of holder would return the Lease to the previous holder.
fn is_renewal(old: &Value, new: &Value) -> bool {
    let same = |part: &str, besides: &[&str]| {
        let fields = |value: &Value| {
            let mut fields = value.get(part).and_then(Value::as_object).cloned();
            let fields = fields.get_or_insert_default();
            besides.iter().for_each(|field| drop(fields.remove(*field)));
            std::mem::take(fields)
        };
        fields(old) == fields(new)
    };
    same("spec", &["renewTime"]) && same("metadata", &["managedFields", "resourceVersion"])
}

fn undecodable(kv: &KeyValue, why: String) -> Unreadable {
    Unreadable::new(kv, Step::Decode, why)
}

/// The stored form of an object: kind, version and metadata first, without `resourceVersion`.
pub fn encode(row: &Resource, value: &Value) -> Vec<u8> {
    encode_as(&row.stored_head, value)
}

/// As [`encode`], after a given head (`{"kind":"K","apiVersion":"V",`).
pub(crate) fn encode_as(head: &str, value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(b"\"metadata\":{");
    let empty = Map::new();
    let object = value.as_object().unwrap_or(&empty);
    let metadata = object.get("metadata").and_then(Value::as_object).unwrap_or(&empty);
    let fields = metadata.iter().filter(|(key, _)| key.as_str() != "resourceVersion");
    write_fields(&mut out, fields, false);
    out.push(b'}');
    let fields = object
        .iter()
        .filter(|(key, _)| !matches!(key.as_str(), "kind" | "apiVersion" | "metadata"));
    write_fields(&mut out, fields, true);
    out.push(b'}');
    out
}

fn write_fields<'a>(
    out: &mut Vec<u8>,
    fields: impl Iterator<Item = (&'a String, &'a Value)>,
    mut comma: bool,
) {
    for (key, value) in fields {
        if comma {
            out.push(b',');
        }
        comma = true;
        // Writing to memory cannot fail, and a `Value` has only string keys.
        let _ = serde_json::to_writer(&mut *out, key);
        out.push(b':');
        let _ = serde_json::to_writer(&mut *out, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_a_later_time_of_the_same_holder_is_a_renewal() {
        let lease = |holder: &str, at: &str, version: &str| {
            json!({"kind": "Lease", "metadata": {"name": "n", "resourceVersion": version},
                "spec": {"holderIdentity": holder, "renewTime": at, "leaseTransitions": 1}})
        };
        let old = lease("a", "2026-01-01T00:00:00.000000Z", "5");
        let later = "2026-01-01T00:00:10.000000Z";
        assert!(is_renewal(&old, &lease("a", later, "6")));
        assert!(!is_renewal(&old, &lease("b", later, "6")), "another holder");
        assert!(!is_renewal(&old, &lease("", later, "6")), "released");
        let mut labelled = lease("a", later, "6");
        labelled["metadata"]["labels"] = json!({"a": "b"});
        assert!(!is_renewal(&old, &labelled), "another change");
    }
}
