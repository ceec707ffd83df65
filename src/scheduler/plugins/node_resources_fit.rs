//! NodeResourcesFit: the node has the resources that the pod requests; prefers emptier nodes.

use std::borrow::Cow;

use api::k8s::api::resource::v1::DeviceClass;

use crate::event::Event;
use crate::framework::{MAX_NODE_SCORE, Plugin, Snapshot};
use crate::node_info::NodeInfo;
use crate::pod_claims::{IMPLICIT_PREFIX, may_be_served};
use crate::pod_info::PodInfo;
use crate::rejection::Rejection;

#[derive(Debug, Clone)]
pub(super) struct NodeResourcesFit;

impl Plugin for NodeResourcesFit {
    const NAME: &'static str = "NodeResourcesFit";

    fn queueing_hint(event: &Event<'_>, pod: &PodInfo) -> bool {
        match event {
            Event::Node | Event::AssignedPodDelete(_) => true,
            Event::DeviceClass { old, new } => serves(pod, *old, new),
            _ => false,
        }
    }

    fn pre_filter(_: &Snapshot<'_>) -> Option<Self> {
        Some(Self)
    }

    fn filter(&self, snapshot: &Snapshot<'_>, node: &NodeInfo) -> Result<(), Rejection> {
        let devices = snapshot.listers.devices();
        let is_served = |name: &str| {
            may_be_served(name) && devices.is_some_and(|d| d.classes().serving(name).is_some())
        };
        fit(snapshot.pod, node, &is_served)
    }

    fn pre_score(_: &Snapshot<'_>, _: &[&NodeInfo]) -> Option<Self> {
        Some(Self)
    }

    fn score(&self, snapshot: &Snapshot<'_>, node: &NodeInfo) -> i64 {
        least_allocated(snapshot.pod, node)
    }
}

/// Whether the new version of a class serves a resource that the pod requests, and the old one did
/// not.
fn serves(pod: &PodInfo, old: Option<&DeviceClass>, new: &DeviceClass) -> bool {
    let explicit = |class: &DeviceClass| class.spec.as_ref()?.extended_resource_name.clone();
    if old.is_some_and(|old| explicit(old) == explicit(new)) {
        return false;
    }
    let name = new.metadata.name.as_deref().unwrap_or_default();
    let implicit = old.is_none().then(|| format!("{IMPLICIT_PREFIX}{name}"));
    let mut names = implicit.into_iter().chain(explicit(new));
    names.any(|name| pod.requests.get(&name) > 0)
}

/// Whether the node has what the pod requests. Resources that a device class serves are left to
/// DynamicResources, unless the node has them, too.
fn fit(pod: &PodInfo, node: &NodeInfo, is_served: &dyn Fn(&str) -> bool) -> Result<(), Rejection> {
    let mut reasons: Vec<Cow<'static, str>> = Vec::new();
    let mut unresolvable = false;
    if node.pods.len() as i64 + 1 > node.allocatable.pods {
        reasons.push("Too many pods".into());
    }
    for (name, requested) in pod.requests.iter().filter(|(_, requested)| *requested > 0) {
        let allocatable = node.allocatable.get(name);
        if requested > allocatable - node.requested.get(name) {
            if allocatable <= 0 && is_served(name) {
                continue;
            }
            reasons.push(match name {
                "cpu" => "Insufficient cpu".into(),
                "memory" => "Insufficient memory".into(),
                other => format!("Insufficient {other}").into(),
            });
            unresolvable |= requested > allocatable;
        }
    }
    if reasons.is_empty() {
        Ok(())
    } else {
        Err(Rejection { plugin: "", reasons, unresolvable, is_error: false })
    }
}

/// Mean of the free shares of CPU and memory, 0 to 100 (strategy `LeastAllocated`).
fn least_allocated(pod: &PodInfo, node: &NodeInfo) -> i64 {
    let free = |used: i64, capacity: i64| {
        if used > capacity { 0 } else { (capacity - used) * MAX_NODE_SCORE / capacity }
    };
    let resources = [
        (node.non_zero_cpu + pod.non_zero_cpu, node.allocatable.milli_cpu),
        (node.non_zero_memory + pod.non_zero_memory, node.allocatable.memory),
    ];
    let (mut sum, mut counted) = (0, 0);
    for (used, capacity) in resources.into_iter().filter(|(_, capacity)| *capacity > 0) {
        sum += free(used, capacity);
        counted += 1;
    }
    if counted == 0 { 0 } else { sum / counted }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::Resources;

    fn node(cpu: i64, pods: i64) -> NodeInfo {
        NodeInfo {
            allocatable: Resources {
                milli_cpu: cpu,
                memory: 1 << 30,
                pods,
                ..Resources::default()
            },
            ..NodeInfo::default()
        }
    }

    fn pod(cpu: i64) -> PodInfo {
        PodInfo {
            requests: Resources { milli_cpu: cpu, pods: 1, ..Resources::default() },
            non_zero_cpu: cpu,
            ..PodInfo::default()
        }
    }

    #[test]
    fn rejection_names_every_insufficient_resource() {
        let rejection = fit(&pod(500), &node(400, 0), &|_| false).unwrap_err();
        assert_eq!(rejection.reasons, ["Too many pods", "Insufficient cpu"]);
        assert!(rejection.unresolvable);
        assert!(fit(&pod(400), &node(400, 1), &|_| false).is_ok());
    }

    /// Rows of upstream's `noderesources/fit_test.go` with extended resources.
    #[test]
    fn resources_that_a_device_class_serves_do_not_need_to_be_on_the_node() {
        let name = "example.com/gpu";
        let with = |resources: Resources, gpus: i64| Resources {
            others: [(name.to_owned(), gpus)].into(),
            ..resources
        };
        let mut wants = pod(0);
        wants.requests = with(wants.requests, 2);
        for (gpus, is_served, expected) in [
            (None, false, false),
            (None, true, true),
            (Some(0), true, true),
            (Some(1), true, false),
        ] {
            let mut node = node(400, 1);
            if let Some(gpus) = gpus {
                node.allocatable = with(node.allocatable, gpus);
            }
            let fits = fit(&wants, &node, &|served| is_served && served == name).is_ok();
            assert_eq!(fits, expected, "{gpus:?} {is_served}");
        }
    }

    #[test]
    fn emptier_node_scores_higher() {
        assert_eq!(least_allocated(&pod(500), &node(1000, 1)), (50 + 100) / 2);
        assert!(
            least_allocated(&pod(500), &node(2000, 1)) > least_allocated(&pod(500), &node(1000, 1))
        );
    }
}
