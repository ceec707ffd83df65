//! Hints of the CPU manager for NUMA nodes.

use super::super::cpu_set::CpuSet;
use super::super::cpu_topology::Level;
use super::super::numa_mask::NumaMask;
use super::super::topology::hints::{ProviderHints, TopologyHint, mark_preferred};
use super::{CpuManager, exclusive_request};
use crate::pods::pod::{ContainerRole, Pod, PodContainer};

fn provider(hints: Vec<TopologyHint>) -> ProviderHints {
    ProviderHints::from([("cpu".to_owned(), Some(hints))])
}

impl CpuManager {
    /// The hints for one container; none if it shares CPUs.
    pub(crate) fn hints(&self, pod: &Pod, member: &PodContainer) -> ProviderHints {
        let count = exclusive_request(pod, member);
        if count == 0 {
            return ProviderHints::new();
        }
        provider(match self.exclusive(&pod.uid, member.name()) {
            // The request has changed: no nodes can satisfy it.
            Some(set) if set.len() != count => Vec::new(),
            Some(set) => self.masks(set, &CpuSet::default(), count),
            None => self.masks(&self.available(), &self.reusable(pod, member.name()), count),
        })
    }

    /// The hints for all containers of a pod together.
    pub(crate) fn pod_hints(&self, pod: &Pod) -> ProviderHints {
        let count = pod_request(pod);
        if count == 0 {
            return ProviderHints::new();
        }
        let mut assigned = CpuSet::default();
        for member in &pod.containers {
            if let Some(set) = self.exclusive(&pod.uid, member.name()) {
                if set.len() != exclusive_request(pod, member) {
                    return provider(Vec::new());
                }
                assigned = assigned.union(set);
            }
        }
        provider(match assigned.len() == count {
            true => self.masks(&assigned, &CpuSet::default(), count),
            false => self.masks(&self.available(), &assigned, count),
        })
    }

    /// The sets of nodes that have `count` CPUs free or reusable, all reusable ones included.
    /// Preferred are those with as few nodes as an empty machine would need.
    fn masks(&self, available: &CpuSet, reusable: &CpuSet, count: usize) -> Vec<TopologyHint> {
        let details = &self.topology.details;
        let nodes: Vec<usize> = details.parts(Level::Numa).into_iter().collect();
        let mut smallest = nodes.len();
        let mut masks = Vec::new();
        for mask in NumaMask::of_all_sizes(&nodes) {
            let inside = details.cpus_in_mask(mask);
            if inside.len() >= count && mask.count() < smallest {
                smallest = mask.count();
            }
            let free = inside.intersection(&available.union(reusable));
            if reusable.is_subset(&inside) && free.len() >= count {
                masks.push(mask);
            }
        }
        mark_preferred(masks, smallest)
    }
}

/// The CPUs that the containers of a pod have exclusively at one time, at most.
pub(super) fn pod_request(pod: &Pod) -> usize {
    let (mut init, mut sidecars, mut main) = (0, 0, 0);
    for member in &pod.containers {
        let count = exclusive_request(pod, member);
        match member.role {
            ContainerRole::Init => init = init.max(sidecars + count),
            ContainerRole::Sidecar => sidecars += count,
            ContainerRole::Main => main += count,
            ContainerRole::Ephemeral => {}
        }
    }
    init.max(sidecars + main)
}
