//! Tells the runtime the CPUs of running containers: once at the start, and whenever the shared
//! CPUs change. Upstream compares them every ten seconds (`cpuManagerReconcilePeriod`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base::{Backoff, Shutdown};
use proto::runtime::v1 as cri;

use super::ResourceManagers;
use crate::context::Node;
use crate::pods::observed::label;
use crate::pods::table::PodTable;

/// A container whose CPUs differ from those that the runtime was told.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CpuSetUpdate {
    id: String,
    cpus: String,
}

#[cfg(test)]
impl CpuSetUpdate {
    /// Id of the container and its CPUs.
    pub(super) fn parts(&self) -> (&str, &str) {
        (&self.id, &self.cpus)
    }
}

impl ResourceManagers {
    /// The updates that bring the containers of the runtime to their CPUs. `is_known` accepts the
    /// uids of pods of this node.
    pub(super) fn pending_updates(
        &self,
        containers: &[cri::Container],
        is_known: impl Fn(&str) -> bool,
    ) -> Vec<CpuSetUpdate> {
        let mut guarded = self.guarded.lock();
        let mut known: HashMap<String, String> = std::mem::take(&mut guarded.applied);
        known.retain(|id, _| containers.iter().any(|container| container.id == *id));
        guarded.applied = known;
        let Some(cpu) = &guarded.cpu else { return Vec::new() };
        let runs = |container: &&cri::Container| {
            matches!(
                container.state(),
                cri::ContainerState::ContainerRunning | cri::ContainerState::ContainerCreated
            )
        };
        let update = |container: &cri::Container| {
            let pod = container.labels.get(label::POD_UID).filter(|uid| is_known(uid))?;
            let name = container.labels.get(label::CONTAINER_NAME)?;
            let cpus = cpu.cpus(pod, name).to_string();
            let is_applied = guarded.applied.get(&container.id) == Some(&cpus);
            let id = container.id.clone();
            (!is_applied && !cpus.is_empty()).then_some(CpuSetUpdate { id, cpus })
        };
        containers.iter().filter(runs).filter_map(update).collect()
    }
}

/// Updates containers until shutdown. Failures are retried with a back-off.
pub(crate) async fn run(
    node: Arc<Node>,
    table: PodTable,
    shutdown: Shutdown,
) -> Result<(), std::convert::Infallible> {
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(60));
    loop {
        let changed = node.resource_managers.cpu_sets_changed.notified();
        if update_all(&node, &table).await {
            backoff.reset();
            tokio::select! {
                biased;
                () = shutdown.requested() => return Ok(()),
                () = changed => {}
            }
        } else if !backoff.wait(&shutdown).await {
            return Ok(());
        }
    }
}

/// Updates all containers that need it; returns whether all calls succeeded.
async fn update_all(node: &Node, table: &PodTable) -> bool {
    let managers = &node.resource_managers;
    let runtime = &node.runtime.cri;
    let Ok(containers) = runtime.containers(None).await else { return false };
    let updates = managers.pending_updates(&containers, |uid| table.get(uid).is_some());
    let mut is_complete = true;
    for CpuSetUpdate { id, cpus } in updates {
        let resources = cri::LinuxContainerResources {
            cpuset_cpus: cpus.clone(),
            ..cri::LinuxContainerResources::default()
        };
        match runtime.update_container(&id, resources).await {
            Ok(()) => {
                managers.guarded.lock().applied.insert(id, cpus);
            }
            // The container has ended since it was listed.
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                tracing::debug!(container = id, %error, "cannot set the CPUs of a container");
                is_complete = false;
            }
        }
    }
    is_complete
}
