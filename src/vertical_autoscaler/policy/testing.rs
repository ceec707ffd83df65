//! Objects for tests.

use api::value::get;
use serde_json::{Value, json};

use super::amounts::{Amounts, read};
use super::pod::PodView;
use crate::types::VerticalPodAutoscaler;

/// An autoscaler `vpa` in namespace `default` with this spec.
pub(crate) fn autoscaler(spec: Value) -> VerticalPodAutoscaler {
    recommending(spec, Value::Null)
}

/// An autoscaler with this spec and these container recommendations; null is none.
pub(crate) fn recommending(spec: Value, containers: Value) -> VerticalPodAutoscaler {
    let status = match containers {
        Value::Null => json!({}),
        containers => json!({"recommendation": {"containerRecommendations": containers}}),
    };
    let metadata = json!({"name": "vpa", "namespace": "default", "uid": "vpa"});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
}

/// Container policies as the spec of an autoscaler.
pub(crate) fn policies(policies: Value) -> Value {
    json!({"resourcePolicy": {"containerPolicies": policies}})
}

/// A pod.
pub(crate) fn pod(pod: Value) -> PodView {
    PodView::read(&pod)
}

/// A pod with these containers and statuses of containers.
pub(crate) fn pod_of(containers: Value, statuses: Value) -> PodView {
    pod(json!({"spec": {"containers": containers}, "status": {"containerStatuses": statuses}}))
}

/// Amounts.
pub(crate) fn amounts(list: Value) -> Amounts {
    read(&json!({"list": list}), "list").unwrap_or_default()
}

/// Requests and limits of CPU and memory; an empty text leaves an amount out.
pub(crate) fn resources(requests: [&str; 2], limits: [&str; 2]) -> Value {
    let list = |[cpu, memory]: [&str; 2]| {
        let pairs = [("cpu", cpu), ("memory", memory)].into_iter().filter(|(_, q)| !q.is_empty());
        pairs.map(|(name, q)| (name.to_owned(), Value::from(q))).collect::<serde_json::Map<_, _>>()
    };
    let (requests, limits) = (list(requests), list(limits));
    let mut all = json!({});
    for (field, list) in [("requests", requests), ("limits", limits)] {
        if !list.is_empty() {
            all[field] = Value::Object(list);
        }
    }
    all
}

/// A container with requests and limits of CPU and memory.
pub(crate) fn container(name: &str, requests: [&str; 2], limits: [&str; 2]) -> Value {
    json!({"name": name, "resources": resources(requests, limits)})
}

/// The texts of amounts of CPU and memory, empty if absent.
pub(crate) fn texts(amounts: &Amounts) -> [String; 2] {
    let of = |name: &str| amounts.get(name).map(ToString::to_string).unwrap_or_default();
    [of("cpu"), of("memory")]
}

/// The field of an object, for tests of lists.
pub(crate) fn field(value: &Value, name: &str) -> Value {
    get(value, name).clone()
}
