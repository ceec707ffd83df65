//! Turns the data of a stopped server, or a snapshot, into a new cluster with this server as the
//! only voter.
//!
//! The new store is written completely into the folder `reset`, then `complete` is created next to
//! it. From then on there is no way back: the old files move to a folder of their own, the new ones
//! replace them, and the next process that opens the directory completes interrupted steps.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;
use sorting::CompactSort as _;

pub use self::import::{has_store, migrate, store_id};
use crate::contract::ClusterId;
use crate::external::config::DatastoreError;
use crate::log::{
    Address, Applied, CheckpointHeader, Directory, Disk, ExpectedStore, Identity, Lock, LogId,
    Membership, OpenError, Payload, StoredMembership, begin_at, first_member, recover_expecting,
    write_checkpoint,
};
use crate::mvcc;
use crate::mvcc::{Command, State};
use crate::snapshot::{SnapshotError, SnapshotInfo, load};

mod import;

/// Folder of the new store while it is written.
const FOLDER: &str = "reset";
/// Marks the new store as complete; contains the name of the folder for the old one.
const COMPLETE: &str = "complete";
/// Marks the old store as moved.
const MOVED: &str = "moved";
/// Advance of the revision, beyond any that a client of the former cluster has seen, as etcd
/// advises for restores.
const BUMP: i64 = 1_000_000_000;

/// Why the caller's check refuses a key and its value.
pub type CheckError = Box<dyn std::error::Error + Send + Sync>;

/// Result of a reset.
#[derive(Debug, Clone)]
pub struct Reset {
    /// The new cluster.
    pub cluster: ClusterId,
    /// First revision; everything before is compacted.
    pub revision: i64,
    /// Number of keys.
    pub keys: usize,
    /// The snapshot, if the data came from one.
    pub snapshot: Option<SnapshotInfo>,
    /// Folder of the former data, if there was any.
    pub old: Option<PathBuf>,
}

/// Errors of a reset.
#[derive(Debug, thiserror::Error)]
pub enum ResetError {
    /// The directory cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The snapshot cannot be used.
    #[error("{} {source}", path.display())]
    Snapshot {
        /// Its file.
        path: PathBuf,
        /// The error of the snapshot.
        source: SnapshotError,
    },
    /// The caller's check refused the state.
    #[error("{0}")]
    Unwanted(#[source] CheckError),
    /// The external datastore cannot be read.
    #[error(transparent)]
    Datastore(DatastoreError),
    /// A store exists already.
    #[error("{} contains a store already, which is not overwritten", .0.display())]
    Occupied(PathBuf),
    /// There is no data to reset.
    #[error("there is no store in {}", .0.display())]
    Nothing(PathBuf),
    /// An operation of the file system failed.
    #[error("cannot write the new store in {}: {source}", dir.display())]
    Io {
        /// The directory.
        dir: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

/// Resets the store in `dir` to its own data or to that of `snapshot`, a file and its name. `look`
/// receives each key with its value first, and may refuse them. Blocks; the server must not run.
///
/// # Errors
/// [`ResetError`]; the data in `dir` is unchanged then, or the next start completes the reset.
pub fn reset(
    dir: &Path,
    snapshot: Option<(&File, &Path)>,
    look: &mut dyn FnMut(&Bytes, &Bytes) -> Result<(), CheckError>,
) -> Result<Reset, ResetError> {
    let failed = |source| ResetError::Io { dir: dir.to_owned(), source };
    base::fs::create_dir(dir, 0o700).map_err(failed)?;
    let _lock = Lock::take(dir)?;
    finish(dir).map_err(failed)?;
    let (state, cluster_data) = match snapshot {
        Some((file, path)) => {
            let refused = |source| ResetError::Snapshot { path: path.to_owned(), source };
            let (state, cluster_data) = state_of(file).map_err(refused)?;
            (state, Some(cluster_data))
        }
        None => (own_state(dir)?, None),
    };
    let looked = state.existing_keys().try_for_each(|(key, value)| look(&key, value));
    looked.map_err(ResetError::Unwanted)?;
    let cluster = ClusterId::random();
    let (revision, keys) = (state.revision(), state.size().keys);
    let folder = dir.join(FOLDER);
    base::fs::remove_dir(&folder).map_err(failed)?;
    base::fs::create_dir(&folder, 0o700).map_err(failed)?;
    write(&folder, cluster, state)?;
    let old = store_files(dir).map_err(failed)?.is_empty();
    let old = if old { None } else { Some(dir.join(free_name(dir))) };
    let name = old.as_deref().and_then(Path::file_name).unwrap_or_default();
    base::fs::write_atomic(&folder.join(COMPLETE), name.as_encoded_bytes(), 0o600)
        .map_err(failed)?;
    finish(dir).map_err(failed)?;
    Ok(Reset { cluster, revision, keys, snapshot: cluster_data, old })
}

/// The newest state of a snapshot, at a revision that no client has seen.
fn state_of(file: &File) -> Result<(State, SnapshotInfo), SnapshotError> {
    let loaded = load(file)?;
    let Some(revision) = loaded.info.revision.checked_add(BUMP) else {
        let what = "its revision is too large to continue from".to_owned();
        return Err(SnapshotError::Damaged { offset: 0, what });
    };
    let keys = loaded.keys.into_iter().map(|(key, version)| (key, vec![version]));
    let cluster_data = mvcc::ClusterData::default();
    let leases = loaded.leases.into_iter();
    let state = State::import(revision, revision, Vec::new(), cluster_data, leases, keys);
    Ok((state, loaded.info))
}

/// This member's own state with all of its log: entries acknowledged with other members may not be
/// known as committed here.
fn own_state(dir: &Path) -> Result<State, ResetError> {
    if store_files(dir).is_ok_and(|files| files.is_empty()) {
        return Err(ResetError::Nothing(dir.to_owned()));
    }
    let disk: Arc<dyn Disk> = Arc::new(Directory::new(dir));
    // An empty log is a lost one: it must not become the empty store of a new cluster.
    let known = ExpectedStore { exists: true, ..ExpectedStore::default() };
    let recovered = recover_expecting(&disk, None, Identity::First, &known)?;
    let mut state = recovered.state;
    for entry in recovered.view.recent.iter() {
        let Payload::Normal(batch) = &entry.payload else { continue };
        for command in batch.commands() {
            // A refused command has no effect, as in any replay.
            let _ = state.apply(command, &mut Vec::new());
        }
    }
    // Alarms and profiles belong to the former cluster.
    state.clear_cluster_data();
    let revision = state.revision().max(recovered.ceiling).saturating_add(BUMP);
    for command in [Command::Raise { revision }, Command::Compact(revision)] {
        let done = state.apply(&command, &mut Vec::new());
        done.map_err(|e| ResetError::Io { dir: dir.to_owned(), source: io::Error::other(e) })?;
    }
    Ok(state)
}

/// Writes the new store: a checkpoint as its first entry, and an empty log after it.
fn write(folder: &Path, cluster: ClusterId, state: State) -> Result<(), ResetError> {
    let failed = |source| ResetError::Io { dir: folder.to_owned(), source };
    let disk: Arc<dyn Disk> = Arc::new(Directory::new(folder));
    let node = first_member(cluster);
    let nodes = std::collections::BTreeMap::from([(node, Address::default())]);
    let membership = Membership::new(vec![std::collections::BTreeSet::from([node])], nodes);
    let membership = membership.map_err(|e| failed(io::Error::other(e.to_string())))?;
    let id = Some(LogId::new_term_index(1, 0));
    let applied = Applied { id, membership: StoredMembership::new(id, membership) };
    let description = CheckpointHeader::of(&state, applied);
    write_checkpoint(disk.as_ref(), cluster, &RwLock::new(state), &description).map_err(failed)?;
    begin_at(&disk, cluster, &description.applied)?;
    Ok(())
}

/// Files of a store: log, checkpoints and torn tails.
fn store_files(dir: &Path) -> io::Result<Vec<String>> {
    let mut files = Directory::new(dir).list()?;
    files.retain(|name| {
        ["log-", "checkpoint-"].iter().any(|prefix| name.starts_with(prefix)) || name == "torn-tail"
    });
    // Oldest first.
    files.compact_sort();
    Ok(files)
}

fn free_name(dir: &Path) -> String {
    let now = base::clock::unix_time().as_secs();
    let name = |seconds: u64| format!("old-{seconds}");
    let free = (now..).find(|seconds| !dir.join(name(*seconds)).exists());
    name(free.unwrap_or(now))
}

fn rename_all(from: &Path, to: &Path) -> io::Result<()> {
    for name in store_files(from)? {
        std::fs::rename(from.join(&name), to.join(&name))?;
    }
    File::open(to)?.sync_all()?;
    File::open(from)?.sync_all()
}

/// Completes an interrupted reset; the caller must hold the lock of the directory.
///
/// # Errors
/// Errors of the file system; the next call continues.
pub(crate) fn finish(dir: &Path) -> io::Result<()> {
    let folder = dir.join(FOLDER);
    let complete = folder.join(COMPLETE);
    match base::fs::read_to_string(&complete) {
        Ok(old) => {
            // Only names created by this module are followed.
            if !old.is_empty() && !old.contains('/') && old.starts_with("old-") {
                let old = dir.join(old);
                base::fs::create_dir(&old, 0o700)?;
                rename_all(dir, &old)?;
            }
            std::fs::rename(&complete, folder.join(MOVED))?;
            File::open(&folder)?.sync_all()?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    if folder.join(MOVED).exists() {
        rename_all(&folder, dir)?;
        std::fs::remove_file(folder.join(MOVED))?;
        base::fs::remove_dir(&folder)?;
    }
    Ok(())
}
