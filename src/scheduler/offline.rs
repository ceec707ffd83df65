//! Scheduling without an API server: a cluster in memory, for comparisons with other schedulers and
//! for measurements.

mod claims;
mod objects;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::k8s::api::core::v1::{Node, Pod};
use base::Tasks;
use serde_json::{Value, json};

use crate::config::Configuration;
use crate::cycle;
use crate::devices::binding::ClaimRelease;
use crate::extender::{Extender, ExtenderClients, PodExtenders};
use crate::framework::{CycleExtenders, CycleState, Nomination, PreBind, Snapshot};
use crate::listers::Listers as _;
use crate::nodes::Nodes;
use crate::pod_info::PodInfo;
use crate::profile::{Profile, Profiles};
use crate::rejection::FitError;
use objects::Objects;

/// Start time of the first bound pod in seconds since the epoch; each further one starts a second
/// later, so that preemption never finds two candidates that are equal.
const FIRST_START: i64 = 1_800_000_000;

/// Why a cluster cannot be simulated.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// An object does not have the form of its kind.
    #[error("an object is no {kind}: {error}")]
    Object {
        /// The kind.
        kind: String,
        /// The decoder's error.
        error: serde_json::Error,
    },
    /// A node or pod cannot be given to extenders.
    #[error(transparent)]
    ForExtenders(#[from] api::object::BadObject),
}

/// A cluster, and the scheduler's view of it.
#[derive(Debug)]
pub struct Cluster {
    profiles: Profiles,
    extenders: Option<ExtenderClients>,
    objects: Objects,
    nodes: Nodes,
    nominated: Vec<Arc<PodInfo>>,
    bound: i64,
    start: usize,
}

/// The outcome of one cycle.
enum Outcome {
    Bound(String, Vec<PreBind>),
    Nominated(Nomination),
    Rejected,
}

impl Cluster {
    /// A cluster of these objects. Pods without a node are left out. With `tasks` cycles call the
    /// extenders of the configuration; they then need a thread that has entered a runtime and may
    /// block.
    ///
    /// # Errors
    ///
    /// An object is malformed.
    pub fn new(
        configuration: &Configuration,
        objects: impl Iterator<Item = Value>,
        tasks: Option<&Tasks>,
    ) -> Result<Self, OfflineError> {
        let extenders = tasks
            .filter(|_| !configuration.extenders.is_empty())
            .map(|tasks| ExtenderClients::new(&configuration.extenders, tasks));
        let (mut nodes, mut pods): (BTreeMap<String, Node>, _) = (BTreeMap::new(), Vec::new());
        let mut others = Objects::default();
        for object in objects {
            if extenders.is_some() && matches!(object["kind"].as_str(), Some("Node" | "Pod")) {
                others.add_for_extenders(&object)?;
            }
            match object["kind"].as_str() {
                Some("Node") => {
                    let node: Node = decode("Node", object)?;
                    nodes.insert(node.metadata.name.clone().unwrap_or_default(), node);
                }
                Some("Pod") => pods.push(PodInfo::new(&decode("Pod", object)?)),
                _ => others.add(object)?,
            }
        }
        let mut all = Nodes::default();
        for node in nodes.values() {
            all.set_node(node);
        }
        for pod in pods {
            all.add_pod(&pod.node_name.clone(), Arc::new(pod));
        }
        let profiles = configuration.profiles.clone();
        Ok(Self {
            profiles,
            extenders,
            objects: others,
            nodes: all,
            nominated: Vec::new(),
            bound: 0,
            start: 0,
        })
    }

    /// Schedules a pod that has no node: binds it, or evicts the victims of a preemption and tries
    /// again. Returns what was decided in each cycle: the node that fits best and comes first by
    /// name, the scores, the message, the victims. With the annotation `victims: leaving` the
    /// victims stay with a deletion timestamp.
    ///
    /// # Errors
    ///
    /// The pod is malformed.
    pub fn schedule(&mut self, pod: Value) -> Result<Vec<Value>, OfflineError> {
        let leaving = pod["metadata"]["annotations"]["victims"] == "leaving";
        if self.extenders.is_some() {
            self.objects.add_for_extenders(&pod)?;
        }
        let pod: Pod = decode("Pod", pod)?;
        let mut pod = Arc::new(PodInfo::new(&pod));
        let (outcome, first) = self.run_cycle(&pod);
        let mut decisions = vec![first];
        match outcome {
            Outcome::Bound(node, writes) => self.bind(&pod, &node, &writes),
            Outcome::Nominated(nomination) => {
                self.evict(&nomination, leaving);
                pod = Arc::new(PodInfo { nominated: nomination.node, ..(*pod).clone() });
                self.nominated.push(Arc::clone(&pod));
                let (outcome, second) = self.run_cycle(&pod);
                decisions.push(second);
                if let Outcome::Bound(node, writes) = outcome {
                    self.bind(&pod, &node, &writes);
                }
            }
            Outcome::Rejected => {}
        }
        Ok(decisions)
    }

    /// Finds a node for the pod and binds it, without a description. Returns whether one fits.
    ///
    /// # Errors
    ///
    /// The pod is malformed.
    pub fn place(&mut self, pod: &Pod) -> bool {
        let pod = Arc::new(PodInfo::new(pod));
        let Some(profile) = self.profiles.of(&pod.scheduler).map(Arc::clone) else { return false };
        let found = {
            let snapshot = self.snapshot(&pod, &profile, None);
            let state = CycleState::new(snapshot, &profile);
            cycle::find(&state, self.start).map(|feasible| {
                let index = cycle::best(&state, &feasible, &mut |_, _| {});
                (feasible.processed, index)
            })
        };
        let Ok((processed, index)) = found else { return false };
        self.start = (self.start + processed) % self.nodes.len().max(1);
        let name = self.nodes.get(index).map(|node| node.name.clone());
        if let Some(name) = name {
            self.nodes.add_pod(&name, pod);
        }
        true
    }

    fn snapshot<'a>(
        &'a self,
        pod: &'a Arc<PodInfo>,
        profile: &'a Profile,
        extenders: Option<&'a dyn CycleExtenders>,
    ) -> Snapshot<'a> {
        Snapshot {
            pod,
            nodes: &self.nodes,
            listers: &self.objects,
            args: &profile.args,
            random: &|_| 0,
            nominated: &self.nominated,
            extenders,
        }
    }

    /// The extenders that take part in the cycle of the pod.
    fn extenders_of(&self, pod: &PodInfo) -> Vec<Arc<Extender>> {
        let object = || self.objects.pod_object(&pod.namespace, &pod.name);
        self.extenders.iter().flat_map(|all| all.extenders().of_cycle(object)).collect()
    }

    fn run_cycle(&self, pod: &Arc<PodInfo>) -> (Outcome, Value) {
        let name = format!("{}/{}", pod.namespace, pod.name);
        let Some(profile) = self.profiles.of(&pod.scheduler) else {
            return (Outcome::Rejected, json!({"pod": name, "error": "no profile"}));
        };
        let extenders = self.extenders_of(pod);
        let calls = self.extenders.as_ref().filter(|_| !extenders.is_empty());
        let called = calls.map(|calls| PodExtenders { extenders: &extenders, calls });
        let called = called.as_ref().map(|called| called as &dyn CycleExtenders);
        let state = CycleState::new(self.snapshot(pod, profile, called), profile);
        match cycle::find(&state, 0) {
            Ok(feasible) => {
                let names: Vec<&str> = feasible
                    .nodes
                    .iter()
                    .filter_map(|index| self.nodes.get(*index))
                    .map(|node| node.name.as_str())
                    .collect();
                let mut scores: Vec<BTreeMap<&str, i64>> = vec![BTreeMap::new(); names.len()];
                let index = cycle::best(&state, &feasible, &mut |plugin, weighted| {
                    for (scores, score) in scores.iter_mut().zip(weighted) {
                        scores.insert(plugin, *score);
                    }
                });
                let node = self.nodes.get(index).map_or("", |node| node.name.as_str());
                let reserved = self.nodes.get(index).map(|node| state.reserve(node));
                let writes = match reserved.unwrap_or_else(|| Ok(Vec::new())) {
                    Ok(writes) => writes,
                    Err(rejection) => {
                        let decision = json!({"pod": name, "error": rejection.text()});
                        return (Outcome::Rejected, decision);
                    }
                };
                let scores: Vec<Value> = names
                    .iter()
                    .zip(&scores)
                    .map(|(node, plugins)| json!({"node": node, "plugins": plugins}))
                    .collect();
                let decision =
                    json!({"pod": name, "node": node, "feasible": names, "scores": scores});
                (Outcome::Bound(node.to_owned(), writes), decision)
            }
            Err(FitError { error: Some(error), .. }) => {
                (Outcome::Rejected, json!({"pod": name, "error": error}))
            }
            Err(fit) => {
                let (outcome, decision, release) = rejected(&state, &fit, &name);
                if let (Some(release), Some(devices)) = (release, self.objects.devices()) {
                    claims::release(devices, &release);
                }
                (outcome, decision)
            }
        }
    }

    fn bind(&mut self, pod: &Arc<PodInfo>, node: &str, writes: &[PreBind]) {
        if let Some(devices) = self.objects.devices() {
            claims::bind(devices, pod, writes);
        }
        self.bound += 1;
        let started = FIRST_START + self.bound;
        self.nominated.retain(|other| other.uid != pod.uid);
        let node_name = node.to_owned();
        let bound = PodInfo { node_name, started, ..(**pod).clone() };
        self.nodes.add_pod(node, Arc::new(bound));
    }

    fn evict(&mut self, nomination: &Nomination, leaving: bool) {
        let node = nomination.node.as_str();
        // A victim that terminates already leaves by itself.
        for victim in nomination.victims.iter().filter(|victim| !victim.deleting) {
            let removed = self.nodes.remove_pod(node, &victim.namespace, &victim.name);
            if let Some(pod) = removed.filter(|_| leaving) {
                let pod = PodInfo { deleting: true, preempted: true, ..(*pod).clone() };
                self.nodes.add_pod(node, Arc::new(pod));
            }
        }
    }
}

/// Describes the rejection of a pod, and what preemption and the release of a claim do for it.
fn rejected(
    state: &CycleState<'_>,
    fit: &FitError,
    name: &str,
) -> (Outcome, Value, Option<ClaimRelease>) {
    let mut decision = json!({"pod": name, "plugins": fit.plugins()});
    let mut message = fit.message();
    let (mut outcome, mut release) = (Outcome::Rejected, None);
    if fit.nodes > 0 {
        let result = state.post_filter(fit);
        release = result.release;
        if !result.reasons.is_empty() {
            message = format!("{message} {}", result.reasons.join(", "));
        }
        if let Some(nomination) = result.nomination {
            let mut victims: Vec<String> = nomination
                .victims
                .iter()
                .filter(|victim| !victim.deleting)
                .map(|victim| format!("{}/{}", victim.namespace, victim.name))
                .collect();
            victims.sort();
            decision["nominated"] = nomination.node.as_str().into();
            decision["victims"] = victims.into();
            outcome = Outcome::Nominated(nomination);
        }
    }
    decision["message"] = message.into();
    (outcome, decision, release)
}

fn decode<K: serde::de::DeserializeOwned>(kind: &str, object: Value) -> Result<K, OfflineError> {
    serde_json::from_value(object)
        .map_err(|error| OfflineError::Object { kind: kind.to_owned(), error })
}
