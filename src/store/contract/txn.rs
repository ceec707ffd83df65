//! Transactions: comparisons, operations and their responses.

use bytes::Bytes;

use super::key::{KeyRange, KeyValue, Revision};
use super::range::{RangeRequest, RangeResponse};

/// Largest request in bytes of keys and values: etcd's default `--max-request-bytes`.
pub const MAX_REQUEST_BYTES: usize = 1536 * 1024;

/// What a transaction compares.
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

/// How it compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ordering {
    /// Equal.
    Equal,
    /// Not equal.
    NotEqual,
    /// The key's is greater than the target.
    Greater,
    /// The key's is less than the target.
    Less,
}

/// One condition of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compare {
    /// Key or range; of a range every key must hold.
    pub range: KeyRange,
    /// Target value.
    pub target: Target,
    /// Relation.
    pub ordering: Ordering,
}

/// One step of a transaction.
#[derive(Debug, Clone)]
pub enum Op {
    /// Read.
    Range(RangeRequest),
    /// Write.
    Put {
        /// Key.
        key: Bytes,
        /// Value.
        value: Bytes,
        /// Lease; 0 is none.
        lease: i64,
        /// Answer the version before.
        prev_kv: bool,
    },
    /// Write a key that is there, keeping its value or its lease.
    Update {
        /// Key.
        key: Bytes,
        /// Value; `None` keeps the one there is.
        value: Option<Bytes>,
        /// Lease, 0 is none; `None` keeps the one there is.
        lease: Option<i64>,
        /// Answer the version before.
        prev_kv: bool,
    },
    /// Delete.
    Delete {
        /// Keys.
        range: KeyRange,
        /// Answer the versions before.
        prev_kv: bool,
    },
    /// A nested transaction.
    Txn(Txn),
}

/// How sure a write must be before it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// On disk, synced.
    #[default]
    Synced,
    /// Synced with the next batch or within 30 s; only on a single voter, elsewhere the same as `Synced`.
    Lazy,
}

/// Compare, then do one branch, atomically and at one revision.
#[derive(Debug, Clone, Default)]
pub struct Txn {
    /// All must hold for `success`.
    pub compare: Vec<Compare>,
    /// Branch when all hold.
    pub success: Vec<Op>,
    /// Branch when one does not.
    pub failure: Vec<Op>,
    /// Durability of the write.
    pub durability: Durability,
    /// The puts of `success` may get a revision each, in their order, where the datastore keeps one change a revision (the
    /// databases); they are still stored together or not at all. The answer is that of the last one then. Without it such a
    /// datastore refuses several changes.
    pub separable: bool,
}

/// Answer of one step.
#[derive(Debug, Clone)]
pub enum OpResponse {
    /// Of a read.
    Range(RangeResponse),
    /// Of a write, an update too: the version before, when asked for.
    Put(Option<KeyValue>),
    /// Of a deletion: how many, and the versions before when asked for.
    Delete(usize, Vec<KeyValue>),
    /// Of a nested transaction.
    Txn(TxnResponse),
}

/// Answer of a transaction.
#[derive(Debug, Clone)]
pub struct TxnResponse {
    /// Which branch ran.
    pub succeeded: bool,
    /// One answer per step of that branch.
    pub responses: Vec<OpResponse>,
    /// Revision after the transaction.
    pub revision: Revision,
}
