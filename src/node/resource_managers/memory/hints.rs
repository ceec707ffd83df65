//! Hints of the memory manager for NUMA nodes.

use std::collections::BTreeMap;

use super::super::numa_mask::NumaMask;
use super::super::topology::hints::{ProviderHints, TopologyHint, mark_preferred};
use super::machine_state::MemoryBlock;
use super::{MemoryManager, MemoryRequests, is_exclusive, requests};
use crate::pods::pod::{ContainerRole, Pod, PodContainer};

impl MemoryManager {
    /// The hints for one container; none if it shares memory.
    pub(crate) fn hints(&self, pod: &Pod, member: &PodContainer) -> ProviderHints {
        let requests = requests(member).unwrap_or_default();
        if !is_exclusive(pod) || requests.is_empty() {
            return ProviderHints::new();
        }
        match self.blocks(&pod.uid, member.name()) {
            Some(blocks) => of_blocks(blocks, &requests),
            None => self.of_requests(pod, &requests),
        }
    }

    /// The hints for all containers of a pod together. As upstream, the memory of the first
    /// container that has some is compared with the request of the pod.
    pub(crate) fn pod_hints(&self, pod: &Pod) -> ProviderHints {
        let requests = pod_requests(pod);
        if !is_exclusive(pod) || requests.is_empty() {
            return ProviderHints::new();
        }
        let mut members = pod.containers.iter();
        match members.find_map(|member| self.blocks(&pod.uid, member.name())) {
            Some(blocks) => of_blocks(blocks, &requests),
            None => self.of_requests(pod, &requests),
        }
    }

    /// The same hints for each resource; no preference at all if no nodes have enough.
    fn of_requests(&self, pod: &Pod, requests: &MemoryRequests) -> ProviderHints {
        let hints = self.candidates(&pod.uid, requests);
        if hints.is_empty() {
            return ProviderHints::new();
        }
        requests.keys().map(|resource| (resource.clone(), Some(hints.clone()))).collect()
    }

    /// The sets of nodes that have enough memory and can be used together.
    pub(super) fn candidates(&self, pod: &str, requests: &MemoryRequests) -> Vec<TopologyHint> {
        let machine = &self.state.machine;
        let nodes: Vec<usize> = machine.0.keys().copied().collect();
        let mut smallest = nodes.len();
        let mut out = Vec::new();
        for mask in NumaMask::of_all_sizes(&nodes) {
            let is_enough = |(resource, size): (&String, &u64)| {
                machine.sum(mask, resource, |table| table.allocatable) >= *size
            };
            if !requests.iter().all(is_enough) {
                continue;
            }
            smallest = smallest.min(mask.count());
            let is_grouped = |node: usize| machine.0.get(&node).is_some_and(|n| n.cells.len() > 1);
            if mask.count() == 1 && mask.nodes().any(is_grouped) || machine.is_violated_by(mask) {
                continue;
            }
            let is_free = |(resource, size): (&String, &u64)| {
                let reusable = self.reusable_bytes(pod, mask, resource);
                machine.sum(mask, resource, |table| table.free).saturating_add(reusable) >= *size
            };
            if requests.iter().all(is_free) {
                out.push(mask);
            }
        }
        mark_preferred(out, smallest)
    }
}

/// The hints of memory that is allocated; no preference if the request has changed.
fn of_blocks(blocks: &[MemoryBlock], requests: &MemoryRequests) -> ProviderHints {
    let is_same = |block: &MemoryBlock| requests.get(&block.resource) == Some(&block.size);
    if blocks.len() != requests.len() || !blocks.iter().all(is_same) {
        return ProviderHints::new();
    }
    let hint = |block: &MemoryBlock| {
        let hint = TopologyHint { mask: Some(block.mask()), preferred: true };
        (block.resource.clone(), Some(vec![hint]))
    };
    blocks.iter().map(hint).collect()
}

/// The memory that the containers of a pod have at one time, at most. As upstream, a resource that
/// only init containers request is left out.
pub(super) fn pod_requests(pod: &Pod) -> MemoryRequests {
    let (mut init, mut sidecars, mut main) =
        (BTreeMap::<String, u64>::new(), BTreeMap::<String, u64>::new(), MemoryRequests::new());
    for member in &pod.containers {
        for (resource, bytes) in requests(member).unwrap_or_default() {
            match member.role {
                ContainerRole::Init => {
                    let with = sidecars.get(&resource).copied().unwrap_or_default() + bytes;
                    let most = init.entry(resource).or_default();
                    *most = (*most).max(with);
                }
                ContainerRole::Sidecar => *sidecars.entry(resource).or_default() += bytes,
                ContainerRole::Main => *main.entry(resource).or_default() += bytes,
                ContainerRole::Ephemeral => {}
            }
        }
    }
    for (resource, bytes) in &mut main {
        let of = |all: &BTreeMap<String, u64>| all.get(resource).copied().unwrap_or_default();
        *bytes = (*bytes + of(&sidecars)).max(of(&init));
    }
    main
}
