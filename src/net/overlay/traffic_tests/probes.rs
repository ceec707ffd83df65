//! What probes find on real links.

use super::*;
use crate::netlink::ethtool::{CHECKSUMS, Ethtool};
use crate::overlay::probe::{self, Finding};

#[test]
fn a_link_that_swallows_large_packets_is_found() {
    if !privileged("a_link_that_swallows_large_packets_is_found") {
        return;
    }
    in_namespace(|| {
        let cluster = Cluster::new(Backend::Vxlan);
        let outcome = cluster.machines[0].sync(cluster.peers());
        let way = outcome.ways.iter().find(|w| w.node == "c" && w.address.is_ipv4()).unwrap();
        assert_eq!((way.address, way.size), ("10.42.2.1".parse().unwrap(), 1430));
        let to = way.address;
        let look = move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(probe::find(1430, true, |ask| probe::answered(to, ask)))
        };
        assert_eq!(cluster.machines[0].space.run(look), Finding::Well);
        // The router says nothing about it. 1300 bytes are 50 less for the packet inside.
        shell(
            "nft 'add table ip wire; add chain ip wire f { type filter hook forward priority 0; };
                  add rule ip wire f ip length > 1300 drop'",
        );
        let Finding::Hole(arrives) = cluster.machines[0].space.run(look) else {
            panic!("no hole was found");
        };
        assert!((1242..=1250).contains(&arrives), "{arrives}");
    });
}

/// The checksum that the kernel writes before a driver completes it: the sum of the pseudo header
/// alone (RFC 768, RFC 8200).
fn unfinished(from: IpAddr, to: IpAddr, datagram: u16) -> u16 {
    let octets = settings::addr::octets;
    let pseudo = [&octets(from)[..], &octets(to), &datagram.to_be_bytes(), &[0, 17]].concat();
    !crate::overlay::checksum::internet(&pseudo)
}

#[test]
fn checksums_that_a_card_spoils_are_made_by_the_kernel() {
    if !privileged("checksums_that_a_card_spoils_are_made_by_the_kernel") {
        return;
    }
    // What is lost is waited for, so both families go at once.
    std::thread::scope(|scope| {
        for family in Family::ALL {
            scope.spawn(move || in_namespace(move || spoil(family)));
        }
    });
}

fn spoil(family: Family) {
    let cluster = Cluster::new(Backend::Vxlan);
    let a = &cluster.machines[0];
    let outcome = a.sync(cluster.peers());
    let mut ways = outcome.ways.iter().filter(|w| w.node == "c" && w.tunnel);
    let way = ways.find(|w| Family::of(w.address) == family).unwrap();
    let (to, size) = (way.address, way.size);
    let look = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(probe::find(size, true, |ask| probe::answered(to, ask)))
    };
    assert_eq!(a.space.run(look), Finding::Well);
    // A card that does not complete checksums inside VXLAN: the receiver drops such a packet.
    let (header, table, link) = match family {
        Family::V4 => (20_u16, "ip", "flannel.1"),
        Family::V6 => (40, "ip6", "flannel-v6.1"),
    };
    let from = a.blocks.iter().find(|b| b.family() == family).unwrap().first();
    let bits = (8 + 8 + 14 + header + 6) * 8;
    let rules = [500, u16::try_from(size).unwrap()].map(|size| {
        let check = unfinished(from, to, size - header);
        format!("add rule {table} card f udp dport 8472 @th,{bits},16 {check:#x} drop")
    });
    shell(&format!(
        "nft 'add table {table} card; add chain {table} card f {{ type filter hook forward priority 0; }}; {}'",
        rules.join("; ")
    ));
    assert_eq!(a.space.run(look), Finding::Spoiled);
    a.with(move |inner| inner.spoiled.insert(family, "c".into()));
    let outcome = a.sync(cluster.peers());
    let key = format!("overlay/checksums/{}", family.name());
    let told = outcome.problems.iter().find(|p| p.key() == key).unwrap();
    assert!(told.what().contains("to node c were spoiled"), "{}", told.what());
    assert_eq!(a.space.run(look), Finding::Well);
    // The setting is recorded, and applies to a link that is made again.
    a.with(move |inner| {
        shell(&format!("ip link del {link}"));
        inner.spoiled.clear();
        inner.engine = Engine::open(&inner.config).unwrap();
    });
    let outcome = a.sync(cluster.peers());
    assert!(outcome.problems.iter().any(|p| p.key() == key), "{outcome:?}");
    let on = a.space.run(|| Ethtool::open().unwrap().is_on(link, CHECKSUMS).unwrap());
    assert!(!on);
    assert_eq!(a.space.run(look), Finding::Well);
}
