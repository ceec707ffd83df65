//! openraft's view of the log: appends and votes go to the one writer, reads come from memory or from the segments.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use tokio::sync::{mpsc, oneshot};

use super::{Entry, LogId, Types, Vote, behind};
use crate::disk::{Disk, DiskWork, Entries, Job};

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
    /// The log that `jobs`' writer writes.
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
    ) -> Result<Vec<Entry>, io::Error> {
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

    /// Written with the next entry: what a crash forgets of it is committed again by the next leader.
    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        self.reader.entries.0.lock().committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        Ok(self.reader.entries.0.lock().committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + Send,
        I::IntoIter: Send,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
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
