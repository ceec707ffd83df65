//! Creations and deletions that a controller has requested and not yet observed in its cache, so
//! that it does not repeat them.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use base::clock;
use parking_lot::Mutex;
use tokio::time::Instant;

/// An expectation expires after this time (`k8s.io/kubernetes/pkg/controller`:
/// `ExpectationsTimeout`).
const EXPIRES_AFTER: Duration = Duration::from_secs(300);

/// What is expected for one key.
#[derive(Debug)]
struct Pending {
    /// Creations that are not yet observed; negative if more were observed than expected.
    creations: i64,
    /// Uids of objects whose deletion is not yet observed.
    deletions: HashSet<String>,
    /// Time of the last expectation; the expiry is relative to it.
    since: Instant,
}

/// Expectations per key of an owner, such as a ReplicaSet (upstream's
/// `UIDTrackingControllerExpectations`).
#[derive(Debug, Default)]
pub struct Expectations {
    pending: Mutex<HashMap<String, Pending>>,
}

impl Expectations {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Changes the expectations of a key and restarts their expiry.
    fn update(&self, key: &str, change: impl FnOnce(&mut Pending)) {
        let mut pending = self.pending.lock();
        let entry = pending.entry(key.to_owned()).or_insert_with(|| Pending {
            creations: 0,
            deletions: HashSet::new(),
            since: clock::now(),
        });
        entry.since = clock::now();
        change(entry);
    }

    /// Records that `count` creations are about to be sent.
    pub fn expect_creations(&self, key: &str, count: usize) {
        self.update(key, |p| p.creations += i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Records that these uids are about to be deleted.
    pub fn expect_deletions(&self, key: &str, uids: impl IntoIterator<Item = String>) {
        self.update(key, |p| p.deletions.extend(uids));
    }

    /// Records that a creation was observed or failed.
    pub fn creation_observed(&self, key: &str) {
        if let Some(pending) = self.pending.lock().get_mut(key) {
            pending.creations -= 1;
        }
    }

    /// Records that a deletion was observed or failed.
    pub fn deletion_observed(&self, key: &str, uid: &str) {
        if let Some(pending) = self.pending.lock().get_mut(key) {
            pending.deletions.remove(uid);
        }
    }

    /// Whether all expectations of a key were observed or have expired, so that the controller may
    /// rely on its cache.
    pub fn satisfied(&self, key: &str) -> bool {
        match self.pending.lock().get(key) {
            None => true,
            Some(p) => {
                (p.creations <= 0 && p.deletions.is_empty())
                    || clock::now() - p.since > EXPIRES_AFTER
            }
        }
    }

    /// Removes a key whose owner was deleted.
    pub fn forget(&self, key: &str) {
        self.pending.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn expectations_are_fulfilled_or_expire() {
        let expectations = Expectations::new();
        assert!(expectations.satisfied("a"));
        expectations.expect_creations("a", 1);
        expectations.expect_deletions("a", ["u".to_owned()]);
        expectations.creation_observed("a");
        assert!(!expectations.satisfied("a"));
        expectations.deletion_observed("a", "u");
        assert!(expectations.satisfied("a"));
        expectations.expect_creations("a", 1);
        assert!(!expectations.satisfied("a"));
        clock::sleep(Duration::from_secs(301)).await;
        assert!(expectations.satisfied("a"));
    }
}
