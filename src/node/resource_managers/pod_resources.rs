//! What the pod resources API reports of CPUs and memory.

use proto::podresources;

use super::ResourceManagers;

impl ResourceManagers {
    /// The CPUs that a container has exclusively.
    pub(crate) fn exclusive_cpus(&self, pod: &str, container: &str) -> Vec<i64> {
        let guarded = self.guarded.lock();
        let set = guarded.cpu.as_ref().and_then(|cpu| cpu.exclusive(pod, container));
        set.into_iter().flat_map(|set| set.iter()).filter_map(|id| i64::try_from(id).ok()).collect()
    }

    /// The memory of certain NUMA nodes that a container has.
    pub(crate) fn container_memory(
        &self,
        pod: &str,
        container: &str,
    ) -> Vec<podresources::ContainerMemory> {
        let guarded = self.guarded.lock();
        let blocks = guarded.memory.as_ref().and_then(|memory| memory.blocks(pod, container));
        let block = |block: &super::memory::machine_state::MemoryBlock| {
            entry(&block.resource, block.size, block.nodes.iter().copied())
        };
        blocks.into_iter().flatten().map(block).collect()
    }

    /// The memory that containers can have, by NUMA node.
    pub(crate) fn allocatable_memory(&self) -> Vec<podresources::ContainerMemory> {
        let guarded = self.guarded.lock();
        let nodes = guarded.memory.iter().flat_map(|memory| &memory.state.machine.0);
        let tables = nodes.flat_map(|(number, node)| {
            let used = node.memory.iter().filter(|(_, table)| table.allocatable > 0);
            used.map(|(resource, table)| entry(resource, table.allocatable, [*number]))
        });
        tables.collect()
    }

    /// The CPUs that containers can have exclusively.
    pub(crate) fn allocatable_cpus(&self) -> Vec<i64> {
        let guarded = self.guarded.lock();
        let set = guarded.cpu.as_ref().map(super::cpu::CpuManager::allocatable).unwrap_or_default();
        set.iter().filter_map(|id| i64::try_from(id).ok()).collect()
    }
}

fn entry(
    resource: &str,
    size: u64,
    nodes: impl IntoIterator<Item = usize>,
) -> podresources::ContainerMemory {
    let nodes = nodes.into_iter().filter_map(|node| i64::try_from(node).ok());
    let nodes = nodes.map(|id| podresources::NumaNode { id }).collect();
    podresources::ContainerMemory {
        memory_type: resource.to_owned(),
        size,
        topology: Some(podresources::TopologyInfo { nodes }),
    }
}
