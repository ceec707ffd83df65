//! Applies a resize to the running containers of a pod.

use client::events::EventType;
use proto::runtime::v1 as cri;
use sorting::CompactSort as _;

use super::actions::PodActions;
use super::actions::group_limits;
use super::error::ResizeError;
use crate::events;
use crate::pods::observed::{ObservedPod, ObservedState, label};
use crate::pods::plan::{KillReason, PlannedKill};
use crate::pods::pod::{ContainerRole, Pod, PodContainer};
use crate::pods::resize;
use crate::pods::resources;
use crate::pods::resources::AllocatedResources;

/// A running container whose resources differ from the allocated ones.
struct ContainerResize<'a> {
    member: &'a PodContainer,
    id: String,
    from: AllocatedResources,
    to: AllocatedResources,
    linux: cri::LinuxContainerResources,
}

impl ContainerResize<'_> {
    /// Whether the container frees resources. Such containers come first, so that the sum of all
    /// never exceeds both the old and the new resources of the pod.
    fn shrinks(&self) -> bool {
        let smaller = |to: i64, from: i64| to > 0 && (from <= 0 || to < from);
        self.to.cpu.0 < self.from.cpu.0
            || smaller(self.to.cpu.1, self.from.cpu.1)
            || smaller(self.to.memory, self.from.memory)
    }

    /// Whether the container's resize policy requires a restart.
    fn restarts(&self) -> bool {
        let policy = |resource| resize::requires_restart(&self.member.container, resource);
        self.from.cpu != self.to.cpu && policy("cpu")
            || self.from.memory != self.to.memory && policy("memory")
    }
}

impl PodActions {
    /// Records for the status whether a resize is pending: the API must not show the new generation
    /// as observed before the resize without the condition `PodResizeInProgress`.
    pub(super) fn record_pending_resize(&mut self, pod: &Pod, observed: &ObservedPod) {
        let pending = !self.pending_resizes(pod, observed).is_empty();
        let mut progress = self.progress.lock();
        if pending {
            progress.resizing.get_or_insert_default();
        } else {
            progress.resizing = None;
        }
    }

    fn pending_resizes<'a>(
        &mut self,
        pod: &'a Pod,
        observed: &ObservedPod,
    ) -> Vec<ContainerResize<'a>> {
        self.allocated.retain(|id, _| observed.containers.iter().any(|c| c.id == *id));
        let mut pending = Vec::new();
        for member in pod
            .containers
            .iter()
            .filter(|m| matches!(m.role, ContainerRole::Main | ContainerRole::Sidecar))
        {
            let Some(container) = observed
                .active_container(member.name())
                .filter(|c| c.state == ObservedState::Running)
            else {
                continue;
            };
            let unified = self.node.runtime.cgroups.of_every_container();
            let memory = self.node.identity.machine.memory;
            let mut linux = resources::linux(pod, member, memory, unified);
            self.node.resource_managers.container_cpus(pod, member).add_to(&mut linux);
            let to = AllocatedResources::of(&linux);
            let noted = container
                .annotations
                .get(label::RESOURCES)
                .and_then(|t| AllocatedResources::parse(t));
            match self.allocated.get(&container.id).copied().or(noted) {
                Some(from) if from != to => {
                    let id = container.id.clone();
                    pending.push(ContainerResize { member, id, from, to, linux });
                }
                _ => {
                    self.allocated.insert(container.id.clone(), to);
                }
            }
        }
        pending.compact_sort_by_key(|p| !p.shrinks());
        pending
    }

    /// Updates the containers whose resources differ from the allocated ones, or stops those that
    /// need a restart. The pod's cgroup already has room for the old and the new resources, and is
    /// lowered once all containers are done. The condition `PodResizeInProgress` reports failures,
    /// which are retried.
    pub(super) async fn resize(
        &mut self,
        pod: &Pod,
        observed: &ObservedPod,
    ) -> Result<(), ResizeError> {
        let mut failed: Option<ResizeError> = None;
        let all = self.pending_resizes(pod, observed);
        let any = !all.is_empty();
        for pending in all {
            let name = pending.member.name();
            let outcome = if pending.restarts() {
                let message = format!("Container {name} resize requires restart");
                let (id, name) = (pending.id.clone(), name.to_owned());
                let kill = PlannedKill { id, name, message, reason: KillReason::Other };
                match self.unless_ending(self.kill_planned(pod, observed, &kill)).await {
                    Ok(false) => return Ok(()),
                    outcome => outcome.map(drop).map_err(ResizeError::Stop),
                }
            } else {
                let update = cri::LinuxContainerResources {
                    cpu_period: pending.linux.cpu_period,
                    cpu_quota: pending.linux.cpu_quota,
                    cpu_shares: pending.linux.cpu_shares,
                    memory_limit_in_bytes: pending.linux.memory_limit_in_bytes,
                    ..cri::LinuxContainerResources::default()
                };
                let updated = self.node.runtime.cri.update_container(&pending.id, update).await;
                updated.map_err(|source| ResizeError::Update { container: name.to_owned(), source })
            };
            match outcome {
                Ok(()) => {
                    self.changes += 1;
                    self.allocated.insert(pending.id, pending.to);
                }
                Err(error) => {
                    let message =
                        resize::event_message(pod, "Pod resize error", &error.to_string());
                    self.node.api.events.pod_event(
                        pod,
                        EventType::Warning,
                        events::RESIZE_ERROR,
                        message,
                    );
                    failed = Some(error);
                }
            }
        }
        if failed.is_none() {
            let limits = group_limits(&self.node, pod);
            failed = self.node.runtime.cgroups.apply(pod, limits).err().map(ResizeError::Cgroup);
        }
        if any && failed.is_none() {
            let message = resize::event_message(pod, "Pod resize completed", "");
            self.node.api.events.pod_event(
                pod,
                EventType::Normal,
                events::RESIZE_COMPLETED,
                message,
            );
        }
        self.progress.lock().resizing = failed.as_ref().map(ToString::to_string);
        failed.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::pod::tests::pod;
    use serde_json::json;

    #[test]
    fn containers_that_shrink_are_resized_first() {
        let p = pod(json!({"containers": [{"name": "a"}]}));
        let allocated = |shares, quota, memory| AllocatedResources { cpu: (shares, quota), memory };
        let shrinks = |from, to| {
            let (member, linux) = (&p.containers[0], cri::LinuxContainerResources::default());
            ContainerResize { member, id: String::new(), from, to, linux }.shrinks()
        };
        let middle = allocated(512, 50_000, 100);
        assert!(shrinks(middle, allocated(256, 50_000, 100)));
        assert!(shrinks(middle, allocated(512, 40_000, 200)));
        assert!(shrinks(middle, allocated(1024, 90_000, 50)));
        assert!(!shrinks(middle, allocated(1024, 90_000, 100)));
        // Zero means no limit.
        assert!(shrinks(allocated(512, 0, 0), allocated(512, 50_000, 0)));
        assert!(!shrinks(middle, allocated(512, 0, 0)));
    }
}
