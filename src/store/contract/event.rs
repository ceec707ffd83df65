//! Changes as watches deliver them.

use super::error::StoreError;
use super::key::{KeyValue, Revision};

/// A change that a watch delivers.
#[derive(Debug, Clone)]
pub struct Event {
    /// The new version; for a deletion a tombstone (empty value, `mod_revision` of the deletion).
    pub kv: KeyValue,
    /// The version before this revision; `None` for a creation.
    pub prev: Option<KeyValue>,
    /// The key was deleted.
    pub deleted: bool,
}

/// Events of one or several whole revisions, in order, or progress.
///
/// A watch receives progress once when it has caught up with history, and at every
/// [`crate::Kv::read_barrier`] that finds it lagging: after the barrier resolves, every watch
/// delivers a batch with at least that revision. [`crate::Watch::notify_progress`] does the same
/// for the watches of one range.
#[derive(Debug, Clone)]
pub struct WatchBatch {
    /// Changes; empty for progress.
    pub events: Vec<Event>,
    /// All changes up to this revision are delivered.
    pub revision: Revision,
}

/// A running watch. It is bounded: a watcher that lags too far is ended with
/// [`StoreError::Overrun`]; no event is ever skipped.
#[derive(Debug)]
pub struct Watcher {
    /// Batches in order; the channel closes after an error or when the store stops.
    pub batches: tokio::sync::mpsc::Receiver<Result<WatchBatch, StoreError>>,
}
