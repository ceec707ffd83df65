//! Returns memory to the system that a burst of work has left free in the allocator.
//!
//! An allocator keeps freed memory for later. Free chunks lie between used ones, so glibc's
//! allocator never returns most of them: after a list of 20,000 pods as a table a process of 107 MB
//! stayed at 890 MB. No event marks the end of a burst, so components report the bytes that they
//! receive and send, and some time after a large amount all free memory is returned.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::Notify;

use crate::Shutdown;
use crate::{clock, tasks};

/// Bytes received and sent after which a trim is worthwhile: processing them allocates several
/// times as much.
pub const BURST_BYTES: usize = 8 * 1024 * 1024;

/// A burst is over when no further burst was reported for this long.
pub const SETTLE: Duration = Duration::from_secs(2);

/// Under steady load memory is returned once in this many times [`SETTLE`]: a trim costs
/// milliseconds, and a page fault for each page that is used again.
const ROUNDS_MAX: u32 = 15;

/// Bytes reported since the last reset.
static REPORTED: AtomicUsize = AtomicUsize::new(0);
/// Notified when the reported bytes reach [`BURST_BYTES`].
static BURST: Notify = Notify::const_new();

/// Records bytes that were received or sent.
pub fn worked(bytes: usize) {
    let before = REPORTED.fetch_add(bytes, Relaxed);
    if before < BURST_BYTES && before.saturating_add(bytes) >= BURST_BYTES {
        BURST.notify_one();
    }
}

/// Calls `return_memory`, which may block, after the start and after each burst, until shutdown.
///
/// # Errors
/// None; the signature is that of tasks.
pub async fn keep_small(shutdown: Shutdown, return_memory: fn()) -> Result<(), Infallible> {
    loop {
        // Wait for an interval without a burst.
        for _ in 0..ROUNDS_MAX {
            REPORTED.store(0, Relaxed);
            tokio::select! {
                () = clock::sleep(SETTLE) => {}
                () = shutdown.requested() => return Ok(()),
            }
            if REPORTED.load(Relaxed) < BURST_BYTES {
                break;
            }
        }
        REPORTED.store(0, Relaxed);
        if let Err(error) = tasks::blocking(return_memory).await {
            tracing::warn!(%error, "memory: cannot return free memory to the system");
        }
        // A notification may remain from the burst that has ended, so check the bytes, too.
        while REPORTED.load(Relaxed) < BURST_BYTES {
            tokio::select! {
                () = BURST.notified() => {}
                () = shutdown.requested() => return Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, Tasks};
    use tokio::time::Instant;

    static RETURNS: AtomicUsize = AtomicUsize::new(0);
    static DONE: Notify = Notify::const_new();

    #[tokio::test(start_paused = true)]
    async fn memory_is_returned_only_after_the_start_and_after_bursts() {
        let tasks = Tasks::new(Shutdown::new());
        let keeping = keep_small(tasks.shutdown().clone(), || {
            RETURNS.fetch_add(1, Relaxed);
            DONE.notify_one();
        });
        tasks.spawn(Kind::Critical, "memory", keeping);
        let begin = Instant::now();
        DONE.notified().await;
        assert_eq!((RETURNS.load(Relaxed), begin.elapsed() >= SETTLE), (1, true));
        // A small amount is not a burst, however long ago.
        worked(BURST_BYTES / 2);
        let waited = tokio::time::timeout(Duration::from_secs(3600), DONE.notified()).await;
        assert!(waited.is_err() && RETURNS.load(Relaxed) == 1);
        // With more bytes it becomes a burst, which is over after a pause.
        let begin = Instant::now();
        worked(BURST_BYTES / 2);
        for _ in 0..8 {
            worked(2 * BURST_BYTES);
            let waited = tokio::time::timeout(SETTLE / 2, DONE.notified()).await;
            assert!(waited.is_err());
        }
        DONE.notified().await;
        assert_eq!((RETURNS.load(Relaxed), begin.elapsed() >= 4 * SETTLE), (2, true));
        let waited = tokio::time::timeout(Duration::from_secs(3600), DONE.notified()).await;
        assert!(waited.is_err() && RETURNS.load(Relaxed) == 2);
        // Steady load does not postpone a trim forever.
        let busy = async {
            loop {
                worked(BURST_BYTES);
                clock::sleep(SETTLE / 2).await;
            }
        };
        tokio::select! {
            waited = tokio::time::timeout(SETTLE * (ROUNDS_MAX + 2), DONE.notified()) => {
                assert!(waited.is_ok());
            }
            () = busy => {}
        }
        assert_eq!(RETURNS.load(Relaxed), 3);
        tasks.shutdown().request();
        assert!(tasks.drain(Duration::from_secs(1)).await.is_empty());
    }
}
