//! A pinned state, for checksums and snapshots of a running store.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::OwnedMutexGuard;

use super::shared::SharedState;
use crate::contract::KvHash;
use crate::mvcc::Hashing;

/// Keeps the versions of the state, and keeps the state from being replaced, until it is dropped.
pub(crate) struct PinnedState {
    pub(crate) shared: Arc<SharedState>,
    _held: Option<OwnedMutexGuard<()>>,
}

/// Bytes of keys and values that are exported per lock.
const HASH_CHUNK_BYTES: usize = 128 * 1024;

impl PinnedState {
    /// Wraps a state that is already pinned.
    pub(crate) fn new(shared: Arc<SharedState>, held: Option<OwnedMutexGuard<()>>) -> Self {
        Self { shared, _held: held }
    }

    /// Computes the checksums of the pinned revision.
    pub(crate) fn hash(self, mut hashing: Hashing) -> KvHash {
        let mut after: Option<Bytes> = None;
        loop {
            let state = self.shared.state.read();
            let keys = state.export(after.as_ref(), hashing.revision(), HASH_CHUNK_BYTES);
            drop(state);
            let Some((last, _)) = keys.last() else { return hashing.finish() };
            after = Some(last.clone());
            keys.into_iter().for_each(|(key, versions)| hashing.add(&key, versions));
        }
    }
}

impl Drop for PinnedState {
    fn drop(&mut self) {
        self.shared.state.write().unpin();
    }
}
