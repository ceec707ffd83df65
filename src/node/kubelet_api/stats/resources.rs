//! CPU and memory of the node and its running containers, for the resource metrics: read from
//! cgroups, without a call to the runtime, because they are read every 15 s.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use resource_metrics::{PodKey, Point, Sample};

use super::samples::{ContainerSample, NodeSample, PodSample};
use crate::cgroups::GroupUsage;
use crate::context::Node;
use crate::machine;
use crate::pods::observed::{ObservedPod, ObservedState};
use crate::pods::pod::Pod;
use crate::pods::table::PodTable;
use crate::resource_usage::{MeasureNode, ResourceUsageError};

/// The parts of a node that its measurement needs. It does not keep the node alive, whose
/// configuration contains it.
pub(crate) struct NodeResources {
    node: Weak<Node>,
    table: PodTable,
}

impl NodeResources {
    pub(crate) fn new(node: &Arc<Node>, table: PodTable) -> Self {
        Self { node: Arc::downgrade(node), table }
    }
}

#[async_trait]
impl MeasureNode for NodeResources {
    async fn measure(&self) -> Result<Sample, ResourceUsageError> {
        let node = self.node.upgrade().ok_or(ResourceUsageError::NotStarted)?;
        Ok(counters(measure(&node, &self.table).await?))
    }
}

/// Measures the node, its pods and their running containers. Other members of the result are
/// empty.
pub(super) async fn measure(
    node: &Arc<Node>,
    table: &PodTable,
) -> Result<NodeSample, ResourceUsageError> {
    let pods: Vec<_> = table
        .all()
        .into_iter()
        .map(|(pod, handle)| (pod, Arc::clone(&handle.reported.lock().observed)))
        .collect();
    let of = Arc::clone(node);
    let (mut sample, is_complete) = base::tasks::blocking(move || read(&of, pods)).await?;
    if !is_complete {
        // A runtime with virtual machines has no cgroup for each container.
        let stats = node.runtime.cri.stats().await;
        let stats = stats.map_err(|error| ResourceUsageError::Runtime(error.message))?;
        add_missing(&mut sample, stats.into_iter().filter_map(super::sample));
    }
    Ok(sample)
}

/// Reads cgroups and `/proc`; the second value is whether every running container has a cgroup.
fn read(node: &Node, pods: Vec<(Arc<Pod>, Arc<ObservedPod>)>) -> (NodeSample, bool) {
    let now = i64::try_from(base::clock::unix_time().as_nanos()).unwrap_or_default();
    let cgroups = &node.runtime.cgroups;
    let mut sample = NodeSample {
        node_cpu: cgroups.machine_cpu().unwrap_or_default(),
        node_memory: machine_memory(node),
        now,
        ..NodeSample::default()
    };
    let mut is_complete = true;
    for (pod, observed) in pods {
        for container in observed.containers.iter().filter(|c| c.state == ObservedState::Running) {
            let Some((cpu_ns, working_set)) = cgroups.container_resources(&pod, &container.id)
            else {
                is_complete = false;
                continue;
            };
            sample.containers.push(ContainerSample {
                id: container.id.clone(),
                namespace: pod.namespace().to_owned(),
                pod: pod.name().to_owned(),
                uid: pod.uid.to_string(),
                container: container.name.clone(),
                started: container.created_at,
                time: now,
                cpu_ns,
                working_set,
                ..ContainerSample::default()
            });
        }
        if let Some((cpu_ns, working_set)) = cgroups.pod_resources(&pod) {
            let usage = GroupUsage { cpu_ns, working_set, ..GroupUsage::default() };
            sample.pods.push(PodSample { pod, observed, usage, cores_ns: None });
        }
    }
    (sample, is_complete)
}

/// Memory of the machine that is not available for new processes, as `stats/summary` reports it.
fn machine_memory(node: &Node) -> u64 {
    let available = machine::memory_available().and_then(|a| u64::try_from(a).ok());
    let total = u64::try_from(node.identity.machine.memory).unwrap_or_default();
    total.saturating_sub(available.unwrap_or_default())
}

/// Adds the running containers that were not read, as the runtime reports them.
fn add_missing(sample: &mut NodeSample, stats: impl Iterator<Item = ContainerSample>) {
    let running = |pods: &[PodSample], id: &str| {
        pods.iter()
            .flat_map(|pod| &pod.observed.containers)
            .find(|c| c.id == id && c.state == ObservedState::Running)
            .map(|c| c.created_at)
    };
    for mut stats in stats {
        let is_known = sample.containers.iter().any(|known| known.id == stats.id);
        if let Some(created_at) = running(&sample.pods, &stats.id).filter(|_| !is_known) {
            stats.started = created_at;
            sample.containers.push(stats);
        }
    }
}

/// The counters of a measurement.
fn counters(sample: NodeSample) -> Sample {
    let node =
        Point { started: 0, at: sample.now, cpu_ns: sample.node_cpu, memory: sample.node_memory };
    let containers = sample.containers.into_iter().map(|c| {
        let point =
            Point { started: c.started, at: c.time, cpu_ns: c.cpu_ns, memory: c.working_set };
        (PodKey { namespace: c.namespace, name: c.pod }, c.container, point)
    });
    Sample::new(node, containers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet_api::stats::tests::measured;

    /// A server reads from its own node what it reads from the text of another one.
    #[test]
    fn counters_are_those_of_the_text() {
        let mut sample = measured();
        let text = super::super::metrics::render(&sample);
        let read = resource_metrics::text::parse(&text, 0).unwrap();
        sample.now = sample.now / 1_000_000 * 1_000_000;
        assert_eq!(counters(sample), read);
        assert!(read.node.is_some() && read.pods.len() == 1);
    }

    #[test]
    fn running_containers_without_a_cgroup_are_those_of_the_runtime() {
        let mut sample = measured();
        let running = |id: &str| crate::pods::observed::ObservedContainer {
            id: id.to_owned(),
            created_at: 5,
            ..crate::pods::observed::tests::container("c", ObservedState::Running)
        };
        let observed =
            ObservedPod { containers: vec![running("i"), running("j")], ..ObservedPod::default() };
        sample.pods[0].observed = Arc::new(observed);
        let stats = |id: &str| ContainerSample { id: id.into(), ..ContainerSample::default() };
        add_missing(&mut sample, ["i", "j", "ended"].map(stats).into_iter());
        let all: Vec<_> = sample.containers.iter().map(|c| c.id.as_str()).collect();
        assert_eq!(all, ["i", "j"]);
        assert_eq!(sample.containers[1].started, 5);
    }
}
