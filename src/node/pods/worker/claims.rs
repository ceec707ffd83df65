//! Prepares the ResourceClaims of a pod before its sandbox is created, and releases them once its
//! containers have ended.

use std::sync::Arc;

use client::events::EventType;

use super::Worker;
use super::actions::PodActions;
use super::error::SyncError;
use crate::events;
use crate::pods::handle::pod_must_end;
use crate::pods::pod::Pod;

impl PodActions {
    /// Has the drivers prepare the claims of a pod, unless it has to end meanwhile.
    ///
    /// # Errors
    ///
    /// A claim is not prepared; an event reports it. A driver that registers wakes the worker.
    pub(super) async fn prepare_claims(&self, pod: &Pod) -> Result<(), SyncError> {
        let mut desired = self.desired.clone();
        let outcome = tokio::select! {
            biased;
            outcome = self.node.dynamic_resources.prepare(pod) => outcome,
            () = pod_must_end(&mut desired) => return Err(SyncError::PodEnds),
        };
        outcome.map_err(|error| {
            let error = SyncError::PrepareClaims(error);
            let (kind, reason) = (EventType::Warning, events::FAILED_PREPARE_DYNAMIC_RESOURCES);
            self.node.api.events.pod_event(pod, kind, reason, error.to_string());
            error
        })
    }
}

impl Worker {
    /// Has the drivers release the claims of a pod whose containers have ended, once. Returns
    /// whether they did; a driver that registers wakes the worker.
    pub(super) async fn release_claims(&mut self, pod: &Pod) -> bool {
        if self.actions.has_released_claims {
            return true;
        }
        let resources = Arc::clone(&self.node.dynamic_resources);
        resources.wait(&pod.uid, Some(&self.wake));
        if let Err(error) = self.reporter.report_while(resources.unprepare(&pod.uid)).await {
            tracing::debug!(pod = %pod.key, %error, "cannot release the claims of a pod yet");
            return false;
        }
        resources.forget(&pod.uid);
        self.actions.has_released_claims = true;
        true
    }
}
