//! What the scheduler believes: nodes with their pods (assumed ones included) and the queue. One lock, short sections.

use std::collections::HashMap;
use std::sync::Arc;

use api::k8s::api::core::v1::Node;
use client::labels::Labels;
use tokio::time::Instant;

use crate::cycle::{self, Unfit};
use crate::node_info::NodeInfo;
use crate::plugins::Round;
use crate::pod_info::PodInfo;
use crate::preemption::{self, Budget, Candidate};
use crate::queue::{Event, Key, Queue};
use crate::volumes::{Storage, VolumeStep, VolumeView};

/// Pods of this scheduler name are ours.
pub(crate) const SCHEDULER_NAME: &str = "default-scheduler";

/// What the state looks up elsewhere.
pub(crate) trait Lookup: Storage {
    /// Labels of a namespace.
    fn namespace_labels(&self, name: &str) -> Option<Labels>;
    /// All disruption budgets.
    fn budgets(&self) -> Vec<Budget>;
}

/// Result of one cycle.
#[derive(Debug)]
pub(crate) enum Step {
    /// Bind the pod, after these volume steps.
    Bind(Arc<PodInfo>, String, Vec<VolumeStep>),
    /// No node fits; the text, and pods to evict on a nominated node.
    Refuse(Arc<PodInfo>, String, Option<Candidate>),
    /// Nothing to do until then.
    Idle(Option<Instant>),
}

/// Nodes, pods, queue.
#[derive(Debug, Default)]
pub(crate) struct State {
    nodes: Vec<NodeInfo>,
    by_name: HashMap<String, usize>,
    /// Where each pod is, as far as known or assumed.
    placed: HashMap<Key, String>,
    /// Pods promised to a node after preemption.
    nominated: HashMap<Key, Arc<PodInfo>>,
    queue: Queue,
    start: usize,
}

impl State {
    fn node_mut(&mut self, name: &str) -> &mut NodeInfo {
        let index = *self.by_name.entry(name.to_owned()).or_insert_with(|| {
            self.nodes.push(NodeInfo { name: name.to_owned(), ..NodeInfo::default() });
            self.nodes.len() - 1
        });
        &mut self.nodes[index]
    }

    /// A node came or changed.
    pub(crate) fn set_node(&mut self, node: &Node, now: Instant) {
        let info = self.node_mut(node.metadata.name.as_deref().unwrap_or_default());
        let mut new = info.clone();
        new.set_node(node);
        let matters = !info.known
            || new.labels != info.labels
            || new.taints != info.taints
            || new.unschedulable != info.unschedulable
            || new.allocatable != info.allocatable;
        *info = new;
        if matters {
            self.queue.wake(Event::Node, now);
        }
    }

    /// A node went; its pods are known until they go, too.
    pub(crate) fn remove_node(&mut self, name: &str) {
        let info = self.node_mut(name);
        info.known = false;
        self.drop_if_empty(name);
    }

    fn drop_if_empty(&mut self, name: &str) {
        let Some(&index) = self.by_name.get(name) else { return };
        if self.nodes.get(index).is_some_and(|n| !n.known && n.pods.is_empty()) {
            self.nodes.swap_remove(index);
            self.by_name.remove(name);
            if let Some(moved) = self.nodes.get(index) {
                self.by_name.insert(moved.name.clone(), index);
            }
        }
    }

    /// A pod came or changed.
    pub(crate) fn set_pod(&mut self, pod: PodInfo, spec_changed: bool, now: Instant) {
        let key = pod.key();
        let pod = Arc::new(pod);
        if pod.terminal {
            return self.remove_pod(&key, now);
        }
        if pod.node_name.is_empty() {
            if self.placed.contains_key(&key) {
                // Assumed: the binding is on its way.
                return;
            }
            self.note_nomination(&key, &pod);
            if pod.scheduler != SCHEDULER_NAME && !pod.scheduler.is_empty()
                || !pod.gates.is_empty()
                || pod.deleting
            {
                self.queue.remove(&key);
                return;
            }
            self.queue.put(pod, now);
            if spec_changed {
                self.queue.changed(&key, now);
            }
            return;
        }
        self.queue.remove(&key);
        self.nominated.remove(&key);
        let node = pod.node_name.clone();
        self.take(&key);
        self.placed.insert(key, node.clone());
        self.node_mut(&node).add_pod(pod);
        self.queue.wake(Event::PodPlaced, now);
    }

    fn note_nomination(&mut self, key: &Key, pod: &Arc<PodInfo>) {
        if pod.nominated.is_empty() {
            self.nominated.remove(key);
        } else {
            self.nominated.insert(key.clone(), Arc::clone(pod));
        }
    }

    /// Takes a pod off its node, if it has one.
    fn take(&mut self, key: &Key) -> bool {
        let Some(node) = self.placed.remove(key) else { return false };
        self.node_mut(&node).remove_pod(&key.0, &key.1);
        self.drop_if_empty(&node);
        true
    }

    /// A pod went or finished.
    pub(crate) fn remove_pod(&mut self, key: &Key, now: Instant) {
        self.queue.remove(key);
        self.nominated.remove(key);
        if self.take(key) {
            self.queue.wake(Event::PodRemoved, now);
        }
    }

    /// Something else changed.
    pub(crate) fn wake(&mut self, event: Event, now: Instant) {
        self.queue.wake(event, now);
    }

    /// The binding failed: the pod is free again and tried later.
    pub(crate) fn forget(&mut self, pod: &PodInfo, now: Instant) {
        self.take(&pod.key());
        self.queue.failed(&pod.key(), now);
        self.queue.wake(Event::PodRemoved, now);
    }

    /// Takes the next pod and finds it a node; an assumed pod counts on its node at once.
    pub(crate) fn schedule_one(
        &mut self,
        lookup: &dyn Lookup,
        now: Instant,
        pick: &dyn Fn(usize) -> usize,
    ) -> Step {
        let Some(pod) = self.queue.pop(now) else { return Step::Idle(self.queue.next_wake()) };
        let key = pod.key();
        let in_use = |claim: &str| {
            self.nodes
                .iter()
                .flat_map(|n| &n.pods)
                .any(|p| p.namespace == pod.namespace && p.claims.iter().any(|c| c == claim))
        };
        let volumes = VolumeView::new(&pod, lookup, &in_use);
        let namespace_labels = |name: &str| lookup.namespace_labels(name);
        let round = Round::new(&pod, &self.nodes, &namespace_labels, &volumes);
        let promised = |node: &NodeInfo| {
            let rivals = self.nominated.iter().filter(|(k, p)| {
                p.nominated == node.name && p.priority >= pod.priority && **k != key
            });
            rivals.map(|(_, p)| Arc::clone(p)).collect()
        };
        match cycle::select(&round, self.start, &promised, pick) {
            Ok(index) => {
                let steps = self
                    .nodes
                    .get(index)
                    .map(|n| volumes.plan(n))
                    .and_then(Result::ok)
                    .unwrap_or_default();
                let node = self.nodes.get(index).map(|n| n.name.clone()).unwrap_or_default();
                self.start = (index + 1) % self.nodes.len().max(1);
                self.nominated.remove(&key);
                self.placed.insert(key, node.clone());
                self.node_mut(&node)
                    .add_pod(Arc::new(PodInfo { node_name: node.clone(), ..(*pod).clone() }));
                Step::Bind(pod, node, steps)
            }
            Err(unfit) => {
                let (text, candidate) = preempt(&round, &unfit, &self.nodes, lookup);
                self.queue.unschedulable(&key, unfit.plugins(), now);
                if let Some(candidate) = &candidate {
                    let nominated = PodInfo { nominated: candidate.node.clone(), ..(*pod).clone() };
                    self.nominated.insert(key, Arc::new(nominated));
                }
                Step::Refuse(pod, text, candidate)
            }
        }
    }
}

/// The text of the refusal, and whom to evict.
fn preempt(
    round: &Round<'_>,
    unfit: &Unfit,
    nodes: &[NodeInfo],
    lookup: &dyn Lookup,
) -> (String, Option<Candidate>) {
    let pod = round.pod;
    let text = unfit.message();
    if unfit.nodes == 0 {
        return (text, None);
    }
    if pod.never_preempts {
        return (format!("{text} preemption: not eligible due to preemptionPolicy=Never."), None);
    }
    let on_nominated = nodes
        .iter()
        .find(|n| n.name == pod.nominated)
        .map(|n| n.pods.as_slice())
        .unwrap_or_default();
    if on_nominated.iter().any(|p| p.deleting && p.priority < pod.priority) {
        return (
            format!(
                "{text} preemption: not eligible due to a terminating pod on the nominated node."
            ),
            None,
        );
    }
    match preemption::find(round, unfit, &lookup.budgets()) {
        Ok(candidate) => (text, Some(candidate)),
        Err(why) => (format!("{text} preemption: {why}"), None),
    }
}
