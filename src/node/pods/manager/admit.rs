//! Admission of pods to this node, and of new resources to running pods.

use std::sync::Arc;
use std::time::Duration;

use api::ObjectKey;
use api::k8s::api::core::v1 as core;
use base::{Backoff, Kind};
use client::events::EventType;

use super::PodManager;
use crate::events;
use crate::pods::admission;
use crate::pods::handle::WorkerHandle;
use crate::pods::pod::Pod;
use crate::pods::rejection::Rejection;
use crate::pods::resize;
use crate::resource_managers::infeasible_resize::InfeasibleResize;
use crate::status::pod::PodFailure;

impl PodManager {
    /// Returns the rejection of a pod. Only a pod that has not begun can be rejected: a running pod
    /// is adopted.
    pub(super) fn admit(&self, pod: &Arc<Pod>) -> Option<PodFailure> {
        if has_begun(pod) {
            return None;
        }
        if self.node.identity.config.machine_shutdown.is_in_progress() {
            let message = "Pod was rejected as the node is shutting down.";
            return Some(Rejection::new("NodeShutdown", message).into());
        }
        let others = self.other_active_pods(pod);
        let rejection = admission::check(&self.node.identity, &self.node.caches, pod, &others)?;
        Some(rejection.into())
    }

    /// Reads the Node's labels and reconciles the pod again.
    pub(super) fn read_labels(&self, key: ObjectKey) {
        let (node, dirty) = (Arc::clone(&self.node), Arc::clone(&self.dirty));
        self.node.tasks.spawn(Kind::Request, "node-labels", async move {
            let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
            loop {
                match node.api.client.get::<core::Node>("", &node.identity.config.node_name).await {
                    Ok(object) => {
                        node.caches
                            .labels
                            .store(Arc::new(object.metadata.labels.unwrap_or_default()));
                        break;
                    }
                    // A pod is not rejected while the API server cannot be reached.
                    Err(error) if error.is_retryable() => {
                        tracing::debug!(%error, "cannot read the node's labels, retrying");
                    }
                    Err(error) => {
                        tracing::debug!(%error, "cannot read the node's labels");
                        break;
                    }
                }
                let back = node.api.client.transport().back();
                if !backoff.wait_or(node.tasks.shutdown(), back).await {
                    return Ok(());
                }
            }
            dirty.keys.lock().insert(key);
            dirty.notify.notify_one();
            Ok::<(), std::convert::Infallible>(())
        });
    }

    /// All other pods that use resources of the node.
    fn other_active_pods(&self, pod: &Pod) -> Vec<Arc<Pod>> {
        let active = self.table.active().into_iter();
        active.filter(|other| other.uid != pod.uid).collect()
    }

    /// Whether the pod has to wait for host ports of a deleted pod whose containers are still
    /// ending. The end of that pod triggers [`PodManager::resume_waiting`].
    pub(super) fn waits_for_host_ports(&mut self, pod: &Arc<Pod>) -> bool {
        if has_begun(pod) {
            return false;
        }
        let ending = self.table.all().into_iter().filter(|(_, h)| h.desired.borrow().removed);
        let Some((holder, _)) = ending
            .filter(|(p, _)| p.uid != pod.uid)
            .find(|(p, _)| admission::host_ports_clash(pod, std::slice::from_ref(p)))
        else {
            return false;
        };
        if self.waiting.insert(Arc::clone(&pod.uid), pod.key.clone()).is_none() {
            let message =
                format!("Waiting for the host ports of pod {}, which is terminating", holder.key);
            self.node.api.events.pod_event(pod, EventType::Normal, "NodePorts", message);
        }
        true
    }

    /// Reconciles the pods that wait for host ports or for new resources, after a pod ended or
    /// shrank.
    pub(super) fn resume_waiting(&mut self) {
        let resizes = self.table.all().into_iter();
        let resizes = resizes.filter(|(_, h)| h.desired.borrow().resize.is_some());
        let keys: Vec<ObjectKey> = resizes
            .map(|(p, _)| p.key.clone())
            .chain(self.waiting.drain().map(|(_, key)| key))
            .collect();
        if !keys.is_empty() {
            self.dirty.keys.lock().extend(keys);
            self.dirty.notify.notify_one();
        }
    }

    /// Records an event that a resize begins or is deferred.
    pub(super) fn report_resize(
        &self,
        handle: &WorkerHandle,
        current: &Pod,
        pod: &Pod,
        deferred: Option<&resize::DeferredResize>,
    ) {
        if let Some(deferred) = deferred {
            if handle.desired.borrow().resize.as_ref() != Some(deferred) {
                let prefix = format!("Pod resize {}", deferred.reason);
                let message = resize::event_message(pod, &prefix, &deferred.message);
                let reason = match deferred.infeasible {
                    Some(why) => {
                        why.count();
                        events::RESIZE_INFEASIBLE
                    }
                    None => events::RESIZE_DEFERRED,
                };
                self.node.api.events.pod_event(pod, EventType::Warning, reason, message);
            }
        } else if resize::resources_differ(current, pod) {
            let message = resize::event_message(pod, "Pod resize started", "");
            self.node.api.events.pod_event(pod, EventType::Normal, events::RESIZE_STARTED, message);
        }
    }

    /// Returns the pod with the resources that are allocated to it now.
    pub(super) fn allocate(
        &self,
        current: &Pod,
        wanted: Arc<Pod>,
    ) -> (Arc<Pod>, Option<resize::DeferredResize>) {
        let pod = Arc::clone(&wanted);
        let swaps = || {
            let memory = self.node.runtime.cgroups.memory();
            resize::changes_swap(memory, current, &wanted).then_some(InfeasibleResize::Swap)
        };
        let infeasible =
            self.node.resource_managers.infeasible_resize(current, &wanted).or_else(swaps);
        resize::allocate(
            current,
            wanted,
            || self.other_active_pods(&pod),
            &self.node.caches.allocatable.load(),
            infeasible,
        )
    }
}

/// Whether the pod was started before. Only other pods are admitted or wait; a running pod is
/// adopted.
fn has_begun(pod: &Pod) -> bool {
    let begun = pod.api_status().is_some_and(|s| s.start_time.is_some());
    begun || pod.is_deleted() || pod.is_api_terminal()
}
