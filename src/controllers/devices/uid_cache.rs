//! The UIDs of pods for which something has been done, most recent first.

use std::collections::VecDeque;
use std::sync::Arc;

/// Maximum number of UIDs (upstream's `maxUIDCacheEntries`).
const UIDS_MAX: usize = 500;

/// Recently added UIDs; the oldest one is dropped for a new one.
#[derive(Debug, Default)]
pub(crate) struct UidCache {
    uids: VecDeque<Arc<str>>,
}

impl UidCache {
    /// Adds a UID as the most recent one.
    pub(crate) fn add(&mut self, uid: &Arc<str>) {
        self.uids.retain(|known| known != uid);
        self.uids.push_front(Arc::clone(uid));
        self.uids.truncate(UIDS_MAX);
    }

    /// Whether a UID was added and not dropped since.
    pub(crate) fn has(&self, uid: &str) -> bool {
        self.uids.iter().any(|known| **known == *uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_uid_is_dropped() {
        let mut cache = UidCache::default();
        for number in 0..UIDS_MAX {
            cache.add(&number.to_string().into());
        }
        cache.add(&"0".into());
        cache.add(&"new".into());
        assert!(cache.has("0") && cache.has("new") && cache.has("2"));
        assert!(!cache.has("1"));
    }
}
