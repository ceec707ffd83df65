//! Writes events to the log: one task owns the file and writes all pending lines at once.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::{Kind, Shutdown, Tasks};
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::PLUGIN_LOG;
use super::error::{LogError, TaskError};
use super::hook::TokenBucket;
use super::rotate::{self, LogFile, Rules};
use crate::audit::flags::{Batch, Log, Mode};
use crate::audit::metrics::AuditMetrics;

/// The length of the queue in the blocking modes; further requests wait for a place in it.
const QUEUE_MAX: usize = 1024;
/// The maximum number of lines per write.
const WRITE_MAX: usize = 256;

/// A line to write.
struct PendingLine {
    line: Bytes,
    /// Receives the outcome; `None` if the request does not wait for it.
    done: Option<oneshot::Sender<io::Result<()>>>,
}

/// The handle of the task that writes.
#[derive(Debug, Clone)]
pub(super) struct Writer {
    sender: mpsc::Sender<PendingLine>,
    /// The size of pending lines whose requests do not wait.
    pending_bytes: Arc<AtomicUsize>,
}

enum Target {
    File(Box<LogFile>),
    Stdout,
}

impl Target {
    fn write(&mut self, line: &Bytes) -> io::Result<()> {
        match self {
            Self::File(file) => file.write(line),
            Self::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(line).and_then(|()| out.flush())
            }
        }
    }
}

impl Writer {
    /// Opens the log and starts the task, which ends with `tasks` after it has written all pending
    /// lines.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub(super) fn start(log: &Log, metrics: &Arc<AuditMetrics>, tasks: &Tasks) -> io::Result<Self> {
        let (target, rotation) = match &log.path {
            None => (Target::Stdout, None),
            Some(path) => {
                let rules = Rules::new(path, log);
                let file = LogFile::open(rules.clone())?;
                (Target::File(Box::new(file)), Some(rules).filter(Rules::rotates))
            }
        };
        let (capacity, batch) = match log.output.mode {
            Mode::Batch => (log.output.batch.buffer_size, Some(log.output.batch.clone())),
            Mode::Blocking | Mode::BlockingStrict => (QUEUE_MAX, None),
        };
        let (sender, receiver) = mpsc::channel(capacity);
        let pending_bytes = Arc::new(AtomicUsize::new(0));
        let throttle = batch.as_ref().and_then(|batch| batch.throttle);
        let worker = Worker {
            target,
            receiver,
            pending_bytes: Arc::clone(&pending_bytes),
            metrics: Arc::clone(metrics),
            rotated: rotation.map(|rules| start_tidying(rules, tasks)),
            tokens: throttle.map(|(rate, burst)| TokenBucket::new(rate, burst)),
            batch,
        };
        let shutdown = tasks.shutdown().clone();
        tasks.spawn(Kind::Critical, "audit log", worker.run(shutdown));
        Ok(Self { sender, pending_bytes })
    }

    /// Writes a line and waits until it is written.
    ///
    /// # Errors
    /// If the line is not written.
    pub(super) async fn write(&self, line: Bytes) -> Result<(), LogError> {
        let (done, written) = oneshot::channel();
        let pending = PendingLine { line, done: Some(done) };
        self.sender.send(pending).await.map_err(|_| LogError::Ended)?;
        Ok(written.await.map_err(|_| LogError::Ended)??)
    }

    /// Queues a line without waiting; returns `false` if the queue is full.
    pub(super) fn offer(&self, line: Bytes) -> bool {
        let length = line.len();
        if !super::reserve_bytes(&self.pending_bytes, length) {
            return false;
        }
        let is_queued = self.sender.try_send(PendingLine { line, done: None }).is_ok();
        if !is_queued {
            self.pending_bytes.fetch_sub(length, Ordering::Relaxed);
        }
        is_queued
    }
}

struct Worker {
    target: Target,
    receiver: mpsc::Receiver<PendingLine>,
    pending_bytes: Arc<AtomicUsize>,
    metrics: Arc<AuditMetrics>,
    /// Wakes the task that tidies rotated files.
    rotated: Option<mpsc::Sender<()>>,
    /// The size and delay of batches; `None` in the blocking modes.
    batch: Option<Batch>,
    tokens: Option<TokenBucket>,
}

impl Worker {
    async fn run(mut self, shutdown: Shutdown) -> Result<(), TaskError> {
        let mut lines = Vec::new();
        let mut is_closed = false;
        loop {
            let max = match (&self.tokens, &self.batch) {
                (Some(_), Some(batch)) => batch.max_size,
                _ => WRITE_MAX,
            };
            let count = tokio::select! {
                count = self.receiver.recv_many(&mut lines, max) => count,
                () = shutdown.requested(), if !is_closed => {
                    // Lines in the queue are still written.
                    self.receiver.close();
                    is_closed = true;
                    continue;
                }
            };
            if count == 0 {
                // All senders are dropped; a critical task must not end before the shutdown.
                shutdown.requested().await;
                return Ok(());
            }
            self.fill_batch(&mut lines, &shutdown).await;
            self.target = self.write(std::mem::take(&mut lines)).await?;
        }
    }

    /// Waits until the batch is full, or its first line has waited for `max_wait`.
    async fn fill_batch(&mut self, lines: &mut Vec<PendingLine>, shutdown: &Shutdown) {
        let Some(Batch { max_size, max_wait, .. }) = self.batch else { return };
        if let Some(tokens) = &mut self.tokens {
            tokens.take(shutdown).await;
        }
        let end = base::clock::sleep(max_wait);
        tokio::pin!(end);
        while lines.len() < max_size {
            let room = max_size - lines.len();
            tokio::select! {
                count = self.receiver.recv_many(lines, room) => if count == 0 { return },
                () = &mut end => return,
                () = shutdown.requested() => return,
            }
        }
    }

    /// Writes lines and returns the target, which the blocking thread owns meanwhile.
    async fn write(&mut self, lines: Vec<PendingLine>) -> Result<Target, TaskError> {
        let mut target = std::mem::replace(&mut self.target, Target::Stdout);
        let written = base::tasks::blocking(move || {
            let outcomes: Vec<_> = lines
                .into_iter()
                .map(|pending| {
                    let outcome = target.write(&pending.line);
                    (pending, outcome)
                })
                .collect();
            (target, outcomes)
        });
        let (mut target, outcomes) = written.await?;
        for (pending, outcome) in outcomes {
            if let Err(error) = &outcome {
                self.metrics.events_lost(PLUGIN_LOG, 1, error);
            }
            match pending.done {
                // The request may have ended.
                Some(done) => drop(done.send(outcome)),
                None => {
                    self.pending_bytes.fetch_sub(pending.line.len(), Ordering::Relaxed);
                }
            }
        }
        if let (Target::File(file), Some(rotated)) = (&mut target, &self.rotated)
            && file.take_rotated()
        {
            // If the queue is full, the task has been woken already.
            let _ = rotated.try_send(());
        }
        Ok(target)
    }
}

/// Starts a task that removes and compresses rotated files: now, and on each message.
fn start_tidying(rules: Rules, tasks: &Tasks) -> mpsc::Sender<()> {
    let (sender, mut receiver) = mpsc::channel(1);
    let shutdown = tasks.shutdown().clone();
    tasks.spawn(Kind::Request, "old audit logs", async move {
        loop {
            let (rules, stop) = (rules.clone(), shutdown.clone());
            let tidied = base::tasks::blocking(move || rotate::tidy(&rules, &stop)).await;
            match tidied {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(%error, "audit: cannot remove or compress rotated log files");
                }
                Err(error) => return Err(error),
            }
            tokio::select! {
                next = receiver.recv() => if next.is_none() { return Ok(()) },
                () = shutdown.requested() => return Ok(()),
            }
        }
    });
    sender
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::flags::AuditFlags;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn dropping_the_writer_does_not_stop_the_server() {
        let folder = tempfile::tempdir().unwrap();
        let arguments = [format!("audit-log-path={}", folder.path().join("audit.log").display())];
        let log = AuditFlags::parse(&arguments).unwrap().log.unwrap();
        let tasks = Tasks::new(Shutdown::new());
        drop(Writer::start(&log, &Arc::default(), &tasks).unwrap());
        base::clock::sleep(Duration::from_secs(1)).await;
        assert_eq!((tasks.fault(), tasks.shutdown().is_requested()), (None, false));
        tasks.shutdown().request();
        assert!(tasks.drain(Duration::from_secs(1)).await.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn lines_in_batch_mode_wait_for_a_full_batch_or_max_wait() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let arguments = [
            format!("audit-log-path={}", path.display()),
            "audit-log-mode=batch".to_owned(),
            "audit-log-batch-max-size=3".to_owned(),
            "audit-log-batch-max-wait=30s".to_owned(),
        ];
        let log = AuditFlags::parse(&arguments).unwrap().log.unwrap();
        let shutdown = Shutdown::new();
        let tasks = Tasks::new(shutdown.clone());
        let writer = Writer::start(&log, &Arc::default(), &tasks).unwrap();
        let read = || std::fs::read_to_string(&path).unwrap();
        let wait_for = async |expected: &str| {
            let started = base::clock::now();
            while read() != expected {
                base::clock::sleep(Duration::from_millis(100)).await;
            }
            started.elapsed()
        };
        assert!(writer.offer("a\n".into()));
        let waited = wait_for("a\n").await;
        assert!((29..32).contains(&waited.as_secs()), "one line waits {waited:?}");
        for line in ["b\n", "c\n", "d\n"] {
            assert!(writer.offer(line.into()));
        }
        let waited = wait_for("a\nb\nc\nd\n").await;
        assert!(waited.as_secs() < 29, "a full batch waits {waited:?}");
        assert!(writer.offer("e\n".into()));
        drop(writer);
        shutdown.request();
        assert!(tasks.drain(Duration::from_secs(60)).await.is_empty());
        assert_eq!(read(), "a\nb\nc\nd\ne\n");
    }
}
