//! Measurements of the node, its pods and their containers at one moment.

use std::sync::Arc;

use crate::cgroups::{GroupPressure, GroupUsage};
use crate::machine::{Interface, MemoryUsage, ProcessCounts};
use crate::pods::observed::ObservedPod;
use crate::pods::pod::Pod;

/// One container.
#[derive(Debug, Default)]
pub(super) struct ContainerSample {
    pub(super) id: String,
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) uid: String,
    pub(super) container: String,
    /// Creation time, in nanoseconds since the epoch.
    pub(super) started: i64,
    pub(super) time: i64,
    pub(super) cpu_ns: u64,
    pub(super) working_set: u64,
    pub(super) usage: u64,
    pub(super) available: Option<u64>,
    pub(super) layer: u64,
    pub(super) layer_inodes: Option<u64>,
    pub(super) cores_ns: Option<u64>,
    pub(super) rss: Option<u64>,
    pub(super) page_faults: Option<u64>,
    pub(super) major_page_faults: Option<u64>,
    pub(super) swap: Option<u64>,
    pub(super) swap_available: Option<u64>,
    pub(super) pressure: GroupPressure,
}

impl ContainerSample {
    /// Fills in what the runtime does not report from the container's group.
    pub(super) fn complete(&mut self, group: &GroupUsage) {
        let left = |limit: Option<u64>, used: u64| limit.map(|limit| limit.saturating_sub(used));
        self.available = self.available.or(left(group.memory_limit, self.working_set));
        self.rss = self.rss.or(Some(group.rss));
        self.page_faults = self.page_faults.or(Some(group.page_faults));
        self.major_page_faults = self.major_page_faults.or(Some(group.major_page_faults));
        self.swap = self.swap.or(group.swap);
        let swap_left = left(group.swap_limit, self.swap.unwrap_or(0));
        self.swap_available = self.swap_available.or(swap_left);
        self.pressure.cpu = self.pressure.cpu.or(group.pressure.cpu);
        self.pressure.memory = self.pressure.memory.or(group.pressure.memory);
        self.pressure.io = self.pressure.io.or(group.pressure.io);
    }
}

/// One pod.
#[derive(Debug)]
pub(super) struct PodSample {
    pub(super) pod: Arc<Pod>,
    pub(super) observed: Arc<ObservedPod>,
    pub(super) usage: GroupUsage,
    pub(super) cores_ns: Option<u64>,
}

/// A part of the machine besides the pods.
#[derive(Debug)]
pub(super) struct SystemContainer {
    pub(super) name: &'static str,
    /// Nanoseconds since the epoch.
    pub(super) started: i64,
    pub(super) usage: GroupUsage,
    pub(super) cores_ns: Option<u64>,
}

/// Limit and number of the processes of the node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ProcessLimits {
    pub(super) max: Option<u64>,
    pub(super) running: Option<u64>,
    /// Boot time in nanoseconds since the epoch.
    pub(super) booted: i64,
}

impl ProcessLimits {
    pub(super) fn parse(pid_max: &str, threads_max: &str, loadavg: &str, stat: &str) -> Self {
        let ProcessCounts { max, running } = ProcessCounts::parse(pid_max, threads_max, loadavg);
        let booted =
            stat.lines().find_map(|l| l.strip_prefix("btime ")?.trim().parse::<i64>().ok());
        let booted = booted.unwrap_or_default().saturating_mul(1_000_000_000);
        Self { max, running, booted }
    }
}

/// All measurements of one moment.
#[derive(Debug, Default)]
pub(super) struct NodeSample {
    pub(super) containers: Vec<ContainerSample>,
    pub(super) pods: Vec<PodSample>,
    pub(super) system: Vec<SystemContainer>,
    pub(super) memory: MemoryUsage,
    pub(super) interfaces: Vec<Interface>,
    pub(super) limits: ProcessLimits,
    pub(super) pressure: GroupPressure,
    pub(super) node_cpu: u64,
    pub(super) node_cores_ns: Option<u64>,
    pub(super) node_memory: u64,
    pub(super) memory_available: u64,
    /// Nanoseconds since the epoch.
    pub(super) now: i64,
}
