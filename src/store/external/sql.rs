//! SQL databases as the store: SQLite, PostgreSQL and MySQL in the schema of kine, k3s' database
//! adapter.
//!
//! kine's table is the log: a row is one change of one key, its id the revision. The rows are read
//! once at the start; reads are then served from memory, as over any engine, and writes go to the
//! table. A database of k3s opens unchanged, and k3s can open it again afterwards.
//!
//! ```text
//! kine                    kine's table; compact_rev_key is the compacted revision, gap-N fillers
//! kube_lite_lease         leases and their seconds; kine stores only seconds
//! kube_lite_attachment    attachments of rows to leases
//! ```
//!
//! One server writes at a time. A lock in the database ensures this; if the lock is lost, the ids
//! do: each row is inserted with the next id, which a second writer would have taken. A lost
//! connection is retried for a bounded time; then the table shows whether the last transaction was
//! committed.

mod connect;
mod database;
mod dialect;
mod engine;
mod load;
mod plan;
mod session;
mod status;
mod writer;

pub(crate) use engine::{open, read};

#[cfg(test)]
mod tests;
