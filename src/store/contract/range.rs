//! Range requests: what a read asks for and returns.

use bytes::Bytes;

use super::key::{KeyRange, KeyValue, Revision};

/// A range read.
#[derive(Debug, Clone)]
pub struct RangeRequest {
    /// Range of keys.
    pub range: KeyRange,
    /// Revision to read at; `None` is the newest applied one.
    pub revision: Option<Revision>,
    /// Maximum number of keys; 0 is no limit.
    pub limit: usize,
    /// Leaves values empty.
    pub keys_only: bool,
    /// Returns only the count.
    pub count_only: bool,
}

impl RangeRequest {
    /// All of `range` at the newest revision.
    pub fn new(range: KeyRange) -> Self {
        Self { range, revision: None, limit: 0, keys_only: false, count_only: false }
    }
}

/// Result of a range read, in key order.
#[derive(Debug, Clone, Default)]
pub struct RangeResponse {
    /// Versions found.
    pub kvs: Vec<KeyValue>,
    /// Number of keys in the range, regardless of the limit.
    pub count: usize,
    /// Whether the limit cut off keys.
    pub more: bool,
    /// Revision of the store at the time of the read.
    pub revision: Revision,
}

/// A borrowed version of a key.
#[derive(Debug, Clone, Copy)]
pub struct KeyValueRef<'a> {
    /// Key.
    pub key: &'a [u8],
    /// Value. A value of 512 bytes or more may be mapped from a file: its bytes must not be read
    /// while the store waits; cloning it is safe.
    pub value: &'a Bytes,
    /// As in [`KeyValue`].
    pub create_revision: Revision,
    /// As in [`KeyValue`].
    pub mod_revision: Revision,
    /// As in [`KeyValue`].
    pub version: i64,
    /// As in [`KeyValue`].
    pub lease: i64,
}

impl<'a> KeyValueRef<'a> {
    /// Borrows from a [`KeyValue`].
    pub fn of(kv: &'a KeyValue) -> Self {
        Self {
            key: &kv.key,
            value: &kv.value,
            create_revision: kv.create_revision,
            mod_revision: kv.mod_revision,
            version: kv.version,
            lease: kv.lease,
        }
    }
}

/// Receives the pairs of a read one by one. The store is locked meanwhile: implementations must not
/// block.
pub trait RangeVisitor: Send {
    /// Receives the revision of the store once, before all pairs.
    fn begin(&mut self, revision: Revision);
    /// Receives the next pair in key order.
    fn visit(&mut self, pair: KeyValueRef<'_>);
}

/// Result of a read whose pairs went to a visitor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RangeSummary {
    /// Number of keys in the range, regardless of the limit.
    pub count: usize,
    /// Whether the limit cut off keys.
    pub more: bool,
}
