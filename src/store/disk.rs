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
mod expected;
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
pub(crate) use expected::ExpectedStore;
pub(crate) use files::{Directory, Disk, DiskFile};
pub(crate) use lock::Lock;
pub use open::{Config, DEFAULT_QUOTA_BYTES, Opening, Seat, open, open_member};
pub(crate) use record::Kind;
#[cfg(feature = "fuzzing")]
pub(crate) use record::fuzz as fuzz_segment;
pub(crate) use record::{CHECKPOINT_MAGIC, FILE_HEADER, LOG_MAGIC, read_file_header};
pub(crate) use recover::{Identity, Recovered, begin_at, first_member, recover, recover_expecting};
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

/// Identity of a cluster; every file of the store carries it. In text 32 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ClusterId(pub [u8; 16]);

impl ClusterId {
    /// A new one.
    pub fn random() -> Self {
        let mut id = [0; 16];
        base::clock::random_bytes(&mut id);
        Self(id)
    }

    /// Reads what [`std::fmt::Display`] writes.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        u128::from_str_radix(text, 16).ok().map(|number| Self(number.to_be_bytes()))
    }
}

impl From<ClusterId> for String {
    fn from(id: ClusterId) -> Self {
        id.to_string()
    }
}

impl TryFrom<String> for ClusterId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("{text:?} is no identity of a store"))
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

#[cfg(test)]
mod id_tests {
    use super::ClusterId;

    #[test]
    fn the_id_of_a_store_is_read_as_it_is_written() {
        let id = ClusterId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 254, 255]);
        assert_eq!(id.to_string(), "000102030405060708090a0b0c0dfeff");
        assert_eq!(ClusterId::parse(&id.to_string()), Some(id));
        for bad in
            ["", "00", "zz0102030405060708090a0b0c0dfeff", "000102030405060708090a0b0c0dfeff00"]
        {
            assert_eq!(ClusterId::parse(bad), None, "{bad}");
        }
    }
}
