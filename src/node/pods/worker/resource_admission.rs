//! Allocates the devices, CPUs and memory of a pod before anything of it is created.

use std::sync::Arc;

use client::events::EventType;

use super::{Step, Worker};
use crate::devices::has_extended_limits;
use crate::pods::handle::pod_must_end;
use crate::pods::observed::ObservedPod;
use crate::pods::plan::Plan;
use crate::pods::pod::Pod;
use crate::pods::rejection;

impl Worker {
    /// Allocates the resources of a pod that is about to start, once. A pod of which a container
    /// runs was admitted by an earlier process and keeps what it has. Returns the next step if the
    /// pod cannot start now: it got no resources and fails, or it has to end.
    ///
    /// A pod that has not begun is admitted by the other rules before, while upstream allocates
    /// first. Workers do this, so that a plugin that does not answer delays no other pod.
    pub(super) async fn admit_resources(
        &mut self,
        pod: &Arc<Pod>,
        next: &Plan,
        observed: &ObservedPod,
    ) -> Option<Step> {
        let starts = next.create_sandbox.is_some() || !next.start.is_empty();
        if self.has_resources {
            return None;
        }
        let (devices, managers) =
            (Arc::clone(&self.node.devices), Arc::clone(&self.node.resource_managers));
        if observed.any_running() {
            if has_extended_limits(pod) {
                devices.follow_health(pod, &self.wake);
            }
            managers.adopt(pod).await;
            self.has_resources = true;
            return None;
        }
        if !starts {
            return None;
        }
        let (mut desired, wake) = (self.desired.clone(), Arc::clone(&self.wake));
        let admission = async {
            tokio::select! {
                biased;
                outcome = managers.admit(&devices, pod, &wake) => Some(outcome),
                () = pod_must_end(&mut desired) => None,
            }
        };
        match self.reporter.report_while(admission).await {
            None => Some(Step::Now),
            Some(Ok(())) => {
                self.has_resources = true;
                None
            }
            Some(Err(error)) => {
                let rejection = error.rejection();
                let (reason, message) = (&rejection.reason, &rejection.message);
                let recorder = &self.node.api.events;
                recorder.pod_event(pod, EventType::Warning, reason, message);
                rejection::count(reason);
                self.reporter.failure = Some(rejection.into());
                Some(Step::Now)
            }
        }
    }
}
