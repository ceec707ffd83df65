//! Where blocking work of the store runs: away from the runtime's workers, or in place under simulation.

use std::io;

use base::tasks::blocking;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskWork {
    /// On threads for blocking work.
    Threads,
    /// Where it is called, so that a seed decides the order of everything.
    #[cfg(test)]
    Here,
}

impl DiskWork {
    /// Runs `work`.
    ///
    /// # Errors
    /// Only when the work panicked.
    pub(crate) async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        match self {
            Self::Threads => blocking(work)
                .await
                .map_err(|panic| io::Error::other(format!("work on the disk failed: {panic}"))),
            #[cfg(test)]
            Self::Here => {
                // As with threads, others run before and behind it.
                tokio::task::yield_now().await;
                let done = work();
                tokio::task::yield_now().await;
                Ok(done)
            }
        }
    }
}
