//! Watches: the changes of a range, in order.

use async_trait::async_trait;

use super::error::StoreError;
use super::key::{KeyRange, KeyValue, Revision};
use super::watch_group::{WatchGroup, Watching};

/// One change seen by a watch.
#[derive(Debug, Clone)]
pub struct Event {
    /// The new version; for a deletion a tombstone (empty value, `mod_revision` of the deletion).
    pub kv: KeyValue,
    /// The version before the revision; `None` for a creation.
    pub prev: Option<KeyValue>,
    /// The key was deleted.
    pub deleted: bool,
}

/// Events of one or several whole revisions, in order, or progress.
///
/// Progress comes once when a watch has caught up with history, and at every [`Backend::read_barrier`] that finds the
/// watcher behind: after awaiting the barrier, every watch delivers a batch with at least that revision.
/// [`Backend::notify_progress`] brings it to the watches of one range.
#[derive(Debug, Clone)]
pub struct WatchBatch {
    /// Changes; empty means progress only.
    pub events: Vec<Event>,
    /// Everything up to this revision was delivered.
    pub revision: Revision,
}

/// A running watch. Bounded: a watcher that does not keep up is ended with [`StoreError::Overrun`], never silently skipped.
#[derive(Debug)]
pub struct Watcher {
    /// Batches in order; the channel closes after an error or when the store stops.
    pub batches: tokio::sync::mpsc::Receiver<Result<WatchBatch, StoreError>>,
}

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
    ) -> Result<Watching, StoreError>;

    /// Sends a progress batch to the lagging watchers of exactly this range.
    fn notify_progress(&self, range: &KeyRange);
}
