//! The contract between the store and its users, in etcd v3's terms.
//!
//! Each trait covers one part of the contract; [`Backend`] combines them. The types here depend on
//! no implementation.

mod cluster;
mod error;
mod event;
mod key;
mod kv;
mod lease;
mod maintenance;
mod range;
mod stats;
mod txn;
mod watch;
pub(crate) mod watch_group;

pub use cluster::{Cluster, ClusterId, ClusterMembers, Leadership, Member, Profile, Role, Traffic};
pub use error::StoreError;
pub use event::{Event, WatchBatch, Watcher};
pub use key::{KeyRange, KeyValue, Revision};
pub use kv::Kv;
pub use lease::{Lease, Leases};
pub(crate) use lease::{MAX_TTL, MIN_TTL};
pub use maintenance::{Alarm, KvHash, Maintenance, SavedSnapshot, StoreSize};
pub use range::{KeyValueRef, RangeRequest, RangeResponse, RangeSummary, RangeVisitor};
pub use stats::{BOUNDS, Histogram, KeyStats, LeaseStats, Stats, StoreStats};
pub use txn::{
    Compare, Durability, MAX_REQUEST_BYTES, Op, OpResponse, Ordering, Target, Txn, TxnResponse,
};
pub use watch::Watch;
pub use watch_group::{GroupBatch, GroupItem, WatchGroup, WatchGuard};

/// A store. Every method may be called from any task; a call whose future is dropped may or may
/// not have taken effect.
pub trait Backend:
    Kv + Watch + Leases + Maintenance + Cluster + Stats + std::fmt::Debug + Send + Sync + 'static
{
}

impl<T> Backend for T where
    T: Kv
        + Watch
        + Leases
        + Maintenance
        + Cluster
        + Stats
        + std::fmt::Debug
        + Send
        + Sync
        + 'static
{
}
