//! The requests of a pod: what a node accounts for, and what scores assume.

use std::collections::BTreeMap;

use api::k8s::api::core::v1::{Container, ContainerStatus, Pod, PodSpec, PodStatus};
use api::k8s::apimachinery::pkg::api::resource::Quantity;

use crate::resources::{DEFAULT_MEMORY, DEFAULT_MILLI_CPU, Resources};

type ResourceList = BTreeMap<String, Quantity>;

/// The requests of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PodRequests {
    /// What the pod needs on a node; `pods` is 1.
    pub(crate) total: Resources,
    /// CPU and memory of the pod in scores of its node, once it is there: containers without
    /// requests count with defaults.
    pub(crate) non_zero: CpuAndMemory,
    /// CPU and memory of the pod in scores of the nodes that fit it. As upstream's, these scores do
    /// not know pod-level requests.
    pub(crate) scored: CpuAndMemory,
}

/// CPU in thousandths of a core, memory in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CpuAndMemory {
    pub(crate) milli_cpu: i64,
    pub(crate) memory: i64,
}

/// Which requests of a container count, after an in-place resize (`aggregateContainerRequests`).
#[derive(Clone, Copy)]
enum Source {
    /// Those of the spec.
    Spec,
    /// Those that the kubelet has admitted.
    Allocated,
    /// Those that the runtime has applied.
    Actuated,
}

/// The sum of requests, and the same with defaults for missing CPU and memory.
#[derive(Debug, Clone, Default)]
struct Sum {
    resources: Resources,
    assumed: CpuAndMemory,
}

impl Sum {
    fn of(list: Option<&ResourceList>, missing: CpuAndMemory) -> Self {
        let resources = Resources::from_list(list);
        let has = |name: &str| list.is_some_and(|list| list.contains_key(name));
        let assumed = CpuAndMemory {
            milli_cpu: if has("cpu") { resources.milli_cpu } else { missing.milli_cpu },
            memory: if has("memory") { resources.memory } else { missing.memory },
        };
        Self { resources, assumed }
    }

    fn add(&mut self, other: &Self) {
        self.resources.add(&other.resources);
        self.assumed.milli_cpu += other.assumed.milli_cpu;
        self.assumed.memory += other.assumed.memory;
    }

    fn max(&mut self, other: &Self) {
        self.resources.max(&other.resources);
        self.assumed.milli_cpu = self.assumed.milli_cpu.max(other.assumed.milli_cpu);
        self.assumed.memory = self.assumed.memory.max(other.assumed.memory);
    }
}

const DEFAULTS: CpuAndMemory =
    CpuAndMemory { milli_cpu: DEFAULT_MILLI_CPU, memory: DEFAULT_MEMORY };

/// Whether an init container is a sidecar (KEP-753): it runs as long as the containers of the pod.
pub(crate) fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

/// Computes the requests of a pod (`resourcehelper.PodRequests`): the sum over containers and
/// sidecars, but at least the requests of each init container plus those of the sidecars that start
/// before it. Pod-level requests replace that result (KEP-2837). The overhead is added.
pub(crate) fn pod_requests(pod: &Pod) -> PodRequests {
    let Some(spec) = &pod.spec else { return PodRequests::default() };
    let status = pod.status.as_ref();
    let sum = container_sum(spec, status, DEFAULTS);
    let pod_level = pod_level_requests(spec, status);
    let mut total = sum.resources;
    let mut scored = sum.assumed;
    let mut non_zero = sum.assumed;
    if let Some(pod_level) = &pod_level {
        total.replace(pod_level);
        // Without pod-level requests of a resource, its defaults count only if no container
        // requests it (`getNonMissingContainerRequests`).
        let requested = |name: &str| pod_level.contains_key(name) || is_requested(spec, name);
        let missing = CpuAndMemory {
            milli_cpu: if requested("cpu") { 0 } else { DEFAULT_MILLI_CPU },
            memory: if requested("memory") { 0 } else { DEFAULT_MEMORY },
        };
        non_zero = container_sum(spec, status, missing).assumed;
        if pod_level.contains_key("cpu") {
            non_zero.milli_cpu = total.milli_cpu;
        }
        if pod_level.contains_key("memory") {
            non_zero.memory = total.memory;
        }
    }
    let overhead = Resources::from_list(spec.overhead.as_ref());
    total.add(&overhead);
    for assumed in [&mut scored, &mut non_zero] {
        assumed.milli_cpu += overhead.milli_cpu;
        assumed.memory += overhead.memory;
    }
    total.pods = 1;
    PodRequests { total, non_zero, scored }
}

fn is_requested(spec: &PodSpec, name: &str) -> bool {
    let overhead = spec.overhead.iter().any(|list| list.contains_key(name));
    overhead
        || spec.containers.iter().chain(spec.init_containers.iter().flatten()).any(|container| {
            let requests = container.resources.as_ref().and_then(|r| r.requests.as_ref());
            requests.is_some_and(|requests| requests.contains_key(name))
        })
}

/// The pod's requests for all containers together, if it has some; the greatest ones during a
/// resize.
fn pod_level_requests(spec: &PodSpec, status: Option<&PodStatus>) -> Option<ResourceList> {
    let requests = spec.resources.as_ref()?.requests.as_ref()?;
    if !requests.keys().any(|name| is_pod_level(name)) {
        return None;
    }
    let mut out = if is_infeasible(status) { ResourceList::new() } else { requests.clone() };
    if let Some(actuated) = status.and_then(|status| status.resources.as_ref()) {
        let allocated = status.and_then(|status| status.allocated_resources.as_ref());
        for (name, quantity) in actuated.requests.iter().chain(allocated).flatten() {
            let is_greater = out.get(name).is_none_or(|old| {
                let amount = |quantity: &Quantity| {
                    Resources::from_list(Some(&[(name.clone(), quantity.clone())].into())).get(name)
                };
                amount(quantity) > amount(old)
            });
            if is_greater {
                out.insert(name.clone(), quantity.clone());
            }
        }
    }
    out.retain(|name, _| is_pod_level(name));
    Some(out)
}

/// The kubelet has refused the resize of the pod as impossible (`IsPodResizeInfeasible`).
fn is_infeasible(status: Option<&PodStatus>) -> bool {
    let mut conditions = status.iter().flat_map(|s| &s.conditions).flatten();
    conditions
        .find(|c| c.type_ == "PodResizePending")
        .is_some_and(|c| c.reason.as_deref() == Some("Infeasible"))
}

fn container_sum(spec: &PodSpec, status: Option<&PodStatus>, missing: CpuAndMemory) -> Sum {
    let is_resized = status.is_some_and(|status| {
        let statuses = status.container_statuses.iter().chain(&status.init_container_statuses);
        let has_resources = |s: &ContainerStatus| {
            s.allocated_resources.is_some()
                || s.resources.as_ref().is_some_and(|r| r.requests.is_some())
        };
        statuses.flatten().any(has_resources)
    });
    if !is_resized {
        return sum_of(spec, None, missing, Source::Spec);
    }
    let mut sum = sum_of(spec, status, missing, Source::Allocated);
    sum.max(&sum_of(spec, status, missing, Source::Actuated));
    if !is_infeasible(status) {
        sum.max(&sum_of(spec, status, missing, Source::Spec));
    }
    sum
}

fn sum_of(
    spec: &PodSpec,
    status: Option<&PodStatus>,
    missing: CpuAndMemory,
    source: Source,
) -> Sum {
    let is_infeasible = is_infeasible(status);
    let request = |container: &Container| {
        let list = requests_of(container, status, source, is_infeasible);
        Sum::of(list, missing)
    };
    let mut total = Sum::default();
    for container in &spec.containers {
        total.add(&request(container));
    }
    // `peak` is the greatest amount during the init phase.
    let (mut sidecars, mut peak) = (Sum::default(), Sum::default());
    for container in spec.init_containers.iter().flatten() {
        let mut requests = request(container);
        if is_sidecar(container) {
            total.add(&requests);
            sidecars.add(&requests);
            peak.max(&sidecars);
        } else {
            requests.add(&sidecars);
            peak.max(&requests);
        }
    }
    total.max(&peak);
    total
}

/// The requests of a container from one source; without a status, those of the spec.
fn requests_of<'a>(
    container: &'a Container,
    status: Option<&'a PodStatus>,
    source: Source,
    is_infeasible: bool,
) -> Option<&'a ResourceList> {
    let own = container.resources.as_ref().and_then(|r| r.requests.as_ref());
    let statuses = status.into_iter().flat_map(|status| {
        status.container_statuses.iter().chain(&status.init_container_statuses).flatten()
    });
    let found = statuses.into_iter().find(|status| status.name == container.name);
    let allocated = found.and_then(|status| status.allocated_resources.as_ref());
    let known = match source {
        Source::Spec => return own,
        Source::Allocated => allocated,
        Source::Actuated => {
            let applied =
                found.and_then(|s| s.resources.as_ref()).and_then(|r| r.requests.as_ref());
            applied.or(allocated)
        }
    };
    known.or(if is_infeasible { None } else { own })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn requests(spec: serde_json::Value, status: serde_json::Value) -> PodRequests {
        let pod = json!({"metadata": {"name": "p"}, "spec": spec, "status": status});
        pod_requests(&serde_json::from_value(pod).unwrap())
    }

    fn cpu(name: &str, cpu: &str) -> serde_json::Value {
        json!({"name": name, "resources": {"requests": {"cpu": cpu}}})
    }

    #[test]
    fn requests_include_sidecars_before_an_init_container_and_the_overhead() {
        let mut sidecar = cpu("s", "100m");
        sidecar["restartPolicy"] = "Always".into();
        let spec = json!({"containers": [cpu("a", "200m"), cpu("b", "300m")],
            "initContainers": [sidecar, cpu("i", "1")]});
        assert_eq!(requests(spec, json!({})).total.milli_cpu, 1100);
        let spec = json!({"containers": [cpu("a", "200m")], "overhead": {"cpu": "50m"}});
        let requests = requests(spec, json!({}));
        assert_eq!((requests.total.milli_cpu, requests.total.pods), (250, 1));
        assert_eq!(requests.scored.memory, DEFAULT_MEMORY);
    }

    /// Cases of upstream's `TestPodResourceRequests` with a resize.
    #[test]
    fn the_greatest_of_requested_allocated_and_applied_requests_counts() {
        let status = |allocated: &str, applied: &str, conditions: serde_json::Value| {
            json!({"conditions": conditions, "containerStatuses": [{
                "name": "a", "allocatedResources": {"cpu": allocated},
                "resources": {"requests": {"cpu": applied}},
            }]})
        };
        let milli_cpu = |spec: &str, status: serde_json::Value| {
            requests(json!({"containers": [cpu("a", spec)]}), status).total.milli_cpu
        };
        assert_eq!(milli_cpu("4", status("2", "1", json!([]))), 4000, "waits for the kubelet");
        assert_eq!(milli_cpu("1", status("2", "2", json!([]))), 2000, "shrinks");
        let infeasible = json!([{"type": "PodResizePending", "status": "True",
            "reason": "Infeasible"}]);
        assert_eq!(milli_cpu("8", status("2", "2", infeasible)), 2000);
    }

    #[test]
    fn pod_level_requests_replace_those_of_containers() {
        let spec = json!({"containers": [cpu("a", "200m"), {"name": "b"}],
            "resources": {"requests": {"cpu": "2"}}});
        let requests = requests(spec, json!({}));
        assert_eq!(requests.total.milli_cpu, 2000);
        assert_eq!(requests.non_zero.milli_cpu, 2000);
        assert_eq!(requests.scored.milli_cpu, 200 + DEFAULT_MILLI_CPU);
        assert_eq!(requests.non_zero.memory, 2 * DEFAULT_MEMORY, "no container requests it");
    }
}
