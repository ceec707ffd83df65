//! Releases the claims of pods that do not exist on this node any longer, such as those that were
//! deleted by force while the process was stopped.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::{Backoff, Kind};
use tokio::sync::Notify;

use super::DynamicResources;

/// Delays between attempts; upstream tries each minute.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// The state of the release of claims without pods.
#[derive(Debug, Default)]
pub(super) struct OrphanClaims {
    /// A task is releasing claims.
    is_running: AtomicBool,
    driver_registered: Notify,
}

impl OrphanClaims {
    /// Tries again at once: a driver was registered.
    pub(super) fn retry(&self) {
        if self.is_running.load(Ordering::Acquire) {
            self.driver_registered.notify_one();
        }
    }
}

impl DynamicResources {
    /// Releases the claims of all pods that do not exist, in the background and until it succeeds.
    pub(crate) fn release_orphans(self: &Arc<Self>, exists: impl Fn(&str) -> bool) {
        let pods = self.claims.lock().pods();
        let orphans: Vec<String> = pods.into_iter().filter(|pod| !exists(pod)).collect();
        // What the running task does not cover is found by the next check.
        if orphans.is_empty() || self.orphans.is_running.swap(true, Ordering::AcqRel) {
            return;
        }
        let resources = Arc::clone(self);
        self.tasks.spawn(Kind::Request, "dra-orphans", async move {
            resources.release_until_done(orphans).await;
            resources.orphans.is_running.store(false, Ordering::Release);
            Ok::<(), Infallible>(())
        });
    }

    async fn release_until_done(&self, mut orphans: Vec<String>) {
        let mut backoff = Backoff::new(RETRY_FIRST, RETRY_MAX);
        loop {
            let mut failed = Vec::new();
            for pod in orphans {
                match self.unprepare(&pod).await {
                    Ok(()) => tracing::info!(uid = pod, "released the claims of a deleted pod"),
                    Err(error) => {
                        if backoff.failures() == 0 {
                            tracing::warn!(uid = pod, %error, "cannot release claims, retrying");
                        }
                        failed.push(pod);
                    }
                }
            }
            orphans = failed;
            let registered = self.orphans.driver_registered.notified();
            if orphans.is_empty() || !backoff.wait_or(self.tasks.shutdown(), registered).await {
                return;
            }
        }
    }
}
