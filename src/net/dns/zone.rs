//! The Kubernetes DNS specification 1.1.0 as a function from a question to records; pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use settings::addr::Cidr;
use sorting::CompactSort as _;

/// One port of a service or endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PortInfo {
    pub(crate) name: String,
    /// Lower case: `tcp`, `udp`, `sctp`.
    pub(crate) protocol: String,
    pub(crate) number: u16,
}

/// What a service is to DNS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ServiceInfo {
    Cluster { addresses: Vec<IpAddr>, ports: Vec<PortInfo> },
    Headless,
    External(String),
}

/// One ready address behind a headless service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EndpointInfo {
    pub(crate) address: IpAddr,
    pub(crate) hostname: Option<String>,
    pub(crate) ports: Vec<PortInfo>,
}

/// What the zone is made from.
pub(crate) trait Directory {
    fn service(&self, namespace: &str, name: &str) -> Option<ServiceInfo>;
    fn endpoints(&self, namespace: &str, name: &str) -> Vec<EndpointInfo>;
    fn has_namespace(&self, namespace: &str) -> bool;
    /// Services with this cluster address, as (namespace, name).
    fn services_at(&self, address: IpAddr) -> Vec<(String, String)>;
    /// Services with this endpoint, as (namespace, service, hostname).
    fn endpoints_at(&self, address: IpAddr) -> Vec<(String, String, Option<String>)>;
}

/// The types asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    A,
    Aaaa,
    Srv,
    Ptr,
    Cname,
    Txt,
    Soa,
    Ns,
    Any,
    Other,
}

/// The value of a record; names without the final dot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Data {
    Address(IpAddr),
    Srv { port: u16, weight: u16, target: String },
    Ptr(String),
    Cname(String),
    Txt(String),
    Soa,
    Ns(String),
}

/// A record with its owner.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Record {
    pub(crate) name: String,
    pub(crate) data: Data,
}

/// What a question gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Not ours: ask elsewhere.
    Foreign,
    /// The name does not exist (NXDOMAIN with SOA).
    NoName,
    /// The answers, and the addresses of their targets as additionals; no answers means NODATA with
    /// SOA.
    Records { answers: Vec<Record>, additionals: Vec<Record> },
}

/// The names served.
#[derive(Debug, Clone)]
pub(crate) struct Zone {
    /// `cluster.local`, lower case, no final dot.
    pub(crate) domain: String,
    /// Blocks whose reverse names are ours.
    pub(crate) reverse: Vec<Cidr>,
    /// Addresses of the name server itself.
    pub(crate) servers: Vec<IpAddr>,
}

fn matches(kind: Kind, address: IpAddr) -> bool {
    match kind {
        Kind::A => address.is_ipv4(),
        Kind::Aaaa => address.is_ipv6(),
        Kind::Any => true,
        _ => false,
    }
}

fn dashed(address: IpAddr) -> String {
    address.to_string().replace(['.', ':'], "-")
}

fn undashed(label: &str) -> Option<IpAddr> {
    let four = label.replace('-', ".").parse::<Ipv4Addr>().ok().map(IpAddr::V4);
    four.or_else(|| label.replace('-', ":").parse::<Ipv6Addr>().ok().map(IpAddr::V6))
}

fn endpoint_label(endpoint: &EndpointInfo) -> String {
    endpoint.hostname.clone().unwrap_or_else(|| dashed(endpoint.address))
}

/// The address of a reverse name.
pub(crate) fn reversed(name: &str) -> Option<IpAddr> {
    if let Some(labels) = name.strip_suffix(".in-addr.arpa") {
        let mut parts: Vec<&str> = labels.split('.').collect();
        parts.reverse();
        return parts.join(".").parse::<Ipv4Addr>().ok().map(IpAddr::V4);
    }
    let labels = name.strip_suffix(".ip6.arpa")?;
    let digits: Vec<&str> = labels.split('.').rev().collect();
    if digits.len() != 32 || digits.iter().any(|d| d.len() != 1) {
        return None;
    }
    u128::from_str_radix(&digits.concat(), 16).ok().map(|n| IpAddr::V6(Ipv6Addr::from(n)))
}

fn records(answers: Vec<Record>) -> Answer {
    Answer::Records { answers, additionals: Vec::new() }
}

impl Zone {
    /// Answers a question; `name` in lower case without the final dot.
    pub(crate) fn answer(&self, name: &str, kind: Kind, directory: &dyn Directory) -> Answer {
        if name == self.domain {
            return self.apex(name, kind);
        }
        let within = name.strip_suffix(&self.domain).and_then(|rest| rest.strip_suffix('.'));
        if let Some(relative) = within {
            let labels: Vec<&str> = relative.split('.').collect();
            return self.inside(name, &labels, kind, directory);
        }
        let Some(address) = reversed(name) else { return Answer::Foreign };
        match self.pointer(name, kind, address, directory) {
            // Services may have addresses of ranges that were added later; a question about an
            // address of no Service is forwarded.
            Answer::NoName if !self.reverse.iter().any(|b| b.contains(address)) => Answer::Foreign,
            answer => answer,
        }
    }

    fn apex(&self, name: &str, kind: Kind) -> Answer {
        let record = |data| Record { name: name.to_owned(), data };
        records(match kind {
            Kind::Soa => vec![record(Data::Soa)],
            Kind::Ns => vec![record(Data::Ns(format!("ns.dns.{}", self.domain)))],
            Kind::Any => {
                vec![record(Data::Soa), record(Data::Ns(format!("ns.dns.{}", self.domain)))]
            }
            _ => Vec::new(),
        })
    }

    fn inside(&self, name: &str, labels: &[&str], kind: Kind, directory: &dyn Directory) -> Answer {
        let nothing = || records(Vec::new());
        match labels {
            ["dns-version"] => records(match kind {
                Kind::Txt | Kind::Any => {
                    vec![Record { name: name.to_owned(), data: Data::Txt("1.1.0".into()) }]
                }
                _ => Vec::new(),
            }),
            ["ns", "dns"] => self.addresses(name, kind, &self.servers),
            ["svc" | "pod" | "dns"] => nothing(),
            [namespace, "svc" | "pod"] if directory.has_namespace(namespace) => nothing(),
            [label, namespace, "pod"] if directory.has_namespace(namespace) => {
                match undashed(label) {
                    Some(address) => self.addresses(name, kind, &[address]),
                    None => Answer::NoName,
                }
            }
            [rest @ .., service, namespace, "svc"] => {
                let host = format!("{service}.{namespace}.svc.{}", self.domain);
                match directory.service(namespace, service) {
                    None => Answer::NoName,
                    Some(ServiceInfo::External(target)) if rest.is_empty() => match kind {
                        Kind::A | Kind::Aaaa | Kind::Cname | Kind::Any => {
                            let data = Data::Cname(target.trim_end_matches('.').to_owned());
                            records(vec![Record { name: name.to_owned(), data }])
                        }
                        _ => nothing(),
                    },
                    Some(ServiceInfo::External(_)) => Answer::NoName,
                    Some(ServiceInfo::Cluster { addresses, ports }) => match rest {
                        // As CoreDNS: the names that reverse names of endpoints lead to exist.
                        [label] if !label.starts_with('_') => {
                            let list = directory.endpoints(namespace, service);
                            Self::headless(name, &host, rest, kind, &list)
                        }
                        _ => self.cluster(name, &host, rest, kind, &addresses, &ports),
                    },
                    Some(ServiceInfo::Headless) => {
                        let list = directory.endpoints(namespace, service);
                        Self::headless(name, &host, rest, kind, &list)
                    }
                }
            }
            _ => Answer::NoName,
        }
    }

    fn addresses(&self, name: &str, kind: Kind, list: &[IpAddr]) -> Answer {
        let fitting = list.iter().filter(|a| matches(kind, **a));
        records(
            fitting.map(|a| Record { name: name.to_owned(), data: Data::Address(*a) }).collect(),
        )
    }

    fn cluster(
        &self,
        name: &str,
        host: &str,
        rest: &[&str],
        kind: Kind,
        addresses: &[IpAddr],
        ports: &[PortInfo],
    ) -> Answer {
        let wanted: Vec<&PortInfo> = match rest {
            [] if kind != Kind::Srv => return self.addresses(name, kind, addresses),
            [] => ports.iter().filter(|p| !p.name.is_empty()).collect(),
            [protocol] if is_protocol(protocol, ports.iter()) => return records(Vec::new()),
            [port, protocol] => ports.iter().filter(|p| is_port(p, port, protocol)).collect(),
            _ => return Answer::NoName,
        };
        if wanted.is_empty() && !rest.is_empty() {
            return Answer::NoName;
        }
        if !matches!(kind, Kind::Srv | Kind::Any) {
            return records(Vec::new());
        }
        let answers = wanted
            .iter()
            .map(|p| Record {
                name: name.to_owned(),
                data: Data::Srv { port: p.number, weight: 100, target: host.to_owned() },
            })
            .collect();
        let additionals = addresses
            .iter()
            .map(|a| Record { name: host.to_owned(), data: Data::Address(*a) })
            .collect();
        Answer::Records { answers, additionals }
    }

    fn headless(
        name: &str,
        host: &str,
        rest: &[&str],
        kind: Kind,
        list: &[EndpointInfo],
    ) -> Answer {
        let addresses = |of: Vec<&EndpointInfo>| {
            if of.is_empty() {
                return Answer::NoName;
            }
            let mut answers: Vec<Record> = of
                .iter()
                .filter(|e| matches(kind, e.address))
                .map(|e| Record { name: name.to_owned(), data: Data::Address(e.address) })
                .collect();
            answers.compact_sort();
            answers.dedup();
            records(answers)
        };
        let wanted: &dyn Fn(&PortInfo) -> bool = match rest {
            [] if kind != Kind::Srv => return addresses(list.iter().collect()),
            [] => &|p| !p.name.is_empty(),
            [protocol] if is_protocol(protocol, list.iter().flat_map(|e| &e.ports)) => {
                return records(Vec::new());
            }
            [label] => {
                return addresses(list.iter().filter(|e| endpoint_label(e) == *label).collect());
            }
            [port, protocol] => &|p| is_port(p, port, protocol),
            _ => return Answer::NoName,
        };
        let mut answers = Vec::new();
        let mut additionals = Vec::new();
        for endpoint in list {
            let target = format!("{}.{host}", endpoint_label(endpoint));
            for port in endpoint.ports.iter().filter(|p| wanted(p)) {
                let data = Data::Srv { port: port.number, weight: 100, target: target.clone() };
                answers.push(Record { name: name.to_owned(), data });
                let data = Data::Address(endpoint.address);
                additionals.push(Record { name: target.clone(), data });
            }
        }
        if answers.is_empty() && (list.is_empty() || !rest.is_empty()) {
            return Answer::NoName;
        }
        if !matches!(kind, Kind::Srv | Kind::Any) {
            return records(Vec::new());
        }
        for list in [&mut answers, &mut additionals] {
            list.compact_sort();
            list.dedup();
        }
        let all = u16::try_from(answers.len()).unwrap_or(100).clamp(1, 100);
        for record in &mut answers {
            if let Data::Srv { weight, .. } = &mut record.data {
                *weight = 100 / all;
            }
        }
        Answer::Records { answers, additionals }
    }

    fn pointer(
        &self,
        name: &str,
        kind: Kind,
        address: IpAddr,
        directory: &dyn Directory,
    ) -> Answer {
        let mut names: Vec<String> = directory
            .services_at(address)
            .into_iter()
            .map(|(namespace, service)| format!("{service}.{namespace}.svc.{}", self.domain))
            .collect();
        if names.is_empty() {
            names.extend(directory.endpoints_at(address).into_iter().map(
                |(namespace, service, hostname)| {
                    let label = hostname.unwrap_or_else(|| dashed(address));
                    format!("{label}.{service}.{namespace}.svc.{}", self.domain)
                },
            ));
        }
        if names.is_empty() {
            return Answer::NoName;
        }
        names.compact_sort();
        names.dedup();
        if !matches!(kind, Kind::Ptr | Kind::Any) {
            return records(Vec::new());
        }
        records(
            names
                .into_iter()
                .map(|n| Record { name: name.to_owned(), data: Data::Ptr(n) })
                .collect(),
        )
    }
}

fn is_port(port: &PortInfo, name: &str, protocol: &str) -> bool {
    name.strip_prefix('_') == Some(port.name.as_str())
        && protocol.strip_prefix('_') == Some(port.protocol.as_str())
}

/// `_tcp` above named ports exists without records of its own.
fn is_protocol<'a>(label: &str, mut ports: impl Iterator<Item = &'a PortInfo>) -> bool {
    ports.any(|p| !p.name.is_empty() && label.strip_prefix('_') == Some(p.protocol.as_str()))
}

#[cfg(test)]
mod tests;
