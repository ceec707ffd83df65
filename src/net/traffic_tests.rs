//! Real traffic through namespaces: pods on a node, a client outside, both families.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use serde_json::json;
use tokio::sync::watch;

use crate::cni::{Command, Server};
use crate::netlink::{Socket, conntrack};
use crate::proxy::HostPorts;
use crate::proxy::nft::Layout;
use crate::proxy::rules::{DesiredElements, Groups, NodeContext, plan, plan_host_ports};
use crate::proxy::services::{Endpoint, Port};
use crate::proxy::state::State;
use crate::testing::{Pod, config, in_namespace, privileged, request, shell};
use settings::addr::Family;

/// Longer than the second after which a refused packet is repeated: the kernel limits ICMP errors
/// per receiver.
pub(crate) const WAIT: Duration = Duration::from_millis(3500);

pub(crate) struct Node {
    pub(crate) family: Family,
    layout: Layout,
    state: State,
    groups: Groups,
    node_context: NodeContext,
    socket: Socket,
    server: Server,
    ports: watch::Receiver<HostPorts>,
    pub(crate) outside: Pod,
    pub(crate) pods: Vec<(Pod, IpAddr)>,
    _directory: tempfile::TempDir,
    _blocks: watch::Sender<Vec<settings::Cidr>>,
}

/// Serves TCP and UDP on port 8080: answers with its own name and the address it sees.
pub(crate) fn serve(name: &'static str, family: Family) {
    let any = SocketAddr::new(family.unspecified(), 8080);
    let tcp = TcpListener::bind(any).unwrap();
    let udp = UdpSocket::bind(any).unwrap();
    std::thread::spawn(move || {
        for stream in tcp.incoming() {
            let Ok(mut stream) = stream else { return };
            let Ok(peer) = stream.peer_addr() else { continue };
            std::thread::spawn(move || {
                let mut line = [0; 1];
                while stream.read_exact(&mut line).is_ok() {
                    let _ = stream.write_all(format!("{name} {}\n", peer.ip()).as_bytes());
                }
            });
        }
    });
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, peer)) = udp.recv_from(&mut buffer) {
            let _ = udp.send_to(format!("{name} {}\n", peer.ip()).as_bytes(), peer);
        }
    });
}

pub(crate) fn line(stream: &mut TcpStream) -> String {
    stream.set_read_timeout(Some(WAIT)).unwrap();
    let mut out = String::new();
    let mut byte = [0];
    if stream.write_all(b"?").is_err() {
        return "broken".into();
    }
    while stream.read_exact(&mut byte).is_ok() && byte[0] != b'\n' {
        out.push(char::from(byte[0]));
    }
    out
}

/// What a TCP request answers: `name peer`, `refused` or `dropped`.
pub(crate) fn ask(to: &str) -> String {
    match TcpStream::connect_timeout(&to.parse().unwrap(), WAIT) {
        Ok(mut stream) => line(&mut stream),
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => "refused".into(),
        Err(e) if e.kind() == std::io::ErrorKind::TimedOut => "dropped".into(),
        Err(e) => e.to_string(),
    }
}

pub(crate) fn udp(socket: &UdpSocket, to: &str) -> String {
    let mut buffer = [0; 64];
    socket.set_read_timeout(Some(WAIT)).unwrap();
    socket.send_to(b"?", to).map_or_else(
        |e| e.to_string(),
        |_| match socket.recv(&mut buffer) {
            Ok(n) => String::from_utf8_lossy(&buffer[..n]).trim().to_owned(),
            Err(e) => e.kind().to_string(),
        },
    )
}

pub(crate) fn who(answer: &str) -> String {
    answer.split(' ').next().unwrap().to_owned()
}

impl Node {
    /// A node 192.0.2.1 with pods `a` and `b`, and a client 192.0.2.9 outside.
    pub(crate) fn new(family: Family) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(directory.path());
        config.cluster.cluster_cidrs.retain(|c| c.family() == family);
        config.cluster.service_cidrs.retain(|c| c.family() == family);
        config.pod_cidrs.retain(|c| c.family() == family);
        let outside = Pod::new();
        shell(&format!(
            "ip link add out type veth peer name eth0 netns {}; ip link set out up
             ip addr add 192.0.2.1/24 dev out; ip addr add 2001:db8::1/64 dev out nodad",
            outside.tid
        ));
        outside.run(|| {
            shell(
                "ip link set lo up; ip link set eth0 up; ip addr add 192.0.2.9/24 dev eth0
                 ip addr add 2001:db8::9/64 dev eth0 nodad
                 ip route add default via 192.0.2.1; ip route add default via 2001:db8::1",
            )
        });
        let (blocks, seen) = watch::channel(config.pod_cidrs.clone());
        let (tell, ports) = watch::channel(HostPorts::new());
        let server = Server::open(&config, seen, tell).unwrap();
        let layout = Layout {
            family,
            tunnel: None,
            table: "kube-lite".into(),
            bridge: "cni0".into(),
            cluster: config.cluster.cluster_cidrs.clone(),
            service: config.cluster.service_cidrs.clone(),
            localhost: true,
        };
        let node_context = NodeContext { node: "me".into(), ..NodeContext::default() };
        let mut node = Self {
            family,
            layout,
            state: State::default(),
            groups: Groups::default(),
            node_context,
            socket: Socket::netfilter().unwrap(),
            server,
            ports,
            outside,
            pods: Vec::new(),
            _directory: directory,
            _blocks: blocks,
        };
        node.restart();
        for name in ["a", "b"] {
            let runtime = if name == "a" {
                json!({"portMappings":[{"hostPort":8081,"containerPort":8080,"protocol":"tcp"}]})
            } else {
                json!({})
            };
            let pod = Pod::new();
            let call = request("ADD", name, &pod, runtime);
            let result = node.server.work(Command::Add, &call).unwrap();
            let address = result["ips"][0]["address"].as_str().unwrap();
            let address = address.split('/').next().unwrap().parse().unwrap();
            pod.run(move || serve(name, family));
            node.pods.push((pod, address));
        }
        node
    }

    fn restart(&mut self) {
        self.layout.replace(&mut self.socket, &self.state, &self.node_context).unwrap();
        let _ = self.state.take_difference();
    }

    fn apply(&mut self) {
        let list = self.ports.borrow_and_update().clone();
        for (owner, ports) in list {
            self.state.replace(&owner, plan_host_ports(&ports, self.family));
        }
        let difference = self.state.take_difference();
        self.layout.apply(&mut self.socket, &self.state, &difference).unwrap();
        conntrack::forget_stale(&mut self.socket, self.family, &difference.udp).unwrap();
    }

    /// Sets the service with these pods as endpoints; a pod's `remote` twin counts as on another
    /// node.
    pub(crate) fn service(
        &mut self,
        protocol: u8,
        pods: &[(usize, bool)],
        change: impl FnOnce(&mut Port),
    ) {
        let mut port = Port {
            name: format!("n/s{protocol}:"),
            port_name: String::new(),
            protocol,
            number: 80,
            node_port: 30080,
            cluster_ips: vec![self.vip()],
            external_ips: vec![self.external()],
            load_balancer_ips: Vec::new(),
            balanced_by_nodes: true,
            source_ranges: Vec::new(),
            affinity_seconds: 0,
            external_local: false,
            internal_local: false,
        };
        change(&mut port);
        let list = pods.iter().map(|(index, local)| Endpoint {
            address: self.pods[*index].1,
            port: 8080,
            ready: true,
            serving: true,
            terminating: false,
            local: *local,
            zones: Vec::new(),
            nodes: Vec::new(),
        });
        let all = BTreeMap::from([((String::new(), protocol), list.collect())]);
        let wanted = plan(&mut self.groups, &[port], &all, &self.node_context, self.family);
        self.state.replace(&format!("n/s{protocol}"), wanted);
        self.apply();
    }

    pub(crate) fn vip(&self) -> IpAddr {
        let text = if self.family == Family::V4 { "10.43.0.9" } else { "fd00:43::9" };
        text.parse().unwrap()
    }

    fn external(&self) -> IpAddr {
        let text = if self.family == Family::V4 { "203.0.113.5" } else { "2001:db8:5::5" };
        text.parse().unwrap()
    }

    pub(crate) fn node(&self) -> IpAddr {
        let text = if self.family == Family::V4 { "192.0.2.1" } else { "2001:db8::1" };
        text.parse().unwrap()
    }

    pub(crate) fn client(&self) -> IpAddr {
        let text = if self.family == Family::V4 { "192.0.2.9" } else { "2001:db8::9" };
        text.parse().unwrap()
    }

    pub(crate) fn at(ip: IpAddr, port: u16) -> String {
        SocketAddr::new(ip, port).to_string()
    }

    pub(crate) fn ask_in_pod(&self, pod: usize, ip: IpAddr, port: u16) -> String {
        let to = Self::at(ip, port);
        self.pods[pod].0.run(move || ask(&to))
    }

    pub(crate) fn ask_outside(&self, ip: IpAddr, port: u16) -> String {
        let to = Self::at(ip, port);
        self.outside.run(move || ask(&to))
    }
}

pub(crate) fn each_family(name: &str, test: fn(&mut Node)) {
    if !privileged(name) {
        return;
    }
    for family in Family::ALL {
        in_namespace(move || test(&mut Node::new(family)));
    }
}

#[test]
fn cluster_node_and_external_addresses_reach_all_endpoints() {
    each_family("cluster_node_and_external_addresses_reach_all_endpoints", |node| {
        node.service(6, &[(0, true), (1, true)], |_| {});
        let (vip, own, external) = (node.vip(), node.node(), node.external());
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..24 {
            seen.insert(who(&node.ask_in_pod(0, vip, 80)));
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["a", "b"]);
        for answer in [
            node.ask_outside(own, 30080),
            node.ask_outside(external, 80),
            node.ask_outside(vip, 80),
            ask(&Node::at(vip, 80)),
            ask(&Node::at(own, 30080)),
            node.ask_in_pod(1, own, 30080),
        ] {
            assert!(["a", "b"].contains(&who(&answer).as_str()), "{answer}");
        }
        if node.family == Family::V4 {
            assert!(["a", "b"].contains(&who(&ask("127.0.0.1:30080")).as_str()));
            // Routes to loopback addresses do not open them to others (CVE-2020-8558).
            shell("sysctl -qw net.ipv4.conf.all.route_localnet=1");
            let own = UdpSocket::bind("127.0.0.1:7999").unwrap();
            own.set_read_timeout(Some(WAIT)).unwrap();
            for other in [&node.outside, &node.pods[0].0] {
                other.run(|| {
                    shell(
                        "ip route flush table local 127.0.0.0/8
                         ip route flush table local 127.0.0.1
                         ip route add 127.0.0.1/32 via $(ip route | awk '/^default/ { print $3 }')",
                    );
                    let any = UdpSocket::bind("0.0.0.0:0").unwrap();
                    any.send_to(b"?", "127.0.0.1:7999").unwrap();
                });
                assert!(own.recv(&mut [0; 9]).is_err(), "a packet to loopback from outside");
            }
        }
        node.service(6, &[], |_| {});
        for answer in [
            node.ask_in_pod(0, vip, 80),
            node.ask_outside(own, 30080),
            ask(&Node::at(vip, 80)),
            node.ask_in_pod(0, vip, 81),
            ask(&Node::at(vip, 81)),
        ] {
            assert_eq!(answer, "refused");
        }
    });
}

/// The soonest of three: the machine may be busy, but what waits for a repeated packet never comes
/// before a second.
fn soonest(work: impl Fn() -> String) -> (String, bool) {
    let mut best = (String::new(), Duration::MAX);
    for _ in 0..3 {
        let begin = std::time::Instant::now();
        let answer = work();
        best = (answer, best.1.min(begin.elapsed()));
    }
    (best.0, best.1 < Duration::from_millis(900))
}

#[test]
fn a_service_without_endpoints_refuses_at_once_over_tcp_and_udp() {
    each_family("a_service_without_endpoints_refuses_at_once", |node| {
        node.service(6, &[], |_| {});
        node.service(17, &[], |_| {});
        // An external address is another machine's as far as routing knows.
        shell("ip route add default via 192.0.2.9; ip route add default via 2001:db8::9");
        let (vip, own, external) = (node.vip(), node.node(), node.external());
        let at_once = |answer: &str| (answer.to_owned(), true);
        assert_eq!(soonest(|| node.ask_in_pod(0, vip, 80)), at_once("refused"));
        assert_eq!(soonest(|| node.ask_outside(own, 30080)), at_once("refused"));
        assert_eq!(soonest(|| node.ask_outside(external, 80)), at_once("refused"));
        assert_eq!(soonest(|| ask(&Node::at(vip, 80))), at_once("refused"));
        let any = SocketAddr::new(node.family.unspecified(), 0);
        for (from, to, port) in [(&node.pods[0].0, vip, 80), (&node.outside, own, 30080)] {
            let answer = soonest(|| {
                let to = Node::at(to, port);
                from.run(move || {
                    let socket = UdpSocket::bind(any).unwrap();
                    // Connected, so that the kernel tells the refusal.
                    socket.connect(&to).unwrap();
                    socket.set_read_timeout(Some(WAIT)).unwrap();
                    let sent = socket.send(b"?").and_then(|_| socket.recv(&mut [0; 9]));
                    sent.map_or_else(|e| e.kind().to_string(), |_| "answered".into())
                })
            });
            assert_eq!(answer, at_once("connection refused"));
        }
    });
}

/// The kernel gives each address so many ICMPv6 messages a second. A packet that leaves by the
/// bridge it came from costs a redirect, which is worth four refusals: one that is refused must not
/// have got so far.
#[test]
fn redirects_do_not_use_up_what_refusals_need() {
    each_family("redirects_do_not_use_up_what_refusals_need", |node| {
        node.service(17, &[], |_| {});
        let (any, to) = (SocketAddr::new(node.family.unspecified(), 0), Node::at(node.vip(), 80));
        let answers = node.pods[0].0.run(move || {
            let socket = UdpSocket::bind(any).unwrap();
            socket.connect(&to).unwrap();
            let ask = |wait| {
                socket.set_read_timeout(Some(wait)).unwrap();
                socket.send(b"?").and_then(|_| socket.recv(&mut [0; 9])).unwrap_err().kind()
            };
            // More than an address may have at once.
            for _ in 0..60 {
                ask(Duration::from_millis(20));
            }
            // As a client that repeats its packet: each second is worth one refusal over IPv4, four
            // over IPv6.
            [(); 8].map(|()| ask(Duration::from_secs(1)))
        });
        let refused = |kind: &&std::io::ErrorKind| **kind == std::io::ErrorKind::ConnectionRefused;
        let least = if node.family == Family::V4 { 3 } else { 5 };
        assert!(answers.iter().filter(refused).count() >= least, "{answers:?}");
    });
}

#[test]
fn pods_keep_their_address_inside_and_are_masqueraded_outside_and_in_a_hairpin() {
    each_family("pods_keep_their_address_inside", |node| {
        node.service(6, &[(0, true)], |_| {});
        let (a, b) = (node.pods[0].1, node.pods[1].1);
        let gateway = if node.family == Family::V4 { "10.42.0.1" } else { "fd00:42::1" };
        assert_eq!(node.ask_in_pod(1, node.vip(), 80), format!("a {b}"));
        assert_eq!(node.ask_in_pod(0, node.vip(), 80), format!("a {gateway}"), "hairpin");
        assert_eq!(node.ask_in_pod(1, a, 8080), format!("a {b}"));
        let family = node.family;
        node.outside.run(move || serve("out", family));
        assert_eq!(node.ask_in_pod(0, node.client(), 8080), format!("out {}", node.node()));
    });
}

#[test]
fn policy_local_keeps_the_client_and_drops_without_local_endpoints() {
    each_family("policy_local_keeps_the_client", |node| {
        let (own, client, external) = (node.node(), node.client(), node.external());
        node.service(6, &[(0, true), (1, false)], |p| p.external_local = true);
        for _ in 0..6 {
            assert_eq!(node.ask_outside(own, 30080), format!("a {client}"));
            assert_eq!(node.ask_outside(external, 80), format!("a {client}"));
        }
        node.service(6, &[(1, false)], |p| p.external_local = true);
        assert_eq!(node.ask_outside(own, 30080), "dropped");
        assert_eq!(
            who(&node.ask_in_pod(0, own, 30080)),
            "b",
            "this cluster's pods take the short way"
        );
        assert_eq!(who(&ask(&Node::at(own, 30080))), "b");
        assert_eq!(who(&node.ask_in_pod(0, node.vip(), 80)), "b");
        node.service(6, &[(0, true), (1, false)], |p| p.internal_local = true);
        for _ in 0..6 {
            assert_eq!(who(&node.ask_in_pod(1, node.vip(), 80)), "a");
        }
        node.service(6, &[(1, false)], |p| p.internal_local = true);
        assert_eq!(node.ask_in_pod(0, node.vip(), 80), "dropped");
    });
}

#[test]
fn affinity_holds_over_changes_and_restarts_and_expires() {
    each_family("affinity_holds", |node| {
        let both: &[(usize, bool)] = &[(0, true), (1, true)];
        node.service(6, both, |p| p.affinity_seconds = 60);
        let (vip, own) = (node.vip(), node.node());
        let first = who(&node.ask_in_pod(0, vip, 80));
        for _ in 0..10 {
            assert_eq!(who(&node.ask_in_pod(0, vip, 80)), first);
            assert_eq!(who(&node.ask_in_pod(0, own, 30080)), first, "one service, one endpoint");
        }
        node.restart();
        for _ in 0..10 {
            assert_eq!(who(&node.ask_in_pod(0, vip, 80)), first, "after a restart");
        }
        let (gone, other) = if first == "a" { (1, "b") } else { (0, "a") };
        node.service(6, &[(gone, true)], |p| p.affinity_seconds = 60);
        assert_eq!(who(&node.ask_in_pod(0, vip, 80)), other, "its endpoint went");
        node.service(6, both, |p| p.affinity_seconds = 60);
        for _ in 0..10 {
            assert_eq!(who(&node.ask_in_pod(0, vip, 80)), other);
        }
        node.service(6, both, |p| p.affinity_seconds = 2);
        // After expiry both are chosen again, by chance: the same 40 times in a row does not
        // happen.
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..40 {
            shell("sleep 3");
            seen.insert(who(&node.ask_in_pod(0, vip, 80)));
            if seen.len() == 2 {
                return;
            }
        }
        panic!("affinity never expired: {seen:?}");
    });
}

#[test]
fn a_udp_client_follows_when_its_endpoint_goes() {
    each_family("a_udp_client_follows", |node| {
        let to = Node::at(node.vip(), 80);
        let any = SocketAddr::new(node.family.unspecified(), 0);
        let socket = std::sync::Arc::new(node.pods[1].0.run(move || UdpSocket::bind(any).unwrap()));
        node.service(17, &[], |_| {});
        assert!(!udp(&socket, &to).starts_with('a'));
        node.service(17, &[(0, true)], |_| {});
        assert_eq!(who(&udp(&socket, &to)), "a");
        node.service(17, &[(1, true)], |_| {});
        assert_eq!(who(&udp(&socket, &to)), "b");
    });
}

#[test]
fn connections_outlive_a_restart_and_changes_of_other_services() {
    each_family("connections_outlive_a_restart", |node| {
        node.service(6, &[(0, true)], |_| {});
        let to = Node::at(node.vip(), 80).parse().unwrap();
        let mut stream = node.pods[1].0.run(move || TcpStream::connect_timeout(&to, WAIT).unwrap());
        assert_eq!(who(&line(&mut stream)), "a");
        node.restart();
        assert_eq!(who(&line(&mut stream)), "a");
        node.service(6, &[(1, true)], |_| {});
        assert_eq!(who(&line(&mut stream)), "a", "endpoint out of the service, connection not cut");
        node.state.replace("n/s6", DesiredElements::default());
        node.apply();
        assert_eq!(who(&line(&mut stream)), "a");
    });
}

#[test]
fn host_ports_are_reached_from_everywhere() {
    each_family("host_ports_are_reached_from_everywhere", |node| {
        node.apply();
        let own = node.node();
        assert_eq!(who(&node.ask_outside(own, 8081)), "a");
        assert_eq!(who(&node.ask_in_pod(1, own, 8081)), "a");
        assert_eq!(who(&node.ask_in_pod(0, own, 8081)), "a", "hairpin");
        assert_eq!(who(&ask(&Node::at(own, 8081))), "a");
        if node.family == Family::V4 {
            assert_eq!(who(&ask("127.0.0.1:8081")), "a");
        }
    });
}

#[test]
fn source_ranges_keep_others_from_a_load_balancer_address() {
    each_family("source_ranges_keep_others", |node| {
        let external = node.external();
        let set = |range: &'static str| {
            move |p: &mut Port| {
                p.load_balancer_ips = std::mem::take(&mut p.external_ips);
                p.source_ranges = vec![range.parse().unwrap()];
            }
        };
        let (inside, other) = match node.family {
            Family::V4 => ("192.0.2.0/24", "198.51.100.0/24"),
            Family::V6 => ("2001:db8::/64", "2001:db8:77::/64"),
        };
        node.service(6, &[(0, true)], set(inside));
        assert_eq!(who(&node.ask_outside(external, 80)), "a");
        node.service(6, &[(0, true)], set(other));
        assert_eq!(node.ask_outside(external, 80), "dropped");
    });
}

#[test]
fn a_node_that_balances_serves_the_port_on_each_of_its_addresses() {
    each_family("a_node_that_balances", |node| {
        let (own, other, client) = (node.node(), node.external(), node.client());
        let dns = match node.family {
            Family::V4 => "10.43.0.10",
            Family::V6 => "fd00:43::a",
        };
        shell(&format!("ip addr add {other} dev lo; ip addr add {dns} dev lo"));
        let dns: IpAddr = dns.parse().unwrap();
        node.node_context.node_ips = vec![own];
        node.node_context.own_ips = vec![dns];
        node.restart();
        let balance = move |local: bool, range: Option<&'static str>| {
            move |p: &mut Port| {
                p.external_ips.clear();
                p.load_balancer_ips = vec![own];
                p.external_local = local;
                p.source_ranges = range.iter().map(|r| r.parse().unwrap()).collect();
            }
        };
        node.service(6, &[(0, true), (1, false)], balance(true, None));
        for _ in 0..4 {
            assert_eq!(node.ask_outside(own, 80), format!("a {client}"));
            assert_eq!(node.ask_outside(other, 80), format!("a {client}"), "another address");
        }
        assert_eq!(who(&node.ask_in_pod(0, own, 80)).len(), 1, "from a pod, hairpin included");
        assert_eq!(who(&ask(&Node::at(own, 80))).len(), 1, "from the node itself");
        assert_eq!(node.ask_outside(dns, 80), "refused", "an address that the process serves");
        let (inside, outside) = match node.family {
            Family::V4 => ("192.0.2.0/24", "198.51.100.0/24"),
            Family::V6 => ("2001:db8::/64", "2001:db8:77::/64"),
        };
        node.service(6, &[(0, true)], balance(false, Some(inside)));
        for ip in [own, other] {
            assert_eq!(who(&node.ask_outside(ip, 80)), "a");
            assert_eq!(who(&ask(&Node::at(own, 80))), "a", "from the node itself");
        }
        node.service(6, &[(0, true)], balance(false, Some(outside)));
        for ip in [own, other] {
            assert_eq!(node.ask_outside(ip, 80), "dropped");
        }
        // Addresses of another node, and of a load balancer of a class, are served alone.
        let elsewhere: IpAddr = node.client();
        node.service(6, &[(0, true)], |p| p.load_balancer_ips = vec![elsewhere]);
        assert_eq!(node.ask_outside(own, 80), "refused");
        node.service(6, &[(0, true)], |p| {
            (p.load_balancer_ips, p.balanced_by_nodes) = (vec![own], false);
            p.external_ips.clear();
        });
        assert_eq!(who(&node.ask_outside(own, 80)), "a");
        assert_eq!(node.ask_outside(other, 80), "refused");
    });
}
