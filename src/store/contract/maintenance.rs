//! Maintenance: compaction, size, alarms, checksums, snapshots and defragmentation.

use std::fs::File;
use std::io;

use async_trait::async_trait;

use super::error::StoreError;
use super::key::Revision;

/// An alarm of a member, with the numbers of etcd's `AlarmType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Alarm(pub i32);

impl Alarm {
    /// The quota is used up: only requests that free space are accepted.
    pub const NOSPACE: Self = Self(1);
    /// Members have different data: all changes are refused.
    pub const CORRUPT: Self = Self(2);
}

/// Checksums of the key space at a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvHash {
    /// etcd's `HashKV`: CRC32C over the versions from the compacted revision on, in order.
    pub keys: u32,
    /// The checksum that etcd computes when it compacts to the revision. It differs from `keys` if
    /// all keys found are deletions in exactly that revision: then remains of the previous
    /// compaction are left out.
    pub compacting: u32,
    /// As `keys`, including leases.
    pub all: u32,
    /// The revision.
    pub revision: Revision,
    /// The compacted revision it depends on; 0 when nothing was compacted.
    pub compacted: Revision,
    /// Newest revision of the store when the checksum was computed.
    pub newest: Revision,
}

/// Size of a store.
#[derive(Debug, Clone, Copy, Default)]
pub struct StoreSize {
    /// Number of existing keys.
    pub keys: usize,
    /// Bytes of keys and values of all kept versions, including those read from files.
    pub memory: usize,
    /// Bytes on disk.
    pub disk: u64,
}

/// Describes a written snapshot file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedSnapshot {
    /// Revision of the state.
    pub revision: i64,
    /// Size in bytes, including the trailing sha256.
    pub size: u64,
    /// Number of key changes in the snapshot.
    pub changes: u64,
    /// etcd storage version of the file.
    pub storage_version: String,
}

/// Compaction, size limits, alarms, checksums and snapshots.
#[async_trait]
pub trait Maintenance: Send + Sync {
    /// Drops versions superseded before `revision`; resolves when reads below it are refused.
    async fn compact(&self, revision: Revision) -> Result<(), StoreError>;

    /// Oldest readable revision; 0 when nothing was compacted.
    fn compacted(&self) -> Revision;

    /// Size of the store in memory and on disk.
    fn size(&self) -> StoreSize;

    /// Limit in bytes for keys and values; a write beyond it raises [`Alarm::NOSPACE`]. `None` is
    /// no limit.
    fn quota(&self) -> Option<u64>;

    /// Raised alarms, each with the id of the member that raised it.
    fn alarms(&self) -> Vec<(u64, Alarm)>;

    /// Raises or clears an alarm of a member on all members; returns whether the alarm is, or
    /// was, raised.
    async fn set_alarm(&self, member: u64, alarm: Alarm, raised: bool) -> Result<bool, StoreError>;

    /// Checksums of the key space at `revision` (0 is the newest), equal on every member.
    async fn hash(&self, revision: Revision) -> Result<KvHash, StoreError>;

    /// Writes the complete state to an empty file, as an etcd database followed by its sha256. The
    /// snapshot contains every write acknowledged before the call; the file is synced and
    /// verified.
    async fn save(&self, file: File) -> io::Result<SavedSnapshot>;

    /// Releases disk space that the current state does not need.
    async fn defragment(&self) -> Result<(), StoreError>;
}
