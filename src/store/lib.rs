//! The store: a replicated key-value store with revisions, watches and leases, in etcd v3's terms.
//!
//! Writes are durable before they are acknowledged. The store knows nothing of Kubernetes.

/// Tests that an example includes refer to the crate by its name.
#[cfg(test)]
extern crate self as store;

mod bolt;
mod contract;
mod encoding;
mod external;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod local;
mod log;
mod mvcc;
mod open;
mod raft;
mod reset;
mod snapshot;
mod store_record;
mod timing;
mod watchers;

pub use contract::*;
pub use external::config::{DatastoreError, DatastoreTls, Holder};
pub use external::endpoint::{Endpoint, EndpointError};
pub use external::etcd::EndpointsError;
pub use external::open::{copy_etcd, open_external};
pub use local::memory::{open_memory, open_memory_with};
pub use log::{OpenError, advise_dontneed};
pub use open::{Config, DEFAULT_QUOTA_BYTES, OpenFuture, open, open_member};
pub use raft::{
    CallError, Lane, MAX_MESSAGE_BYTES, MemberOptions, Members, Peer, PeerConnection, Responses,
    Transport, to_promote,
};
pub use reset::{CheckError, Reset, ResetError, has_store, migrate, reset, store_id};
pub use snapshot::{SnapshotError, SnapshotInfo, inspect, inspect_bytes};
pub use store_record::{LogPosition, StoreRecord, StoreRecordFile};
