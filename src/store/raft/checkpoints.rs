//! When checkpoints are written, which one counts, and what they replace.

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

/// Smallest log that a checkpoint replaces.
const CHECKPOINT_MIN_BYTES: u64 = 2 * SEGMENT_BYTES;

type Snapshot = openraft::type_config::alias::SnapshotOf<Types, Checkpoint>;

/// A checkpoint in a directory, as openraft hands it around.
#[derive(Debug, Clone)]
pub(crate) struct Checkpoint {
    disk: Arc<dyn Disk>,
    name: String,
}

impl Checkpoint {
    /// One that has been received whole.
    pub(super) fn snapshot_receiver(disk: &Arc<dyn Disk>) -> Self {
        Self { disk: Arc::clone(disk), name: INCOMING.to_owned() }
    }

    /// Its file and how many bytes that has; it can be read to its end even when a newer checkpoint takes its place.
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

/// See the module.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    disk: Arc<dyn Disk>,
    cluster: ClusterId,
    work: DiskWork,
    status: Arc<Status>,
    newest: Mutex<Option<NewestCheckpoint>>,
    /// Bytes of log that the newest checkpoint replaces, counted as [`Status::written`].
    replaced: AtomicU64,
    /// Bytes of log behind the checkpoint when the process started.
    found: AtomicU64,
    /// Bytes of log at which the next one is tried, after one failed.
    retry_at: AtomicU64,
    /// A write was refused for want of room: the log behind a checkpoint would be some.
    short: AtomicBool,
    /// Bytes of the state that could not be written.
    failed: Mutex<Option<usize>>,
    writing: AtomicBool,
    /// Held while one is written or taken over: the state under a checkpoint stays the same one.
    one: Arc<tokio::sync::Mutex<()>>,
    /// The newest checkpoint has not been handed to openraft yet.
    fresh: AtomicBool,
    /// Full segments whose values are in memory.
    full: Arc<FullSegments>,
    /// Revision behind which those that come were written.
    floor: Arc<AtomicI64>,
    /// Told when a checkpoint may be due, or a segment is full.
    pub(super) due: Notify,
}

impl Checkpoints {
    /// Goes on with what recovery found: the newest checkpoint and its bytes, and the bytes of log behind it.
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

    /// While the guard is held the state is not exchanged for that of another member's checkpoint.
    pub(super) async fn hold(&self) -> tokio::sync::OwnedMutexGuard<()> {
        Arc::clone(&self.one).lock_owned().await
    }

    /// Where they are.
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

    /// Wakes the task that writes checkpoints when the log may have outgrown the state.
    pub(crate) fn wake_if_due(&self) {
        let grown = self.log_bytes() >= CHECKPOINT_MIN_BYTES;
        if !self.writing.load(Relaxed) && (grown || self.short.load(Relaxed)) {
            self.due.notify_one();
        }
    }

    /// As [`Checkpoints::wake_if_due`], when all entries before `behind` are applied.
    pub(crate) fn applied(&self, behind: u64) {
        if self.full.any(behind) {
            self.due.notify_one();
        }
        self.wake_if_due();
    }

    /// Has the values of full segments read from there.
    pub(super) async fn map_full_segments(&self, applied_state: &Arc<AppliedState>) {
        loop {
            let _one = self.one.lock().await;
            let applied = behind(applied_state.applied.lock().id.as_ref());
            let Some(sequence) = self.full.take(applied) else { return };
            let (disk, applied_state) = (Arc::clone(&self.disk), Arc::clone(applied_state));
            let floor = Arc::clone(&self.floor);
            let map_values = move || {
                // Only here, with the guard.
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
            // Whatever it is, nothing was lost by it, and who writes there next says what it means.
            tracing::debug!(%error, "values of the store stay in memory");
        }
    }

    /// Tells that a write was refused because the device is full.
    pub(super) fn request_room(&self) {
        self.short.store(true, Relaxed);
        self.wake_if_due();
    }

    /// Whether the log has outgrown the state, or its room is needed. On a full device one that failed is tried again only
    /// when there is clearly less to write.
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

    /// The newest checkpoint as a snapshot, unless openraft has been handed it before.
    pub(super) fn fresh(&self) -> Option<Snapshot> {
        if self.fresh.swap(false, Relaxed) { self.current() } else { None }
    }

    /// Writes a checkpoint of the present state and makes it the one that counts.
    ///
    /// # Errors
    /// The file system's; the checkpoint before still counts then, and the next is tried later.
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
                // Before openraft is told, and drops the log behind it: what lies there is read from here then.
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
        // The log up to there goes: nothing is to be read from it any more.
        while self.full.take(behind(newest.applied.id.as_ref())).is_some() {}
        let name = newest.name();
        let old = self.newest.lock().replace(newest).map(|old| old.name());
        let Some(old) = old.filter(|old| *old != name) else { return };
        let disk = Arc::clone(&self.disk);
        let removed = self.work.run(move || disk.remove(&old)).await.and_then(|result| result);
        if let Err(error) = removed {
            tracing::warn!(%error, "cannot remove an old checkpoint of the store, the next start does");
        }
    }

    /// Takes over a checkpoint from elsewhere as the one that counts, and has `replace` go on with its state.
    ///
    /// # Errors
    /// The file system's; what is no checkpoint of this cluster is refused.
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
                    "{} is no checkpoint of the cluster {cluster} at the place it was announced for",
                    checkpoint.name
                );
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            if checkpoint.name == INCOMING {
                // Received to this disk and synced there: it needs only its name.
                let name = checkpoint_name(behind(expected.id.as_ref()));
                disk.rename(INCOMING, &name)?;
                disk.sync()?;
                return Ok((state, bytes));
            }
            let state = parking_lot::RwLock::new(state);
            let bytes = write_checkpoint(disk.as_ref(), cluster, &state, &description)?;
            let name = checkpoint_name(behind(expected.id.as_ref()));
            map_checkpoint_values(disk.as_ref(), &name, &state).unwrap_or_else(
                |error| tracing::debug!(%error, "values of the store stay where they were"),
            );
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

/// The snapshot that a checkpoint after `applied` is.
fn snapshot(applied: &Applied, checkpoint: Checkpoint) -> Snapshot {
    let meta =
        SnapshotMeta { last_log_id: applied.id, last_membership: applied.membership.clone() };
    Snapshot { meta, snapshot: checkpoint }
}
