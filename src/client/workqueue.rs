//! A queue of keys: each key is queued at most once and never processed concurrently; failing keys
//! are delayed.
//!
//! The contract of client-go's `workqueue`: fair, stingy, many producers and consumers.

mod metrics;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use base::{Backoff, Shutdown, clock};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

pub use metrics::render as render_metrics;

/// Delays of failing keys: 5 ms doubling to 1000 s (client-go's `DefaultControllerRateLimiter`).
const FAILURE_BACKOFF: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1000));

struct Inner<K> {
    /// The name in the metrics; without one the queue is not counted.
    name: Option<&'static str>,
    ready: VecDeque<K>,
    /// Keys that wait, or must be processed again after their current run, and since when.
    dirty: HashMap<K, Instant>,
    /// Keys that are processed, and since when.
    processing: HashMap<K, Instant>,
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

impl<K: Send> metrics::Snapshot for Mutex<Inner<K>> {
    fn snapshot(&self) -> (usize, Vec<Duration>) {
        let (inner, now) = (self.lock(), clock::now());
        (inner.dirty.len(), inner.processing.values().map(|since| now - *since).collect())
    }
}

impl<K: Send + 'static> Queue<K> {
    /// Counts the queue in the metrics under this name, from now on; a queue that has a name keeps
    /// it.
    pub fn set_name(&self, name: &'static str) {
        let mut inner = self.inner.lock();
        if inner.name.is_none() {
            inner.name = Some(name);
            metrics::ADDS.add(&[name], inner.dirty.len() as f64);
            metrics::RETRIES.add(&[name], 0.0);
            drop(inner);
            metrics::register(name, Arc::clone(&self.inner) as Arc<dyn metrics::Snapshot>);
        }
    }
}

impl<K: Hash + Eq + Clone> Queue<K> {
    /// Creates an empty queue, bounded by the number of distinct keys.
    pub fn new() -> Self {
        let inner = Inner {
            name: None,
            ready: VecDeque::new(),
            dirty: HashMap::new(),
            processing: HashMap::new(),
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
        if inner.dirty.contains_key(&key) {
            return false;
        }
        inner.dirty.insert(key.clone(), clock::now());
        if let Some(name) = inner.name {
            metrics::ADDS.inc(&[name]);
        }
        if inner.processing.contains_key(&key) {
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
        if let Some(name) = inner.name {
            metrics::RETRIES.inc(&[name]);
        }
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
                    let (since, now) = (inner.dirty.remove(&key), clock::now());
                    if let (Some(name), Some(since)) = (inner.name, since) {
                        metrics::QUEUE_DURATION.took(&[name], now - since);
                    }
                    inner.processing.insert(key.clone(), now);
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
        let since = inner.processing.remove(key);
        if let (Some(name), Some(since)) = (inner.name, since) {
            metrics::WORK_DURATION.took(&[name], clock::now() - since);
        }
        if inner.dirty.contains_key(key) {
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

    #[tokio::test(start_paused = true)]
    async fn a_queue_with_a_name_is_counted() {
        const NAME: &[&str] = &["counted"];
        let page = || {
            let mut page = String::new();
            render_metrics(&mut page);
            page
        };
        let has = |line: &str| {
            let page = page();
            assert!(page.lines().any(|other| other == line), "{line} in {page}");
        };
        let (queue, shutdown) = (Queue::new(), Shutdown::new());
        queue.add("a");
        queue.set_name("counted");
        queue.set_name("renamed");
        queue.add("a");
        queue.add("b");
        clock::sleep(Duration::from_secs(3)).await;
        let key = queue.next(&shutdown).await.unwrap();
        // It is processed and waits again.
        queue.add(key);
        clock::sleep(Duration::from_secs(2)).await;
        has("workqueue_adds_total{name=\"counted\"} 3");
        has("workqueue_depth{name=\"counted\"} 2");
        has("workqueue_queue_duration_seconds_sum{name=\"counted\"} 3");
        has("workqueue_unfinished_work_seconds{name=\"counted\"} 2");
        has("workqueue_longest_running_processor_seconds{name=\"counted\"} 2");
        assert_eq!(metrics::WORK_DURATION.read(NAME), 0.0);
        queue.done(&key);
        queue.add_after(key, Duration::from_secs(1));
        queue.add_rate_limited(key);
        has("workqueue_work_duration_seconds_sum{name=\"counted\"} 2");
        has("workqueue_retries_total{name=\"counted\"} 2");
        drop(queue);
        assert!(!page().contains("workqueue_depth{name=\"counted\"}"), "it is gone");
    }

    /// Two queues of one name add up in each page, and pages do not.
    #[test]
    fn pages_that_are_rendered_at_the_same_time_have_the_same_gauges() {
        let queues = [Queue::new(), Queue::new()];
        for queue in &queues {
            queue.set_name("paged");
            queue.add("a");
            queue.add("b");
        }
        let depth = || {
            let mut page = String::new();
            render_metrics(&mut page);
            let mut lines = page.lines().filter(|line| line.starts_with("workqueue_depth{"));
            lines.find(|line| line.contains("\"paged\"")).map(str::to_owned)
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        assert_eq!(depth().unwrap(), "workqueue_depth{name=\"paged\"} 4");
                    }
                });
            }
        });
    }
}
