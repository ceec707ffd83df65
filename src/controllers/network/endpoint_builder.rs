//! What a Service's pods offer: shared by EndpointSlices and Endpoints. Pure.

use api::k8s::api::core::v1::{Pod, ServicePort};
use api::k8s::apimachinery::pkg::util::intstr::IntOrString;

use crate::framework::pods;

/// The port number that a pod offers for a service port; `None` when it has no port of that name.
pub(crate) fn target_port(port: &ServicePort, pod: &Pod) -> Option<i32> {
    match &port.target_port {
        None => Some(port.port),
        Some(IntOrString::Int(0)) => Some(port.port),
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) => {
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let spec = pod.spec.as_ref()?;
            let sidecars = spec
                .init_containers
                .iter()
                .flatten()
                .filter(|c| c.restart_policy.as_deref() == Some("Always"));
            let ports =
                spec.containers.iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten());
            ports
                .into_iter()
                .find(|p| {
                    p.name.as_deref() == Some(name)
                        && p.protocol.as_deref().unwrap_or("TCP") == protocol
                })
                .map(|p| p.container_port)
        }
    }
}

/// Addresses of the pod in one family (`IPv4` or `IPv6`).
pub(crate) fn addresses(pod: &Pod, family: &str) -> Vec<String> {
    let status = pod.status.as_ref();
    let mut all: Vec<&str> = status
        .and_then(|s| s.pod_ips.as_deref())
        .unwrap_or_default()
        .iter()
        .map(|ip| ip.ip.as_str())
        .collect();
    if all.is_empty() {
        all.extend(status.and_then(|s| s.pod_ip.as_deref()));
    }
    all.retain(|ip| !ip.is_empty() && ip.contains(':') == (family == "IPv6"));
    all.into_iter().take(1).map(str::to_owned).collect()
}

/// The pod belongs into a slice: it has not finished and, unless `with_terminating`, is not being
/// deleted.
pub(crate) fn appears(pod: &Pod, with_terminating: bool) -> bool {
    !pods::is_terminal(pod) && (with_terminating || pod.metadata.deletion_timestamp.is_none())
}

/// Hostname under which a headless service names the pod.
pub(crate) fn hostname(pod: &Pod, service: &str) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    (spec.subdomain.as_deref() == Some(service))
        .then(|| spec.hostname.clone())
        .flatten()
        .filter(|h| !h.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_named_port_is_found_by_name_and_protocol() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {},
            "spec": {"containers": [{"name": "c", "ports": [
            {"name": "dns", "containerPort": 53, "protocol": "UDP"},
            {"name": "dns-tcp", "containerPort": 54}]}]}}))
        .unwrap();
        let port = |target: serde_json::Value, protocol: &str| -> ServicePort {
            serde_json::from_value(json!({"port": 80, "targetPort": target, "protocol": protocol}))
                .unwrap()
        };
        assert_eq!(target_port(&port(json!("dns"), "UDP"), &pod), Some(53));
        assert_eq!(target_port(&port(json!("dns"), "TCP"), &pod), None);
        assert_eq!(target_port(&port(json!(8080), "TCP"), &pod), Some(8080));
        assert_eq!(target_port(&port(json!(null), "TCP"), &pod), Some(80));
    }
}
