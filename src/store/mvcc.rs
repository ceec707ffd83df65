//! The key space as a pure, synchronous state machine: versions, revisions, transactions, leases,
//! compaction.
//!
//! The same commands in the same order lead every copy to the same state, so the log of commands is
//! the data.

mod cluster_data;
mod command;
mod exchange;
mod file_values;
mod hash;
mod history;
mod import;
mod key;
mod packed;
mod read;
mod state;
mod txn;

pub(crate) use cluster_data::{ClusterData, LEASE_OVERHEAD, cost};
pub(crate) use command::Command;
pub(crate) use exchange::{FileValue, replace_all_values, replace_written_values};
pub(crate) use file_values::Source;
pub(crate) use hash::Hashing;
pub(crate) use history::Version;
pub(crate) use import::Import;
pub(crate) use state::{Gap, Outcome, State};
pub(crate) use txn::{Preview, Write, check_txn, only_reads, reads_any, request_size};

#[cfg(test)]
use txn::check_conflicts;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
