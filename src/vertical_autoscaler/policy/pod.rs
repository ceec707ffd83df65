//! The parts of a pod that admission and the updater read.

use std::collections::BTreeMap;

use api::k8s::jiff::Timestamp;
use api::value::{at, bool_at, entries, get, has, items, str_at, str_in};
use serde_json::Value;
use sorting::CollectOrdered as _;

use super::amounts::{Amounts, read};

/// A reference to the controller of an object in its namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ControllerRef {
    /// `group/version`.
    pub api_version: String,
    /// The kind.
    pub kind: String,
    /// The name.
    pub name: String,
}

/// Requests and limits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    /// `None` if the field is absent.
    pub requests: Option<Amounts>,
    /// `None` if the field is absent.
    pub limits: Option<Amounts>,
}

impl Resources {
    /// Reads the field `resources` of a container or of its status.
    fn read(container: &Value) -> Self {
        let resources = get(container, "resources");
        Self { requests: read(resources, "requests"), limits: read(resources, "limits") }
    }
}

/// A container of the list `containers`. Init containers are never scaled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodContainer {
    /// The name.
    pub name: String,
    /// What the spec says.
    pub spec: Resources,
    /// What the container has, as its status says.
    pub actual: Option<Resources>,
    /// Whether a resize of some resource restarts the container.
    pub restarts_on_resize: bool,
    /// Start and end of the last run, if it ended for lack of memory.
    pub oom_killed: Option<(Timestamp, Timestamp)>,
}

impl PodContainer {
    /// The resources that the container has, else those of the spec
    /// (`ContainerRequestsAndLimits`).
    pub fn current(&self) -> &Resources {
        self.actual.as_ref().unwrap_or(&self.spec)
    }
}

/// A condition of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodCondition {
    /// The type.
    pub kind: String,
    /// Whether the status is `True`.
    pub is_true: bool,
    /// In one word.
    pub reason: String,
    /// For people.
    pub message: String,
    /// When the status changed last.
    pub since: Option<Timestamp>,
}

/// The parts of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodView {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The uid.
    pub uid: String,
    /// `resourceVersion`.
    pub resource_version: String,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The annotations; `None` if the field is absent.
    pub annotations: Option<BTreeMap<String, String>>,
    /// The owner with `controller: true`.
    pub controller: Option<ControllerRef>,
    /// Whether the pod is being deleted.
    pub is_deleted: bool,
    /// Whether the pod is bound to a node.
    pub is_scheduled: bool,
    /// `status.phase`.
    pub phase: String,
    /// `status.startTime`.
    pub started: Option<Timestamp>,
    /// `status.conditions`.
    pub conditions: Vec<PodCondition>,
    /// `spec.containers`.
    pub containers: Vec<PodContainer>,
}

fn time(value: &Value, field: &str) -> Option<Timestamp> {
    str_at(value, field).parse().ok()
}

fn strings(value: &Value, field: &str) -> BTreeMap<String, String> {
    let strings = entries(value, field).map(|(k, v)| (k.clone(), v.as_str().unwrap_or_default()));
    strings.map(|(key, text)| (key, text.to_owned())).collect_map()
}

/// The controller of an object.
pub fn controller_of(object: &Value) -> Option<ControllerRef> {
    let owners = items(get(object, "metadata"), "ownerReferences");
    owners.iter().find(|owner| bool_at(owner, "controller")).map(|owner| ControllerRef {
        api_version: str_at(owner, "apiVersion").to_owned(),
        kind: str_at(owner, "kind").to_owned(),
        name: str_at(owner, "name").to_owned(),
    })
}

fn container(spec: &Value, statuses: &[Value]) -> PodContainer {
    let name = str_at(spec, "name");
    let status = statuses.iter().find(|status| str_at(status, "name") == name);
    let policies = items(spec, "resizePolicy");
    let oom_killed = status.and_then(|status| {
        let ended = at(status, &["lastState", "terminated"]);
        let is_oom = str_at(ended, "reason") == "OOMKilled";
        time(ended, "startedAt").zip(time(ended, "finishedAt")).filter(|_| is_oom)
    });
    PodContainer {
        name: name.to_owned(),
        spec: Resources::read(spec),
        actual: status.filter(|status| has(status, "resources")).map(Resources::read),
        restarts_on_resize: policies
            .iter()
            .any(|p| str_at(p, "restartPolicy") == "RestartContainer"),
        oom_killed,
    }
}

impl PodView {
    /// Reads a pod.
    pub fn read(pod: &Value) -> Self {
        let (meta, spec, status) = (get(pod, "metadata"), get(pod, "spec"), get(pod, "status"));
        let text = |field: &str| str_at(meta, field).to_owned();
        let statuses = items(status, "containerStatuses");
        let conditions = items(status, "conditions").iter().map(|condition| PodCondition {
            kind: str_at(condition, "type").to_owned(),
            is_true: str_at(condition, "status") == "True",
            reason: str_at(condition, "reason").to_owned(),
            message: str_at(condition, "message").to_owned(),
            since: time(condition, "lastTransitionTime"),
        });
        Self {
            namespace: text("namespace"),
            name: text("name"),
            uid: text("uid"),
            resource_version: text("resourceVersion"),
            labels: strings(meta, "labels"),
            annotations: has(meta, "annotations").then(|| strings(meta, "annotations")),
            controller: controller_of(pod),
            is_deleted: has(meta, "deletionTimestamp"),
            is_scheduled: !str_in(spec, &["nodeName"]).is_empty(),
            phase: str_at(status, "phase").to_owned(),
            started: time(status, "startTime"),
            conditions: conditions.collect(),
            containers: items(spec, "containers").iter().map(|c| container(c, statuses)).collect(),
        }
    }

    /// The value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// The condition of a type.
    pub fn condition(&self, kind: &str) -> Option<&PodCondition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }

    /// The time since when the pod is ready.
    pub fn ready_since(&self) -> Option<Timestamp> {
        self.condition("Ready").filter(|ready| ready.is_true)?.since
    }

    /// Whether the phase is `Pending`.
    pub fn is_pending(&self) -> bool {
        self.phase == "Pending"
    }

    /// The container of this name.
    pub(crate) fn container(&self, name: &str) -> Option<&PodContainer> {
        self.containers.iter().find(|container| container.name == name)
    }
}
