//! Background tasks of the server: compaction of the store and repair of Service addresses.

use std::sync::Arc;

use store::StoreError;

use crate::registry::compaction::Compaction;
use crate::state::ApiServer;
use crate::write::service_allocation;

/// Upstream's `DefaultCompactInterval`.
const COMPACTION_INTERVAL: std::time::Duration = std::time::Duration::from_secs(5 * 60);

impl ApiServer {
    /// Creates the `IPAddress` of Services that have none.
    pub(super) fn start_address_repair(&self) {
        let shutdown = self.inner.tasks.shutdown().clone();
        let run = service_allocation::repair::run(Arc::clone(&self.inner.objects), shutdown);
        self.inner.tasks.spawn(base::tasks::Kind::Critical, "service addresses", async move {
            run.await;
            Ok::<(), String>(())
        });
    }

    /// Compacts the store every five minutes to the revision of the previous round, as upstream
    /// does.
    pub(super) fn start_compaction(&self) {
        let inner = Arc::clone(&self.inner);
        let shutdown = self.inner.tasks.shutdown().clone();
        self.inner.tasks.spawn(base::tasks::Kind::Critical, "compaction", async move {
            let mut before: Option<i64> = None;
            let mut shared = Compaction::default();
            loop {
                tokio::select! {
                    () = base::clock::sleep(COMPACTION_INTERVAL) => {}
                    () = shutdown.requested() => return Ok::<(), String>(()),
                }
                let backend = inner.objects.storage().backend();
                if backend.is_shared() {
                    match shared.round(&**backend).await {
                        Ok(()) | Err(StoreError::Compacted { .. }) => {}
                        Err(error) => not_compacted(&error),
                    }
                    continue;
                }
                if let Some(revision) = to_compact(before, backend.compacted().0) {
                    match inner.objects.storage().compact(revision).await {
                        // An etcd client or another server has compacted further.
                        Ok(()) | Err(StoreError::Compacted { .. }) => {}
                        Err(error) => not_compacted(&error),
                    }
                }
                before = Some(backend.revision().0);
            }
        });
    }
}

/// The revision that a round compacts to, the newest one at the round before; `None` when nothing
/// was written since the last compaction, as on an idle server.
fn to_compact(before: Option<i64>, compacted: i64) -> Option<i64> {
    before.filter(|revision| *revision > compacted)
}

fn not_compacted(error: &StoreError) {
    tracing::warn!(%error, "cannot compact the store, retrying in the next round");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_store_is_not_compacted_again() {
        assert_eq!(to_compact(None, 0), None, "the first round only remembers");
        assert_eq!(to_compact(Some(7), 3), Some(7));
        assert_eq!(to_compact(Some(7), 7), None, "idle since the last round");
        assert_eq!(to_compact(Some(7), 9), None, "another client compacted further");
    }
}
