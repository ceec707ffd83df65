//! Changes as watches deliver them.

use super::error::StoreError;
use super::key::{KeyValue, Revision};

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
