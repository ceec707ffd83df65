//! In-place resize of pods: whether the node has the new resources, and the allocation until then.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::Quantity;
use api::k8s::api::core::v1 as core;
use sorting::CollectOrdered as _;

use crate::pods::capacity;
use crate::pods::pod::{Pod, PodContainer};
use crate::pods::pod_level;
use crate::pods::rejection::Rejection;
use crate::pods::resources::{MemoryControl, container_request};
use crate::resource_managers::infeasible_resize::InfeasibleResize;

/// A resize that the node does not do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeferredResize {
    /// Why no other resources make it possible.
    pub(crate) infeasible: Option<InfeasibleResize>,
    /// Message of the condition `PodResizePending`.
    pub(crate) message: String,
    /// The reason with which a new pod would be rejected, such as `OutOfcpu`.
    pub(crate) reason: String,
}

/// Reason of the condition for a resize that stays impossible (`PodReasonInfeasible`).
const INFEASIBLE: &str = "Infeasible";

impl DeferredResize {
    /// Reason of the condition `PodResizePending`.
    pub(crate) fn condition_reason(&self) -> &'static str {
        if self.infeasible.is_some() { INFEASIBLE } else { "Deferred" }
    }
}

/// Formats the message of a resize event, like upstream's `podResizeMessage`: resources of the
/// containers in JSON.
pub(crate) fn event_message<'a>(pod: &'a Pod, prefix: &str, error: &'a str) -> String {
    #[derive(serde::Serialize)]
    struct Container<'a> {
        name: &'a str,
        resources: Resources<'a>,
    }
    #[derive(serde::Serialize)]
    struct Resources<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        limits: Option<&'a Amounts>,
        #[serde(skip_serializing_if = "Option::is_none")]
        requests: Option<&'a Amounts>,
    }
    #[derive(serde::Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Summary<'a> {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        init_containers: Vec<Container<'a>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        containers: Vec<Container<'a>>,
        generation: i64,
        #[serde(skip_serializing_if = "str::is_empty")]
        error: &'a str,
    }
    let of = |container: &'a core::Container| {
        let resources = container.resources.as_ref();
        Container {
            name: &container.name,
            resources: Resources {
                limits: resources.and_then(|r| r.limits.as_ref()).filter(|l| !l.is_empty()),
                requests: resources.and_then(|r| r.requests.as_ref()).filter(|r| !r.is_empty()),
            },
        }
    };
    let spec = pod.spec();
    let summary = Summary {
        init_containers: spec.init_containers.iter().flatten().map(of).collect(),
        containers: spec.containers.iter().map(of).collect(),
        generation: pod.object.metadata.generation.unwrap_or_default(),
        error,
    };
    match serde_json::to_string(&summary) {
        Ok(summary) => format!("{prefix}: {summary}"),
        Err(_) => prefix.to_owned(),
    }
}

type Amounts = BTreeMap<String, api::k8s::apimachinery::pkg::api::resource::Quantity>;

type Resources = Option<core::ResourceRequirements>;

/// Resources by container name, and those of the whole pod under the empty name.
fn resources(pod: &Pod) -> BTreeMap<&str, &Resources> {
    let containers = pod.containers.iter().map(|m| (m.name(), &m.container.resources));
    containers.chain([("", &pod.spec().resources)]).collect_map()
}

/// Whether the resources of two pods differ.
pub(crate) fn resources_differ(a: &Pod, b: &Pod) -> bool {
    resources(a) != resources(b)
}

/// Replaces the resources of a pod where `of`, called with the container name, returns `Some`.
fn with_resources(pod: &Pod, of: impl Fn(&str) -> Option<Resources>) -> Pod {
    let mut object = pod.object.clone();
    if let Some(spec) = &mut object.spec {
        let containers = spec.init_containers.iter_mut().flatten().chain(&mut spec.containers);
        for container in containers {
            if let Some(resources) = of(&container.name) {
                container.resources = resources;
            }
        }
        if let Some(resources) = of("") {
            spec.resources = resources;
        }
    }
    // Name, uid and spec exist in the original.
    Pod::new(object, pod.origin).unwrap_or_else(|| pod.clone())
}

/// The pod with its allocated resources, from its status: a deferred resize stays deferred across a
/// restart of the agent.
pub(crate) fn with_allocated_resources(pod: &Pod) -> Pod {
    let status = pod.api_status();
    let statuses: Vec<&core::ContainerStatus> = status
        .into_iter()
        .flat_map(|s| s.container_statuses.iter().chain(&s.init_container_statuses).flatten())
        .collect();
    with_resources(pod, |name| {
        if name.is_empty() {
            return pod_level::restored(pod).map(Some);
        }
        let status = statuses.iter().find(|s| s.name == name)?;
        let allocated = status.allocated_resources.as_ref()?;
        let resources = pod.container(name)?.container.resources.as_ref();
        let wanted = resources.and_then(|r| r.requests.as_ref());
        let differs = ["cpu", "memory"].iter().any(|what| {
            let amount = |q: Option<&api::k8s::apimachinery::pkg::api::resource::Quantity>| {
                q.and_then(|q| Quantity::parse(&q.0).ok())
            };
            let requested = amount(wanted.and_then(|w| w.get(*what)));
            requested.is_some()
                && amount(allocated.get(*what)).is_some_and(|g| Some(g) != requested)
        });
        differs.then(|| status.resources.clone())
    })
}

/// Allocates resources: returns the pod with its new resources if they fit besides those of
/// `others` and the resize is not `infeasible`, else with its current ones.
pub(crate) fn allocate(
    current: &Pod,
    wanted: Arc<Pod>,
    others: impl FnOnce() -> Vec<Arc<Pod>>,
    allocatable: &BTreeMap<String, Quantity>,
    infeasible: Option<InfeasibleResize>,
) -> (Arc<Pod>, Option<DeferredResize>) {
    if resources(current) == resources(&wanted) {
        return (wanted, None);
    }
    let deferred = match infeasible {
        Some(why) => DeferredResize {
            infeasible,
            message: why.message().to_owned(),
            reason: INFEASIBLE.to_owned(),
        },
        None => match capacity::insufficient_resource(&wanted, &others(), allocatable) {
            None => return (wanted, None),
            Some(Rejection { reason, message }) => DeferredResize { infeasible, message, reason },
        },
    };
    let kept = resources(current);
    let pod = with_resources(&wanted, |name| kept.get(name).map(|r| (*r).clone()));
    (Arc::new(pod), Some(deferred))
}

/// Whether another request of memory would change the swap of a running container, which is not
/// possible (`disallowResizeForSwappableContainers`).
pub(crate) fn changes_swap(memory: &MemoryControl, current: &Pod, wanted: &Pod) -> bool {
    wanted.containers.iter().any(|member| {
        let Some(before) = current.container(member.name()) else { return false };
        let request = |m: &PodContainer| container_request(&m.container, "memory");
        request(before) != request(member)
            && !requires_restart(&before.container, "memory")
            && (memory.uses_swap(wanted, member) || memory.uses_swap(current, before))
    })
}

/// Whether a resize of a resource restarts the container.
pub(crate) fn requires_restart(container: &core::Container, resource: &str) -> bool {
    let mut policies = container.resize_policy.iter().flatten();
    policies.any(|p| p.resource_name == resource && p.restart_policy == "RestartContainer")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::pod::tests::pod;
    use serde_json::json;

    fn asking(cpu: &str) -> Pod {
        pod(json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": cpu}}}]}))
    }

    fn cpu(pod: &Pod) -> String {
        pod.containers[0].container.resources.as_ref().unwrap().requests.as_ref().unwrap()["cpu"]
            .0
            .clone()
    }

    #[test]
    fn a_resize_is_allocated_or_deferred() {
        let allocatable =
            [("cpu".to_owned(), Quantity::from_int(2)), ("pods".to_owned(), Quantity::from_int(9))]
                .into();
        let other = Arc::new(asking("1"));
        let (allocated, deferred) = allocate(
            &asking("500m"),
            Arc::new(asking("1")),
            || vec![Arc::clone(&other)],
            &allocatable,
            None,
        );
        assert_eq!((cpu(&allocated).as_str(), deferred), ("1", None));
        let (kept, deferred) = allocate(
            &asking("500m"),
            Arc::new(asking("1500m")),
            || vec![other],
            &allocatable,
            None,
        );
        assert_eq!(cpu(&kept), "500m");
        let message =
            "Node didn't have enough resource: cpu, requested: 1500, used: 1000, capacity: 2000";
        let deferred = deferred.unwrap();
        assert_eq!((deferred.message.as_str(), deferred.reason.as_str()), (message, "OutOfcpu"));
        assert_eq!(deferred.condition_reason(), "Deferred");
        let why = Some(InfeasibleResize::Cpu);
        let (current, wanted) = (asking("500m"), Arc::new(asking("1")));
        let (kept, infeasible) = allocate(&current, wanted, Vec::new, &allocatable, why);
        assert_eq!(cpu(&kept), "500m");
        assert_eq!(infeasible.unwrap().condition_reason(), "Infeasible");
    }

    /// The format of upstream's `TestPodResizeCompletedMsg` and similar tests.
    #[test]
    fn events_of_a_resize_show_the_resources() {
        let mut wanted = pod(json!({
            "initContainers": [{"name": "i"}],
            "containers": [{"name": "a", "resources": {
                "requests": {"memory": "1Mi", "cpu": "1"}, "limits": {"cpu": "2"}}}]}));
        wanted.object.metadata.generation = Some(4);
        assert_eq!(
            event_message(&wanted, "Pod resize started", ""),
            "Pod resize started: {\"initContainers\":[{\"name\":\"i\",\"resources\":{}}],\
             \"containers\":[{\"name\":\"a\",\"resources\":{\"limits\":{\"cpu\":\"2\"},\
             \"requests\":{\"cpu\":\"1\",\"memory\":\"1Mi\"}}}],\"generation\":4}"
        );
        let failed = event_message(&wanted, "Pod resize error", "no");
        assert!(failed.ends_with(",\"generation\":4,\"error\":\"no\"}"), "{failed}");
    }

    #[test]
    fn allocated_resources_are_restored_from_the_status() {
        let mut object = asking("1").object;
        let status = |allocated: &str| {
            let resources = json!({"requests": {"cpu": allocated}});
            serde_json::from_value(json!({"containerStatuses": [{"name": "a", "image": "",
                "imageID": "", "ready": true,
                "restartCount": 0, "allocatedResources": {"cpu": allocated},
                "resources": resources}]}))
            .unwrap()
        };
        object.status = Some(status("500m"));
        assert_eq!(
            cpu(&with_allocated_resources(
                &Pod::new(object.clone(), crate::pods::pod::PodOrigin::Api).unwrap()
            )),
            "500m"
        );
        // A different notation of the same quantity is no resize.
        object.status = Some(status("1000m"));
        assert_eq!(
            cpu(&with_allocated_resources(
                &Pod::new(object, crate::pods::pod::PodOrigin::Api).unwrap()
            )),
            "1"
        );
    }
}
