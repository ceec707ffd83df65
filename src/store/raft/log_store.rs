//! The log as openraft's storage: appends and votes go to the writer, reads come from memory or
//! from segments.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use tokio::sync::{mpsc, oneshot};

use crate::log::{Disk, DiskWork, Entries, Job, LogEntry, LogId, Types, Vote, behind, entry_bytes};

/// Bytes of commands after which a message to a follower gets no further entry. An entry has at
/// most half a segment, so the message stays far below its limit.
const MESSAGE_ENTRIES_BYTES: usize = 1024 * 1024;

/// Entries examined per step for a message.
const STEP: u64 = 16;

/// Reads the log; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct LogReader {
    pub(super) entries: Arc<Entries>,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) work: DiskWork,
}

/// The log.
pub(crate) struct LogStore {
    reader: LogReader,
    jobs: mpsc::Sender<Job>,
}

impl LogStore {
    /// The log written by the writer behind `jobs`.
    pub(crate) fn new(reader: LogReader, jobs: mpsc::Sender<Job>) -> Self {
        Self { reader, jobs }
    }

    async fn send(&self, job: Job) -> io::Result<()> {
        self.jobs.send(job).await.map_err(|_| ended())
    }

    async fn call(
        &self,
        job: impl FnOnce(oneshot::Sender<io::Result<()>>) -> Job,
    ) -> io::Result<()> {
        let (done, answer) = oneshot::channel();
        self.send(job(done)).await?;
        answer.await.map_err(|_| ended())?
    }
}

fn ended() -> io::Error {
    io::Error::other("the log's writer has ended")
}

impl RaftLogReader<Types> for LogReader {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + Send>(
        &mut self,
        range: R,
    ) -> Result<Vec<LogEntry>, io::Error> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(end) => end.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        let found = self.entries.find(&(start..end));
        let disk = Arc::clone(&self.disk);
        if found.on_disk() {
            self.work.run(move || found.load(disk.as_ref())).await?
        } else {
            found.load(disk.as_ref())
        }
    }

    /// Entries up to a size limit, at least one: a message to a follower is bounded.
    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<LogEntry>, io::Error> {
        // Read in steps, because entries that are only on disk are all loaded to memory.
        let mut entries = Vec::new();
        let (mut bytes, mut next) = (0, start);
        while next < end && bytes < MESSAGE_ENTRIES_BYTES {
            let step = self.try_get_log_entries(next..end.min(next + STEP)).await?;
            let Some(last) = step.last() else { break };
            next = last.log_id.index() + 1;
            for entry in step {
                bytes += entry_bytes(&entry);
                entries.push(entry);
                if bytes >= MESSAGE_ENTRIES_BYTES {
                    break;
                }
            }
        }
        Ok(entries)
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.entries.0.lock().vote)
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = LogReader;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, io::Error> {
        let view = self.reader.entries.0.lock();
        Ok(LogState { last_purged_log_id: view.purged, last_log_id: view.last })
    }

    async fn get_log_reader(&mut self) -> LogReader {
        self.reader.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        let vote = *vote;
        self.call(|done| Job::Vote(vote, done)).await?;
        self.reader.entries.0.lock().vote = Some(vote);
        Ok(())
    }

    /// Written with the next entry: if a crash loses it, the next leader commits again.
    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        self.reader.entries.0.lock().committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        Ok(self.reader.entries.0.lock().committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = LogEntry> + Send,
        I::IntoIter: Send,
    {
        let entries: Vec<LogEntry> = entries.into_iter().collect();
        self.reader.entries.append(&entries);
        self.send(Job::Append(entries, callback)).await
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> Result<(), io::Error> {
        if !self.reader.entries.truncate(last) {
            return Ok(());
        }
        self.call(|done| Job::Truncate(behind(last.as_ref()), done)).await
    }

    async fn purge(&mut self, id: LogId) -> Result<(), io::Error> {
        self.reader.entries.purge(id);
        self.call(|done| Job::Purge(id.index() + 1, done)).await
    }
}
