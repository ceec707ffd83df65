//! Computes from one Service's ports and endpoints the table elements it needs; pure.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::nft::set::{Element, Value};
use crate::proxy::services::{Endpoint, Port, Usable, usable};
use settings::addr::{Cidr, Family, octets};
use sorting::CompactSort as _;

/// Which endpoints a lookup selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Class {
    /// The endpoints that the traffic policy of the address selects.
    Main,
    /// Traffic from this cluster to an external address with policy Local short-circuits to any
    /// endpoint of the cluster.
    ShortCircuit,
}

/// The sets and maps of the table. Keys are (address, protocol, port) unless documented otherwise;
/// the unspecified address represents every local address (node ports, host ports).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SetName {
    /// Cluster addresses alone.
    ClusterIps,
    /// Destinations whose clients are masqueraded.
    Masquerade,
    /// External destinations with policy Local.
    Local,
    /// Services without endpoints in the cluster.
    Reject,
    /// Services with policy Local and no endpoint on this node.
    Drop,
    /// Load balancer addresses with source ranges.
    Firewalled,
    /// (destination key, source range) that is allowed.
    Allowed,
    /// (address, address, protocol, port) of endpoints on this node.
    Hairpin,
    /// (group, index) to endpoint.
    Endpoints,
    /// (group, index) to endpoint id, for groups with affinity.
    Slots,
    /// (group, endpoint id) to endpoint, for groups with affinity.
    Live,
    /// Host ports to pods.
    HostPorts,
    /// Key to group, for groups of `count` endpoints and affinity of `seconds` (0: none).
    Choose { class: Class, count: u32, seconds: u32 },
    /// Key to group, for all groups with affinity of `seconds`.
    Sticky { class: Class, seconds: u32 },
}

impl SetName {
    /// The name in the kernel.
    pub(crate) fn text(self) -> String {
        let class = |class| if class == Class::Main { "main" } else { "short" };
        match self {
            Self::ClusterIps => "cluster-ips".into(),
            Self::Masquerade => "masquerade".into(),
            Self::Local => "local-policy".into(),
            Self::Reject => "no-endpoints".into(),
            Self::Drop => "no-local-endpoints".into(),
            Self::Firewalled => "source-ranges".into(),
            Self::Allowed => "source-ranges-allowed".into(),
            Self::Hairpin => "hairpin".into(),
            Self::Endpoints => "endpoints".into(),
            Self::Slots => "sticky-slots".into(),
            Self::Live => "sticky-endpoints".into(),
            Self::HostPorts => "host-ports".into(),
            Self::Choose { class: c, count, seconds: 0 } => format!("{}-{count}", class(c)),
            Self::Choose { class: c, count, seconds } => format!("{}-{count}-{seconds}s", class(c)),
            Self::Sticky { class: c, seconds } => format!("{}-sticky-{seconds}s", class(c)),
        }
    }
}

/// Assigns numbers to endpoint groups; a name gets the same number after a restart unless two names
/// collide.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    by_number: HashMap<u32, String>,
    /// The numbers of each service (`namespace/name`), which precedes `:` in a group's name.
    by_service: HashMap<String, Vec<u32>>,
}

fn hash(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193))
}

impl Groups {
    fn number(&mut self, name: &str) -> u32 {
        let mut number = hash(name.as_bytes());
        loop {
            match self.by_number.get(&number) {
                Some(owner) if owner == name => return number,
                Some(_) => number = number.wrapping_add(1),
                None => {
                    self.by_number.insert(number, name.to_owned());
                    let service = name.split(':').next().unwrap_or_default();
                    self.by_service.entry(service.to_owned()).or_default().push(number);
                    return number;
                }
            }
        }
    }

    /// Forgets the groups of a service (`namespace/name`).
    pub(crate) fn release(&mut self, service: &str) {
        for number in self.by_service.remove(service).unwrap_or_default() {
            self.by_number.remove(&number);
        }
    }
}

/// A pod's host port.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct HostPort {
    /// Address it listens on; unspecified for all.
    pub host_ip: IpAddr,
    /// Port on the host.
    pub host_port: u16,
    /// IP protocol number.
    pub protocol: u8,
    /// The pod.
    pub address: IpAddr,
    /// Port in the pod.
    pub port: u16,
}

/// Facts about the node that the rules depend on.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeContext {
    /// Name of this node.
    pub node: String,
    /// `topology.kubernetes.io/zone` of this node.
    pub zone: String,
    /// Addresses of this node, and those in the status of its Node object.
    pub node_ips: Vec<IpAddr>,
    /// Cluster addresses that this process serves itself (cluster DNS).
    pub own_ips: Vec<IpAddr>,
}

/// A UDP destination and the endpoints whose connections may stay.
pub(crate) type UdpTarget = ((IpAddr, u16), Vec<(IpAddr, u16)>);

/// The elements that one Service needs in one family's table.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct DesiredElements {
    pub(crate) elements: Vec<(SetName, Arc<Element>)>,
    pub(crate) udp: Vec<UdpTarget>,
    /// Ports with policy Local and endpoints on other nodes alone: for cluster addresses, and for
    /// external ones.
    pub(crate) no_local: [usize; 2],
}

pub(crate) fn key(address: IpAddr, protocol: u8, port: u16) -> Vec<u8> {
    Value::default().address(address).protocol(protocol).port(port).0
}

fn endpoint(e: &Endpoint) -> Vec<u8> {
    Value::default().address(e.address).port(e.port).0
}

fn pair(group: u32, second: u32) -> Vec<u8> {
    Value::default().number(group).number(second).0
}

impl DesiredElements {
    fn set(&mut self, name: SetName, key: Vec<u8>) {
        self.elements.push((name, Arc::new(Element::key(key))));
    }

    fn map(&mut self, name: SetName, key: Vec<u8>, data: Vec<u8>) {
        self.elements.push((name, Arc::new(Element::pair(key, data))));
    }

    /// Adds the endpoints of a group; returns its number.
    fn group(&mut self, groups: &mut Groups, name: &str, seconds: u32, list: &[Endpoint]) -> u32 {
        let group = groups.number(name);
        let mut taken = Vec::with_capacity(list.len());
        for (index, e) in (0_u32..).zip(list) {
            if seconds == 0 {
                self.map(SetName::Endpoints, pair(group, index), endpoint(e));
                continue;
            }
            let mut id = hash(&endpoint(e));
            while taken.contains(&id) {
                id = id.wrapping_add(1);
            }
            taken.push(id);
            self.map(SetName::Slots, pair(group, index), id.to_ne_bytes().to_vec());
            self.map(SetName::Live, pair(group, id), endpoint(e));
        }
        group
    }

    fn add_load_balancing(
        &mut self,
        class: Class,
        key: &[u8],
        seconds: u32,
        group: u32,
        count: usize,
    ) {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let data = group.to_ne_bytes().to_vec();
        self.map(SetName::Choose { class, count, seconds }, key.to_vec(), data.clone());
        if seconds != 0 {
            self.map(SetName::Sticky { class, seconds }, key.to_vec(), data);
        }
    }

    fn port(
        &mut self,
        groups: &mut Groups,
        port: &Port,
        use_: &Usable,
        (node_context, family): (&NodeContext, Family),
    ) {
        let seconds = port.affinity_seconds;
        let of_family = |ip: &&IpAddr| Family::of(**ip) == family;
        let name = |policy| format!("{}/{}/{policy}", port.name, port.protocol);
        let mut cluster = None;
        if !use_.cluster.is_empty() {
            cluster = Some(self.group(groups, &name("cluster"), seconds, &use_.cluster));
        }
        let mut local = None;
        if !use_.local.is_empty() {
            local = Some(self.group(groups, &name("local"), seconds, &use_.local));
        }
        let choose = |is_local: bool| {
            if is_local { (local, use_.local.len()) } else { (cluster, use_.cluster.len()) }
        };
        let dropped = use_.anywhere && use_.local.is_empty();
        let [internal, external] = &mut self.no_local;
        *internal += usize::from(dropped && port.internal_local);
        *external += usize::from(dropped && port.external_local && port.is_external());
        let refuse = if use_.anywhere { SetName::Drop } else { SetName::Reject };
        for ip in port.cluster_ips.iter().filter(of_family) {
            self.set(SetName::ClusterIps, octets(*ip));
            let key = key(*ip, port.protocol, port.number);
            match choose(port.internal_local) {
                (Some(group), count) => {
                    self.add_load_balancing(Class::Main, &key, seconds, group, count)
                }
                _ => self.set(refuse, key),
            }
        }
        let mut external: Vec<Vec<u8>> = port
            .external_ips
            .iter()
            .chain(&port.load_balancer_ips)
            .filter(of_family)
            .map(|ip| key(*ip, port.protocol, port.number))
            .collect();
        if port.node_port != 0 {
            external.push(key(family.unspecified(), port.protocol, port.node_port));
        }
        if port.number != port.node_port && port.is_balanced_by(&node_context.node_ips, family) {
            external.push(key(family.unspecified(), port.protocol, port.number));
        }
        for key in external {
            match choose(port.external_local) {
                (Some(group), count) => {
                    self.add_load_balancing(Class::Main, &key, seconds, group, count)
                }
                _ => self.set(refuse, key.clone()),
            }
            if !port.external_local {
                self.set(SetName::Masquerade, key);
            } else if let Some(group) = cluster {
                self.add_load_balancing(
                    Class::ShortCircuit,
                    &key,
                    seconds,
                    group,
                    use_.cluster.len(),
                );
                self.set(SetName::Local, key);
            }
        }
    }

    fn firewall(&mut self, port: &Port, node_context: &NodeContext, family: Family) {
        let ranges: Vec<&Cidr> =
            port.source_ranges.iter().filter(|r| r.family() == family).collect();
        if ranges.is_empty() {
            return;
        }
        let of_family = |ip: &&IpAddr| Family::of(**ip) == family;
        let mut destinations: Vec<IpAddr> =
            port.load_balancer_ips.iter().filter(of_family).copied().collect();
        if port.is_balanced_by(&node_context.node_ips, family) {
            destinations.push(family.unspecified());
        }
        let contains = |ip: &IpAddr| ranges.iter().any(|r| r.contains(*ip));
        for ip in destinations {
            let destination = key(ip, port.protocol, port.number);
            self.set(SetName::Firewalled, destination.clone());
            let mut allowed: Vec<(IpAddr, IpAddr)> =
                ranges.iter().map(|r| (r.first(), r.last())).collect();
            // A request of this node to a load balancer address that it holds itself has that
            // address as its source.
            if node_context.node_ips.iter().any(contains) {
                let own = if ip.is_unspecified() { &node_context.node_ips[..] } else { &[ip] };
                let own = own.iter().filter(of_family).filter(|ip| !contains(ip));
                allowed.extend(own.map(|ip| (*ip, *ip)));
            }
            for (from, to) in merged(allowed) {
                let with = |source| [destination.clone(), octets(source)].concat();
                let element = Element { end: Some(with(to)), ..Element::key(with(from)) };
                self.elements.push((SetName::Allowed, Arc::new(element)));
            }
        }
    }
}

/// Merges overlapping ranges, because the kernel rejects overlaps.
fn merged(mut ranges: Vec<(IpAddr, IpAddr)>) -> Vec<(IpAddr, IpAddr)> {
    ranges.compact_sort();
    let mut out: Vec<(IpAddr, IpAddr)> = Vec::new();
    for (from, to) in ranges {
        match out.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => out.push((from, to)),
        }
    }
    out
}

/// Computes all elements of one Service in the table of one family.
pub(crate) fn plan(
    groups: &mut Groups,
    ports: &[Port],
    endpoints: &std::collections::BTreeMap<(String, u8), Vec<Endpoint>>,
    node_context: &NodeContext,
    family: Family,
) -> DesiredElements {
    let mut wanted = DesiredElements::default();
    for port in ports {
        if port.cluster_ips.iter().any(|ip| node_context.own_ips.contains(ip)) {
            continue;
        }
        let none = Vec::new();
        let all = endpoints.get(&(port.port_name.clone(), port.protocol)).unwrap_or(&none);
        let chosen = usable(port, all, family, &node_context.node, &node_context.zone);
        wanted.port(groups, port, &chosen, (node_context, family));
        wanted.firewall(port, node_context, family);
        for e in chosen.cluster.iter().chain(&chosen.local).filter(|e| e.local) {
            let both = Value::default().address(e.address).address(e.address);
            let element = Element::key(both.protocol(port.protocol).port(e.port).0);
            if !wanted.elements.iter().any(|(_, other)| **other == element) {
                wanted.elements.push((SetName::Hairpin, Arc::new(element)));
            }
        }
        if port.protocol == 17 {
            let serving: Vec<(IpAddr, u16)> =
                all.iter().filter(|e| e.serving).map(|e| (e.address, e.port)).collect();
            let vips = port.cluster_ips.iter().chain(&port.external_ips);
            for ip in vips.chain(&port.load_balancer_ips).filter(|ip| Family::of(**ip) == family) {
                wanted.udp.push(((*ip, port.number), serving.clone()));
            }
            if port.is_balanced_by(&node_context.node_ips, family) {
                wanted.udp.push(((family.unspecified(), port.number), serving.clone()));
            }
            if port.node_port != 0 {
                wanted.udp.push(((family.unspecified(), port.node_port), serving));
            }
        }
    }
    wanted
}

/// Computes the elements of the host ports of a pod in the table of one family.
pub(crate) fn plan_host_ports(list: &[HostPort], family: Family) -> DesiredElements {
    let mut wanted = DesiredElements::default();
    for p in list.iter().filter(|p| Family::of(p.address) == family) {
        // `hostIP: 0.0.0.0` or `::` means every address of either family.
        let host_ip = if p.host_ip.is_unspecified() { family.unspecified() } else { p.host_ip };
        if Family::of(host_ip) != family {
            continue;
        }
        let to = Value::default().address(p.address).port(p.port).0;
        wanted.map(SetName::HostPorts, key(host_ip, p.protocol, p.host_port), to);
        let both = Value::default().address(p.address).address(p.address);
        wanted.set(SetName::Hairpin, both.protocol(p.protocol).port(p.port).0);
        if p.protocol == 17 {
            wanted.udp.push(((host_ip, p.host_port), vec![(p.address, p.port)]));
        }
    }
    wanted
}
