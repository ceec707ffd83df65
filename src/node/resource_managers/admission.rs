//! Allocation of devices, CPUs and memory before a pod starts
//! (`pkg/kubelet/cm/topologymanager/scope*.go`).

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::Notify;

use super::cpu::CpuAllocationError;
use super::memory::MemoryAllocationError;
use super::numa_mask::NumaMask;
use super::topology::config::{TopologyPolicy, TopologyScope};
use super::topology::hints::{ProviderHints, TopologyHint};
use super::{Aligner, ResourceManagers, metrics};
use crate::devices::{AllocationError, DeviceManager, Recorded, has_extended_limits};
use crate::pods::pod::{ContainerRole, Pod, PodContainer};
use crate::pods::rejection::{Rejection, UNEXPECTED_ADMISSION_ERROR};

/// Why a pod gets no resources.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdmissionError {
    #[error(transparent)]
    Device(#[from] AllocationError),
    #[error(transparent)]
    Cpu(#[from] CpuAllocationError),
    #[error(transparent)]
    Memory(#[from] MemoryAllocationError),
    #[error("Resources cannot be allocated with Topology locality")]
    Topology,
}

impl AdmissionError {
    /// Reason and message of the rejection, as upstream (`admission.GetPodAdmitResult`).
    pub(crate) fn rejection(&self) -> Rejection {
        let reason = match self {
            Self::Topology => "TopologyAffinityError",
            Self::Cpu(
                CpuAllocationError::PartOfCore { .. } | CpuAllocationError::FewCores { .. },
            ) => "SMTAlignmentError",
            Self::Device(_) | Self::Cpu(_) | Self::Memory(_) => {
                let message = format!("Allocate failed due to {self}, which is unexpected");
                return Rejection::new(UNEXPECTED_ADMISSION_ERROR, message);
            }
        };
        Rejection::new(reason, self.to_string())
    }
}

/// What containers have without a topology manager.
const NO_HINT: TopologyHint = TopologyHint { mask: None, preferred: false };

/// The containers that get resources, in the order of their start.
fn members(pod: &Pod) -> impl Iterator<Item = &PodContainer> {
    pod.containers.iter().filter(|member| member.role != ContainerRole::Ephemeral)
}

impl ResourceManagers {
    /// Allocates the devices, CPUs and memory of all containers of a pod, init containers first.
    /// Waits while devices that are missing are about to come back. `wake` wakes the worker of the
    /// pod when the health of its devices changes.
    ///
    /// # Errors
    ///
    /// The resources are missing, or cannot be aligned as the policy requires. What was allocated
    /// until then stays until [`ResourceManagers::release`].
    pub(crate) async fn admit(
        self: &Arc<Self>,
        devices: &Arc<DeviceManager>,
        pod: &Pod,
        wake: &Arc<Notify>,
    ) -> Result<(), AdmissionError> {
        let begun = base::clock::now();
        metrics::ADMISSIONS.inc(&[]);
        let outcome = self.admit_settled(devices, pod, wake).await;
        if outcome.is_err() && self.aligner.is_some() {
            metrics::ADMISSION_ERRORS.inc(&[]);
        }
        metrics::ADMISSION_DURATION.observe(&[], begun.elapsed().as_secs_f64() * 1000.0);
        outcome
    }

    /// Admits a pod. After a failure it waits until the resources of pods are released that were
    /// deleted while no agent ran.
    async fn admit_settled(
        self: &Arc<Self>,
        devices: &Arc<DeviceManager>,
        pod: &Pod,
        wake: &Arc<Notify>,
    ) -> Result<(), AdmissionError> {
        let may_wait = !*self.settled.borrow();
        let outcome = self.admit_once(devices, pod, wake).await;
        match outcome {
            Err(AdmissionError::Device(_)) => return outcome,
            Err(_) if may_wait => {}
            outcome => return outcome,
        }
        // The sender is a part of this.
        let _ = self.settled.subscribe().wait_for(|is_settled| *is_settled).await;
        // What the first attempt allocated would bind the second one to its NUMA nodes.
        self.release(&pod.uid).await;
        self.admit_once(devices, pod, wake).await
    }

    async fn admit_once(
        self: &Arc<Self>,
        devices: &Arc<DeviceManager>,
        pod: &Pod,
        wake: &Arc<Notify>,
    ) -> Result<(), AdmissionError> {
        let Some(aligner) = &self.aligner else {
            if has_extended_limits(pod) {
                devices.admit(pod, wake).await?;
            }
            return self.allocate_unaligned(pod).await;
        };
        if has_extended_limits(pod) {
            devices.follow_health(pod, wake);
        }
        let mut changes = devices.changes();
        loop {
            changes.mark_unchanged();
            let outcome = {
                // The semaphore is never closed.
                let _permit = aligner.permit.acquire().await;
                self.admit_aligned(aligner, devices, pod).await
            };
            self.finish_allocation().await;
            match outcome {
                Err(AdmissionError::Device(error)) => {
                    if !devices.may_retry(pod, &error, &mut changes).await {
                        return Err(error.into());
                    }
                    // As above.
                    self.release(&pod.uid).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// Takes over a pod of which a container runs. It has what the state file says; a pod of before
    /// a change of the policy gets resources if there are some, and shares them otherwise.
    pub(crate) async fn adopt(self: &Arc<Self>, pod: &Pod) {
        if let Err(error) = self.allocate_unaligned(pod).await {
            let pod = &pod.key;
            tracing::warn!(%pod, %error, "a pod that runs gets no resources of its own");
        }
        // The process before may have ended between a change and the update of the runtime.
        self.cpu_sets_changed.notify_one();
    }

    /// Allocates CPUs and memory without regard to NUMA nodes.
    async fn allocate_unaligned(self: &Arc<Self>, pod: &Pod) -> Result<(), AdmissionError> {
        let outcome = members(pod).try_for_each(|member| self.allocate(pod, member, NO_HINT));
        self.finish_allocation().await;
        outcome
    }

    async fn admit_aligned(
        &self,
        aligner: &Aligner,
        devices: &Arc<DeviceManager>,
        pod: &Pod,
    ) -> Result<(), AdmissionError> {
        let mut has_new_devices = false;
        let of_pod = match aligner.scope {
            TopologyScope::Pod => Some(self.best_hint(aligner, devices, pod, None)?),
            TopologyScope::Container => None,
        };
        for member in members(pod) {
            let hint = match of_pod {
                Some(hint) => hint,
                None => self.best_hint(aligner, devices, pod, Some(member))?,
            };
            self.set_affinity(pod, member, hint.mask);
            let nodes = hint.mask.map(device_nodes);
            has_new_devices |=
                devices.allocate_container(pod, member, Recorded::Verify, nodes.as_ref()).await?;
            self.allocate(pod, member, hint)?;
            if of_pod.is_none() && aligner.merger.policy == TopologyPolicy::SingleNumaNode {
                metrics::ALIGNED.inc(metrics::NODE_OF_CONTAINER);
            }
        }
        if of_pod.is_some() && aligner.merger.policy == TopologyPolicy::SingleNumaNode {
            metrics::ALIGNED.inc(metrics::NODE_OF_POD);
        }
        if has_new_devices {
            devices.save_allocations().await?;
        }
        Ok(())
    }

    /// The best hint for a container, or for the whole pod.
    fn best_hint(
        &self,
        aligner: &Aligner,
        devices: &DeviceManager,
        pod: &Pod,
        member: Option<&PodContainer>,
    ) -> Result<TopologyHint, AdmissionError> {
        let of_devices = devices.topology_hints(pod, member, &aligner.nodes);
        let [of_cpu, of_memory] = self.own_hints(pod, member);
        let providers = [of_devices, of_cpu, of_memory];
        let (hint, admits) = aligner.merger.merge(&providers);
        if admits {
            return Ok(hint);
        }
        if aligner.merger.policy == TopologyPolicy::SingleNumaNode {
            let scope =
                if member.is_some() { metrics::NODE_OF_CONTAINER } else { metrics::NODE_OF_POD };
            metrics::NOT_ALIGNED.inc(scope);
        }
        Err(AdmissionError::Topology)
    }

    /// The hints of the CPU and of the memory manager.
    fn own_hints(&self, pod: &Pod, member: Option<&PodContainer>) -> [ProviderHints; 2] {
        let guarded = self.guarded.lock();
        let cpu = match (&guarded.cpu, member) {
            (None, _) => ProviderHints::new(),
            (Some(cpu), Some(member)) => cpu.hints(pod, member),
            (Some(cpu), None) => cpu.pod_hints(pod),
        };
        let memory = match (&guarded.memory, member) {
            (None, _) => ProviderHints::new(),
            (Some(memory), Some(member)) => memory.hints(pod, member),
            (Some(memory), None) => memory.pod_hints(pod),
        };
        [cpu, memory]
    }

    fn set_affinity(&self, pod: &Pod, member: &PodContainer, mask: Option<NumaMask>) {
        let mut guarded = self.guarded.lock();
        let containers = guarded.affinities.entry(pod.uid.to_string()).or_default();
        match mask {
            Some(mask) => {
                containers.insert(member.name().to_owned(), mask);
            }
            None => {
                containers.remove(member.name());
            }
        }
    }

    /// Allocates CPUs and memory of one container.
    fn allocate(
        &self,
        pod: &Pod,
        member: &PodContainer,
        hint: TopologyHint,
    ) -> Result<(), AdmissionError> {
        let mut guarded = self.guarded.lock();
        if let Some(cpu) = &mut guarded.cpu
            && cpu.allocate(pod, member, hint.mask)?
        {
            self.cpu_sets_changed.notify_one();
        }
        if let Some(memory) = &mut guarded.memory {
            memory.allocate(pod, member, hint)?;
        }
        Ok(())
    }

    /// Writes what was allocated.
    async fn finish_allocation(self: &Arc<Self>) {
        if self.is_active() {
            self.save().await;
        }
    }
}

/// The nodes of a mask in the form of device plugins.
pub(crate) fn device_nodes(mask: NumaMask) -> BTreeSet<i64> {
    mask.nodes().filter_map(|node| i64::try_from(node).ok()).collect()
}
