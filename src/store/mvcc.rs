//! The key space as a pure, synchronous state machine: versions, revisions, transactions, leases, compaction.
//!
//! Given the same commands in the same order every copy reaches the same state, so the log of commands is the data.

mod facts;
mod hash;
mod history;
mod import;
mod key;
mod packed;
mod read;
mod state;
mod stored;
mod txn;

pub use facts::Profile;
pub(crate) use facts::{Facts, LEASE_OVERHEAD, cost};
pub(crate) use hash::Hashing;
pub(crate) use history::Version;
pub(crate) use import::Import;
pub(crate) use read::contains;
pub(crate) use state::{Gap, Outcome, State};
pub(crate) use stored::{Finding, Source, exchange_all, exchange_written};
pub(crate) use txn::{Preview, Write, check_request, looks_at, only_reads, request_size};

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
