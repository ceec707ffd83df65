//! The scheduling queue: pods without a node that are active, backing off, or unschedulable until
//! an event concerns them. Pure: callers pass the time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::event::{Event, label};
use crate::metrics::{self, Attempt, MetricsSnapshot, Sizes};
use crate::plugins::queueing_hint;
use crate::pod_info::PodInfo;
use crate::profile::scheduler_name;

/// Namespace and name.
pub(crate) type Key = (String, String);

/// An unschedulable pod is tried again after this time without any event
/// (`DefaultPodMaxInUnschedulablePodsDuration`).
const UNSCHEDULABLE_MAX: Duration = Duration::from_secs(300);

#[derive(Debug)]
enum QueueState {
    Active,
    Backoff(Instant),
    /// No node fitted at this time.
    Unschedulable(Instant),
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
    /// The plugins that rejected it last, until the next attempt.
    rejected_by: Vec<&'static str>,
    /// When it became active for the first time.
    queued: Option<Instant>,
    /// When the last attempt began.
    started: Instant,
    /// It became active because `UNSCHEDULABLE_MAX` passed.
    flushed: bool,
}

impl QueuedPod {
    fn rank(&self) -> (Reverse<i32>, u64) {
        (Reverse(self.pod.priority), self.sequence)
    }

    /// Whether the event may make the pod schedulable.
    fn concerns(&self, event: &Event<'_>) -> bool {
        let plugins = &self.rejected_by;
        matches!(self.state, QueueState::Unschedulable(_))
            && (plugins.is_empty() || plugins.iter().any(|p| queueing_hint(p, event, &self.pod)))
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
    /// Unschedulable pods by the time since when they are and their sequence number, so that the
    /// limit of their waiting time needs no look at the others.
    unschedulable: BTreeMap<(Instant, u64), Key>,
    /// The pod whose cycle runs without the lock, and the last event since its beginning: the cycle
    /// did not see what changed.
    detached: Option<(Key, Option<&'static str>)>,
    sequence: u64,
}

impl Queue {
    /// An empty queue with these back-offs.
    pub(crate) fn new(initial_backoff: Duration, max_backoff: Duration) -> Self {
        let (entries, active, backoff, unschedulable) = Default::default();
        Self {
            initial_backoff,
            max_backoff,
            entries,
            active,
            backoff,
            unschedulable,
            detached: None,
            sequence: 0,
        }
    }

    /// A pod without a node was added or changed. `event` is the change that lets a gated pod in.
    pub(crate) fn put(&mut self, pod: Arc<PodInfo>, event: &'static str, now: Instant) {
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
                QueueState::Gated => self.activate(&key, event, now),
                QueueState::Backoff(_) | QueueState::Unschedulable(_) | QueueState::InFlight => {}
            }
            return;
        }
        self.insert(pod, QueueState::InFlight, Vec::new(), now);
        self.activate(&key, label::UNSCHEDULED_POD_ADD, now);
    }

    fn insert(
        &mut self,
        pod: Arc<PodInfo>,
        state: QueueState,
        rejected_by: Vec<&'static str>,
        now: Instant,
    ) {
        let key = pod.key();
        self.remove(&key);
        self.sequence += 1;
        let entry = QueuedPod {
            pod,
            attempts: 0,
            sequence: self.sequence,
            state,
            failed: None,
            rejected_by,
            queued: None,
            started: now,
            flushed: false,
        };
        self.entries.insert(key, entry);
    }

    /// A pod without a node was added or changed that this plugin does not let in.
    pub(crate) fn gate(&mut self, pod: Arc<PodInfo>, plugin: &'static str, now: Instant) {
        let entry = self.entries.get(&pod.key());
        if !entry.is_some_and(|entry| matches!(entry.state, QueueState::Gated)) {
            metrics::incoming_pod(label::UNSCHEDULED_POD_ADD, "unschedulable");
        }
        self.insert(pod, QueueState::Gated, vec![plugin], now);
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
    pub(crate) fn on_own_event(
        &mut self,
        key: &Key,
        event: &Event<'_>,
        label: &'static str,
        now: Instant,
    ) {
        if self.entries.get(key).is_some_and(|entry| entry.concerns(event)) {
            self.activate(key, label, now);
        }
    }

    /// The spec or the labels of the pod changed: an unschedulable pod is tried again.
    pub(crate) fn changed(&mut self, key: &Key, label: &'static str, now: Instant) {
        if self.entries.get(key).is_some_and(|e| matches!(e.state, QueueState::Unschedulable(_))) {
            self.activate(key, label, now);
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
            QueueState::Unschedulable(since) => {
                self.unschedulable.remove(&(since, entry.sequence));
            }
            QueueState::Gated | QueueState::InFlight => {}
        }
    }

    /// Moves the pod into the active queue, or into back-off until its delay has passed.
    fn activate(&mut self, key: &Key, event: &'static str, now: Instant) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        if let QueueState::Unschedulable(since) = entry.state {
            self.unschedulable.remove(&(since, entry.sequence));
        }
        let delay = if entry.attempts == 0 {
            Duration::ZERO
        } else {
            let factor = 2_u32.saturating_pow(entry.attempts.min(16) - 1);
            self.initial_backoff.saturating_mul(factor).min(self.max_backoff)
        };
        match entry.failed.map(|at| at + delay).filter(|until| *until > now) {
            Some(until) => {
                metrics::incoming_pod(event, "backoff");
                entry.state = QueueState::Backoff(until);
                self.backoff.insert((until, entry.sequence), key.clone());
            }
            None => {
                metrics::incoming_pod(event, "active");
                entry.queued.get_or_insert(now);
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
            self.activate(&key, label::BACKOFF_COMPLETE, now);
        }
        while let Some(first) = self
            .unschedulable
            .first_entry()
            .filter(|first| now.saturating_duration_since(first.key().0) >= UNSCHEDULABLE_MAX)
        {
            let key = first.remove();
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.flushed = true;
            }
            self.activate(&key, label::UNSCHEDULABLE_TIMEOUT, now);
        }
        let (_, key) = self.active.pop_first()?;
        let entry = self.entries.get_mut(&key)?;
        entry.state = QueueState::InFlight;
        entry.attempts += 1;
        entry.started = now;
        entry.rejected_by.clear();
        Some(Arc::clone(&entry.pod))
    }

    /// The cycle of this pod runs without the lock, until [`Queue::end_detached`].
    pub(crate) fn begin_detached(&mut self, key: &Key) {
        self.detached = Some((key.clone(), None));
    }

    /// The cycle of the pod has ended. An unschedulable pod is tried again if anything changed
    /// during the cycle (upstream's in-flight events, here without the hints of plugins).
    pub(crate) fn end_detached(&mut self, key: &Key, now: Instant) {
        let Some((_, Some(event))) = self.detached.take_if(|(detached, _)| detached == key) else {
            return;
        };
        let entry = self.entries.get(key);
        if entry.is_some_and(|entry| matches!(entry.state, QueueState::Unschedulable(_))) {
            self.activate(key, event, now);
        }
    }

    /// No node fits: waits for an event that concerns one of these plugins.
    pub(crate) fn unschedulable(&mut self, key: &Key, plugins: Vec<&'static str>, now: Instant) {
        let in_flight = |entry: &&mut QueuedPod| matches!(entry.state, QueueState::InFlight);
        if let Some(entry) = self.entries.get_mut(key).filter(in_flight) {
            metrics::incoming_pod(label::SCHEDULE_ATTEMPT_FAILURE, "unschedulable");
            entry.failed = Some(now);
            entry.flushed = false;
            entry.rejected_by = plugins;
            entry.state = QueueState::Unschedulable(now);
            self.unschedulable.insert((now, entry.sequence), key.clone());
        }
    }

    /// The last attempt to schedule the pod.
    pub(crate) fn attempt(&self, key: &Key) -> Option<Attempt> {
        let entry = self.entries.get(key)?;
        Some(Attempt {
            number: entry.attempts,
            started: entry.started,
            queued: entry.queued.unwrap_or(entry.started),
            after_flush: entry.flushed,
        })
    }

    /// Adds the pods to `sizes` and to the gauge of those that plugins rejected; a pod in a cycle
    /// for which `is_assumed` returns true is being bound.
    pub(crate) fn report(
        &self,
        sizes: &mut Sizes,
        metrics: &MetricsSnapshot,
        is_assumed: impl Fn(&Key) -> bool,
    ) {
        for (key, entry) in &self.entries {
            match entry.state {
                QueueState::Active => sizes.active += 1,
                QueueState::Backoff(_) => sizes.backoff += 1,
                QueueState::Unschedulable(_) => sizes.unschedulable += 1,
                QueueState::Gated => sizes.gated += 1,
                QueueState::InFlight => sizes.assumed_pods += usize::from(is_assumed(key)),
            }
            for plugin in &entry.rejected_by {
                metrics.add_rejected_pod(plugin, scheduler_name(&entry.pod));
            }
        }
    }

    /// The binding failed: tries again after the back-off.
    pub(crate) fn failed(&mut self, key: &Key, now: Instant) {
        if let Some(entry) =
            self.entries.get_mut(key).filter(|e| matches!(e.state, QueueState::InFlight))
        {
            entry.failed = Some(now);
            entry.flushed = false;
            self.activate(key, label::SCHEDULE_ATTEMPT_FAILURE, now);
        }
    }

    /// Activates the pods that the event may make schedulable. `label` is its name.
    pub(crate) fn on_event(&mut self, event: &Event<'_>, label: &'static str, now: Instant) {
        if let Some((_, last)) = &mut self.detached {
            *last = Some(label);
        }
        // Only pods that are unschedulable wait for events; a backlog of others may be long.
        let waiting = self.unschedulable.values();
        let is_concerned = |key: &&Key| self.entries.get(*key).is_some_and(|e| e.concerns(event));
        let concerned: Vec<Key> = waiting.filter(is_concerned).cloned().collect();
        for key in concerned {
            self.activate(&key, label, now);
        }
    }

    /// When the next pod becomes active without an event.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let backoff = self.backoff.keys().next().map(|(at, _)| *at);
        let stale = self.unschedulable.keys().next().map(|(since, _)| *since + UNSCHEDULABLE_MAX);
        backoff.into_iter().chain(stale).min()
    }
}

#[cfg(test)]
mod tests;
