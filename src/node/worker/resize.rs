//! Gives running containers the resources that their pod has now.

use client::events::EventType;
use proto::runtime::v1 as cri;

use super::Worker;
use crate::observed::{Observed, State, label};
use crate::plan::{Kill, KillReason};
use crate::pod::{Pod, Role};
use crate::resize;
use crate::resources::{self, Given};

impl Worker {
    /// Updates the containers whose resources differ from those they were given, or ends them where that needs a start.
    /// What fails is told by the condition `PodResizeInProgress` and tried again.
    pub(super) async fn resize(&mut self, pod: &Pod, observed: &Observed) -> Result<(), String> {
        self.given.retain(|id, _| observed.containers.iter().any(|c| c.id == *id));
        let mut failed = None;
        for member in pod.members.iter().filter(|m| matches!(m.role, Role::Main | Role::Sidecar)) {
            let Some(container) =
                observed.active(member.name()).filter(|c| c.state == State::Running)
            else {
                continue;
            };
            let unified = self.node.cgroups.of_every_container();
            let linux = resources::linux(pod, member, self.node.machine.memory, unified);
            let wanted = Given::of(&linux);
            let noted = container.annotations.get(label::RESOURCES).and_then(|t| Given::parse(t));
            let given = self.given.get(&container.id).copied().or(noted);
            let Some(given) = given.filter(|g| *g != wanted) else {
                self.given.insert(container.id.clone(), wanted);
                continue;
            };
            let restart = given.cpu != wanted.cpu && resize::restarts(&member.container, "cpu")
                || given.memory != wanted.memory && resize::restarts(&member.container, "memory");
            let outcome = if restart {
                let message = format!("Container {} resize requires restart", member.name());
                let (id, name) = (container.id.clone(), member.name().to_owned());
                let kill = Kill { id, name, message, reason: KillReason::Other };
                self.kill_planned(pod, observed, &kill).await
            } else {
                let update = cri::LinuxContainerResources {
                    cpu_period: linux.cpu_period,
                    cpu_quota: linux.cpu_quota,
                    cpu_shares: linux.cpu_shares,
                    memory_limit_in_bytes: linux.memory_limit_in_bytes,
                    ..cri::LinuxContainerResources::default()
                };
                let updated = self.node.runtime.update_container(&container.id, update).await;
                updated.map_err(|e| format!("container {}: {}", member.name(), e.message))
            };
            match outcome {
                Ok(()) => {
                    self.given.insert(container.id.clone(), wanted);
                    let message = format!("Container {} has its new resources", member.name());
                    self.node.pod_event(pod, EventType::Normal, "ResizeCompleted", message);
                }
                Err(why) => {
                    self.node.pod_event(pod, EventType::Warning, "ResizeError", why.clone());
                    failed = Some(why);
                }
            }
        }
        self.resizing.clone_from(&failed);
        failed.map_or(Ok(()), Err)
    }
}
