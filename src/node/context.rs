//! What all parts of one node agent share.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use api::Quantity;
use api::k8s::api::core::v1 as core;
use api::k8s::api::core::v1::{ObjectReference, Service};
use arc_swap::ArcSwap;
use base::{Kind, Sealed, Tasks};
use client::events::{EventType, reference};
use client::{Client, EventRecorder, Informer};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};

use crate::cgroups::Cgroups;
use crate::config::Config;
use crate::eviction::monitor::Pressure;
use crate::machine::Machine;
use crate::pods::admission::supported_fields::Abilities;
use crate::pods::pod::{Member, Pod, Role};
use crate::runtime::registries::Registries;
use crate::runtime::{Runtime, RuntimeVersion};
use crate::status::writer::StatusWriter;

/// Image pulls at one time; more only share the same line.
const PULLS_MAX: usize = 4;

/// One node agent.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) config: Config,
    pub(crate) client: Client,
    pub(crate) tasks: Tasks,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) operations: Arc<crate::runtime::operations::Operations>,
    pub(crate) version: RuntimeVersion,
    pub(crate) abilities: Abilities,
    pub(crate) events: EventRecorder,
    pub(crate) status: StatusWriter,
    pub(crate) services: Informer<Service>,
    /// The Node object of this node.
    pub(crate) own: Informer<core::Node>,
    pub(crate) objects: crate::pods::objects::Objects,
    pub(crate) tokens: crate::credentials::tokens::Tokens,
    pub(crate) trust_bundles: crate::credentials::trust_bundles::TrustBundles,
    pub(crate) pod_certificates: crate::credentials::pod_certificates::PodCertificates,
    pub(crate) cgroups: Cgroups,
    pub(crate) machine: Machine,
    pub(crate) pulls: Semaphore,
    pub(crate) registries: ArcSwap<Registries>,
    pub(crate) allocatable: ArcSwap<BTreeMap<String, Quantity>>,
    /// Labels of the Node object as last seen; empty before.
    pub(crate) labels: Labels,
    /// Which pod a container or sandbox belongs to, for events of the runtime.
    pub(crate) owners: Mutex<HashMap<String, Arc<str>>>,
    pub(crate) pressure: Pressure,
    /// Why the runtime cannot connect pods yet, as last seen.
    pub(crate) network_problem: Mutex<Option<String>>,
    /// Wakes the reporter: the node's status changed.
    pub(crate) report: Notify,
}

/// The file with the node's labels.
const LABELS: &str = "labels";

/// Labels of the Node object as last seen, also by the process before: what pods are admitted by while no server is there.
#[derive(Debug)]
pub(crate) struct Labels {
    now: ArcSwap<BTreeMap<String, String>>,
    kept: Option<Arc<Sealed>>,
    tasks: Tasks,
}

impl Labels {
    /// The labels that are remembered, none otherwise.
    pub(crate) async fn open(client: &Client, tasks: &Tasks) -> Self {
        let kept = client.transport().kept();
        let file = kept.clone();
        let read = base::tasks::blocking(move || file?.read(LABELS));
        let content = read.await.ok().flatten().unwrap_or_default();
        let now = ArcSwap::from_pointee(serde_json::from_slice(&content).unwrap_or_default());
        Self { now, kept, tasks: tasks.clone() }
    }

    pub(crate) fn load(&self) -> Arc<BTreeMap<String, String>> {
        self.now.load_full()
    }

    /// Takes them over, and remembers them when they changed.
    pub(crate) fn store(&self, labels: Arc<BTreeMap<String, String>>) {
        if self.now.swap(Arc::clone(&labels)) == labels {
            return;
        }
        let Some(kept) = self.kept.clone() else { return };
        self.tasks.spawn(Kind::Request, "node-labels", async move {
            let content = serde_json::to_vec(&*labels).map_err(std::io::Error::other)?;
            let written = base::tasks::blocking(move || kept.write(LABELS, &content)).await;
            written.map_err(std::io::Error::other)?
        });
    }
}

impl Node {
    pub(crate) fn pulls() -> Semaphore {
        Semaphore::new(PULLS_MAX)
    }

    /// An event about the node itself; its uid is its name, as the kubelet has it.
    pub(crate) fn node_event(&self, kind: EventType, reason: &str, message: impl Into<String>) {
        let name = &self.config.node_name;
        let object = ObjectReference {
            kind: Some("Node".into()),
            name: Some(name.clone()),
            uid: Some(name.clone()),
            ..ObjectReference::default()
        };
        self.events.event_for(object, kind, reason, message);
    }

    /// An event about a pod.
    pub(crate) fn pod_event(
        &self,
        pod: &Pod,
        kind: EventType,
        reason: &str,
        message: impl Into<String>,
    ) {
        self.events.event_for(self.pod_reference(pod), kind, reason, message);
    }

    /// An event about a container of a pod.
    pub(crate) fn container_event(
        &self,
        pod: &Pod,
        member: &Member,
        kind: EventType,
        reason: &str,
        message: impl Into<String>,
    ) {
        let list = match member.role {
            Role::Main => "containers",
            Role::Init | Role::Sidecar => "initContainers",
            Role::Ephemeral => "ephemeralContainers",
        };
        let object = ObjectReference {
            field_path: Some(format!("spec.{list}{{{}}}", member.name())),
            ..self.pod_reference(pod)
        };
        self.events.event_for(object, kind, reason, message);
    }

    fn pod_reference(&self, pod: &Pod) -> ObjectReference {
        ObjectReference { api_version: Some("v1".into()), ..reference::<core::Pod>(&pod.object) }
    }

    /// Remembers whose a container or sandbox is.
    pub(crate) fn own(&self, id: &str, uid: &Arc<str>) {
        self.owners.lock().insert(id.to_owned(), Arc::clone(uid));
    }

    /// Forgets all of a pod.
    pub(crate) fn disown(&self, uid: &str) {
        self.owners.lock().retain(|_, owner| **owner != *uid);
    }
}
