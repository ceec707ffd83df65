//! NodeResourcesFit: the node has the resources that the pod requests; prefers nodes by their
//! allocation, emptier ones by default.

use std::borrow::Cow;

use api::k8s::api::resource::v1::DeviceClass;

use crate::event::Event;
use crate::framework::{Plugin, Snapshot};
use crate::node_info::NodeInfo;
use crate::plugin_args::PluginArgs;
use crate::plugins::resource_scores::{
    MissingRequests, allocations, scored_devices, strategy_score,
};
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
        let is_ignored = |name: &str| is_ignored(snapshot.args, name);
        fit(snapshot.pod, node, &is_ignored, &is_served)
    }

    fn pre_score(_: &Snapshot<'_>, _: &[&NodeInfo]) -> Option<Self> {
        Some(Self)
    }

    fn score(&self, snapshot: &Snapshot<'_>, node: &NodeInfo) -> i64 {
        let resources = &snapshot.args.fit_resources;
        let devices = scored_devices(resources, snapshot);
        let missing = MissingRequests::Assumed;
        let allocations = allocations(resources, snapshot.pod, node, devices.as_ref(), missing);
        strategy_score(&snapshot.args.scoring_strategy, allocations)
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

/// Whether the configuration excludes an extended resource from the filter.
fn is_ignored(args: &PluginArgs, name: &str) -> bool {
    let group = || name.split('/').next().unwrap_or_default();
    is_extended(name)
        && (args.ignored_resources.contains(name) || args.ignored_resource_groups.contains(group()))
}

/// Whether the resource is an extended one (`IsExtendedResourceName`).
fn is_extended(name: &str) -> bool {
    let is_native = !name.contains('/') || name.contains("kubernetes.io/");
    !is_native && !name.starts_with("requests.")
}

/// Whether the node has what the pod requests. Resources that a device class serves are left to
/// DynamicResources, unless the node has them, too.
fn fit(
    pod: &PodInfo,
    node: &NodeInfo,
    is_ignored: &dyn Fn(&str) -> bool,
    is_served: &dyn Fn(&str) -> bool,
) -> Result<(), Rejection> {
    let mut reasons: Vec<Cow<'static, str>> = Vec::new();
    let mut unresolvable = false;
    if node.pods.len() as i64 + 1 > node.allocatable.pods {
        reasons.push("Too many pods".into());
    }
    let (wanted, all, used) = (&pod.requests, &node.allocatable, &node.requested);
    let mut check = |requested: i64, allocatable: i64, used: i64, reason: &'static str| {
        if requested > 0 && requested > allocatable - used {
            reasons.push(reason.into());
            unresolvable |= requested > allocatable;
        }
    };
    check(wanted.milli_cpu, all.milli_cpu, used.milli_cpu, "Insufficient cpu");
    check(wanted.memory, all.memory, used.memory, "Insufficient memory");
    check(
        wanted.ephemeral_storage,
        all.ephemeral_storage,
        used.ephemeral_storage,
        "Insufficient ephemeral-storage",
    );
    for (name, requested) in wanted.others.iter().filter(|(_, requested)| **requested > 0) {
        let allocatable = all.get(name);
        if *requested > allocatable - used.get(name) {
            if is_ignored(name) || allocatable <= 0 && is_served(name) {
                continue;
            }
            reasons.push(format!("Insufficient {name}").into());
            unresolvable |= *requested > allocatable;
        }
    }
    if reasons.is_empty() {
        Ok(())
    } else {
        Err(Rejection { plugin: "", reasons, unresolvable, is_error: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin_args::ScoringStrategy;
    use crate::pod_requests::CpuAndMemory;
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
            scored: CpuAndMemory { milli_cpu: cpu, memory: 0 },
            ..PodInfo::default()
        }
    }

    #[test]
    fn rejection_names_every_insufficient_resource() {
        let rejection = fit(&pod(500), &node(400, 0), &|_| false, &|_| false).unwrap_err();
        assert_eq!(rejection.reasons, ["Too many pods", "Insufficient cpu"]);
        assert!(rejection.unresolvable);
        assert!(fit(&pod(400), &node(400, 1), &|_| false, &|_| false).is_ok());
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
            let serves = |served: &str| is_served && served == name;
            let fits = fit(&wants, &node, &|_| false, &serves).is_ok();
            let is_ignored = |ignored: &str| ignored == name;
            assert!(fit(&wants, &node, &is_ignored, &|_| false).is_ok(), "{gpus:?}");
            assert_eq!(fits, expected, "{gpus:?} {is_served}");
        }
    }

    #[test]
    fn emptier_node_scores_higher() {
        let score = |node: &NodeInfo| {
            let resources = PluginArgs::default().fit_resources;
            let pod = pod(500);
            let all = allocations(&resources, &pod, node, None, MissingRequests::Assumed);
            strategy_score(&ScoringStrategy::LeastAllocated, all)
        };
        assert_eq!(score(&node(1000, 1)), (50 + 100) / 2);
        assert!(score(&node(2000, 1)) > score(&node(1000, 1)));
    }

    #[test]
    fn extended_resources_have_a_domain_that_is_not_kubernetes() {
        for (name, extended) in [
            ("cpu", false),
            ("hugepages-2Mi", false),
            ("kubernetes.io/batch-cpu", false),
            ("example.com/gpu", true),
            ("requests.example.com/gpu", false),
        ] {
            assert_eq!(is_extended(name), extended, "{name}");
        }
    }
}
