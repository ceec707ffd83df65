//! Serializes operations: at most one at a time on each volume, and on the volumes of each pod.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

/// Locks by key. A lock is held while a driver works, for which calls have deadlines; it is no lock
/// of memory.
#[derive(Debug, Default)]
pub(crate) struct OperationLocks(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl OperationLocks {
    /// Waits until no other operation holds `key`.
    pub(crate) async fn lock(&self, key: String) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock();
            // Only locks that are held or awaited remain.
            locks.retain(|_, lock| lock.strong_count() > 0);
            let known = locks.get(&key).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let lock = Arc::default();
                locks.insert(key, Arc::downgrade(&lock));
                lock
            })
        };
        lock.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn one_operation_at_a_time_holds_a_key() {
        let locks = OperationLocks::default();
        let first = locks.lock("a".into()).await;
        let soon = Duration::from_secs(1);
        assert!(tokio::time::timeout(soon, locks.lock("a".into())).await.is_err());
        let other = locks.lock("b".into()).await;
        drop(first);
        let again = tokio::time::timeout(soon, locks.lock("a".into())).await;
        assert!(again.is_ok());
        drop((again, other));
        let _last = locks.lock("c".into()).await;
        assert_eq!(locks.0.lock().len(), 1);
    }
}
