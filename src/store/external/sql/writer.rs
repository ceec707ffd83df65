//! The single task that writes: it plans queued commands, makes them durable together, and applies
//! them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use base::{Backoff, Shutdown};
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::database::Database;
use super::plan::{Changes, Planned, plan, steps};
use super::session::SqlError;
use super::status::Status;
use crate::contract::StoreError;
use crate::local::shared::SharedState;
use crate::mvcc::{Command, Outcome, reads_any};

/// Maximum number of commands per database transaction.
const BATCH_MAX: usize = 128;
/// Maximum bytes of values per database transaction; a larger value is written alone.
const BATCH_BYTES: usize = 1024 * 1024;
/// Interval of checks of an idle connection over a network, and of its lock.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum time to reconnect before the store stops.
const RECOVERY: Duration = Duration::from_secs(30);
/// First and longest wait between attempts.
const WAIT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Receiver of a result.
pub(super) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// What the writer is asked.
#[derive(Debug)]
pub(super) enum Job {
    Command(Command, Reply<Outcome>),
    /// Checks whether this server still holds the database.
    Check(Reply<()>),
    Defragment(Reply<()>),
}

/// Commands that become durable together.
#[derive(Debug, Default)]
struct Batch {
    changes: Changes,
    commands: Vec<Command>,
    /// Number of commands per caller.
    callers: Vec<(usize, Reply<Outcome>)>,
    checks: Vec<Reply<()>>,
    keys: Vec<Bytes>,
    bytes: usize,
    /// No command may join the batch.
    alone: bool,
}

impl Batch {
    /// Whether `command` can be planned on the state before this batch.
    fn accepts(&self, command: &Command) -> bool {
        if self.callers.is_empty() {
            return true;
        }
        let Command::Txn(txn) = command else { return false };
        let room = !self.alone && self.callers.len() < BATCH_MAX && self.bytes < BATCH_BYTES;
        room && !reads_any(txn, &mut |range| self.keys.iter().any(|key| range.contains(key)))
    }

    fn add(&mut self, planned: Planned, reply: Reply<Outcome>) {
        let Planned { changes, commands } = planned;
        self.alone |= !matches!(commands.as_slice(), [Command::Txn(_)]);
        for row in &changes.rows {
            self.keys.push(Bytes::copy_from_slice(row.name.as_bytes()));
            self.bytes += row.value.as_ref().map_or(0, Bytes::len);
        }
        self.changes.rows.extend(changes.rows);
        self.changes.leases.extend(changes.leases);
        self.callers.push((commands.len(), reply));
        self.commands.extend(commands);
    }

    fn refuse(self, error: &StoreError) {
        // The receiver may be gone.
        self.callers.into_iter().for_each(|(_, reply)| drop(reply.send(Err(error.clone()))));
        self.checks.into_iter().for_each(|reply| drop(reply.send(Err(error.clone()))));
    }
}

/// Whether changes whose result was lost were committed.
enum CommitOutcome {
    Yes,
    No,
}

/// The writer of a database.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) database: Database,
    pub(super) shared: Arc<SharedState>,
    pub(super) status: Arc<Status>,
    pub(super) jobs: mpsc::Receiver<Job>,
    pub(super) shutdown: Shutdown,
    /// The command that did not fit into the previous batch.
    pub(super) held_back: Option<Job>,
}

impl Writer {
    /// Runs until shutdown, and then drains the queue.
    ///
    /// # Errors
    /// The error that stopped the store.
    pub(super) async fn run(mut self) -> Result<(), StoreError> {
        let outcome = self.work().await;
        let reason = match &outcome {
            Ok(()) => StoreError::Stopped("the server is stopping".to_owned()),
            Err(error) => error.clone(),
        };
        self.status.stop(&reason);
        self.shared.end_watches(&reason);
        self.jobs.close();
        while let Some(job) = self.held_back.take().or_else(|| self.jobs.try_recv().ok()) {
            match job {
                Job::Command(_, reply) => drop(reply.send(Err(reason.clone()))),
                Job::Check(reply) | Job::Defragment(reply) => drop(reply.send(Err(reason.clone()))),
            }
        }
        if let Err(error) = self.database.close().await {
            tracing::debug!(%error, "cannot close the connection to the database cleanly");
        }
        outcome
    }

    async fn work(&mut self) -> Result<(), StoreError> {
        loop {
            let remote = self.database.dialect().remote;
            let job = match self.held_back.take() {
                Some(job) => Some(job),
                None => tokio::select! {
                    biased;
                    job = self.jobs.recv() => job,
                    () = self.shutdown.requested() => return self.last().await,
                    () = base::clock::sleep(LOOK_INTERVAL), if remote => {
                        self.check().await?;
                        continue;
                    }
                },
            };
            let Some(job) = job else { return Ok(()) };
            self.one(job).await?;
        }
    }

    /// Commands queued before the shutdown are completed.
    async fn last(&mut self) -> Result<(), StoreError> {
        while let Some(job) = self.held_back.take().or_else(|| self.jobs.try_recv().ok()) {
            self.one(job).await?;
        }
        Ok(())
    }

    async fn one(&mut self, job: Job) -> Result<(), StoreError> {
        match job {
            Job::Command(Command::Compact(revision), reply) => self.compact(revision, reply).await,
            Job::Defragment(reply) => {
                let done = self.database.defragment().await;
                self.update_size().await;
                let notified = done.map_err(|e| StoreError::Invalid(e.to_string()));
                drop(reply.send(notified));
                Ok(())
            }
            job => {
                let batch = self.gather(job);
                self.commit(batch).await
            }
        }
    }

    /// Collects commands for the next database transaction, in order, until one depends on their
    /// effect.
    fn gather(&mut self, first: Job) -> Batch {
        let mut batch = Batch::default();
        let names = self.database.dialect().names;
        let shared = Arc::clone(&self.shared);
        let state = shared.state.read();
        let mut next = Some(first);
        while let Some(job) = next {
            match job {
                Job::Check(reply) => batch.checks.push(reply),
                // A command whose caller has given up must not run.
                Job::Command(_, reply) if reply.is_closed() => {}
                Job::Command(command, reply)
                    if !matches!(command, Command::Compact(_)) && batch.accepts(&command) =>
                {
                    let rows = i64::try_from(batch.changes.rows.len()).unwrap_or(i64::MAX);
                    let revision = state.revision().saturating_add(rows).saturating_add(1);
                    match plan(&state, command, revision, names) {
                        Ok(planned) => batch.add(planned, reply),
                        Err(error) => drop(reply.send(Err(error))),
                    }
                }
                job => {
                    self.held_back = Some(job);
                    break;
                }
            }
            next = self.jobs.try_recv().ok();
        }
        batch
    }

    async fn commit(&mut self, batch: Batch) -> Result<(), StoreError> {
        if batch.changes.is_empty() {
            if !batch.checks.is_empty() {
                if let Err(error) = self.check().await {
                    batch.refuse(&error);
                    return Err(error);
                }
            }
            return self.apply(batch);
        }
        loop {
            let begun = base::clock::now();
            let written = self.database.write(&batch.changes).await;
            self.status.writes.observe(begun.elapsed());
            let failed = match written {
                Ok(()) => return self.apply(batch),
                Err(SqlError::Lost(why)) => {
                    let last = batch.changes.rows.last().map(|row| row.id);
                    match self.recover(&why, last).await {
                        Ok(CommitOutcome::Yes) => return self.apply(batch),
                        Ok(CommitOutcome::No) => continue,
                        Err(error) => error,
                    }
                }
                Err(SqlError::Full(why)) => {
                    batch.refuse(&StoreError::NoSpace(why));
                    return Ok(());
                }
                Err(SqlError::Taken(why)) => match self.check().await {
                    Err(error) => error,
                    Ok(()) if batch.callers.len() > 1 => {
                        // A name that the database considers equal to another one.
                        return self.apply_one_by_one(batch).await;
                    }
                    Ok(()) => {
                        let name = self.database.dialect().name;
                        let text =
                            format!("{name} considers the key equal to an existing one: {why}");
                        batch.refuse(&StoreError::Invalid(text));
                        return Ok(());
                    }
                },
                Err(error) => StoreError::Stopped(format!("{}: {error}", self.database.endpoint())),
            };
            batch.refuse(&failed);
            return Err(failed);
        }
    }

    /// Applies durable commands, and answers.
    fn apply(&mut self, batch: Batch) -> Result<(), StoreError> {
        let before = self.shared.state.read().revision();
        let rows = i64::try_from(batch.changes.rows.len()).unwrap_or(i64::MAX);
        let mut outcomes = self.shared.apply(batch.commands.iter(), || {}).into_iter();
        let after = self.shared.state.read().revision();
        self.status.applied.fetch_add(batch.callers.len() as u64, Relaxed);
        if after != before.saturating_add(rows) {
            let text = format!(
                "the database has {rows} changes after revision {before}, but the state is at \
                 {after}"
            );
            return Err(StoreError::Stopped(text));
        }
        for (commands, reply) in batch.callers {
            let none = || Err(StoreError::Stopped("no outcome for a command".to_owned()));
            let last = outcomes.by_ref().take(commands).last().unwrap_or_else(none);
            drop(reply.send(last));
        }
        batch.checks.into_iter().for_each(|reply| drop(reply.send(Ok(()))));
        Ok(())
    }

    async fn compact(&mut self, revision: i64, reply: Reply<Outcome>) -> Result<(), StoreError> {
        let names = self.database.dialect().names;
        let (from, planned) = {
            let state = self.shared.state.read();
            (state.compacted(), plan(&state, Command::Compact(revision), 0, names))
        };
        let planned = match planned {
            Ok(planned) => planned,
            Err(error) => {
                drop(reply.send(Err(error)));
                return Ok(());
            }
        };
        for (begin, end) in steps(from, revision) {
            while let Err(failed) = self.database.compact(begin, end).await {
                let error = match failed {
                    SqlError::Lost(why) => match self.recover(&why, None).await {
                        // Repeating it is harmless.
                        Ok(_) => continue,
                        Err(error) => error,
                    },
                    SqlError::Full(why) => {
                        drop(reply.send(Err(StoreError::NoSpace(why))));
                        return Ok(());
                    }
                    error => StoreError::Stopped(format!("{}: {error}", self.database.endpoint())),
                };
                drop(reply.send(Err(error.clone())));
                return Err(error);
            }
        }
        self.update_size().await;
        let mut batch = Batch::default();
        batch.add(planned, reply);
        self.apply(batch)
    }

    /// Checks that the database is reachable and contains this server's last row.
    async fn check(&mut self) -> Result<(), StoreError> {
        let newest = loop {
            match self.database.newest().await {
                Ok(newest) => break newest,
                Err(SqlError::Lost(why)) => self.recover(&why, None).await.map(drop)?,
                Err(error) => {
                    let text = format!("{}: {error}", self.database.endpoint());
                    return Err(StoreError::Stopped(text));
                }
            }
        };
        self.is_ours(newest, None).map(drop)
    }

    fn is_ours(&self, newest: i64, expected: Option<i64>) -> Result<CommitOutcome, StoreError> {
        let revision = self.shared.state.read().revision();
        if expected == Some(newest) {
            return Ok(CommitOutcome::Yes);
        }
        // A compaction of k3s may have dropped the newest row, if that was a deletion.
        if newest <= revision {
            return Ok(CommitOutcome::No);
        }
        let text = format!(
            "another program writes to {}: it is at revision {newest}, and this server wrote up to {revision}; \
             let one server at a time use it",
            self.database.endpoint()
        );
        Err(StoreError::Stopped(text))
    }

    /// Reconnects, for a bounded time, and determines whether changes up to `last` were committed.
    async fn recover(&mut self, why: &str, last: Option<i64>) -> Result<CommitOutcome, StoreError> {
        let endpoint = self.database.endpoint().clone();
        tracing::warn!(%endpoint, error = why, "the connection to the datastore is lost, \
            reconnecting");
        let begun = base::clock::now();
        let mut backoff = Backoff::new(WAIT.0, WAIT.1);
        let mut error = why.to_owned();
        while begun.elapsed() < RECOVERY {
            let again = async {
                self.database.reopen().await?;
                self.database.newest().await
            };
            match again.await {
                Ok(newest) => {
                    tracing::info!(%endpoint, took = ?begun.elapsed(), "the datastore is connected \
                        again");
                    return self.is_ours(newest, last);
                }
                Err(classify) => error = classify.to_string(),
            }
            if !backoff.wait(&self.shutdown).await {
                break;
            }
        }
        Err(StoreError::Stopped(format!("{endpoint}: {error}")))
    }

    /// Writes the commands of a batch one by one.
    async fn apply_one_by_one(&mut self, batch: Batch) -> Result<(), StoreError> {
        let Batch { commands, callers, checks, .. } = batch;
        let names = self.database.dialect().names;
        // Each of them is a single command; larger ones are written alone anyway.
        for (command, (_, reply)) in commands.into_iter().zip(callers) {
            let planned = {
                let state = self.shared.state.read();
                plan(&state, command, state.revision().saturating_add(1), names)
            };
            match planned {
                Ok(planned) => {
                    let mut single = Batch::default();
                    single.add(planned, reply);
                    Box::pin(self.commit(single)).await?;
                }
                Err(error) => drop(reply.send(Err(error))),
            }
        }
        checks.into_iter().for_each(|reply| drop(reply.send(Ok(()))));
        Ok(())
    }

    /// Updates the size of the database.
    pub(super) async fn update_size(&mut self) {
        match self.database.size().await {
            Ok(bytes) => self.status.bytes.store(bytes, Relaxed),
            Err(error) => tracing::debug!(%error, "cannot read the size of the database"),
        }
    }
}
