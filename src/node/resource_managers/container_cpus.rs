//! The CPUs and NUMA nodes that the runtime gives to a container.

use proto::runtime::v1 as cri;

/// The CPUs and NUMA nodes of a container, in the kernel's list format; empty for all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ContainerCpus {
    pub(crate) cpus: String,
    pub(crate) memory_nodes: String,
    /// The container has its CPUs exclusively, and therefore no quota.
    pub(crate) is_exclusive: bool,
}

impl ContainerCpus {
    /// Sets the CPUs and NUMA nodes. A container with CPUs of its own has no quota: it would be
    /// throttled although nothing else runs there.
    pub(crate) fn add_to(&self, linux: &mut cri::LinuxContainerResources) {
        linux.cpuset_cpus.clone_from(&self.cpus);
        linux.cpuset_mems.clone_from(&self.memory_nodes);
        if self.is_exclusive {
            linux.cpu_quota = -1;
        }
    }
}
