//! The cache of webhook decisions: expiring, least recently used entries are evicted first
//! (apimachinery's `LRUExpireCache`).

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use super::review::Status;

/// The maximum number of entries per webhook.
const ANSWERS_MAX: usize = 8192;

/// The SHA-256 of a request.
pub(super) type Key = [u8; 32];

struct CacheEntry {
    status: Status,
    until: Instant,
    turn: u64,
}

/// The cached decisions of one webhook.
#[derive(Default)]
pub(super) struct Cache {
    kept: HashMap<Key, CacheEntry>,
    /// Keys by their last use.
    order: BTreeMap<u64, Key>,
    turn: u64,
}

impl Cache {
    /// The cached decision, unless it has expired.
    pub(super) fn get(&mut self, key: &Key, now: Instant) -> Option<Status> {
        let kept = self.kept.get_mut(key)?;
        self.order.remove(&kept.turn);
        if now >= kept.until {
            self.kept.remove(key);
            return None;
        }
        self.turn += 1;
        kept.turn = self.turn;
        self.order.insert(self.turn, *key);
        Some(kept.status.clone())
    }

    /// Caches a decision for a TTL, which may be zero.
    pub(super) fn put(&mut self, key: Key, status: Status, now: Instant, ttl: Duration) {
        let Some(until) = now.checked_add(ttl).filter(|until| *until > now) else { return };
        self.turn += 1;
        if let Some(old) = self.kept.insert(key, CacheEntry { status, until, turn: self.turn }) {
            self.order.remove(&old.turn);
        }
        self.order.insert(self.turn, key);
        while self.kept.len() > ANSWERS_MAX {
            let Some((_, oldest)) = self.order.pop_first() else { return };
            self.kept.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&number.to_le_bytes());
        key
    }

    fn allowed() -> Status {
        Status { allowed: true, ..Status::default() }
    }

    #[test]
    fn decisions_expire() {
        let now = base::clock::now();
        let mut cache = Cache::default();
        cache.put(key(1), allowed(), now, Duration::from_secs(5));
        cache.put(key(2), allowed(), now, Duration::ZERO);
        assert_eq!(cache.get(&key(1), now + Duration::from_secs(4)), Some(allowed()));
        assert_eq!(cache.get(&key(1), now + Duration::from_secs(5)), None);
        assert_eq!(cache.get(&key(2), now), None);
        assert!(cache.kept.is_empty() && cache.order.is_empty());
    }

    #[test]
    fn the_least_recently_used_decision_is_evicted() {
        let (now, ttl) = (base::clock::now(), Duration::from_secs(5));
        let mut cache = Cache::default();
        for number in 0..ANSWERS_MAX {
            cache.put(key(number), allowed(), now, ttl);
        }
        assert!(cache.get(&key(0), now).is_some());
        cache.put(key(ANSWERS_MAX), allowed(), now, ttl);
        assert!(cache.get(&key(0), now).is_some() && cache.get(&key(1), now).is_none());
        assert_eq!((cache.kept.len(), cache.order.len()), (ANSWERS_MAX, ANSWERS_MAX));
    }
}
