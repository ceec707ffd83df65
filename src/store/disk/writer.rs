//! The one writer: batches commands into the log, applies what is durable, answers. Synchronous, so that simulation runs it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::checkpoint::{Description, checkpoint_name};
use super::files::Disk;
use super::log::{Log, WriteError};
use super::record::Kind;
use super::recover::{Recovered, encode_entry};
use super::{ClusterId, OpenError, RESERVE_BYTES, SEGMENT_BYTES};
use crate::backend::Shared;
use crate::command::Command;
use crate::kv::{Durability, StoreError};
use crate::mvcc::Outcome;

/// Longest time a lazily written command may be lost for.
pub(crate) const LAZY_SYNC: Duration = Duration::from_secs(30);

/// Revisions a durable ceiling is ahead: lazily acknowledged writes until the next one has to be written.
const CEILING_STEP: i64 = 10_000;

/// Smallest log that a checkpoint replaces.
const CHECKPOINT_MIN_BYTES: u64 = 2 * SEGMENT_BYTES;

/// Bytes of commands in one batch; one larger command is a batch of its own.
const BATCH_BYTES: usize = RESERVE_BYTES as usize / 2;

/// A command and who waits for it.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) command: Command,
    pub(crate) durability: Durability,
    pub(crate) reply: oneshot::Sender<Result<Outcome, StoreError>>,
}

/// A checkpoint to be written elsewhere while the writer goes on.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) cluster: ClusterId,
    pub(crate) description: Description,
    /// First segment behind it.
    segment: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Writer {
    log: Log,
    shared: Arc<Shared>,
    index: u64,
    term: u64,
    members: Vec<u64>,
    /// First acknowledged write that is not on disk.
    lazy_since: Option<Instant>,
    allow_lazy: bool,
    log_bytes: u64,
    checkpoint: Option<(u64, u64)>,
    checkpointing: bool,
    /// Log bytes at which the next checkpoint is tried, after one failed.
    retry_at: u64,
}

impl Writer {
    /// Goes on where recovery ended. After an unclean stop revisions go on from the ceiling, durably.
    ///
    /// # Errors
    /// [`OpenError::Io`] when that cannot be written.
    pub(crate) fn start(recovered: Recovered, allow_lazy: bool) -> Result<Self, OpenError> {
        let Recovered { state, mut log, index, term, members, clean, log_bytes, checkpoint } =
            recovered;
        let ceiling = log.meta.ceiling;
        let lost = !clean && ceiling > state.revision();
        // The next lazy write puts a record behind the clean stop first: a stop after it is not clean any more.
        log.meta.ceiling = 0;
        let mut writer = Self {
            log,
            shared: Arc::new(Shared::new(state)),
            index,
            term,
            members,
            lazy_since: None,
            allow_lazy,
            log_bytes,
            checkpoint,
            checkpointing: false,
            retry_at: 0,
        };
        if lost {
            let (reply, _) = oneshot::channel();
            let command = Command::Raise { revision: ceiling };
            let done =
                writer.commit(vec![Request { command, durability: Durability::Synced, reply }]);
            let io = |e: StoreError| OpenError::Io {
                action: "append to",
                file: "the log".to_owned(),
                source: io::Error::other(e),
            };
            done.map_err(io)?;
        }
        Ok(writer)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Bytes on disk.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.log.disk_bytes() + self.checkpoint.map_or(0, |(_, bytes)| bytes)
    }

    /// When acknowledged writes must be synced at the latest.
    pub(crate) fn lazy_deadline(&self) -> Option<Instant> {
        self.lazy_since.map(|since| since + LAZY_SYNC)
    }

    /// Makes the requests durable, applies and answers them, in batches.
    ///
    /// # Errors
    /// [`StoreError::Stopped`]: the disk failed, nothing may be written any more. Everybody was answered.
    pub(crate) fn commit(&mut self, requests: Vec<Request>) -> Result<(), StoreError> {
        let mut requests = requests.into_iter();
        let mut held = None;
        loop {
            let mut batch: Vec<Request> = Vec::new();
            for request in held.take().into_iter().chain(requests.by_ref()) {
                let before = self.log.staged();
                self.stage(&request.command, batch.len());
                if before > 0 && self.log.staged() > BATCH_BYTES {
                    self.log.unstage_to(before);
                    held = Some(request);
                    break;
                }
                batch.push(request);
            }
            if batch.is_empty() {
                return Ok(());
            }
            if let Err(error) = self.commit_batch(batch) {
                for request in held.into_iter().chain(requests) {
                    // Who does not wait any more does not need the answer.
                    let _ = request.reply.send(Err(error.clone()));
                }
                return Err(error);
            }
        }
    }

    fn stage(&mut self, command: &Command, place: usize) {
        let (term, index) = (self.term, self.index + 1 + place as u64);
        self.log.stage(Kind::Command, |out| {
            encode_entry(term, index, out);
            command.encode(out);
        });
    }

    /// Commits what is staged: the commands of `batch`.
    fn commit_batch(&mut self, mut batch: Vec<Request>) -> Result<(), StoreError> {
        if let Err(error) = self.log.prepare() {
            let error = self.refusal(error)?;
            // Only what frees space may use the room that is left.
            self.log.unstage();
            let (frees, refused): (Vec<_>, Vec<_>) =
                batch.into_iter().partition(|request| request.command.frees_space());
            answer_all(refused, &error);
            batch = frees;
            for (place, request) in batch.iter().enumerate() {
                self.stage(&request.command, place);
            }
        }
        let sync = !self.allow_lazy
            || batch.iter().any(|request| request.durability == Durability::Synced)
            || self.raise_ceiling(batch.len());
        let bytes = self.log.staged() as u64;
        if let Err(error) = self.log.write(sync) {
            return match self.refusal(error) {
                Ok(error) => {
                    answer_all(batch, &error);
                    Ok(())
                }
                Err(stopped) => {
                    answer_all(batch, &stopped);
                    Err(stopped)
                }
            };
        }
        self.log_bytes += bytes;
        self.index += batch.len() as u64;
        self.log.meta.index = self.index;
        self.lazy_since =
            if sync { None } else { self.lazy_since.or_else(|| Some(base::clock::now())) };
        let outcomes = self.shared.apply(batch.iter().map(|request| &request.command));
        for (request, outcome) in batch.into_iter().zip(outcomes) {
            // Who does not wait any more does not need the answer.
            let _ = request.reply.send(outcome);
        }
        Ok(())
    }

    /// Before revisions are handed out that are not on disk: the durable ceiling is above them. Whether it had to be raised.
    fn raise_ceiling(&mut self, commands: usize) -> bool {
        let needed = self
            .shared
            .state
            .read()
            .revision()
            .saturating_add(i64::try_from(commands).unwrap_or(i64::MAX));
        if needed < self.log.meta.ceiling {
            return false;
        }
        self.log.meta.ceiling = needed.saturating_add(CEILING_STEP);
        self.log.stage_meta();
        true
    }

    /// A full disk as the answer to the requests, anything else as the end.
    fn refusal(&self, error: WriteError) -> Result<StoreError, StoreError> {
        match error {
            WriteError::NoSpace(text) => Ok(StoreError::NoSpace(text)),
            WriteError::Fatal(text) => Err(StoreError::Stopped(text)),
        }
    }

    /// Makes everything acknowledged durable.
    ///
    /// # Errors
    /// [`StoreError::Stopped`].
    pub(crate) fn sync(&mut self) -> Result<(), StoreError> {
        self.lazy_since = None;
        self.log.sync().or_else(|error| self.refusal(error).map(|_| ()))
    }

    /// Ends the log in order, so that the next start loses no revision.
    ///
    /// # Errors
    /// [`StoreError::Stopped`], [`StoreError::NoSpace`].
    pub(crate) fn stop(&mut self) -> Result<(), StoreError> {
        self.log.stage(Kind::CleanStop, |_| {});
        self.log.write(true).map_err(|error| self.refusal(error).unwrap_or_else(|stopped| stopped))
    }

    /// Begins a checkpoint when the log has outgrown the state. The state stays pinned until [`Writer::end_checkpoint`].
    ///
    /// # Errors
    /// [`StoreError::Stopped`].
    pub(crate) fn begin_checkpoint(&mut self) -> Result<Option<Job>, StoreError> {
        let state_bytes = self.shared.state.read().size().memory as u64;
        if self.checkpointing
            || self.log_bytes < CHECKPOINT_MIN_BYTES.max(state_bytes).max(self.retry_at)
        {
            return Ok(None);
        }
        self.checkpoint_now()
    }

    /// Begins a checkpoint.
    ///
    /// # Errors
    /// [`StoreError::Stopped`].
    pub(crate) fn checkpoint_now(&mut self) -> Result<Option<Job>, StoreError> {
        let segment = match self.log.roll() {
            Ok(segment) => segment,
            Err(error) => {
                let error = self.refusal(error)?;
                self.retry_at = self.log_bytes + SEGMENT_BYTES / 8;
                tracing::warn!(%error, "cannot begin a checkpoint of the store, trying again later");
                return Ok(None);
            }
        };
        self.checkpointing = true;
        let mut state = self.shared.state.write();
        state.pin();
        let description = Description {
            index: self.index,
            term: self.term,
            revision: state.revision(),
            compacted: state.compacted(),
            gaps: state.gaps().to_vec(),
            leases: state.leases().collect(),
            members: self.members.clone(),
            meta: self.log.meta,
        };
        drop(state);
        self.log_bytes = 0;
        Ok(Some(Job {
            disk: Arc::clone(self.log.disk()),
            cluster: self.log.cluster(),
            description,
            segment,
        }))
    }

    /// Ends a checkpoint: drops the log before it when it was written, goes on with the log when not.
    pub(crate) fn end_checkpoint(&mut self, job: &Job, written: io::Result<u64>) {
        self.shared.state.write().unpin();
        self.checkpointing = false;
        let purged = written.and_then(|bytes| {
            let replaced =
                self.checkpoint.replace((job.description.index, bytes)).map(|(index, _)| index);
            self.retry_at = 0;
            if let Some(old) = replaced.filter(|old| *old != job.description.index) {
                job.disk.remove(&checkpoint_name(old))?;
            }
            self.log.purge(job.segment)
        });
        if let Err(error) = purged {
            self.retry_at = self.log_bytes + CHECKPOINT_MIN_BYTES;
            tracing::warn!(%error, "cannot write a checkpoint of the store, the log keeps growing until the next try");
        }
    }

    /// Index of the last entry.
    #[cfg(test)]
    pub(crate) fn index(&self) -> u64 {
        self.index
    }

    /// Bytes appended to the log since the start.
    #[cfg(test)]
    pub(crate) fn written(&self) -> u64 {
        self.log.written()
    }
}

fn answer_all(requests: Vec<Request>, error: &StoreError) {
    for request in requests {
        // Who does not wait any more does not need the answer.
        let _ = request.reply.send(Err(error.clone()));
    }
}
