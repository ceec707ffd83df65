//! Which ways lead to peers, and which peers are left out and why.

use super::*;
use crate::overlay::peer::Face;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn block(text: &str) -> Cidr {
    text.parse().unwrap()
}

fn mac(last: u8) -> Mac {
    [2, 0, 0, 0, 0, last]
}

fn key(n: u8) -> PublicKey {
    PublicKey([n; 32])
}

/// Node `name` with pods 10.42.`n`.0/24 at `address`; its kind is `direct`, `vxlan`, `both` or
/// `wireguard`.
fn peer(name: &str, n: u8, address: &str, kind: &str) -> Peer {
    Peer {
        name: name.into(),
        created: format!("2026-01-01T00:00:{n:02}Z"),
        blocks: vec![block(&format!("10.42.{n}.0/24")), block(&format!("fd00:42:0:{n}::/64"))],
        v4: Face {
            address: address.parse().ok(),
            vtep: ["both", "vxlan"].contains(&kind).then(|| mac(n)),
            key: (kind == "wireguard").then(|| key(n)),
        },
        direct: ["both", "direct"].contains(&kind),
        tunnels: ["both", "vxlan"].contains(&kind),
        encrypts: kind == "wireguard",
        ..Peer::default()
    }
}

fn decide(backend: Backend, peers: &[Peer], before: &BTreeMap<Cidr, String>) -> DesiredState {
    let underlay = Underlay {
        index: 2,
        mtu: 1500,
        address: ip("192.0.2.1"),
        on_link: vec![block("192.0.2.0/24")],
    };
    let own = Own {
        name: "me",
        backend,
        family: Family::V4,
        blocks: &[block("10.42.0.0/24")],
        cluster: &[block("10.42.0.0/16")],
        underlay: &underlay,
        key: backend.encrypts().then(|| key(0)),
        wireguard_port: 51820,
    };
    plan(&own, peers, before)
}

fn routes(wanted: &DesiredState) -> Vec<String> {
    wanted.routes.iter().map(|(to, way)| format!("{to} {way:?}")).collect()
}

#[test]
fn peers_on_the_link_are_reached_straight_and_others_through_the_tunnel() {
    let peers = [
        peer("me", 0, "192.0.2.1", "both"),
        peer("near", 1, "192.0.2.2", "both"),
        peer("far", 2, "198.51.100.2", "both"),
    ];
    let wanted = decide(Backend::Auto, &peers, &BTreeMap::new());
    assert_eq!(
        routes(&wanted),
        ["10.42.1.0/24 Direct(192.0.2.2)", "10.42.2.0/24 Tunnel(10.42.2.0)",]
    );
    assert_eq!(wanted.neighbours, BTreeMap::from([(ip("10.42.2.0"), mac(2))]));
    assert_eq!(wanted.forwards, BTreeMap::from([(mac(2), ip("198.51.100.2"))]));
    assert!(wanted.problems.is_empty());
    let wanted = decide(Backend::Vxlan, &peers, &BTreeMap::new());
    assert_eq!(
        routes(&wanted),
        ["10.42.1.0/24 Tunnel(10.42.1.0)", "10.42.2.0/24 Tunnel(10.42.2.0)",]
    );
    assert_eq!(wanted.forwards[&mac(1)], ip("192.0.2.2"));
}

#[test]
fn both_ends_take_the_same_way() {
    let flannel = [peer("near", 1, "192.0.2.2", "vxlan")];
    let wanted = decide(Backend::Auto, &flannel, &BTreeMap::new());
    assert_eq!(routes(&wanted), ["10.42.1.0/24 Tunnel(10.42.1.0)"]);
    let gateway = [peer("near", 1, "192.0.2.2", "direct")];
    let wanted = decide(Backend::Auto, &gateway, &BTreeMap::new());
    assert_eq!(routes(&wanted), ["10.42.1.0/24 Direct(192.0.2.2)"]);
    let silent = [Peer { direct: false, tunnels: false, ..peer("near", 1, "192.0.2.2", "both") }];
    assert_eq!(decide(Backend::Auto, &silent, &BTreeMap::new()).routes, BTreeMap::new());
}

#[test]
fn host_gw_cannot_cross_a_router_and_says_so() {
    let peers = [peer("far", 2, "198.51.100.2", "both"), peer("near", 1, "192.0.2.2", "both")];
    let wanted = decide(Backend::HostGateway, &peers, &BTreeMap::new());
    assert_eq!(routes(&wanted), ["10.42.1.0/24 Direct(192.0.2.2)"]);
    let [problem] = &wanted.problems[..] else { panic!("{:?}", wanted.problems) };
    assert_eq!(
        problem.what(),
        "node far at 198.51.100.2 is not on one link with this node, and host-gw has no other way: its pods are not \
         reached"
    );
    assert_eq!(problem.fix(), "use --flannel-backend=auto or vxlan");
    assert_eq!(problem.reason(), "PeerNotOnLink");
}

#[test]
fn a_block_stays_with_the_node_that_had_it_and_the_problem_names_both() {
    let older = peer("b", 1, "192.0.2.2", "both");
    let mut younger = peer("a", 2, "192.0.2.3", "both");
    younger.blocks = vec![block("10.42.0.0/23"), block("10.42.1.128/25")];
    let peers = [younger.clone(), older.clone()];
    let wanted = decide(Backend::Auto, &peers, &BTreeMap::new());
    assert_eq!(routes(&wanted), ["10.42.1.0/24 Direct(192.0.2.2)"]);
    let overlap = |node: &str, of: &str, holder: &str, held: &str| Problem::Overlap {
        node: node.into(),
        block: block(of),
        holder: holder.into(),
        held: block(held),
    };
    assert_eq!(
        wanted.problems,
        [
            overlap("a", "10.42.0.0/23", "me", "10.42.0.0/24"),
            overlap("a", "10.42.1.128/25", "b", "10.42.1.0/24"),
        ]
    );
    // Who had it keeps it, whatever the age.
    let had = BTreeMap::from([(block("10.42.1.128/25"), "a".to_owned())]);
    let wanted = decide(Backend::Auto, &peers, &had);
    assert_eq!(routes(&wanted), ["10.42.1.128/25 Direct(192.0.2.3)"]);
    assert!(wanted.problems.contains(&overlap("b", "10.42.1.0/24", "a", "10.42.1.128/25")));
    // Once the holder is gone, the other gets it.
    let wanted = decide(Backend::Auto, &[older], &had);
    assert_eq!(routes(&wanted), ["10.42.1.0/24 Direct(192.0.2.2)"]);
}

#[test]
fn no_node_draws_packets_that_are_not_its_pods() {
    let mut thief = peer("thief", 1, "192.0.2.2", "both");
    thief.blocks = vec![block("0.0.0.0/0"), block("192.0.2.0/24"), block("10.42.9.0/24")];
    let wanted = decide(Backend::Auto, &[thief], &BTreeMap::new());
    assert_eq!(routes(&wanted), ["10.42.9.0/24 Direct(192.0.2.2)"]);
    assert_eq!(wanted.problems.len(), 2);
    let mut lost = peer("lost", 3, "", "both");
    lost.v6.address = Some(ip("2001:db8::3"));
    let wanted = decide(Backend::Auto, &[lost], &BTreeMap::new());
    assert!(wanted.routes.is_empty());
    assert_eq!(
        wanted.problems,
        [Problem::NoAddress { node: "lost".into(), block: block("10.42.3.0/24") }]
    );
}

#[test]
fn wireguard_reaches_all_by_their_keys_also_on_a_shared_link() {
    let peers = [
        peer("me", 0, "192.0.2.1", "wireguard"),
        peer("near", 1, "192.0.2.2", "wireguard"),
        peer("far", 2, "198.51.100.2", "wireguard"),
    ];
    let wanted = decide(Backend::WireGuard, &peers, &BTreeMap::new());
    assert_eq!(routes(&wanted), ["10.42.1.0/24 Encrypted", "10.42.2.0/24 Encrypted"]);
    let remote = |node: &str, endpoint: &str, of: &str| Remote {
        node: node.into(),
        endpoint: endpoint.parse().unwrap(),
        allowed: [block(of)].into(),
    };
    assert_eq!(
        wanted.peers,
        BTreeMap::from([
            (key(1), remote("near", "192.0.2.2:51820", "10.42.1.0/24")),
            (key(2), remote("far", "198.51.100.2:51820", "10.42.2.0/24")),
        ])
    );
    assert!(wanted.problems.is_empty() && wanted.forwards.is_empty());
    let mut silent = peer("near", 1, "192.0.2.2", "wireguard");
    silent.v4.key = None;
    let wanted = decide(Backend::WireGuard, &[silent], &BTreeMap::new());
    assert!(wanted.peers.is_empty() && wanted.problems.is_empty(), "it will say its key");
}

#[test]
fn a_mixture_with_wireguard_is_named_on_both_sides_and_nothing_goes_in_the_clear() {
    for (ours, kind, theirs) in [
        (Backend::WireGuard, "vxlan", "vxlan"),
        (Backend::WireGuard, "both", "vxlan"),
        (Backend::WireGuard, "direct", "host-gw"),
        (Backend::Auto, "wireguard", "wireguard-native"),
        (Backend::Vxlan, "wireguard", "wireguard-native"),
        (Backend::HostGateway, "wireguard", "wireguard-native"),
    ] {
        let mut other = peer("b", 1, "192.0.2.2", kind);
        other.blocks.push(block("10.42.9.0/24"));
        let wanted = decide(ours, &[other], &BTreeMap::new());
        assert!(wanted.routes.is_empty() && wanted.peers.is_empty(), "{ours} and {kind}");
        let ours = ours.name();
        assert_eq!(wanted.problems, [Problem::Mixed { node: "b".into(), theirs, ours }]);
    }
    let problem = Problem::Mixed { node: "b".into(), theirs: "vxlan", ours: "wireguard-native" };
    assert!(problem.what().starts_with("node b has the overlay backend vxlan and this node wireg"));
    assert_eq!((problem.key(), problem.reason()), ("overlay/backend/b".into(), "MixedBackends"));
}

#[test]
fn a_copied_disk_does_not_take_the_packets_of_the_machine_it_is_a_copy_of() {
    let first = peer("b", 1, "192.0.2.2", "wireguard");
    let mut copy = peer("c", 2, "192.0.2.3", "wireguard");
    copy.v4.key = first.v4.key;
    let mut mine = peer("d", 3, "192.0.2.4", "wireguard");
    mine.v4.key = Some(key(0));
    let wanted = decide(Backend::WireGuard, &[mine, copy, first], &BTreeMap::new());
    assert_eq!(routes(&wanted), ["10.42.1.0/24 Encrypted"]);
    assert_eq!(wanted.peers[&key(1)].node, "b");
    let same =
        |node: &str, holder: &str| Problem::SameKey { node: node.into(), holder: holder.into() };
    assert_eq!(wanted.problems, [same("c", "b"), same("d", "me")]);
}

#[test]
fn members_are_the_nodes_with_an_end_of_the_tunnel_by_all_their_addresses() {
    let peers = [
        peer("me", 0, "192.0.2.1", "both"),
        Peer {
            known: vec![ip("10.0.0.2"), ip("2001:db8::2")],
            ..peer("near", 1, "203.0.113.2", "both")
        },
        peer("far", 2, "198.51.100.2", "vxlan"),
        peer("straight", 3, "192.0.2.4", "direct"),
        Peer { tunnels: false, direct: false, ..peer("starting", 4, "192.0.2.5", "both") },
    ];
    let of = |family| members("me", family, &peers).into_iter().collect::<Vec<_>>();
    assert_eq!(of(Family::V4), [ip("10.0.0.2"), ip("198.51.100.2"), ip("203.0.113.2")]);
    assert_eq!(of(Family::V6), [ip("2001:db8::2")]);
    assert!(members("me", Family::V4, &[]).is_empty());
}
