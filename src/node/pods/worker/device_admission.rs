//! Allocates the devices of a pod before anything of it is created.

use std::sync::Arc;

use client::events::EventType;

use super::{Step, Worker};
use crate::devices::has_extended_limits;
use crate::pods::handle::pod_must_end;
use crate::pods::observed::ObservedPod;
use crate::pods::plan::Plan;
use crate::pods::pod::Pod;
use crate::pods::rejection::{self, UNEXPECTED_ADMISSION_ERROR as REASON};
use crate::status::pod::PodFailure;

impl Worker {
    /// Allocates the devices of a pod that is about to start, once. A pod of which a container runs
    /// was admitted by an earlier process and keeps its devices. Returns the next step if the pod
    /// cannot start now: it got no devices and fails, or it has to end.
    ///
    /// A pod that has not begun is admitted by the other rules before, while upstream allocates
    /// first. Workers do this, so that a plugin that does not answer delays no other pod.
    pub(super) async fn admit_devices(
        &mut self,
        pod: &Arc<Pod>,
        next: &Plan,
        observed: &ObservedPod,
    ) -> Option<Step> {
        let starts = next.create_sandbox.is_some() || !next.start.is_empty();
        if self.has_devices || !has_extended_limits(pod) {
            return None;
        }
        let devices = Arc::clone(&self.node.devices);
        if observed.any_running() {
            devices.follow_health(pod, &self.wake);
            self.has_devices = true;
            return None;
        }
        if !starts {
            return None;
        }
        let (mut desired, wake) = (self.desired.clone(), Arc::clone(&self.wake));
        let admission = async {
            tokio::select! {
                biased;
                outcome = devices.admit(pod, &wake) => Some(outcome),
                () = pod_must_end(&mut desired) => None,
            }
        };
        match self.reporter.report_while(admission).await {
            None => Some(Step::Now),
            Some(Ok(())) => {
                self.has_devices = true;
                None
            }
            Some(Err(error)) => {
                let message = format!("Allocate failed due to {error}, which is unexpected");
                let recorder = &self.node.api.events;
                recorder.pod_event(pod, EventType::Warning, REASON, message.clone());
                rejection::count(REASON);
                self.reporter.failure = Some(PodFailure {
                    reason: REASON.to_owned(),
                    message: format!("Pod was rejected: {message}"),
                    grace: None,
                    disruption: false,
                });
                Some(Step::Now)
            }
        }
    }
}
