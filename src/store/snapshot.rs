//! Snapshots: the state as a database file of etcd 3.6 and 3.7, with all kept history; writing and
//! reading.
//!
//! `etcdctl snapshot save` writes and `etcdutl snapshot restore` accepts such files. Without the
//! trailing sha256 it is also the format of `member/snap/db` in a data directory of etcd and k3s.

mod error;
mod load;
mod records;
mod save;

pub use error::SnapshotError;
pub(crate) use load::load;
pub use load::{SnapshotInfo, inspect, inspect_bytes};
pub(crate) use save::{Header, save};

/// Names of etcd's buckets (`server/storage/schema/bucket.go`).
mod buckets {
    pub(super) const KEY: &[u8] = b"key";
    pub(super) const META: &[u8] = b"meta";
    pub(super) const LEASE: &[u8] = b"lease";
    pub(super) const AUTH: &[u8] = b"auth";
    /// Buckets that exist and are empty.
    pub(super) const EMPTY: [&[u8]; 6] =
        [b"alarm", b"authRoles", b"authUsers", b"cluster", b"members", b"members_removed"];
}

/// Keys of the bucket `meta`.
mod meta {
    pub(super) const INDEX: &[u8] = b"consistent_index";
    pub(super) const TERM: &[u8] = b"term";
    pub(super) const SCHEDULED: &[u8] = b"scheduledCompactRev";
    pub(super) const FINISHED: &[u8] = b"finishedCompactRev";
    pub(super) const STORAGE_VERSION: &[u8] = b"storageVersion";
}

/// Size of the trailing sha256. The size of everything before it is a multiple of the block size.
const SUM: u64 = 32;
const BLOCK: u64 = 512;

#[cfg(test)]
mod tests;
