//! State that the writer shares with the engine.

use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;

use crate::contract::StoreError;
use crate::timing::Timing;

/// What the writer tells.
#[derive(Debug, Default)]
pub(super) struct Status {
    pub(super) stopped: Mutex<Option<StoreError>>,
    /// Commands applied.
    pub(super) applied: AtomicU64,
    /// Bytes on disk.
    pub(super) bytes: AtomicU64,
    /// Database transactions.
    pub(super) writes: Timing,
}

impl Status {
    pub(super) fn stop(&self, reason: &StoreError) {
        self.stopped.lock().get_or_insert_with(|| reason.clone());
    }
}
