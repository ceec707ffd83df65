//! Replicated bytes: keys, values, revisions, watches and leases, durable before acknowledged.
//!
//! Knows nothing of Kubernetes: it keeps bytes under keys, like etcd.

mod backend;
mod bolt;
mod command;
pub mod disk;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod kv;
mod lease;
mod measures;
mod memory;
mod mvcc;
mod raft;
mod snapshot;
mod watch;

pub use backend::MAX_REQUEST_BYTES;
pub use disk::{
    ClusterId, Config, DEFAULT_QUOTA_BYTES, OpenError, Opening, Seat, open, open_member,
};
pub use kv::*;
pub use measures::{BOUNDS, Histogram, KeyMeasures, LeaseMeasures, Measures};
pub use memory::{open_memory, open_memory_with};
pub use mvcc::Profile;
pub use raft::{
    CallError, Conversation, Lane, Leadership, MAX_MESSAGE_BYTES, Member, Members, Peer, Role,
    Traffic, Transport, to_promote,
};
pub use snapshot::{Facts, Reset, ResetError, Saved, SnapshotError, inspect, inspect_bytes, reset};
pub use watch::{GroupBatch, GroupItem, WatchGroup, Watching};
