//! What the pod resources API reports of CPUs and memory.

use super::ResourceManagers;

impl ResourceManagers {
    /// The CPUs that a container has exclusively.
    pub(crate) fn exclusive_cpus(&self, pod: &str, container: &str) -> Vec<i64> {
        let guarded = self.guarded.lock();
        let set = guarded.cpu.as_ref().and_then(|cpu| cpu.exclusive(pod, container));
        set.into_iter().flat_map(|set| set.iter()).filter_map(|id| i64::try_from(id).ok()).collect()
    }

    /// The CPUs that containers can have exclusively.
    pub(crate) fn allocatable_cpus(&self) -> Vec<i64> {
        let guarded = self.guarded.lock();
        let set = guarded.cpu.as_ref().map(super::cpu::CpuManager::allocatable).unwrap_or_default();
        set.iter().filter_map(|id| i64::try_from(id).ok()).collect()
    }
}
