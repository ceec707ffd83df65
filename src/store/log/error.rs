//! Why a data directory cannot be opened.

use std::io;
use std::path::PathBuf;

use super::files::is_no_space;
use crate::contract::ClusterId;

/// Why a data directory cannot be opened; nothing in it was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An operation of the file system failed.
    #[error("cannot {action} {file} in the store directory: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// The device is full.
    #[error(
        "no space left for the store: {what}; make space on the file system of the data directory, and start again"
    )]
    NoSpace {
        /// What found none.
        what: String,
    },
    /// Another process has it open.
    #[error(
        "the store directory {} is in use by the process {pid}: stop that server first, or give this one another data directory",
        dir.display()
    )]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// Process id as the other one wrote it; `unknown` when it did not.
        pid: String,
    },
    /// Written by a newer release.
    #[error(
        "{file} has format {found}, but this release reads formats up to {known}: use the release that wrote it, or a newer one"
    )]
    NewerFormat {
        /// File.
        file: String,
        /// Its format.
        found: u32,
        /// Newest known format.
        known: u32,
    },
    /// Belongs to another cluster.
    #[error(
        "{file} belongs to the cluster {found}, not to {expected}: it was copied here from another server; move it away"
    )]
    ForeignCluster {
        /// File.
        file: String,
        /// Whose it is.
        found: ClusterId,
        /// Whose it should be.
        expected: ClusterId,
    },
    /// Acknowledged data is damaged.
    #[error(
        "{file} is damaged at byte {offset}: {what}. Acknowledged data behind it would be lost, so nothing was cut off. Copy the directory, then restore a snapshot, or bring {file} back from a backup"
    )]
    Corrupt {
        /// File.
        file: String,
        /// Offset of the first bad byte or record.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// There was a store, and there is none any more.
    #[error(
        "{what}, but this server has had a store: an empty one is not made in its place. Bring the directory back from a backup, or restore a snapshot (`kube-lite server --cluster-reset --cluster-reset-restore-path=FILE`); where other servers have the data, move this directory away, delete this server's node (`kubectl delete node NAME`) and start with --server=https://OTHER:6443"
    )]
    Lost {
        /// What is wrong with the directory.
        what: String,
    },
    /// Less is there than was synced.
    #[error(
        "{file} does not hold what this server had written and synced up to byte {offset}: it is an older copy, or its end is lost. Bring the newest copy back; to go on with what is there, run `kube-lite server --cluster-reset`, and where other servers have the data, move this directory away, delete this server's node (`kubectl delete node NAME`) and start with --server=https://OTHER:6443"
    )]
    Older {
        /// File.
        file: String,
        /// How far it was synced.
        offset: u64,
    },
    /// Belongs to another member of the cluster.
    #[error(
        "the store directory belongs to the member {found}, but this server is the member {expected}: it was copied here from another server; bring back its own, or move it away, delete this server's node (`kubectl delete node NAME`) and start with --server=https://OTHER:6443"
    )]
    ForeignMember {
        /// Whose it is.
        found: String,
        /// Whose it should be.
        expected: String,
    },
    /// A file is not there.
    #[error(
        "{file} is missing from the store directory, but later files are there: bring it back from a backup, or restore a snapshot"
    )]
    Missing {
        /// File, or which entries.
        file: String,
    },
}

impl OpenError {
    /// For `map_err`.
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
