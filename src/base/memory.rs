//! What a burst of work has left free in the allocator goes back to the system.
//!
//! An allocator keeps what was freed for the next time. Free pieces lie between pieces in use, so
//! that glibc's never gives most of them back by itself: after a list of 20,000 pods as a table a
//! process of 107 MB stayed at 890 MB. Nothing tells when a burst is over, so whoever takes in or
//! gives out much says how much it was, and some time after much of that everything free is given
//! back.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::Notify;

use crate::Shutdown;
use crate::{clock, tasks};

/// Bytes taken in and given out after which there may be much to give back; work on them needs
/// several times as much.
pub const BURST_BYTES: usize = 8 * 1024 * 1024;

/// A burst is over when so long nothing more came that would be one.
pub const SETTLE: Duration = Duration::from_secs(2);

/// Under steady load memory is given back once in so many times [`SETTLE`]: it costs milliseconds,
/// and a fault for each page that is wanted again.
const ROUNDS_MAX: u32 = 15;

static WORKED: AtomicUsize = AtomicUsize::new(0);
static BURST: Notify = Notify::const_new();

/// Says that so many bytes were taken in or given out.
pub fn worked(bytes: usize) {
    let before = WORKED.fetch_add(bytes, Relaxed);
    if before < BURST_BYTES && before.saturating_add(bytes) >= BURST_BYTES {
        BURST.notify_one();
    }
}

/// Calls `give_back`, which may block, after the start and after each burst, until shutdown.
///
/// # Errors
/// None; the type is that of tasks.
pub async fn keep_small(shutdown: Shutdown, give_back: fn()) -> Result<(), Infallible> {
    loop {
        for _ in 0..ROUNDS_MAX {
            WORKED.store(0, Relaxed);
            tokio::select! {
                () = clock::sleep(SETTLE) => {}
                () = shutdown.requested() => return Ok(()),
            }
            if WORKED.load(Relaxed) < BURST_BYTES {
                break;
            }
        }
        WORKED.store(0, Relaxed);
        if let Err(error) = tasks::blocking(give_back).await {
            tracing::warn!(%error, "memory was not given back");
        }
        // What was told while the last burst went on is over.
        while WORKED.load(Relaxed) < BURST_BYTES {
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

    static GIVEN: AtomicUsize = AtomicUsize::new(0);
    static DONE: Notify = Notify::const_new();

    #[tokio::test(start_paused = true)]
    async fn memory_is_given_back_after_the_start_and_after_bursts_alone() {
        let tasks = Tasks::new(Shutdown::new());
        let keeping = keep_small(tasks.shutdown().clone(), || {
            GIVEN.fetch_add(1, Relaxed);
            DONE.notify_one();
        });
        tasks.spawn(Kind::Critical, "memory", keeping);
        let begin = Instant::now();
        DONE.notified().await;
        assert_eq!((GIVEN.load(Relaxed), begin.elapsed() >= SETTLE), (1, true));
        // A little is no burst, however long ago.
        worked(BURST_BYTES / 2);
        let waited = tokio::time::timeout(Duration::from_secs(3600), DONE.notified()).await;
        assert!(waited.is_err() && GIVEN.load(Relaxed) == 1);
        // Together with more it is one, which is over when nothing more comes.
        let begin = Instant::now();
        worked(BURST_BYTES / 2);
        for _ in 0..8 {
            worked(2 * BURST_BYTES);
            let waited = tokio::time::timeout(SETTLE / 2, DONE.notified()).await;
            assert!(waited.is_err());
        }
        DONE.notified().await;
        assert_eq!((GIVEN.load(Relaxed), begin.elapsed() >= 4 * SETTLE), (2, true));
        let waited = tokio::time::timeout(Duration::from_secs(3600), DONE.notified()).await;
        assert!(waited.is_err() && GIVEN.load(Relaxed) == 2);
        // Under steady load it is not put off for ever.
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
        assert_eq!(GIVEN.load(Relaxed), 3);
        tasks.shutdown().request();
        assert!(tasks.drain(Duration::from_secs(1)).await.is_empty());
    }
}
