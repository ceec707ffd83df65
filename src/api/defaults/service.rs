//! Defaults of Services and Endpoints.

use serde_json::{Value, json};

use crate::value::{
    at, default_str, default_to, ensure_object, get, has, int_at, is_empty, items_mut, remove, set,
    str_at,
};

/// Default duration of `ClientIP` session affinity in seconds.
const AFFINITY_SECONDS: i64 = 10_800;

pub(super) fn service(object: &mut Value) {
    let Some(spec) = ensure_object(object, "spec") else { return };
    default_str(spec, "sessionAffinity", "None");
    match str_at(spec, "sessionAffinity") {
        "None" => {
            remove(spec, "sessionAffinityConfig");
        }
        "ClientIP"
            if at(spec, &["sessionAffinityConfig", "clientIP", "timeoutSeconds"]).is_null() =>
        {
            set(
                spec,
                "sessionAffinityConfig",
                json!({"clientIP": {"timeoutSeconds": AFFINITY_SECONDS}}),
            );
        }
        _ => {}
    }
    default_str(spec, "type", "ClusterIP");
    let kind = str_at(spec, "type").to_owned();
    for port in items_mut(spec, "ports") {
        default_str(port, "protocol", "TCP");
        let target = get(port, "targetPort");
        if target.is_null() || *target == json!(0) || *target == json!("") {
            set(port, "targetPort", int_at(port, "port").unwrap_or_default());
        }
    }
    let external = matches!(kind.as_str(), "LoadBalancer" | "NodePort")
        || (kind == "ClusterIP" && !is_empty(spec, "externalIPs"));
    if external {
        default_str(spec, "externalTrafficPolicy", "Cluster");
    }
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer" | "ClusterIP") {
        default_to(spec, "internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        default_to(spec, "allocateLoadBalancerNodePorts", true);
        let ingress =
            object.pointer_mut("/status/loadBalancer/ingress").and_then(Value::as_array_mut);
        for point in ingress.into_iter().flatten() {
            if !str_at(point, "ip").is_empty() && !has(point, "ipMode") {
                set(point, "ipMode", "VIP");
            }
        }
    }
}

pub(super) fn endpoints(object: &mut Value) {
    for subset in items_mut(object, "subsets") {
        for port in items_mut(subset, "ports") {
            default_str(port, "protocol", "TCP");
        }
    }
}
