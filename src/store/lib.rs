//! Replicated bytes: keys, values, revisions, watches and leases, durable before acknowledged.
//!
//! Knows nothing of Kubernetes: it keeps bytes under keys, like etcd.

/// Tests that are also a program's speak of the crate by its name.
#[cfg(test)]
extern crate self as store;

mod backend;
mod bolt;
mod command;
mod datastore;
pub mod disk;
mod endpoint;
mod engine;
mod etcd;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod kv;
mod lease;
mod measures;
mod memory;
mod mvcc;
mod raft;
mod snapshot;
mod sql;
mod store_record;
mod watch;

pub use backend::MAX_REQUEST_BYTES;
pub use datastore::{DatastoreError, DatastoreTls, Holder, copy_etcd, open_external};
pub use disk::{
    ClusterId, Config, DEFAULT_QUOTA_BYTES, OpenError, Opening, Seat, let_go_of_pages, open,
    open_member,
};
pub use endpoint::Endpoint;
pub use kv::*;
pub use measures::{BOUNDS, Histogram, KeyMeasures, LeaseMeasures, Measures};
pub use memory::{open_memory, open_memory_with};
pub use mvcc::Profile;
pub use raft::{
    CallError, Conversation, Lane, Leadership, MAX_MESSAGE_BYTES, Member, Members, Peer, Role,
    Traffic, Transport, to_promote,
};
pub use snapshot::{
    Facts, Reset, ResetError, Saved, SnapshotError, has_store, inspect, inspect_bytes, migrate,
    reset, store_id,
};
pub use store_record::{LogPosition, StoreRecord, StoreRecordFile};
pub use watch::{GroupBatch, GroupItem, WatchGroup, Watching};
