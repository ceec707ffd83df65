//! Keeps requests with large bodies or objects from delaying all others: their work runs outside
//! the runtime's workers, on at most half of the processors at a time.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::ready;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Size in bytes of a body or stored object above which a request is large. Smaller ones take a few
/// milliseconds.
const LARGE_BYTES: usize = 64 * 1024;

/// Half of the processors, so that the other half serves all other requests.
static PERMITS: LazyLock<Semaphore> = LazyLock::new(|| {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    Semaphore::new((processors / 2).max(1))
});

/// Whether a request works on a large body or object.
#[derive(Debug, Default)]
pub(crate) struct RequestSize {
    is_large: AtomicBool,
}

impl RequestSize {
    /// Records that the request is about to process `bytes` bytes.
    pub(crate) async fn record(&self, bytes: usize) {
        if bytes >= LARGE_BYTES && !self.is_large.swap(true, Ordering::Relaxed) {
            tokio::task::yield_now().await;
        }
    }

    /// Yields between two steps of a large request: other requests run, and a request that timed
    /// out or whose client disconnected ends here.
    pub(crate) async fn checkpoint(&self) {
        if self.is_large.load(Ordering::Relaxed) {
            tokio::task::yield_now().await;
        }
    }
}

/// Runs a request. Once it is large, each step waits for a permit and runs outside the runtime's
/// workers.
pub(crate) async fn run<F: Future>(size: &RequestSize, work: F) -> F::Output {
    let mut work = pin!(work);
    let mut permit = pin!(None::<Waiting>);
    poll_fn(|cx| {
        if !size.is_large.load(Ordering::Relaxed) || !leaves_workers() {
            return work.as_mut().poll(cx);
        }
        let waiting = permit.get_or_insert_with(|| Box::pin(PERMITS.acquire()));
        // The semaphore is never closed.
        let held = ready!(waiting.as_mut().poll(cx));
        permit.set(None);
        let outcome = tokio::task::block_in_place(|| work.as_mut().poll(cx));
        drop(held);
        outcome
    })
    .await
}

type Waiting = Pin<
    Box<dyn Future<Output = Result<SemaphorePermit<'static>, tokio::sync::AcquireError>> + Send>,
>;

/// Whether blocking leaves other workers free. A single-threaded runtime relies on the checkpoints
/// only.
fn leaves_workers() -> bool {
    Handle::try_current()
        .is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    /// Without the permits, the large requests would block all workers.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn large_requests_do_not_block_small_ones() {
        let (begun, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let tasks = base::Tasks::default();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let held = Arc::new(parking_lot::Mutex::new(held));
        for _ in 0..8 {
            let (begun, ended, held) = (begun.clone(), ended.clone(), held.clone());
            tasks.spawn(base::tasks::Kind::Request, "large", async move {
                let size = RequestSize::default();
                run(&size, async {
                    size.record(LARGE_BYTES).await;
                    begun.fetch_add(1, Ordering::Relaxed);
                    let _ = held.lock().recv();
                    size.checkpoint().await;
                    ended.fetch_add(1, Ordering::Relaxed);
                })
                .await;
                Ok::<(), String>(())
            });
        }
        // Small requests complete while the steps of large requests block.
        let others = base::Tasks::default();
        for _ in 0..64 {
            others.spawn(base::tasks::Kind::Request, "small", async { Ok::<(), String>(()) });
        }
        assert!(others.drain(std::time::Duration::from_secs(30)).await.is_empty());
        assert_eq!(ended.load(Ordering::Relaxed), 0);
        let permits = std::thread::available_parallelism().map_or(1, usize::from) / 2;
        assert!(begun.load(Ordering::Relaxed) <= permits.max(1));
        drop(release);
        assert!(tasks.drain(std::time::Duration::from_secs(30)).await.is_empty());
        assert_eq!(ended.load(Ordering::Relaxed), 8);
    }

    #[tokio::test]
    async fn a_single_threaded_runtime_runs_large_requests_in_steps() {
        let size = RequestSize::default();
        let steps = run(&size, async {
            size.record(LARGE_BYTES).await;
            size.checkpoint().await;
            2
        });
        assert_eq!(steps.await, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_timeout_ends_a_large_request_between_steps() {
        let size = RequestSize::default();
        let endless = run(&size, async {
            size.record(LARGE_BYTES).await;
            loop {
                tokio::time::advance(std::time::Duration::from_secs(1)).await;
                size.checkpoint().await;
            }
        });
        let limit = std::time::Duration::from_secs(5);
        assert!(tokio::time::timeout(limit, endless).await.is_err());
    }
}
