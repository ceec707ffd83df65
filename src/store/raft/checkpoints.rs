//! Decides when checkpoints are written, and which parts of the log they replace.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};

use parking_lot::Mutex;
use tokio::sync::Notify;

use openraft::storage::SnapshotMeta;

use super::applied_state::AppliedState;
use crate::contract::ClusterId;
use crate::log::{
    Applied, CheckpointHeader, Disk, DiskFile, DiskWork, FullSegments, INCOMING, SEGMENT_BYTES,
    Status, Types, behind, checkpoint_name, map_checkpoint_values, map_segment_values,
    read_checkpoint, write_checkpoint,
};
use crate::mvcc::State;

/// Minimum size of the log that a checkpoint replaces.
const CHECKPOINT_MIN_BYTES: u64 = 2 * SEGMENT_BYTES;

type Snapshot = openraft::type_config::alias::SnapshotOf<Types, Checkpoint>;

/// A checkpoint in a directory, as openraft handles it.
#[derive(Debug, Clone)]
pub(crate) struct Checkpoint {
    disk: Arc<dyn Disk>,
    name: String,
}

impl Checkpoint {
    /// A completely received checkpoint.
    pub(super) fn snapshot_receiver(disk: &Arc<dyn Disk>) -> Self {
        Self { disk: Arc::clone(disk), name: INCOMING.to_owned() }
    }

    /// Its file and size; it can be read to its end even if a newer checkpoint replaces it.
    pub(super) fn open(&self) -> io::Result<(Box<dyn DiskFile>, u64)> {
        let file = self.disk.open(&self.name)?;
        let size = file.size()?;
        Ok((file, size))
    }
}

#[derive(Debug)]
struct NewestCheckpoint {
    applied: Applied,
    bytes: u64,
}

impl NewestCheckpoint {
    fn name(&self) -> String {
        checkpoint_name(behind(self.applied.id.as_ref()))
    }
}

/// The checkpoints of a member.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    disk: Arc<dyn Disk>,
    cluster: ClusterId,
    work: DiskWork,
    status: Arc<Status>,
    newest: Mutex<Option<NewestCheckpoint>>,
    /// Bytes of log that the newest checkpoint replaces, counted as [`Status::written`].
    replaced: AtomicU64,
    /// Bytes of log after the checkpoint when the process started.
    found: AtomicU64,
    /// Size of the log at which the next checkpoint is tried after a failure.
    retry_at: AtomicU64,
    /// A write was refused for lack of space; a checkpoint would free the log before it.
    short: AtomicBool,
    /// Size of the state that could not be written.
    failed: Mutex<Option<usize>>,
    writing: AtomicBool,
    /// Held while a checkpoint is written or installed: the state must not be replaced meanwhile.
    one: Arc<tokio::sync::Mutex<()>>,
    /// The newest checkpoint has not been passed to openraft yet.
    fresh: AtomicBool,
    /// Full segments whose values are in memory.
    full: Arc<FullSegments>,
    /// Revision after which the values of the next segments were written.
    floor: Arc<AtomicI64>,
    /// Notified when a checkpoint may be due, or a segment is full.
    pub(super) due: Notify,
}

impl Checkpoints {
    /// Continues from the result of recovery: the newest checkpoint with its size, and the size of
    /// the log after it.
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        cluster: ClusterId,
        work: DiskWork,
        status: Arc<Status>,
        newest: Option<(Applied, u64)>,
        log_bytes: u64,
        full: Arc<FullSegments>,
    ) -> Self {
        Self {
            disk,
            cluster,
            work,
            newest: Mutex::new(newest.map(|(applied, bytes)| NewestCheckpoint { applied, bytes })),
            replaced: AtomicU64::new(status.written.load(Relaxed)),
            found: AtomicU64::new(log_bytes),
            status,
            retry_at: AtomicU64::new(0),
            short: AtomicBool::new(false),
            failed: Mutex::default(),
            writing: AtomicBool::new(false),
            one: Arc::default(),
            fresh: AtomicBool::new(false),
            full,
            floor: Arc::default(),
            due: Notify::new(),
        }
    }

    /// While the guard is held, the state is not replaced by another member's checkpoint.
    pub(super) async fn lock(&self) -> tokio::sync::OwnedMutexGuard<()> {
        Arc::clone(&self.one).lock_owned().await
    }

    /// The directory.
    pub(super) fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// Bytes of the newest checkpoint.
    pub(crate) fn bytes(&self) -> u64 {
        self.newest.lock().as_ref().map_or(0, |newest| newest.bytes)
    }

    fn log_bytes(&self) -> u64 {
        let written = self.status.written.load(Relaxed);
        self.found.load(Relaxed) + written.saturating_sub(self.replaced.load(Relaxed))
    }

    /// Wakes the checkpoint task if the log may have outgrown the state.
    pub(crate) fn wake_if_due(&self) {
        let grown = self.log_bytes() >= CHECKPOINT_MIN_BYTES;
        if !self.writing.load(Relaxed) && (grown || self.short.load(Relaxed)) {
            self.due.notify_one();
        }
    }

    /// As [`Checkpoints::wake_if_due`], after all entries before `behind` are applied.
    pub(crate) fn applied(&self, behind: u64) {
        if self.full.any(behind) {
            self.due.notify_one();
        }
        self.wake_if_due();
    }

    /// Replaces the values of full segments by their mappings.
    pub(super) async fn map_full_segments(&self, applied_state: &Arc<AppliedState>) {
        loop {
            let _one = self.one.lock().await;
            let applied = behind(applied_state.applied.lock().id.as_ref());
            let Some(sequence) = self.full.take(applied) else { return };
            let (disk, applied_state) = (Arc::clone(&self.disk), Arc::clone(applied_state));
            let floor = Arc::clone(&self.floor);
            let map_values = move || {
                // Accessed only here, under the guard.
                let mut from = floor.load(Relaxed);
                let kept = map_segment_values(
                    disk.as_ref(),
                    sequence,
                    &applied_state.shared.state,
                    &mut from,
                );
                floor.store(from, Relaxed);
                kept
            };
            self.map_values(map_values).await;
        }
    }

    async fn map_values(&self, map_values: impl FnOnce() -> io::Result<()> + Send + 'static) {
        if let Err(error) = self.work.run(map_values).await.and_then(|result| result) {
            // Nothing is lost by the failure; the next write reports the cause.
            tracing::debug!(%error, "cannot map values of the store, they stay in memory");
        }
    }

    /// Notes that a write was refused because the device is full.
    pub(super) fn request_room(&self) {
        self.short.store(true, Relaxed);
        self.wake_if_due();
    }

    /// Whether the log has outgrown the state, or its space is needed. On a full device a failed
    /// checkpoint is tried again only if the state is clearly smaller.
    pub(super) fn is_due(&self, applied_state: &AppliedState) -> bool {
        let state_bytes = applied_state.shared.state.read().size().memory;
        if self.short.load(Relaxed) {
            let smaller = self.failed.lock().is_none_or(|failed| state_bytes < failed - failed / 8);
            return smaller && self.log_bytes() >= SEGMENT_BYTES;
        }
        let needed = CHECKPOINT_MIN_BYTES.max(state_bytes as u64);
        let needed = needed.max(self.retry_at.load(Relaxed));
        self.log_bytes() >= needed
    }

    /// The newest checkpoint as a snapshot.
    pub(crate) fn current(&self) -> Option<Snapshot> {
        let newest = self.newest.lock();
        let newest = newest.as_ref()?;
        let checkpoint = Checkpoint { disk: Arc::clone(&self.disk), name: newest.name() };
        Some(snapshot(&newest.applied, checkpoint))
    }

    /// The newest checkpoint as a snapshot, unless openraft received it before.
    pub(super) fn fresh(&self) -> Option<Snapshot> {
        if self.fresh.swap(false, Relaxed) { self.current() } else { None }
    }

    /// Writes a checkpoint of the current state and makes it the newest.
    ///
    /// # Errors
    /// Errors of the file system; the previous checkpoint stays the newest, and the next attempt
    /// comes later.
    pub(crate) async fn write(&self, applied_state: &Arc<AppliedState>) -> io::Result<()> {
        let _one = self.one.lock().await;
        self.writing.store(true, Relaxed);
        let written = self.status.written.load(Relaxed);
        let bytes;
        let description = {
            let mut state = applied_state.shared.state.write();
            state.pin();
            bytes = state.size().memory;
            CheckpointHeader::of(&state, applied_state.applied.lock().clone())
        };
        let applied = description.applied.clone();
        let (disk, cluster, pinned) =
            (Arc::clone(&self.disk), self.cluster, Arc::clone(applied_state));
        let work = self.work.run(move || {
            write_checkpoint(disk.as_ref(), cluster, &pinned.shared.state, &description)
        });
        let result = work.await.and_then(|result| result);
        applied_state.shared.state.write().unpin();
        self.writing.store(false, Relaxed);
        match result {
            Ok(size) => {
                self.replaced.store(written, Relaxed);
                self.found.store(0, Relaxed);
                self.retry_at.store(0, Relaxed);
                self.short.store(false, Relaxed);
                *self.failed.lock() = None;
                let newest = NewestCheckpoint { applied, bytes: size };
                let name = newest.name();
                self.replace(newest).await;
                // Done before openraft learns of it and purges the log: values there are then read
                // from the checkpoint.
                let (disk, applied_state) = (Arc::clone(&self.disk), Arc::clone(applied_state));
                let map_values = move || {
                    map_checkpoint_values(disk.as_ref(), &name, &applied_state.shared.state)
                };
                self.map_values(map_values).await;
                self.fresh.store(true, Relaxed);
                Ok(())
            }
            Err(error) => {
                self.retry_at.store(self.log_bytes() + CHECKPOINT_MIN_BYTES, Relaxed);
                *self.failed.lock() = Some(bytes);
                Err(error)
            }
        }
    }

    async fn replace(&self, newest: NewestCheckpoint) {
        // The log up to the checkpoint is purged: its segments must not be mapped any more.
        while self.full.take(behind(newest.applied.id.as_ref())).is_some() {}
        let name = newest.name();
        let old = self.newest.lock().replace(newest).map(|old| old.name());
        let Some(old) = old.filter(|old| *old != name) else { return };
        let disk = Arc::clone(&self.disk);
        let removed = self.work.run(move || disk.remove(&old)).await.and_then(|result| result);
        if let Err(error) = removed {
            tracing::warn!(%error, "cannot remove an old checkpoint of the store, the next start \
                removes it");
        }
    }

    /// Installs another member's checkpoint as the newest; `replace` continues with its state.
    ///
    /// # Errors
    /// Errors of the file system; a file that is not a checkpoint of this cluster is refused.
    pub(super) async fn install(
        &self,
        applied: &Applied,
        checkpoint: Checkpoint,
        replace: impl FnOnce(State),
    ) -> io::Result<()> {
        let _one = self.one.lock().await;
        let (disk, cluster) = (Arc::clone(&self.disk), self.cluster);
        let expected = applied.clone();
        let work = move || -> io::Result<(State, u64)> {
            let (from, description, state, bytes) =
                read_checkpoint(checkpoint.disk.as_ref(), &checkpoint.name)
                    .map_err(io::Error::other)?;
            if from != cluster || description.applied != expected {
                let text = format!(
                    "{} is not a checkpoint of cluster {cluster} at the announced position",
                    checkpoint.name
                );
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            if checkpoint.name == INCOMING {
                // Received and synced in this directory: it only needs its final name.
                let name = checkpoint_name(behind(expected.id.as_ref()));
                disk.rename(INCOMING, &name)?;
                disk.sync()?;
                return Ok((state, bytes));
            }
            let state = parking_lot::RwLock::new(state);
            let bytes = write_checkpoint(disk.as_ref(), cluster, &state, &description)?;
            let name = checkpoint_name(behind(expected.id.as_ref()));
            map_checkpoint_values(disk.as_ref(), &name, &state).unwrap_or_else(|error| {
                tracing::debug!(%error, "cannot map values of the checkpoint, they stay in \
                    memory")
            });
            Ok((state.into_inner(), bytes))
        };
        let (state, bytes) = self.work.run(work).await??;
        replace(state);
        self.replaced.store(self.status.written.load(Relaxed), Relaxed);
        self.found.store(0, Relaxed);
        self.fresh.store(false, Relaxed);
        self.replace(NewestCheckpoint { applied: applied.clone(), bytes }).await;
        Ok(())
    }
}

/// The snapshot for a checkpoint after `applied`.
fn snapshot(applied: &Applied, checkpoint: Checkpoint) -> Snapshot {
    let meta =
        SnapshotMeta { last_log_id: applied.id, last_membership: applied.membership.clone() };
    Snapshot { meta, snapshot: checkpoint }
}
