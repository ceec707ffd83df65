//! Runs futures within the task that owns them, such as the requests of a connection within the
//! connection's task.
//!
//! A task per request costs more than a short request itself, and each of many responses that are
//! ready together would wake the connection's task, which then writes them one by one because the
//! task woken last runs first. Within one task all responses are produced first and then written
//! with one call.

use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use hyper::rt::Executor;
use parking_lot::Mutex;

use crate::Cork;

type Inner = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Accepts futures that run within [`InlineExecutor::drive`]; clones share the same executor.
#[derive(Clone, Default)]
pub struct InlineExecutor(Arc<Mutex<Vec<Inner>>>);

impl std::fmt::Debug for InlineExecutor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("InlineExecutor").field(&self.0.lock().len()).finish()
    }
}

impl InlineExecutor {
    /// Adds a future that runs concurrently with the outer one, from the outer one's next pending
    /// poll on. The outer future bounds their number. A future that panics ends, as a task would,
    /// and does not affect others.
    pub fn add(&self, future: impl Future<Output = ()> + Send + 'static) {
        // The panic hook has logged it.
        let future = AssertUnwindSafe(future).catch_unwind().map(drop);
        self.0.lock().push(Box::pin(future));
    }

    /// Runs `outer` to completion, and concurrently the futures added meanwhile; unfinished ones
    /// are then dropped.
    pub async fn drive<T>(&self, outer: impl Future<Output = T>) -> T {
        self.drive_in_turns(outer, |_| {}).await
    }

    /// As [`InlineExecutor::drive`], for a connection over `cork`: bytes written during a poll are
    /// sent at its end, when all futures are pending.
    pub async fn drive_corked<T>(&self, connection: impl Future<Output = T>, cork: &Cork) -> T {
        // The next read or write reports the error.
        self.drive_in_turns(connection, |cx| drop(cork.poll_flush(cx))).await
    }

    async fn drive_in_turns<T>(
        &self,
        outer: impl Future<Output = T>,
        mut pause: impl FnMut(&mut Context<'_>),
    ) -> T {
        let mut outer = pin!(outer);
        let mut waiting = FuturesUnordered::new();
        let mut added = Vec::new();
        poll_fn(|cx| {
            loop {
                if let Poll::Ready(end) = outer.as_mut().poll(cx) {
                    return Poll::Ready(end);
                }
                std::mem::swap(&mut *self.0.lock(), &mut added);
                let mut moved = !added.is_empty();
                for mut future in added.drain(..) {
                    // Most futures complete at their first poll and never register a waker.
                    if future.as_mut().poll(cx).is_pending() {
                        waiting.push(future);
                    }
                }
                while let Poll::Ready(Some(())) = waiting.poll_next_unpin(cx) {
                    moved = true;
                }
                // The outer future writes their results before this task becomes pending.
                if !moved {
                    pause(cx);
                    return Poll::Pending;
                }
            }
        })
        .await
    }
}

/// Streams of a connection run within its task, so that responses that are ready together are
/// written together.
impl<F: Future<Output = ()> + Send + 'static> Executor<F> for InlineExecutor {
    fn execute(&self, stream: F) {
        self.add(stream);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use tokio::sync::{Notify, oneshot};

    use super::*;

    #[tokio::test]
    async fn ready_futures_run_before_the_outer_one_continues() {
        let (nested, made, polls) =
            (InlineExecutor::default(), Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
        let outer = poll_fn(|_| {
            if polls.fetch_add(1, Relaxed) == 0 {
                for _ in 0..3 {
                    let made = Arc::clone(&made);
                    nested.add(async move {
                        made.fetch_add(1, Relaxed);
                    });
                }
                // Not woken explicitly: it is polled again because other futures completed.
                return Poll::Pending;
            }
            Poll::Ready(made.load(Relaxed))
        });
        assert_eq!(nested.drive(outer).await, 3);
        assert_eq!(polls.load(Relaxed), 2);
    }

    #[tokio::test]
    async fn one_that_panics_harms_no_other() {
        let (nested, (tell, told)) = (InlineExecutor::default(), oneshot::channel());
        nested.add(async { panic!("one of several") });
        nested.add(async move { tell.send(7).unwrap() });
        assert_eq!(nested.drive(told).await, Ok(7));
    }

    #[tokio::test]
    async fn pending_futures_are_woken_separately_and_dropped_with_the_outer_one() {
        let nested = InlineExecutor::default();
        let (ask, asked) = oneshot::channel::<()>();
        let (tell, told) = oneshot::channel::<()>();
        let (kept, gone) = oneshot::channel::<()>();
        nested.add(async move {
            // The test observes whether it is polled.
            let _ = asked.await;
            let _ = tell.send(());
        });
        let never = Arc::new(Notify::new());
        nested.add(async move {
            never.notified().await;
            drop(kept);
        });
        let outer = async {
            tokio::task::yield_now().await;
            ask.send(()).unwrap();
            told.await.unwrap();
        };
        tokio::time::timeout(std::time::Duration::from_secs(5), nested.drive(outer)).await.unwrap();
        assert!(gone.await.is_err());
    }
}
