//! The durable log: entries in append-only segments, checkpoints of the whole state, and recovery
//! from both.
//!
//! ```text
//! log-<sequence>          8 MiB, preallocated: file header, then records chained by checksums
//! checkpoint-<index>      the state before the entry <index>; replaces the log up to there
//! lock                    held while a process has the directory open; contains its pid
//! torn-tail               data truncated by the last recovery, never acknowledged
//! ```
//!
//! One write and one `fdatasync` make everything durable that was queued during the previous sync;
//! a small batch needs only one write that is durable by itself (`direct.rs`). Nothing is
//! acknowledged earlier. A failed `fdatasync` is never retried, because the kernel may have dropped
//! the pages that it could not write: the store stops.

mod address;
mod checkpoint;
mod command_codec;
mod direct;
mod entries;
mod entry_codec;
mod error;
mod expected;
mod files;
#[cfg(feature = "fuzzing")]
mod fuzz;
mod lock;
mod record;
mod recover;
mod replay;
mod segments;
mod sys;
#[cfg(test)]
mod test_runtime;
mod types;
mod values;
mod work;
mod writer;

pub(crate) use address::Address;
pub(crate) use checkpoint::{
    CheckpointHeader, INCOMING, checkpoint_name, read as read_checkpoint, write as write_checkpoint,
};
pub(crate) use command_codec::{decode_alarm, decode_profile, encode_alarm, encode_profile};
pub(crate) use entries::Entries;
pub(crate) use entry_codec::{
    decode_head, decode_id, decode_membership, decode_vote, encode_entry, encode_id,
    encode_membership, encode_vote,
};
pub use error::OpenError;
pub(crate) use expected::ExpectedStore;
pub(crate) use files::{Directory, Disk, DiskFile};
#[cfg(feature = "fuzzing")]
pub(crate) use fuzz::fuzz_segment;
pub(crate) use lock::Lock;
pub(crate) use record::{CHECKPOINT_MAGIC, FILE_HEADER, Kind, LOG_MAGIC, read_file_header};
pub(crate) use recover::{Identity, Recovered, begin_at, first_member, recover, recover_expecting};
pub use sys::advise_dontneed;
pub(crate) use types::{
    Applied, Batch, LogEntry, LogId, Membership, Outcomes, Payload, Reply, StoredMembership, Types,
    Vote, behind, entry_bytes,
};
pub(crate) use values::{FullSegments, map_checkpoint_values, map_segment_values};
pub(crate) use work::DiskWork;
pub(crate) use writer::{BATCH_BYTES, JOBS_MAX, Job, LAZY_SYNC, Status, Writer};

#[cfg(test)]
pub(crate) mod sim;
#[cfg(test)]
mod tests;

/// Newest file format that this code reads, and the one it writes.
pub(crate) const FORMAT: u32 = 1;

/// Size of a log segment in bytes.
#[cfg(not(test))]
pub(crate) const SEGMENT_BYTES: u64 = 8 * 1024 * 1024;
/// Small segments, so that tests reach their ends often.
#[cfg(test)]
pub(crate) const SEGMENT_BYTES: u64 = 256 * 1024;

/// Space at the end of a segment that is reserved for commands that free space while no further
/// segment can be created.
pub(crate) const RESERVE_BYTES: u64 = SEGMENT_BYTES / 8;
