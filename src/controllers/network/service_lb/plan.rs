//! Which nodes announce which Service: the decision of ServiceLB, without reads and writes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use api::k8s::api::core::v1::{
    LoadBalancerIngress, LoadBalancerStatus, PortStatus, Service, ServiceSpec,
};
use api::k8s::apimachinery::pkg::apis::meta::v1::Condition;
use sorting::{CollectOrdered as _, CompactSort as _};

use super::pool::{ADDRESS_ERROR, Allocation};
use super::records::{Balanced, NodeRecord, PodRecord, ServiceRecord};
use crate::framework::context::{PortKey, ReservedPort};
use crate::framework::keyed::Key;

/// Type of the condition about ports that cannot be announced (`LoadBalancerPortsError`).
pub(super) const PORTS_ERROR: &str = "LoadBalancerPortsError";
/// Its reason.
const PORT_CONFLICT: &str = "PortConflict";
/// Nodes that a message names at most; it counts the others.
const NODES_NAMED_MAX: usize = 8;

/// Everything that the decision depends on.
#[derive(Debug, Default)]
pub(super) struct Cluster {
    pub(super) services: BTreeMap<Key, ServiceRecord>,
    pub(super) nodes: BTreeMap<String, NodeRecord>,
    /// Pods with host ports.
    pub(super) pods: BTreeMap<Key, PodRecord>,
}

/// The nodes of one Service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Assignment {
    /// Nodes that announce the Service while they are ready.
    pub(super) nodes: BTreeSet<String>,
    /// Nodes that cannot, by port and what has it.
    pub(super) conflicts: BTreeMap<(PortKey, String), BTreeSet<String>>,
}

impl Assignment {
    /// The conflicts as a sentence; `None` without one.
    pub(super) fn conflict_message(&self) -> Option<String> {
        let one = |((port, holder), nodes): (&(PortKey, String), &BTreeSet<String>)| {
            let named: Vec<&str> = nodes.iter().take(NODES_NAMED_MAX).map(String::as_str).collect();
            let others = nodes.len() - named.len();
            let named = named.join(", ");
            match others {
                0 => format!("port {port} is in use by {holder} on {named}"),
                n => format!("port {port} is in use by {holder} on {named} and {n} more nodes"),
            }
        };
        let all: Vec<String> = self.conflicts.iter().map(one).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

/// The nodes that a Service selects by labels, as the DaemonSets of k3s's ServiceLB do: those
/// enabled if any node is labeled, and those of the Service's pool.
fn selected<'a>(
    nodes: &'a BTreeMap<String, NodeRecord>,
    service: &'a Balanced,
) -> impl Iterator<Item = (&'a String, &'a NodeRecord)> {
    let is_restricted = nodes.values().any(|node| node.enabled.is_some());
    nodes.iter().filter(move |(_, node)| {
        let is_enabled = !is_restricted || node.enabled.as_deref() == Some("true");
        let in_pool = service.pool.as_ref().is_none_or(|pool| node.pools.contains(pool));
        is_enabled && in_pool && !node.is_excluded
    })
}

/// Claims on ports of nodes.
#[derive(Default)]
struct Claims<'a> {
    /// What has a port on every node, and since when.
    everywhere: HashMap<PortKey, Vec<(&'a str, &'a Key)>>,
    /// Pods with host ports, by node and port.
    pods: HashMap<(&'a str, PortKey), Vec<(&'a str, &'a Key)>>,
    /// Services that announce a port on a node.
    granted: HashMap<(&'a str, PortKey), &'a Key>,
}

impl<'a> Claims<'a> {
    fn of(cluster: &'a Cluster) -> Self {
        let mut claims = Self::default();
        for (key, service) in &cluster.services {
            for port in &service.node_ports {
                claims.everywhere.entry(*port).or_default().push((&service.age.0, key));
            }
        }
        for (key, pod) in &cluster.pods {
            for port in &pod.ports {
                let place = (pod.node.as_str(), *port);
                claims.pods.entry(place).or_default().push((&pod.created, key));
            }
        }
        claims
    }

    /// What has the port on the node before the Service `key`, which was created at `created`.
    fn holder(
        &self,
        reserved: &[ReservedPort],
        (name, node): (&str, &NodeRecord),
        port: PortKey,
        (key, created): (&Key, &str),
    ) -> Option<String> {
        if let Some(own) = reserved.iter().find(|own| own.port == port) {
            return Some(format!("{} of kube-lite", own.purpose));
        }
        if port.is_tcp() && node.kubelet_port == Some(port.number) {
            return Some("the kubelet API of kube-lite".into());
        }
        if let Some((namespace, name)) = self.granted.get(&(name, port)) {
            return Some(format!("Service {namespace}/{name}"));
        }
        let is_older = |(since, _): &&(&str, &Key)| *since < created;
        let others = self.everywhere.get(&port).into_iter().flatten();
        let other = others.filter(|(_, other)| *other != key).find(is_older);
        if let Some((_, (namespace, name))) = other {
            return Some(format!("a node port of Service {namespace}/{name}"));
        }
        let pod = self.pods.get(&(name, port)).into_iter().flatten().find(is_older);
        pod.map(|(_, (namespace, name))| format!("a host port of Pod {namespace}/{name}"))
    }
}

/// Assigns nodes to all Services but those with virtual addresses, which share no port. A node
/// announces a Service if all its ports are free there; of several Services the oldest has a port.
pub(super) fn assign(cluster: &Cluster, reserved: &[ReservedPort]) -> BTreeMap<Key, Assignment> {
    let mut claims = Claims::of(cluster);
    let mut services: Vec<(&Key, &ServiceRecord, &Balanced)> = cluster
        .services
        .iter()
        .filter_map(|(key, service)| Some((key, service, service.balanced.as_ref()?)))
        .filter(|(_, _, balanced)| balanced.pool_request.is_none())
        .collect();
    services.compact_sort_by_key(|(_, service, _)| &service.age);
    let mut assignments = BTreeMap::new();
    for (key, service, balanced) in services {
        let mut assignment = Assignment::default();
        for (name, node) in selected(&cluster.nodes, balanced) {
            let mut is_free = true;
            for port in &balanced.ports {
                let place = (name.as_str(), node);
                let holder = claims.holder(reserved, place, *port, (key, &service.age.0));
                if let Some(holder) = holder {
                    is_free = false;
                    let nodes = assignment.conflicts.entry((*port, holder)).or_default();
                    nodes.insert(name.clone());
                }
            }
            if is_free {
                claims
                    .granted
                    .extend(balanced.ports.iter().map(|port| ((name.as_str(), *port), key)));
                assignment.nodes.insert(name.clone());
            }
        }
        assignments.insert(key.clone(), assignment);
    }
    assignments
}

/// The addresses of these nodes for a Service: external ones if any node has one, else internal
/// ones; in the order of the Service's families, sorted as text within each (k3s's `podIPs` and
/// `filterByIPFamily`).
pub(super) fn addresses(nodes: &[&NodeRecord], spec: &ServiceSpec) -> Vec<IpAddr> {
    let external: BTreeSet<IpAddr> = nodes.iter().flat_map(|n| &n.external).copied().collect_set();
    let all = if external.is_empty() {
        nodes.iter().flat_map(|n| &n.internal).copied().collect()
    } else {
        external
    };
    let mut out = Vec::new();
    for family in spec.ip_families.iter().flatten() {
        let mut of_family: Vec<IpAddr> =
            all.iter().filter(|ip| ip.is_ipv6() == (family == "IPv6")).copied().collect();
        of_family.compact_sort_by_key(ToString::to_string);
        out.append(&mut of_family);
    }
    out
}

/// The status of a Service that has these addresses.
pub(super) fn load_balancer_status(addresses: &[IpAddr], spec: &ServiceSpec) -> LoadBalancerStatus {
    let ports: Vec<PortStatus> = spec
        .ports
        .iter()
        .flatten()
        .map(|port| PortStatus {
            port: port.port,
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".into()),
            error: None,
        })
        .collect();
    let ingress = |ip: &IpAddr| LoadBalancerIngress {
        ip: Some(ip.to_string()),
        ip_mode: Some("VIP".into()),
        ports: Some(ports.clone()),
        ..LoadBalancerIngress::default()
    };
    let ingress: Vec<LoadBalancerIngress> = addresses.iter().map(ingress).collect();
    LoadBalancerStatus { ingress: (!ingress.is_empty()).then_some(ingress) }
}

/// A condition of a Service that ServiceLB sets while it cannot do all that the Service asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ErrorCondition {
    pub(super) kind: &'static str,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// The condition about conflicts; `None` without conflict.
pub(super) fn conflict_condition(assignment: &Assignment) -> Option<ErrorCondition> {
    let message = assignment.conflict_message()?;
    Some(ErrorCondition { kind: PORTS_ERROR, reason: PORT_CONFLICT, message })
}

/// The condition about a missing virtual address; `None` if none is missing.
pub(super) fn address_condition(allocation: &Allocation) -> Option<ErrorCondition> {
    let error = allocation.error.as_ref()?;
    Some(ErrorCondition { kind: ADDRESS_ERROR, reason: error.reason(), message: error.to_string() })
}

/// Whether ServiceLB sets conditions of this type.
pub(super) fn is_own_condition(condition: &Condition) -> bool {
    [PORTS_ERROR, ADDRESS_ERROR].contains(&condition.type_.as_str())
}

/// Whether the conditions of a Service already have this one, and no other one of ServiceLB.
pub(super) fn condition_is_current(
    conditions: &[Condition],
    wanted: Option<&ErrorCondition>,
) -> bool {
    let mut current = conditions.iter().filter(|c| is_own_condition(c));
    let is_wanted = match (current.next(), wanted) {
        (None, None) => true,
        (Some(current), Some(wanted)) => {
            current.status == "True"
                && current.type_ == wanted.kind
                && current.reason == wanted.reason
                && current.message == wanted.message
        }
        _ => false,
    };
    is_wanted && current.next().is_none()
}

/// Addresses of a status for events, in the form of Go's `%v`: `[192.0.2.1 192.0.2.2]`.
pub(super) fn shown(status: Option<&LoadBalancerStatus>) -> String {
    let ingress = status.and_then(|s| s.ingress.as_deref()).unwrap_or_default();
    let text = |i: &LoadBalancerIngress| i.ip.clone().or_else(|| i.hostname.clone());
    let all: Vec<String> = ingress.iter().filter_map(text).collect();
    format!("[{}]", all.join(" "))
}

/// Whether the status holds these addresses and ports.
pub(super) fn status_is_current(service: &Service, wanted: &LoadBalancerStatus) -> bool {
    let current = service.status.as_ref().and_then(|s| s.load_balancer.as_ref());
    let current = current.and_then(|l| l.ingress.as_deref()).unwrap_or_default();
    current == wanted.ingress.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests;
