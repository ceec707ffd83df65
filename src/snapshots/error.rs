//! Errors of taking, listing and deleting snapshots.

use std::io;
use std::path::PathBuf;

use tokio::task::JoinError;

use super::s3;
use crate::control_socket::RequestError;

/// Why an operation on snapshots failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Another snapshot is being taken.
    #[error("snapshot save already in progress")]
    InProgress,
    /// Only a running server has a store to save.
    #[error("only a running server takes snapshots")]
    NeedsServer,
    /// The default directory cannot be created.
    #[error(transparent)]
    CreateDirectory(io::Error),
    /// Another directory than the default one does not exist.
    #[error("the snapshot directory {}: does not exist; only the default one is created", .0.display())]
    MissingDirectory(PathBuf),
    /// All names of this prefix exist.
    #[error("the snapshot directory {}: has no free name", .0.display())]
    NoFreeName(PathBuf),
    /// The snapshot was deleted by another process.
    #[error("the snapshot directory {}: the snapshot is gone", .0.display())]
    Vanished(PathBuf),
    /// The directory cannot be read or changed.
    #[error("the snapshot directory {}: {source}", path.display())]
    Directory { path: PathBuf, source: io::Error },
    /// The file of the snapshot cannot be created or written.
    #[error("cannot write {}: {source}", path.display())]
    WriteFile { path: PathBuf, source: io::Error },
    /// The snapshot is in the directory but not in the bucket.
    #[error("{location} is saved, but not uploaded: {source}")]
    NotUploaded { location: String, source: s3::Error },
    /// The bucket rejects the operation.
    #[error(transparent)]
    Bucket(#[from] s3::Error),
    /// The objects of the snapshots cannot be written.
    #[error("cannot write the ETCDSnapshotFile objects: {0}")]
    Objects(client::Error),
    /// Blocking work panicked.
    #[error(transparent)]
    Task(#[from] JoinError),
    /// The request of a command cannot be read.
    #[error(transparent)]
    Request(RequestError),
}
