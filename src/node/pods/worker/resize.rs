//! Applies a resize to the running containers of a pod.

use client::events::EventType;
use proto::runtime::v1 as cri;
use sorting::CompactSort as _;

use super::actions::PodActions;
use super::actions::group_limits;
use super::error::ResizeError;
use crate::cgroups::{GroupUsage, PodGroupConfig};
use crate::events;
use crate::pods::observed::{ObservedPod, ObservedState, label};
use crate::pods::plan::{KillReason, PlannedKill};
use crate::pods::pod::{ContainerRole, Pod, PodContainer};
use crate::pods::resize;
use crate::pods::resources;
use crate::pods::resources::AllocatedResources;

/// What differs from the allocated resources of a pod.
pub(super) struct PodResize<'a> {
    /// Those that free resources come first.
    containers: Vec<ContainerResize<'a>>,
    /// The resources of the pod as a whole differ from what its group has.
    changes_group: bool,
}

impl PodResize<'_> {
    fn is_empty(&self) -> bool {
        self.containers.is_empty() && !self.changes_group
    }
}

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

    /// Whether the limit or the request of memory changes.
    fn changes_memory(&self) -> bool {
        let of = |resources: &AllocatedResources| (resources.memory, resources.memory_request);
        of(&self.from) != of(&self.to)
    }

    /// Whether the container's resize policy requires a restart.
    fn restarts(&self) -> bool {
        let policy = |resource| resize::requires_restart(&self.member.container, resource);
        self.from.cpu != self.to.cpu && policy("cpu") || self.changes_memory() && policy("memory")
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

    pub(super) fn pending_resizes<'a>(
        &mut self,
        pod: &'a Pod,
        observed: &ObservedPod,
    ) -> PodResize<'a> {
        self.allocated.retain(|id, _| observed.containers.iter().any(|c| c.id == *id));
        let mut pending = Vec::new();
        for member in pod.containers.iter().filter(|m| m.role != ContainerRole::Ephemeral) {
            let Some(container) = observed
                .active_container(member.name())
                .filter(|c| c.state == ObservedState::Running)
            else {
                continue;
            };
            let memory = self.node.runtime.cgroups.memory();
            let mut linux = resources::linux(pod, member, memory);
            self.node.resource_managers.container_cpus(pod, member).add_to(&mut linux);
            let to = AllocatedResources::of(&member.container, &linux);
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
        let changes_group = pod.spec().resources.is_some()
            && observed.any_running()
            && self.node.runtime.cgroups.is_resized(pod, group_limits(&self.node, pod));
        PodResize { containers: pending, changes_group }
    }

    /// Refuses to lower limits of memory below what is used, before anything is changed
    /// (`validateMemoryResizeAction`).
    ///
    /// # Errors
    ///
    /// The limits that are too low.
    pub(super) fn check_memory(
        &self,
        pod: &Pod,
        resize: &PodResize<'_>,
    ) -> Result<(), ResizeError> {
        if !resize.containers.iter().any(|c| c.restarts() || c.changes_memory()) {
            return Ok(());
        }
        let cgroups = &self.node.runtime.cgroups;
        let usage = |group: Option<GroupUsage>| group.map(|group| group.usage);
        let desired = PodGroupConfig::of(pod, group_limits(&self.node, pod)).memory;
        let of_pod = usage(cgroups.pod_group(pod));
        let mut errors = Vec::new();
        if let Some(limit) = desired
            && is_lowered(cgroups.pod_config(pod).memory, limit)
            && is_below(limit, of_pod)
        {
            errors.push(lowered_too_far("pod", limit, of_pod));
        }
        for container in resize.containers.iter().filter(|c| !c.restarts()) {
            let (from, to) = (container.from.memory, container.to.memory);
            let is_lowered = to > 0 && is_lowered((from > 0).then_some(from), to);
            if is_lowered && is_below(to, usage(cgroups.container_group(pod, &container.id))) {
                // The usage in this text is that of the pod, as in the kubelet's.
                let name = format!("container {:?}", container.member.name());
                errors.push(lowered_too_far(&name, to, of_pod));
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(ResizeError::Memory(errors)) }
    }

    /// Reports a resize that failed, by an event and in the status; returns the error.
    pub(super) fn report_failed_resize(&self, pod: &Pod, error: ResizeError) -> ResizeError {
        let text = error.to_string();
        let message = resize::event_message(pod, "Pod resize error", &text);
        let events = &self.node.api.events;
        events.pod_event(pod, EventType::Warning, events::RESIZE_ERROR, message);
        self.progress.lock().resizing = Some(text);
        error
    }

    /// Updates the containers whose resources differ from the allocated ones, or stops those that
    /// need a restart. The pod's cgroup already has room for the old and the new resources, and is
    /// lowered once all containers are done. The condition `PodResizeInProgress` reports failures,
    /// which are retried.
    pub(super) async fn resize(
        &mut self,
        pod: &Pod,
        observed: &ObservedPod,
        resizes: PodResize<'_>,
    ) -> Result<(), ResizeError> {
        let mut failed: Option<ResizeError> = None;
        let (any, changes_group) = (!resizes.is_empty(), resizes.changes_group);
        for pending in resizes.containers {
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
                Err(error) => failed = Some(self.report_failed_resize(pod, error)),
            }
        }
        if failed.is_none() {
            let limits = group_limits(&self.node, pod);
            failed = self.node.runtime.cgroups.apply(pod, limits).err().map(ResizeError::Cgroup);
            self.changes += u64::from(changes_group);
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

/// Whether a limit of memory is added or becomes smaller.
fn is_lowered(from: Option<i64>, to: i64) -> bool {
    from.is_none_or(|from| to < from)
}

/// Whether as much memory is used as `limit` allows. Without a measurement the kernel decides.
fn is_below(limit: i64, usage: Option<u64>) -> bool {
    usage.is_some_and(|usage| usage >= u64::try_from(limit).unwrap_or_default())
}

fn lowered_too_far(what: &str, limit: i64, usage: Option<u64>) -> String {
    let usage = usage.unwrap_or_default();
    format!("attempting to set {what} memory limit ({limit}) below current usage ({usage})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::pod::tests::pod;
    use serde_json::json;

    #[test]
    fn containers_that_shrink_are_resized_first() {
        let p = pod(json!({"containers": [{"name": "a"}]}));
        let allocated = |shares, quota, memory| AllocatedResources {
            cpu: (shares, quota),
            memory,
            memory_request: 0,
        };
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

    #[test]
    fn memory_is_not_lowered_below_its_usage() {
        assert!(is_lowered(None, 1) && is_lowered(Some(2), 1) && !is_lowered(Some(1), 1));
        assert!(is_below(10, Some(10)) && !is_below(10, Some(9)) && !is_below(10, None));
        let one = ResizeError::Memory(vec![lowered_too_far("pod", 10, Some(11))]);
        assert_eq!(
            one.to_string(),
            "cannot decrease memory limits: \
             attempting to set pod memory limit (10) below current usage (11)"
        );
    }
}
