//! Errors of opening a data directory.

use std::io;
use std::path::PathBuf;

use super::files::is_no_space;
use crate::contract::ClusterId;

/// Errors of opening a data directory; its files are unchanged.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An operation of the file system failed.
    #[error("cannot {action} {file} in the store directory: {source}")]
    Io {
        /// The operation.
        action: &'static str,
        /// The file.
        file: String,
        /// Error of the system.
        source: io::Error,
    },
    /// The device is full.
    #[error(
        "no space left for the store: {what}; free space on the file system of the data directory, \
         and start again"
    )]
    NoSpace {
        /// The error in the system's words.
        what: String,
    },
    /// Another process has the directory open.
    #[error(
        "the store directory {} is in use by the process {pid}: stop that server first, or give \
         this one another data directory",
        dir.display()
    )]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// Process id from the lock file; `unknown` if it has none.
        pid: String,
    },
    /// The file was written by a newer release.
    #[error(
        "{file} has format {found}, but this release reads formats up to {known}: use the release \
         that wrote it, or a newer one"
    )]
    NewerFormat {
        /// File.
        file: String,
        /// Format of the file.
        found: u32,
        /// Newest supported format.
        known: u32,
    },
    /// The file belongs to another cluster.
    #[error(
        "{file} belongs to the cluster {found}, not to {expected}: it was copied from another \
         server; move it away"
    )]
    ForeignCluster {
        /// File.
        file: String,
        /// Cluster of the file.
        found: ClusterId,
        /// Expected cluster.
        expected: ClusterId,
    },
    /// Acknowledged data is damaged.
    #[error(
        "{file} is damaged at byte {offset}: {what}. Truncating it would lose acknowledged data, \
         so nothing was changed. Copy the directory, then restore a snapshot, or restore {file} \
         from a backup"
    )]
    Corrupt {
        /// File.
        file: String,
        /// Offset of the first bad byte or record.
        offset: u64,
        /// Description of the damage.
        what: String,
    },
    /// The store existed, and its directory is empty or damaged.
    #[error(
        "{what}, but this server had a store before, so an empty one is not created. Restore the \
         directory from a backup, or restore a snapshot (`kube-lite server --cluster-reset \
         --cluster-reset-restore-path=FILE`); if other servers have the data, move this directory \
         away, delete this server's node (`kubectl delete node NAME`) and start with \
         --server=https://OTHER:6443"
    )]
    Lost {
        /// Description of the state of the directory.
        what: String,
    },
    /// The log is older than a position that was synced.
    #[error(
        "{file} does not contain everything that was synced up to byte {offset}: it is an older \
         copy, or its end is lost. Restore the newest copy; to continue with the data that exists, \
         run `kube-lite server --cluster-reset`, or, if other servers have the data, move this \
         directory away, delete this server's node (`kubectl delete node NAME`) and start with \
         --server=https://OTHER:6443"
    )]
    Older {
        /// File.
        file: String,
        /// The synced position.
        offset: u64,
    },
    /// The directory belongs to another member of the cluster.
    #[error(
        "the store directory belongs to the member {found}, but this server is the member \
         {expected}: it was copied from another server; restore its own directory, or move it \
         away, delete this server's node (`kubectl delete node NAME`) and start with \
         --server=https://OTHER:6443"
    )]
    ForeignMember {
        /// Member of the directory.
        found: String,
        /// Expected member.
        expected: String,
    },
    /// A file is missing.
    #[error(
        "{file} is missing from the store directory, but later files exist: restore it from a \
         backup, or restore a snapshot"
    )]
    Missing {
        /// Name of the file, or the missing entries.
        file: String,
    },
}

impl OpenError {
    /// A closure for `map_err`.
    pub(crate) fn io<'a>(
        action: &'static str,
        file: &'a str,
    ) -> impl FnOnce(io::Error) -> Self + 'a {
        move |source| {
            if is_no_space(&source) {
                return Self::NoSpace { what: format!("cannot {action} {file}: {source}") };
            }
            Self::Io { action, file: file.to_owned(), source }
        }
    }
}
