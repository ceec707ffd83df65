//! State that the writer shares with the engine.

use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;

use crate::contract::StoreError;
use crate::timing::Timing;

/// State of the writer.
#[derive(Debug, Default)]
pub(super) struct Status {
    pub(super) stopped: Mutex<Option<StoreError>>,
    /// Number of applied commands.
    pub(super) applied: AtomicU64,
    /// Bytes on disk.
    pub(super) bytes: AtomicU64,
    /// Durations of database transactions.
    pub(super) writes: Timing,
}

impl Status {
    pub(super) fn stop(&self, reason: &StoreError) {
        self.stopped.lock().get_or_insert_with(|| reason.clone());
    }
}
