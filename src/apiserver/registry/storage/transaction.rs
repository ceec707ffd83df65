//! Transactions that change objects if their stored versions are the expected ones.

use api::{Object, Status};
use store::{
    Compare, Durability, KeyRange, Op, OpResponse, Ordering, RangeRequest, Target, Txn, TxnResponse,
};

use super::{Deletion, LinkedWrite, Storage, encode};
use crate::metrics::storage as metrics;
use crate::registry::Resource;
use crate::request_tracing;
use crate::response::status;

/// A change of one object.
pub(super) struct Change<'a> {
    pub(super) row: &'a Resource,
    pub(super) key: &'a str,
    /// The resource version that the change replaces; 0 for a new object.
    pub(super) expected: i64,
    pub(super) op: Op,
    pub(super) durability: Durability,
}

/// The outcome of a change.
pub(super) enum Outcome {
    /// Committed at this revision.
    Done(i64),
    /// The stored object has another version or does not exist.
    Changed(Option<Object>),
    /// A linked object has another version than expected.
    LinkedChanged,
}

impl Change<'_> {
    fn operation(&self) -> &'static str {
        match (&self.op, self.expected) {
            (Op::Delete { .. }, _) => "delete",
            (_, 0) => "create",
            _ => "update",
        }
    }
}

fn unchanged(key: &str, expected: i64) -> Compare {
    Compare {
        range: KeyRange::key(key.to_owned()),
        target: Target::ModRevision(expected),
        ordering: Ordering::Equal,
    }
}

impl Storage {
    /// Deletes the object if the stored one still has its resource version.
    ///
    /// # Errors
    /// The error of the store.
    pub async fn delete(&self, row: &Resource, object: &Object) -> Result<Deletion, Status> {
        let key = row.key(&object.key.namespace, &object.key.name);
        let delete = Op::Delete { range: KeyRange::key(key.clone()), prev_kv: false };
        let durability = row.spec.durability(false);
        let expected = object.resource_version;
        let change = Change { row, key: &key, expected, op: delete, durability };
        Ok(match self.guarded(change, &[]).await? {
            Outcome::Done(revision) => Deletion::Done(revision),
            Outcome::Changed(current) => Deletion::Changed(current),
            Outcome::LinkedChanged => Deletion::Changed(None),
        })
    }

    /// Deletes an object that cannot be read; a dry run only checks that it cannot.
    ///
    /// # Errors
    /// 404; 409 when it can be read or changed meanwhile.
    pub async fn delete_unreadable(
        &self,
        row: &Resource,
        namespace: &str,
        name: &str,
        dry_run: bool,
    ) -> Result<(), Status> {
        let gvr = &row.spec.gvr;
        self.backend.read_index().await.map_err(|e| status::of_store(&e))?;
        let key = row.key(namespace, name);
        let found = self.backend.range(RangeRequest::new(KeyRange::key(key.clone()))).await;
        let found = found.map_err(|e| status::of_store(&e))?;
        let Some(kv) = found.kvs.first() else {
            return Err(Status::not_found(&gvr.group, &gvr.resource, name));
        };
        if self.read_all(row, &[kv]).await.iter().any(Result::is_ok) {
            let why = format!(
                "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: unsafe deletion is not allowed because the object is decodable from storage"
            );
            return Err(Status::conflict(&gvr.group, &gvr.resource, name, &why));
        }
        if dry_run {
            return Ok(());
        }
        let delete = Op::Delete { range: KeyRange::key(key.clone()), prev_kv: false };
        let durability = row.spec.durability(false);
        let expected = kv.mod_revision.0;
        let change = Change { row, key: &key, expected, op: delete, durability };
        match self.guarded(change, &[]).await? {
            Outcome::Done(_) => Ok(()),
            Outcome::Changed(_) | Outcome::LinkedChanged => {
                let why = crate::response::status::MODIFIED;
                Err(Status::conflict(&gvr.group, &gvr.resource, name, why))
            }
        }
    }

    /// Commits the change and the linked writes if all the versions that they replace are the
    /// stored ones.
    pub(super) async fn guarded(
        &self,
        change: Change<'_>,
        linked: &[LinkedWrite],
    ) -> Result<Outcome, Status> {
        let operation = change.operation();
        let Change { row, key, expected, op, durability } = change;
        let mut txn = Txn {
            compare: vec![unchanged(key, expected)],
            success: Vec::with_capacity(linked.len().saturating_add(1)),
            failure: vec![Op::Range(RangeRequest::new(KeyRange::key(key.to_owned())))],
            durability,
            separable: true,
        };
        for write in linked {
            let (compare, put) = self.linked(write)?;
            txn.compare.push(compare);
            txn.success.push(put);
        }
        // Last: in a store where each put has a separate revision, the response has the revision of
        // the object.
        txn.success.push(op);
        let name = match operation {
            "create" => "Create etcd3",
            "update" => "GuaranteedUpdate etcd3",
            _ => "Delete etcd3",
        };
        let (begun, mut span) =
            (base::clock::now(), request_tracing::of_store(name, &row.spec.gvr, key));
        let answer = self.backend.txn(txn).await;
        span.event(if answer.is_ok() { "Txn call succeeded" } else { "Txn call failed" }, Vec::new);
        metrics::asked(&row.spec.gvr, operation, begun, answer.is_ok());
        let answer = answer.map_err(|e| status::of_store(&e))?;
        if answer.succeeded {
            record_written(row, answer.revision.0);
            for (at, write) in linked.iter().enumerate() {
                record_written(&write.row, linked_revision(&answer, at, linked.len()));
            }
            return Ok(Outcome::Done(answer.revision.0));
        }
        let current = match answer.responses.first() {
            Some(OpResponse::Range(found)) => found.kvs.first(),
            _ => None,
        };
        if current.map_or(0, |kv| kv.mod_revision.0) == expected && !linked.is_empty() {
            return Ok(Outcome::LinkedChanged);
        }
        Ok(Outcome::Changed(match current {
            Some(kv) => Some(self.read(row, kv).await?),
            None => None,
        }))
    }

    fn linked(&self, write: &LinkedWrite) -> Result<(Compare, Op), Status> {
        let text = crate::registry::metadata::text;
        let key = write.row.key(text(&write.value, "namespace"), text(&write.value, "name"));
        let plain = encode(&write.row, &write.value).into();
        let value = self.seal(&write.row, &key, &plain)?;
        let compare = unchanged(&key, write.expected);
        Ok((compare, Op::Put { key: key.into(), value, lease: 0, prev_kv: false }))
    }
}

/// Records a write, so that readers of this server's cache wait for its revision.
fn record_written(row: &Resource, revision: i64) {
    row.written.fetch_max(revision, std::sync::atomic::Ordering::Relaxed);
}

/// Revision of the linked write `at` of `count`: that of the transaction, or an earlier one in a
/// store where each put has a separate revision and the response is that of the last put.
fn linked_revision(answer: &TxnResponse, at: usize, count: usize) -> i64 {
    if answer.responses.len() > count {
        return answer.revision.0;
    }
    let before = i64::try_from(count.saturating_sub(at)).unwrap_or(i64::MAX);
    answer.revision.0.saturating_sub(before)
}
