//! Parses what the proxy needs of Services and EndpointSlices into values that are valid by
//! construction.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use api::k8s::api::core::v1::{Service, ServicePort};
use api::k8s::api::discovery::v1::{Endpoint as SliceEndpoint, EndpointSlice};
use sorting::CompactSort as _;

use settings::addr::{Cidr, Family};

/// `kubernetes.io/service-name`: the service an EndpointSlice belongs to.
pub(crate) const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
/// Services and slices with this label belong to another proxy.
const PROXY_NAME_LABEL: &str = "service.kubernetes.io/service-proxy-name";
/// Endpoints with the label that `IsHeadlessService` reads are not the proxy's, whatever their
/// Service says.
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";
/// `DefaultClientIPServiceAffinitySeconds`.
const AFFINITY_SECONDS: u32 = 10_800;

/// Protocol numbers of the three kinds a service port may have.
pub(crate) fn protocol_number(name: Option<&str>) -> Option<u8> {
    match name.unwrap_or("TCP") {
        "TCP" => Some(6),
        "UDP" => Some(17),
        "SCTP" => Some(132),
        _ => None,
    }
}

/// One port of one service, for both families.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Port {
    /// `namespace/name:port`.
    pub name: String,
    /// The port's name, which EndpointSlices repeat.
    pub port_name: String,
    /// IP protocol number.
    pub protocol: u8,
    /// Service port.
    pub number: u16,
    /// Node port, 0 when none.
    pub node_port: u16,
    /// Cluster addresses.
    pub cluster_ips: Vec<IpAddr>,
    /// `spec.externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// Load balancer addresses of mode VIP.
    pub load_balancer_ips: Vec<IpAddr>,
    /// The addresses are those of nodes, not of another load balancer (`loadBalancerClass`).
    pub balanced_by_nodes: bool,
    /// Source ranges that may use the load balancer addresses; empty means all.
    pub source_ranges: Vec<Cidr>,
    /// Seconds of ClientIP affinity; 0 when none.
    pub affinity_seconds: u32,
    /// `externalTrafficPolicy: Local`.
    pub external_local: bool,
    /// `internalTrafficPolicy: Local`.
    pub internal_local: bool,
}

impl Port {
    /// Whether the load balancer addresses of a family name a node with these addresses. Such a
    /// node serves the port on each of its own addresses, like a host port: the address in the
    /// status may be one that a router translates.
    pub(crate) fn is_balanced_by(&self, node_ips: &[IpAddr], family: Family) -> bool {
        self.balanced_by_nodes
            && self
                .load_balancer_ips
                .iter()
                .any(|ip| Family::of(*ip) == family && node_ips.contains(ip))
    }

    /// Whether the port is reachable by anything but the cluster address.
    pub(crate) fn is_external(&self) -> bool {
        self.node_port != 0 || !self.external_ips.is_empty() || !self.load_balancer_ips.is_empty()
    }
}

/// One address of a port's endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// Pod address.
    pub address: IpAddr,
    /// Pod port.
    pub port: u16,
    /// Takes new connections.
    pub ready: bool,
    /// Serves, even when terminating.
    pub serving: bool,
    /// Being deleted.
    pub terminating: bool,
    /// On this node.
    pub local: bool,
    /// Zone hints.
    pub zones: Vec<String>,
    /// Node hints.
    pub nodes: Vec<String>,
}

fn addresses(list: Option<&Vec<String>>) -> Vec<IpAddr> {
    list.into_iter().flatten().filter_map(|a| a.parse().ok()).collect()
}

fn port(service: &Service, port: &ServicePort) -> Option<Port> {
    let spec = service.spec.as_ref()?;
    let kind = spec.type_.as_deref().unwrap_or("ClusterIP");
    let ingress = service.status.as_ref().and_then(|s| s.load_balancer.as_ref());
    let load_balancer_ips = ingress
        .and_then(|l| l.ingress.as_ref())
        .into_iter()
        .flatten()
        .filter(|i| i.ip_mode.as_deref().unwrap_or("VIP") == "VIP")
        .filter_map(|i| i.ip.as_ref()?.parse().ok())
        .collect();
    let affinity = spec.session_affinity.as_deref() == Some("ClientIP");
    let timeout = spec
        .session_affinity_config
        .as_ref()
        .and_then(|c| c.client_ip.as_ref()?.timeout_seconds)
        .and_then(|s| u32::try_from(s).ok())
        .filter(|s| *s > 0);
    let mut cluster_ips = addresses(spec.cluster_ips.as_ref());
    if cluster_ips.is_empty() {
        cluster_ips.extend(spec.cluster_ip.as_ref().and_then(|a| a.parse::<IpAddr>().ok()));
    }
    let mut ranges: Vec<Cidr> =
        spec.load_balancer_source_ranges.iter().flatten().filter_map(|r| r.parse().ok()).collect();
    if ranges.iter().any(|r| r.prefix() == 0) {
        ranges.clear();
    }
    let name = port.name.clone().unwrap_or_default();
    let meta = &service.metadata;
    Some(Port {
        name: format!(
            "{}/{}:{name}",
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default()
        ),
        port_name: name,
        protocol: protocol_number(port.protocol.as_deref())?,
        number: u16::try_from(port.port).ok()?,
        node_port: port.node_port.and_then(|p| u16::try_from(p).ok()).unwrap_or(0),
        cluster_ips,
        external_ips: addresses(spec.external_ips.as_ref()),
        load_balancer_ips,
        balanced_by_nodes: kind == "LoadBalancer" && spec.load_balancer_class.is_none(),
        source_ranges: ranges,
        affinity_seconds: if affinity { timeout.unwrap_or(AFFINITY_SECONDS) } else { 0 },
        external_local: kind != "ClusterIP"
            && spec.external_traffic_policy.as_deref() == Some("Local"),
        internal_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
    })
}

/// The ports to serve; none for a headless or external Service or one of another proxy.
pub(crate) fn ports(service: &Service) -> Vec<Port> {
    let Some(spec) = &service.spec else { return Vec::new() };
    let foreign =
        service.metadata.labels.as_ref().is_some_and(|l| l.contains_key(PROXY_NAME_LABEL));
    let headless = spec.cluster_ip.as_deref().is_none_or(|ip| ip == "None" || ip.is_empty());
    if foreign || headless || spec.type_.as_deref() == Some("ExternalName") {
        return Vec::new();
    }
    spec.ports.iter().flatten().filter_map(|p| port(service, p)).collect()
}

/// The health check port of Services with `externalTrafficPolicy: Local`.
pub(crate) fn health_check_port(service: &Service) -> Option<u16> {
    let spec = service.spec.as_ref()?;
    let wanted = spec.type_.as_deref() == Some("LoadBalancer")
        && spec.external_traffic_policy.as_deref() == Some("Local");
    let port = u16::try_from(spec.health_check_node_port.filter(|_| wanted)?).ok()?;
    (port != 0).then_some(port)
}

/// The pod of an endpoint, `namespace/name`.
pub(crate) fn pod_of(endpoint: &SliceEndpoint) -> Option<String> {
    let target = endpoint.target_ref.as_ref().filter(|t| t.kind.as_deref() == Some("Pod"))?;
    Some(format!("{}/{}", target.namespace.as_deref()?, target.name.as_deref()?))
}

/// The endpoints of a Service by port name; one per address and port, the readiest of several. Pods
/// of this node in `left_out` are not ready.
pub(crate) fn endpoints(
    slices: &[EndpointSlice],
    node: &str,
    left_out: &BTreeSet<String>,
) -> BTreeMap<(String, u8), Vec<Endpoint>> {
    let mut out: BTreeMap<(String, u8), Vec<Endpoint>> = BTreeMap::new();
    for slice in slices {
        let labelled =
            |label| slice.metadata.labels.as_ref().is_some_and(|l| l.contains_key(label));
        let left_to_others = labelled(PROXY_NAME_LABEL) || labelled(HEADLESS_LABEL);
        if slice.address_type == "FQDN" || left_to_others {
            continue;
        }
        for port in slice.ports.iter().flatten() {
            let Some(number) = port.port.and_then(|p| u16::try_from(p).ok()) else { continue };
            let Some(protocol) = protocol_number(port.protocol.as_deref()) else { continue };
            let list = out.entry((port.name.clone().unwrap_or_default(), protocol)).or_default();
            for endpoint in slice.endpoints.iter().flatten() {
                // Only the first address counts (API documentation of EndpointSlice).
                let Some(address) = endpoint.addresses.first().and_then(|a| a.parse().ok()) else {
                    continue;
                };
                let conditions = endpoint.conditions.as_ref();
                let local = endpoint.node_name.as_deref() == Some(node);
                let out = local
                    && !left_out.is_empty()
                    && pod_of(endpoint).is_some_and(|pod| left_out.contains(&pod));
                let ready = conditions.and_then(|c| c.ready).unwrap_or(true) && !out;
                let hints = endpoint.hints.as_ref();
                let found = Endpoint {
                    address,
                    port: number,
                    ready,
                    serving: conditions.and_then(|c| c.serving).unwrap_or(ready) && !out,
                    terminating: conditions.and_then(|c| c.terminating).unwrap_or(false),
                    local,
                    zones: hints
                        .and_then(|h| h.for_zones.as_ref())
                        .map(|z| z.iter().map(|z| z.name.clone()).collect())
                        .unwrap_or_default(),
                    nodes: hints
                        .and_then(|h| h.for_nodes.as_ref())
                        .map(|n| n.iter().map(|n| n.name.clone()).collect())
                        .unwrap_or_default(),
                };
                let rank = |e: &Endpoint| (e.ready, e.serving);
                match list.iter_mut().find(|e| (e.address, e.port) == (address, number)) {
                    Some(old) if rank(old) >= rank(&found) => {}
                    Some(old) => *old = found,
                    None => list.push(found),
                }
            }
        }
    }
    for list in out.values_mut() {
        list.compact_sort_by_key(|e| (e.address, e.port));
    }
    out
}

/// The endpoints a port uses on this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Usable {
    /// For policy Cluster.
    pub cluster: Vec<Endpoint>,
    /// For policy Local.
    pub local: Vec<Endpoint>,
    /// Whether any node has an endpoint.
    pub anywhere: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Topology {
    All,
    SameNode,
    SameZone,
}

fn topology(endpoints: &[&Endpoint], node: &str, zone: &str) -> Topology {
    let ready: Vec<_> = endpoints.iter().filter(|e| e.ready).collect();
    if ready.is_empty() {
        return Topology::All;
    }
    let has_node = |e: &&&Endpoint| e.nodes.iter().any(|n| n == node);
    let has_zone = |e: &&&Endpoint| e.zones.iter().any(|z| z == zone);
    if ready.iter().all(|e| !e.nodes.is_empty()) && ready.iter().any(has_node) {
        return Topology::SameNode;
    }
    if ready.iter().all(|e| !e.zones.is_empty()) && ready.iter().any(has_zone) {
        return Topology::SameZone;
    }
    Topology::All
}

/// Selects endpoints as upstream's `CategorizeEndpoints` does: ready ones by topology hints, else
/// serving ones that terminate.
pub(crate) fn usable(
    port: &Port,
    all: &[Endpoint],
    family: Family,
    node: &str,
    zone: &str,
) -> Usable {
    let all: Vec<&Endpoint> = all.iter().filter(|e| Family::of(e.address) == family).collect();
    let uses_cluster = !port.internal_local || port.is_external();
    let uses_local = port.internal_local || (port.external_local && port.is_external());
    let pick = |filter: &dyn Fn(&Endpoint) -> bool| -> Vec<Endpoint> {
        all.iter().filter(|e| filter(e)).map(|e| (*e).clone()).collect()
    };
    let leaving = |e: &Endpoint| e.serving && e.terminating;
    let mut out = Usable::default();
    if uses_cluster {
        let mode = topology(&all, node, zone);
        out.cluster = pick(&|e| {
            e.ready
                && match mode {
                    Topology::All => true,
                    Topology::SameNode => e.nodes.iter().any(|n| n == node),
                    Topology::SameZone => e.zones.iter().any(|z| z == zone),
                }
        });
        if out.cluster.is_empty() {
            out.cluster = pick(&leaving);
        }
        out.anywhere = !out.cluster.is_empty();
    }
    if uses_local {
        out.anywhere |= all.iter().any(|e| e.ready || leaving(e));
        out.local = pick(&|e| e.local && e.ready);
        if out.local.is_empty() {
            out.local = pick(&|e| e.local && leaving(e));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn slice(endpoints: Value) -> EndpointSlice {
        serde_json::from_value(json!({"metadata":{"name":"s"},"addressType":"IPv4",
            "ports":[{"name":"","port":80,"protocol":"TCP"}],"endpoints":endpoints}))
        .unwrap()
    }

    fn choose(endpoints: Value, change: impl FnOnce(&mut Port)) -> (String, String, bool) {
        let service: Service =
            serde_json::from_value(json!({"metadata":{"name":"a","namespace":"n"},
            "spec":{"clusterIP":"10.43.0.1","clusterIPs":["10.43.0.1"],"ports":[{"port":80}]}}))
            .unwrap();
        let mut port = ports(&service).remove(0);
        change(&mut port);
        let all = self::endpoints(&[slice(endpoints)], "me", &["n/dead".to_owned()].into());
        let all = all.get(&(String::new(), 6)).cloned().unwrap_or_default();
        let got = usable(&port, &all, Family::V4, "me", "z1");
        let text = |list: &[Endpoint]| {
            let last = |e: &Endpoint| e.address.to_string().rsplit('.').next().unwrap().to_owned();
            list.iter().map(last).collect::<Vec<_>>().join(",")
        };
        (text(&got.cluster), text(&got.local), got.anywhere)
    }

    fn want(cluster: &str, local: &str, anywhere: bool) -> (String, String, bool) {
        (cluster.into(), local.into(), anywhere)
    }

    #[test]
    fn slices_of_headless_services_and_of_other_proxies_have_no_endpoints() {
        for (labels, count) in [
            (json!({"kubernetes.io/service-name": "a"}), 1),
            (json!({"service.kubernetes.io/headless": ""}), 0),
            (json!({"service.kubernetes.io/service-proxy-name": "other"}), 0),
        ] {
            let mut slice = slice(json!([{"addresses": ["10.0.0.1"]}]));
            slice.metadata.labels = serde_json::from_value(labels).unwrap();
            assert_eq!(endpoints(&[slice], "me", &BTreeSet::new()).len(), count);
        }
    }

    // Cases of upstream's `TestCategorizeEndpoints`.
    #[test]
    fn endpoints_are_chosen_by_readiness_hints_and_policy() {
        let two = json!([
            {"addresses":["10.0.0.1"],"hints":{"forZones":[{"name":"z1"}]}},
            {"addresses":["10.0.0.2"],"hints":{"forZones":[{"name":"z2"}]}}]);
        assert_eq!(choose(two, |_| {}), want("1", "", true));
        let pod = |name: &str| json!({"kind":"Pod","namespace":"n","name":name});
        let known_to_be_dead = json!([
            {"addresses":["10.0.0.1"],"nodeName":"me","targetRef":pod("dead")},
            {"addresses":["10.0.0.2"],"nodeName":"me","targetRef":pod("alive")},
            {"addresses":["10.0.0.3"],"nodeName":"other","targetRef":pod("dead")}]);
        assert_eq!(choose(known_to_be_dead, |p| p.internal_local = true), want("", "2", true));
        let of_another_node =
            json!([{"addresses":["10.0.0.3"],"nodeName":"other","targetRef":pod("dead")}]);
        assert_eq!(choose(of_another_node, |_| {}), want("3", "", true));
        let foreign = json!([{"addresses":["10.0.0.2"],"hints":{"forZones":[{"name":"z2"}]}}]);
        assert_eq!(choose(foreign, |_| {}), want("2", "", true), "no hint for this zone: all");
        let partial = json!([{"addresses":["10.0.0.1"],"hints":{"forZones":[{"name":"z1"}]}},
            {"addresses":["10.0.0.2"]}]);
        assert_eq!(choose(partial, |_| {}), want("1,2", "", true));
        let node = json!([
            {"addresses":["10.0.0.1"],"hints":{"forNodes":[{"name":"me"}],"forZones":[{"name":"z1"}]}},
            {"addresses":["10.0.0.2"],"hints":{"forNodes":[{"name":"b"}],"forZones":[{"name":"z1"}]}}]);
        assert_eq!(choose(node, |_| {}), want("1", "", true));
        let leaving = json!([
            {"addresses":["10.0.0.1"],"conditions":{"ready":false,"serving":true,"terminating":true}},
            {"addresses":["10.0.0.2"],"conditions":{"ready":false,"serving":false,"terminating":true}}]);
        assert_eq!(choose(leaving, |_| {}), want("1", "", true));
        let local = json!([{"addresses":["10.0.0.1"],"nodeName":"me"},
            {"addresses":["10.0.0.2"],"nodeName":"b"}]);
        assert_eq!(choose(local.clone(), |p| p.internal_local = true), want("", "1", true));
        assert_eq!(
            choose(local, |p| (p.external_local, p.node_port) = (true, 30000)),
            want("1,2", "1", true)
        );
        let away = json!([{"addresses":["10.0.0.2"],"nodeName":"b"}]);
        assert_eq!(choose(away, |p| p.internal_local = true), want("", "", true));
        assert_eq!(choose(json!([]), |_| {}), want("", "", false));
    }
}
