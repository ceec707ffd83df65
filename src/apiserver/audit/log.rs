//! The log: one task owns the file, writes what came since it wrote last, and tells who waits.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::{Kind, Shutdown, Tasks};
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::PLUGIN_LOG;
use super::hook::Tokens;
use super::rotate::{self, LogFile, Rules};
use crate::audit::flags::{Batch, Log, Mode};
use crate::audit::metrics::Counts;

/// Lines that wait to be written while their requests wait; more wait before this queue.
const WAITING_MAX: usize = 1024;
/// Lines written without a look at anything else.
const WRITE_MAX: usize = 256;

/// A line, and who waits until it is written.
struct Job {
    line: Bytes,
    done: Option<oneshot::Sender<Result<(), String>>>,
}

/// The way to the writer.
#[derive(Debug, Clone)]
pub(super) struct Writer {
    sender: mpsc::Sender<Job>,
    /// Bytes that wait without anybody waiting for them.
    held: Arc<AtomicUsize>,
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
    /// Opens the log and starts its writer, which ends with `tasks` after it wrote all that was
    /// handed to it.
    ///
    /// # Errors
    /// Why the file cannot be written.
    pub(super) fn start(log: &Log, counts: &Arc<Counts>, tasks: &Tasks) -> io::Result<Self> {
        let (target, tidy) = match &log.path {
            None => (Target::Stdout, None),
            Some(path) => {
                let rules = Rules::new(path, log);
                let file = LogFile::open(rules.clone())?;
                (Target::File(Box::new(file)), Some(rules).filter(Rules::rotates))
            }
        };
        let (waiting, batch) = match log.output.mode {
            Mode::Batch => (log.output.batch.buffer_size, Some(log.output.batch.clone())),
            Mode::Blocking | Mode::BlockingStrict => (WAITING_MAX, None),
        };
        let (sender, receiver) = mpsc::channel(waiting);
        let held = Arc::new(AtomicUsize::new(0));
        let rotated = tidy.map(|rules| tidy_up(rules, tasks));
        let worker = Worker {
            target,
            receiver,
            held: Arc::clone(&held),
            counts: Arc::clone(counts),
            rotated,
            tokens: batch.as_ref().and_then(|batch| batch.throttle).map(|(r, n)| Tokens::new(r, n)),
            batch,
        };
        let shutdown = tasks.shutdown().clone();
        tasks.spawn(Kind::Critical, "audit log", worker.run(shutdown));
        Ok(Self { sender, held })
    }

    /// Writes a line and waits for it.
    ///
    /// # Errors
    /// Why it is not written.
    pub(super) async fn write(&self, line: Bytes) -> Result<(), String> {
        let (done, written) = oneshot::channel();
        let ended = |()| "the log has ended".to_owned();
        self.sender.send(Job { line, done: Some(done) }).await.map_err(|_| ended(()))?;
        written.await.map_err(|_| ended(()))?
    }

    /// Hands a line over without waiting; `false` when too much waits already.
    pub(super) fn offer(&self, line: Bytes) -> bool {
        let length = line.len();
        if !super::hold(&self.held, length) {
            return false;
        }
        let taken = self.sender.try_send(Job { line, done: None }).is_ok();
        if !taken {
            self.held.fetch_sub(length, Ordering::Relaxed);
        }
        taken
    }
}

struct Worker {
    target: Target,
    receiver: mpsc::Receiver<Job>,
    held: Arc<AtomicUsize>,
    counts: Arc<Counts>,
    rotated: Option<mpsc::Sender<()>>,
    /// Where nobody waits for lines: how many are gathered, and for how long.
    batch: Option<Batch>,
    tokens: Option<Tokens>,
}

impl Worker {
    async fn run(mut self, shutdown: Shutdown) -> Result<(), String> {
        let mut jobs = Vec::new();
        let mut closed = false;
        loop {
            let most = match (&self.tokens, &self.batch) {
                (Some(_), Some(batch)) => batch.max_size,
                _ => WRITE_MAX,
            };
            let count = tokio::select! {
                count = self.receiver.recv_many(&mut jobs, most) => count,
                () = shutdown.requested(), if !closed => {
                    // What was handed over is still written.
                    self.receiver.close();
                    closed = true;
                    continue;
                }
            };
            if count == 0 {
                // The server whose requests these are ends before its log does.
                shutdown.requested().await;
                return Ok(());
            }
            self.gather(&mut jobs, &shutdown).await;
            self.target = self.write(std::mem::take(&mut jobs)).await?;
        }
    }

    /// Waits until a batch is full, or its first line has waited for as long as one may.
    async fn gather(&mut self, jobs: &mut Vec<Job>, shutdown: &Shutdown) {
        let Some(Batch { max_size, max_wait, .. }) = self.batch else { return };
        if let Some(tokens) = &mut self.tokens {
            tokens.take(shutdown).await;
        }
        let end = base::clock::sleep(max_wait);
        tokio::pin!(end);
        while jobs.len() < max_size {
            let room = max_size - jobs.len();
            tokio::select! {
                count = self.receiver.recv_many(jobs, room) => if count == 0 { return },
                () = &mut end => return,
                () = shutdown.requested() => return,
            }
        }
    }

    async fn write(&mut self, jobs: Vec<Job>) -> Result<Target, String> {
        let mut target = std::mem::replace(&mut self.target, Target::Stdout);
        let written = base::tasks::blocking(move || {
            let outcomes: Vec<_> = jobs
                .into_iter()
                .map(|job| {
                    let outcome = target.write(&job.line).map_err(|e| e.to_string());
                    (job, outcome)
                })
                .collect();
            (target, outcomes)
        });
        let (mut target, outcomes) = written.await.map_err(|e| e.to_string())?;
        for (job, outcome) in outcomes {
            if let Err(why) = &outcome {
                self.counts.error(PLUGIN_LOG, 1, why);
            }
            match job.done {
                // The caller may be gone.
                Some(done) => drop(done.send(outcome)),
                None => {
                    self.held.fetch_sub(job.line.len(), Ordering::Relaxed);
                }
            }
        }
        if let (Target::File(file), Some(rotated)) = (&mut target, &self.rotated)
            && file.take_rotated()
        {
            // A full queue means that it will look anyway.
            let _ = rotated.try_send(());
        }
        Ok(target)
    }
}

/// Looks after old files: now, and whenever it is told that there is a new one.
fn tidy_up(rules: Rules, tasks: &Tasks) -> mpsc::Sender<()> {
    let (sender, mut receiver) = mpsc::channel(1);
    let shutdown = tasks.shutdown().clone();
    tasks.spawn(Kind::Request, "old audit logs", async move {
        loop {
            let (rules, stop) = (rules.clone(), shutdown.clone());
            let tidied = base::tasks::blocking(move || rotate::tidy(&rules, &stop)).await;
            match tidied {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "old audit logs are not all looked after"),
                Err(error) => return Err(error.to_string()),
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
    use crate::audit::flags::Settings;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_log_that_nobody_writes_to_any_more_stops_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let given = [format!("audit-log-path={}", folder.path().join("audit.log").display())];
        let settings = Settings::of(&given).unwrap().log.unwrap();
        let tasks = Tasks::new(Shutdown::new());
        drop(Writer::start(&settings, &Arc::default(), &tasks).unwrap());
        base::clock::sleep(Duration::from_secs(1)).await;
        assert_eq!((tasks.fault(), tasks.shutdown().is_requested()), (None, false));
        tasks.shutdown().request();
        assert!(tasks.drain(Duration::from_secs(1)).await.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn lines_that_nobody_waits_for_are_gathered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let given = [
            format!("audit-log-path={}", path.display()),
            "audit-log-mode=batch".to_owned(),
            "audit-log-batch-max-size=3".to_owned(),
            "audit-log-batch-max-wait=30s".to_owned(),
        ];
        let settings = Settings::of(&given).unwrap().log.unwrap();
        let shutdown = Shutdown::new();
        let tasks = Tasks::new(shutdown.clone());
        let writer = Writer::start(&settings, &Arc::default(), &tasks).unwrap();
        let read = || std::fs::read_to_string(&path).unwrap();
        let until = async |wanted: &str| {
            let began = base::clock::now();
            while read() != wanted {
                base::clock::sleep(Duration::from_millis(100)).await;
            }
            began.elapsed()
        };
        assert!(writer.offer("a\n".into()));
        let waited = until("a\n").await;
        assert!((29..32).contains(&waited.as_secs()), "one line waits {waited:?}");
        for line in ["b\n", "c\n", "d\n"] {
            assert!(writer.offer(line.into()));
        }
        let waited = until("a\nb\nc\nd\n").await;
        assert!(waited.as_secs() < 29, "a full batch waits {waited:?}");
        assert!(writer.offer("e\n".into()));
        drop(writer);
        shutdown.request();
        assert!(tasks.drain(Duration::from_secs(60)).await.is_empty());
        assert_eq!(read(), "a\nb\nc\nd\ne\n");
    }
}
