//! Databases as the store: SQLite, PostgreSQL and MySQL in the schema of kine, k3s' interface to databases.
//!
//! kine's table is the log: a row is one change of one key, its id the revision. The rows are read once; from then on the
//! state in memory answers, as over any engine, and the table is written to. So a database of k3s opens as it is, and k3s can
//! open it again afterwards.
//!
//! ```text
//! kine                    kine's table; the row compact_rev_key has the compacted revision, rows gap-N stand for nothing
//! kube_lite_lease         leases and their seconds: kine knows seconds alone
//! kube_lite_attachment    which row hangs on which lease
//! ```
//!
//! One server writes at a time. A lock in the database says so, and where it is lost, the ids do: each row is written with
//! the id that comes next, which a second writer would have taken. A connection that is lost is tried again for a bounded
//! time; whether the last transaction happened is read from the table then.

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
