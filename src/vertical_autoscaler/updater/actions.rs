//! What the updater does to pods: resize, evict, and events about both.

use api::Gvr;
use api::k8s::api::core::v1::{ObjectReference, Pod};
use api::k8s::jiff::Timestamp;
use api::value::{at, int_at};
use client::events::EventType;
use client::{Client, EventRecorder, Patch, gvr_of};
use serde_json::{Map, Value, json};

use super::budget::DisruptionBudget;
use crate::admission::startup_boost::{ANNOTATION_PREFIX, expired, original};
use crate::policy::amounts::to_json;
use crate::policy::limit_range::LimitRanges;
use crate::policy::pod::{ControllerRef, PodView};
use crate::policy::resources::{ContainerResources, pod_resources};
use crate::policy::update_mode;
use crate::types::{GROUP, UpdateMode, VERSION, VerticalPodAutoscaler};

/// The annotation of a pod that was resized.
const RESIZED_ANNOTATION: &str = "vpaInPlaceUpdated";
/// The cause of an error of the plugin PodResizeValidator.
const NODE_CAPACITY: &str = "NodeCapacity";

/// Why a pod is not updated.
#[derive(Debug, thiserror::Error)]
pub(super) enum UpdateError {
    /// The budget does not cover the pod.
    #[error("pod not suitable for in-place update {0}: not in replicated pods map")]
    NotCovered(String),
    /// The pod has what it shall have.
    #[error("no resource patches were calculated to apply")]
    NoChange,
    /// The annotation with the original resources cannot be read.
    #[error("{ANNOTATION_PREFIX}{container}: {error}")]
    Annotation {
        /// The container.
        container: String,
        /// The error of the decoder.
        error: serde_json::Error,
    },
    /// The server refused the request.
    #[error(transparent)]
    Api(#[from] client::Error),
}

impl UpdateError {
    /// Whether the node of the pod cannot have the resized pod (`isInfeasibleError`).
    pub(super) fn is_infeasible(&self) -> bool {
        let Self::Api(error) = self else { return false };
        let details = error.status().filter(|status| status.reason == "Forbidden");
        let causes = details.and_then(|status| status.details.as_ref()).map(|d| &d.causes);
        causes.is_some_and(|causes| causes.iter().any(|cause| cause.reason == NODE_CAPACITY))
    }
}

/// The client and the events.
pub(super) struct Actions {
    pub(super) client: Client,
    pub(super) events: EventRecorder,
}

fn pod_reference(pod: &PodView) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.namespace.clone()),
        name: Some(pod.name.clone()),
        uid: Some(pod.uid.clone()),
        resource_version: Some(pod.resource_version.clone()),
        field_path: None,
    }
}

fn autoscaler_reference(autoscaler: &VerticalPodAutoscaler) -> ObjectReference {
    let meta = &autoscaler.metadata;
    ObjectReference {
        api_version: Some(format!("{GROUP}/{VERSION}")),
        kind: Some("VerticalPodAutoscaler".to_owned()),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: None,
    }
}

impl Actions {
    fn report(&self, pod: &PodView, reason: &str, message: &str) {
        self.events.event_for(pod_reference(pod), EventType::Normal, reason, message);
    }

    /// Reports that a resize would be as infeasible as the last one.
    pub(super) fn report_skipped(&self, pod: &PodView) {
        self.report(
            pod,
            "InPlaceResizeSkipped",
            "Previously recorded in-place update was infeasible, current recommendation is not \
             lower than previous, skipping resize",
        );
    }

    /// The number of pods that a controller shall have; `None` if it cannot be read or is zero.
    /// A kind that is not known has zero replicas, as upstream's (`getReplicaCount`).
    pub(super) async fn replicas(
        &self,
        namespace: &str,
        controller: &ControllerRef,
    ) -> Option<usize> {
        let (group, resource) = match &*controller.kind {
            "ReplicationController" => ("", "replicationcontrollers"),
            "ReplicaSet" => ("apps", "replicasets"),
            "StatefulSet" => ("apps", "statefulsets"),
            "DaemonSet" => ("apps", "daemonsets"),
            _ => return Some(0),
        };
        let gvr = Gvr::new(group, "v1", resource);
        match self.client.get_value(&gvr, namespace, &controller.name).await {
            Ok(object) => replicas_of(&controller.kind, &object),
            Err(error) => {
                let (kind, name) = (&controller.kind, &controller.name);
                tracing::debug!(namespace, kind, name, %error, "vertical-autoscaler: no replicas");
                None
            }
        }
    }

    /// Evicts a pod.
    ///
    /// # Errors
    /// The server's refusal, such as that of a PodDisruptionBudget.
    pub(super) async fn evict(
        &self,
        pod: &PodView,
        autoscaler: &VerticalPodAutoscaler,
    ) -> Result<(), UpdateError> {
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"namespace": pod.namespace, "name": pod.name}});
        let pods = gvr_of::<Pod>();
        self.client.post_value(&pods, &pod.namespace, &pod.name, "eviction", &eviction).await?;
        let message = "Pod was evicted by VPA Updater to apply resource recommendation.";
        self.report(pod, "EvictedByVPA", message);
        let name = &pod.name;
        let message = format!("VPA Updater evicted Pod {name} to apply resource recommendation.");
        let reference = autoscaler_reference(autoscaler);
        self.events.event_for(reference, EventType::Normal, "EvictedPod", message);
        Ok(())
    }

    /// Resizes a pod in place, and removes the annotations of expired startup boosts.
    ///
    /// # Errors
    /// Nothing changes, or the server's refusal of the resize.
    pub(super) async fn resize(
        &self,
        pod: &PodView,
        autoscaler: &VerticalPodAutoscaler,
        (ranges, budget): (&LimitRanges, &mut DisruptionBudget),
        now: Timestamp,
    ) -> Result<(), UpdateError> {
        let (namespace, name) = (&pod.namespace, &pod.name);
        if !budget.covers(pod) {
            return Err(UpdateError::NotCovered(name.clone()));
        }
        let patch = resize_patch(pod, autoscaler, ranges, now)?.ok_or(UpdateError::NoChange)?;
        let (pods, patch) = (gvr_of::<Pod>(), Patch::Strategic(&patch));
        self.client.patch_value(&pods, namespace, name, "resize", &patch).await?;
        let annotations = annotation_patch(pod, autoscaler, now);
        let patch = Patch::Merge(&annotations);
        if let Err(error) = self.client.patch_value(&pods, namespace, name, "", &patch).await {
            tracing::debug!(namespace, name, %error, "vertical-autoscaler: cannot annotate pod");
        }
        self.report(pod, "InPlaceResizedByVPA", "Pod was resized in place by VPA Updater.");
        budget.record_resize(pod);
        Ok(())
    }
}

fn replicas_of(kind: &str, object: &Value) -> Option<usize> {
    let number = match kind {
        "DaemonSet" => int_at(at(object, &["status"]), "desiredNumberScheduled"),
        _ => int_at(at(object, &["spec"]), "replicas"),
    };
    usize::try_from(number?).ok().filter(|number| *number > 0)
}

/// The patch of a pod's subresource `resize`; `None` if it changes no container
/// (`resourcesInplaceUpdatesPatchCalculator`). A boosted container keeps its resources until the
/// boost has expired.
fn resize_patch(
    pod: &PodView,
    autoscaler: &VerticalPodAutoscaler,
    ranges: &LimitRanges,
    now: Timestamp,
) -> Result<Option<Value>, UpdateError> {
    let expired = expired(pod, autoscaler, now);
    let is_off = update_mode(autoscaler) == UpdateMode::Off;
    let recommended = if is_off {
        vec![ContainerResources::default(); pod.containers.len()]
    } else {
        pod_resources(pod, autoscaler, ranges).0
    };
    let mut containers = Vec::new();
    for (container, mut own) in pod.containers.iter().zip(recommended) {
        let boost = pod.annotation(&format!("{ANNOTATION_PREFIX}{}", container.name));
        if let Some(boost) = boost {
            if !expired.contains(&&*container.name) {
                continue;
            }
            let before = original(boost).map_err(|error| UpdateError::Annotation {
                container: container.name.clone(),
                error,
            })?;
            if own.requests.is_empty() && own.limits.is_empty() {
                own = before;
            }
        }
        let mut resources = Map::new();
        for (field, amounts) in [("requests", &own.requests), ("limits", &own.limits)] {
            if !amounts.is_empty() {
                resources.insert(field.to_owned(), to_json(amounts));
            }
        }
        if !resources.is_empty() {
            containers.push(json!({"name": container.name, "resources": resources}));
        }
    }
    let is_changed = !containers.is_empty();
    Ok(is_changed.then(|| json!({"spec": {"containers": containers}})))
}

/// The patch that marks a pod as resized and removes the annotations of expired boosts.
fn annotation_patch(pod: &PodView, autoscaler: &VerticalPodAutoscaler, now: Timestamp) -> Value {
    let mut annotations = Map::new();
    annotations.insert(RESIZED_ANNOTATION.to_owned(), "true".into());
    for container in expired(pod, autoscaler, now) {
        annotations.insert(format!("{ANNOTATION_PREFIX}{container}"), Value::Null);
    }
    json!({"metadata": {"annotations": annotations}})
}

#[cfg(test)]
mod tests;
