//! An etcd of somebody else's as the store: every read, write, watch, lease and compaction is etcd's own.
//!
//! Nothing is kept here but the watchers. One watch of the whole key space follows etcd; in it each revision has an event, so
//! that what it has brought says up to where all watchers are told, and the hub of `watch.rs` hands it to them as over any
//! engine. Who begins in the past is fed by a watch of its own until it has reached the hub.
//!
//! ```text
//! line      which endpoint is connected; the next one after a loss, with growing waits
//! calls     requests: reads are asked again elsewhere, writes never once they were sent
//! follow    the one watch, the hub, and history
//! hold      the key that says whose etcd this is; every write is conditional on it
//! keep      looks whether etcd is there, and ends the store when it is away for too long
//! backend   the contract
//! ```

mod backend;
mod calls;
mod connection;
mod convert;
mod endpoints;
mod error;
mod follow;
mod health;
mod lock;
mod open;
mod snapshot;

pub(crate) use endpoints::Endpoints;
pub(crate) use open::{Unusable, open, snapshot};
