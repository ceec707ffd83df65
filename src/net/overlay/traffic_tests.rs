//! Real traffic between machines: three nodes as namespaces, two on one link and one behind a
//! router, both families.

mod guard;
mod probes;

use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;

use crate::cni::{Command, Server};
use crate::config::Config;
use crate::netlink::{Socket, conntrack};
use crate::overlay::engine::{Engine, Outcome, View};
use crate::overlay::peer::{self, Peer};
use crate::overlay::plan::Problem;
use crate::proxy::HostPorts;
use crate::proxy::nft::Layout;
use crate::proxy::rules::{Groups, NodeContext, plan};
use crate::proxy::services::{Endpoint, Port};
use crate::proxy::state::State;
use crate::testing::{Pod, config, in_namespace, privileged, request, shell};
use crate::traffic_tests::{ask, serve, who};
use settings::Backend;
use settings::addr::{Cidr, Family};

/// All that cross a router; WireGuard where this kernel has it.
fn backends() -> Vec<Backend> {
    let all = [Backend::Auto, Backend::Vxlan, Backend::WireGuard];
    all.into_iter().filter(|backend| super::check_support(*backend).is_ok()).collect()
}

/// Names of the nodes, and of the pod on each in upper case.
const NAMES: [&str; 3] = ["a", "b", "c"];
const PODS: [&str; 3] = ["A", "B", "C"];
/// `a` and `b` share a link; `c` is behind the router.
const UNDERLAY: [[&str; 2]; 3] = [
    ["192.0.2.1", "2001:db8:a::1"],
    ["192.0.2.2", "2001:db8:a::2"],
    ["198.51.100.3", "2001:db8:b::3"],
];

struct Inner {
    config: Config,
    engine: Engine,
    /// What its probes found.
    spoiled: BTreeMap<Family, String>,
    pod: Option<(Pod, Vec<IpAddr>)>,
    _server: Option<Server>,
    _directory: tempfile::TempDir,
}

/// One machine of the cluster.
struct Machine {
    name: &'static str,
    space: Pod,
    inner: Arc<Mutex<Inner>>,
    peer: Mutex<Peer>,
    blocks: Vec<Cidr>,
}

fn at(ip: IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(ip, port).to_string()
}

fn pick(list: &[IpAddr], family: Family) -> IpAddr {
    *list.iter().find(|ip| Family::of(**ip) == family).unwrap()
}

impl Machine {
    /// Machine `n` on the router's bridge of its link, with one pod that serves.
    fn new(n: usize, backend: Backend) -> Self {
        let space = Pod::new();
        let (bridge, gateway) = match n {
            2 => ("br-b", ["198.51.100.254", "2001:db8:b::fe"]),
            _ => ("br-a", ["192.0.2.254", "2001:db8:a::fe"]),
        };
        shell(&format!(
            "ip link add m{n} type veth peer name eth0 netns {}; ip link set m{n} master {bridge} up",
            space.tid
        ));
        let [four, six] = UNDERLAY[n];
        space.run(move || {
            shell(&format!(
                "ip link set lo up; ip link set eth0 up; ip addr add {four}/24 dev eth0
                 ip addr add {six}/64 dev eth0 nodad
                 ip route add default via {}; ip route add default via {}",
                gateway[0], gateway[1]
            ));
        });
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(directory.path());
        config.node_name = NAMES[n].into();
        config.addresses.send_replace(vec![four.parse().unwrap(), six.parse().unwrap()]);
        config.addresses_held = false;
        config.cluster.backend = backend;
        config.pod_cidrs = [format!("10.42.{n}.0/24"), format!("fd00:42:0:{n}::/64")]
            .iter()
            .map(|b| b.parse().unwrap())
            .collect();
        let blocks = config.pod_cidrs.clone();
        let inner = space.run(move || {
            let (_, seen) = watch::channel(config.pod_cidrs.clone());
            let (tell, _) = watch::channel(HostPorts::new());
            let server = Server::open(&config, seen, tell).unwrap();
            let pod = Pod::new();
            let result =
                server.work(Command::Add, &request("ADD", "pod", &pod, json!({}))).unwrap();
            let ip = |i: usize| -> IpAddr {
                let text = result["ips"][i]["address"].as_str().unwrap();
                text.split('/').next().unwrap().parse().unwrap()
            };
            let addresses = vec![ip(0), ip(1)];
            pod.run(move || Family::ALL.map(|f| serve_both(PODS[n], f)));
            let mut socket = Socket::netfilter().unwrap();
            for family in Family::ALL {
                let (state, node_context) = (State::default(), NodeContext::default());
                layout(&config, family).replace(&mut socket, &state, &node_context).unwrap();
            }
            Inner {
                engine: Engine::open(&config).unwrap(),
                spoiled: BTreeMap::new(),
                config,
                pod: Some((pod, addresses)),
                _server: Some(server),
                _directory: directory,
            }
        });
        let peer = Mutex::new(Peer::default());
        Self { name: NAMES[n], space, inner: Arc::new(Mutex::new(inner)), peer, blocks }
    }

    /// Runs something on the machine.
    fn with<T: Send + 'static>(&self, work: impl FnOnce(&mut Inner) -> T + Send + 'static) -> T {
        let inner = Arc::clone(&self.inner);
        self.space.run(move || work(&mut inner.lock()))
    }

    fn pod_ip(&self, family: Family) -> IpAddr {
        pick(&self.inner.lock().pod.as_ref().unwrap().1, family)
    }

    fn pod_asks(&self, to: String) -> String {
        self.inner.lock().pod.as_ref().unwrap().0.run(move || ask(&to))
    }

    fn node_asks(&self, to: String) -> String {
        self.space.run(move || ask(&to))
    }

    /// One pass, whose result the others receive as from the API.
    fn sync(&self, peers: Vec<Peer>) -> Outcome {
        let (name, blocks) = (self.name, self.blocks.clone());
        let outcome = self.with(move |inner| {
            let blocks = inner.config.pod_cidrs.clone();
            let view = View { peers, complete: true, blocks, spoiled: inner.spoiled.clone() };
            let outcome = inner.engine.sync(&view).unwrap();
            inner.config.addresses.send_replace(outcome.addresses.clone());
            outcome
        });
        let (backend, ends) = {
            let inner = self.inner.lock();
            (inner.config.cluster.backend, inner.engine.ends(&outcome).unwrap())
        };
        let written = peer::annotations(backend, &outcome.published, &[], &ends);
        let node = json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "annotations": written},
            "spec": {"podCIDRs": blocks.iter().map(ToString::to_string).collect::<Vec<_>>()}});
        *self.peer.lock() = Peer::read(&api::Object::from_value(node).unwrap(), ends.vni);
        outcome
    }
}

/// The pods' server listens on one port in either family; one that listens on `::` alone must not
/// take both.
fn serve_both(name: &'static str, family: Family) {
    if family == Family::V6 {
        shell("echo 1 >/proc/sys/net/ipv6/bindv6only");
    }
    serve(name, family);
}

fn layout(config: &Config, family: Family) -> Layout {
    let of = |list: &[Cidr]| list.iter().copied().filter(|b| b.family() == family).collect();
    Layout {
        family,
        tunnel: Some(config.cluster.overlay.vxlan_port),
        table: "kube-lite".into(),
        bridge: "cni0".into(),
        cluster: of(&config.cluster.cluster_cidrs),
        service: of(&config.cluster.service_cidrs),
        localhost: true,
    }
}

struct Cluster {
    machines: Vec<Machine>,
}

impl Cluster {
    fn new(backend: Backend) -> Self {
        shell(
            "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
             for l in a:192.0.2 b:198.51.100; do
               ip link add br-${l%:*} type bridge; ip link set br-${l%:*} up
               ip addr add ${l#*:}.254/24 dev br-${l%:*}
               ip addr add 2001:db8:${l%:*}::fe/64 dev br-${l%:*} nodad
             done",
        );
        let machines = (0..3).map(|n| Machine::new(n, backend)).collect();
        let cluster = Self { machines };
        cluster.settle();
        cluster
    }

    fn peers(&self) -> Vec<Peer> {
        let known = self.machines.iter().map(|m| m.peer.lock().clone());
        known.filter(|p| !p.name.is_empty()).collect()
    }

    /// Every machine says where it is, then every machine knows it of all.
    fn settle(&self) -> Vec<Outcome> {
        for machine in &self.machines {
            machine.sync(self.peers());
        }
        self.machines.iter().map(|m| m.sync(self.peers())).collect()
    }

    /// Every pod and node reaches every other machine's pod and node.
    fn all_reach_all(&self) {
        for family in Family::ALL {
            for from in &self.machines {
                for (to, pod) in self.machines.iter().zip(PODS) {
                    if from.name == to.name {
                        continue;
                    }
                    let (source, target) = (from.pod_ip(family), to.pod_ip(family));
                    let what = format!("{} to {} over {}", from.name, to.name, family.name());
                    let answer = from.pod_asks(at(target, 8080));
                    assert_eq!(answer, format!("{pod} {source}"), "pod to pod: {what}");
                    let answer = from.node_asks(at(target, 8080));
                    assert_eq!(who(&answer), pod, "node to pod: {what}");
                    let node = pick(&to.inner.lock().config.addresses.borrow(), family);
                    let own = pick(&from.inner.lock().config.addresses.borrow(), family);
                    let answer = from.pod_asks(at(node, 8080));
                    assert_eq!(answer, format!("{} {own}", to.name), "pod to node: {what}");
                }
            }
        }
    }

    /// A service on every machine whose only endpoint is the pod of machine `n`.
    fn service(&self, n: usize) {
        for (index, machine) in self.machines.iter().enumerate() {
            let address = Family::ALL.map(|f| self.machines[n].pod_ip(f));
            machine.with(move |inner| {
                let mut socket = Socket::netfilter().unwrap();
                for family in Family::ALL {
                    let port = Port {
                        name: "n/s:".into(),
                        port_name: String::new(),
                        protocol: 6,
                        number: 80,
                        node_port: 30080,
                        cluster_ips: vec![vip(family)],
                        external_ips: Vec::new(),
                        load_balancer_ips: Vec::new(),
                        balanced_by_nodes: false,
                        source_ranges: Vec::new(),
                        affinity_seconds: 0,
                        external_local: false,
                        internal_local: false,
                    };
                    let endpoint = Endpoint {
                        address: pick(&address, family),
                        port: 8080,
                        ready: true,
                        serving: true,
                        terminating: false,
                        local: index == n,
                        zones: Vec::new(),
                        nodes: Vec::new(),
                    };
                    let all = [((String::new(), 6), vec![endpoint])].into();
                    let node_context =
                        NodeContext { node: NAMES[index].into(), ..NodeContext::default() };
                    let mut state = State::default();
                    let mut groups = Groups::default();
                    state.replace("n/s", plan(&mut groups, &[port], &all, &node_context, family));
                    layout(&inner.config, family)
                        .replace(&mut socket, &state, &node_context)
                        .unwrap();
                }
            });
        }
    }
}

fn vip(family: Family) -> IpAddr {
    let text = if family == Family::V4 { "10.43.0.9" } else { "fd00:43::9" };
    text.parse().unwrap()
}

fn node_ip(n: usize, family: Family) -> IpAddr {
    UNDERLAY[n][usize::from(family == Family::V6)].parse().unwrap()
}

fn serve_on_nodes(cluster: &Cluster) {
    for machine in &cluster.machines {
        let name = machine.name;
        machine.space.run(move || Family::ALL.map(|f| serve_both(name, f)));
    }
}

#[test]
fn pods_nodes_and_services_of_all_machines_reach_each_other() {
    if !privileged("pods_nodes_and_services_of_all_machines_reach_each_other") {
        return;
    }
    for backend in backends() {
        in_namespace(move || {
            let cluster = Cluster::new(backend);
            serve_on_nodes(&cluster);
            let again = cluster.settle();
            assert!(again.iter().all(|o| o.problems.is_empty()), "{again:?}");
            assert!(
                again.iter().all(|o| o.changes == 0),
                "a second pass finds all as it should be"
            );
            cluster.all_reach_all();
            let direct = cluster.machines[0].space.run(|| shell("ip route show 10.42.1.0/24"));
            assert_eq!(direct.contains("eth0"), backend == Backend::Auto, "{direct}");
            cluster.service(2);
            for family in Family::ALL {
                for machine in &cluster.machines {
                    let what = format!("{} {} {backend}", machine.name, family.name());
                    let answer = machine.pod_asks(at(vip(family), 80));
                    if machine.name != "c" {
                        let kept = format!("C {}", machine.pod_ip(family));
                        assert_eq!(answer, kept, "pod to service: {what}");
                    }
                    assert_eq!(who(&answer), "C", "pod to service: {what}");
                    let answer = machine.node_asks(at(vip(family), 80));
                    assert_eq!(who(&answer), "C", "node to service: {what}");
                    for n in 0..3 {
                        let to = at(node_ip(n, family), 30080);
                        assert_eq!(who(&machine.node_asks(to.clone())), "C", "node port: {what}");
                        assert_eq!(who(&machine.pod_asks(to)), "C", "node port: {what}");
                    }
                }
                // From outside through a node without the pod.
                assert_eq!(who(&ask(&at(node_ip(0, family), 30080))), "C", "{}", family.name());
            }
            // The packets that were masqueraded inside are not once more outside, where old kernels
            // spoil their checksums: they are no connections, so not even another program's rules
            // translate them.
            let tracked = cluster.machines[0].with(|_| {
                let mut socket = Socket::netfilter().unwrap();
                Family::ALL.map(|f| conntrack::tests::tracked(&mut socket, f, 8472))
            });
            assert_eq!(tracked, [0, 0]);
        });
    }
}

#[test]
fn host_gw_names_the_node_it_cannot_reach() {
    if !privileged("host_gw_names_the_node_it_cannot_reach") {
        return;
    }
    in_namespace(|| {
        let cluster = Cluster::new(Backend::HostGateway);
        let outcomes = cluster.settle();
        let told: Vec<String> = outcomes[0].problems.iter().map(Problem::key).collect();
        assert_eq!(told, ["overlay/link/c/198.51.100.3", "overlay/link/c/2001:db8:b::3"]);
        for family in Family::ALL {
            let to = cluster.machines[1].pod_ip(family);
            let source = cluster.machines[0].pod_ip(family);
            assert_eq!(cluster.machines[0].pod_asks(at(to, 8080)), format!("B {source}"));
        }
        assert_eq!(cluster.machines[0].space.run(|| shell("ip link show type vxlan")), "");
    });
}

/// Packets go to and fro until told to stop; each waits for its answer, so that a lost one is seen.
fn exchange(from: &Pod, to: IpAddr) -> (Arc<AtomicBool>, std::sync::mpsc::Receiver<usize>) {
    let stop = Arc::new(AtomicBool::new(false));
    let (tell, told) = std::sync::mpsc::channel();
    let until = Arc::clone(&stop);
    let any = Family::of(to).unspecified();
    let socket = from.run(move || UdpSocket::bind((any, 0)).unwrap());
    std::thread::spawn(move || {
        let mut count = 0;
        let mut buffer = [0; 64];
        socket.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        while !until.load(Ordering::Acquire) {
            socket.send_to(b"?", (to, 8080)).unwrap();
            socket.recv(&mut buffer).expect("a packet was lost");
            count += 1;
        }
        let _ = tell.send(count);
    });
    (stop, told)
}

#[test]
fn a_restart_loses_no_packet_and_what_was_taken_away_comes_back() {
    if !privileged("a_restart_loses_no_packet") {
        return;
    }
    in_namespace(|| {
        let cluster = Cluster::new(Backend::Vxlan);
        serve_on_nodes(&cluster);
        let [a, _, c] = &cluster.machines[..] else { panic!("three machines") };
        let running: Vec<_> = Family::ALL
            .iter()
            .map(|f| exchange(&a.inner.lock().pod.as_ref().unwrap().0, c.pod_ip(*f)))
            .collect();
        for _ in 0..5 {
            for machine in [a, c] {
                machine.with(|inner| inner.engine = Engine::open(&inner.config).unwrap());
                // A fresh process knows no node at first, and takes nothing away.
                machine.with(|inner| {
                    let blocks = inner.config.pod_cidrs.clone();
                    let view = View {
                        peers: Vec::new(),
                        complete: false,
                        blocks,
                        spoiled: BTreeMap::new(),
                    };
                    assert_eq!(inner.engine.sync(&view).unwrap().changes, 0);
                });
                assert_eq!(machine.sync(cluster.peers()).changes, 0);
            }
        }
        for (stop, told) in running {
            stop.store(true, Ordering::Release);
            assert!(told.recv().expect("no packet was lost") > 0);
        }
        // Somebody takes things away.
        for harm in [
            "ip link del flannel.1; ip link del flannel-v6.1",
            "ip route del 10.42.2.0/24; ip -6 route del fd00:42:0:2::/64",
            "ip link set flannel.1 down; ip link set flannel-v6.1 down",
            "ip neigh flush nud permanent dev flannel.1; ip -6 neigh flush nud permanent dev flannel-v6.1",
            "ip link set flannel.1 mtu 1280 address 02:00:00:00:00:99",
            "ip link del flannel.1; ip link add flannel.1 type vxlan id 7 dstport 4789 dev eth0",
            "ip addr flush dev flannel.1",
        ] {
            a.space.run(move || shell(harm));
            assert!(a.sync(cluster.peers()).changes > 0, "{harm}");
            assert_eq!(a.sync(cluster.peers()).changes, 0, "{harm}");
            for family in Family::ALL {
                let answer = a.pod_asks(at(c.pod_ip(family), 8080));
                assert_eq!(answer, format!("C {}", a.pod_ip(family)), "{harm}");
            }
        }
        // A node that is gone leaves nothing behind.
        let rest: Vec<Peer> = cluster.peers().into_iter().filter(|p| p.name != "c").collect();
        a.sync(rest);
        let left = a.space.run(|| {
            shell("ip route; ip -6 route; ip neigh; ip -6 neigh; bridge fdb show dev flannel.1; bridge fdb show dev flannel-v6.1")
        });
        for of_c in ["10.42.2.0", "fd00:42:0:2::", "198.51.100.3", "2001:db8:b::3"] {
            assert!(!left.contains(of_c), "{of_c} is still in:\n{left}");
        }
        assert!(left.contains("10.42.1.0/24 via 10.42.1.0 dev flannel.1"), "{left}");
    });
}

#[test]
fn routes_follow_an_address_that_changes() {
    if !privileged("routes_follow_an_address_that_changes") {
        return;
    }
    for backend in backends() {
        in_namespace(move || {
            let cluster = Cluster::new(backend);
            serve_on_nodes(&cluster);
            cluster.machines[1].space.run(|| {
                shell(
                    "ip addr del 192.0.2.2/24 dev eth0; ip addr del 2001:db8:a::2/64 dev eth0
                     ip addr add 192.0.2.77/24 dev eth0; ip addr add 2001:db8:a::77/64 dev eth0 nodad
                     ip route replace default via 192.0.2.254; ip route replace default via 2001:db8:a::fe",
                )
            });
            let outcomes = cluster.settle();
            let now: Vec<IpAddr> =
                ["192.0.2.77", "2001:db8:a::77"].iter().map(|t| t.parse().unwrap()).collect();
            assert_eq!(outcomes[1].addresses, now);
            assert_eq!(outcomes[1].published, now);
            cluster.all_reach_all();
        });
    }
}
