//! Hints of the device manager for NUMA nodes (`devicemanager/topology_hints.go`).

use std::collections::{BTreeMap, BTreeSet};

use super::DeviceManager;
use super::allocation::{is_of_claim, reusable};
use super::state::DeviceState;
use crate::pods::pod::{ContainerRole, Pod, PodContainer};
use crate::pods::resources;
use crate::resource_managers::numa_mask::NumaMask;
use crate::resource_managers::topology::hints::{ProviderHints, TopologyHint, mark_preferred};

impl DeviceManager {
    /// The hints for the devices of one container, or of all containers of a pod together. `nodes`
    /// are the NUMA nodes of the machine.
    pub(crate) fn topology_hints(
        &self,
        pod: &Pod,
        member: Option<&PodContainer>,
        nodes: &[usize],
    ) -> ProviderHints {
        let guarded = self.guarded.lock();
        let state = &guarded.state;
        let requests = match member {
            Some(member) => container_limits(pod, member),
            None => pod_limits(pod),
        };
        let mut out = ProviderHints::new();
        for (resource, count) in requests {
            if !state.is_managed(&resource) {
                continue;
            }
            if !state.has_topology(&resource) {
                out.insert(resource, None);
                continue;
            }
            let records = &state.records;
            let of = |m: &PodContainer| records.devices(&pod.uid, m.name(), &resource);
            let (allocated, reusable) = match member {
                Some(member) => {
                    let allocated = of(member).unwrap_or_default();
                    (allocated, reusable(records, pod, member.name(), &resource))
                }
                None => (pod.containers.iter().filter_map(of).flatten().collect(), BTreeSet::new()),
            };
            let hints = resource_hints(state, &resource, count, &allocated, &reusable, nodes);
            out.insert(resource, Some(hints));
        }
        out
    }
}

/// The devices that a container requests, without those of resource claims.
fn container_limits(pod: &Pod, member: &PodContainer) -> BTreeMap<String, usize> {
    let limits = resources::extended_limits(&member.container).into_iter();
    let own = limits.filter(|(resource, _)| !is_of_claim(pod, member.name(), resource));
    own.map(|(name, count)| (name.to_owned(), usize::try_from(count).unwrap_or_default())).collect()
}

/// The devices that the containers of a pod have at one time, at most.
fn pod_limits(pod: &Pod) -> BTreeMap<String, usize> {
    let (mut init, mut sidecars, mut main) =
        (BTreeMap::<String, usize>::new(), BTreeMap::<String, usize>::new(), BTreeMap::new());
    for member in &pod.containers {
        for (name, count) in container_limits(pod, member) {
            let before = sidecars.get(&name).copied().unwrap_or_default();
            match member.role {
                ContainerRole::Init => {
                    let most = init.entry(name).or_default();
                    *most = (*most).max(before + count);
                }
                ContainerRole::Sidecar => {
                    let most = init.entry(name.clone()).or_default();
                    *most = (*most).max(before + count);
                    *sidecars.entry(name).or_default() += count;
                }
                ContainerRole::Main => *main.entry(name).or_insert(0) += count,
                ContainerRole::Ephemeral => {}
            }
        }
    }
    for (name, count) in sidecars {
        *main.entry(name).or_insert(0) += count;
    }
    for (name, count) in init {
        let most = main.entry(name).or_insert(0);
        *most = (*most).max(count);
    }
    main
}

/// The hints for `count` devices of one resource.
fn resource_hints(
    state: &DeviceState,
    resource: &str,
    count: usize,
    allocated: &BTreeSet<String>,
    reusable: &BTreeSet<String>,
    nodes: &[usize],
) -> Vec<TopologyHint> {
    if !allocated.is_empty() {
        // The request has changed: no nodes can satisfy it.
        if allocated.len() != count {
            return Vec::new();
        }
        return masks(state, resource, count, allocated, &BTreeSet::new(), nodes);
    }
    let taken = state.allocated(resource);
    let available: BTreeSet<String> = state.healthy(resource).difference(&taken).cloned().collect();
    if available.union(reusable).count() < count {
        return Vec::new();
    }
    masks(state, resource, count, &available, reusable, nodes)
}

/// The sets of nodes with enough free or reusable devices, all reusable ones included. Preferred
/// are those with as few nodes as an unused machine would need.
fn masks(
    state: &DeviceState,
    resource: &str,
    count: usize,
    available: &BTreeSet<String>,
    reusable: &BTreeSet<String>,
    known: &[usize],
) -> Vec<TopologyHint> {
    let mask_of = |id: &str| {
        let nodes = state.nodes(resource, id).iter();
        NumaMask::new(nodes.filter_map(|node| usize::try_from(*node).ok()))
    };
    let all: Vec<NumaMask> = state.device_ids(resource).map(&mask_of).collect();
    let hosts = |node: &usize| all.iter().any(|mask| mask.contains(*node));
    let mut nodes: Vec<usize> = known.iter().copied().filter(hosts).collect();
    if nodes.is_empty() {
        nodes = known.to_vec();
    }
    let mut smallest = nodes.len();
    let mut out = Vec::new();
    for mask in NumaMask::of_all_sizes(&nodes) {
        let touches = |device: NumaMask| !device.and(mask).is_empty();
        if all.iter().filter(|device| touches(**device)).count() >= count {
            smallest = smallest.min(mask.count());
        }
        let placed = reusable.iter().map(|id| mask_of(id)).filter(|device| !device.is_empty());
        let (inside, outside): (Vec<_>, Vec<_>) = placed.partition(|device| touches(*device));
        let free = available.iter().filter(|id| touches(mask_of(id))).count();
        if outside.is_empty() && inside.len() + free >= count {
            out.push(mask);
        }
    }
    mark_preferred(out, smallest)
}

#[cfg(test)]
mod tests;
