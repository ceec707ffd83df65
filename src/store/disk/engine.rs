//! The engine over the [`Writer`]: a bounded queue, one thread, checkpoints beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use base::tasks::{Kind, Tasks, blocking};
use parking_lot::{Condvar, Mutex};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::checkpoint;
use super::lock::Lock;
use super::writer::{Job, Request, Writer};
use crate::backend::{Engine, Shared};
use crate::command::Command;
use crate::kv::{Durability, StoreError};
use crate::mvcc::{Outcome, request_size};

/// Commands that wait for the writer, in KiB; who comes later waits outside.
const QUEUE_KIB: usize = 16 * 1024;

#[derive(Debug, Default)]
struct Queued {
    requests: Vec<Request>,
    checkpoints: Vec<(Job, std::io::Result<u64>)>,
    closed: bool,
}

/// What the tasks share.
#[derive(Debug)]
struct Queue {
    queued: Mutex<Queued>,
    changed: Condvar,
    room: Semaphore,
    stopped: Mutex<Option<StoreError>>,
    disk_bytes: AtomicU64,
}

/// The engine that keeps a directory.
#[derive(Debug)]
pub(crate) struct DiskEngine(Arc<Queue>);

impl DiskEngine {
    /// Starts the writer's tasks; they end in order when `tasks` shuts down.
    pub(crate) fn start(
        writer: Writer,
        lock: Option<Lock>,
        tasks: &Tasks,
    ) -> (Arc<Shared>, Arc<Self>) {
        let shared = Arc::clone(writer.shared());
        let queue = Arc::new(Queue {
            queued: Mutex::default(),
            changed: Condvar::new(),
            room: Semaphore::new(QUEUE_KIB),
            stopped: Mutex::new(None),
            disk_bytes: AtomicU64::new(writer.disk_bytes()),
        });
        let (jobs, waiting) = mpsc::channel(1);
        // Held until neither task touches the directory.
        let lock = Arc::new(lock);
        let checkpoint_lock = Arc::clone(&lock);
        let (thread_queue, thread_shared) = (Arc::clone(&queue), Arc::clone(&shared));
        tasks.spawn(Kind::Critical, "store log", async move {
            let ended = blocking(move || {
                let ended = run(writer, &thread_queue, &jobs);
                thread_queue.close(&thread_shared, ended.as_ref().err().cloned());
                drop(lock);
                ended
            });
            ended.await.unwrap_or_else(|panic| {
                Err(StoreError::Stopped(format!("the log's writer failed: {panic}")))
            })
        });
        tasks.spawn(
            Kind::Critical,
            "store checkpoints",
            checkpoints(Arc::clone(&shared), Arc::clone(&queue), waiting, checkpoint_lock),
        );
        let (closing, shutdown) = (Arc::clone(&queue), tasks.shutdown().clone());
        tasks.spawn(Kind::Critical, "store shutdown", async move {
            shutdown.requested().await;
            closing.queued.lock().closed = true;
            closing.changed.notify_one();
            Ok::<(), StoreError>(())
        });
        (shared, Arc::new(Self(queue)))
    }
}

impl Queue {
    fn close(&self, shared: &Shared, error: Option<StoreError>) {
        let error =
            error.unwrap_or_else(|| StoreError::Stopped("the server is shutting down".to_owned()));
        *self.stopped.lock() = Some(error.clone());
        let left = {
            let mut queued = self.queued.lock();
            queued.closed = true;
            std::mem::take(&mut queued.requests)
        };
        for request in left {
            // Who does not wait any more does not need the answer.
            let _ = request.reply.send(Err(error.clone()));
        }
        shared.end_watches(&error);
    }

    fn stop_reason(&self) -> StoreError {
        self.stopped
            .lock()
            .clone()
            .unwrap_or_else(|| StoreError::Stopped("the server is shutting down".to_owned()))
    }
}

/// The writer's thread.
fn run(mut writer: Writer, queue: &Queue, jobs: &mpsc::Sender<Job>) -> Result<(), StoreError> {
    loop {
        let deadline = writer.lazy_deadline();
        let (requests, checkpoints, closed) = {
            let mut queued = queue.queued.lock();
            while queued.requests.is_empty() && queued.checkpoints.is_empty() && !queued.closed {
                let left =
                    deadline.map(|deadline| deadline.saturating_duration_since(base::clock::now()));
                match left {
                    Some(Duration::ZERO) => break,
                    Some(left) => drop(queue.changed.wait_for(&mut queued, left)),
                    None => queue.changed.wait(&mut queued),
                }
            }
            (
                std::mem::take(&mut queued.requests),
                std::mem::take(&mut queued.checkpoints),
                queued.closed,
            )
        };
        for (job, written) in checkpoints {
            writer.end_checkpoint(&job, written);
        }
        if closed && requests.is_empty() {
            return writer.stop();
        }
        writer.commit(requests)?;
        if writer.lazy_deadline().is_some_and(|deadline| deadline <= base::clock::now()) {
            writer.sync()?;
        }
        if let Some(job) = writer.begin_checkpoint()?
            && let Err(error) = jobs.try_send(job)
        {
            let (mpsc::error::TrySendError::Full(job) | mpsc::error::TrySendError::Closed(job)) =
                error;
            writer.end_checkpoint(
                &job,
                Err(std::io::Error::other("the task that writes checkpoints has ended")),
            );
        }
        queue.disk_bytes.store(writer.disk_bytes(), Relaxed);
    }
}

/// Writes checkpoints away from the writer, until the writer ends.
async fn checkpoints(
    shared: Arc<Shared>,
    queue: Arc<Queue>,
    mut jobs: mpsc::Receiver<Job>,
    lock: Arc<Option<Lock>>,
) -> Result<(), StoreError> {
    while let Some(job) = jobs.recv().await {
        let shared = Arc::clone(&shared);
        let work = blocking(move || {
            let written =
                checkpoint::write(job.disk.as_ref(), job.cluster, &shared.state, &job.description);
            (job, written)
        });
        let done = work.await.map_err(|panic| {
            StoreError::Stopped(format!("writing a checkpoint failed: {panic}"))
        })?;
        queue.queued.lock().checkpoints.push(done);
        queue.changed.notify_one();
    }
    drop(lock);
    // The writer has ended; if by a fault, its own task says so.
    Ok(())
}

fn kib(command: &Command) -> u32 {
    let bytes = if let Command::Txn(txn) = command { request_size(txn) } else { 0 };
    u32::try_from((1 + bytes / 1024).min(QUEUE_KIB)).unwrap_or(1)
}

#[async_trait]
impl Engine for DiskEngine {
    async fn submit(
        &self,
        command: Command,
        durability: Durability,
    ) -> Result<Outcome, StoreError> {
        let queue = &self.0;
        let _room =
            queue.room.acquire_many(kib(&command)).await.map_err(|_| queue.stop_reason())?;
        let (reply, answer) = oneshot::channel();
        {
            let mut queued = queue.queued.lock();
            if queued.closed {
                return Err(queue.stop_reason());
            }
            queued.requests.push(Request { command, durability, reply });
        }
        queue.changed.notify_one();
        answer.await.unwrap_or_else(|_| Err(queue.stop_reason()))
    }

    fn stopped(&self) -> Option<StoreError> {
        self.0.stopped.lock().clone()
    }

    fn disk_bytes(&self) -> u64 {
        self.0.disk_bytes.load(Relaxed)
    }
}
