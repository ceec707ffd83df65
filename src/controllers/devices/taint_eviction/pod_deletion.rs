//! Deletes a pod whose eviction is due.

use api::k8s::api::core::v1::{ObjectReference, Pod};
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use client::events::EventType;
use client::{Action, DeleteOptions, Error, Patch};
use serde_json::json;

use super::state::{PodRef, STATUS_PERIOD};
use super::{Controller, WorkItem, now};
use crate::devices::metrics;
use crate::framework::pods;

/// The reason of events.
pub(super) const EVENT: &str = "DeviceTaintManagerEviction";
/// Reason and message of the condition.
const REASON: &str = "DeletionByDeviceTaintManager";
const MESSAGE: &str = "Device Taint manager: deleting due to NoExecute taint";

impl Controller {
    pub(super) async fn delete_pod(&self, pod: &PodRef) -> Result<Action, Error> {
        let Some(eviction) = self.state.lock().pending(pod) else { return Ok(Action::Done) };
        // The time may have changed since the pod was queued.
        if let Ok(remaining) = std::time::Duration::try_from(eviction.at.duration_since(now())) {
            if !remaining.is_zero() {
                return Ok(Action::After(remaining));
            }
        }
        let deleted = match self.mark_and_delete(pod).await {
            // A pod that is gone already was not deleted by this controller.
            Err(error) if error.is_not_found() => false,
            other => other?,
        };
        let rules = self.state.lock().pod_evicted(pod, deleted.then_some(&eviction));
        if deleted {
            let latency = now().duration_since(eviction.at);
            metrics::pod_deleted(latency.try_into().unwrap_or_default());
        }
        // A report now would precede the changes in the caches.
        for rule in rules {
            self.queue.add_after(WorkItem::Rule(rule), STATUS_PERIOD);
        }
        Ok(Action::Done)
    }

    /// Returns whether the pod was or is being deleted; false if it is gone.
    async fn mark_and_delete(&self, pod: &PodRef) -> Result<bool, Error> {
        let (namespace, name) = (&*pod.namespace, &*pod.name);
        let found: Pod = self.client.get(namespace, name).await?;
        if found.metadata.uid.as_deref() != Some(&*pod.uid) {
            return Ok(false);
        }
        if found.metadata.deletion_timestamp.is_some() {
            return Ok(true);
        }
        let text = "Marking for deletion";
        self.recorder.event_for(reference(pod), EventType::Normal, EVENT, text);
        let old = pods::condition(&found, "DisruptionTarget");
        let is_same = old.is_some_and(|condition| {
            condition.status == "True"
                && condition.reason.as_deref() == Some(REASON)
                && condition.message.as_deref() == Some(MESSAGE)
        });
        if !is_same {
            let since = old.filter(|condition| condition.status == "True");
            let since = since.and_then(|condition| condition.last_transition_time.clone());
            let patch = json!({"metadata": {"uid": &*pod.uid}, "status": {"conditions": [{
                "type": "DisruptionTarget", "status": "True", "reason": REASON, "message": MESSAGE,
                "lastTransitionTime": since.unwrap_or_else(|| Time(now())),
            }]}});
            let patch = Patch::Strategic(&patch);
            self.client.patch::<Pod>(namespace, name, "status", &patch).await?;
        }
        self.client.delete::<Pod>(namespace, name, &DeleteOptions::with_uid(&pod.uid)).await?;
        Ok(true)
    }
}

/// The pod of an event.
pub(super) fn reference(pod: &PodRef) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.namespace.to_string()),
        name: Some(pod.name.to_string()),
        uid: Some(pod.uid.to_string()),
        ..ObjectReference::default()
    }
}
