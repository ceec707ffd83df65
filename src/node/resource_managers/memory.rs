//! The memory manager with the policy `Static`: memory and huge pages of Guaranteed pods come from
//! as few NUMA nodes as possible, and their containers use those nodes only. Pure: the caller keeps
//! the state on disk (`pkg/kubelet/cm/memorymanager/policy_static.go`).

pub(crate) mod checkpoint;
mod hints;
pub(crate) mod machine_state;
pub(crate) mod reservation;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::metrics;
use super::numa_mask::NumaMask;
use super::topology::hints::TopologyHint;
use crate::pods::pod::{ContainerRole, Pod, PodContainer};
use crate::pods::resources::{self, Qos};
use checkpoint::MemoryState;
use machine_state::{InvalidState, MachineState, MemoryBlock};

/// Name of the policy in the state file.
pub(crate) const STATIC: &str = "Static";
pub(crate) use reservation::MEMORY;

/// Requested bytes by resource: memory and huge pages.
pub(crate) type MemoryRequests = BTreeMap<String, u64>;

/// Why a container gets no memory; texts as upstream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MemoryAllocationError {
    #[error("[memorymanager] failed to represent quantity as int64")]
    Quantity,
    #[error(
        "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory \
         is available"
    )]
    NoNodes,
    #[error("[memorymanager] failed to find the default preferred hint")]
    NotPreferred,
    #[error("[memorymanager] failed to find NUMA nodes to extend the current topology hint")]
    NotExtended,
    #[error("[memorymanager] failed to find the extended preferred hint")]
    ExtendedNotPreferred,
    #[error("[memorymanager] preferred hint violates NUMA node allocation")]
    Violation,
}

/// Bytes that containers of a pod may use again, by nodes and resource: those of init containers
/// that have ended.
type Reusable = BTreeMap<(NumaMask, String), u64>;

/// The manager.
#[derive(Debug, Clone)]
pub(crate) struct MemoryManager {
    pub(crate) state: MemoryState,
    /// By uid of the pod; dropped with the pod.
    reusable: BTreeMap<String, Reusable>,
}

impl MemoryManager {
    /// Begins with a state that was read at the start, or with the `unused` machine.
    ///
    /// # Errors
    ///
    /// The state contradicts the machine or the configuration.
    pub(crate) fn new(
        unused: MachineState,
        state: Option<MemoryState>,
    ) -> Result<Self, InvalidState> {
        let mut state = state.unwrap_or_default();
        if state.machine.0.is_empty() {
            if !state.assignments.is_empty() {
                return Err(InvalidState::AssignmentsOnly);
            }
            state.machine = unused;
        } else {
            state.machine.check(unused, &state.assignments)?;
        }
        Ok(Self { state, reusable: BTreeMap::new() })
    }

    /// The memory of a container.
    pub(crate) fn blocks(&self, pod: &str, container: &str) -> Option<&Vec<MemoryBlock>> {
        self.state.assignments.get(pod)?.get(container)
    }

    /// The NUMA nodes of a container in the kernel's list format; empty for all.
    pub(crate) fn nodes(&self, pod: &str, container: &str) -> String {
        let blocks = self.blocks(pod, container).into_iter().flatten();
        let mask = NumaMask::new(blocks.flat_map(|block| block.nodes.iter().copied()));
        let nodes: Vec<String> = mask.nodes().map(|node| node.to_string()).collect();
        nodes.join(",")
    }

    /// Allocates the memory of a container, on the nodes of the hint of the topology manager if it
    /// has one. Returns whether the state has changed: a container that has memory keeps it.
    ///
    /// # Errors
    ///
    /// No nodes have enough memory, or they are used otherwise.
    pub(crate) fn allocate(
        &mut self,
        pod: &Pod,
        member: &PodContainer,
        hint: TopologyHint,
    ) -> Result<bool, MemoryAllocationError> {
        if !is_exclusive(pod) {
            return Ok(false);
        }
        let requests = requests(member)?;
        if requests.is_empty() {
            return Ok(false);
        }
        metrics::MEMORY_REQUESTS.inc(&[]);
        let outcome = match self.blocks(&pod.uid, member.name()).cloned() {
            Some(blocks) => {
                self.update_reusable(pod, member, &blocks);
                Ok(false)
            }
            None => self.allocate_new(pod, member, &requests, hint).map(|()| true),
        };
        if outcome.is_err() {
            metrics::MEMORY_ERRORS.inc(&[]);
        }
        outcome
    }

    fn allocate_new(
        &mut self,
        pod: &Pod,
        member: &PodContainer,
        requests: &MemoryRequests,
        hint: TopologyHint,
    ) -> Result<(), MemoryAllocationError> {
        let mask = self.choose_nodes(pod, requests, hint)?;
        let mut blocks = Vec::new();
        for (resource, size) in requests {
            let reusable = self.reusable_bytes(&pod.uid, mask, resource);
            let needed = size.saturating_sub(reusable);
            self.state.machine.charge(mask, resource, needed);
            let nodes = mask.nodes().collect();
            blocks.push(MemoryBlock { nodes, resource: resource.clone(), size: *size });
        }
        self.update_reusable(pod, member, &blocks);
        let containers = self.state.assignments.entry(pod.uid.to_string()).or_default();
        containers.insert(member.name().to_owned(), blocks.clone());
        self.shrink_init_containers(pod, member.name(), &blocks);
        Ok(())
    }

    /// The nodes of a new allocation: those of the hint, more of them if they have too little, or
    /// the best ones without a hint.
    fn choose_nodes(
        &self,
        pod: &Pod,
        requests: &MemoryRequests,
        hint: TopologyHint,
    ) -> Result<NumaMask, MemoryAllocationError> {
        let mut preferred = hint.preferred;
        let mut mask = match hint.mask {
            Some(mask) => mask,
            None => {
                let all = self.candidates(&pod.uid, requests);
                let (mask, is_preferred) = best(&all).ok_or(MemoryAllocationError::NoNodes)?;
                if !is_preferred && preferred {
                    return Err(MemoryAllocationError::NotPreferred);
                }
                preferred = is_preferred;
                mask
            }
        };
        if !self.state.machine.has_free(mask, requests) {
            let mut all = self.candidates(&pod.uid, requests);
            all.retain(|hint| hint.mask.is_some_and(|wider| wider.is_superset(mask)));
            let (wider, is_preferred) = best(&all).ok_or(MemoryAllocationError::NotExtended)?;
            if !is_preferred && preferred {
                return Err(MemoryAllocationError::ExtendedNotPreferred);
            }
            mask = wider;
        }
        if self.state.machine.is_violated_by(mask) {
            return Err(MemoryAllocationError::Violation);
        }
        Ok(mask)
    }

    fn reusable_bytes(&self, pod: &str, mask: NumaMask, resource: &str) -> u64 {
        let reusable = self.reusable.get(pod);
        let bytes = reusable.and_then(|all| all.get(&(mask, resource.to_owned())));
        bytes.copied().unwrap_or_default()
    }

    /// Updates what the next containers of the pod may use again.
    fn update_reusable(&mut self, pod: &Pod, member: &PodContainer, blocks: &[MemoryBlock]) {
        let reusable = self.reusable.entry(pod.uid.to_string()).or_default();
        for block in blocks {
            let key = (block.mask(), block.resource.clone());
            if member.role == ContainerRole::Init {
                let most = reusable.entry(key).or_default();
                *most = (*most).max(block.size);
            } else if let Some(bytes) = reusable.get_mut(&key) {
                *bytes = bytes.saturating_sub(block.size);
            }
        }
    }

    /// Reduces the recorded memory of init containers before a container by what that one took
    /// over, so that it is released once.
    fn shrink_init_containers(&mut self, pod: &Pod, name: &str, blocks: &[MemoryBlock]) {
        let Some(containers) = self.state.assignments.get_mut(&*pod.uid) else { return };
        let before = pod.containers.iter().take_while(|member| member.name() != name);
        let before: Vec<&str> = before
            .filter(|member| member.role == ContainerRole::Init)
            .map(PodContainer::name)
            .collect();
        for block in blocks {
            let mut left = block.size;
            for init in &before {
                let same = containers.get_mut(*init).into_iter().flatten();
                let same =
                    same.filter(|b| b.resource == block.resource && b.mask() == block.mask());
                for earlier in same {
                    let taken = earlier.size.min(left);
                    earlier.size -= taken;
                    left -= taken;
                }
            }
        }
    }

    /// Releases the memory of init containers that ended before this container starts. Returns
    /// whether there was some.
    pub(crate) fn begin_container(&mut self, pod: &Pod, name: &str) -> bool {
        let before = pod.containers.iter().take_while(|member| member.name() != name);
        let ended: Vec<&str> = before
            .filter(|member| member.role == ContainerRole::Init)
            .map(PodContainer::name)
            .collect();
        let mut is_changed = false;
        for init in ended {
            is_changed |= self.release(&pod.uid, init);
        }
        is_changed
    }

    fn release(&mut self, pod: &str, container: &str) -> bool {
        let Some(containers) = self.state.assignments.get_mut(pod) else { return false };
        let Some(blocks) = containers.remove(container) else { return false };
        if containers.is_empty() {
            self.state.assignments.remove(pod);
        }
        for block in &blocks {
            self.state.machine.release(block);
        }
        true
    }

    /// Releases the memory of pods that `exists` does not accept. Returns whether there was some.
    pub(crate) fn retain_pods(&mut self, exists: impl Fn(&str) -> bool) -> bool {
        self.reusable.retain(|pod, _| exists(pod));
        let all = self.state.assignments.iter().filter(|(pod, _)| !exists(pod));
        let gone: Vec<(String, String)> = all
            .flat_map(|(pod, containers)| {
                containers.keys().map(|container| (pod.clone(), container.clone()))
            })
            .collect();
        for (pod, container) in &gone {
            self.release(pod, container);
        }
        !gone.is_empty()
    }
}

/// Whether containers of the pod may get memory of certain nodes. Resources of the whole pod need a
/// feature that is off.
fn is_exclusive(pod: &Pod) -> bool {
    !resources::has_pod_level(pod) && resources::qos(pod) == Qos::Guaranteed
}

/// The memory and huge pages that a container requests.
fn requests(member: &PodContainer) -> Result<MemoryRequests, MemoryAllocationError> {
    let amount = |(name, quantity): (String, api::Quantity)| {
        let bytes = u64::try_from(quantity.value());
        bytes.map(|bytes| (name, bytes)).map_err(|_| MemoryAllocationError::Quantity)
    };
    resources::memory_requests(&member.container).into_iter().map(amount).collect()
}

/// The best hint: preferred ones first, then the narrowest.
fn best(hints: &[TopologyHint]) -> Option<(NumaMask, bool)> {
    let all = hints.iter().filter_map(|hint| Some((hint.mask?, hint.preferred)));
    all.reduce(|best, next| match (best.1, next.1) {
        (false, true) => next,
        (true, false) => best,
        _ if next.0.is_narrower(best.0) => next,
        _ => best,
    })
}
