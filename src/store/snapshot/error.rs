//! Why a snapshot is refused.

use std::io;

use crate::bolt::Fault;

/// Why a snapshot is refused; the file is named by who opened it.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file system's.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// Something else.
    #[error("is no snapshot of kube-lite, k3s or etcd: {0}")]
    Foreign(String),
    /// A snapshot that is not whole.
    #[error("is damaged at byte {offset}: {what}. Take another snapshot")]
    Damaged {
        /// First bad byte or page.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// A snapshot that was changed.
    #[error(
        "does not match the sha256 at its end: it was changed or cut off after it was written. Take another snapshot"
    )]
    Checksum,
}

impl From<Fault> for SnapshotError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Self::Damaged { offset: 0, what: "it was cut off while it was read".to_owned() }
            }
            Fault::Io(error) => Self::Io(error),
            Fault::Foreign(what) => Self::Foreign(what),
            Fault::Damaged(offset, what) => Self::Damaged { offset, what },
        }
    }
}
