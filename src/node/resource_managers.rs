//! The CPU, memory and topology managers: exclusive CPUs and memory of NUMA nodes for containers of
//! Guaranteed pods, aligned with their devices.
//!
//! Policies are pure ([`cpu::CpuManager`], [`memory::MemoryManager`],
//! [`topology::hints::HintMerger`]). This file keeps their states with the files
//! `cpu_manager_state` and `memory_manager_state`; [`admission`] allocates before a pod starts, and
//! [`cpu_sets`] tells the runtime when the shared CPUs change. With the policies `none`, which are
//! the default, nothing is read from `/sys`, no file is written and no task runs.

mod admission;
mod checkpoint;
pub mod config;
pub(crate) mod container_cpus;
mod cpu;
pub(crate) mod cpu_set;
pub(crate) mod cpu_sets;
pub(crate) mod cpu_topology;
pub(crate) mod infeasible_resize;
pub(crate) mod machine_topology;
mod memory;
pub(crate) mod metrics;
pub(crate) mod numa_mask;
mod pod_resources;
mod resize;
#[cfg(test)]
mod tests;
pub(crate) mod topology;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, watch};

use crate::config::Config;
use crate::config::thresholds::Signal;
use crate::pods::pod::{Pod, PodContainer};

use checkpoint::{CheckpointError, RestoreError};
use config::{CpuPolicy, MemoryPolicy, ResourceManagersConfig};
use container_cpus::ContainerCpus;
use cpu::checkpoint::CpuState;
use cpu::{CpuManager, CpuManagerError};
use cpu_set::CpuSet;
use machine_topology::{MachineTopology, TopologyError};
use memory::MemoryManager;
use memory::checkpoint::MemoryState;
use memory::machine_state::MachineState;
use numa_mask::NumaMask;
use topology::config::TopologyPolicy;
use topology::hints::{HintMerger, NumaDistances};

pub(crate) use admission::device_nodes;

/// State file of the CPU manager, below the kubelet's root directory.
const CPU_STATE: &str = "cpu_manager_state";
/// State file of the memory manager.
const MEMORY_STATE: &str = "memory_manager_state";

/// Why the managers cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ResourceManagersError {
    /// The CPUs or NUMA nodes of the machine are not known.
    #[error("cannot read the topology of this machine: {0}")]
    Topology(String),
    /// CPUs that are reserved are not there.
    #[error("reserved-cpus: {reserved} is not a subset of online-cpus: {online}")]
    ReservedCpus {
        /// The configured CPUs.
        reserved: CpuSet,
        /// The CPUs of the machine.
        online: CpuSet,
    },
    /// The topology manager refuses the machine.
    #[error("{0}")]
    TopologyManager(String),
    /// The CPU manager refuses its configuration or its state.
    #[error("start cpu manager error: {0}")]
    Cpu(String),
    /// The memory manager refuses its configuration or its state.
    #[error("start memory manager error: {0}")]
    Memory(String),
}

/// The managers of one node.
#[derive(Debug)]
pub(crate) struct ResourceManagers {
    directory: PathBuf,
    /// `None` with the topology policy `none`.
    aligner: Option<Aligner>,
    guarded: Mutex<Guarded>,
    /// The states as last written or read; the lock orders the writes.
    written: Mutex<WrittenStates>,
    /// Wakes the task that updates containers.
    cpu_sets_changed: Notify,
    /// Whether the pods of before the start that no longer exist were released.
    settled: watch::Sender<bool>,
}

/// The topology manager.
#[derive(Debug)]
struct Aligner {
    merger: HintMerger,
    scope: topology::config::TopologyScope,
    /// The NUMA nodes of the machine.
    nodes: Vec<usize>,
    /// One admission at a time: hints must be valid until the resources are allocated.
    permit: Semaphore,
}

/// What the lock protects.
#[derive(Debug, Default)]
struct Guarded {
    /// `None` with the policy `none`.
    cpu: Option<CpuManager>,
    /// `None` with the policy `None`.
    memory: Option<MemoryManager>,
    /// The NUMA nodes on which containers get resources, by uid of the pod and name.
    affinities: HashMap<String, HashMap<String, NumaMask>>,
    /// The CPUs that the runtime was told for a container, by its id.
    applied: HashMap<String, String>,
}

/// The states in the files.
#[derive(Debug, Default)]
struct WrittenStates {
    cpu: Option<CpuState>,
    memory: Option<MemoryState>,
}

impl ResourceManagers {
    /// Managers with the policies `none`.
    pub(crate) fn inactive(root_dir: &Path) -> Self {
        Self {
            directory: root_dir.to_owned(),
            aligner: None,
            guarded: Mutex::default(),
            written: Mutex::default(),
            cpu_sets_changed: Notify::new(),
            settled: watch::Sender::new(false),
        }
    }

    /// Reads the topology of the machine and the state files.
    ///
    /// # Errors
    ///
    /// The configuration does not fit the machine, or a state file does not fit the configuration.
    pub(crate) async fn start(config: &Config) -> Result<Arc<Self>, ResourceManagersError> {
        let config = config.clone();
        let start = move || Self::open(&config, Path::new("/sys"));
        let opened = base::tasks::blocking(start).await;
        let opened = opened.map_err(|e| ResourceManagersError::Topology(e.to_string()))?;
        Ok(Arc::new(opened?))
    }

    fn open(config: &Config, sys: &Path) -> Result<Self, ResourceManagersError> {
        let managers = &config.resource_managers;
        let mut out = Self::inactive(&config.root_dir);
        if managers.needs_topology() {
            let machine = MachineTopology::read(sys)
                .map_err(|e: TopologyError| ResourceManagersError::Topology(e.to_string()))?;
            check_reserved(managers.reserved_cpus.as_ref(), &machine)?;
            out.aligner = aligner(managers, &machine)?;
            out.open_cpu(config, &machine)?;
            out.open_memory(config, &machine)?;
        } else {
            out.read_cpu_state("none").map_err(cpu_error)?;
            out.read_memory_state("None").map_err(memory_error)?;
        }
        Ok(out)
    }

    /// Creates the CPU manager, if the policy is `static`, with the state of the file.
    fn open_cpu(
        &mut self,
        config: &Config,
        machine: &MachineTopology,
    ) -> Result<(), ResourceManagersError> {
        let CpuPolicy::Static(options) = config.resource_managers.cpu else {
            return self.read_cpu_state("none").map(drop).map_err(cpu_error);
        };
        let reserved = config.reserved_quantity("cpu").map(|amount| amount.milli_value());
        let cpus = config.resource_managers.reserved_cpus.as_ref();
        let refuse = |e: CpuManagerError| cpu_error(e);
        let mut cpu =
            CpuManager::new(machine.cpus.clone(), options, reserved, cpus).map_err(refuse)?;
        let state = self.read_cpu_state(cpu::STATIC).map_err(cpu_error)?;
        cpu.restore(state.clone()).map_err(refuse)?;
        self.written.get_mut().cpu = state;
        self.guarded.get_mut().cpu = Some(cpu);
        self.write().map_err(cpu_error)
    }

    /// Reads the state file of the CPU manager. Upstream also writes a file with the policy `none`,
    /// which has no state; here that policy only refuses the file of another one.
    fn read_cpu_state(&self, policy: &'static str) -> Result<Option<CpuState>, RestoreError> {
        let path = self.directory.join(CPU_STATE);
        let read = || -> Result<Option<CpuState>, CheckpointError> {
            checkpoint::read(&path)?.map(|text| CpuState::parse(&text, policy)).transpose()
        };
        read().map_err(|source| RestoreError { manager: "CPU", path: path.clone(), source })
    }

    /// Creates the memory manager, if the policy is `Static`, with the state of the file.
    fn open_memory(
        &mut self,
        config: &Config,
        machine: &MachineTopology,
    ) -> Result<(), ResourceManagersError> {
        let MemoryPolicy::Static(reserved) = &config.resource_managers.memory else {
            return self.read_memory_state("None").map(drop).map_err(memory_error);
        };
        let total =
            machine.nodes.values().fold(0, |sum: u64, node| sum.saturating_add(node.memory));
        let total = i64::try_from(total).unwrap_or(i64::MAX);
        let eviction = config.eviction.reservation(Signal::MemoryAvailable, total);
        let of_node = config.reserved_quantity("memory").map_or(0, |amount| amount.value());
        reserved.check(machine, of_node.saturating_add(eviction)).map_err(memory_error)?;
        let state = self.read_memory_state(memory::STATIC).map_err(memory_error)?;
        let unused = MachineState::unused(machine, reserved);
        let memory = MemoryManager::new(unused, state.clone()).map_err(memory_error)?;
        self.written.get_mut().memory = state;
        self.guarded.get_mut().memory = Some(memory);
        self.write().map_err(memory_error)
    }

    /// Reads the state file of the memory manager, by the rules of [`Self::read_cpu_state`].
    fn read_memory_state(&self, policy: &'static str) -> Result<Option<MemoryState>, RestoreError> {
        let path = self.directory.join(MEMORY_STATE);
        let read = || -> Result<Option<MemoryState>, CheckpointError> {
            checkpoint::read(&path)?.map(|text| MemoryState::parse(&text, policy)).transpose()
        };
        read().map_err(|source| RestoreError { manager: "memory", path: path.clone(), source })
    }

    /// Whether any manager acts on pods.
    pub(crate) fn is_active(&self) -> bool {
        let guarded = self.guarded.lock();
        self.aligner.is_some() || guarded.cpu.is_some() || guarded.memory.is_some()
    }

    /// Whether containers may have CPUs of their own, so that those of others may change.
    pub(crate) fn has_cpu_sets(&self) -> bool {
        self.guarded.lock().cpu.is_some()
    }

    /// The CPUs and NUMA nodes of a container that is about to be created.
    pub(crate) fn container_cpus(&self, pod: &Pod, member: &PodContainer) -> ContainerCpus {
        let guarded = self.guarded.lock();
        let (uid, name) = (&pod.uid, member.name());
        let (cpu, memory) = (guarded.cpu.as_ref(), guarded.memory.as_ref());
        ContainerCpus {
            cpus: cpu.map(|cpu| cpu.cpus(uid, name).to_string()).unwrap_or_default(),
            memory_nodes: memory.map(|memory| memory.nodes(uid, name)).unwrap_or_default(),
            is_exclusive: cpu.is_some_and(|cpu| cpu.exclusive(uid, name).is_some()),
        }
    }

    /// Whether a container of the pod has CPUs exclusively: the pod has no quota of CPU then.
    pub(crate) fn has_exclusive_cpus(&self, pod: &Pod) -> bool {
        let guarded = self.guarded.lock();
        let sets = guarded.cpu.as_ref().and_then(|cpu| cpu.state.assignments.get(&*pod.uid));
        sets.is_some_and(|sets| !sets.is_empty())
    }

    /// Records the CPUs with which a container was created, before it starts. They may have changed
    /// since: the container is updated then. The memory of init containers that have ended is
    /// released.
    pub(crate) async fn container_created(
        self: &Arc<Self>,
        pod: &Pod,
        name: &str,
        id: &str,
        cpus: String,
    ) {
        let is_changed = {
            let mut guarded = self.guarded.lock();
            guarded.memory.as_mut().is_some_and(|memory| memory.begin_container(pod, name))
        };
        if is_changed {
            self.save().await;
        }
        let mut guarded = self.guarded.lock();
        let Some(cpu) = &guarded.cpu else { return };
        if cpu.cpus(&pod.uid, name).to_string() != cpus {
            self.cpu_sets_changed.notify_one();
        }
        guarded.applied.insert(id.to_owned(), cpus);
    }

    /// The NUMA nodes on which a container gets devices.
    pub(crate) fn affinity(&self, pod: &str, container: &str) -> Option<NumaMask> {
        self.guarded.lock().affinities.get(pod)?.get(container).copied()
    }

    /// Releases the resources of a pod whose containers have ended.
    pub(crate) async fn release(self: &Arc<Self>, pod: &str) {
        self.retain(|uid| uid != pod).await;
    }

    /// Releases the resources of pods that `exists` does not accept: those of pods that were
    /// deleted while no agent ran.
    pub(crate) async fn retain_pods(self: &Arc<Self>, exists: impl Fn(&str) -> bool) {
        self.retain(exists).await;
        self.settled.send_replace(true);
    }

    async fn retain(self: &Arc<Self>, exists: impl Fn(&str) -> bool) {
        let is_changed = {
            let mut guarded = self.guarded.lock();
            guarded.affinities.retain(|uid, _| exists(uid));
            let cpu = guarded.cpu.as_mut().is_some_and(|cpu| cpu.retain_pods(&exists));
            let memory = guarded.memory.as_mut().is_some_and(|m| m.retain_pods(&exists));
            cpu | memory
        };
        if is_changed {
            self.cpu_sets_changed.notify_one();
            self.save().await;
        }
    }

    /// Writes the states that have changed; a failure is logged, and the next change writes again.
    async fn save(self: &Arc<Self>) {
        let managers = Arc::clone(self);
        let written = base::tasks::blocking(move || managers.write()).await;
        let outcome = written.map_err(io::Error::other).and_then(|outcome| outcome);
        if let Err(error) = outcome {
            tracing::warn!(%error, "resource managers: cannot write the state");
        }
    }

    fn write(&self) -> io::Result<()> {
        let mut written = self.written.lock();
        let (cpu, memory) = {
            let guarded = self.guarded.lock();
            let cpu = guarded.cpu.as_ref().map(|cpu| cpu.state.clone());
            (cpu, guarded.memory.as_ref().map(|memory| memory.state.clone()))
        };
        if let Some(state) = cpu.filter(|state| written.cpu.as_ref() != Some(state)) {
            let text = state.to_json(cpu::STATIC)?;
            base::fs::write_atomic(&self.directory.join(CPU_STATE), &text, 0o600)?;
            written.cpu = Some(state);
        }
        if let Some(state) = memory.filter(|state| written.memory.as_ref() != Some(state)) {
            let text = state.to_json(memory::STATIC)?;
            base::fs::write_atomic(&self.directory.join(MEMORY_STATE), &text, 0o600)?;
            written.memory = Some(state);
        }
        Ok(())
    }
}

/// Refuses reserved CPUs that are not online.
fn check_reserved(
    reserved: Option<&CpuSet>,
    machine: &MachineTopology,
) -> Result<(), ResourceManagersError> {
    let online = machine.cpus.details.cpus();
    match reserved.filter(|set| !set.is_subset(&online)) {
        Some(set) => Err(ResourceManagersError::ReservedCpus { reserved: set.clone(), online }),
        None => Ok(()),
    }
}

fn cpu_error(error: impl std::fmt::Display) -> ResourceManagersError {
    ResourceManagersError::Cpu(error.to_string())
}

fn memory_error(error: impl std::fmt::Display) -> ResourceManagersError {
    ResourceManagersError::Memory(error.to_string())
}

/// Creates the topology manager unless its policy is `none`.
fn aligner(
    config: &ResourceManagersConfig,
    machine: &MachineTopology,
) -> Result<Option<Aligner>, ResourceManagersError> {
    if config.topology == TopologyPolicy::None {
        return Ok(None);
    }
    let options = config.topology_options;
    let refuse = |text: String| Err(ResourceManagersError::TopologyManager(text));
    let mut distances = BTreeMap::new();
    if options.prefer_closest {
        if machine.nodes.values().any(|node| node.distances.is_empty()) {
            let text = "cannot discover NUMA topology: error getting NUMA distances from cadvisor";
            return refuse(text.to_owned());
        }
        let all = machine.nodes.iter();
        distances = all.map(|(number, node)| (*number, node.distances.clone())).collect();
    }
    if machine.nodes.len() > options.nodes_max {
        let max = options.nodes_max;
        return refuse(format!("unsupported on machines with more than {max} NUMA Nodes"));
    }
    metrics::ALIGNED.add(metrics::NODE_OF_CONTAINER, 0.0);
    metrics::NOT_ALIGNED.add(metrics::NODE_OF_CONTAINER, 0.0);
    metrics::ALIGNED.add(metrics::NODE_OF_POD, 0.0);
    metrics::NOT_ALIGNED.add(metrics::NODE_OF_POD, 0.0);
    Ok(Some(Aligner {
        merger: HintMerger {
            policy: config.topology,
            prefer_closest: options.prefer_closest,
            numa: NumaDistances { nodes: machine.all_nodes(), distances },
        },
        scope: config.topology_scope,
        nodes: machine.node_numbers(),
        permit: Semaphore::new(1),
    }))
}
