//! What ServiceLB keeps of Services, Nodes and Pods: the few fields that decide which node
//! announces which Service.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::Object;
use serde::Deserialize;
use settings::Family;

use super::pool::AddressRequest;
use crate::framework::context::{PortKey, Protocol};

/// Finalizer of load balancers (`LoadBalancerCleanupFinalizer`).
pub(super) const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
/// If any node has this label, only nodes with the value `true` announce Services.
const ENABLE_LABEL: &str = "svccontroller.k3s.cattle.io/enablelb";
/// Pool of a Service, and the pool of a node.
const POOL_LABEL: &str = "svccontroller.k3s.cattle.io/lbpool";
/// Prefix of the labels of a node in several pools: `PREFIX/POOL=true`.
const POOL_PREFIX: &str = "lbpool.svccontroller.k3s.cattle.io/";
/// Nodes with this label announce no Service, whatever its value (`LabelNodeExcludeBalancers`).
const EXCLUDE_LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// A Service with the value `nodes` has the addresses of nodes although there is a pool.
const ADDRESSES_ANNOTATION: &str = "kube-lite.io/load-balancer-addresses";
/// The virtual addresses that a Service asks for, separated by commas.
const IPS_ANNOTATION: &str = "kube-lite.io/load-balancer-ips";
/// Label of the pods of k3s's own ServiceLB, which a copied datastore may contain.
const K3S_POD_LABEL: &str = "svccontroller.k3s.cattle.io/svcname";

/// When an object was created, and its name: the order in which claims are granted.
pub(super) type Age = (String, String);

/// A Service that ServiceLB handles, or whose node ports others must leave free.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServiceRecord {
    pub(super) age: Age,
    /// Ports that the Service has on every node: node ports and its health check.
    pub(super) node_ports: Vec<PortKey>,
    /// `None` for all but Services of type LoadBalancer without class.
    pub(super) balanced: Option<Balanced>,
    /// The Service has the finalizer and wants no load balancer any more.
    pub(super) needs_cleanup: bool,
}

/// The wishes of a Service that ServiceLB handles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Balanced {
    pub(super) ports: Vec<PortKey>,
    /// The pool, if the Service names one.
    pub(super) pool: Option<String>,
    /// `externalTrafficPolicy: Local`: only nodes with ready endpoints.
    pub(super) is_local: bool,
    /// Its virtual addresses; `None` without a pool, or if it opts out of the pool.
    pub(super) pool_request: Option<AddressRequest>,
}

/// A node as far as ServiceLB is concerned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct NodeRecord {
    /// The condition `Ready` is `True`.
    pub(super) is_ready: bool,
    /// Value of the label `enablelb`.
    pub(super) enabled: Option<String>,
    /// Its pools.
    pub(super) pools: BTreeSet<String>,
    /// Excluded from all load balancers.
    pub(super) is_excluded: bool,
    pub(super) internal: Vec<IpAddr>,
    pub(super) external: Vec<IpAddr>,
    /// Port of its kubelet API.
    pub(super) kubelet_port: Option<u16>,
}

/// The host ports of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodRecord {
    pub(super) created: String,
    pub(super) node: String,
    pub(super) ports: BTreeSet<PortKey>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(borrow)]
    creation_timestamp: Cow<'a, str>,
    #[serde(borrow)]
    deletion_timestamp: Option<Cow<'a, str>>,
    #[serde(borrow)]
    finalizers: Vec<Cow<'a, str>>,
    #[serde(borrow)]
    annotations: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ServiceFields<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
    #[serde(borrow)]
    spec: ServiceSpec<'a>,
    #[serde(borrow)]
    status: ServiceStatus<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct ServiceSpec<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    load_balancer_class: Option<Cow<'a, str>>,
    #[serde(borrow)]
    external_traffic_policy: Cow<'a, str>,
    health_check_node_port: u16,
    #[serde(borrow)]
    ports: Vec<ServicePort<'a>>,
    #[serde(rename = "loadBalancerIP", borrow)]
    load_balancer_ip: Cow<'a, str>,
    #[serde(borrow)]
    ip_families: Vec<Cow<'a, str>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct ServiceStatus<'a> {
    #[serde(borrow)]
    load_balancer: LoadBalancer<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct LoadBalancer<'a> {
    #[serde(borrow)]
    ingress: Vec<Ingress<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Ingress<'a> {
    #[serde(borrow)]
    ip: Cow<'a, str>,
}

/// What a Service says about virtual addresses; `None` if it opts out of the pool.
fn address_request(fields: &ServiceFields<'_>) -> Option<AddressRequest> {
    let annotation = |name: &str| fields.metadata.annotations.get(name).map(|value| &**value);
    if annotation(ADDRESSES_ANNOTATION) == Some("nodes") {
        return None;
    }
    let spec = &fields.spec;
    let wanted = annotation(IPS_ANNOTATION).unwrap_or(&spec.load_balancer_ip);
    let wanted = wanted.split(',').map(str::trim).filter(|text| !text.is_empty());
    let family = |name: &Cow<'_, str>| Family::ALL.into_iter().find(|f| f.name() == name);
    let ingress = &fields.status.load_balancer.ingress;
    Some(AddressRequest {
        families: spec.ip_families.iter().filter_map(family).collect(),
        wanted: wanted.map(str::to_owned).collect(),
        current: ingress.iter().filter_map(|i| i.ip.parse().ok()).collect(),
    })
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct ServicePort<'a> {
    #[serde(borrow)]
    protocol: Cow<'a, str>,
    port: u16,
    node_port: u16,
}

impl ServiceRecord {
    /// Reads a Service; `None` for those that neither want a load balancer nor have node ports.
    /// `has_pool` is whether there are virtual addresses.
    pub(super) fn of(service: &Object, has_pool: bool) -> Option<Self> {
        let fields: ServiceFields<'_> = serde_json::from_slice(service.raw()).ok()?;
        let (meta, spec) = (&fields.metadata, &fields.spec);
        let is_balancer = spec.kind == "LoadBalancer";
        let is_ours = is_balancer && spec.load_balancer_class.is_none();
        let is_local = spec.external_traffic_policy == "Local";
        let is_deleted = meta.deletion_timestamp.is_some();
        let key = |port: &ServicePort<'_>, number| {
            Some(PortKey { protocol: Protocol::of(&port.protocol)?, number })
        };
        let mut node_ports: Vec<PortKey> = spec
            .ports
            .iter()
            .filter(|port| port.node_port != 0)
            .filter_map(|port| key(port, port.node_port))
            .collect();
        if is_balancer && is_local && spec.health_check_node_port != 0 {
            let number = spec.health_check_node_port;
            node_ports.push(PortKey { protocol: Protocol::Tcp, number });
        }
        let balanced = (is_ours && !is_deleted).then(|| Balanced {
            ports: spec.ports.iter().filter_map(|port| key(port, port.port)).collect(),
            pool: service.label(POOL_LABEL).filter(|pool| !pool.is_empty()).map(str::to_owned),
            is_local,
            pool_request: has_pool.then(|| address_request(&fields)).flatten(),
        });
        let has_finalizer = meta.finalizers.iter().any(|name| name == FINALIZER);
        let needs_cleanup = has_finalizer && ((is_ours && is_deleted) || !is_balancer);
        let record = Self {
            age: (meta.creation_timestamp.to_string(), service.key.to_string()),
            node_ports,
            balanced,
            needs_cleanup,
        };
        let is_empty =
            record.node_ports.is_empty() && record.balanced.is_none() && !record.needs_cleanup;
        (!is_empty).then_some(record)
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NodeFields<'a> {
    #[serde(borrow)]
    status: NodeStatus<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct NodeStatus<'a> {
    #[serde(borrow)]
    conditions: Vec<Typed<'a>>,
    #[serde(borrow)]
    addresses: Vec<Typed<'a>>,
    daemon_endpoints: DaemonEndpoints,
}

/// A condition, or an address.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Typed<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    status: Cow<'a, str>,
    #[serde(borrow)]
    address: Cow<'a, str>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct DaemonEndpoints {
    kubelet_endpoint: DaemonEndpoint,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct DaemonEndpoint {
    #[serde(rename = "Port")]
    port: u16,
}

impl NodeRecord {
    /// Reads a Node; fields that cannot be read are empty.
    pub(super) fn of(node: &Object) -> Self {
        let NodeFields { status } = serde_json::from_slice(node.raw()).unwrap_or_default();
        let addresses = |kind: &str| {
            let of_kind = status.addresses.iter().filter(|a| a.kind == kind);
            of_kind.filter_map(|a| a.address.parse().ok()).collect()
        };
        let several = node.labels.iter().filter(|(_, value)| &**value == "true");
        let several = several.filter_map(|(key, _)| key.strip_prefix(POOL_PREFIX));
        let port = status.daemon_endpoints.kubelet_endpoint.port;
        Self {
            is_ready: status.conditions.iter().any(|c| c.kind == "Ready" && c.status == "True"),
            enabled: node.label(ENABLE_LABEL).map(str::to_owned),
            pools: several.chain(node.label(POOL_LABEL)).map(str::to_owned).collect(),
            is_excluded: node.label(EXCLUDE_LABEL).is_some(),
            internal: addresses("InternalIP"),
            external: addresses("ExternalIP"),
            kubelet_port: (port != 0).then_some(port),
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PodFields<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
    #[serde(borrow)]
    spec: PodSpec<'a>,
    #[serde(borrow)]
    status: PodStatus<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct PodSpec<'a> {
    #[serde(borrow)]
    node_name: Cow<'a, str>,
    #[serde(borrow)]
    containers: Vec<Container<'a>>,
    #[serde(borrow)]
    init_containers: Vec<Container<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PodStatus<'a> {
    #[serde(borrow)]
    phase: Cow<'a, str>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Container<'a> {
    #[serde(borrow)]
    ports: Vec<ContainerPort<'a>>,
    #[serde(borrow)]
    restart_policy: Cow<'a, str>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct ContainerPort<'a> {
    #[serde(borrow)]
    protocol: Cow<'a, str>,
    host_port: u16,
    #[serde(rename = "hostIP", borrow)]
    host_ip: Cow<'a, str>,
}

impl PodRecord {
    /// Reads a Pod; `None` for those without host ports on a node. Host ports on loopback addresses
    /// do not count: load balancers leave these alone.
    pub(super) fn of(pod: &Object) -> Option<Self> {
        if pod.label(K3S_POD_LABEL).is_some() {
            return None;
        }
        let fields: PodFields<'_> = serde_json::from_slice(pod.raw()).ok()?;
        let spec = &fields.spec;
        if spec.node_name.is_empty() || matches!(&*fields.status.phase, "Succeeded" | "Failed") {
            return None;
        }
        let sidecars = spec.init_containers.iter().filter(|c| c.restart_policy == "Always");
        let is_loopback = |port: &ContainerPort<'_>| {
            port.host_ip.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
        };
        let ports: BTreeSet<PortKey> = spec
            .containers
            .iter()
            .chain(sidecars)
            .flat_map(|container| &container.ports)
            .filter(|port| port.host_port != 0 && !is_loopback(port))
            .filter_map(|port| {
                Some(PortKey { protocol: Protocol::of(&port.protocol)?, number: port.host_port })
            })
            .collect();
        (!ports.is_empty()).then(|| Self {
            created: fields.metadata.creation_timestamp.to_string(),
            node: spec.node_name.to_string(),
            ports,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn service(spec: Value, deleted: bool) -> Option<ServiceRecord> {
        let mut object = json!({"metadata": {"name": "s", "namespace": "n", "uid": "u",
                "creationTimestamp": "2026-01-01T00:00:00Z", "finalizers": [FINALIZER],
                "labels": {POOL_LABEL: "p"}},
            "spec": spec, "status": {"loadBalancer": {}}});
        if deleted {
            object["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z".into();
        }
        ServiceRecord::of(&Object::from_value(object).unwrap(), false)
    }

    #[test]
    fn services_of_a_class_or_another_type_are_not_balanced() {
        let port = json!([{"port": 80, "protocol": "TCP", "nodePort": 30080}]);
        let ours = service(json!({"type": "LoadBalancer", "ports": port}), false).unwrap();
        let balanced = ours.balanced.clone().unwrap();
        assert_eq!(balanced.ports.iter().map(ToString::to_string).collect::<Vec<_>>(), ["80/TCP"]);
        assert_eq!((balanced.pool.as_deref(), balanced.is_local), (Some("p"), false));
        assert_eq!(ours.node_ports[0].to_string(), "30080/TCP");
        assert!(!ours.needs_cleanup);
        for (spec, deleted, needs_cleanup) in [
            (json!({"type": "LoadBalancer", "ports": port}), true, true),
            (
                json!({"type": "LoadBalancer", "loadBalancerClass": "c", "ports": port}),
                false,
                false,
            ),
            (json!({"type": "LoadBalancer", "loadBalancerClass": "c", "ports": port}), true, false),
            (json!({"type": "NodePort", "ports": port}), false, true),
        ] {
            let record = service(spec.clone(), deleted).unwrap();
            assert_eq!(record.balanced, None, "{spec}");
            assert_eq!(record.needs_cleanup, needs_cleanup, "{spec} {deleted}");
        }
        let local = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 30010, "ports": []});
        let local = service(local, false).unwrap();
        assert!(local.balanced.unwrap().is_local);
        assert_eq!(local.node_ports[0].to_string(), "30010/TCP");
    }

    #[test]
    fn requests_for_virtual_addresses_are_read_and_opting_out_is_possible() {
        let request = |annotations: Value, spec: Value| {
            let mut object = json!({"metadata": {"name": "s", "namespace": "n", "uid": "u",
                    "annotations": annotations},
                "spec": {"type": "LoadBalancer", "ipFamilies": ["IPv6", "IPv4"]},
                "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.10", "ports": []},
                    {"hostname": "h"}]}}});
            object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
            let record = ServiceRecord::of(&Object::from_value(object).unwrap(), true).unwrap();
            record.balanced.unwrap().pool_request
        };
        let plain = request(json!({}), json!({})).unwrap();
        assert_eq!(plain.families, [Family::V6, Family::V4]);
        assert_eq!(plain.current, ["192.0.2.10".parse::<IpAddr>().unwrap()]);
        assert_eq!(plain.wanted, [""; 0]);
        let by_field = request(json!({}), json!({"loadBalancerIP": "192.0.2.11"})).unwrap();
        assert_eq!(by_field.wanted, ["192.0.2.11"]);
        let ips = json!({IPS_ANNOTATION: "192.0.2.12, 2001:db8::1"});
        let both = request(ips, json!({"loadBalancerIP": "192.0.2.11"})).unwrap();
        assert_eq!(both.wanted, ["192.0.2.12", "2001:db8::1"], "the annotation takes precedence");
        assert_eq!(request(json!({ADDRESSES_ANNOTATION: "nodes"}), json!({})), None);
    }

    #[test]
    fn nodes_have_the_pools_of_both_labels() {
        let node = json!({"metadata": {"name": "n", "uid": "u", "labels": {
                ENABLE_LABEL: "true", POOL_LABEL: "a",
                "lbpool.svccontroller.k3s.cattle.io/b": "true",
                "lbpool.svccontroller.k3s.cattle.io/c": "false"}},
            "status": {"capacity": {"cpu": "1"},
                "conditions": [{"type": "Ready", "status": "True", "message": "m"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
                "addresses": [{"type": "Hostname", "address": "n"},
                    {"type": "InternalIP", "address": "192.0.2.1"},
                    {"type": "ExternalIP", "address": "203.0.113.1"}]}});
        let node = NodeRecord::of(&Object::from_value(node).unwrap());
        assert_eq!(node.pools, ["a", "b"].map(str::to_owned).into());
        assert!(node.is_ready && !node.is_excluded);
        assert_eq!(node.kubelet_port, Some(10250));
        assert_eq!(node.external, ["203.0.113.1".parse::<IpAddr>().unwrap()]);
        let bare = json!({"metadata": {"name": "n", "uid": "u", "labels": {EXCLUDE_LABEL: ""}}});
        let bare = NodeRecord::of(&Object::from_value(bare).unwrap());
        assert!(bare.is_excluded && !bare.is_ready);
    }

    #[test]
    fn host_ports_of_running_pods_count() {
        let pod = |labels: Value, phase: &str, ip: &str| {
            let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u",
                    "labels": labels},
                "spec": {"nodeName": "a",
                    "initContainers": [{"ports": [{"hostPort": 1}]},
                        {"restartPolicy": "Always", "ports": [{"hostPort": 2, "protocol": "UDP"}]}],
                    "containers": [{"ports": [{"containerPort": 3},
                        {"hostPort": 4, "protocol": "TCP", "hostIP": ip}]}]},
                "status": {"phase": phase}});
            let record = PodRecord::of(&Object::from_value(pod).unwrap());
            record.map(|r| r.ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
        };
        assert_eq!(pod(json!({}), "Running", "").as_deref(), Some("4/TCP,2/UDP"));
        assert_eq!(pod(json!({}), "Running", "127.0.0.1").as_deref(), Some("2/UDP"));
        assert_eq!(pod(json!({}), "Failed", ""), None);
        assert_eq!(pod(json!({K3S_POD_LABEL: "s"}), "Running", ""), None);
    }
}
