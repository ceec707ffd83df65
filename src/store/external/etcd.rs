//! An external etcd as the store: reads, writes, watches, leases and compactions go to etcd.
//!
//! Only the watchers are held in this process. One watch of the whole key space follows etcd; every
//! revision has an event in it, so its progress is the progress of all watchers, and the hub of
//! `watchers.rs` distributes its events as over any engine. A watch that starts in the past reads
//! from a watch of its own until it has caught up with the hub.
//!
//! ```text
//! connection  the connected endpoint; after a loss the next one, with backoff
//! client      requests: reads are retried on other members, writes are sent once
//! follower    the one watch, the hub, and history
//! lock        the key of the server that may write; every write compares it
//! health      checks that etcd is reachable, and stops the store after a timeout
//! backend     the contract
//! ```

mod backend;
mod client;
mod connection;
mod convert;
mod endpoints;
mod error;
mod follower;
mod health;
mod lock;
mod open;
mod snapshot;

pub(crate) use endpoints::Endpoints;
pub use endpoints::EndpointsError;
pub(crate) use open::{EtcdOpenError, open, snapshot};
