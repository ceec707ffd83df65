//! Reports why a pod has no node, and evicts pods that make room for it.

use std::sync::Arc;

use api::k8s::api::core::v1::Pod;
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use api::k8s::jiff::Timestamp;
use client::events::{Action, EventType};
use client::{DeleteOptions, Error, EventRecorder, Patch};
use serde_json::json;

use super::{Writer, reference};
use crate::framework::{Nomination, NominationChange};
use crate::metrics::{PREEMPTION_VICTIMS, PREEMPTIONS};
use crate::pod_info::PodInfo;
use crate::profile::scheduler_name;
use crate::state::Unschedulable;

/// Most bytes of the message of an event (`NoteLengthLimit`).
const NOTE_MAX: usize = 1024;
const SHORTENED: &str = " ...";

/// Records an event of the pod that its scheduler reports.
pub(crate) fn record(
    recorder: &EventRecorder,
    pod: &PodInfo,
    action: &'static str,
    (kind, reason): (EventType, &str),
    message: String,
) {
    let controller = scheduler_name(pod).to_owned();
    let action = Action { controller, name: action, related: None };
    recorder.action_event_for(reference(pod), action, kind, reason, message);
}

/// Shortens a message to the longest note of an event (`truncateMessage`).
fn truncated(message: &str) -> String {
    if message.len() <= NOTE_MAX {
        return message.to_owned();
    }
    let (kept, _) = message.split_at(message.floor_char_boundary(NOTE_MAX - SHORTENED.len()));
    format!("{kept}{SHORTENED}")
}

impl Writer {
    /// Releases a claim, evicts the victims of a preemption, and reports why the pod has no node.
    pub(crate) async fn unschedulable(
        &self,
        pod: &PodInfo,
        why: &Unschedulable,
    ) -> Result<(), Error> {
        let released = match &why.release {
            Some(release) => self.resource_claims.release(release).await,
            None => Ok(()),
        };
        if let Err(error) = released {
            let text = why.text_with(&error.to_string());
            return self.not_scheduled(pod, "Unschedulable", &text, NominationChange::Keep).await;
        }
        let nomination = why.nomination.as_ref().filter(|_| self.cached(pod).is_some());
        let evicted = match nomination {
            Some(nomination) => self.evict_all(pod, nomination).await,
            None => Ok(()),
        };
        let change = why.nomination_change();
        self.not_scheduled(pod, "Unschedulable", &why.text(), change).await?;
        evicted
    }

    /// Reports an error of the scheduler; the pod loses its nomination (`clearNominatedNode`).
    pub(crate) async fn failed(&self, pod: &PodInfo, message: &str) -> Result<(), Error> {
        self.not_scheduled(pod, "SchedulerError", message, NominationChange::Clear).await
    }

    async fn evict_all(&self, pod: &PodInfo, nomination: &Nomination) -> Result<(), Error> {
        PREEMPTION_VICTIMS.observe(&[], nomination.victims.len() as f64);
        let victims = &nomination.victims;
        if victims.iter().all(|victim| victim.deleting) {
            return Ok(());
        }
        let mut evicted = Ok(());
        for victim in victims {
            if victim.deleting {
                continue;
            }
            evicted = self.evict(pod, victim, &nomination.node).await;
            if evicted.is_err() {
                break;
            }
        }
        PREEMPTIONS.inc(&[if evicted.is_ok() { "success" } else { "error" }]);
        evicted
    }

    /// The pod in the cache, unless it is another one of this name.
    fn cached(&self, pod: &PodInfo) -> Option<Pod> {
        let cached = self.pods.get(&pod.namespace, &pod.name)?;
        (cached.metadata.uid.as_deref() == Some(&pod.uid)).then_some(cached)
    }

    /// Reports why the pod has no node, and changes its nomination (`updatePod`).
    pub(crate) async fn not_scheduled(
        &self,
        pod: &PodInfo,
        reason: &str,
        message: &str,
        nomination: NominationChange<'_>,
    ) -> Result<(), Error> {
        let what = (EventType::Warning, "FailedScheduling");
        record(&self.recorder, pod, "Scheduling", what, truncated(message));
        let Some(cached) = self.cached(pod) else { return Ok(()) };
        let status = cached.status.unwrap_or_default();
        let old = status.conditions.iter().flatten().find(|c| c.type_ == "PodScheduled");
        let same = old.is_some_and(|c| {
            c.status == "False"
                && c.reason.as_deref() == Some(reason)
                && c.message.as_deref() == Some(message)
        });
        let nominated = status.nominated_node_name.as_deref().unwrap_or_default();
        let keeps_nomination = match nomination {
            NominationChange::Keep => true,
            NominationChange::Clear => nominated.is_empty(),
            NominationChange::Set(node) => nominated == node,
        };
        if same && keeps_nomination {
            return Ok(());
        }
        let since =
            old.filter(|c| c.status == "False").and_then(|c| c.last_transition_time.clone());
        let since = since.unwrap_or(Time(Timestamp::now()));
        let mut patch = json!({"metadata": {"uid": pod.uid}, "status": {"conditions": [{
            "type": "PodScheduled", "status": "False",
            "reason": reason, "message": message,
            "lastTransitionTime": since, "lastProbeTime": null,
            "observedGeneration": cached.metadata.generation,
        }]}});
        match nomination {
            NominationChange::Clear if !keeps_nomination => {
                patch["status"]["nominatedNodeName"] = serde_json::Value::Null;
            }
            NominationChange::Set(node) => patch["status"]["nominatedNodeName"] = node.into(),
            NominationChange::Keep | NominationChange::Clear => {}
        }
        match self
            .client
            .patch::<Pod>(&pod.namespace, &pod.name, "status", &Patch::Strategic(&patch))
            .await
        {
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            other => other.map(drop),
        }
    }

    async fn evict(
        &self,
        preemptor: &PodInfo,
        victim: &Arc<PodInfo>,
        node: &str,
    ) -> Result<(), Error> {
        let controller = scheduler_name(preemptor).to_owned();
        let message = format!("{controller}: preempting to accommodate a higher priority pod");
        let generation = self.cached(victim).and_then(|victim| victim.metadata.generation);
        let condition = json!({"metadata": {"uid": victim.uid}, "status": {"conditions": [{
            "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
            "message": message,
            "lastTransitionTime": Timestamp::now().to_string(),
            "observedGeneration": generation,
        }]}});
        let (namespace, name) = (victim.namespace.as_str(), victim.name.as_str());
        let patch = Patch::Strategic(&condition);
        let marked = self.client.patch::<Pod>(namespace, name, "status", &patch).await;
        let options = DeleteOptions::with_uid(&victim.uid);
        let deleted = match marked {
            Ok(_) => self.client.delete::<Pod>(namespace, name, &options).await,
            Err(error) => Err(error),
        };
        match deleted {
            Ok(()) => {}
            // The victim has left by itself, or another pod has its name.
            Err(error) if error.is_not_found() || error.is_conflict() => return Ok(()),
            Err(error) => return Err(error),
        }
        let text = format!("Preempted by pod {} on node {node}", preemptor.uid);
        let action = Action { controller, name: "Preempting", related: Some(reference(preemptor)) };
        let (victim, kind) = (reference(victim), EventType::Normal);
        self.recorder.action_event_for(victim, action, kind, "Preempted", text);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
