//! Records the events of the node, its pods and their containers, as the kubelet does.

use std::collections::BTreeMap;

use api::k8s::api::core::v1 as core;
use api::k8s::api::core::v1::ObjectReference;
use client::EventRecorder;
use client::events::{EventType, reference};

use crate::pods::pod::{ContainerRole, Pod, PodContainer};

/// Records events of one node; cheap to clone, never blocks.
#[derive(Debug, Clone)]
pub(crate) struct NodeEventRecorder {
    recorder: EventRecorder,
    node_name: String,
}

impl NodeEventRecorder {
    pub(crate) fn new(recorder: EventRecorder, node_name: &str) -> Self {
        Self { recorder, node_name: node_name.to_owned() }
    }

    /// Records an event about a Node object.
    pub(crate) fn object_event(
        &self,
        object: &core::Node,
        kind: EventType,
        reason: &str,
        message: impl Into<String>,
    ) {
        self.recorder.event(object, kind, reason, message);
    }

    /// Records an event about the node. Its uid is the node's name, as in the kubelet.
    pub(crate) fn node_event(&self, kind: EventType, reason: &str, message: impl Into<String>) {
        let name = &self.node_name;
        let object = ObjectReference {
            kind: Some("Node".into()),
            name: Some(name.clone()),
            uid: Some(name.clone()),
            ..ObjectReference::default()
        };
        self.recorder.event_for(object, kind, reason, message);
    }

    /// Records an event about a pod.
    pub(crate) fn pod_event(
        &self,
        pod: &Pod,
        kind: EventType,
        reason: &str,
        message: impl Into<String>,
    ) {
        self.recorder.event_for(pod_reference(pod), kind, reason, message);
    }

    /// Records an event about a pod, with annotations of the event.
    pub(crate) fn annotated_pod_event(
        &self,
        pod: &Pod,
        annotations: BTreeMap<String, String>,
        kind: EventType,
        reason: &str,
        message: impl Into<String>,
    ) {
        let object = pod_reference(pod);
        self.recorder.annotated_event_for(object, annotations, kind, reason, message);
    }

    /// Records an event about a claim of a pod.
    pub(crate) fn claim_event(
        &self,
        claim: &core::PersistentVolumeClaim,
        kind: EventType,
        reason: &str,
        message: impl Into<String>,
    ) {
        self.recorder.event(claim, kind, reason, message);
    }

    /// Records an event about a container of a pod.
    pub(crate) fn container_event(
        &self,
        pod: &Pod,
        member: &PodContainer,
        kind: EventType,
        reason: &str,
        message: impl Into<String>,
    ) {
        let list = match member.role {
            ContainerRole::Main => "containers",
            ContainerRole::Init | ContainerRole::Sidecar => "initContainers",
            ContainerRole::Ephemeral => "ephemeralContainers",
        };
        let object = ObjectReference {
            field_path: Some(format!("spec.{list}{{{}}}", member.name())),
            ..pod_reference(pod)
        };
        self.recorder.event_for(object, kind, reason, message);
    }
}

fn pod_reference(pod: &Pod) -> ObjectReference {
    ObjectReference { api_version: Some("v1".into()), ..reference::<core::Pod>(&pod.object) }
}
