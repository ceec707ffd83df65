//! Pods that wait for a node: active, backing off, unschedulable until something changes. Pure but for the clock handed in.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::pod_info::PodInfo;

/// Namespace and name.
pub(crate) type Key = (String, String);

/// Back-off of a pod that failed: 1 s doubling to 10 s (`podInitialBackoffSeconds`, `podMaxBackoffSeconds`).
const BACKOFF_INITIAL: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// An unschedulable pod is tried again after this time whatever happens (`DefaultPodMaxInUnschedulablePodsDuration`).
const UNSCHEDULABLE_MAX: Duration = Duration::from_secs(300);

/// What may make an unschedulable pod schedulable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// A node came or changed what matters.
    Node,
    /// A pod left a node.
    PodRemoved,
    /// A pod came to a node or changed its labels.
    PodPlaced,
    /// A claim, volume or class changed.
    Storage,
    /// A namespace's labels changed.
    Namespace,
}

/// The event may mend the refusal of this plugin (queueing hints).
fn mends(event: Event, plugin: &str) -> bool {
    match plugin {
        "NodeResourcesFit" | "NodePorts" => matches!(event, Event::Node | Event::PodRemoved),
        "PodTopologySpread" => matches!(event, Event::Node | Event::PodRemoved | Event::PodPlaced),
        "InterPodAffinity" => {
            matches!(event, Event::Node | Event::PodRemoved | Event::PodPlaced | Event::Namespace)
        }
        "VolumeBinding" => matches!(event, Event::Node | Event::Storage),
        "VolumeRestrictions" => matches!(event, Event::PodRemoved),
        _ => matches!(event, Event::Node),
    }
}

#[derive(Debug)]
enum Place {
    Active,
    Backoff(Instant),
    /// Refused by these plugins, since then.
    Unschedulable(Vec<&'static str>, Instant),
    /// Taken by the cycle or being bound.
    Out,
}

#[derive(Debug)]
struct Entry {
    pod: Arc<PodInfo>,
    attempts: u32,
    sequence: u64,
    place: Place,
    failed: Option<Instant>,
}

impl Entry {
    fn rank(&self) -> (Reverse<i32>, u64) {
        (Reverse(self.pod.priority), self.sequence)
    }
}

/// The queue; bounded by the number of pods without a node.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    entries: HashMap<Key, Entry>,
    active: BTreeSet<((Reverse<i32>, u64), Key)>,
    backoff: BTreeMap<(Instant, u64), Key>,
    sequence: u64,
}

impl Queue {
    /// A pod that wants a node came or changed; a change of its spec may make it schedulable.
    pub(crate) fn put(&mut self, pod: Arc<PodInfo>, now: Instant) {
        let key = pod.key();
        if let Some(entry) = self.entries.get_mut(&key).filter(|e| e.pod.uid == pod.uid) {
            let rank = entry.rank();
            entry.pod = pod;
            if matches!(entry.place, Place::Active) {
                let new = entry.rank();
                self.active.remove(&(rank, key.clone()));
                self.active.insert((new, key));
            }
            return;
        }
        self.remove(&key);
        self.sequence += 1;
        let entry =
            Entry { pod, attempts: 0, sequence: self.sequence, place: Place::Out, failed: None };
        self.entries.insert(key.clone(), entry);
        self.activate(&key, now);
    }

    /// The pod changed in a way that may matter to its own schedulability.
    pub(crate) fn changed(&mut self, key: &Key, now: Instant) {
        if self.entries.get(key).is_some_and(|e| matches!(e.place, Place::Unschedulable(..))) {
            self.activate(key, now);
        }
    }

    /// The pod has a node or is gone.
    pub(crate) fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.leave(&entry, key);
        }
    }

    fn leave(&mut self, entry: &Entry, key: &Key) {
        match entry.place {
            Place::Active => drop(self.active.remove(&(entry.rank(), key.clone()))),
            Place::Backoff(until) => drop(self.backoff.remove(&(until, entry.sequence))),
            Place::Unschedulable(..) | Place::Out => {}
        }
    }

    /// Into the active queue, or into back-off while the last failure is too fresh.
    fn activate(&mut self, key: &Key, now: Instant) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let delay = if entry.attempts == 0 {
            Duration::ZERO
        } else {
            (BACKOFF_INITIAL * 2_u32.saturating_pow(entry.attempts.min(16) - 1)).min(BACKOFF_MAX)
        };
        match entry.failed.map(|at| at + delay).filter(|until| *until > now) {
            Some(until) => {
                entry.place = Place::Backoff(until);
                self.backoff.insert((until, entry.sequence), key.clone());
            }
            None => {
                entry.place = Place::Active;
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
        let stale: Vec<Key> = self
            .entries
            .iter()
            .filter(|(_, e)| matches!(&e.place, Place::Unschedulable(_, since) if now - *since >= UNSCHEDULABLE_MAX))
            .map(|(k, _)| k.clone())
            .collect();
        for key in stale {
            self.activate(&key, now);
        }
        let (_, key) = self.active.pop_first()?;
        let entry = self.entries.get_mut(&key)?;
        entry.place = Place::Out;
        entry.attempts += 1;
        Some(Arc::clone(&entry.pod))
    }

    /// No node fitted: wait for an event that concerns these plugins.
    pub(crate) fn unschedulable(&mut self, key: &Key, plugins: Vec<&'static str>, now: Instant) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.failed = Some(now);
            entry.place = Place::Unschedulable(plugins, now);
        }
    }

    /// Something else failed (a write): try again after the back-off.
    pub(crate) fn failed(&mut self, key: &Key, now: Instant) {
        if let Some(entry) = self.entries.get_mut(key).filter(|e| matches!(e.place, Place::Out)) {
            entry.failed = Some(now);
            self.activate(key, now);
        }
    }

    /// Wakes the pods that the event may help.
    pub(crate) fn wake(&mut self, event: Event, now: Instant) {
        let helped: Vec<Key> = self
            .entries
            .iter()
            .filter(|(_, e)| matches!(&e.place, Place::Unschedulable(plugins, _) if plugins.is_empty() || plugins.iter().any(|p| mends(event, p))))
            .map(|(k, _)| k.clone())
            .collect();
        for key in helped {
            self.activate(&key, now);
        }
    }

    /// When to look again although nothing happened.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let backoff = self.backoff.keys().next().map(|(at, _)| *at);
        let stale = self.entries.values().filter_map(|e| match &e.place {
            Place::Unschedulable(_, since) => Some(*since + UNSCHEDULABLE_MAX),
            Place::Active | Place::Backoff(_) | Place::Out => None,
        });
        backoff.into_iter().chain(stale.min()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let (mut queue, now) = (Queue::default(), Instant::now());
        for (name, priority) in [("a", 0), ("b", 5), ("c", 0)] {
            queue.put(pod(name, priority), now);
        }
        let order: Vec<String> =
            std::iter::from_fn(|| queue.pop(now)).map(|p| p.name.clone()).collect();
        assert_eq!(order, ["b", "a", "c"]);
    }

    #[tokio::test(start_paused = true)]
    async fn only_events_that_may_help_wake_a_pod_and_not_before_its_back_off() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.put(pod("a", 0), now);
        queue.pop(now).unwrap();
        queue.unschedulable(&key("a"), vec!["NodeResourcesFit"], now);
        queue.wake(Event::Storage, now);
        assert!(queue.pop(now).is_none());
        queue.wake(Event::PodRemoved, now);
        assert!(queue.pop(now).is_none());
        assert_eq!(queue.next_wake(), Some(now + BACKOFF_INITIAL));
        assert_eq!(queue.pop(now + BACKOFF_INITIAL).unwrap().name, "a");
    }

    #[tokio::test(start_paused = true)]
    async fn an_unschedulable_pod_is_tried_again_after_five_minutes() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.put(pod("a", 0), now);
        queue.pop(now).unwrap();
        queue.unschedulable(&key("a"), vec!["NodeAffinity"], now);
        assert!(queue.pop(now + Duration::from_secs(299)).is_none());
        assert!(queue.pop(now + Duration::from_secs(300)).is_some());
    }
}
