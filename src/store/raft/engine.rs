//! The engine that proposes commands to openraft: commands queued during the previous write become
//! the next entry.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use async_trait::async_trait;
use openraft::errors::{ClientWriteError, Fatal};
use openraft::raft::ClientWriteResult;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};

use super::Raft;
use super::applied_state::AppliedState;
use super::checkpoints::Checkpoints;
use super::proposals::{NotLeaderBatch, Proposal, QueuedCommand, answer_all, take_for_forwarding};
use super::transport::PeerLinks;
use crate::contract::{Durability, Leadership, StoreError, StoreStats};
use crate::local::engine::Engine;
use crate::log::{Batch, Job, Reply, Status, Types};
use crate::mvcc::{Command, Outcome, request_size};
use std::time::Duration;

/// Maximum wait for a leader and its response, as etcd's request timeout.
pub(super) const LEADER_WAIT: Duration = Duration::from_secs(7);

/// Maximum size of queued commands in KiB; further callers wait.
const QUEUE_KIB: usize = 16 * 1024;

/// Maximum number of entries in flight. While one entry is written, commands collect for the next;
/// more in flight would make batches smaller.
const ENTRIES_UNDER_WAY: usize = 1;

/// Distance of a durable ceiling: number of lazily acknowledged writes until the next ceiling must
/// be written.
const CEILING_STEP: i64 = 10_000;

#[derive(Default)]
struct Queued {
    requests: VecDeque<QueuedCommand>,
    closed: bool,
}

/// Proposes commands to openraft.
pub(crate) struct RaftEngine {
    queued: Mutex<Queued>,
    changed: Notify,
    room: Semaphore,
    under_way: AtomicUsize,
    term: AtomicU64,
    raft: Raft,
    links: Arc<PeerLinks>,
    pub(super) leadership: watch::Sender<Leadership>,
    /// Notified when the leadership has changed; wakes waiters in order.
    pub(super) led: Notify,
    /// Number of observed leader changes.
    pub(super) leader_changes: AtomicU64,
    /// Number of commands that were not committed.
    failed: AtomicU64,
    /// Notified when the device is full, after all commands that were not accepted were refused;
    /// accepted ones remain.
    stuck: Notify,
    /// Batches that openraft refused because another member leads.
    not_leader: Mutex<VecDeque<NotLeaderBatch>>,
    jobs: mpsc::Sender<Job>,
    pub(super) applied_state: Arc<AppliedState>,
    pub(super) status: Arc<Status>,
    pub(super) checkpoints: Arc<Checkpoints>,
    allow_lazy: bool,
    /// Other members are joining or present.
    pub(super) lazy_ended: AtomicBool,
    /// No revision from here on was handed out without being on disk.
    ceiling: Mutex<i64>,
}

impl std::fmt::Debug for RaftEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RaftEngine").field("status", &self.status).finish_non_exhaustive()
    }
}

/// Counts an entry in flight until it is answered or dropped.
struct UnderWay(Arc<RaftEngine>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Relaxed);
        self.0.changed.notify_one();
    }
}

fn shutting_down() -> StoreError {
    StoreError::Stopped("the server is shutting down".to_owned())
}

impl RaftEngine {
    pub(super) fn new(
        raft: Raft,
        links: Arc<PeerLinks>,
        jobs: mpsc::Sender<Job>,
        applied_state: Arc<AppliedState>,
        status: Arc<Status>,
        checkpoints: Arc<Checkpoints>,
        allow_lazy: bool,
    ) -> Self {
        Self {
            queued: Mutex::default(),
            changed: Notify::new(),
            room: Semaphore::new(QUEUE_KIB),
            under_way: AtomicUsize::new(0),
            term: AtomicU64::new(0),
            raft,
            links,
            leadership: watch::Sender::new(Leadership::default()),
            led: Notify::new(),
            leader_changes: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            stuck: Notify::new(),
            not_leader: Mutex::default(),
            jobs,
            applied_state,
            status,
            checkpoints,
            allow_lazy,
            lazy_ended: AtomicBool::new(false),
            ceiling: Mutex::new(0),
        }
    }

    pub(super) fn raft(&self) -> &Raft {
        &self.raft
    }

    pub(super) fn links(&self) -> &PeerLinks {
        &self.links
    }

    /// Whether new commands are refused.
    pub(super) fn is_closed(&self) -> bool {
        self.queued.lock().closed
    }

    pub(super) fn jobs(&self) -> &mpsc::Sender<Job> {
        &self.jobs
    }

    pub(super) fn set_term(&self, term: u64) {
        self.term.fetch_max(term, Relaxed);
    }

    /// Index of the newest committed entry known.
    pub(super) fn committed(&self) -> u64 {
        use openraft::async_runtime::watch::WatchReceiver;
        let metrics = self.raft.metrics().borrow_watched().clone();
        metrics.local_committed.map_or(0, |id| id.index())
    }

    /// Refuses new commands; queued ones are still proposed.
    pub(super) fn close(&self) {
        self.queued.lock().closed = true;
        self.changed.notify_one();
    }

    /// Refuses queued commands and ends all watches.
    pub(super) fn end(&self) {
        let error = self.stop_reason();
        self.status.stop(&error);
        let left = {
            let mut queued = self.queued.lock();
            queued.closed = true;
            std::mem::take(&mut queued.requests)
        };
        answer_all(left, &error);
        for not_leader in self.not_leader.lock().drain(..) {
            for reply in not_leader.replies {
                // The receiver may be gone.
                let _ = reply.send(Err(error.clone()));
            }
        }
        self.changed.notify_one();
        self.applied_state.shared.end_watches(&error);
    }

    pub(super) fn stop_reason(&self) -> StoreError {
        self.status.stopped.lock().clone().unwrap_or_else(shutting_down)
    }

    /// Proposes until the queue is closed and every command is answered.
    pub(super) async fn propose_all(self: Arc<Self>) -> Result<(), StoreError> {
        let mut full = self.status.full.subscribe();
        loop {
            let no_space = full.borrow_and_update().clone();
            if let Some(text) = no_space {
                self.refuse_for_space(text);
            }
            let under_way = self.under_way.load(Relaxed);
            let not_leader = self.not_leader.lock().pop_front();
            if let Some(not_leader) = not_leader {
                self.forward(not_leader).await;
                continue;
            }
            let (proposal, closed) = {
                let mut queued = self.queued.lock();
                let ready = under_way < ENTRIES_UNDER_WAY && !queued.requests.is_empty();
                (ready.then(|| std::mem::take(&mut queued.requests)), queued.closed)
            };
            match proposal {
                Some(mut requests) => {
                    let proposal = Proposal::take(&mut requests);
                    self.put_back(requests);
                    if proposal.requests.is_empty() {
                        continue;
                    }
                    if self.leadership.borrow().leads {
                        self.propose(proposal).await;
                    } else {
                        let requests = proposal.requests.into_iter().map(QueuedCommand::split);
                        self.forward(take_for_forwarding(requests, false)).await;
                    }
                }
                None if closed
                    && under_way == 0
                    && self.queued.lock().requests.is_empty()
                    && self.not_leader.lock().is_empty() =>
                {
                    return Ok(());
                }
                None => tokio::select! {
                    () = self.changed.notified() => {}
                    // Cannot fail: the sender lives as long as this task.
                    _ = full.changed() => {}
                },
            }
        }
    }

    /// Refuses queued commands, and notifies the callers of accepted ones that find no space.
    fn refuse_for_space(&self, text: String) {
        let requests = std::mem::take(&mut self.queued.lock().requests);
        answer_all(requests, &StoreError::NoSpace(text));
        self.stuck.notify_waiters();
    }

    /// Puts the commands that exceed an entry back in front of the queue.
    fn put_back(&self, mut rest: VecDeque<QueuedCommand>) {
        if !rest.is_empty() {
            let mut queued = self.queued.lock();
            rest.append(&mut queued.requests);
            queued.requests = rest;
        }
    }

    pub(super) async fn propose(self: &Arc<Self>, proposal: Proposal) {
        let Some(Proposal { requests, encoded }) = self.find_room(proposal).await else { return };
        base::memory::worked(encoded.len());
        let (sync, ceiling) = self.durability(&requests);
        let (commands, waiting): (Vec<_>, Vec<_>) =
            requests.into_iter().map(QueuedCommand::split).unzip();
        let batch = Batch::new(commands, encoded, ceiling, sync);
        self.under_way.fetch_add(1, Relaxed);
        let under_way = UnderWay(Arc::clone(self));
        let proposed = batch.clone();
        let reply = Reply::new(move |result: ClientWriteResult<Types>| {
            match result {
                Ok(response) => {
                    for (waiting, outcome) in waiting.into_iter().zip(response.data.0) {
                        // The receiver may be gone.
                        let _ = waiting.reply.send(outcome);
                    }
                }
                Err(ClientWriteError::ForwardToLeader(_)) => {
                    // The entry is in no log: the leader may still accept it.
                    let commands = proposed.commands().iter().cloned();
                    let not_leader = take_for_forwarding(commands.zip(waiting), true);
                    under_way.0.not_leader.lock().push_back(not_leader);
                }
                Err(error) => {
                    let error = refusal(&error);
                    for waiting in waiting {
                        // As above.
                        let _ = waiting.reply.send(Err(error.clone()));
                    }
                }
            }
            drop(under_way);
        });
        // If openraft has ended, the dropped reply reports the reason of the stop.
        drop(self.raft.client_write_ff(batch, Some(reply)).await);
    }

    /// Writes a checkpoint now; a failed attempt is repeated later.
    ///
    /// # Errors
    /// Errors of the file system.
    pub(crate) async fn write_checkpoint(&self) -> std::io::Result<()> {
        self.checkpoints.write(&self.applied_state).await?;
        // An error means that openraft has ended, which its task reports.
        drop(self.raft().trigger().snapshot().await);
        Ok(())
    }

    /// Ensures that the log has room for this many bytes.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`] if it has none.
    pub(super) async fn make_room(&self, bytes: u64) -> Result<(), StoreError> {
        let full = self.status.full.borrow().clone();
        if let Some(text) = full {
            self.checkpoints.request_room();
            return Err(StoreError::NoSpace(text));
        }
        let (left, next) = *self.status.room.lock();
        if next || bytes + crate::log::RESERVE_BYTES <= left {
            if next {
                self.links.report_room(None);
            }
            return Ok(());
        }
        let (done, made) = oneshot::channel();
        if self.jobs.send(Job::Room(bytes, done)).await.is_err() {
            return Err(self.stop_reason());
        }
        let made = made.await.unwrap_or_else(|_| Err(self.stop_reason()));
        self.links.report_room(made.as_ref().err());
        if matches!(made, Err(StoreError::NoSpace(_))) {
            self.checkpoints.request_room();
        }
        made
    }

    /// Ensures that the log has room for the entry; returns the part of it that fits.
    async fn find_room(&self, proposal: Proposal) -> Option<Proposal> {
        let Err(error) = self.make_room(proposal.bytes()).await else { return Some(proposal) };
        if !matches!(error, StoreError::NoSpace(_)) {
            answer_all(proposal.requests, &error);
            return None;
        }
        // Only commands that free space may use the remaining room.
        let left = self.status.room.lock().0;
        let frees = proposal.only_what_frees(&error);
        if frees.requests.is_empty() || frees.bytes() > left {
            answer_all(frees.requests, &error);
            return None;
        }
        Some(frees)
    }

    /// Whether the entry must be synced, and its ceiling: a ceiling above them is durable before
    /// revisions are handed out that are not on disk.
    fn durability(&self, requests: &[QueuedCommand]) -> (bool, i64) {
        let asked = requests.iter().any(|request| request.durability == Durability::Synced);
        let alone = self.applied_state.members() == 1 && !self.lazy_ended.load(Relaxed);
        if asked || !self.allow_lazy || !alone {
            return (true, 0);
        }
        let commands = i64::try_from(requests.len()).unwrap_or(i64::MAX);
        let needed = self.applied_state.shared.state.read().revision().saturating_add(commands);
        let mut ceiling = self.ceiling.lock();
        if needed < *ceiling {
            return (false, 0);
        }
        *ceiling = needed.saturating_add(CEILING_STEP);
        (true, *ceiling)
    }
}

/// Converts openraft's errors to the contract's.
fn refusal(error: &ClientWriteError<Types>) -> StoreError {
    StoreError::Unavailable(error.to_string())
}

fn kib(command: &Command) -> u32 {
    let bytes = if let Command::Txn(txn) = command { request_size(txn) } else { 0 };
    u32::try_from((1 + bytes / 1024).min(QUEUE_KIB)).unwrap_or(1)
}

impl RaftEngine {
    async fn enqueue(
        &self,
        command: Command,
        durability: Durability,
        forward: bool,
    ) -> Result<Outcome, StoreError> {
        let _room = self.room.acquire_many(kib(&command)).await.map_err(|_| self.stop_reason())?;
        let (reply, answer) = oneshot::channel();
        let stuck = self.stuck.notified();
        {
            let mut queued = self.queued.lock();
            if queued.closed {
                return Err(self.stop_reason());
            }
            queued.requests.push_back(QueuedCommand { command, durability, reply, forward });
        }
        self.changed.notify_one();
        let answer = async {
            tokio::select! {
                biased;
                outcome = answer => outcome.unwrap_or_else(|_| Err(self.stop_reason())),
                () = stuck => {
                    let text = "the device is full: the write takes effect once there is space";
                    Err(StoreError::Unavailable(text.to_owned()))
                }
            }
        };
        if self.is_alone() {
            answer.await
        } else {
            // Without a quorum an entry may wait forever.
            match tokio::time::timeout(2 * LEADER_WAIT, answer).await {
                Ok(outcome) => outcome,
                Err(_) => {
                    self.failed.fetch_add(1, Relaxed);
                    let text = "no quorum in time; the write may still take effect";
                    Err(StoreError::Unavailable(text.to_owned()))
                }
            }
        }
    }
}

#[async_trait]
impl Engine for RaftEngine {
    async fn submit(
        &self,
        command: Command,
        durability: Durability,
    ) -> Result<Outcome, StoreError> {
        self.enqueue(command, durability, true).await
    }

    async fn submit_as_leader(&self, command: Command) -> Result<Outcome, StoreError> {
        self.enqueue(command, Durability::Synced, false).await
    }

    async fn barrier(&self) -> Result<(), StoreError> {
        // The only voter acknowledges nothing before it has applied it, and no other member can
        // lead.
        if self.is_alone() { Ok(()) } else { self.read_barrier().await }
    }

    fn is_alone(&self) -> bool {
        self.applied_state.is_only_voter()
    }

    async fn renew_remotely(&self, lease: i64) -> Result<Option<i64>, StoreError> {
        if self.is_alone() { Ok(None) } else { self.renew_at_leader(lease).await }
    }

    async fn remaining_remotely(&self, lease: i64) -> Result<Option<(i64, i64)>, StoreError> {
        if self.is_alone() { Ok(None) } else { self.remaining_at_leader(lease).await }
    }

    fn leads(&self) -> watch::Receiver<Leadership> {
        self.leadership.subscribe()
    }

    fn term(&self) -> u64 {
        self.term.load(Relaxed)
    }

    fn applied_index(&self) -> u64 {
        self.applied_state.applied.lock().id.as_ref().map_or(0, |id| id.index())
    }

    async fn lock_state(&self) -> Option<tokio::sync::OwnedMutexGuard<()>> {
        Some(self.checkpoints.lock().await)
    }

    fn stopped(&self) -> Option<StoreError> {
        self.status.stopped.lock().clone()
    }

    fn disk_bytes(&self) -> u64 {
        self.status.disk_bytes.load(Relaxed) + self.checkpoints.bytes()
    }

    async fn defragment(&self) -> Result<(), StoreError> {
        self.write_checkpoint().await.map_err(|error| {
            if error.kind() == std::io::ErrorKind::StorageFull {
                StoreError::NoSpace(error.to_string())
            } else {
                StoreError::Unavailable(format!("cannot write a checkpoint: {error}"))
            }
        })
    }

    fn fill_stats(&self, stats: &mut StoreStats) {
        stats.leader_changes = self.leader_changes.load(Relaxed);
        stats.failed = self.failed.load(Relaxed);
        stats.pending = self.queued.lock().requests.len() + self.under_way.load(Relaxed);
        stats.committed = self.committed();
        stats.syncs = self.status.syncs.histogram();
        stats.log_bytes = self.status.written.load(Relaxed);
    }
}

#[cfg(test)]
impl RaftEngine {
    /// Bytes appended to the log since the start.
    pub(crate) fn written(&self) -> u64 {
        self.status.written.load(Relaxed)
    }

    /// Whether an acknowledged write is not synced yet.
    pub(crate) fn has_lazy(&self) -> bool {
        self.status.lazy_since.lock().is_some()
    }
}

impl RaftEngine {
    /// The reason why openraft has ended: the disk's error if it was the cause.
    pub(super) fn fatal(&self, error: &Fatal<Types>) -> StoreError {
        let known = self.status.stopped.lock().clone();
        known.unwrap_or_else(|| StoreError::Stopped(error.to_string()))
    }
}
