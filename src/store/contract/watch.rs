//! Watches: the changes of a range, in order.

use async_trait::async_trait;

use super::error::StoreError;
use super::event::Watcher;
use super::key::{KeyRange, Revision};
use super::watch_group::{WatchGroup, WatchGuard};

/// Watches of key ranges.
#[async_trait]
pub trait Watch: Send + Sync {
    /// Watches `range` for changes with revision ≥ `start`; `None` starts at the next revision.
    async fn watch(&self, range: KeyRange, start: Option<Revision>) -> Result<Watcher, StoreError>;

    /// Adds a watch to `group` under an id that the caller chooses. The watch ends when the
    /// returned guard is dropped.
    async fn watch_in(
        &self,
        group: &WatchGroup,
        id: i64,
        range: KeyRange,
        start: Option<Revision>,
    ) -> Result<WatchGuard, StoreError>;

    /// Sends a progress batch to the lagging watchers of exactly this range.
    fn notify_progress(&self, range: &KeyRange);
}
