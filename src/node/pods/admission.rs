//! Admission of the node: a pod that is bound to this node and cannot run here fails with a reason,
//! as with the kubelet.

pub(crate) mod supported_fields;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::k8s::api::core::v1 as core;

use crate::context::{NodeCaches, NodeIdentity};
use crate::eviction::pressure::PressureConditions;
use crate::eviction::ranking;
use crate::pods::capacity;
use crate::pods::cri_config;
use crate::pods::pod::{ContainerRole, Pod};
use crate::pods::rejection::Rejection;
use crate::pods::resources;
use crate::pods::resources::Qos;

/// Returns reason and message of the rejection; `None` admits the pod.
pub(crate) fn check(
    identity: &NodeIdentity,
    caches: &NodeCaches,
    pod: &Pod,
    others: &[Arc<Pod>],
) -> Option<Rejection> {
    let allocatable = caches.allocatable.load();
    pressure(caches.pressure.current(), pod)
        .or_else(|| supported_fields::unsupported_field(pod, identity.features))
        .or_else(|| sysctls(pod, &identity.config.allowed_sysctls))
        .or_else(|| capacity::insufficient_resource(pod, others, &allocatable))
        .or_else(|| host_ports(pod, others))
        .or_else(|| selector(&identity.config.node_name, &caches.labels.load(), pod))
}

/// Under pressure only critical pods start; under memory pressure alone also pods that request
/// memory.
fn pressure(conditions: PressureConditions, pod: &Pod) -> Option<Rejection> {
    const TAINT: &str = "node.kubernetes.io/memory-pressure";
    let names = conditions.names();
    if names.is_empty() || pod.is_critical() {
        return None;
    }
    let tolerates = pod.spec().tolerations.iter().flatten().any(|t| {
        let key = t.key.as_deref().unwrap_or_default();
        let exists = t.operator.as_deref() == Some("Exists");
        let effect = t.effect.as_deref().unwrap_or_default();
        matches!(effect, "" | "NoSchedule")
            && (key == TAINT && (exists || t.value.as_deref().is_none_or(str::is_empty))
                || key.is_empty() && exists)
    });
    let only_memory = conditions == PressureConditions { memory: true, ..Default::default() };
    if only_memory && (resources::qos(pod) != Qos::BestEffort || tolerates) {
        return None;
    }
    let message = format!("The node had condition: [{}]. ", names.join(" "));
    Some(Rejection::new(ranking::REASON, message))
}

fn sysctls(pod: &Pod, allowed: &[String]) -> Option<Rejection> {
    let error = cri_config::sysctls::forbidden(pod, allowed)?;
    Some(Rejection::new("SysctlForbidden", error.to_string()))
}

fn ports(pod: &Pod) -> Vec<(String, String, i32)> {
    pod.containers
        .iter()
        .filter(|m| matches!(m.role, ContainerRole::Main | ContainerRole::Sidecar))
        .flat_map(|m| m.container.ports.iter().flatten())
        .filter_map(|p| {
            let port = p.host_port.filter(|p| *p > 0)?;
            let ip = p
                .host_ip
                .clone()
                .filter(|ip| !ip.is_empty())
                .unwrap_or_else(|| "0.0.0.0".to_owned());
            Some((ip, p.protocol.clone().unwrap_or_else(|| "TCP".to_owned()), port))
        })
        .collect()
}

/// Whether one of the others uses a host port of the pod.
pub(crate) fn host_ports_clash(pod: &Pod, others: &[Arc<Pod>]) -> bool {
    let wanted = ports(pod);
    let any = |ip: &str| matches!(ip, "0.0.0.0" | "::");
    others.iter().flat_map(|p| ports(p)).any(|(ip, protocol, port)| {
        wanted
            .iter()
            .any(|w| w.1 == protocol && w.2 == port && (w.0 == ip || any(&w.0) || any(&ip)))
    })
}

fn host_ports(pod: &Pod, others: &[Arc<Pod>]) -> Option<Rejection> {
    if host_ports_clash(pod, others) {
        return Some(Rejection::new(
            "NodePorts",
            "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
        ));
    }
    None
}

/// Reason of a pod whose selectors do not match the node's labels; the cached labels may be older
/// than the pod.
pub(crate) const NODE_AFFINITY: &str = "NodeAffinity";

/// Matches `spec.nodeSelector` and the required node affinity against the cached labels of the
/// Node.
fn selector(node_name: &str, labels: &BTreeMap<String, String>, pod: &Pod) -> Option<Rejection> {
    if labels.is_empty() || fits(pod, labels, node_name) {
        return None;
    }
    Some(Rejection::new(
        NODE_AFFINITY,
        "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
    ))
}

fn fits(pod: &Pod, labels: &BTreeMap<String, String>, name: &str) -> bool {
    let spec = pod.spec();
    if spec.node_selector.iter().flatten().any(|(k, v)| labels.get(k) != Some(v)) {
        return false;
    }
    let affinity = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let required =
        affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    let Some(required) = required else { return true };
    let field = |key: &str| (key == "metadata.name").then_some(name);
    required.node_selector_terms.iter().any(|term| {
        let (expressions, fields) = (&term.match_expressions, &term.match_fields);
        let empty = |list: &Option<Vec<_>>| list.as_ref().is_none_or(Vec::is_empty);
        !(empty(expressions) && empty(fields))
            && expressions
                .iter()
                .flatten()
                .all(|e| holds(e, labels.get(&e.key).map(String::as_str)))
            && fields.iter().flatten().all(|e| holds(e, field(&e.key)))
    })
}

/// Whether a value, or its absence, meets a requirement.
fn holds(requirement: &core::NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = || value.is_some_and(|v| values.iter().any(|w| w == v));
    let number = |text: Option<&str>| text.and_then(|t| t.parse::<i64>().ok());
    let pair = number(value).zip(number(values.first().map(String::as_str)));
    match requirement.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => pair.is_some_and(|(have, than)| have > than),
        "Lt" => pair.is_some_and(|(have, than)| have < than),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::pod::tests::pod;
    use serde_json::json;

    #[test]
    fn selectors_and_required_affinity_match_as_in_the_scheduler() {
        let labels =
            BTreeMap::from([("zone".to_owned(), "a".to_owned()), ("n".into(), "5".into())]);
        let fits = |spec| super::fits(&pod(spec), &labels, "n1");
        let c = json!([{"name": "a"}]);
        assert!(fits(json!({"containers": c, "nodeSelector": {"zone": "a"}})));
        assert!(!fits(json!({"containers": c, "nodeSelector": {"zone": "b"}})));
        let terms = |terms| {
            fits(json!({"containers": c, "affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}))
        };
        let expression = |key: &str, operator: &str, values: serde_json::Value| {
            json!([{"matchExpressions": [{"key": key,
                "operator": operator, "values": values}]}])
        };
        assert!(terms(expression("zone", "In", json!(["b", "a"]))));
        assert!(!terms(expression("zone", "NotIn", json!(["a"]))));
        assert!(terms(expression("disk", "NotIn", json!(["ssd"]))));
        assert!(
            terms(expression("n", "Gt", json!(["4"])))
                && !terms(expression("n", "Lt", json!(["5"])))
        );
        assert!(terms(expression("disk", "DoesNotExist", json!([]))));
        assert!(!terms(json!([{}])), "an empty term selects nothing");
        let name = |name: &str| {
            json!([{"matchFields": [{"key": "metadata.name", "operator": "In",
            "values": [name]}]}])
        };
        assert!(terms(name("n1")) && !terms(name("n2")));
    }

    #[test]
    fn under_pressure_only_critical_and_undemanding_pods_start() {
        let effort = json!([{"name": "a", "resources": {"requests": {"memory": "1Mi"}}}]);
        let best = json!({"containers": [{"name": "a"}]});
        let reason = |[memory, disk, pid]: [bool; 3], spec| {
            let conditions = PressureConditions { memory, disk, pid };
            pressure(conditions, &pod(spec)).map(|r| format!("{}: {}", r.reason, r.message))
        };
        let only_memory = [true, false, false];
        assert_eq!(reason([false; 3], best.clone()), None);
        assert_eq!(
            reason(only_memory, best.clone()).unwrap(),
            "Evicted: The node had condition: [MemoryPressure]. "
        );
        assert_eq!(reason(only_memory, json!({"containers": effort})), None);
        assert_eq!(
            reason([true, true, false], json!({"containers": effort})).unwrap(),
            "Evicted: The node had condition: [MemoryPressure DiskPressure]. "
        );
        assert_eq!(
            reason([false, false, true], json!({"containers": effort})).unwrap(),
            "Evicted: The node had condition: [PIDPressure]. "
        );
        assert_eq!(
            reason([true; 3], json!({"containers": effort, "priority": 2_000_000_000})),
            None
        );
        let tolerant = json!({"containers": [{"name": "a"}],
            "tolerations": [{"key": "node.kubernetes.io/memory-pressure", "operator": "Exists"}]});
        assert_eq!(reason(only_memory, tolerant), None);
    }
}
