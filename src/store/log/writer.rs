//! The single writer of the log: requests queued during the last `fdatasync` are written and synced
//! together.
//!
//! Records that need not be durable stay in memory, up to [`LAZY_BYTES`], and are written with the
//! next synced batch or after [`LAZY_SYNC`]: the kernel soon writes a dirty page to the device
//! anyway, so writing each heartbeat at once would cost a page each. A delayed write fills its last
//! page, so that the page is written once.
//!
//! The writer is synchronous, so that the simulation can run it anywhere; a real store runs it on a
//! thread of its own.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use openraft::storage::IOFlushed;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;

use super::entries::{Entries, Mark};
use super::record::Kind;
use super::segments::{Log, Meta, WriteError};
use super::{LogEntry, OpenError, Payload, RESERVE_BYTES, Types, Vote, encode_entry};
use crate::contract::StoreError;
use crate::timing::Timing;

/// Maximum time for which a lazily written command may be lost.
pub(crate) const LAZY_SYNC: Duration = Duration::from_secs(30);

/// Bytes of lazy records that wait in memory; beyond that the pages are full, and are written at
/// once.
pub(crate) const LAZY_BYTES: usize = 32 * 1024;

/// Bytes of commands per entry; a larger command has an entry of its own. Also the size that is
/// staged before a write.
pub(crate) const BATCH_BYTES: usize = RESERVE_BYTES as usize / 2;

/// Capacity of the writer's queue; openraft has a few requests in flight at most.
pub(crate) const JOBS_MAX: usize = 64;

/// Notified when the request is on disk.
pub(crate) type Done = oneshot::Sender<io::Result<()>>;

/// A request to the writer.
pub(crate) enum Job {
    /// Appends entries.
    Append(Vec<LogEntry>, IOFlushed<Types>),
    /// Makes a vote durable.
    Vote(Vote, Done),
    /// Truncates the log from this index on.
    Truncate(u64, Done),
    /// Purges the entries before this index, which a durable checkpoint contains.
    Purge(u64, Done),
    /// Ensures that this many bytes can be written while the reserve stays.
    Room(u64, oneshot::Sender<Result<(), StoreError>>),
    /// Makes everything written durable.
    Sync(Done),
    /// Retries requests that found no space.
    Retry,
    /// Ends the log in order.
    Stop(Done),
}

impl Job {
    /// Answers the request with the end of the log.
    fn refuse(self, ended: &Result<bool, StoreError>) {
        let error = match ended {
            Ok(_) => StoreError::Stopped("the log was ended".to_owned()),
            Err(error) => error.clone(),
        };
        let failed = Err(io::Error::other(error.to_string()));
        match self {
            Self::Append(_, flushed) => flushed.io_completed(failed),
            // The receiver may be gone.
            Self::Room(_, done) => drop(done.send(Err(error))),
            Self::Retry => {}
            Self::Vote(_, done)
            | Self::Truncate(_, done)
            | Self::Purge(_, done)
            | Self::Sync(done)
            | Self::Stop(done) => drop(done.send(failed)),
        }
    }
}

/// State of the writer that others may read.
#[derive(Debug, Default)]
pub(crate) struct Status {
    /// Bytes left in the segment, and whether the next one exists.
    pub(crate) room: Mutex<(u64, bool)>,
    /// Bytes of all segments.
    pub(crate) disk_bytes: AtomicU64,
    /// Bytes written to the log.
    pub(crate) written: AtomicU64,
    /// Time of the first acknowledged write that is not on disk.
    pub(crate) lazy_since: Mutex<Option<Instant>>,
    /// Notified when `lazy_since` is set.
    pub(crate) lazy: Notify,
    /// The device is full, with the error of the system: accepted requests wait for space, and no
    /// more are accepted.
    pub(crate) full: watch::Sender<Option<String>>,
    /// Durations of log syncs.
    pub(crate) syncs: Arc<Timing>,
    /// The error that stopped the writer.
    pub(crate) stopped: Mutex<Option<StoreError>>,
}

impl Status {
    /// Records the first reason of the stop.
    pub(crate) fn stop(&self, error: &StoreError) {
        self.stopped.lock().get_or_insert_with(|| error.clone());
    }
}

/// Receiver to notify when the batch is written.
enum PendingReply {
    Entries(IOFlushed<Types>),
    Done(Done),
}

impl PendingReply {
    fn complete(self, result: io::Result<()>) {
        match self {
            Self::Entries(flushed) => flushed.io_completed(result),
            // The receiver may be gone.
            Self::Done(done) => drop(done.send(result)),
        }
    }
}

/// The writer.
pub(crate) struct Writer {
    log: Log,
    entries: Arc<Entries>,
    status: Arc<Status>,
    waiting: Vec<PendingReply>,
    /// Staged entries: index and offset within the batch.
    staged: Vec<(u64, u64)>,
    /// The staged records must be durable before any response.
    sync: bool,
    /// The staged records must be written before any response.
    write: bool,
    /// Requests after one that found no space.
    held: VecDeque<Job>,
}

impl Writer {
    /// Continues at the end of `log`, whose entries are `entries`.
    pub(crate) fn new(log: Log, entries: Arc<Entries>) -> Self {
        let syncs = Arc::clone(&log.syncs);
        let status = Arc::new(Status { syncs, ..Status::default() });
        let (waiting, staged, held) = (Vec::new(), Vec::new(), VecDeque::new());
        let this = Self { log, entries, status, waiting, staged, sync: false, write: false, held };
        this.publish();
        this
    }

    pub(crate) fn status(&self) -> &Arc<Status> {
        &self.status
    }

    fn publish(&self) {
        *self.status.room.lock() = if self.full().is_some() { (0, false) } else { self.log.room() };
        self.status.disk_bytes.store(self.log.disk_bytes(), Relaxed);
        self.status.written.store(self.log.written(), Relaxed);
    }

    /// Runs until the log ends or cannot be written; for a thread of its own.
    ///
    /// # Errors
    /// [`StoreError::Stopped`].
    pub(crate) fn run(mut self, mut jobs: mpsc::Receiver<Job>) -> Result<(), StoreError> {
        let mut result = Ok(false);
        while matches!(result, Ok(false)) {
            let Some(job) = jobs.blocking_recv() else { break };
            result = self.step(job, &mut jobs);
        }
        jobs.close();
        while let Some(job) = jobs.blocking_recv() {
            job.refuse(&result);
        }
        result.map(drop)
    }

    /// As [`Writer::run`], within the calling task.
    ///
    /// # Errors
    /// [`StoreError::Stopped`].
    #[cfg(test)]
    pub(crate) async fn run_here(
        mut self,
        mut jobs: mpsc::Receiver<Job>,
    ) -> Result<(), StoreError> {
        let mut result = Ok(false);
        while matches!(result, Ok(false)) {
            let Some(job) = jobs.recv().await else { break };
            let latency = self.log.disk().latency();
            if !latency.is_zero() {
                tokio::time::sleep(latency).await;
            }
            result = self.step(job, &mut jobs);
        }
        jobs.close();
        while let Some(job) = jobs.recv().await {
            job.refuse(&result);
        }
        result.map(drop)
    }

    /// Processes `first` and all queued requests; returns whether the log has ended.
    fn step(&mut self, first: Job, jobs: &mut mpsc::Receiver<Job>) -> Result<bool, StoreError> {
        let mut next = Some(first);
        let mut ended = false;
        let mut result = Ok(());
        while let Some(job) = next.take() {
            ended |= matches!(job, Job::Stop(_));
            result = self.take(job);
            if result.is_err() || ended {
                break;
            }
            next = jobs.try_recv().ok();
        }
        let result = result.and_then(|()| self.flush_all()).and_then(|()| match self.full() {
            Some(full) if ended => {
                Err(StoreError::Stopped(format!("{full}, and the store was stopped")))
            }
            _ => Ok(()),
        });
        if let Err(error) = &result {
            self.status.stop(error);
            for waiting in self.waiting.drain(..) {
                waiting.complete(Err(io::Error::other(error.to_string())));
            }
            for held in self.held.drain(..) {
                held.refuse(&Err(error.clone()));
            }
        }
        result?;
        if ended {
            self.log.record_position();
        }
        // Created ahead, while no request waits for it; the request that needs the room reports a
        // full disk.
        if !ended && self.full().is_none() && self.log.prepare(RESERVE_BYTES).is_ok() {
            self.publish();
        }
        Ok(ended)
    }

    fn full(&self) -> Option<String> {
        self.status.full.borrow().clone()
    }

    /// Starts a request, or queues it behind requests that wait for space.
    fn take(&mut self, job: Job) -> Result<(), StoreError> {
        let Some(full) = self.full() else {
            let left = self.begin(job)?;
            self.held.extend(left);
            return Ok(());
        };
        match job {
            // The receiver may be gone.
            Job::Room(_, done) => drop(done.send(Err(StoreError::NoSpace(full)))),
            // A checkpoint contains these entries, so no waiting request needs them; and purging
            // frees space.
            Job::Purge(..) => drop(self.begin(job)?),
            Job::Retry | Job::Stop(_) => {
                if let Job::Stop(done) = job {
                    self.waiting.push(PendingReply::Done(done));
                }
            }
            job => self.held.push_back(job),
        }
        Ok(())
    }

    /// Writes the staged and the held requests as far as there is space.
    fn flush_all(&mut self) -> Result<(), StoreError> {
        while self.flush()? {
            let Some(job) = self.held.pop_front() else { break };
            if let Some(job) = self.begin(job)? {
                self.held.push_front(job);
            }
        }
        Ok(())
    }

    /// Starts a request; returns it if it must wait because an earlier one found no space.
    fn begin(&mut self, job: Job) -> Result<Option<Job>, StoreError> {
        match job {
            Job::Append(mut entries, flushed) => {
                for at in 0..entries.len() {
                    if self.log.staged() > BATCH_BYTES && !self.write_out()? {
                        return Ok(Some(Job::Append(entries.split_off(at), flushed)));
                    }
                    if let Some(entry) = entries.get(at) {
                        self.stage(entry);
                    }
                }
                self.waiting.push(PendingReply::Entries(flushed));
            }
            Job::Vote(vote, done) => {
                self.log.meta.vote = Some(vote);
                self.log.meta.committed = self.committed();
                self.log.stage_meta();
                self.sync = true;
                self.waiting.push(PendingReply::Done(done));
            }
            Job::Truncate(next, done) => {
                if !self.truncate(next)? {
                    return Ok(Some(Job::Truncate(next, done)));
                }
                PendingReply::Done(done).complete(Ok(()));
            }
            Job::Purge(next, done) => {
                self.purge(next);
                PendingReply::Done(done).complete(Ok(()));
            }
            Job::Room(bytes, done) => {
                let was_flushed = self.flush()?;
                let made = self.prepare_room(bytes, was_flushed);
                // The receiver may be gone.
                drop(done.send(made.clone()));
                if let Err(error @ StoreError::Stopped(_)) = made {
                    return Err(error);
                }
            }
            Job::Sync(done) => {
                // Only lazy records came for long, and the next are as far away.
                self.log.fill_page();
                self.sync = true;
                self.waiting.push(PendingReply::Done(done));
            }
            Job::Retry => {}
            Job::Stop(done) => {
                let committed = self.committed();
                self.log
                    .stage(Kind::CleanStop, |out| crate::encoding::Put::put_u64(out, committed));
                self.sync = true;
                self.waiting.push(PendingReply::Done(done));
            }
        }
        Ok(None)
    }

    /// Truncates the log from `next` on; returns whether there was space for the record.
    fn truncate(&mut self, next: u64) -> Result<bool, StoreError> {
        if !self.write_out()? {
            return Ok(false);
        }
        self.log.stage(Kind::Truncate, |out| crate::encoding::Put::put_u64(out, next));
        if self.write(true)?.is_none() {
            self.log.unstage();
            return Ok(false);
        }
        self.log.meta.next = next;
        {
            let mut view = self.entries.0.lock();
            view.written = view.written.min(next);
            view.marks.truncate(next);
        }
        self.publish();
        Ok(true)
    }

    /// Removes segments whose entries are all before `next`.
    fn purge(&mut self, next: u64) {
        self.log.meta.next = self.log.meta.next.max(next);
        match self.log.purge(next) {
            Ok(sequence) => self.entries.0.lock().marks.purge(sequence),
            Err(error) => {
                tracing::warn!(%error, "cannot remove old segments of the store's log, retrying \
                    at the next checkpoint");
            }
        }
        self.publish();
    }

    /// Prepares `bytes` of space; `was_flushed` tells whether all staged requests were written.
    fn prepare_room(&mut self, bytes: u64, was_flushed: bool) -> Result<(), StoreError> {
        let prepared = match (was_flushed, self.full()) {
            (false, Some(full)) => Err(StoreError::NoSpace(full)),
            _ => self.log.prepare(bytes).map_err(|error| match error {
                WriteError::NoSpace(text) => StoreError::NoSpace(text),
                WriteError::Fatal(text) => StoreError::Stopped(text),
            }),
        };
        self.publish();
        prepared
    }

    fn committed(&self) -> u64 {
        crate::log::behind(self.entries.0.lock().committed.as_ref())
    }

    fn stage(&mut self, entry: &LogEntry) {
        let committed = self.committed();
        self.log.meta.committed = committed;
        match &entry.payload {
            Payload::Normal(batch) => {
                self.sync |= batch.sync();
                if batch.ceiling() != 0 {
                    self.log.meta.ceiling = batch.ceiling();
                }
            }
            Payload::Blank | Payload::Membership(_) => self.sync = true,
        }
        let index = entry.log_id.index();
        let (kind, payload) = encode_entry(entry, committed);
        let offset = self.log.stage_entry(index, kind, payload);
        self.staged.push((index, offset));
    }

    /// As [`Writer::flush`], and leaves nothing in memory.
    fn write_out(&mut self) -> Result<bool, StoreError> {
        self.write = true;
        self.flush()
    }

    /// Writes the staged batch and returns its position. Without space the batch stays staged, and
    /// the status reports it.
    fn write(&mut self, sync: bool) -> Result<Option<(u64, u64)>, StoreError> {
        match self.log.write(sync) {
            Ok(place) => {
                self.status.full.send_if_modified(|full| full.take().is_some());
                Ok(Some(place))
            }
            Err(WriteError::NoSpace(text)) => {
                self.status.full.send_if_modified(|full| full.replace(text).is_none());
                self.publish();
                Ok(None)
            }
            Err(WriteError::Fatal(text)) => Err(StoreError::Stopped(text)),
        }
    }

    /// Writes the staged batch unless it may wait, makes it durable as requested, and answers the
    /// requests. `false` means that there is no space: all of that is still to do.
    fn flush(&mut self) -> Result<bool, StoreError> {
        let lazy = !self.sync && self.log.staged() > 0;
        if self.write || self.sync || self.full().is_some() || self.log.staged() > LAZY_BYTES {
            let Some((sequence, begin)) = self.write(self.sync)? else { return Ok(false) };
            let mut view = self.entries.0.lock();
            for (index, offset) in self.staged.drain(..) {
                view.marks.add(index, Mark { sequence, offset: begin + offset });
                view.written = index + 1;
            }
        }
        self.publish();
        {
            let mut since = self.status.lazy_since.lock();
            if self.sync {
                *since = None;
            } else if lazy && since.is_none() {
                *since = Some(base::clock::now());
                self.status.lazy.notify_one();
            }
        }
        (self.sync, self.write) = (false, false);
        for waiting in self.waiting.drain(..) {
            waiting.complete(Ok(()));
        }
        Ok(true)
    }
}

/// Writes the first record of an empty log, which identifies the member.
///
/// # Errors
/// [`OpenError::NoSpace`], [`OpenError::Io`].
pub(crate) fn begin_log(log: &mut Log, meta: Meta) -> Result<(), OpenError> {
    log.meta = meta;
    log.stage_meta();
    log.write(true).map(drop).map_err(|error| match error {
        WriteError::NoSpace(what) => OpenError::NoSpace { what },
        WriteError::Fatal(text) => {
            let source = io::Error::other(text);
            OpenError::Io { action: "write", file: "the log".to_owned(), source }
        }
    })
}
