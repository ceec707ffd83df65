//! Starts a member: openraft over the recovered log, and the tasks around it.

use std::sync::Arc;

use base::tasks::{Kind, Tasks, blocking};
use openraft::SnapshotPolicy;
use openraft::async_runtime::watch::WatchReceiver;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::applied_state::AppliedState;
use super::checkpoints::Checkpoints;
use super::engine::RaftEngine;
use super::log_store::{LogReader, LogStore};
use super::members::Members;
use super::network::NetworkFactory;
use super::snapshot_receiver::SnapshotReceiver;
use super::state_machine::Machine;
use super::transport::{MAKE_SPACE, PeerLinks};
use super::{Raft, Transport};
use crate::contract::{Durability, StoreError};
use crate::local::engine::Engine;
use crate::local::shared::SharedState;
use crate::log::{
    Address, DiskWork, Entries, JOBS_MAX, Job, LAZY_SYNC, Lock, OpenError, Recovered, Status,
    Writer, behind, first_member,
};
use crate::mvcc::Command;

/// Options of a member of a cluster.
#[derive(Debug, Clone)]
pub struct MemberOptions {
    /// Address at which other members reach this one, in the transport's form; not empty.
    pub address: String,
    /// Transport to the other members.
    pub transport: Arc<dyn Transport>,
    /// An empty directory becomes a member that waits to be added to a cluster, instead of the
    /// first of a cluster.
    pub join: bool,
}

/// Options for starting.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Whether lazy durability is honoured.
    pub(crate) lazy: bool,
    /// Where blocking work runs.
    pub(crate) work: DiskWork,
    /// Options of the member, if there may be several.
    pub(crate) member_options: Option<MemberOptions>,
}

/// A started member.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) shared: Arc<SharedState>,
    pub(crate) engine: Arc<RaftEngine>,
    pub(crate) members: Arc<Members>,
}

/// The parts of a member, and the state shared with openraft.
pub(super) struct RaftParts {
    pub(super) node: u64,
    pub(super) log: LogStore,
    pub(super) machine: Machine,
    pub(super) applied_state: Arc<AppliedState>,
    status: Arc<Status>,
    checkpoints: Arc<Checkpoints>,
    jobs: mpsc::Sender<Job>,
}

/// Starts the writer of the log and assembles the parts of openraft.
pub(super) fn assemble(
    recovered: Recovered,
    work: DiskWork,
    lock: &Arc<Option<Lock>>,
    tasks: &Tasks,
) -> RaftParts {
    let Recovered { state, applied, log, view, log_bytes, checkpoint, ceiling: _ } = recovered;
    let (node, disk, cluster) = (log.meta.node, Arc::clone(log.disk()), log.cluster());
    let applied_state =
        Arc::new(AppliedState::new(node, Arc::new(SharedState::new(state)), applied));
    let entries = Arc::new(Entries(Mutex::new(view)));
    let full = Arc::clone(&log.full);
    let writer = Writer::new(log, Arc::clone(&entries));
    let status = Arc::clone(writer.status());
    let checkpoints = Arc::new(Checkpoints::new(
        Arc::clone(&disk),
        cluster,
        work,
        Arc::clone(&status),
        checkpoint,
        log_bytes,
        full,
    ));
    let (jobs, waiting) = mpsc::channel(JOBS_MAX);
    spawn_writer(writer, waiting, work, Arc::clone(lock), tasks);
    let reader = LogReader { entries: Arc::clone(&entries), disk, work };
    let log = LogStore::new(reader, jobs.clone());
    let machine = Machine {
        applied_state: Arc::clone(&applied_state),
        entries,
        checkpoints: Arc::clone(&checkpoints),
    };
    RaftParts { node, log, machine, applied_state, status, checkpoints, jobs }
}

/// Continues where recovery ended. Resolves once this member leads and has applied its whole log
/// or, if there are other voters, as soon as it can answer them. Its tasks end in order when
/// `tasks` shuts down; `lock` is held until none of them accesses the directory.
///
/// # Errors
/// [`OpenError::Io`].
pub(crate) async fn start(
    recovered: Recovered,
    options: Options,
    lock: Option<Lock>,
    tasks: &Tasks,
) -> Result<Started, OpenError> {
    let (ceiling, cluster) = (recovered.ceiling, recovered.log.cluster());
    let lock = Arc::new(lock);
    let RaftParts { node, log, machine, applied_state, status, checkpoints, jobs } =
        assemble(recovered, options.work, &lock, tasks);
    let failed = |error: &dyn std::fmt::Display| {
        let known = status.stopped.lock().as_ref().map(ToString::to_string);
        let text = known.unwrap_or_else(|| error.to_string());
        let source = std::io::Error::other(text);
        OpenError::Io { action: "start", file: "the log".to_owned(), source }
    };
    let config = Arc::new(config(cluster.to_string()).validate().map_err(|e| failed(&e))?);
    let Options { lazy, work, member_options } = options;
    let (address, transport) = match &member_options {
        Some(member_options) => {
            (Address::new(&member_options.address), Some(Arc::clone(&member_options.transport)))
        }
        None => (Address::default(), None),
    };
    let problems = tasks.problems().clone();
    let links = Arc::new(PeerLinks::new(cluster, node, address.clone(), transport, problems));
    let peers = NetworkFactory { links: Arc::clone(&links), work };
    let raft = Raft::new(node, config, peers, log, machine).await.map_err(|e| failed(&e))?;
    let may_begin = node == first_member(cluster)
        && !member_options.as_ref().is_some_and(|member_options| member_options.join);
    let mut full = status.full.subscribe();
    let led = tokio::select! {
        biased;
        led = become_leader(&raft, node, &address, may_begin) => led,
        // Becoming leader needs space. No request was served yet, so it is safe to stop with the
        // error.
        Ok(what) = async { full.wait_for(Option::is_some).await.map(|text| text.clone()) } => {
            end_early(&raft, &jobs).await;
            return Err(OpenError::NoSpace { what: what.unwrap_or_default() });
        }
    };
    let leads = match led {
        Ok(false) if member_options.is_none() => {
            // As below.
            let _ = raft.shutdown().await;
            return Err(failed(
                &"the directory belongs to a cluster of several members, but was opened as a \
                    single member",
            ));
        }
        Ok(leads) => leads,
        Err(error) => {
            // Its tasks would keep the directory open; the first error counts.
            let _ = raft.shutdown().await;
            return Err(failed(&error));
        }
    };
    let shared = Arc::clone(&applied_state.shared);
    let snapshot_receiver = SnapshotReceiver::new(Arc::clone(checkpoints.disk()), work);
    let engine =
        RaftEngine::new(raft, links, jobs, applied_state, Arc::clone(&status), checkpoints, lazy);
    let engine = Arc::new(engine);
    engine.follow(&engine.raft().server_metrics().borrow_watched());
    spawn_tasks(&engine, lock, tasks);
    let members = Arc::new(Members::new(Arc::clone(&engine), snapshot_receiver, address, tasks));
    let revision = shared.state.read().revision();
    // With several voters nothing is acknowledged before it is on their disks.
    if leads && ceiling > revision {
        let raise = Command::Raise { revision: ceiling };
        let raised = engine.submit(raise, Durability::Synced).await;
        raised.map_err(|error| match engine.status.full.borrow().clone() {
            Some(what) => OpenError::NoSpace { what },
            None => failed(&error),
        })?;
    }
    Ok(Started { shared, engine, members })
}

/// Stops the writer of the log, and then openraft, which may wait for it.
async fn end_early(raft: &Raft, jobs: &mpsc::Sender<Job>) {
    let (done, stopped) = oneshot::channel();
    if jobs.send(Job::Stop(done)).await.is_ok() {
        // The first error counts, whatever the result here.
        let _ = stopped.await;
    }
    let _ = raft.shutdown().await;
}

/// Milliseconds between heartbeats, and openraft's limit for each response: links of edge sites and
/// busy machines take as long.
const HEARTBEAT_MS: u64 = 250;

/// Milliseconds without a heartbeat after which a member campaigns: several heartbeats, because a
/// single late one is no reason for an election.
const ELECTION_MS: std::ops::Range<u64> = 1000..2000;

/// openraft's configuration. A single member needs no timers and no heartbeats: it leads from its
/// start to its end.
fn config(cluster: String) -> openraft::Config {
    openraft::Config {
        cluster_name: cluster,
        enable_tick: false,
        enable_heartbeat: false,
        enable_elect: false,
        heartbeat_interval: HEARTBEAT_MS,
        election_timeout_min: ELECTION_MS.start,
        election_timeout_max: ELECTION_MS.end,
        backoff: "50ms 100ms 200ms ...1s".to_owned(),
        // Every start has a new term, also after lazy entries were lost.
        enable_leader_restore: Some(false),
        enable_pre_vote: Some(true),
        // Checkpoints are written when the log has outgrown the state, and the log before them is
        // purged at once.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: 0,
        ..openraft::Config::default()
    }
}

/// Makes this member the leader if it is the only voter; initializes a new cluster if it
/// `may_begin` one. Waits until the whole log is applied; returns whether it leads.
async fn become_leader(
    raft: &Raft,
    node: u64,
    address: &Address,
    may_begin: bool,
) -> Result<bool, Box<dyn std::error::Error + Send + Sync>> {
    if raft.is_initialized().await? {
        let members = raft.with_raft_state(|state| state.membership_state.effective().clone());
        if !members.await?.voter_ids().eq([node]) {
            return Ok(false);
        }
        raft.trigger().elect(false).await?;
    } else if may_begin {
        raft.initialize(std::collections::BTreeMap::from([(node, address.clone())])).await?;
    } else {
        return Ok(false);
    }
    let ready = |metrics: &openraft::RaftMetrics<crate::log::Types>| {
        metrics.state.is_leader()
            && metrics.last_log_index.is_some()
            && behind(metrics.last_applied.as_ref()) == metrics.last_log_index.map_or(0, |i| i + 1)
    };
    raft.wait(None).metrics(ready, "the only voter leads").await?;
    Ok(true)
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
        // The supervisor may be gone.
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

/// Time between retries of writes that found no space: there is no notification when space is
/// freed.
const RETRY: std::time::Duration = std::time::Duration::from_secs(1);

/// Key of the problem report for a full device.
const FULL: &str = "store/space";

/// Follows openraft's metrics, the deadline of lazy writes and the lack of space. At shutdown it
/// ends everything in order; when openraft ends it stops at once.
async fn supervise(
    engine: Arc<RaftEngine>,
    all_proposed: oneshot::Receiver<()>,
    tasks: Tasks,
) -> Result<(), StoreError> {
    let mut server = engine.raft().server_metrics();
    let mut full = engine.status.full.subscribe();
    loop {
        engine.follow(&server.borrow_and_update());
        let no_space = full.borrow_and_update().clone();
        report_disk_full(&tasks, no_space.as_ref());
        let since = *engine.status.lazy_since.lock();
        let deadline = async {
            match since {
                Some(since) if no_space.is_none() => {
                    tokio::time::sleep_until(since + LAZY_SYNC).await
                }
                _ => std::future::pending().await,
            }
        };
        let retry = async {
            match &no_space {
                Some(_) => tokio::time::sleep(RETRY).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = tasks.shutdown().requested() => break,
            changed = server.changed() => if changed.is_err() {
                let error = match &engine.raft().metrics().borrow_watched().running_state {
                    Err(error) => engine.fatal(error),
                    Ok(()) => StoreError::Stopped("the consensus stopped unexpectedly".to_owned()),
                };
                engine.status.stop(&error);
                engine.end();
                return Err(error);
            },
            () = engine.status.lazy.notified() => {}
            // Cannot fail: the sender lives as long as this task.
            _ = full.changed() => {}
            // If the queue is full, every queued request is a retry.
            () = retry => drop(engine.jobs().try_send(Job::Retry)),
            () = deadline => sync_lazy(&engine).await,
        }
    }
    engine.close();
    let proposed = async {
        tokio::select! {
            // If the task has ended already, there is nothing to wait for.
            _ = all_proposed => {}
            // Accepted commands without space do not delay the shutdown: none was acknowledged.
            _ = full.wait_for(Option::is_some) => {}
        }
    };
    if engine.is_alone() {
        proposed.await;
    } else if tokio::time::timeout(LAST_PROPOSALS, proposed).await.is_err() {
        tracing::warn!("no quorum for the last proposals before the shutdown");
    }
    transfer_on_shutdown(&engine).await;
    let ended = engine.raft().shutdown().await;
    let (done, stopped) = oneshot::channel();
    let stopped = match engine.jobs().send(Job::Stop(done)).await {
        Ok(()) => stopped.await.map_err(|_| engine.stop_reason()),
        Err(_) => Err(engine.stop_reason()),
    };
    engine.end();
    ended.map_err(|error| {
        StoreError::Stopped(format!("the consensus did not shut down cleanly: {error}"))
    })?;
    stopped?.map_err(|error| StoreError::Stopped(error.to_string()))
}

/// Makes everything acknowledged durable. If this fails, the writer's task reports the error.
async fn sync_lazy(engine: &RaftEngine) {
    let (done, synced) = oneshot::channel();
    if engine.jobs().send(Job::Sync(done)).await.is_ok() {
        let mut full = engine.status.full.subscribe();
        tokio::select! {
            _ = synced => {}
            _ = full.wait_for(Option::is_some) => {}
        }
    }
}

/// Reports a full device as a problem, with advice.
fn report_disk_full(tasks: &Tasks, full: Option<&String>) {
    match full {
        Some(text) => {
            let what = format!("the device of the store is full, writes are refused: {text}");
            tasks.problems().put(FULL, what, MAKE_SPACE);
        }
        None => tasks.problems().clear(FULL),
    }
}

/// Maximum wait for a quorum at shutdown.
const LAST_PROPOSALS: std::time::Duration = std::time::Duration::from_secs(2);

/// Maximum wait for another member to lead at shutdown.
const HAND_OVER: std::time::Duration = std::time::Duration::from_secs(1);

/// Transfers leadership to the most up-to-date voter, so that the others need not detect the end of
/// this member.
async fn transfer_on_shutdown(engine: &RaftEngine) {
    let metrics = engine.raft().metrics().borrow_watched().clone();
    let Some(replication) = metrics.replication.filter(|_| metrics.state.is_leader()) else {
        return;
    };
    let others = metrics.membership_config.voter_ids().filter(|id| *id != metrics.id);
    let has = |id: &u64| replication.get(id).copied().flatten();
    let Some(next) = others.filter(|id| has(id).is_some()).max_by_key(has) else { return };
    if engine.raft().trigger().transfer_leader(next).await.is_err() {
        return;
    }
    let other = |now: &openraft::RaftMetrics<crate::log::Types>| {
        now.current_leader.is_some_and(|leader| leader != now.id)
    };
    if engine.raft().wait(Some(HAND_OVER)).metrics(other, "another leads").await.is_err() {
        tracing::warn!("no other member became leader in time, the others will elect one");
    }
}

/// Writes checkpoints when the log has outgrown the state, and has openraft purge the log before
/// them.
async fn checkpoints(
    engine: Arc<RaftEngine>,
    lock: Arc<Option<Lock>>,
    tasks: Tasks,
) -> Result<(), StoreError> {
    loop {
        tokio::select! {
            biased;
            () = engine.checkpoints.due.notified() => {}
            () = tasks.shutdown().requested() => break,
        }
        engine.checkpoints.map_full_segments(&engine.applied_state).await;
        if engine.checkpoints.is_due(&engine.applied_state)
            && let Err(error) = engine.write_checkpoint().await
        {
            tracing::warn!(%error, "cannot write a checkpoint of the store, the log grows until \
                the next attempt");
        }
    }
    drop(lock);
    Ok(())
}
