//! Questions and answers of the Kubernetes DNS specification 1.1.0.

use super::*;

struct Sample;

fn port(name: &str, protocol: &str, number: u16) -> PortInfo {
    PortInfo { name: name.into(), protocol: protocol.into(), number }
}

impl Directory for Sample {
    fn service(&self, namespace: &str, name: &str) -> Option<ServiceInfo> {
        match (namespace, name) {
            ("default", "kubernetes") => Some(ServiceInfo::Cluster {
                addresses: vec!["10.3.0.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
                ports: vec![port("https", "tcp", 443)],
            }),
            ("default", "headless" | "empty") => Some(ServiceInfo::Headless),
            ("default", "foo") => Some(ServiceInfo::External("www.example.com".into())),
            _ => None,
        }
    }

    fn endpoints(&self, _: &str, name: &str) -> Vec<EndpointInfo> {
        if name == "empty" {
            return Vec::new();
        }
        vec![
            EndpointInfo {
                address: "10.3.0.100".parse().unwrap(),
                hostname: Some("my-pet".into()),
                ports: vec![port("https", "tcp", 443)],
            },
            EndpointInfo {
                address: "10.3.10.1".parse().unwrap(),
                hostname: None,
                ports: vec![port("https", "tcp", 443)],
            },
        ]
    }

    fn has_namespace(&self, namespace: &str) -> bool {
        namespace == "default"
    }

    fn services_at(&self, address: IpAddr) -> Vec<(String, String)> {
        if address.to_string() == "10.3.0.1" {
            vec![("default".into(), "kubernetes".into())]
        } else {
            Vec::new()
        }
    }

    fn endpoints_at(&self, address: IpAddr) -> Vec<(String, String, Option<String>)> {
        match address.to_string().as_str() {
            "10.3.0.100" => vec![("default".into(), "headless".into(), Some("my-pet".into()))],
            // A pod of a Service with an address, with two ports.
            "192.0.2.7" => {
                let one = || ("default".into(), "kubernetes".into(), None);
                vec![one(), one()]
            }
            _ => Vec::new(),
        }
    }
}

fn ask(name: &str, kind: Kind) -> String {
    let zone = Zone {
        domain: "cluster.local".into(),
        reverse: vec!["10.3.0.0/16".parse().unwrap()],
        servers: vec!["10.3.0.10".parse().unwrap()],
    };
    let text = |list: Vec<Record>| {
        let one = |r: Record| match r.data {
            Data::Address(a) => a.to_string(),
            Data::Srv { port, weight, target } => format!("{weight} {port} {target}"),
            Data::Ptr(n) | Data::Cname(n) | Data::Ns(n) | Data::Txt(n) => n,
            Data::Soa => "SOA".into(),
        };
        list.into_iter().map(one).collect::<Vec<_>>().join(", ")
    };
    match zone.answer(name, kind, &Sample) {
        Answer::Foreign => "foreign".into(),
        Answer::NoName => "NXDOMAIN".into(),
        Answer::Records { answers, additionals } if additionals.is_empty() => text(answers),
        Answer::Records { answers, additionals } => {
            format!("{} + {}", text(answers), text(additionals))
        }
    }
}

#[test]
fn the_specification_holds() {
    for (name, kind, want) in [
        ("dns-version.cluster.local", Kind::Txt, "1.1.0"),
        ("kubernetes.default.svc.cluster.local", Kind::A, "10.3.0.1"),
        ("kubernetes.default.svc.cluster.local", Kind::Aaaa, "2001:db8::1"),
        ("kubernetes.default.svc.cluster.local", Kind::Txt, ""),
        ("missing.default.svc.cluster.local", Kind::A, "NXDOMAIN"),
        (
            "_https._tcp.kubernetes.default.svc.cluster.local",
            Kind::Srv,
            "100 443 kubernetes.default.svc.cluster.local + 10.3.0.1, 2001:db8::1",
        ),
        ("_http._tcp.kubernetes.default.svc.cluster.local", Kind::Srv, "NXDOMAIN"),
        ("_tcp.kubernetes.default.svc.cluster.local", Kind::Srv, ""),
        ("1.0.3.10.in-addr.arpa", Kind::Ptr, "kubernetes.default.svc.cluster.local"),
        ("headless.default.svc.cluster.local", Kind::A, "10.3.0.100, 10.3.10.1"),
        ("headless.default.svc.cluster.local", Kind::Aaaa, ""),
        ("my-pet.headless.default.svc.cluster.local", Kind::A, "10.3.0.100"),
        ("10-3-10-1.headless.default.svc.cluster.local", Kind::A, "10.3.10.1"),
        ("other.headless.default.svc.cluster.local", Kind::A, "NXDOMAIN"),
        (
            "_https._tcp.headless.default.svc.cluster.local",
            Kind::Srv,
            "50 443 10-3-10-1.headless.default.svc.cluster.local, 50 443 my-pet.headless.default.svc.cluster.local \
             + 10.3.10.1, 10.3.0.100",
        ),
        ("100.0.3.10.in-addr.arpa", Kind::Ptr, "my-pet.headless.default.svc.cluster.local"),
        ("7.2.0.192.in-addr.arpa", Kind::Ptr, "192-0-2-7.kubernetes.default.svc.cluster.local"),
        ("10-3-10-1.kubernetes.default.svc.cluster.local", Kind::A, "10.3.10.1"),
        ("10-3-10-2.kubernetes.default.svc.cluster.local", Kind::A, "NXDOMAIN"),
        ("9.9.3.10.in-addr.arpa", Kind::Ptr, "NXDOMAIN"),
        ("9.9.9.9.in-addr.arpa", Kind::Ptr, "foreign"),
        ("empty.default.svc.cluster.local", Kind::A, "NXDOMAIN"),
        ("foo.default.svc.cluster.local", Kind::A, "www.example.com"),
        ("foo.default.svc.cluster.local", Kind::Cname, "www.example.com"),
        ("foo.default.svc.cluster.local", Kind::Srv, ""),
        ("10-42-0-7.default.pod.cluster.local", Kind::A, "10.42.0.7"),
        ("2001-db8--7.default.pod.cluster.local", Kind::Aaaa, "2001:db8::7"),
        ("10-42-0-7.default.pod.cluster.local", Kind::Aaaa, ""),
        ("10-42-0-7.missing.pod.cluster.local", Kind::A, "NXDOMAIN"),
        ("words.default.pod.cluster.local", Kind::A, "NXDOMAIN"),
        ("default.svc.cluster.local", Kind::A, ""),
        ("missing.svc.cluster.local", Kind::A, "NXDOMAIN"),
        ("svc.cluster.local", Kind::A, ""),
        ("cluster.local", Kind::Soa, "SOA"),
        ("ns.dns.cluster.local", Kind::A, "10.3.0.10"),
        ("default.cluster.local", Kind::A, "NXDOMAIN"),
        ("example.com", Kind::A, "foreign"),
        // What the search path makes of it is answered without an upstream server.
        ("example.com.default.svc.cluster.local", Kind::A, "NXDOMAIN"),
        ("example.com.svc.cluster.local", Kind::A, "NXDOMAIN"),
        ("example.com.cluster.local", Kind::A, "NXDOMAIN"),
        ("notcluster.local", Kind::A, "foreign"),
    ] {
        assert_eq!(ask(name, kind), want, "{name} {kind:?}");
    }
}
