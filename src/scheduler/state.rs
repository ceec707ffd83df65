//! The scheduler's cache and queue: nodes with their pods, assumed ones included. One lock guards
//! it; sections are short.

use std::collections::HashMap;
use std::sync::Arc;

use api::k8s::api::core::v1::Node;
use base::clock;
use tokio::time::Instant;

use crate::config::Configuration;
use crate::cycle;
use crate::devices::binding::ClaimRelease;
use crate::devices::store::Devices;
use crate::event::{Event, label, target_pod_event};
use crate::extender::{CallExtenders, Extender, Extenders, PodExtenders};
use crate::framework::{
    CycleState, Nomination, NominationChange, PostFilterOutcome, PreBind, Snapshot,
};
use crate::listers::Listers;
use crate::metrics::{self, Attempt, MetricsSnapshot, Sizes};
use crate::nodes::Nodes;
use crate::pod_info::PodInfo;
use crate::profile::{Profile, Profiles};
use crate::queue::{Key, Queue};
use crate::rejection::FitError;

/// Result of one cycle.
#[derive(Debug)]
pub(crate) enum CycleResult {
    /// Bind the pod to the node, after these writes.
    Bind(Attempt, Arc<PodInfo>, String, Vec<PreBind>),
    /// No node fits.
    Unschedulable(Attempt, Arc<PodInfo>, Unschedulable),
    /// The cycle ended with this error; the pod is tried again after a back-off.
    Failed(Attempt, Arc<PodInfo>, String),
    /// The pod was deleted or bound during the cycle: nothing is written.
    Abandoned(Arc<PodInfo>, Vec<PreBind>),
    /// No pod is active until this time.
    Idle(Option<Instant>),
}

/// Why no node fits a pod, and what may change that.
#[derive(Debug)]
pub(crate) struct Unschedulable {
    /// The message of the nodes.
    pub(crate) message: String,
    /// What the plugins say that tried to make room.
    pub(crate) reasons: Vec<String>,
    /// Pods to evict from a nominated node.
    pub(crate) nomination: Option<Nomination>,
    /// The pod loses the nomination that it has.
    pub(crate) clears_nomination: bool,
    /// A claim to release; the texts are true once that has succeeded.
    pub(crate) release: Option<ClaimRelease>,
}

impl Unschedulable {
    /// What becomes of the nomination of the pod.
    pub(crate) fn nomination_change(&self) -> NominationChange<'_> {
        match &self.nomination {
            Some(nomination) => NominationChange::Set(&nomination.node),
            None if self.clears_nomination => NominationChange::Clear,
            None => NominationChange::Keep,
        }
    }

    /// The message of the pod's condition.
    pub(crate) fn text(&self) -> String {
        self.text_with(&self.reasons.join(", "))
    }

    /// The message of the pod's condition if the claim could not be released.
    pub(crate) fn text_with(&self, reason: &str) -> String {
        match reason {
            "" => self.message.clone(),
            reason => format!("{} {reason}", self.message),
        }
    }
}

/// Nodes, pods, queue.
#[derive(Debug)]
pub(crate) struct State {
    profiles: Profiles,
    /// Claims, and the devices for them.
    devices: Arc<Devices>,
    nodes: Nodes,
    /// The node that each pod is bound to or assumed on.
    assigned: HashMap<Key, String>,
    /// Pods nominated for a node after preemption.
    nominated: HashMap<Key, Arc<PodInfo>>,
    queue: Queue,
    extenders: Extenders,
    /// The node that the next search begins with.
    start: usize,
}

/// A cycle that runs without the lock of the state, on a copy of the nodes: the search for devices
/// and the answers of extenders may take long.
#[derive(Debug)]
pub(crate) struct DetachedCycle {
    profile: Arc<Profile>,
    pod: Arc<PodInfo>,
    nodes: Nodes,
    nominated: Vec<Arc<PodInfo>>,
    /// The extenders that take part.
    extenders: Vec<Arc<Extender>>,
    start: usize,
}

/// The next step of the scheduler.
#[derive(Debug)]
pub(crate) enum NextCycle {
    /// The cycle is over.
    Done(CycleResult),
    /// The cycle is to be run.
    Detached(Box<DetachedCycle>),
}

/// The outcome of a cycle.
#[derive(Debug)]
pub(crate) enum Decision {
    /// The node fits, after these writes; so many nodes were filtered.
    Fits { processed: usize, node: String, writes: Vec<PreBind> },
    /// No node fits because of these plugins; so many nodes were filtered.
    Unfit { processed: usize, why: Unschedulable, plugins: Vec<&'static str> },
    /// An error of a plugin.
    Failed(String),
}

impl DetachedCycle {
    /// The pod that needs a node.
    pub(crate) fn pod(&self) -> &Arc<PodInfo> {
        &self.pod
    }

    /// Runs the cycle; `calls` is for its extenders.
    pub(crate) fn run(
        self,
        listers: &dyn Listers,
        random: &dyn Fn(usize) -> usize,
        calls: &dyn CallExtenders,
    ) -> Decision {
        let extenders = PodExtenders { extenders: &self.extenders, calls };
        let snapshot = Snapshot {
            pod: &self.pod,
            nodes: &self.nodes,
            listers,
            args: &self.profile.args,
            random,
            nominated: &self.nominated,
            extenders: if self.extenders.is_empty() { None } else { Some(&extenders) },
        };
        decide(snapshot, &self.profile, self.start)
    }
}

/// Finds a node and reserves what the pod needs there.
fn decide(snapshot: Snapshot<'_>, profile: &Profile, start: usize) -> Decision {
    let began = clock::now();
    let state = CycleState::new(snapshot, profile);
    let found = match cycle::find(&state, start) {
        Ok(feasible) => Ok((cycle::best(&state, &feasible, &mut |_, _| {}), feasible)),
        Err(FitError { error: Some(error), .. }) => Err(Decision::Failed(error)),
        Err(fit) => Err(Decision::Unfit {
            processed: fit.processed,
            why: post_filter(&state, &fit),
            plugins: fit.plugins(),
        }),
    };
    metrics::ALGORITHM.took(&[], clock::now() - began);
    let (index, feasible) = match found {
        Ok(found) => found,
        Err(decision) => return decision,
    };
    let Some(node) = snapshot.nodes.get(index) else {
        return Decision::Failed("the chosen node is not in the snapshot".into());
    };
    match state.reserve(node) {
        Ok(writes) => {
            Decision::Fits { processed: feasible.processed, node: node.name.clone(), writes }
        }
        Err(rejection) => {
            metrics::volume_error(rejection.plugin, "assume");
            let text = rejection.text();
            Decision::Failed(format!("running Reserve plugin {:?}: {text}", rejection.plugin))
        }
    }
}

impl State {
    /// A state without nodes and pods.
    pub(crate) fn new(configuration: &Configuration, devices: Arc<Devices>) -> Self {
        Self {
            profiles: configuration.profiles.clone(),
            devices,
            nodes: Nodes::default(),
            assigned: HashMap::new(),
            nominated: HashMap::new(),
            queue: Queue::new(configuration.initial_backoff, configuration.max_backoff),
            extenders: configuration.extenders.clone(),
            start: 0,
        }
    }

    /// A node was added or changed. Returns the name of the event, if it may matter to a pod.
    pub(crate) fn set_node(&mut self, node: &Node, now: Instant) -> Option<&'static str> {
        let label = self.nodes.set_node(node);
        if let Some(label) = label {
            self.queue.on_event(&Event::Node, label, now);
        }
        label
    }

    /// A node was deleted; its pods stay in the cache until they are deleted.
    pub(crate) fn remove_node(&mut self, name: &str) {
        self.nodes.remove_node(name);
    }

    /// A pod was added or changed. Returns the name of the event.
    pub(crate) fn set_pod(
        &mut self,
        pod: PodInfo,
        spec_changed: bool,
        now: Instant,
    ) -> &'static str {
        let key = pod.key();
        let pod = Arc::new(pod);
        if pod.terminal {
            return self.remove_pod(&key, now);
        }
        if pod.node_name.is_empty() {
            if self.assigned.contains_key(&key) {
                // Assumed: the binding is under way.
                return label::UNSCHEDULED_POD_UPDATE;
            }
            self.update_nomination(&key, &pod);
            let old = self.queue.pod(&key);
            let label = old.map_or(label::UNSCHEDULED_POD_ADD, |_| label::UNSCHEDULED_POD_UPDATE);
            let profile = self.profiles.of(&pod.scheduler).filter(|_| !pod.deleting);
            let Some(profile) = profile else {
                self.queue.remove(&key);
                return label;
            };
            if let Some(plugin) = profile.gated_by(&pod, &self.devices) {
                self.queue.gate(pod, plugin, now);
                return label;
            }
            let has_new_claims = old.is_some_and(|old| old.resource_claims != pod.resource_claims);
            let change = old.map_or(label, |old| target_pod_event(old, &pod));
            self.queue.put(pod, change, now);
            if spec_changed {
                self.queue.changed(&key, change, now);
            } else if has_new_claims {
                let event = Event::GeneratedResourceClaim(&self.devices);
                self.queue.on_own_event(&key, &event, change, now);
            }
            return label;
        }
        let is_new = self.queue.pod(&key).is_some() || !self.assigned.contains_key(&key);
        let label = if is_new { label::ASSIGNED_POD_ADD } else { label::ASSIGNED_POD_UPDATE };
        self.queue.remove(&key);
        self.nominated.remove(&key);
        let node = pod.node_name.clone();
        self.unassign(&key);
        self.assigned.insert(key, node.clone());
        self.nodes.add_pod(&node, pod);
        self.queue.on_event(&Event::AssignedPodAdd, label, now);
        label
    }

    /// A pod without a node was added or changed. A change that has nothing to do with its
    /// nomination may come before that of a nomination that is not written yet: it stays
    /// (`UpdateNominatedPod`).
    fn update_nomination(&mut self, key: &Key, pod: &Arc<PodInfo>) {
        if !pod.nominated.is_empty() {
            self.nominated.insert(key.clone(), Arc::clone(pod));
            return;
        }
        let old = self.queue.pod(key).filter(|old| old.uid == pod.uid && old.nominated.is_empty());
        let reserved = self.nominated.remove(key).filter(|_| old.is_some());
        if let Some(reserved) = reserved {
            self.nominate(key.clone(), pod, &reserved.nominated);
        }
    }

    fn nominate(&mut self, key: Key, pod: &PodInfo, node: &str) {
        let nominated = PodInfo { nominated: node.to_owned(), ..pod.clone() };
        self.nominated.insert(key, Arc::new(nominated));
    }

    /// Removes a pod from its node.
    fn unassign(&mut self, key: &Key) -> Option<Arc<PodInfo>> {
        let node = self.assigned.remove(key)?;
        self.nodes.remove_pod(&node, &key.0, &key.1)
    }

    /// A pod was deleted or has finished. Returns the name of the event.
    pub(crate) fn remove_pod(&mut self, key: &Key, now: Instant) -> &'static str {
        self.queue.remove(key);
        self.nominated.remove(key);
        let Some(pod) = self.unassign(key) else { return label::UNSCHEDULED_POD_DELETE };
        let (event, label) = (Event::AssignedPodDelete(&pod), label::ASSIGNED_POD_DELETE);
        self.queue.on_event(&event, label, now);
        label
    }

    /// An object other than a pod or node changed. `label` is the name of the event.
    pub(crate) fn on_event(&mut self, event: &Event<'_>, label: &'static str, now: Instant) {
        self.queue.on_event(event, label, now);
        if matches!(event, Event::ResourceClaim { .. }) {
            let has_claims = |pod: &PodInfo| !pod.resource_claims.is_empty();
            for pod in self.queue.gated(has_claims) {
                let profile = self.profiles.of(&pod.scheduler);
                if profile.is_some_and(|p| p.gated_by(&pod, &self.devices).is_none()) {
                    self.queue.put(pod, label, now);
                }
            }
        }
    }

    /// The binding failed: the pod leaves the node and is tried again later. A pod that is bound
    /// nevertheless, because the answer to the binding was lost, or that was deleted meanwhile is
    /// left alone.
    pub(crate) fn forget(&mut self, pod: &PodInfo, now: Instant) {
        if !self.queue.is_in_flight(pod) {
            return;
        }
        self.unassign(&pod.key());
        self.queue.failed(&pod.key(), now);
        self.queue.on_event(&Event::AssignedPodDelete(pod), label::ASSIGNED_POD_DELETE, now);
    }

    /// Adds the present state to the metrics.
    pub(crate) fn report(&self, metrics: &MetricsSnapshot) {
        let mut sizes = Sizes { pods: self.assigned.len(), ..Sizes::default() };
        sizes.nodes = self.nodes.len();
        self.queue.report(&mut sizes, metrics, |key| self.assigned.contains_key(key));
        metrics.set_sizes(&sizes);
        self.profiles.iter().for_each(|profile| profile.report(metrics));
    }

    /// Begins the cycle of the next pod of the queue. For a pod without claims in which no extender
    /// takes part the cycle is over when this returns.
    pub(crate) fn next_cycle(
        &mut self,
        listers: &dyn Listers,
        now: Instant,
        random: &dyn Fn(usize) -> usize,
    ) -> NextCycle {
        let Some(pod) = self.queue.pop(now) else {
            return NextCycle::Done(CycleResult::Idle(self.queue.next_wake()));
        };
        let Some(profile) = self.profiles.of(&pod.scheduler).map(Arc::clone) else {
            return NextCycle::Done(CycleResult::Idle(self.queue.next_wake()));
        };
        let (nominated, start) = (self.nominated.values().cloned().collect::<Vec<_>>(), self.start);
        let extenders = self.extenders.of_cycle(|| listers.pod_object(&pod.namespace, &pod.name));
        let has_claims = !pod.resource_claims.is_empty() || pod.served_requests.is_some();
        if has_claims || !extenders.is_empty() {
            let nodes = self.nodes.clone();
            self.queue.begin_detached(&pod.key());
            let cycle = DetachedCycle { profile, pod, nodes, nominated, extenders, start };
            return NextCycle::Detached(Box::new(cycle));
        }
        let snapshot = Snapshot {
            pod: &pod,
            nodes: &self.nodes,
            listers,
            args: &profile.args,
            random,
            nominated: &nominated,
            extenders: None,
        };
        let decision = decide(snapshot, &profile, start);
        NextCycle::Done(self.conclude(pod, decision, now))
    }

    /// Ends a detached cycle.
    pub(crate) fn finish_cycle(
        &mut self,
        pod: Arc<PodInfo>,
        decision: Decision,
        now: Instant,
    ) -> CycleResult {
        let key = pod.key();
        let result = self.conclude(pod, decision, now);
        self.queue.end_detached(&key, now);
        result
    }

    /// Assumes the pod on its node, or puts it back into the queue.
    fn conclude(&mut self, pod: Arc<PodInfo>, decision: Decision, now: Instant) -> CycleResult {
        let key = pod.key();
        let attempt = self.queue.attempt(&key).filter(|_| self.queue.is_in_flight(&pod));
        let Some(attempt) = attempt else {
            let writes = match decision {
                Decision::Fits { writes, .. } => writes,
                Decision::Unfit { .. } | Decision::Failed(_) => Vec::new(),
            };
            return CycleResult::Abandoned(pod, writes);
        };
        match decision {
            Decision::Fits { processed, node, writes } => {
                self.start = (self.start + processed) % self.nodes.len().max(1);
                self.nominated.remove(&key);
                self.assigned.insert(key, node.clone());
                let node_name = node.clone();
                let assumed = PodInfo { node_name, ..(*pod).clone() };
                self.nodes.add_pod(&node, Arc::new(assumed));
                CycleResult::Bind(attempt, pod, node, writes)
            }
            Decision::Unfit { processed, why, plugins } => {
                // Extenders may reject the nodes that were found first: others come next.
                self.start = (self.start + processed) % self.nodes.len().max(1);
                self.queue.unschedulable(&key, plugins, now);
                match why.nomination_change() {
                    NominationChange::Set(node) => self.nominate(key, &pod, node),
                    NominationChange::Clear => drop(self.nominated.remove(&key)),
                    NominationChange::Keep => {}
                }
                CycleResult::Unschedulable(attempt, pod, why)
            }
            Decision::Failed(error) => {
                self.nominated.remove(&key);
                self.queue.failed(&key, now);
                CycleResult::Failed(attempt, pod, error)
            }
        }
    }
}

/// The message for the pod, and what may make room for it.
fn post_filter(state: &CycleState<'_>, fit: &FitError) -> Unschedulable {
    let message = fit.message();
    let outcome = match fit.nodes {
        0 => PostFilterOutcome { clears_nomination: true, ..PostFilterOutcome::default() },
        _ => state.post_filter(fit),
    };
    Unschedulable {
        message,
        reasons: outcome.reasons,
        nomination: outcome.nomination,
        clears_nomination: outcome.clears_nomination,
        release: outcome.release,
    }
}

#[cfg(test)]
mod tests;
