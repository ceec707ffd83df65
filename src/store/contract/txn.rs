//! Transactions: comparisons, operations and their responses.

use bytes::Bytes;

use super::key::{KeyRange, KeyValue, Revision};
use super::range::{RangeRequest, RangeResponse};

/// Largest request in bytes of keys and values: etcd's default `--max-request-bytes`.
pub const MAX_REQUEST_BYTES: usize = 1536 * 1024;

/// The property that a comparison tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Revision of the last change; 0 when the key is absent.
    ModRevision(i64),
    /// Revision of the creation; 0 when absent.
    CreateRevision(i64),
    /// Version; 0 when absent.
    Version(i64),
    /// Value.
    Value(Bytes),
    /// Lease.
    Lease(i64),
}

/// The relation that a comparison tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ordering {
    /// Equal.
    Equal,
    /// Not equal.
    NotEqual,
    /// The key's property is greater than the target.
    Greater,
    /// The key's property is less than the target.
    Less,
}

/// A condition of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compare {
    /// Key or range; for a range the condition must hold for every key.
    pub range: KeyRange,
    /// Target value.
    pub target: Target,
    /// Relation.
    pub ordering: Ordering,
}

/// An operation of a transaction.
#[derive(Debug, Clone)]
pub enum Op {
    /// Reads a range.
    Range(RangeRequest),
    /// Writes a key.
    Put {
        /// Key.
        key: Bytes,
        /// Value.
        value: Bytes,
        /// Lease; 0 is none.
        lease: i64,
        /// Return the previous version.
        prev_kv: bool,
    },
    /// Writes an existing key and keeps its value or its lease.
    Update {
        /// Key.
        key: Bytes,
        /// Value; `None` keeps the current one.
        value: Option<Bytes>,
        /// Lease, 0 is none; `None` keeps the current one.
        lease: Option<i64>,
        /// Return the previous version.
        prev_kv: bool,
    },
    /// Deletes a range.
    Delete {
        /// Keys.
        range: KeyRange,
        /// Return the previous versions.
        prev_kv: bool,
    },
    /// A nested transaction.
    Txn(Txn),
}

/// Durability that a write needs before it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Synced to disk.
    #[default]
    Synced,
    /// Synced with the next batch or within 30 s. It applies to a single voter only; otherwise it
    /// equals `Synced`.
    Lazy,
}

/// A transaction: tests all comparisons, then runs one branch atomically at one revision.
#[derive(Debug, Clone, Default)]
pub struct Txn {
    /// Comparisons; if all hold, `success` runs.
    pub compare: Vec<Compare>,
    /// Operations to run if all comparisons hold.
    pub success: Vec<Op>,
    /// Operations to run otherwise.
    pub failure: Vec<Op>,
    /// Durability of the write.
    pub durability: Durability,
    /// The puts of `success` may get one revision each, in order, where the datastore stores one
    /// change per revision (SQL databases). They are still stored atomically; the response is that
    /// of the last one. Without this flag such a datastore refuses several changes.
    pub separable: bool,
}

/// Response to an operation.
#[derive(Debug, Clone)]
pub enum OpResponse {
    /// Response to a read.
    Range(RangeResponse),
    /// Response to a write or an update: the previous version, if requested.
    Put(Option<KeyValue>),
    /// Response to a deletion: the number of keys, and the previous versions if requested.
    Delete(usize, Vec<KeyValue>),
    /// Response to a nested transaction.
    Txn(TxnResponse),
}

/// Response to a transaction.
#[derive(Debug, Clone)]
pub struct TxnResponse {
    /// Whether the `success` branch ran.
    pub succeeded: bool,
    /// One response per operation of that branch.
    pub responses: Vec<OpResponse>,
    /// Revision after the transaction.
    pub revision: Revision,
}
