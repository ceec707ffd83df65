//! The Service of a Gateway: its load balancer leads to a port of each node, on which the node's
//! process serves the Gateway. The Service itself is the record of these ports.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use api::k8s::api::core::v1::{Service, ServicePort};
use api::k8s::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use super::types::{GROUP, GatewaySpec, Resource};

/// Label with the name of the Gateway (GEP-1762).
pub const NAME_LABEL: &str = "gateway.networking.k8s.io/gateway-name";
/// Label with the name of its class (GEP-1762).
pub const CLASS_LABEL: &str = "gateway.networking.k8s.io/gateway-class-name";
/// The ports of nodes on which Gateways are served; those below belong to other parts of a node.
pub const NODE_PORTS: std::ops::RangeInclusive<u16> = 10_500..=10_999;
/// Bytes of a label value and of the name of a Service.
const NAME_BYTES_MAX: usize = 63;

/// A text of at most 63 bytes: a longer one ends with a hash of the whole.
fn shortened(text: &str) -> String {
    if text.len() <= NAME_BYTES_MAX {
        return text.to_owned();
    }
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let hash = format!("{:016x}", hasher.finish());
    let start: String = text.chars().take(NAME_BYTES_MAX - hash.len() - 1).collect();
    format!("{}-{hash}", start.trim_end_matches(['-', '.']))
}

/// The name of the Service: `GATEWAY-CLASS` as GEP-1762 recommends it, with dashes for the dots
/// that a Service must not have, and a letter in front of a digit.
pub fn service_name(gateway: &str, class: &str) -> String {
    let name = format!("{gateway}-{class}").replace('.', "-");
    match name.starts_with(|first: char| first.is_ascii_digit()) {
        true => shortened(&format!("gateway-{name}")),
        false => shortened(&name),
    }
}

/// Whether a Service is that of a Gateway: it was made for this very object.
pub fn is_owned(service: &Service, uid: &str) -> bool {
    let owners = service.metadata.owner_references.iter().flatten();
    owners.into_iter().any(|owner| owner.controller == Some(true) && owner.uid == uid)
}

/// A port of a Service: the public port, whether it is UDP, and the port of nodes.
pub type NodePort = (u16, bool, u16);

/// The ports of a Service that lead to ports of nodes in [`NODE_PORTS`].
pub fn node_ports(service: &Service) -> Vec<NodePort> {
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
    let read = |port: &ServicePort| {
        let Some(IntOrString::Int(target)) = &port.target_port else { return None };
        let target = u16::try_from(*target).ok().filter(|target| NODE_PORTS.contains(target))?;
        let is_udp = port.protocol.as_deref() == Some("UDP");
        Some((u16::try_from(port.port).ok()?, is_udp, target))
    };
    ports.iter().filter_map(read).collect()
}

/// All ports of nodes are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the ports 10500 to 10999 of nodes are taken; delete Gateways or listeners")]
pub struct NoNodePort;

/// Ports of nodes for public ports. Those that the Service has are kept; `taken` are those of all
/// Services, to which new ones are added.
///
/// # Errors
/// No port is left.
pub fn allocate(
    wanted: &[(u16, bool)],
    known: &[NodePort],
    taken: &mut BTreeSet<u16>,
) -> Result<Vec<NodePort>, NoNodePort> {
    let mut ports = Vec::new();
    for (number, is_udp) in wanted {
        let kept = known.iter().find(|(known, udp, _)| (known, udp) == (number, is_udp));
        let target = match kept {
            Some((_, _, target)) => *target,
            None => NODE_PORTS.clone().find(|port| !taken.contains(port)).ok_or(NoNodePort)?,
        };
        taken.insert(target);
        ports.push((*number, *is_udp, target));
    }
    Ok(ports)
}

fn port_name((number, is_udp, _): &NodePort) -> String {
    format!("{}-{number}", if *is_udp { "udp" } else { "tcp" })
}

fn protocol(is_udp: bool) -> &'static str {
    if is_udp { "UDP" } else { "TCP" }
}

/// Ports of EndpointSlices.
pub fn endpoint_ports(ports: &[NodePort]) -> Value {
    let port = |port: &NodePort| {
        let (name, protocol) = (port_name(port), protocol(port.1));
        json!({"name": name, "port": port.2, "protocol": protocol})
    };
    ports.iter().map(port).collect()
}

/// `metadata.ownerReferences` of what belongs to a Gateway.
pub fn owners(gateway: &Resource<GatewaySpec>) -> Value {
    json!([{"apiVersion": format!("{GROUP}/v1"), "kind": "Gateway",
        "name": gateway.metadata.name, "uid": gateway.metadata.uid,
        "controller": true, "blockOwnerDeletion": true}])
}

/// The Service of a Gateway with these ports.
pub fn service(gateway: &Resource<GatewaySpec>, ports: &[NodePort]) -> Value {
    let (metadata, spec) = (&gateway.metadata, &gateway.spec);
    let infrastructure = spec.infrastructure.clone().unwrap_or_default();
    let mut labels = infrastructure.labels;
    labels.insert(NAME_LABEL.into(), shortened(&metadata.name));
    labels.insert(CLASS_LABEL.into(), shortened(&spec.gateway_class_name));
    let ports: Vec<Value> = ports
        .iter()
        .map(|port| {
            json!({"name": port_name(port), "port": port.0, "protocol": protocol(port.1),
                "targetPort": port.2})
        })
        .collect();
    let address = spec.addresses.iter().map(|a| a.value.as_str()).find(|value| !value.is_empty());
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service_name(&metadata.name, &spec.gateway_class_name),
            "namespace": metadata.namespace,
            "labels": labels,
            "annotations": infrastructure.annotations,
            "ownerReferences": owners(gateway),
        },
        "spec": {
            "type": "LoadBalancer",
            // The connection stays on its node, so that the client's address is kept.
            "externalTrafficPolicy": "Local",
            "internalTrafficPolicy": "Local",
            "ipFamilyPolicy": "PreferDualStack",
            "loadBalancerIP": address,
            "ports": ports,
        },
    })
}

/// The change that makes a Service what it should be; `None` if it is. Labels and annotations of
/// others stay.
pub fn change(current: &Value, wanted: &Value) -> Option<Value> {
    let differs = |path: &str| match (current.pointer(path), wanted.pointer(path)) {
        (Some(now), Some(wanted)) => now != wanted,
        (None, Some(wanted)) => !wanted.is_null() && *wanted != json!({}),
        (_, None) => false,
    };
    let lacks = |path: &str| {
        let map = |value: &Value| -> BTreeMap<String, Value> {
            let found = value.pointer(path).and_then(Value::as_object).cloned();
            found.unwrap_or_default().into_iter().collect()
        };
        let now = map(current);
        map(wanted).iter().any(|(key, value)| now.get(key) != Some(value))
    };
    let ports = |value: &Value| -> Vec<(Value, Value, Value, Value)> {
        let list = value.pointer("/spec/ports").and_then(Value::as_array).cloned();
        let field = |port: &Value, name: &str| port.get(name).cloned().unwrap_or_default();
        let ports = list.unwrap_or_default();
        let all = ports.iter().map(|port| {
            (
                field(port, "name"),
                field(port, "port"),
                field(port, "protocol"),
                field(port, "targetPort"),
            )
        });
        all.collect()
    };
    let is_equal = !lacks("/metadata/labels")
        && !lacks("/metadata/annotations")
        && ports(current) == ports(wanted)
        && !["type", "externalTrafficPolicy", "internalTrafficPolicy", "loadBalancerIP"]
            .iter()
            .any(|field| differs(&format!("/spec/{field}")));
    if is_equal {
        return None;
    }
    let mut patch = wanted.clone();
    // The families of an existing Service are its own matter.
    if let Some(spec) = patch.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("ipFamilyPolicy");
    }
    Some(patch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_a_service() {
        assert_eq!(service_name("web", "kube-lite"), "web-kube-lite");
        assert_eq!(service_name("1.web", "kube-lite"), "gateway-1-web-kube-lite");
        let long = "a".repeat(253);
        let name = service_name(&long, "kube-lite");
        assert_eq!(name.len(), 63);
        assert_ne!(name, service_name(&format!("{long}b"), "kube-lite"));
    }

    #[test]
    fn ports_of_nodes_stay_and_are_unique() {
        let mut taken = BTreeSet::from([10_500, 10_501]);
        let known = [(80, false, 10_501)];
        let wanted = [(53, true), (80, false), (443, false)];
        let ports = allocate(&wanted, &known, &mut taken).unwrap();
        assert_eq!(ports, [(53, true, 10_502), (80, false, 10_501), (443, false, 10_503)]);
        let mut all = NODE_PORTS.collect();
        assert_eq!(allocate(&[(81, false)], &[], &mut all), Err(NoNodePort));
    }

    fn gateway() -> Resource<GatewaySpec> {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "n", "uid": "u"},
            "spec": {"gatewayClassName": "kube-lite",
                "infrastructure": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
                "addresses": [{"value": ""}, {"value": "192.0.2.7"}]}}))
        .unwrap()
    }

    #[test]
    fn a_gateway_has_a_service_that_it_owns() {
        let made = service(&gateway(), &[(80, false, 10_500)]);
        assert_eq!(made["metadata"]["labels"]["team"], "a");
        assert_eq!(made["metadata"]["labels"][NAME_LABEL], "web");
        assert_eq!(made["spec"]["loadBalancerIP"], "192.0.2.7");
        let typed: Service = serde_json::from_value(made.clone()).unwrap();
        assert!(is_owned(&typed, "u") && !is_owned(&typed, "v"));
        assert_eq!(node_ports(&typed), [(80, false, 10_500)]);
    }

    #[test]
    fn a_service_is_changed_only_where_it_differs() {
        let wanted = service(&gateway(), &[(80, false, 10_500)]);
        let mut current = wanted.clone();
        current["metadata"]["labels"]["other"] = "x".into();
        current["spec"]["ports"][0]["nodePort"] = 30_000.into();
        assert_eq!(change(&current, &wanted), None);
        current["spec"]["ports"][0]["targetPort"] = 22.into();
        assert!(change(&current, &wanted).is_some());
        let more = service(&gateway(), &[(80, false, 10_500), (81, false, 10_501)]);
        assert!(change(&wanted, &more).is_some());
    }
}
