//! Containers that were killed for memory, from changes of pods and from events of evictions
//! (upstream's `input/oom`).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use api::{Object, Quantity};
use client::Change;
use parking_lot::Mutex;
use serde::Deserialize;

use crate::model::checkpoint::from_time;

/// The reason of a container's end, and what a pod's JSON contains if one of its containers ended
/// so.
const OOM_KILLED: &str = "OOMKilled";
/// Kills that wait for the next round (the size of upstream's channel); further ones are dropped.
const KILLS_MAX: usize = 5000;

/// A container that was killed for memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OomKill {
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) container: String,
    /// In seconds since the epoch.
    pub(crate) at: i64,
    /// The request of memory, or what was used at an eviction, in bytes.
    pub(crate) memory: i64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Pod {
    spec: PodSpec,
    status: PodStatus,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PodSpec {
    containers: Vec<Container>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Container {
    name: String,
    resources: Resources,
}

#[derive(Deserialize, Default, Clone)]
#[serde(default)]
struct Resources {
    requests: BTreeMap<String, String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PodStatus {
    container_statuses: Vec<ContainerStatus>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ContainerStatus {
    name: String,
    restart_count: i64,
    state: ContainerState,
    last_state: ContainerState,
    resources: Option<Resources>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ContainerState {
    running: Option<serde::de::IgnoredAny>,
    terminated: Option<Terminated>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Terminated {
    reason: String,
    finished_at: Option<Time>,
}

impl Pod {
    fn status(&self, container: &str) -> Option<&ContainerStatus> {
        self.status.container_statuses.iter().find(|status| status.name == container)
    }

    /// The request of memory that is in effect, in bytes.
    fn memory_request(&self, container: &str) -> i64 {
        let in_effect = self.status(container).and_then(|status| status.resources.as_ref());
        let in_spec = || {
            let mut all = self.spec.containers.iter();
            all.find(|known| known.name == container).map(|known| &known.resources)
        };
        let resources = in_effect.or_else(in_spec);
        let request = resources.and_then(|resources| resources.requests.get("memory"));
        request.and_then(|text| Quantity::parse(text).ok()).map_or(0, |memory| memory.value())
    }
}

fn killed(state: &ContainerState) -> Option<&Terminated> {
    state.terminated.as_ref().filter(|terminated| terminated.reason == OOM_KILLED)
}

/// The kills that a change of a pod shows.
fn of_pods(namespace: &str, name: &str, old: &Pod, new: &Pod) -> Vec<OomKill> {
    let mut kills = Vec::new();
    for status in &new.status.container_statuses {
        let Some(before) = old.status(&status.name) else { continue };
        let has_restarted = status.restart_count > before.restart_count;
        // It ended now, or it ended again without a state between both.
        let ended = killed(&status.state)
            .filter(|_| before.state.terminated.is_none() || has_restarted)
            .map(|end| (end, new));
        // It runs again without a state of its end; the request is that before the restart. One
        // that waited before had its end in an earlier change.
        let is_running = status.state.running.is_some() && before.state.running.is_some();
        let ended_before = || {
            let end = killed(&status.last_state).filter(|_| is_running && has_restarted)?;
            Some((end, old))
        };
        let Some((end, pod)) = ended.or_else(ended_before) else { continue };
        let Some(at) = &end.finished_at else { continue };
        kills.push(OomKill {
            namespace: namespace.to_owned(),
            pod: name.to_owned(),
            container: status.name.clone(),
            at: from_time(at),
            memory: pod.memory_request(&status.name),
        });
    }
    kills
}

/// The kills that a change of a pod shows. Most changes cost one search of the text.
pub(crate) fn of_change(old: &Object, new: &Object) -> Vec<OomKill> {
    let text = OOM_KILLED.as_bytes();
    if !new.raw().windows(text.len()).any(|part| part == text) {
        return Vec::new();
    }
    let read = |object: &Object| serde_json::from_slice::<Pod>(object.raw());
    match (read(old), read(new)) {
        (Ok(old_pod), Ok(new_pod)) => {
            of_pods(&new.key.namespace, &new.key.name, &old_pod, &new_pod)
        }
        _ => Vec::new(),
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Event {
    metadata: EventMetadata,
    reason: String,
    involved_object: InvolvedObject,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct EventMetadata {
    annotations: BTreeMap<String, String>,
    creation_timestamp: Option<Time>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct InvolvedObject {
    kind: String,
    namespace: String,
    name: String,
}

/// The containers that used more memory than they requested when their pod was evicted
/// (`parseEvictionEvent`).
pub(crate) fn of_event(event: &[u8]) -> Vec<OomKill> {
    let Ok(event) = serde_json::from_slice::<Event>(event) else { return Vec::new() };
    if event.reason != "Evicted" || event.involved_object.kind != "Pod" {
        return Vec::new();
    }
    let list = |key: &str| -> Vec<&str> {
        event.metadata.annotations.get(key).map(|all| all.split(',').collect()).unwrap_or_default()
    };
    let containers = list("offending_containers");
    let (usages, resources) = (list("offending_containers_usage"), list("starved_resource"));
    let Some(at) = &event.metadata.creation_timestamp else { return Vec::new() };
    if containers.len() != usages.len() || containers.len() != resources.len() {
        return Vec::new();
    }
    let mut kills = Vec::new();
    for ((container, usage), resource) in containers.into_iter().zip(usages).zip(resources) {
        let Some(memory) = Quantity::parse(usage).ok().filter(|_| resource == "memory") else {
            continue;
        };
        kills.push(OomKill {
            namespace: event.involved_object.namespace.clone(),
            pod: event.involved_object.name.clone(),
            container: container.to_owned(),
            at: from_time(at),
            memory: memory.value(),
        });
    }
    kills
}

/// The kills since the last round. They are recorded only while there are autoscalers.
#[derive(Clone, Default)]
pub(crate) struct OomKills(Arc<Mutex<Option<VecDeque<OomKill>>>>);

impl OomKills {
    /// Starts or stops to record.
    pub(crate) fn record(&self, is_active: bool) {
        let mut kills = self.0.lock();
        if is_active != kills.is_some() {
            *kills = is_active.then(VecDeque::new);
        }
    }

    /// The recorded kills, oldest first.
    pub(crate) fn take(&self) -> Vec<OomKill> {
        self.0.lock().as_mut().map(|kills| kills.drain(..).collect()).unwrap_or_default()
    }

    fn add(&self, new: Vec<OomKill>) {
        let mut kills = self.0.lock();
        let Some(kills) = kills.as_mut() else { return };
        let room = KILLS_MAX.saturating_sub(kills.len());
        if new.len() > room {
            tracing::debug!("vertical-pod-autoscaler: too many kills for memory in one minute");
        }
        kills.extend(new.into_iter().take(room));
    }

    fn is_recording(&self) -> bool {
        self.0.lock().is_some()
    }

    /// Records the kills that a change of a pod shows.
    pub(crate) fn on_pod(&self, change: &Change) {
        if let Change::Updated { old, new } = change
            && self.is_recording()
        {
            let kills = of_change(old, new);
            if !kills.is_empty() {
                self.add(kills);
            }
        }
    }

    /// Records the kills of a new event.
    pub(crate) fn on_event(&self, change: &Change) {
        if let Change::Added(event) = change
            && self.is_recording()
        {
            self.add(of_event(event.raw()));
        }
    }
}

#[cfg(test)]
mod tests;
