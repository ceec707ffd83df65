//! The manager's handle to a pod worker: the desired state, and the state that the worker reports.

use std::collections::HashSet;
use std::sync::Arc;

use api::k8s::api::core::v1 as core;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::pods::observed::ObservedPod;
use crate::pods::pod::Pod;
use crate::pods::resize::DeferredResize;
use crate::runtime::{ContainerEvent, ContainerEventKind};
use crate::status::pod::PodFailure;

/// The state that the pod manager desires of a worker.
#[derive(Debug, Clone)]
pub(crate) struct DesiredPod {
    pub(crate) pod: Arc<Pod>,
    /// The pod is deleted from the API: stop it and report nothing.
    pub(crate) removed: bool,
    /// The manifest of a static pod was removed and written again: the next worker of the pod
    /// follows, and counts the restart by the dead containers.
    pub(crate) is_replaced: bool,
    /// Uid of the API object whose status is written; a static pod without a mirror pod has none.
    pub(crate) api_uid: Option<String>,
    /// The decision to reject or end the pod.
    pub(crate) rejection: Option<PodFailure>,
    /// A deferred resize; `pod` has the allocated resources.
    pub(crate) resize: Option<DeferredResize>,
    /// The machine is being switched off: containers end within this many seconds, and none is
    /// started.
    pub(crate) halt_seconds: Option<i64>,
}

impl DesiredPod {
    /// A pod that runs, without an object in the API.
    pub(crate) fn new(pod: Arc<Pod>) -> Self {
        Self {
            pod,
            removed: false,
            is_replaced: false,
            api_uid: None,
            rejection: None,
            resize: None,
            halt_seconds: None,
        }
    }

    /// Ends the pod, for good or until the next worker starts it. Returns whether that is new.
    pub(crate) fn set_removed(&mut self, is_replaced: bool) -> bool {
        let was = (self.removed, self.is_replaced);
        (self.removed, self.is_replaced) = (true, is_replaced);
        was != (true, is_replaced)
    }
}

/// The manager's end of a worker.
#[derive(Debug)]
pub(crate) struct WorkerHandle {
    pub(crate) desired: watch::Sender<DesiredPod>,
    pub(crate) wake: Arc<Notify>,
    pub(crate) exits: Arc<Mutex<HashSet<String>>>,
    /// Whether the containers have ended for good.
    pub(crate) halted: Arc<watch::Sender<bool>>,
    /// The last status and observation, for the kubelet API.
    pub(crate) reported: Arc<Mutex<ReportedPod>>,
}

impl WorkerHandle {
    /// Whether the pod uses resources of the node (upstream's `GetActivePods`): it exists in the
    /// API and has not ended. A pod that was deleted without a grace period does not count,
    /// although its containers may still be ending.
    pub(crate) fn uses_resources(&self) -> bool {
        uses_resources(&self.desired.borrow(), &self.reported.lock())
    }

    /// Handles an event of the runtime about a container or sandbox of the pod.
    pub(crate) fn on_runtime_event(&self, event: ContainerEvent) {
        match event.kind {
            // Only the worker starts containers, and it observes them afterwards.
            ContainerEventKind::Started => return,
            ContainerEventKind::Exited => {
                self.exits.lock().insert(event.id);
            }
            ContainerEventKind::OutOfMemory | ContainerEventKind::Deleted => {}
        }
        self.wake.notify_one();
    }
}

/// State that a worker publishes.
#[derive(Debug, Default, Clone)]
pub(crate) struct ReportedPod {
    pub(crate) status: core::PodStatus,
    pub(crate) observed: Arc<ObservedPod>,
    /// How often the periodic relist changed the pod: each time an event was lost or a deadline
    /// missed.
    pub(crate) relist_changes: u64,
}

/// Resolves once the pod has to end.
pub(crate) async fn pod_must_end(desired: &mut watch::Receiver<DesiredPod>) {
    let ends = |d: &DesiredPod| {
        d.removed || d.rejection.is_some() || d.halt_seconds.is_some() || d.pod.is_deleted()
    };
    if desired.wait_for(ends).await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn uses_resources(desired: &DesiredPod, reported: &ReportedPod) -> bool {
    let ended = desired.pod.is_api_terminal()
        || matches!(reported.status.phase.as_deref(), Some("Succeeded" | "Failed"));
    !desired.removed && (!ended || reported.observed.any_running())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::observed::ObservedState;
    use crate::pods::observed::tests::container;
    use crate::pods::pod::tests::pod;
    use serde_json::json;

    fn desired(removed: bool) -> DesiredPod {
        let pod = Arc::new(pod(json!({"containers": [{"name": "a"}]})));
        DesiredPod { removed, api_uid: Some("u".to_owned()), ..DesiredPod::new(pod) }
    }

    fn reported(phase: &str, running: bool) -> ReportedPod {
        let state = if running { ObservedState::Running } else { ObservedState::Exited };
        let containers = vec![container("a", state)];
        let mut reported = ReportedPod::default();
        reported.status.phase = Some(phase.to_owned());
        reported.observed = Arc::new(ObservedPod { sandboxes: Vec::new(), containers });
        reported
    }

    #[test]
    fn a_force_deleted_pod_uses_no_resources() {
        assert!(uses_resources(&desired(false), &reported("Running", true)));
        assert!(!uses_resources(&desired(true), &reported("Running", true)));
    }

    #[test]
    fn a_failed_pod_uses_resources_until_its_containers_have_ended() {
        assert!(uses_resources(&desired(false), &reported("Failed", true)));
        assert!(!uses_resources(&desired(false), &reported("Failed", false)));
        assert!(!uses_resources(&desired(false), &reported("Succeeded", false)));
    }
}
