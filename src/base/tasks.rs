//! Every task has an owner, a name and an end: spawn through [`Tasks`], stop through [`Shutdown`].

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

/// A request to stop, cheap to clone; children stop with their parent, but not vice versa.
#[derive(Debug, Clone, Default)]
pub struct Shutdown(CancellationToken);

impl Shutdown {
    /// Creates a root token.
    pub fn new() -> Self {
        Self::default()
    }

    /// A token that stops with this one and can be stopped earlier.
    pub fn child(&self) -> Self {
        Self(self.0.child_token())
    }

    /// Requests the stop.
    pub fn request(&self) {
        self.0.cancel();
    }

    /// Whether the stop was requested.
    pub fn is_requested(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Resolves once the stop is requested.
    pub async fn requested(&self) {
        self.0.cancelled().await;
    }
}

/// The consequence of a task's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The process depends on it: an end before shutdown stops the process.
    Critical,
    /// One unit of work; an error or panic is only logged.
    Request,
}

/// The text of a task's error.
struct TaskError(String);

/// The set of running tasks of one process.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    tracker: TaskTracker,
    shutdown: Shutdown,
    fault: Mutex<Option<String>>,
    running: Mutex<std::collections::BTreeMap<u64, &'static str>>,
    next: std::sync::atomic::AtomicU64,
    problems: crate::Problems,
    /// The parent of this set: a critical task that ends early stops the parent, too.
    parent: Option<Tasks>,
}

impl Inner {
    fn stop_with(&self, fault: &str) {
        self.fault.lock().get_or_insert(fault.to_owned());
        self.shutdown.request();
        if let Some(parent) = &self.parent {
            parent.stop_with(fault);
        }
    }
}

impl Tasks {
    /// Creates a set whose critical tasks request `shutdown` if they end early.
    pub fn new(shutdown: Shutdown) -> Self {
        Self { inner: Arc::new(Inner { shutdown, ..Inner::default() }) }
    }

    /// Creates a set that stops with this one and can be stopped earlier. Draining this one does
    /// not wait for it.
    pub fn child(&self) -> Self {
        let inner = Inner {
            shutdown: self.shutdown().child(),
            problems: self.problems().clone(),
            parent: Some(self.clone()),
            ..Inner::default()
        };
        Self { inner: Arc::new(inner) }
    }

    /// The token that stops this set.
    pub fn shutdown(&self) -> &Shutdown {
        &self.inner.shutdown
    }

    /// The current problems of this process, for `kube-lite status`.
    pub fn problems(&self) -> &crate::Problems {
        &self.inner.problems
    }

    /// Runs `future` as a task; `kind` determines how its error or panic is handled.
    pub fn spawn<F, E>(&self, kind: Kind, name: &'static str, future: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: std::fmt::Display + Send + 'static,
    {
        // Boxed, so that the runtime's part of a task is compiled once and not for some two hundred
        // future types.
        self.spawn_boxed(
            kind,
            name,
            Box::pin(async move { future.await.map_err(|error| TaskError(error.to_string())) }),
        );
    }

    fn spawn_boxed(
        &self,
        kind: Kind,
        name: &'static str,
        future: Pin<Box<dyn Future<Output = Result<(), TaskError>> + Send>>,
    ) {
        let inner = Arc::clone(&self.inner);
        let id = inner.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if kind == Kind::Critical {
            inner.running.lock().insert(id, name);
        }
        let span = tracing::debug_span!("task", name);
        let task = async move {
            let outcome = std::panic::AssertUnwindSafe(future).catch_unwind().await;
            inner.running.lock().remove(&id);
            let fault = match outcome {
                Ok(Ok(())) => None,
                Ok(Err(TaskError(text))) => Some(text),
                Err(_) => Some("panicked".to_owned()),
            };
            match (kind, fault) {
                (Kind::Request, Some(error)) => tracing::warn!(task = name, error, "task failed"),
                (Kind::Critical, fault) if !inner.shutdown.is_requested() => {
                    let fault = fault.unwrap_or_else(|| "ended unexpectedly".to_owned());
                    // A failing log must not prevent the process from stopping.
                    inner.stop_with(&format!("{name}: {fault}"));
                    tracing::error!(task = name, error = fault, "critical task ended, stopping");
                }
                _ => {}
            }
        };
        self.inner.tracker.spawn(task.instrument(span));
    }

    /// Stops the process because of `fault`, as a critical task that ends early does.
    pub fn stop_with(&self, fault: &str) {
        self.inner.stop_with(fault);
    }

    /// The first critical task that ended early, with its error.
    pub fn fault(&self) -> Option<String> {
        self.inner.fault.lock().clone()
    }

    /// After shutdown was requested: waits for all tasks, at most `grace`; returns the names of
    /// critical tasks that did not stop.
    pub async fn drain(&self, grace: Duration) -> Vec<&'static str> {
        self.inner.tracker.close();
        let _ = tokio::time::timeout(grace, self.inner.tracker.wait()).await;
        self.inner.running.lock().values().copied().collect()
    }
}

/// Runs blocking work (file system, netlink dumps) away from the async workers.
///
/// # Errors
/// Only when the work panicked.
#[expect(clippy::disallowed_methods, reason = "the one place that leaves the async workers")]
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, tokio::task::JoinError> {
    tokio::task::spawn_blocking(work).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn early_end_of_a_critical_task_requests_shutdown_and_names_it() {
        let tasks = Tasks::new(Shutdown::new());
        tasks.spawn(Kind::Critical, "store", async { Err::<(), _>("disk gone") });
        tasks.shutdown().requested().await;
        assert_eq!(tasks.fault().as_deref(), Some("store: disk gone"));
    }

    /// A log that panics on every event.
    struct BrokenLog;

    impl tracing::Subscriber for BrokenLog {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, _: &tracing::Event<'_>) {
            panic!("the log cannot be written");
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }

    #[tokio::test]
    async fn a_failing_log_does_not_prevent_a_critical_end_from_stopping_the_process() {
        let _log = tracing::subscriber::set_default(BrokenLog);
        let tasks = Tasks::new(Shutdown::new());
        tasks.spawn(Kind::Critical, "store", async { Err::<(), _>("disk gone") });
        let stopped = tasks.shutdown().requested();
        tokio::time::timeout(Duration::from_secs(60), stopped).await.unwrap();
        assert_eq!(tasks.fault().as_deref(), Some("store: disk gone"));
    }

    #[tokio::test]
    async fn a_panicking_request_stops_nothing() {
        let tasks = Tasks::new(Shutdown::new());
        tasks.spawn(Kind::Request, "bad", async {
            if true { panic!("bug") } else { Ok::<(), String>(()) }
        });
        assert!(tasks.drain(Duration::from_secs(60)).await.is_empty());
        assert!(!tasks.shutdown().is_requested());
    }

    #[tokio::test]
    async fn a_child_stops_alone_but_its_failure_stops_the_parent() {
        let parent = Tasks::new(Shutdown::new());
        let ended = parent.child();
        ended.shutdown().request();
        assert!(!parent.shutdown().is_requested());
        let broken = parent.child();
        broken.spawn(Kind::Critical, "part", async { Err("lost its disk") });
        parent.shutdown().requested().await;
        assert_eq!(parent.fault().as_deref(), Some("part: lost its disk"));
        assert!(parent.child().shutdown().is_requested());
    }
}
