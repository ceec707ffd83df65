//! Durability: an append-only log of entries in segments, checkpoints of the whole state, and recovery from both.
//!
//! ```text
//! log-<sequence>          8 MiB, preallocated: file header, then records, each linked to the one before by its checksum
//! checkpoint-<index>      the state before the entry <index>; replaces the log up to there
//! lock                    held while a process has the directory open; contains its pid
//! torn-tail               what the last recovery cut off: bytes that were never acknowledged
//! ```
//!
//! One write and one `fdatasync` make everything durable that was queued while the one before ran, of a small batch one write
//! that is durable by itself (`direct.rs`). Nothing is acknowledged before. A failed `fdatasync` is never tried again, for the
//! kernel may have dropped what it could not write: the store stops.

mod checkpoint;
mod direct;
mod entries;
mod error;
mod files;
mod lock;
mod log;
mod open;
mod record;
mod recover;
mod sys;
mod values;
mod work;
mod writer;

pub(crate) use checkpoint::{
    Description, INCOMING, checkpoint_name, read as read_checkpoint, write as write_checkpoint,
};
pub(crate) use entries::Entries;
pub use error::OpenError;
pub(crate) use files::{Directory, Disk, DiskFile};
pub(crate) use lock::Lock;
pub use open::{Config, DEFAULT_QUOTA_BYTES, Opening, Seat, open, open_member};
pub(crate) use record::Kind;
#[cfg(feature = "fuzzing")]
pub(crate) use record::fuzz as fuzz_segment;
pub(crate) use recover::{Identity, Recovered, begin_at, first_member, recover};
pub use sys::let_go_of_pages;
pub(crate) use values::{Full, keep_in_checkpoint, keep_in_segment};
pub(crate) use work::DiskWork;
pub(crate) use writer::{BATCH_BYTES, JOBS_MAX, Job, LAZY_SYNC, Status, Writer};

#[cfg(test)]
pub(crate) mod sim;
#[cfg(test)]
mod tests;

/// Newest format of files that this code reads, and the one it writes.
pub(crate) const FORMAT: u32 = 1;

/// Size of a log segment in bytes.
#[cfg(not(test))]
pub(crate) const SEGMENT_BYTES: u64 = 8 * 1024 * 1024;
/// Small segments, so that tests meet their ends often.
#[cfg(test)]
pub(crate) const SEGMENT_BYTES: u64 = 256 * 1024;

/// Room at the end of a segment that is kept for commands that free space while no further segment can be made.
pub(crate) const RESERVE_BYTES: u64 = SEGMENT_BYTES / 8;

/// Identity of a cluster; every file of the store carries it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClusterId(pub [u8; 16]);

impl ClusterId {
    /// A new one.
    pub fn random() -> Self {
        let mut id = [0; 16];
        base::clock::random_bytes(&mut id);
        Self(id)
    }
}

impl std::fmt::Display for ClusterId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}
