//! Starting the voter: openraft over what recovery found, leadership, and the tasks around it.

use std::sync::Arc;

use base::tasks::{Kind, Tasks, blocking};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::{EmptyNode, SnapshotPolicy};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::checkpoints::Checkpoints;
use super::engine::RaftEngine;
use super::log_store::{LogReader, LogStore};
use super::machine::{Machine, Place};
use super::peers::Peers;
use super::{Raft, behind};
use crate::backend::{Engine, Shared};
use crate::command::Command;
use crate::disk::{
    DiskWork, Entries, JOBS_MAX, Job, LAZY_SYNC, Lock, OpenError, Recovered, Status, Writer,
};
use crate::kv::{Durability, StoreError};

/// How to start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    /// Whether lazy durability is honoured.
    pub(crate) lazy: bool,
    /// Where blocking work runs.
    pub(crate) work: DiskWork,
}

/// What openraft is built of, and what is shared with it.
pub(super) struct Parts {
    pub(super) node: u64,
    pub(super) log: LogStore,
    pub(super) machine: Machine,
    pub(super) place: Arc<Place>,
    status: Arc<Status>,
    checkpoints: Arc<Checkpoints>,
    jobs: mpsc::Sender<Job>,
}

/// Starts the log's writer and puts openraft's parts over it.
pub(super) fn assemble(
    recovered: Recovered,
    work: DiskWork,
    lock: &Arc<Option<Lock>>,
    tasks: &Tasks,
) -> Parts {
    let Recovered { state, applied, log, view, log_bytes, checkpoint, ceiling: _ } = recovered;
    let (node, disk, cluster) = (log.meta.node, Arc::clone(log.disk()), log.cluster());
    let place = Arc::new(Place::new(Arc::new(Shared::new(state)), applied));
    let entries = Arc::new(Entries(Mutex::new(view)));
    let writer = Writer::new(log, Arc::clone(&entries));
    let status = Arc::clone(writer.status());
    let checkpoints = Arc::new(Checkpoints::new(
        Arc::clone(&disk),
        cluster,
        work,
        Arc::clone(&status),
        checkpoint,
        log_bytes,
    ));
    let (jobs, waiting) = mpsc::channel(JOBS_MAX);
    spawn_writer(writer, waiting, work, Arc::clone(lock), tasks);
    let reader = LogReader { entries: Arc::clone(&entries), disk, work };
    let log = LogStore::new(reader, jobs.clone());
    let machine =
        Machine { place: Arc::clone(&place), entries, checkpoints: Arc::clone(&checkpoints) };
    Parts { node, log, machine, place, status, checkpoints, jobs }
}

/// Goes on where recovery ended, and resolves once this member leads and has applied its whole log. Its tasks end in order
/// when `tasks` shuts down; `lock` is held until none of them touches the directory.
///
/// # Errors
/// [`OpenError::Io`].
pub(crate) async fn start(
    recovered: Recovered,
    options: Options,
    lock: Option<Lock>,
    tasks: &Tasks,
) -> Result<(Arc<Shared>, Arc<RaftEngine>), OpenError> {
    let (ceiling, cluster) = (recovered.ceiling, recovered.log.cluster());
    let lock = Arc::new(lock);
    let Parts { node, log, machine, place, status, checkpoints, jobs } =
        assemble(recovered, options.work, &lock, tasks);
    let failed = |error: &dyn std::fmt::Display| {
        let known = status.stopped.lock().as_ref().map(ToString::to_string);
        let text = known.unwrap_or_else(|| error.to_string());
        let source = std::io::Error::other(text);
        OpenError::Io { action: "start", file: "the log".to_owned(), source }
    };
    let config = Arc::new(config(cluster.to_string()).validate().map_err(|e| failed(&e))?);
    let raft = Raft::new(node, config, Peers, log, machine).await.map_err(|e| failed(&e))?;
    let term = match lead(&raft, node).await {
        Ok(term) => term,
        Err(error) => {
            // Its tasks would hold on to the directory; the error that counts is the first.
            let _ = raft.shutdown().await;
            return Err(failed(&error));
        }
    };
    let shared = Arc::clone(&place.shared);
    let engine = RaftEngine::new(raft, jobs, place, Arc::clone(&status), checkpoints, options.lazy);
    let engine = Arc::new(engine);
    engine.set_term(term);
    spawn_tasks(&engine, lock, tasks);
    let revision = shared.state.read().revision();
    if ceiling > revision {
        let raise = Command::Raise { revision: ceiling };
        engine.submit(raise, Durability::Synced).await.map_err(|e| failed(&e))?;
    }
    Ok((shared, engine))
}

/// Nothing ticks and nobody is sent heartbeats while there is one voter: it leads from its start to its end.
fn config(cluster: String) -> openraft::Config {
    openraft::Config {
        cluster_name: cluster,
        enable_tick: false,
        enable_heartbeat: false,
        enable_elect: false,
        // A new term for each start, also after one whose lazy entries were lost.
        enable_leader_restore: Some(false),
        enable_pre_vote: Some(true),
        // Checkpoints are written when the log has outgrown the state, and the log behind them goes at once.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: 0,
        ..openraft::Config::default()
    }
}

/// Makes this member the leader, of a new cluster where there is none, and waits until it has applied its whole log; the
/// term.
async fn lead(raft: &Raft, node: u64) -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
    if raft.is_initialized().await? {
        raft.trigger().elect(false).await?;
    } else {
        raft.initialize(std::collections::BTreeMap::from([(node, EmptyNode::new())])).await?;
    }
    let ready = |metrics: &openraft::RaftMetrics<super::Types>| {
        metrics.state.is_leader()
            && metrics.last_log_index.is_some()
            && behind(metrics.last_applied.as_ref()) == metrics.last_log_index.map_or(0, |i| i + 1)
    };
    Ok(raft.wait(None).metrics(ready, "the only voter leads").await?.current_term)
}

fn spawn_writer(
    writer: Writer,
    waiting: mpsc::Receiver<Job>,
    work: DiskWork,
    lock: Arc<Option<Lock>>,
    tasks: &Tasks,
) {
    let status = Arc::clone(writer.status());
    tasks.spawn(Kind::Critical, "store log", async move {
        let ended = match work {
            DiskWork::Threads => blocking(move || writer.run(waiting)).await,
            #[cfg(test)]
            DiskWork::Here => Ok(writer.run_here(waiting).await),
        };
        let ended = ended.unwrap_or_else(|panic| {
            Err(StoreError::Stopped(format!("the log's writer failed: {panic}")))
        });
        if let Err(error) = &ended {
            status.stop(error);
        }
        drop(lock);
        ended
    });
}

fn spawn_tasks(engine: &Arc<RaftEngine>, lock: Arc<Option<Lock>>, tasks: &Tasks) {
    let (proposed, all_proposed) = oneshot::channel();
    let proposing = Arc::clone(engine);
    tasks.spawn(Kind::Critical, "store proposals", async move {
        let ended = Arc::clone(&proposing).propose_all().await;
        // Without a receiver the end was not awaited.
        let _: Result<(), ()> = proposed.send(());
        ended
    });
    tasks.spawn(
        Kind::Critical,
        "store checkpoints",
        checkpoints(Arc::clone(engine), lock, tasks.clone()),
    );
    tasks.spawn(
        Kind::Critical,
        "store raft",
        supervise(Arc::clone(engine), all_proposed, tasks.clone()),
    );
}

/// Follows openraft and the deadline of lazy writes; ends everything in order at shutdown, and at once when openraft ends.
async fn supervise(
    engine: Arc<RaftEngine>,
    all_proposed: oneshot::Receiver<()>,
    tasks: Tasks,
) -> Result<(), StoreError> {
    let mut server = engine.raft().server_metrics();
    loop {
        engine.set_term(server.borrow_and_update().vote.leader_id().term);
        let since = *engine.status.lazy_since.lock();
        let deadline = async {
            match since {
                Some(since) => tokio::time::sleep_until(since + LAZY_SYNC).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = tasks.shutdown().requested() => break,
            changed = server.changed() => if changed.is_err() {
                let error = match &engine.raft().metrics().borrow_watched().running_state {
                    Err(error) => engine.fatal(error),
                    Ok(()) => StoreError::Stopped("the consensus ended unexpectedly".to_owned()),
                };
                engine.status.stop(&error);
                engine.end();
                return Err(error);
            },
            () = engine.status.lazy.notified() => {}
            () = deadline => {
                let (done, synced) = oneshot::channel();
                if engine.jobs().send(Job::Sync(done)).await.is_ok() {
                    // Whatever became of it: the writer's own task says when it cannot go on.
                    let _ = synced.await;
                }
            }
        }
    }
    engine.close();
    // Where the task has ended already there is nothing to wait for.
    let _: Result<(), _> = all_proposed.await;
    let ended = engine.raft().shutdown().await;
    let (done, stopped) = oneshot::channel();
    let stopped = match engine.jobs().send(Job::Stop(done)).await {
        Ok(()) => stopped.await.map_err(|_| engine.stop_reason()),
        Err(_) => Err(engine.stop_reason()),
    };
    engine.end();
    ended
        .map_err(|error| StoreError::Stopped(format!("the consensus did not end well: {error}")))?;
    stopped?.map_err(|error| StoreError::Stopped(error.to_string()))
}

/// Writes checkpoints when the log has outgrown the state, and lets openraft drop the log behind them.
async fn checkpoints(
    engine: Arc<RaftEngine>,
    lock: Arc<Option<Lock>>,
    tasks: Tasks,
) -> Result<(), StoreError> {
    loop {
        tokio::select! {
            () = engine.checkpoints.due.notified() => {}
            () = tasks.shutdown().requested() => break,
        }
        if engine.checkpoints.is_due(&engine.place) {
            write_checkpoint(&engine).await;
        }
    }
    drop(lock);
    Ok(())
}

/// Writes a checkpoint now; what fails is tried again later.
pub(crate) async fn write_checkpoint(engine: &RaftEngine) {
    match engine.checkpoints.write(&engine.place).await {
        // An error means that openraft has ended, which its own task says.
        Ok(()) => drop(engine.raft().trigger().snapshot().await),
        Err(error) => {
            tracing::warn!(%error, "cannot write a checkpoint of the store, the log keeps growing until the next try");
        }
    }
}
