//! What the memory controller does besides its limit: swap, protected requests and throttling
//! (`configureContainerSwapResources`, KEP 2400; MemoryQoS, KEP 2570).

use crate::config::memory::{MemoryConfig, MemoryReservation, SwapBehavior};
use crate::machine::Machine;
use crate::pods::pod::{Pod, PodContainer};
use crate::pods::resources::{self, Qos};

const MEMORY_MIN: &str = "memory.min";
const MEMORY_LOW: &str = "memory.low";
const MEMORY_HIGH: &str = "memory.high";
const SWAP_MAX: &str = "memory.swap.max";
const OOM_GROUP: &str = "memory.oom.group";

/// A file of a group of cgroup v2 and its value.
pub(crate) type Setting = (&'static str, String);

/// The hierarchy of the memory controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hierarchy {
    /// Version 1.
    V1,
    /// Version 2.
    V2,
}

/// Requests of memory of all pods of a class, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ClassRequests {
    pub(crate) guaranteed: i64,
    pub(crate) burstable: i64,
}

/// The settings of the node and the sizes in bytes on which the values of a group depend.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct MemoryControl {
    pub(crate) config: MemoryConfig,
    pub(crate) hierarchy: Hierarchy,
    /// Whether the kernel accounts for swap; without it groups have no file for its limit, and the
    /// runtime would fail to create a container.
    pub(crate) accounts_for_swap: bool,
    /// Memory of the machine.
    pub(crate) capacity: i64,
    /// Swap of the machine.
    pub(crate) swap_capacity: i64,
    /// Memory that pods may use together.
    pub(crate) allocatable: i64,
    pub(crate) page_size: i64,
}

impl MemoryControl {
    /// The control of a machine whose pods may use `allocatable` bytes together.
    pub(crate) fn new(config: MemoryConfig, machine: &Machine, allocatable: i64) -> Self {
        Self {
            config,
            hierarchy: Hierarchy::V1,
            accounts_for_swap: false,
            capacity: machine.memory,
            swap_capacity: machine.swap,
            allocatable,
            page_size: machine.page_size,
        }
    }

    /// Whether the kernel protects requests of memory.
    pub(crate) fn is_tiered(&self) -> bool {
        self.hierarchy == Hierarchy::V2 && self.config.reservation == MemoryReservation::Tiered
    }

    /// Whether a container may use swap (`GetContainerSwapBehavior`).
    pub(crate) fn uses_swap(&self, pod: &Pod, member: &PodContainer) -> bool {
        let (request, limit) = memory_of(member);
        self.config.swap == SwapBehavior::LimitedSwap
            && self.hierarchy == Hierarchy::V2
            && self.accounts_for_swap
            && !pod.is_critical()
            && resources::qos(pod) == Qos::Burstable
            && request != limit
    }

    /// The limit of memory and swap together for a container with a limit of memory, in version 1
    /// (`ConfigureNoSwap`): no swap beyond the memory. Zero sets none.
    pub(crate) fn memory_and_swap_limit(&self, memory_limit: i64) -> i64 {
        let is_set = self.hierarchy == Hierarchy::V1 && self.accounts_for_swap;
        if is_set { memory_limit } else { 0 }
    }

    /// The settings of a container's group. An OOM kill ends the whole container, as the kubelet's
    /// default is (`singleProcessOOMKill`).
    pub(crate) fn of_container(&self, pod: &Pod, member: &PodContainer) -> Vec<Setting> {
        if self.hierarchy == Hierarchy::V1 {
            return Vec::new();
        }
        let (request, limit) = memory_of(member);
        let mut out = vec![(OOM_GROUP, "1".to_owned())];
        if self.accounts_for_swap {
            let swap = if self.uses_swap(pod, member) { self.swap_limit(request) } else { 0 };
            out.push((SWAP_MAX, swap.to_string()));
        }
        out.extend(match self.protection(pod, request) {
            Some(protection) => vec![protection],
            None => vec![(MEMORY_MIN, "0".to_owned()), (MEMORY_LOW, "0".to_owned())],
        });
        // The limit of the whole pod throttles its containers without a limit.
        let by_pod = limit == 0 && resources::has_level_limit(pod, "memory");
        if !by_pod && (request != limit || request == 0) {
            let limit = if limit == 0 { self.allocatable } else { limit };
            out.extend(self.throttling(request, limit));
        }
        out
    }

    /// The settings of a pod's group besides its limits (`ResourceConfigForPod`,
    /// `ApplyPodLevelMemoryHigh`).
    pub(crate) fn of_pod(&self, pod: &Pod) -> Vec<Setting> {
        if self.hierarchy == Hierarchy::V1 {
            return Vec::new();
        }
        let (requests, limits) = (resources::pod_requests(pod), resources::pod_limits(pod));
        let mut out: Vec<_> = self.protection(pod, requests.memory).into_iter().collect();
        if resources::has_pod_level(pod)
            && limits.memory_complete
            && limits.memory != 0
            && requests.memory != limits.memory
        {
            out.extend(self.throttling(requests.memory, limits.memory));
        }
        out
    }

    /// The settings of the group of all pods and of that of burstable ones (`setMemoryQoS`). With
    /// the policy `None` they clear what another policy left.
    pub(crate) fn of_classes(&self, requests: ClassRequests) -> (Vec<Setting>, Vec<Setting>) {
        if self.hierarchy == Hierarchy::V1 {
            return (Vec::new(), Vec::new());
        }
        let requests = self.protected(requests);
        let all = requests.guaranteed.saturating_add(requests.burstable);
        let burstable = (MEMORY_LOW, requests.burstable.to_string());
        (vec![(MEMORY_MIN, all.to_string()), burstable.clone()], vec![burstable])
    }

    /// What is protected of the requests of all pods.
    pub(crate) fn protected(&self, requests: ClassRequests) -> ClassRequests {
        if self.is_tiered() { requests } else { ClassRequests::default() }
    }

    fn protection(&self, pod: &Pod, request: i64) -> Option<Setting> {
        if !self.is_tiered() || request <= 0 {
            return None;
        }
        let is_guaranteed = resources::qos(pod) == Qos::Guaranteed;
        let file = if is_guaranteed { MEMORY_MIN } else { MEMORY_LOW };
        Some((file, request.to_string()))
    }

    /// `memory.high`: the request and a share of the range up to the limit, in whole pages.
    fn throttling(&self, request: i64, limit: i64) -> Option<Setting> {
        let share = self.config.throttling_factor?;
        let pages = (to_float(request) + (to_float(limit) - to_float(request)) * share).floor()
            / to_float(self.page_size);
        let high = to_integer(pages).saturating_mul(self.page_size);
        (high > 0 && high > request).then(|| (MEMORY_HIGH, high.to_string()))
    }

    /// The swap of a container with a request of memory (`calcSwapForBurstablePods`): the same
    /// share of the machine's swap as of its memory.
    fn swap_limit(&self, request: i64) -> i64 {
        if self.capacity <= 0 || request > self.capacity {
            return 0;
        }
        to_integer(to_float(request) / to_float(self.capacity) * to_float(self.swap_capacity))
    }
}

/// Request and limit of a container's memory in bytes; zero for none.
fn memory_of(member: &PodContainer) -> (i64, i64) {
    let bytes = |amount: Option<api::Quantity>| amount.map_or(0, |amount| amount.value());
    let container = &member.container;
    (
        bytes(resources::container_request(container, "memory")),
        bytes(resources::container_limit(container, "memory")),
    )
}

/// Bytes up to 2^53 are exact, and the kubelet calculates in `float64`, too.
#[expect(clippy::cast_precision_loss, reason = "the formula of the kubelet")]
fn to_float(bytes: i64) -> f64 {
    bytes as f64
}

/// Rounds toward zero; a cast of a float saturates.
#[expect(clippy::cast_possible_truncation, reason = "the formula of the kubelet")]
fn to_integer(bytes: f64) -> i64 {
    bytes as i64
}

#[cfg(test)]
mod tests;
