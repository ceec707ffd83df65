//! An external etcd as the store: reads, writes, watches, leases and compactions go to etcd.
//!
//! Only the watchers are held in this process. One watch of the whole key space follows etcd; every
//! revision has an event in it, so its progress is the progress of all watchers, and the hub of
//! `watchers.rs` distributes its events as over any engine. A watch that starts in the past reads
//! from a watch of its own until it has caught up with the hub.
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
