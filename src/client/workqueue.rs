//! A queue of keys: each key is queued at most once and never processed concurrently; failing keys
//! are delayed.
//!
//! The contract of client-go's `workqueue`: fair, stingy, many producers and consumers.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use base::{Backoff, Shutdown, clock};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Delays of failing keys: 5 ms doubling to 1000 s (client-go's `DefaultControllerRateLimiter`).
const FAILURE_BACKOFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1000));

struct Inner<K> {
    ready: VecDeque<K>,
    /// Keys that wait, or must be processed again after their current run.
    dirty: HashSet<K>,
    processing: HashSet<K>,
    delayed: BTreeMap<(Instant, u64), K>,
    /// Earliest due time per key, so that a later one is not queued additionally.
    due: HashMap<K, (Instant, u64)>,
    failures: HashMap<K, Backoff>,
    sequence: u64,
}

/// The queue; cheap to clone.
pub struct Queue<K> {
    inner: Arc<Mutex<Inner<K>>>,
    changed: Arc<Notify>,
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), changed: Arc::clone(&self.changed) }
    }
}

impl<K> fmt::Debug for Queue<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({} ready)", self.inner.lock().ready.len())
    }
}

impl<K: Hash + Eq + Clone> Default for Queue<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Hash + Eq + Clone> Queue<K> {
    /// Creates an empty queue, bounded by the number of distinct keys.
    pub fn new() -> Self {
        let inner = Inner {
            ready: VecDeque::new(),
            dirty: HashSet::new(),
            processing: HashSet::new(),
            delayed: BTreeMap::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
            sequence: 0,
        };
        Self { inner: Arc::new(Mutex::new(inner)), changed: Arc::default() }
    }

    /// Queues a key unless it is queued already.
    pub fn add(&self, key: K) {
        let mut inner = self.inner.lock();
        if Self::add_locked(&mut inner, key) {
            drop(inner);
            self.changed.notify_one();
        }
    }

    fn add_locked(inner: &mut Inner<K>, key: K) -> bool {
        if !inner.dirty.insert(key.clone()) || inner.processing.contains(&key) {
            return false;
        }
        inner.ready.push_back(key);
        true
    }

    /// Queues a key after `delay`; an earlier due time of the same key takes precedence.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        let at = clock::now() + delay;
        let mut inner = self.inner.lock();
        if let Some(due) = inner.due.get(&key).copied() {
            if due.0 <= at {
                return;
            }
            inner.delayed.remove(&due);
        }
        inner.sequence += 1;
        let slot = (at, inner.sequence);
        inner.due.insert(key.clone(), slot);
        inner.delayed.insert(slot, key);
        drop(inner);
        self.changed.notify_one();
    }

    /// Queues a key again after its increasing delay.
    pub fn add_rate_limited(&self, key: K) {
        let delay = {
            let mut inner = self.inner.lock();
            inner
                .failures
                .entry(key.clone())
                .or_insert_with(|| Backoff::new(FAILURE_BACKOFF.0, FAILURE_BACKOFF.1))
                .next_delay()
        };
        self.add_after(key, delay);
    }

    /// Resets the failures of a key after a success.
    pub fn forget(&self, key: &K) {
        self.inner.lock().failures.remove(key);
    }

    /// The number of consecutive failures of a key.
    pub fn failures(&self, key: &K) -> u32 {
        self.inner.lock().failures.get(key).map_or(0, Backoff::failures)
    }

    /// The number of ready keys.
    pub fn len(&self) -> usize {
        self.inner.lock().ready.len()
    }

    /// Whether no key is ready now.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next key; `None` on shutdown. The caller must call [`Queue::done`] afterwards.
    pub async fn next(&self, shutdown: &Shutdown) -> Option<K> {
        loop {
            let wake = {
                let mut inner = self.inner.lock();
                Self::promote(&mut inner);
                if let Some(key) = inner.ready.pop_front() {
                    inner.dirty.remove(&key);
                    inner.processing.insert(key.clone());
                    let more = !inner.ready.is_empty() || !inner.delayed.is_empty();
                    drop(inner);
                    if more {
                        // Another worker takes the next key or waits for the next due time.
                        self.changed.notify_one();
                    }
                    return Some(key);
                }
                inner.delayed.keys().next().map(|(at, _)| *at)
            };
            let due = async {
                match wake {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.changed.notified() => {}
                () = due => {}
                () = shutdown.requested() => return None,
            }
        }
    }

    fn promote(inner: &mut Inner<K>) {
        let now = clock::now();
        while let Some(entry) = inner.delayed.first_entry() {
            if entry.key().0 > now {
                return;
            }
            let key = entry.remove();
            inner.due.remove(&key);
            Self::add_locked(inner, key);
        }
    }

    /// Ends the run of a key; it is queued again if it was added meanwhile.
    pub fn done(&self, key: &K) {
        let mut inner = self.inner.lock();
        inner.processing.remove(key);
        if inner.dirty.contains(key) {
            inner.ready.push_back(key.clone());
            drop(inner);
            self.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_key_added_while_it_runs_is_processed_again_afterwards() {
        let (queue, shutdown) = (Queue::new(), Shutdown::new());
        queue.add("a");
        queue.add("a");
        let key = queue.next(&shutdown).await.unwrap();
        queue.add("a");
        assert!(queue.is_empty());
        queue.done(&key);
        assert_eq!(queue.next(&shutdown).await, Some("a"));
        queue.done(&"a");
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_earlier_of_two_due_times_applies() {
        let (queue, shutdown) = (Queue::new(), Shutdown::new());
        let start = clock::now();
        queue.add_after("a", Duration::from_secs(10));
        queue.add_after("a", Duration::from_secs(2));
        queue.add_after("a", Duration::from_secs(5));
        assert_eq!(queue.next(&shutdown).await, Some("a"));
        assert_eq!((clock::now() - start).as_secs(), 2);
        queue.done(&"a");
        shutdown.request();
        assert_eq!(queue.next(&shutdown).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_delay_a_key_exponentially() {
        let queue = Queue::new();
        for _ in 0..3 {
            queue.add_rate_limited("a");
        }
        assert_eq!(queue.failures(&"a"), 3);
        queue.forget(&"a");
        assert_eq!(queue.failures(&"a"), 0);
    }
}
