//! Range requests: what a read asks for and returns.

use bytes::Bytes;

use super::key::{KeyRange, KeyValue, Revision};

/// A read.
#[derive(Debug, Clone)]
pub struct RangeRequest {
    /// Which keys.
    pub range: KeyRange,
    /// At this revision; `None` is the newest applied one.
    pub revision: Option<Revision>,
    /// At most so many, 0 is all.
    pub limit: usize,
    /// Values are left empty.
    pub keys_only: bool,
    /// Only the count is answered.
    pub count_only: bool,
}

impl RangeRequest {
    /// All of `range` at the newest revision.
    pub fn new(range: KeyRange) -> Self {
        Self { range, revision: None, limit: 0, keys_only: false, count_only: false }
    }
}

/// What a read found, in key order.
#[derive(Debug, Clone, Default)]
pub struct RangeResponse {
    /// Found versions.
    pub kvs: Vec<KeyValue>,
    /// Keys in the range, whatever the limit.
    pub count: usize,
    /// There are more than the limit let through.
    pub more: bool,
    /// Revision of the store when the read ran.
    pub revision: Revision,
}

/// A version of a key where the store has it.
#[derive(Debug, Clone, Copy)]
pub struct KeyValueRef<'a> {
    /// Key.
    pub key: &'a [u8],
    /// Value; one of 512 bytes and more may lie in a file, and is not to be looked at while the store waits: clones are.
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
    /// What was found.
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

/// Takes what a read finds, one after another, while the store waits: it must do so at once.
pub trait RangeVisitor: Send {
    /// The revision of the store when the read runs; once, before all pairs.
    fn begin(&mut self, revision: Revision);
    /// The next one, in the order of the keys.
    fn visit(&mut self, pair: KeyValueRef<'_>);
}

/// What a read found beside the pairs that it gave out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RangeSummary {
    /// Keys in the range, whatever the limit.
    pub count: usize,
    /// There are more than the limit let through.
    pub more: bool,
}
