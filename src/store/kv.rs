//! The contract between the store and its users, in etcd v3's terms.

use std::fs::File;
use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::measures::Measures;
use crate::raft::Members;
use crate::snapshot::Saved;
use crate::watch::{WatchGroup, Watching};

/// A revision of the whole key space; the first write has 2, as in etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Revision(pub i64);

/// One version of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyValue {
    /// Key.
    pub key: Bytes,
    /// Value; empty in a tombstone. That of a read may be a slice of a file of the store, and keeps the file's space on the
    /// device, also after the store has removed it: who keeps it for long copies it.
    pub value: Bytes,
    /// Revision that created the key.
    pub create_revision: Revision,
    /// Revision of this version.
    pub mod_revision: Revision,
    /// 1 for the creation, counted up by each change.
    pub version: i64,
    /// Lease the key hangs on; 0 is none.
    pub lease: i64,
}

/// Keys from `start` up to, not including, `end`; an empty `end` means the one key `start`, `[0]` means all keys from `start`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    /// First key.
    pub start: Bytes,
    /// Key behind the last one.
    pub end: Bytes,
}

impl KeyRange {
    /// Exactly one key.
    pub fn key(key: impl Into<Bytes>) -> Self {
        Self { start: key.into(), end: Bytes::new() }
    }

    /// All keys with this prefix.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let start = prefix.into();
        let mut end = start.to_vec();
        while let Some(last) = end.pop() {
            if last < 0xff {
                end.push(last + 1);
                break;
            }
        }
        if end.is_empty() {
            end.push(0);
        }
        Self { start, end: end.into() }
    }
}

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
pub struct Pair<'a> {
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

impl<'a> Pair<'a> {
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
pub trait Pairs: Send {
    /// The revision of the store when the read runs; once, before all pairs.
    fn begin(&mut self, revision: Revision);
    /// The next one, in the order of the keys.
    fn pair(&mut self, pair: Pair<'_>);
}

/// What a read found beside the pairs that it gave out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Found {
    /// Keys in the range, whatever the limit.
    pub count: usize,
    /// There are more than the limit let through.
    pub more: bool,
}

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

/// One change seen by a watch.
#[derive(Debug, Clone)]
pub struct Event {
    /// The new version; for a deletion a tombstone (empty value, `mod_revision` of the deletion).
    pub kv: KeyValue,
    /// The version before the revision; `None` for a creation.
    pub prev: Option<KeyValue>,
    /// The key was deleted.
    pub deleted: bool,
}

/// Events of one or several whole revisions, in order, or progress.
///
/// Progress comes once when a watch has caught up with history, and at every [`Backend::read_barrier`] that finds the
/// watcher behind: after awaiting the barrier, every watch delivers a batch with at least that revision.
/// [`Backend::tell_progress`] brings it to the watches of one range.
#[derive(Debug, Clone)]
pub struct WatchBatch {
    /// Changes; empty means progress only.
    pub events: Vec<Event>,
    /// Everything up to this revision was delivered.
    pub revision: Revision,
}

/// A running watch. Bounded: a watcher that does not keep up is ended with [`StoreError::Overrun`], never silently skipped.
#[derive(Debug)]
pub struct Watcher {
    /// Batches in order; the channel closes after an error or when the store stops.
    pub batches: tokio::sync::mpsc::Receiver<Result<WatchBatch, StoreError>>,
}

/// Why the store refused.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The revision is compacted; start again from the newest.
    #[error("required revision {requested} has been compacted, the oldest is {oldest}")]
    Compacted {
        /// Asked for.
        requested: i64,
        /// Oldest that can be read.
        oldest: i64,
    },
    /// The revision does not exist yet.
    #[error("required revision {requested} is a future revision, the newest is {newest}")]
    Future {
        /// Asked for.
        requested: i64,
        /// Newest.
        newest: i64,
    },
    /// The watcher fell too far behind; start again.
    #[error("the watcher fell behind and was ended")]
    Overrun,
    /// No such lease.
    #[error("requested lease not found")]
    LeaseNotFound,
    /// Lease id in use.
    #[error("lease already exists")]
    LeaseExists,
    /// More seconds than a lease may have.
    #[error("too large lease TTL")]
    LeaseTtlTooLarge,
    /// No state of the store could answer the request.
    #[error("the request is not valid: {0}")]
    Invalid(String),
    /// Several puts of one key in one transaction.
    #[error("duplicate key given in txn request")]
    DuplicateKey,
    /// There is no key of which an update could keep something.
    #[error("key not found")]
    KeyNotFound,
    /// Larger than the store takes.
    #[error("request is too large: {size} bytes, the limit is {limit}")]
    TooLarge {
        /// Size in bytes.
        size: usize,
        /// Limit in bytes.
        limit: usize,
    },
    /// A member that would become a voter lacks too much; try again.
    #[error("the member {0:016x} has not caught up yet")]
    NotCaughtUp(u64),
    /// No quorum or no leader; try again.
    #[error("the store has no leader now: {0}")]
    Unavailable(String),
    /// The answer to a write is lost: it may have happened, or not. Never try again without looking.
    #[error("it is not known whether the write happened: {0}")]
    Unknown(String),
    /// No space on the device, or the quota is used up: reads go on, writes are refused until there is space.
    #[error("no space left for the store: {0}")]
    NoSpace(String),
    /// The alarm is raised that members differ: nothing is changed any more.
    #[error("the alarm CORRUPT is raised")]
    Corrupt,
    /// The store has stopped because of a fault of its disk or data; the process must end.
    #[error("the store has stopped: {0}")]
    Stopped(String),
}

/// A lease as granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Id, never 0.
    pub id: i64,
    /// Seconds granted.
    pub granted_ttl: i64,
    /// Seconds left.
    pub remaining_ttl: i64,
}

/// A store. Every method may be called from any task; a dropped future may or may not have taken effect.
#[async_trait]
pub trait Backend: Send + Sync + std::fmt::Debug + 'static {
    /// Resolves once every write acknowledged before the call is visible to `range`; the revision reached.
    async fn read_barrier(&self) -> Result<Revision, StoreError>;
    /// As [`Backend::read_barrier`] for who reads the state itself: no watcher is told, which would wake all that lag.
    async fn quiet_barrier(&self) -> Result<Revision, StoreError>;
    /// Tells the watchers of this very range, when they lag, that they have everything up to the newest revision.
    fn tell_progress(&self, range: &KeyRange);
    /// Reads locally applied state; for a consistent read await `read_barrier` first.
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError>;
    /// As [`Backend::range`], giving each pair out where it lies. After an error nothing may have been given out.
    async fn range_each(
        &self,
        request: RangeRequest,
        pairs: &mut dyn Pairs,
    ) -> Result<Found, StoreError> {
        let found = self.range(request).await?;
        pairs.begin(found.revision);
        found.kvs.iter().for_each(|kv| pairs.pair(Pair::of(kv)));
        Ok(Found { count: found.count, more: found.more })
    }
    /// Writes; resolves once as durable as asked.
    async fn txn(&self, txn: Txn) -> Result<TxnResponse, StoreError>;
    /// Watches `range` for changes with revision ≥ `start` (`None`: from the next one on).
    async fn watch(&self, range: KeyRange, start: Option<Revision>) -> Result<Watcher, StoreError>;
    /// As [`Backend::watch`], as one of a group under an id of the caller's; it ends with what is answered.
    async fn watch_in(
        &self,
        group: &WatchGroup,
        id: i64,
        range: KeyRange,
        start: Option<Revision>,
    ) -> Result<Watching, StoreError>;
    /// Drops versions superseded before `revision`; resolves when no read below it is served any more.
    async fn compact(&self, revision: Revision) -> Result<(), StoreError>;
    /// Grants a lease; `id` 0 lets the store choose.
    async fn lease_grant(&self, id: i64, ttl: i64) -> Result<Lease, StoreError>;
    /// Revokes a lease and deletes its keys.
    async fn lease_revoke(&self, id: i64) -> Result<Revision, StoreError>;
    /// A lease as who watches over its end counts it, and the keys that hang on it here, in their order.
    async fn lease(&self, id: i64) -> Result<(Lease, Vec<Bytes>), StoreError>;
    /// Ids of all leases, in their order.
    async fn leases(&self) -> Result<Vec<i64>, StoreError>;
    /// Starts the lease's time again.
    async fn lease_keep_alive(&self, id: i64) -> Result<Lease, StoreError>;
    /// Whether this member decides alone: there is no other voter.
    fn is_alone(&self) -> bool;
    /// Whether others than this program's members may compact it, so that who does is agreed on in the store itself.
    fn is_shared(&self) -> bool {
        false
    }
    /// Writes everything that is kept, and was acknowledged before the call, to an empty file as a database of etcd with its
    /// sha256 behind it; synced, and read back.
    async fn save(&self, file: File) -> io::Result<Saved>;
    /// Newest term of the consensus known here: another leader, or another start of the only member, has a higher one.
    fn term(&self) -> u64;
    /// Index of the newest entry of the consensus' log that is applied here.
    fn applied_index(&self) -> u64;
    /// Newest applied revision.
    fn revision(&self) -> Revision;
    /// Oldest revision that can be read; 0 when nothing was compacted.
    fn compacted(&self) -> Revision;
    /// Bytes held and on disk, for status and metrics.
    fn size(&self) -> StoreSize;
    /// Bytes that may be held; more raises [`Alarm::NOSPACE`]. `None` is no limit.
    fn quota(&self) -> Option<u64>;
    /// Raised alarms, each with the member it was raised for.
    fn alarms(&self) -> Vec<(u64, Alarm)>;
    /// Raises or ends a member's alarm, on all members and for good; whether it is or was raised.
    async fn set_alarm(&self, member: u64, alarm: Alarm, raised: bool) -> Result<bool, StoreError>;
    /// Checksums of the key space as it was at `revision` (0 is the newest), the same on every member.
    async fn hash(&self, revision: Revision) -> Result<KvHash, StoreError>;
    /// Gives back what the disk holds beyond the present state.
    async fn shrink(&self) -> Result<(), StoreError>;
    /// The members, where there can be several.
    fn members(&self) -> Option<Arc<Members>>;
    /// What was counted and timed since the start.
    fn measures(&self) -> Measures;
}

/// What is wrong with a member: the numbers of etcd's `AlarmType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Alarm(pub i32);

impl Alarm {
    /// The quota is used up: only what frees space is accepted.
    pub const NOSPACE: Self = Self(1);
    /// Members differ: nothing is changed any more.
    pub const CORRUPT: Self = Self(2);
}

/// Checksums of the key space at a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvHash {
    /// etcd's `HashKV`: CRC32C over the versions from the compacted revision on, in their order.
    pub keys: u32,
    /// What etcd sums up when it compacts to the revision. It is another one where of all keys only deletions in that very
    /// revision are found: then what the compaction before has left does not count.
    pub compacting: u32,
    /// The same as `keys` with the leases behind.
    pub all: u32,
    /// The revision.
    pub revision: Revision,
    /// The compacted revision it depends on; 0 when nothing was compacted.
    pub compacted: Revision,
    /// Newest revision of the store at that time.
    pub newest: Revision,
}

/// How large a store is.
#[derive(Debug, Clone, Copy, Default)]
pub struct StoreSize {
    /// Keys that exist now.
    pub keys: usize,
    /// Bytes of keys and values, all kept versions, those too that are read from files.
    pub memory: usize,
    /// Bytes on disk.
    pub disk: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_range_ends_behind_the_last_key_with_it() {
        assert_eq!(KeyRange::prefix("/a/").end, "/a0");
        assert_eq!(KeyRange::prefix(&b"a\xff"[..]).end, "b");
        assert_eq!(KeyRange::prefix(&b"\xff\xff"[..]).end, &[0][..]);
    }
}
