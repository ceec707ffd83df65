//! The order in which pods are evicted: pure functions over measurements, in upstream's order.

use std::cmp::Reverse;

use sorting::CompactSort as _;

use crate::pods::pod::Pod;
use crate::pods::resources;

/// Grace period of a hard eviction, in seconds (`immediateEvictionGracePeriodSeconds`).
pub(crate) const GRACE: i64 = 1;
/// Reason of an evicted pod.
pub(crate) const REASON: &str = "Evicted";

/// Usage of a file system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DiskAmount {
    pub(crate) bytes: i64,
    pub(crate) inodes: i64,
}

impl DiskAmount {
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            inodes: self.inodes.saturating_add(other.inodes),
        }
    }
}

/// Usage of one container. What could not be measured is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ContainerUsage {
    pub(crate) name: String,
    /// Working set in bytes.
    pub(crate) memory: Option<i64>,
    /// The writable layer.
    pub(crate) layer: Option<DiskAmount>,
    pub(crate) logs: Option<DiskAmount>,
}

/// Usage of a volume whose files are on this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LocalVolumeUsage {
    pub(crate) name: String,
    pub(crate) used: DiskAmount,
    /// Its files are in memory and use no disk.
    pub(crate) is_memory: bool,
}

/// Usage of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PodUsage {
    pub(crate) containers: Vec<ContainerUsage>,
    pub(crate) volumes: Vec<LocalVolumeUsage>,
    /// The pod's /etc/hosts, which containers can write to.
    pub(crate) hosts: DiskAmount,
    /// Working set of the whole pod in bytes.
    pub(crate) memory: i64,
    pub(crate) processes: u64,
}

/// Which files of pods are on a file system (`fsStatsType`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DiskParts {
    /// Writable layers of containers.
    pub(super) layers: bool,
    /// Logs of containers.
    pub(super) logs: bool,
    /// Volumes on the node.
    pub(super) volumes: bool,
}

impl PodUsage {
    /// The usage of some of the files (`podDiskUsage`).
    pub(super) fn disk(&self, parts: DiskParts) -> DiskAmount {
        let layers = self.containers.iter().filter(|_| parts.layers).filter_map(|c| c.layer);
        let logs = self.containers.iter().filter(|_| parts.logs).filter_map(|c| c.logs);
        let volumes = self.volumes.iter().filter(|v| parts.volumes && !v.is_memory);
        let all = layers.chain(logs).chain(volumes.map(|v| v.used));
        all.fold(DiskAmount::default(), DiskAmount::plus)
    }

    /// The bytes of all files of the pod on the node.
    pub(super) fn ephemeral_storage(&self) -> i64 {
        self.disk(DiskParts { layers: true, logs: true, volumes: true }).plus(self.hosts).bytes
    }
}

/// By what pods are ranked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EvictionOrder {
    /// Memory above the request.
    Memory,
    /// Bytes above the request.
    Storage(DiskParts),
    /// Inodes. As upstream does, the request of bytes is subtracted from their number.
    Inodes(DiskParts),
    /// The number of processes.
    Processes,
}

/// The request of a pod (`GetResourceRequestQuantity`): with resources of the whole pod, only
/// these count.
fn request(pod: &Pod, name: &str) -> i64 {
    let level = pod.spec().resources.as_ref().and_then(|r| r.requests.as_ref());
    if resources::has_pod_level(pod) && level.is_none_or(|level| !level.contains_key(name)) {
        return 0;
    }
    resources::pod_request(pod, name).value()
}

/// The place of a pod: the least one is evicted first. Pods without measurements come first, then
/// those above their requests, then those of a low priority, then those far above their requests.
type RankKey = (bool, i32, bool, Reverse<i64>);

fn rank_key(pod: &Pod, used: Option<&PodUsage>, order: EvictionOrder) -> (bool, RankKey) {
    let priority = pod.spec().priority.unwrap_or(0);
    let Some(used) = used else {
        return (false, (false, priority, false, Reverse(0)));
    };
    let (exceeds, above) = match order {
        EvictionOrder::Memory => {
            let above = used.memory.saturating_sub(request(pod, "memory"));
            (above > 0, above)
        }
        EvictionOrder::Storage(parts) => {
            let bytes = used.disk(parts).bytes;
            let above = bytes.saturating_sub(request(pod, "ephemeral-storage"));
            (above > 0, above)
        }
        EvictionOrder::Inodes(parts) => {
            let inodes = used.disk(parts).inodes;
            (inodes > 0, inodes.saturating_sub(request(pod, "ephemeral-storage")))
        }
        EvictionOrder::Processes => {
            let processes = i64::try_from(used.processes).unwrap_or(i64::MAX);
            // Measurements count after the priority only.
            return (false, (false, priority, true, Reverse(processes)));
        }
    };
    (true, (!exceeds, priority, true, Reverse(above)))
}

/// Returns the indexes of the pods in the order in which they are evicted. Critical pods are among
/// them.
pub(super) fn rank(pods: &[(&Pod, Option<&PodUsage>)], order: EvictionOrder) -> Vec<usize> {
    let key = |index: usize| pods.get(index).map(|(pod, used)| rank_key(pod, *used, order));
    let mut out: Vec<usize> = (0..pods.len()).collect();
    out.compact_sort_by_cached_key(|index| key(*index));
    out
}

#[cfg(test)]
mod tests;
