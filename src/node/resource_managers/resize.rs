//! Resizes that the static policies do not allow (`pkg/kubelet/allocation/handlers.go`).

use super::{ResourceManagers, metrics};
use crate::pods::pod::{ContainerRole, Pod};
use crate::pods::resources::{self, Qos};

/// Why a resize is infeasible as long as the policy is in effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InfeasibleResize {
    Cpu,
    Memory,
}

impl InfeasibleResize {
    /// Message of the condition, as upstream.
    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::Cpu => {
                "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\""
            }
            Self::Memory => {
                "Resize is infeasible for Guaranteed Pods alongside Memory Manager policy \
                 \"Static\""
            }
        }
    }

    /// Counts the resize.
    pub(crate) fn count(self) {
        let detail = match self {
            Self::Cpu => "guaranteed_pod_cpu_manager_static_policy",
            Self::Memory => "guaranteed_pod_memory_manager_static_policy",
        };
        metrics::INFEASIBLE_RESIZES.inc(&[detail]);
    }
}

impl ResourceManagers {
    /// Why the pod `current` cannot get the resources of `wanted`: it is Guaranteed, and its CPUs
    /// or memory are managed.
    pub(crate) fn infeasible_resize(
        &self,
        current: &Pod,
        wanted: &Pod,
    ) -> Option<InfeasibleResize> {
        if resources::qos(wanted) != Qos::Guaranteed {
            return None;
        }
        let guarded = self.guarded.lock();
        let changes = |name| changes_request(current, wanted, name);
        if guarded.cpu.is_some() && changes("cpu") {
            return Some(InfeasibleResize::Cpu);
        }
        (guarded.memory.is_some() && changes("memory")).then_some(InfeasibleResize::Memory)
    }
}

/// Whether the request of a container that can be resized changes.
fn changes_request(current: &Pod, wanted: &Pod, name: &str) -> bool {
    let resizable = wanted
        .containers
        .iter()
        .filter(|member| matches!(member.role, ContainerRole::Main | ContainerRole::Sidecar));
    resizable.into_iter().any(|member| {
        let before = current.container(member.name());
        let before = before.and_then(|m| resources::container_request(&m.container, name));
        before != resources::container_request(&member.container, name)
    })
}
