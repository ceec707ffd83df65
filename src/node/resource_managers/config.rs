//! Configuration of the managers.

use super::cpu_set::CpuSet;

pub use super::cpu::options::{CpuPolicyOptions, InvalidCpuOptions};
pub use super::memory::reservation::{InvalidReservedMemory, ReservedMemory};
pub use super::topology::config::{
    InvalidTopologyConfig, TopologyOptions, TopologyPolicy, TopologyScope,
};

/// `cpuManagerPolicy`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CpuPolicy {
    /// All containers share all CPUs.
    #[default]
    None,
    /// Containers of Guaranteed pods that request whole CPUs get CPUs of their own.
    Static(CpuPolicyOptions),
}

/// `memoryManagerPolicy`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum MemoryPolicy {
    /// Containers use the memory of all NUMA nodes.
    #[default]
    None,
    /// Memory of Guaranteed pods comes from certain NUMA nodes. Has `reservedMemory`.
    Static(ReservedMemory),
}

/// Configuration of the CPU, memory and topology managers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourceManagersConfig {
    /// Policy of the CPU manager.
    pub cpu: CpuPolicy,
    /// `reservedSystemCPUs`: CPUs that are never exclusive; `None` for the first ones.
    pub reserved_cpus: Option<CpuSet>,
    /// Policy of the memory manager.
    pub memory: MemoryPolicy,
    /// Policy of the topology manager.
    pub topology: TopologyPolicy,
    /// Scope of the topology manager.
    pub topology_scope: TopologyScope,
    /// Options of the topology manager.
    pub topology_options: TopologyOptions,
}

impl ResourceManagersConfig {
    /// Whether any manager has another policy than `none`, or CPUs of the machine are named.
    pub(crate) fn needs_topology(&self) -> bool {
        self.reserved_cpus.is_some()
            || self.cpu != CpuPolicy::None
            || self.memory != MemoryPolicy::None
            || self.topology != TopologyPolicy::None
    }
}
