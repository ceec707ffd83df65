//! Sends packets through the kernel's rules of network policies, between two pods of a node, the
//! node itself, and a client outside, in both address families.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpStream, UdpSocket};

use api::{Object, ObjectKey};
use serde_json::{Value as Json, json};

use super::decide::{Decider, Local};
use super::model::{Pod, Policy};
use super::nft::{Layout, table};
use super::{DroppedPackets, Frames, FramesState, Kernel, Table, TableState};
use crate::cni::host_link;
use crate::config::Guard;
use crate::netlink::Socket;
use crate::testing::shell;
use crate::traffic_tests::{Node, WAIT, ask, each_family, line, udp, who};

/// The decisions of network policies and the kernel state that they are applied to.
struct Filter {
    decider: Decider,
    kernel: Kernel,
}

fn object(value: Json) -> Object {
    Object::from_value(value).unwrap()
}

impl Filter {
    /// Pods `a` and `b` of namespace `n`, each with its name as label.
    fn new(node: &Node, guard: Option<Guard>) -> Self {
        let mut decider = Decider::new(&[]);
        let mut local = Vec::new();
        for (name, (_, address)) in ["a", "b"].iter().zip(&node.pods) {
            let key = ObjectKey::new("n", name);
            let pod = json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"namespace": "n", "name": name, "uid": name, "labels": {"pod": name}},
                "spec": {"containers": [
                    {"name": "c", "ports": [{"name": "web", "containerPort": 8080}]}]},
                "status": {"phase": "Running", "podIPs": [{"ip": address.to_string()}]}});
            decider.pod(&key, Pod::read(&object(pod)));
            let link = host_link(name, "eth0");
            local.push(Local { key, uid: (*name).to_owned(), addresses: vec![*address], link });
        }
        let namespace =
            object(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}}));
        decider.namespace(&"n".into(), Some(namespace.labels));
        decider.local(local);
        let layout =
            Layout { family: node.family, table: table("kube-lite"), bridge: "cni0".into(), guard };
        let tables = vec![Table { layout, state: TableState::Unknown }];
        let frames = Frames {
            table: table("kube-lite"),
            bridge: "cni0".into(),
            state: FramesState::Unknown,
            refusal_logged: false,
        };
        let kernel = Kernel {
            socket: Socket::netfilter().unwrap(),
            tables,
            frames,
            dropped: DroppedPackets::default(),
        };
        let mut filter = Self { decider, kernel };
        filter.apply();
        filter
    }

    /// Creates or replaces the network policy `p`; `None` deletes it.
    fn set(&mut self, spec: Option<Json>) {
        self.set_named("p", json!({}), spec);
    }

    /// As [`Self::set`], for a policy with this name and annotations.
    fn set_named(&mut self, name: &str, annotations: Json, spec: Option<Json>) {
        let policy = spec.map(|spec| {
            let metadata = json!({"namespace": "n", "name": name, "annotations": annotations});
            Policy::read(&object(json!({"apiVersion": "networking.k8s.io/v1",
                "kind": "NetworkPolicy", "metadata": metadata, "spec": spec})))
        });
        self.decider.policy(&ObjectKey::new("n", name), policy);
        self.apply();
    }

    /// Applies the rules for the current policies and pods.
    fn apply(&mut self) {
        let nodes = BTreeSet::from(["192.0.2.9", "2001:db8::9"].map(|a| a.parse().unwrap()));
        let mut decision = self.decider.decide();
        self.kernel.apply(&mut decision, self.decider.locals(), &nodes).unwrap();
        // `nft` fails if it cannot list the rules.
        shell("nft list ruleset >/dev/null");
    }

    /// Applies the rules as after a start of the process, which has no record of the tables.
    fn restart(&mut self) {
        for table in &mut self.kernel.tables {
            table.state = TableState::Unknown;
        }
        self.apply();
    }
}

/// The CIDR that has only this address.
fn block(address: std::net::IpAddr) -> String {
    settings::Cidr::host(address).to_string()
}

fn ingress_of_a(from: Json) -> Json {
    json!({"podSelector": {"matchLabels": {"pod": "a"}}, "ingress": from})
}

fn egress_of_a(to: Json) -> Json {
    json!({"podSelector": {"matchLabels": {"pod": "a"}}, "policyTypes": ["Egress"], "egress": to})
}

#[test]
fn dropped_packets_are_counted_and_logged_for_each_policy_that_isolates_the_pod() {
    let name = "dropped_packets_are_counted_and_logged_for_each_policy_that_isolates_the_pod";
    each_family(name, |node| {
        let mut filter = Filter::new(node, None);
        let dropped = filter.kernel.dropped.clone();
        let count = |policy: &str| -> Option<u64> {
            let text = dropped.render().unwrap();
            let series = format!("{{namespace=\"n\",networkpolicy=\"{policy}\"}} ");
            let line = text.lines().find_map(|line| line.split_once(&series))?;
            Some(line.1.parse().unwrap())
        };
        let a = node.pods[0].1;
        assert_eq!(dropped.render().unwrap(), "");
        filter.set(Some(ingress_of_a(json!([]))));
        assert_eq!(count("p"), Some(0));
        assert_eq!(node.ask_in_pod(1, a, 8080), "dropped");
        let first = count("p").unwrap();
        assert!(first > 0);
        let limits = json!({"kube-router.io/netpol-nflog-limit": "7/hour",
            "kube-router.io/netpol-nflog-limit-burst": "3"});
        filter.set_named("q", limits, Some(ingress_of_a(json!([]))));
        assert_eq!((count("p"), count("q")), (Some(first), Some(0)), "counts stay");
        let rules = shell("nft list ruleset");
        for log in [
            "limit rate 10/minute burst 10 packets log prefix \"DROP by policy n/p\" group 100",
            "limit rate 7/hour burst 3 packets log prefix \"DROP by policy n/q\" group 100",
        ] {
            assert!(rules.contains(log), "{rules}");
        }
        assert_eq!(node.ask_in_pod(1, a, 8080), "dropped");
        assert!(count("p").unwrap() > first && count("q").unwrap() > 0);
        filter.set(None);
        assert_eq!(count("p"), None);
        assert!(count("q").unwrap() > 0 && !shell("nft list ruleset").contains("n/p"));
        filter.set_named("q", json!({}), None);
        assert_eq!(dropped.render().unwrap(), "");
    });
}

#[test]
fn ingress_is_dropped_except_from_sources_that_a_policy_allows() {
    each_family("ingress_is_dropped_except_from_sources_that_a_policy_allows", |node| {
        node.service(6, &[(0, true)], |_| {});
        let mut filter = Filter::new(node, None);
        let (a, b) = (node.pods[0].1, node.pods[1].1);
        assert_eq!(who(&node.ask_in_pod(1, a, 8080)), "a");
        filter.set(Some(ingress_of_a(json!([]))));
        assert_eq!(node.ask_in_pod(1, a, 8080), "dropped");
        assert_eq!(node.ask_in_pod(1, node.vip(), 80), "dropped", "through a Service");
        assert_eq!(node.ask_outside(node.node(), 30080), "dropped", "through a node port");
        assert_eq!(who(&ask(&Node::at(a, 8080))), "a", "the node itself, as probes do");
        assert_eq!(who(&node.ask_in_pod(0, node.vip(), 80)), "a", "itself through a Service");
        assert_eq!(who(&node.ask_in_pod(0, b, 8080)), "b", "egress of the isolated pod");
        filter.set(Some(ingress_of_a(json!([{
            "from": [{"podSelector": {"matchLabels": {"pod": "b"}}}],
            "ports": [{"port": "web"}]}]))));
        assert_eq!(node.ask_in_pod(1, node.vip(), 80), format!("a {b}"), "the source is kept");
        assert_eq!(node.ask_outside(a, 8080), "dropped");
        filter.set(Some(ingress_of_a(
            json!([{"from": [{"ipBlock": {"cidr": block(node.client())}}]}]),
        )));
        assert_eq!(
            who(&node.ask_outside(node.node(), 30080)),
            "a",
            "rules see the source before masquerading"
        );
        assert_eq!(node.ask_in_pod(1, a, 8080), "dropped");
        filter.set(None);
        assert_eq!(who(&node.ask_in_pod(1, a, 8080)), "a");
        assert!(!shell("nft list tables").contains("-policy"), "no policy, no table");
    });
}

#[test]
fn egress_is_decided_by_the_destination_after_translation() {
    each_family("egress_is_decided_by_the_destination_after_translation", |node| {
        node.service(6, &[(1, true)], |_| {});
        let mut filter = Filter::new(node, None);
        let (a, b) = (node.pods[0].1, node.pods[1].1);
        let (family, own) = (node.family, node.node());
        node.outside.run(move || crate::traffic_tests::serve("out", family));
        crate::traffic_tests::serve("node", family);
        filter.set(Some(egress_of_a(json!([]))));
        for (to, port) in [(b, 8080), (node.vip(), 80), (node.client(), 8080), (own, 8080)] {
            assert_eq!(node.ask_in_pod(0, to, port), "dropped", "{to}");
        }
        assert_eq!(who(&node.ask_in_pod(1, a, 8080)), "a", "replies of the isolated pod");
        assert_eq!(who(&node.ask_in_pod(1, own, 8080)), "node", "a pod without a policy");
        filter.set(Some(egress_of_a(
            json!([{"to": [{"podSelector": {"matchLabels": {"pod": "b"}}}]}]),
        )));
        assert_eq!(who(&node.ask_in_pod(0, node.vip(), 80)), "b", "rules see the endpoint");
        assert_eq!(node.ask_in_pod(0, node.client(), 8080), "dropped");
        let to = [own, node.client()].map(|ip| json!({"ipBlock": {"cidr": block(ip)}}));
        filter.set(Some(egress_of_a(json!([{"to": to}]))));
        assert_eq!(who(&node.ask_in_pod(0, own, 8080)), "node");
        assert_eq!(who(&node.ask_in_pod(0, node.client(), 8080)), "out");
        assert_eq!(node.ask_in_pod(0, b, 8080), "dropped");
    });
}

#[test]
fn established_connections_survive_new_policies_and_a_restart() {
    each_family("established_connections_survive_new_policies_and_a_restart", |node| {
        let mut filter = Filter::new(node, None);
        let to: SocketAddr = Node::at(node.pods[0].1, 8080).parse().unwrap();
        let mut stream = node.pods[1].0.run(move || TcpStream::connect_timeout(&to, WAIT).unwrap());
        assert_eq!(who(&line(&mut stream)), "a");
        filter.set(Some(ingress_of_a(json!([]))));
        assert_eq!(who(&line(&mut stream)), "a", "an established connection, as in kube-router");
        filter.restart();
        assert_eq!(who(&line(&mut stream)), "a");
        assert_eq!(node.ask_in_pod(1, to.ip(), 8080), "dropped", "a new connection");
    });
}

#[test]
fn policies_distinguish_ports_and_protocols() {
    each_family("policies_distinguish_ports_and_protocols", |node| {
        let mut filter = Filter::new(node, None);
        let a = node.pods[0].1;
        let any = SocketAddr::new(node.family.unspecified(), 0);
        let by_udp = |node: &Node| {
            let to = Node::at(a, 8080);
            node.pods[1].0.run(move || who(&udp(&UdpSocket::bind(any).unwrap(), &to)))
        };
        let ports = |list: Json| Some(ingress_of_a(json!([{"ports": list}])));
        filter.set(ports(json!([{"protocol": "UDP", "port": 8000, "endPort": 8080}])));
        assert_eq!(by_udp(node), "a");
        assert_eq!(node.ask_in_pod(1, a, 8080), "dropped");
        filter.set(ports(json!([{"port": 8080, "endPort": 8090}, {"port": 1}])));
        assert_eq!(who(&node.ask_in_pod(1, a, 8080)), "a");
        assert_ne!(by_udp(node), "a");
        filter.set(ports(json!([{"port": 8081, "endPort": 8090}])));
        assert_eq!(node.ask_in_pod(1, a, 8080), "dropped");
    });
}

#[test]
fn pods_cannot_bypass_policies_by_direct_frames_or_other_addresses() {
    each_family("pods_cannot_bypass_policies_by_direct_frames_or_other_addresses", |node| {
        // While this is set, the kernel applies the rules for IP packets to bridged frames, too.
        shell(
            "for f in /proc/sys/net/bridge/bridge-nf-call-ip*tables; do
                 [ ! -e $f ] || echo 0 >$f
             done",
        );
        let mut filter = Filter::new(node, None);
        let a = node.pods[0].1;
        let b = |node: &Node, command: String| node.pods[1].0.run(move || shell(&command));
        let other_address = if a.is_ipv4() { "10.42.0.77" } else { "fd00:42::77" };
        let nodad = if a.is_ipv4() { "" } else { "nodad" };
        b(node, format!("ip addr add {other_address} dev eth0 {nodad}"));
        let from_other_address = |node: &Node| {
            node.pods[1].0.run(move || {
                let from: std::net::IpAddr = other_address.parse().unwrap();
                who(&udp(&UdpSocket::bind((from, 0)).unwrap(), &Node::at(a, 8080)))
            })
        };
        assert_eq!(from_other_address(node), "a", "while no pod is isolated");
        b(node, format!("ip route replace {} dev eth0", block(a)));
        assert_eq!(who(&node.ask_in_pod(1, a, 8080)), "a", "directly, while no pod is isolated");
        filter.set(Some(ingress_of_a(json!([]))));
        assert_eq!(node.ask_in_pod(1, a, 8080), "dropped");
        filter.set(Some(ingress_of_a(json!([{}]))));
        assert_ne!(who(&node.ask_in_pod(1, a, 8080)), "a", "directly, while a pod is isolated");
        b(node, format!("ip route del {} dev eth0", block(a)));
        assert_eq!(who(&node.ask_in_pod(1, a, 8080)), "a");
        assert_ne!(from_other_address(node), "a", "while a pod is isolated");
    });
}

#[test]
fn guarded_ports_of_nodes_are_closed_to_pods_unless_a_policy_allows_them() {
    each_family("guarded_ports_of_nodes_are_closed_to_pods_unless_a_policy_allows_them", |node| {
        let (family, own, client) = (node.family, node.node(), node.client());
        node.outside.run(move || crate::traffic_tests::serve("other", family));
        crate::traffic_tests::serve("node", family);
        let closed = Guard { closed: vec![8080], by_service: Vec::new() };
        let mut filter = Filter::new(node, Some(closed));
        assert_eq!(node.ask_in_pod(0, own, 8080), "dropped", "a port of this node");
        assert_eq!(node.ask_in_pod(0, client, 8080), "dropped", "a port of another node");
        assert_eq!(
            who(&node.ask_in_pod(0, node.pods[1].1, 8080)),
            "b",
            "a pod's port with that number"
        );
        assert_eq!(who(&ask(&Node::at(own, 8080))), "node");
        filter.set(Some(egress_of_a(
            json!([{"to": [{"ipBlock": {"cidr": block(own)}}], "ports": [{"port": 8080}]}]),
        )));
        assert_eq!(who(&node.ask_in_pod(0, own, 8080)), "node", "a policy allows the port");
    });
}
