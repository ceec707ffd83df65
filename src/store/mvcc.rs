//! The key space as a pure, synchronous state machine: versions, revisions, transactions, leases, compaction.
//!
//! Given the same commands in the same order every copy reaches the same state, so the log of commands is the data.

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

pub(crate) use cluster_data::{Facts, LEASE_OVERHEAD, cost};
pub(crate) use command::Command;
pub(crate) use exchange::{Finding, exchange_all, exchange_written};
pub(crate) use file_values::Source;
pub(crate) use hash::Hashing;
pub(crate) use history::Version;
pub(crate) use import::Import;
pub(crate) use state::{Gap, Outcome, State};
pub(crate) use txn::{Preview, Write, check_txn, looks_at, only_reads, request_size};

#[cfg(test)]
use txn::check_conflicts;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
