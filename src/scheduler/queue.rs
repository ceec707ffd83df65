//! The scheduling queue: pods without a node that are active, backing off, or unschedulable until
//! an event concerns them. Pure: callers pass the time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::event::Event;
use crate::pod_info::PodInfo;
use crate::profile::queueing_hint;

/// Namespace and name.
pub(crate) type Key = (String, String);

/// An unschedulable pod is tried again after this time without any event
/// (`DefaultPodMaxInUnschedulablePodsDuration`).
const UNSCHEDULABLE_MAX: Duration = Duration::from_secs(300);

#[derive(Debug)]
enum QueueState {
    Active,
    Backoff(Instant),
    /// The plugins that rejected it, and when.
    Unschedulable(Vec<&'static str>, Instant),
    /// A plugin does not let it in yet; it has not been tried.
    Gated,
    /// In a scheduling cycle, or being bound.
    InFlight,
}

#[derive(Debug)]
struct QueuedPod {
    pod: Arc<PodInfo>,
    attempts: u32,
    sequence: u64,
    state: QueueState,
    failed: Option<Instant>,
}

impl QueuedPod {
    fn rank(&self) -> (Reverse<i32>, u64) {
        (Reverse(self.pod.priority), self.sequence)
    }

    /// Whether the event may make the pod schedulable.
    fn concerns(&self, event: &Event<'_>) -> bool {
        match &self.state {
            QueueState::Unschedulable(plugins, _) => {
                plugins.is_empty() || plugins.iter().any(|p| queueing_hint(p, event, &self.pod))
            }
            QueueState::Active
            | QueueState::Backoff(_)
            | QueueState::Gated
            | QueueState::InFlight => false,
        }
    }
}

/// The queue; bounded by the number of pods without a node.
#[derive(Debug)]
pub(crate) struct Queue {
    /// Back-off of a pod after its first failure; it doubles with each further one.
    initial_backoff: Duration,
    /// The longest back-off.
    max_backoff: Duration,
    entries: HashMap<Key, QueuedPod>,
    active: BTreeSet<((Reverse<i32>, u64), Key)>,
    backoff: BTreeMap<(Instant, u64), Key>,
    sequence: u64,
}

impl Queue {
    /// An empty queue with these back-offs.
    pub(crate) fn new(initial_backoff: Duration, max_backoff: Duration) -> Self {
        let (entries, active, backoff) = Default::default();
        Self { initial_backoff, max_backoff, entries, active, backoff, sequence: 0 }
    }

    /// A pod without a node was added or changed.
    pub(crate) fn put(&mut self, pod: Arc<PodInfo>, now: Instant) {
        let key = pod.key();
        if let Some(entry) = self.entries.get_mut(&key).filter(|e| e.pod.uid == pod.uid) {
            let rank = entry.rank();
            entry.pod = pod;
            match entry.state {
                QueueState::Active => {
                    let new = entry.rank();
                    self.active.remove(&(rank, key.clone()));
                    self.active.insert((new, key));
                }
                QueueState::Gated => self.activate(&key, now),
                QueueState::Backoff(_) | QueueState::Unschedulable(..) | QueueState::InFlight => {}
            }
            return;
        }
        self.insert(pod, QueueState::InFlight);
        self.activate(&key, now);
    }

    fn insert(&mut self, pod: Arc<PodInfo>, state: QueueState) {
        let key = pod.key();
        self.remove(&key);
        self.sequence += 1;
        let (attempts, sequence, failed) = (0, self.sequence, None);
        self.entries.insert(key, QueuedPod { pod, attempts, sequence, state, failed });
    }

    /// A pod without a node was added or changed that a plugin does not let in.
    pub(crate) fn gate(&mut self, pod: Arc<PodInfo>) {
        self.insert(pod, QueueState::Gated);
    }

    /// The pods that a plugin did not let in and for which `concerns` returns true.
    pub(crate) fn gated(&self, concerns: impl Fn(&PodInfo) -> bool) -> Vec<Arc<PodInfo>> {
        let entries = self.entries.values().filter(|e| matches!(e.state, QueueState::Gated));
        entries.map(|e| &e.pod).filter(|pod| concerns(pod)).cloned().collect()
    }

    /// The pod with this name.
    pub(crate) fn pod(&self, key: &Key) -> Option<&Arc<PodInfo>> {
        self.entries.get(key).map(|entry| &entry.pod)
    }

    /// Whether the pod is in a scheduling cycle.
    pub(crate) fn is_in_flight(&self, pod: &PodInfo) -> bool {
        let entry = self.entries.get(&pod.key()).filter(|entry| entry.pod.uid == pod.uid);
        entry.is_some_and(|entry| matches!(entry.state, QueueState::InFlight))
    }

    /// Activates the pod itself if the event may make it schedulable.
    pub(crate) fn on_own_event(&mut self, key: &Key, event: &Event<'_>, now: Instant) {
        if self.entries.get(key).is_some_and(|entry| entry.concerns(event)) {
            self.activate(key, now);
        }
    }

    /// The spec or the labels of the pod changed: an unschedulable pod is tried again.
    pub(crate) fn changed(&mut self, key: &Key, now: Instant) {
        if self.entries.get(key).is_some_and(|e| matches!(e.state, QueueState::Unschedulable(..))) {
            self.activate(key, now);
        }
    }

    /// The pod was assigned to a node or deleted.
    pub(crate) fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.leave(&entry, key);
        }
    }

    fn leave(&mut self, entry: &QueuedPod, key: &Key) {
        match entry.state {
            QueueState::Active => drop(self.active.remove(&(entry.rank(), key.clone()))),
            QueueState::Backoff(until) => drop(self.backoff.remove(&(until, entry.sequence))),
            QueueState::Unschedulable(..) | QueueState::Gated | QueueState::InFlight => {}
        }
    }

    /// Moves the pod into the active queue, or into back-off until its delay has passed.
    fn activate(&mut self, key: &Key, now: Instant) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let delay = if entry.attempts == 0 {
            Duration::ZERO
        } else {
            let factor = 2_u32.saturating_pow(entry.attempts.min(16) - 1);
            self.initial_backoff.saturating_mul(factor).min(self.max_backoff)
        };
        match entry.failed.map(|at| at + delay).filter(|until| *until > now) {
            Some(until) => {
                entry.state = QueueState::Backoff(until);
                self.backoff.insert((until, entry.sequence), key.clone());
            }
            None => {
                entry.state = QueueState::Active;
                self.active.insert((entry.rank(), key.clone()));
            }
        }
    }

    /// The next pod by priority, then age.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<Arc<PodInfo>> {
        while let Some(first) = self.backoff.first_entry().filter(|e| e.key().0 <= now) {
            let key = first.remove();
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.failed = None;
            }
            self.activate(&key, now);
        }
        let is_stale = |entry: &QueuedPod| match &entry.state {
            QueueState::Unschedulable(_, since) => now - *since >= UNSCHEDULABLE_MAX,
            QueueState::Active
            | QueueState::Backoff(_)
            | QueueState::Gated
            | QueueState::InFlight => false,
        };
        let entries = self.entries.iter().filter(|(_, entry)| is_stale(entry));
        let stale: Vec<Key> = entries.map(|(key, _)| key.clone()).collect();
        for key in stale {
            self.activate(&key, now);
        }
        let (_, key) = self.active.pop_first()?;
        let entry = self.entries.get_mut(&key)?;
        entry.state = QueueState::InFlight;
        entry.attempts += 1;
        Some(Arc::clone(&entry.pod))
    }

    /// No node fits: waits for an event that concerns one of these plugins.
    pub(crate) fn unschedulable(&mut self, key: &Key, plugins: Vec<&'static str>, now: Instant) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.failed = Some(now);
            entry.state = QueueState::Unschedulable(plugins, now);
        }
    }

    /// The binding failed: tries again after the back-off.
    pub(crate) fn failed(&mut self, key: &Key, now: Instant) {
        if let Some(entry) =
            self.entries.get_mut(key).filter(|e| matches!(e.state, QueueState::InFlight))
        {
            entry.failed = Some(now);
            self.activate(key, now);
        }
    }

    /// Activates the pods that the event may make schedulable.
    pub(crate) fn on_event(&mut self, event: &Event<'_>, now: Instant) {
        let entries = self.entries.iter().filter(|(_, entry)| entry.concerns(event));
        let concerned: Vec<Key> = entries.map(|(key, _)| key.clone()).collect();
        for key in concerned {
            self.activate(&key, now);
        }
    }

    /// When the next pod becomes active without an event.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let backoff = self.backoff.keys().next().map(|(at, _)| *at);
        let stale = self.entries.values().filter_map(|e| match &e.state {
            QueueState::Unschedulable(_, since) => Some(*since + UNSCHEDULABLE_MAX),
            QueueState::Active
            | QueueState::Backoff(_)
            | QueueState::Gated
            | QueueState::InFlight => None,
        });
        backoff.into_iter().chain(stale.min()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF_INITIAL: Duration = Duration::from_secs(1);

    fn new_queue() -> Queue {
        Queue::new(BACKOFF_INITIAL, Duration::from_secs(10))
    }

    fn pod(name: &str, priority: i32) -> Arc<PodInfo> {
        Arc::new(PodInfo {
            namespace: "n".into(),
            name: name.into(),
            uid: name.into(),
            priority,
            ..PodInfo::default()
        })
    }

    fn key(name: &str) -> Key {
        ("n".into(), name.into())
    }

    #[tokio::test(start_paused = true)]
    async fn priority_goes_before_age() {
        let (mut queue, now) = (new_queue(), Instant::now());
        for (name, priority) in [("a", 0), ("b", 5), ("c", 0)] {
            queue.put(pod(name, priority), now);
        }
        let order: Vec<String> =
            std::iter::from_fn(|| queue.pop(now)).map(|p| p.name.clone()).collect();
        assert_eq!(order, ["b", "a", "c"]);
    }

    #[tokio::test(start_paused = true)]
    async fn only_events_of_the_rejecting_plugins_wake_a_pod_and_not_before_its_back_off() {
        let (mut queue, now) = (new_queue(), Instant::now());
        queue.put(pod("a", 0), now);
        queue.pop(now).unwrap();
        queue.unschedulable(&key("a"), vec!["NodeResourcesFit"], now);
        queue.on_event(&Event::StorageClass, now);
        assert!(queue.pop(now).is_none());
        queue.on_event(&Event::AssignedPodDelete(&PodInfo::default()), now);
        assert!(queue.pop(now).is_none());
        assert_eq!(queue.next_wake(), Some(now + BACKOFF_INITIAL));
        assert_eq!(queue.pop(now + BACKOFF_INITIAL).unwrap().name, "a");
    }

    #[tokio::test(start_paused = true)]
    async fn unschedulable_pod_is_tried_again_after_five_minutes() {
        let (mut queue, now) = (new_queue(), Instant::now());
        queue.put(pod("a", 0), now);
        queue.pop(now).unwrap();
        queue.unschedulable(&key("a"), vec!["NodeAffinity"], now);
        assert!(queue.pop(now + Duration::from_secs(299)).is_none());
        assert!(queue.pop(now + Duration::from_secs(300)).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn gated_pod_is_not_tried_until_it_is_let_in() {
        let (mut queue, now) = (new_queue(), Instant::now());
        queue.gate(pod("a", 0));
        assert!(queue.pop(now + UNSCHEDULABLE_MAX).is_none());
        assert_eq!(queue.next_wake(), None);
        assert_eq!(queue.gated(|pod| pod.name == "a").len(), 1);
        queue.put(pod("a", 0), now);
        assert_eq!(queue.pop(now).unwrap().name, "a");
        assert!(queue.is_in_flight(&pod("a", 0)));
        queue.gate(pod("a", 0));
        assert!(!queue.is_in_flight(&pod("a", 0)), "its claim was deleted meanwhile");
    }
}
