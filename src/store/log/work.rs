//! Execution of blocking work: on blocking threads, or inline under simulation.

use std::io;

use base::tasks::blocking;

/// Where blocking work runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskWork {
    /// On threads for blocking work.
    Threads,
    /// Inline, so that a seed decides the order of everything.
    #[cfg(test)]
    Here,
}

impl DiskWork {
    /// Runs `work`.
    ///
    /// # Errors
    /// Only if the work panicked.
    pub(crate) async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        match self {
            Self::Threads => blocking(work)
                .await
                .map_err(|panic| io::Error::other(format!("disk operation failed: {panic}"))),
            #[cfg(test)]
            Self::Here => {
                // As with threads, other tasks run before and after it.
                tokio::task::yield_now().await;
                let done = work();
                tokio::task::yield_now().await;
                Ok(done)
            }
        }
    }
}
