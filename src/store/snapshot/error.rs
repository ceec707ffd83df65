//! Errors of reading snapshots.

use std::io;

use crate::bolt::Fault;
use crate::encoding::Malformed;

/// Errors of a snapshot; the caller adds the name of the file.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Errors of the file system.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The file is not a snapshot.
    #[error("is not a snapshot of kube-lite, k3s or etcd: {0}")]
    Foreign(String),
    /// The snapshot is damaged.
    #[error("is damaged at byte {offset}: {what}. Take another snapshot")]
    Damaged {
        /// First invalid byte or page.
        offset: u64,
        /// Description of the damage.
        what: String,
    },
    /// The checksum does not match.
    #[error(
        "does not match its sha256: it was changed or truncated after it was written. Take another \
         snapshot"
    )]
    Checksum,
}

/// Why a record of a snapshot is invalid.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordError {
    /// A lease cannot be decoded.
    #[error("invalid lease: {0}")]
    Lease(#[source] Malformed),
    /// Key or time to live of a lease are invalid.
    #[error("invalid key or time to live of a lease")]
    LeaseKey,
    /// The storage version is not text.
    #[error("the storage version is not UTF-8")]
    StorageVersion,
    /// The compacted revision is invalid.
    #[error("invalid compacted revision")]
    CompactedRevision,
    /// The key of a change is invalid.
    #[error("invalid key of a change")]
    ChangeKey,
    /// A change cannot be decoded.
    #[error("invalid change: {0}")]
    Change(#[source] Malformed),
    /// A change has no key.
    #[error("a change has no key")]
    NoKey,
    /// The revisions of a change contradict each other.
    #[error("a change has another revision in its value than in its key, or no version")]
    Revision,
}

impl From<Fault> for SnapshotError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => Self::Damaged {
                offset: 0,
                what: "the file was truncated while it was read".to_owned(),
            },
            Fault::Io(error) => Self::Io(error),
            Fault::Foreign(what) => Self::Foreign(what),
            Fault::Damaged(offset, damage) => Self::Damaged { offset, what: damage.to_string() },
        }
    }
}
