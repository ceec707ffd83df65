//! Resizes that the static policies do not allow (`pkg/kubelet/allocation/handlers.go`).

use super::ResourceManagers;
use super::infeasible_resize::InfeasibleResize;
use crate::pods::pod::{ContainerRole, Pod};
use crate::pods::resources::{self, Qos};

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
