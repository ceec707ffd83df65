//! The scheduler's cache and queue: nodes with their pods, assumed ones included. One lock guards
//! it; sections are short.

use std::collections::HashMap;
use std::sync::Arc;

use api::k8s::api::core::v1::Node;
use tokio::time::Instant;

use crate::cycle;
use crate::event::Event;
use crate::framework::{CycleState, Nomination, PostFilterResult, PreBind, Snapshot};
use crate::listers::Listers;
use crate::node_info::NodeInfo;
use crate::plugins::{PLUGINS, pre_enqueue};
use crate::pod_info::PodInfo;
use crate::queue::{Key, Queue};
use crate::rejection::FitError;

/// The scheduler schedules pods with this `schedulerName`.
pub(crate) const SCHEDULER_NAME: &str = "default-scheduler";

/// Result of one cycle.
#[derive(Debug)]
pub(crate) enum CycleResult {
    /// Bind the pod to the node, after these writes.
    Bind(Arc<PodInfo>, String, Vec<PreBind>),
    /// No node fits: the message, and pods to evict from a nominated node.
    Unschedulable(Arc<PodInfo>, String, Option<Nomination>),
    /// No pod is active until this time.
    Idle(Option<Instant>),
}

/// Nodes, pods, queue.
#[derive(Debug, Default)]
pub(crate) struct State {
    nodes: Vec<NodeInfo>,
    by_name: HashMap<String, usize>,
    /// The node that each pod is bound to or assumed on.
    assigned: HashMap<Key, String>,
    /// Pods nominated for a node after preemption.
    nominated: HashMap<Key, Arc<PodInfo>>,
    queue: Queue,
    /// The node that the next search begins with.
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

    /// A node was added or changed.
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
            self.queue.on_event(&Event::Node, now);
        }
    }

    /// A node was deleted; its pods stay in the cache until they are deleted.
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

    /// A pod was added or changed.
    pub(crate) fn set_pod(&mut self, pod: PodInfo, spec_changed: bool, now: Instant) {
        let key = pod.key();
        let pod = Arc::new(pod);
        if pod.terminal {
            return self.remove_pod(&key, now);
        }
        if pod.node_name.is_empty() {
            if self.assigned.contains_key(&key) {
                // Assumed: the binding is under way.
                return;
            }
            self.update_nomination(&key, &pod);
            if pod.scheduler != SCHEDULER_NAME && !pod.scheduler.is_empty()
                || pod.deleting
                || !pre_enqueue(&pod)
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
        self.unassign(&key);
        self.assigned.insert(key, node.clone());
        self.node_mut(&node).add_pod(pod);
        self.queue.on_event(&Event::AssignedPodAdd, now);
    }

    fn update_nomination(&mut self, key: &Key, pod: &Arc<PodInfo>) {
        if pod.nominated.is_empty() {
            self.nominated.remove(key);
        } else {
            self.nominated.insert(key.clone(), Arc::clone(pod));
        }
    }

    /// Removes a pod from its node.
    fn unassign(&mut self, key: &Key) -> Option<Arc<PodInfo>> {
        let node = self.assigned.remove(key)?;
        let pod = self.node_mut(&node).remove_pod(&key.0, &key.1);
        self.drop_if_empty(&node);
        pod
    }

    /// A pod was deleted or has finished.
    pub(crate) fn remove_pod(&mut self, key: &Key, now: Instant) {
        self.queue.remove(key);
        self.nominated.remove(key);
        if let Some(pod) = self.unassign(key) {
            self.queue.on_event(&Event::AssignedPodDelete(&pod), now);
        }
    }

    /// An object other than a pod or node changed.
    pub(crate) fn on_event(&mut self, event: &Event<'_>, now: Instant) {
        self.queue.on_event(event, now);
    }

    /// The binding failed: the pod leaves the node and is tried again later.
    pub(crate) fn forget(&mut self, pod: &PodInfo, now: Instant) {
        self.unassign(&pod.key());
        self.queue.failed(&pod.key(), now);
        self.queue.on_event(&Event::AssignedPodDelete(pod), now);
    }

    /// Finds a node for the next pod of the queue and assumes the pod there.
    pub(crate) fn schedule_one(
        &mut self,
        listers: &dyn Listers,
        now: Instant,
        pick: &dyn Fn(usize) -> usize,
    ) -> CycleResult {
        let Some(pod) = self.queue.pop(now) else {
            return CycleResult::Idle(self.queue.next_wake());
        };
        let key = pod.key();
        let snapshot = Snapshot { pod: &pod, nodes: &self.nodes, listers };
        let state = CycleState::new(snapshot, PLUGINS);
        let nominated = |node: &NodeInfo| {
            let others = self.nominated.iter().filter(|(k, p)| {
                p.nominated == node.name && p.priority >= pod.priority && **k != key
            });
            others.map(|(_, p)| Arc::clone(p)).collect()
        };
        match cycle::select(&state, self.start, &nominated, pick) {
            Ok(index) => {
                let node = self.nodes.get(index);
                let writes = node.map(|n| state.reserve(n)).unwrap_or_default();
                let node = node.map(|n| n.name.clone()).unwrap_or_default();
                self.start = (index + 1) % self.nodes.len().max(1);
                self.nominated.remove(&key);
                self.assigned.insert(key, node.clone());
                self.node_mut(&node)
                    .add_pod(Arc::new(PodInfo { node_name: node.clone(), ..(*pod).clone() }));
                CycleResult::Bind(pod, node, writes)
            }
            Err(fit) => {
                let (message, nomination) = post_filter(&state, &fit);
                self.queue.unschedulable(&key, fit.plugins(), now);
                if let Some(nomination) = &nomination {
                    let nominated =
                        PodInfo { nominated: nomination.node.clone(), ..(*pod).clone() };
                    self.nominated.insert(key, Arc::new(nominated));
                }
                CycleResult::Unschedulable(pod, message, nomination)
            }
        }
    }
}

/// The message for the pod, and the node that preemption frees for it.
fn post_filter(state: &CycleState<'_>, fit: &FitError) -> (String, Option<Nomination>) {
    let message = fit.message();
    if fit.nodes == 0 {
        return (message, None);
    }
    match state.post_filter(fit) {
        Some(PostFilterResult::Nominated(nomination)) => (message, Some(nomination)),
        Some(PostFilterResult::Unschedulable(why)) => (format!("{message} {why}"), None),
        None => (message, None),
    }
}
