//! Packets of the overlay from nodes and from others.

use std::time::Duration;

use super::*;
use crate::overlay::checksum::internet;
use crate::overlay::engine::hardware_address;

/// A packet of VXLAN for the end of node `to_node`, in it a datagram to port 9999.
fn frame(to_node: &str, from: IpAddr, to: IpAddr, word: &str) -> Vec<u8> {
    let octets = settings::addr::octets;
    let length = u16::try_from(8 + word.len()).unwrap().to_be_bytes();
    let port = 9999_u16.to_be_bytes();
    let mut datagram = [&port[..], &port, &length, &[0, 0], word.as_bytes()].concat();
    let pseudo = [&octets(from)[..], &octets(to), &length, &[0, 17], &datagram].concat();
    datagram[6..8].copy_from_slice(&internet(&pseudo).to_be_bytes());
    let (kind, header) = match Family::of(from) {
        Family::V4 => {
            let total = u16::try_from(20 + datagram.len()).unwrap().to_be_bytes();
            let mut header = [&[0x45, 0][..], &total, &[0, 0, 0, 0, 64, 17, 0, 0]].concat();
            header.extend([octets(from), octets(to)].concat());
            let check = internet(&header).to_be_bytes();
            header[10..12].copy_from_slice(&check);
            ([0x08, 0x00], header)
        }
        Family::V6 => {
            let header = [&[0x60, 0, 0, 0][..], &length, &[17, 64], &octets(from), &octets(to)];
            ([0x86, 0xdd], header.concat())
        }
    };
    let vxlan = [8, 0, 0, 0, 0, 0, 1, 0];
    let ethernet = [&hardware_address(to_node)[..], &[2, 9, 9, 9, 9, 9], &kind].concat();
    [&vxlan[..], &ethernet, &header, &datagram].concat()
}

/// Sends a packet of the overlay to node `a` whose sender calls itself `source`.
fn send(at: &Pod, source: IpAddr, to: IpAddr, frame: Vec<u8>) {
    at.run(move || UdpSocket::bind((source, 0)).unwrap().send_to(&frame, (to, 8472)).unwrap());
}

/// What comes next, within a while that is long for what comes and short for what does not.
fn next(pod: &UdpSocket, wait: u64) -> Option<String> {
    let mut buffer = [0; 64];
    pod.set_read_timeout(Some(Duration::from_millis(wait))).unwrap();
    let length = pod.recv(&mut buffer).ok()?;
    Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

/// Sends a packet of the overlay to `node` from a pod that takes the address of another node.
fn pretend(address: IpAddr, node: IpAddr, packet: Vec<u8>) -> impl FnOnce(&mut Inner) + Clone {
    move |inner| {
        let pod = &inner.pod.as_ref().unwrap().0;
        let bits = Family::of(address).bits();
        pod.run(move || {
            let nodad = if bits == 128 { "nodad" } else { "" };
            shell(&format!("ip addr replace {address}/{bits} dev eth0 {nodad}"));
        });
        send(pod, address, node, packet);
    }
}

const LONG: u64 = 10_000;
const SHORT: u64 = 200;

#[test]
fn only_nodes_are_let_into_the_overlay() {
    if !privileged("only_nodes_are_let_into_the_overlay") {
        return;
    }
    in_namespace(|| {
        let cluster = Cluster::new(Backend::Auto);
        let [a, b, c] = &cluster.machines[..] else { panic!("three machines") };
        let stranger = Pod::new();
        shell(&format!(
            "ip link add s type veth peer name eth0 netns {}; ip link set s master br-a up",
            stranger.tid
        ));
        stranger.run(|| {
            shell(
                "ip link set eth0 up; ip addr add 192.0.2.9/24 dev eth0
                 ip addr add 2001:db8:a::9/64 dev eth0 nodad",
            )
        });
        let outside = |f: Family| if f == Family::V4 { "192.0.2.9" } else { "2001:db8:a::9" };
        let without = || {
            shell("nft delete table ip kube-lite-overlay; nft delete table ip6 kube-lite-overlay")
        };
        for family in Family::ALL {
            let (to, from, node) = (a.pod_ip(family), b.pod_ip(family), node_ip(0, family));
            let pod = a.with(move |inner| {
                let pod = &inner.pod.as_ref().unwrap().0;
                pod.run(move || UdpSocket::bind((to, 9999)).unwrap())
            });
            let of = |word: &str| frame("a", from, to, word);
            let strange =
                |word: &str| send(&stranger, outside(family).parse().unwrap(), node, of(word));
            let from_b = |word: &str| send(&b.space, node_ip(1, family), node, of(word));
            let from_c = |word: &str| send(&c.space, node_ip(2, family), node, of(word));
            let only = |word: &str, what: &str| {
                assert_eq!(next(&pod, LONG).as_deref(), Some(word), "{what} {}", family.name());
                assert_eq!(next(&pod, SHORT), None, "{what} {}", family.name());
            };

            strange("stranger");
            from_b("b");
            only("b", "a node's alone");
            a.space.run(without);
            strange("let in");
            only("let in", "without the table the stranger's packet is a good one");
            assert!(a.sync(cluster.peers()).changes > 0, "the table is made again");
            strange("stranger");
            from_b("b again");
            only("b again", "a node's alone");

            // One that leaves is shut out, and one that joins is let in at once.
            a.sync(cluster.peers().into_iter().filter(|p| p.name != "c").collect());
            from_c("no node");
            from_b("b");
            only("b", "c is no node");
            a.sync(cluster.peers());
            from_c("joined");
            only("joined", "c is one again");

            b.space.run(|| {
                shell("for i in all cni0; do echo 0 >/proc/sys/net/ipv4/conf/$i/rp_filter; done")
            });
            // The pod knows its gateway: a later question with a foreign address would fail.
            assert_eq!(who(&b.pod_asks(at(to, 8080))), "A");
            let pretend = pretend(node_ip(2, family), node, of("pretended"));
            b.with(pretend.clone());
            from_b("b");
            only("b", "a pod that uses the address of a node is stopped by its own node");
            b.space.run(without);
            b.with(pretend);
            only("pretended", "without the table its packet is a good one");
            b.sync(cluster.peers());
        }
    });
}

#[test]
fn without_nodes_the_set_is_empty_and_another_backend_leaves_no_rules() {
    if !privileged("without_nodes_the_set_is_empty_and_another_backend_leaves_no_rules") {
        return;
    }
    in_namespace(|| {
        let cluster = Cluster::new(Backend::Auto);
        let a = &cluster.machines[0];
        a.sync(Vec::new());
        let list = a.space.run(|| shell("nft list table ip kube-lite-overlay"));
        assert!(list.contains("@nodes drop") && !list.contains("elements"), "{list}");
        a.with(|inner| {
            inner.config.cluster.backend = Backend::HostGateway;
            inner.engine = Engine::open(&inner.config).unwrap();
        });
        a.sync(cluster.peers());
        assert!(!a.space.run(|| shell("nft list tables")).contains("overlay"));
    });
}

#[test]
fn without_its_guard_the_overlay_stays_closed() {
    if !privileged("without_its_guard_the_overlay_stays_closed") {
        return;
    }
    in_namespace(|| {
        let cluster = Cluster::new(Backend::Vxlan);
        let a = &cluster.machines[0];
        a.with(|inner| {
            shell("ip link del flannel.1; ip link del flannel-v6.1");
            // A name that the kernel refuses.
            inner.config.table = "x".repeat(300);
            inner.engine = Engine::open(&inner.config).unwrap();
        });
        let outcome = a.sync(cluster.peers());
        let told: Vec<String> = outcome.problems.iter().map(Problem::key).collect();
        assert_eq!(told, ["overlay/kernel/IPv4", "overlay/kernel/IPv6"]);
        assert_eq!(a.space.run(|| shell("ip link show type vxlan")), "");
    });
}
