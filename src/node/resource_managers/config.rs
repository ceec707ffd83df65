//! Configuration of the managers.

use super::cpu_set::CpuSet;

pub use super::cpu::options::{CpuPolicyOptions, InvalidCpuOptions};
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

/// Configuration of the CPU, memory and topology managers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourceManagersConfig {
    /// Policy of the CPU manager.
    pub cpu: CpuPolicy,
    /// `reservedSystemCPUs`: CPUs that are never exclusive; `None` for the first ones.
    pub reserved_cpus: Option<CpuSet>,
    /// Policy of the topology manager.
    pub topology: TopologyPolicy,
    /// Scope of the topology manager.
    pub topology_scope: TopologyScope,
    /// Options of the topology manager.
    pub topology_options: TopologyOptions,
}

impl ResourceManagersConfig {
    /// Whether any manager has another policy than `none`.
    pub(crate) fn is_active(&self) -> bool {
        self.cpu != CpuPolicy::None || self.topology != TopologyPolicy::None
    }
}
