//! The CPU manager with the policy `static`: containers of Guaranteed pods that request whole CPUs
//! get CPUs of their own, all others share the rest. Pure: the caller keeps the state on disk and
//! tells the runtime (`pkg/kubelet/cm/cpumanager/policy_static.go`).

pub(crate) mod assignment;
pub(crate) mod checkpoint;
pub(crate) mod distributed;
mod hints;
pub(crate) mod options;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::cpu_set::CpuSet;
use super::cpu_topology::{CpuTopology, Level};
use super::metrics;
use super::numa_mask::NumaMask;
use crate::pods::pod::{ContainerRole, Pod, PodContainer};
use crate::pods::resources::{self, Qos};
use assignment::{AssignmentError, take_packed};
use checkpoint::CpuState;
use distributed::take_distributed;
use options::CpuPolicyOptions;

/// Name of the policy in the state file.
pub(crate) const STATIC: &str = "static";

/// Why the CPU manager cannot start; texts as upstream.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CpuManagerError {
    #[error("[cpumanager] unable to determine reserved CPU resources for static policy")]
    NothingReserved,
    #[error(
        "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be \
         greater than zero"
    )]
    ZeroReserved,
    #[error(
        "new static policy error: [cpumanager] unable to reserve the required amount of CPUs \
         (size of {reserved} did not equal {count})"
    )]
    ReservedSize { reserved: CpuSet, count: usize },
    #[error(
        "new static policy error: [cpumanager] unable to reserve the required amount of CPUs \
         (size of  did not equal {count}): {source}"
    )]
    Reserve { count: usize, source: AssignmentError },
    #[error("default cpuset cannot be empty")]
    EmptyDefault,
    #[error(
        "not all reserved cpus: {:?} are present in defaultCpuSet: {:?}",
        .0.to_string(), .1.to_string()
    )]
    ReservedMissing(CpuSet, CpuSet),
    #[error(
        "some of strictly reserved cpus: {:?} are present in defaultCpuSet: {:?}",
        .0.to_string(), .1.to_string()
    )]
    StrictlyReserved(CpuSet, CpuSet),
    #[error(
        "pod: {pod}, container: {container} cpuset: {:?} overlaps with default cpuset {:?}",
        .set.to_string(), .default.to_string()
    )]
    Overlap { pod: String, container: String, set: CpuSet, default: CpuSet },
    #[error(
        "current set of available CPUs {:?} doesn't match with CPUs in state {:?}",
        .0.to_string(), .1.to_string()
    )]
    OtherCpus(CpuSet, CpuSet),
}

/// Why a container gets no CPUs; texts as upstream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CpuAllocationError {
    #[error(transparent)]
    Assignment(#[from] AssignmentError),
    #[error(
        "SMT Alignment Error: requested {requested} cpus not multiple cpus per core = {per_core}"
    )]
    PartOfCore { requested: usize, per_core: usize },
    #[error(
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = \
         {available}, requested CPUs = {requested}, CPUs per core = {per_core}"
    )]
    FewCores { available: usize, requested: usize, per_core: usize },
}

/// The manager.
#[derive(Debug, Clone)]
pub(crate) struct CpuManager {
    topology: CpuTopology,
    options: CpuPolicyOptions,
    /// CPUs that are never exclusive.
    reserved: CpuSet,
    /// The same with all threads of their cores.
    reserved_cores: CpuSet,
    pub(crate) state: CpuState,
}

impl CpuManager {
    /// Creates a manager without assignments. `reserved_milli` is the CPU that is reserved on the
    /// node in thousandths, `reserved` the CPUs if they are configured.
    ///
    /// # Errors
    ///
    /// Nothing is reserved, or not these CPUs.
    pub(crate) fn new(
        topology: CpuTopology,
        options: CpuPolicyOptions,
        reserved_milli: Option<i64>,
        reserved: Option<&CpuSet>,
    ) -> Result<Self, CpuManagerError> {
        let milli = reserved_milli.ok_or(CpuManagerError::NothingReserved)?;
        let milli = usize::try_from(milli).unwrap_or_default();
        if milli == 0 {
            return Err(CpuManagerError::ZeroReserved);
        }
        let count = milli.div_ceil(1000);
        let online = topology.details.cpus();
        let mut out = Self {
            topology,
            options,
            reserved: CpuSet::default(),
            reserved_cores: CpuSet::default(),
            state: CpuState::default(),
        };
        out.reserved = match reserved {
            Some(set) => set.clone(),
            None => out
                .take(&online, count)
                .map_err(|source| CpuManagerError::Reserve { count, source })?,
        };
        if out.reserved.len() != count {
            let reserved = out.reserved;
            return Err(CpuManagerError::ReservedSize { reserved, count });
        }
        let details = &out.topology.details;
        let cores = details.keep_only(&out.reserved).parts(Level::Core);
        out.reserved_cores = cores
            .into_iter()
            .flat_map(|core| details.cpus_in(Level::Core, core).iter().collect::<Vec<_>>())
            .collect();
        Ok(out)
    }

    /// Validates a state that was read at the start, and begins with it; without one all CPUs are
    /// shared.
    ///
    /// # Errors
    ///
    /// The state contradicts the machine or the configuration.
    pub(crate) fn restore(&mut self, state: Option<CpuState>) -> Result<(), CpuManagerError> {
        let mut state = state.unwrap_or_default();
        let strict = self.options.strict_reservation;
        let all = self.topology.details.cpus();
        let target = if strict { all.difference(&self.reserved) } else { all };
        if state.default.is_empty() {
            if !state.assignments.is_empty() {
                return Err(CpuManagerError::EmptyDefault);
            }
            state.default.clone_from(&target);
        }
        let default = state.default.clone();
        let shared = self.reserved.intersection(&default);
        if strict && !shared.is_empty() {
            return Err(CpuManagerError::StrictlyReserved(shared, default));
        }
        if !strict && !self.reserved.is_subset(&default) {
            return Err(CpuManagerError::ReservedMissing(self.reserved.clone(), default));
        }
        let mut known = default.clone();
        for (pod, containers) in &state.assignments {
            for (container, set) in containers {
                if !set.intersection(&default).is_empty() {
                    let (pod, container, set) = (pod.clone(), container.clone(), set.clone());
                    return Err(CpuManagerError::Overlap { pod, container, set, default });
                }
                known = known.union(set);
            }
        }
        if known != target {
            return Err(CpuManagerError::OtherCpus(target, known));
        }
        self.state = state;
        self.initialize_metrics();
        Ok(())
    }

    /// CPUs that the node can give to containers exclusively.
    pub(crate) fn allocatable(&self) -> CpuSet {
        self.topology.details.cpus().difference(&self.reserved)
    }

    /// Shared CPUs that a container may get exclusively.
    fn available(&self) -> CpuSet {
        self.state.default.difference(&self.reserved)
    }

    /// The exclusive CPUs of a container.
    pub(crate) fn exclusive(&self, pod: &str, container: &str) -> Option<&CpuSet> {
        self.state.assignments.get(pod)?.get(container)
    }

    /// The CPUs on which a container runs.
    pub(crate) fn cpus(&self, pod: &str, container: &str) -> &CpuSet {
        self.exclusive(pod, container).unwrap_or(&self.state.default)
    }

    /// Allocates the CPUs of a container, on the nodes of `affinity` first. Returns whether the
    /// state has changed: a container that has CPUs keeps them.
    ///
    /// # Errors
    ///
    /// Too few CPUs, or cores in part.
    pub(crate) fn allocate(
        &mut self,
        pod: &Pod,
        member: &PodContainer,
        affinity: Option<NumaMask>,
    ) -> Result<bool, CpuAllocationError> {
        let count = exclusive_request(pod, member);
        if count == 0 {
            return Ok(false);
        }
        metrics::CPU_REQUESTS.inc(&[]);
        let outcome = match self.exclusive(&pod.uid, member.name()) {
            Some(_) => Ok(false),
            None => self.allocate_new(pod, member, count, affinity).map(|()| true),
        };
        if outcome.is_err() {
            metrics::CPU_ERRORS.inc(&[]);
        }
        if self.options.full_cores_only {
            let family = if outcome.is_ok() { &metrics::ALIGNED } else { &metrics::NOT_ALIGNED };
            family.inc(metrics::CORES_OF_CONTAINER);
        }
        outcome
    }

    fn allocate_new(
        &mut self,
        pod: &Pod,
        member: &PodContainer,
        count: usize,
        affinity: Option<NumaMask>,
    ) -> Result<(), CpuAllocationError> {
        self.check_cores(count)?;
        let free = self.available().union(&self.reusable(pod, member.name()));
        let mut taken = CpuSet::default();
        if let Some(mask) = affinity {
            let aligned = free.intersection(&self.topology.details.cpus_in_mask(mask));
            taken = self.take(&aligned, aligned.len().min(count))?;
        }
        let rest = self.take(&free.difference(&taken), count - taken.len())?;
        let taken = taken.union(&rest);
        self.state.default = self.state.default.difference(&taken);
        let containers = self.state.assignments.entry(pod.uid.to_string()).or_default();
        containers.insert(member.name().to_owned(), taken.clone());
        if self.share_cache(&taken) {
            metrics::ALIGNED.inc(metrics::CACHES_OF_CONTAINER);
        }
        self.update_metrics();
        Ok(())
    }

    /// Refuses parts of cores if the option `full-pcpus-only` is set.
    fn check_cores(&self, requested: usize) -> Result<(), CpuAllocationError> {
        if !self.options.full_cores_only {
            return Ok(());
        }
        let per_core = self.topology.cpus_per(Level::Core);
        if per_core == 0 || !requested.is_multiple_of(per_core) {
            return Err(CpuAllocationError::PartOfCore { requested, per_core });
        }
        let available = self.state.default.difference(&self.reserved_cores).len();
        if requested > available {
            return Err(CpuAllocationError::FewCores { available, requested, per_core });
        }
        Ok(())
    }

    fn take(&self, available: &CpuSet, count: usize) -> Result<CpuSet, AssignmentError> {
        let options = &self.options;
        if !options.distribute_across_numa {
            return take_packed(&self.topology, available, count, options.align_by_uncore);
        }
        let per_core = self.topology.cpus_per(Level::Core);
        let group = if options.full_cores_only { per_core } else { 1 };
        take_distributed(&self.topology, available, count, group)
    }

    /// CPUs that a container may use again: those of init containers before it, which have ended
    /// when it starts, without those of sidecars and main containers before it.
    fn reusable(&self, pod: &Pod, name: &str) -> CpuSet {
        let mut out = CpuSet::default();
        for member in pod.containers.iter().take_while(|m| m.name() != name) {
            let Some(set) = self.exclusive(&pod.uid, member.name()) else { continue };
            match member.role {
                ContainerRole::Init => out = out.union(set),
                ContainerRole::Sidecar | ContainerRole::Main => out = out.difference(set),
                ContainerRole::Ephemeral => {}
            }
        }
        out
    }

    /// Returns the CPUs of pods that `exists` does not accept to the shared ones. Returns whether
    /// there were some.
    pub(crate) fn retain_pods(&mut self, exists: impl Fn(&str) -> bool) -> bool {
        let mut released = CpuSet::default();
        let before = self.state.assignments.len();
        self.state.assignments.retain(|pod, containers| {
            let is_kept = exists(pod);
            if !is_kept {
                released = containers.values().fold(released.clone(), |all, set| all.union(set));
            }
            is_kept
        });
        self.state.default = self.state.default.union(&released);
        let is_changed = before != self.state.assignments.len();
        if is_changed {
            self.update_metrics();
        }
        is_changed
    }

    /// All CPUs that containers have exclusively.
    fn assigned(&self) -> CpuSet {
        let sets = self.state.assignments.values().flat_map(BTreeMap::values);
        sets.fold(CpuSet::default(), |all, set| all.union(set))
    }

    /// Whether the CPUs share one last-level cache.
    fn share_cache(&self, cpus: &CpuSet) -> bool {
        self.topology.details.keep_only(cpus).parts(Level::Uncore).len() <= 1
    }

    fn initialize_metrics(&self) {
        metrics::ALIGNED.add(metrics::CORES_OF_CONTAINER, 0.0);
        metrics::NOT_ALIGNED.add(metrics::CORES_OF_CONTAINER, 0.0);
        metrics::ALIGNED.add(metrics::CACHES_OF_CONTAINER, 0.0);
        self.update_metrics();
    }

    /// Sets the gauges to the current state. Upstream keeps the last value of a NUMA node on which
    /// no CPU is exclusive any longer; here it becomes zero.
    fn update_metrics(&self) {
        let float = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        let assigned = self.assigned();
        metrics::SHARED_POOL.set(&[], float(self.available().len()) * 1000.0);
        metrics::EXCLUSIVE_CPUS.set(&[], float(assigned.len()));
        let exclusive = self.topology.details.keep_only(&assigned);
        for node in self.topology.details.parts(Level::Numa) {
            let count = exclusive.count_in(Level::Numa, node);
            metrics::CPUS_PER_NODE.set(&[&node.to_string()], float(count));
        }
    }
}

/// Number of CPUs that a container gets exclusively: its request, if the pod is Guaranteed and the
/// request is whole. Resources of the whole pod need a feature that is off, and such pods share
/// the CPUs.
pub(crate) fn exclusive_request(pod: &Pod, member: &PodContainer) -> usize {
    if member.role == ContainerRole::Ephemeral
        || resources::has_pod_level(pod)
        || resources::qos(pod) != Qos::Guaranteed
    {
        return 0;
    }
    let request = resources::container_request(&member.container, "cpu");
    let whole = request.filter(|q| q.value().checked_mul(1000) == Some(q.milli_value()));
    whole.and_then(|q| usize::try_from(q.value()).ok()).unwrap_or_default()
}
