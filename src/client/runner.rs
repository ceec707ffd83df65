//! Workers that reconcile the keys of a queue.

use std::fmt::{Debug, Display};
use std::future::Future;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use base::{Kind, Tasks};
use futures::FutureExt;

use crate::workqueue::Queue;

/// Result of a reconcile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing to do until the next change.
    Done,
    /// Reconcile again after this time.
    After(Duration),
}

/// Runs `workers` tasks that take keys from `queue` and reconcile them. Reconciles are idempotent,
/// read from caches and handle one key at a time. An error or a panic is logged and the key is
/// retried with backoff. The metrics have the queue under its own name, or `name`.
pub fn run_workers<K, F, R, E>(
    tasks: &Tasks,
    name: &'static str,
    workers: usize,
    queue: &Queue<K>,
    reconcile: F,
) where
    K: Hash + Eq + Clone + Debug + Send + Sync + 'static,
    F: Fn(K) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Action, E>> + Send,
    E: Display + Send,
{
    queue.set_name(name);
    let reconcile = Arc::new(reconcile);
    for _ in 0..workers {
        let (queue, reconcile, shutdown) =
            (queue.clone(), Arc::clone(&reconcile), tasks.shutdown().clone());
        tasks.spawn(Kind::Critical, name, async move {
            while let Some(key) = queue.next(&shutdown).await {
                let outcome = AssertUnwindSafe(reconcile(key.clone())).catch_unwind().await;
                match outcome {
                    Ok(Ok(action)) => {
                        queue.forget(&key);
                        if let Action::After(delay) = action {
                            queue.add_after(key.clone(), delay);
                        }
                    }
                    Ok(Err(error)) => {
                        // Conflicts and cold caches resolve at the next attempt; only persistent
                        // errors are logged.
                        if queue.failures(&key) == RETRIES_BEFORE_WARN {
                            tracing::warn!(controller = name, ?key, %error, "reconcile keeps failing, retrying");
                        } else {
                            tracing::debug!(controller = name, ?key, %error, "reconcile failed");
                        }
                        queue.add_rate_limited(key.clone());
                    }
                    Err(_) => {
                        tracing::error!(controller = name, ?key, "reconcile panicked");
                        queue.add_rate_limited(key.clone());
                    }
                }
                queue.done(&key);
            }
            Ok::<(), std::convert::Infallible>(())
        });
    }
}

/// Failures in a row before the first log message: 5 ms × 2^6 ≈ 0.3 s of retries.
const RETRIES_BEFORE_WARN: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;
    use base::Shutdown;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test(start_paused = true)]
    async fn failing_and_panicking_keys_are_retried() {
        let (tasks, queue) = (Tasks::new(Shutdown::new()), Queue::new());
        let runs = Arc::new(AtomicU32::new(0));
        let (seen, shutdown) = (Arc::clone(&runs), tasks.shutdown().clone());
        run_workers(&tasks, "test", 1, &queue, move |_key: &'static str| {
            let (run, shutdown) = (seen.fetch_add(1, Ordering::SeqCst), shutdown.clone());
            async move {
                match run {
                    0 => Err("conflict"),
                    1 => panic!("bug"),
                    _ => {
                        shutdown.request();
                        Ok(Action::Done)
                    }
                }
            }
        });
        queue.add("a");
        tasks.shutdown().requested().await;
        assert!(tasks.drain(Duration::from_secs(60)).await.is_empty());
        assert_eq!(runs.load(Ordering::SeqCst), 3);
        assert_eq!(queue.failures(&"a"), 0);
    }
}
