//! Errors of reading snapshots.

use std::io;

use crate::bolt::Fault;

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

impl From<Fault> for SnapshotError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => Self::Damaged {
                offset: 0,
                what: "the file was truncated while it was read".to_owned(),
            },
            Fault::Io(error) => Self::Io(error),
            Fault::Foreign(what) => Self::Foreign(what),
            Fault::Damaged(offset, what) => Self::Damaged { offset, what },
        }
    }
}
