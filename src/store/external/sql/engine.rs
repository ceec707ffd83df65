//! The engine over kine's table as the log of commands.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use async_trait::async_trait;
use base::{Kind, Tasks};
use tokio::sync::{mpsc, oneshot, watch};

use super::connect::Access;
use super::database::Database;
use super::session::SqlError;
use super::status::Status;
use super::writer::{Job, Reply, Writer};
use crate::contract::{Backend, Durability, Leadership, StoreError, StoreStats};
use crate::external::config::DatastoreError;
use crate::external::endpoint::Endpoint;
use crate::local::engine::Engine;
use crate::local::shared::SharedState;
use crate::local::store::{LocalStore, StoreOptions};
use crate::mvcc::{Command, Outcome, State};

/// Capacity of the command queue.
const JOBS_MAX: usize = 256;

/// Converts an error of a start.
fn datastore_error(endpoint: &Endpoint) -> impl Fn(SqlError) -> DatastoreError + '_ {
    move |classify| match classify {
        SqlError::Held(holder) => DatastoreError::Held(holder),
        other => {
            DatastoreError::Unusable { endpoint: endpoint.to_string(), why: other.to_string() }
        }
    }
}

#[derive(Debug)]
struct SqlEngine {
    jobs: mpsc::Sender<Job>,
    status: Arc<Status>,
    leads: watch::Sender<Leadership>,
    term: u64,
    /// Whether the lock cannot be lost unnoticed.
    local: bool,
}

impl SqlEngine {
    async fn request<T>(&self, job: impl FnOnce(Reply<T>) -> Job) -> Result<T, StoreError> {
        let ended = || {
            let unknown = || StoreError::Stopped("the datastore's writer has stopped".to_owned());
            self.stopped().unwrap_or_else(unknown)
        };
        let (reply, answer) = oneshot::channel();
        self.jobs.send(job(reply)).await.map_err(|_| ended())?;
        answer.await.unwrap_or_else(|_| Err(ended()))
    }
}

#[async_trait]
impl Engine for SqlEngine {
    async fn submit(&self, command: Command, _: Durability) -> Result<Outcome, StoreError> {
        self.request(|reply| Job::Command(command, reply)).await
    }

    async fn barrier(&self) -> Result<(), StoreError> {
        // A command is applied before it is acknowledged; the lock of a file belongs to the kernel.
        if self.local {
            return Ok(());
        }
        self.request(Job::Check).await
    }

    fn leads(&self) -> watch::Receiver<Leadership> {
        self.leads.subscribe()
    }

    fn term(&self) -> u64 {
        self.term
    }

    fn applied_index(&self) -> u64 {
        self.status.applied.load(Relaxed)
    }

    fn stopped(&self) -> Option<StoreError> {
        self.status.stopped.lock().clone()
    }

    fn disk_bytes(&self) -> u64 {
        self.status.bytes.load(Relaxed)
    }

    async fn defragment(&self) -> Result<(), StoreError> {
        self.request(Job::Defragment).await
    }

    fn fill_stats(&self, stats: &mut StoreStats) {
        stats.pending = JOBS_MAX.saturating_sub(self.jobs.capacity());
        stats.committed = self.applied_index();
        stats.syncs = self.status.writes.histogram();
    }
}

/// Opens a database in kine's schema, creates missing tables, and holds its lock until `tasks`
/// shuts down.
///
/// # Errors
/// [`DatastoreError`]; it names the current holder.
pub(crate) async fn open(
    endpoint: Endpoint,
    tasks: &Tasks,
) -> Result<Arc<dyn Backend>, DatastoreError> {
    let database = Database::open(endpoint.clone(), Access::Exclusive).await;
    begin(database.map_err(datastore_error(&endpoint))?, tasks).await
}

/// As [`open`], over an existing connection.
pub(super) async fn begin(
    mut database: Database,
    tasks: &Tasks,
) -> Result<Arc<dyn Backend>, DatastoreError> {
    let endpoint = database.endpoint().clone();
    let failed = datastore_error(&endpoint);
    database.prepare().await.map_err(&failed)?;
    let state = database.load().await.map_err(&failed)?;
    let local = !database.dialect().remote;
    tracing::info!(
        %endpoint, revision = state.revision(), keys = state.size().keys, "the external datastore \
            is open"
    );
    let shared = Arc::new(SharedState::new(state));
    let status = Arc::new(Status::default());
    let (jobs, waiting) = mpsc::channel(JOBS_MAX);
    let mut writer = Writer {
        database,
        shared: Arc::clone(&shared),
        status: Arc::clone(&status),
        jobs: waiting,
        shutdown: tasks.shutdown().clone(),
        held_back: None,
    };
    writer.update_size().await;
    tasks.spawn(Kind::Critical, "datastore", writer.run());
    // A later start has a higher term, as clients of etcd expect.
    let term = base::clock::unix_time().as_secs().max(1);
    let leads = watch::Sender::new(Leadership { term, leads: true, ..Leadership::default() });
    let engine = Arc::new(SqlEngine { jobs, status, leads, term, local });
    Ok(LocalStore::start(shared, engine, StoreOptions::default(), tasks))
}

/// Reads a database as of one moment without changing it; a k3s may continue to write.
///
/// # Errors
/// [`DatastoreError`].
pub(crate) async fn read(endpoint: &Endpoint) -> Result<State, DatastoreError> {
    let failed = datastore_error(endpoint);
    let mut database = Database::open(endpoint.clone(), Access::ReadOnly).await.map_err(&failed)?;
    let state = database.load_as_of_one_moment().await.map_err(&failed)?;
    database.close().await.map_err(&failed)?;
    Ok(state)
}
