//! Which addresses this node has, and which link carries packets to other nodes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use crate::netlink::Socket;
use crate::netlink::address::Address;
use crate::netlink::link::Link;
use crate::overlay::plan::Underlay;
use settings::addr::{Cidr, Family};

/// The reason why no link carries packets of a family to other nodes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnderlayError {
    #[error(
        "--flannel-iface={name}: there is no such interface with an {} address; \
         the pods of other nodes are not reached",
        family.name()
    )]
    Interface { name: String, family: Family },
    #[error("this node has no {name} address, so its {name} pods do not reach other nodes")]
    Family { name: &'static str },
    #[error(
        "the node's address {0} is on none of its interfaces; \
         the pods of other nodes are not reached"
    )]
    NodeAddress(IpAddr),
}

/// The links and addresses of this machine.
#[derive(Debug, Clone, Default)]
pub(crate) struct Machine {
    pub(crate) links: Vec<Link>,
    pub(crate) addresses: Vec<Address>,
}

/// An address that other machines may know this one by.
fn is_global(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !(ip.is_loopback() || ip.is_link_local() || ip.is_unspecified()),
        IpAddr::V6(ip) => !(ip.is_loopback() || ip.segments()[0] & 0xffc0 == 0xfe80),
    }
}

impl Machine {
    pub(crate) fn read(socket: &mut Socket) -> io::Result<Self> {
        Ok(Self { links: socket.links()?, addresses: socket.all_addresses()? })
    }

    fn on(&self, name: &str) -> impl Iterator<Item = &Address> {
        let index = self.links.iter().find(|l| l.name == name).map(|l| l.index);
        self.addresses.iter().filter(move |a| Some(a.index) == index)
    }

    /// Addresses that the node could have: those of links that are not the pod network's.
    pub(crate) fn candidates(&self, ours: &[&str]) -> Vec<IpAddr> {
        let own: Vec<u32> = self
            .links
            .iter()
            .filter(|l| ours.contains(&l.name.as_str()))
            .map(|l| l.index)
            .collect();
        let usable = self.addresses.iter().filter(|a| !own.contains(&a.index) && is_global(a.ip));
        usable.map(|a| a.ip).collect()
    }

    /// The link that carries packets of a family: the one named, or else the one that has the
    /// node's address.
    ///
    /// # Errors
    /// When no link has such an address.
    pub(crate) fn underlay(
        &self,
        family: Family,
        interface: Option<&str>,
        node: &[IpAddr],
    ) -> Result<Underlay, UnderlayError> {
        let of_family = |ip: IpAddr| Family::of(ip) == family;
        let found = match interface {
            Some(name) => {
                let address = self.on(name).find(|a| of_family(a.ip) && is_global(a.ip));
                address.ok_or_else(|| UnderlayError::Interface { name: name.to_owned(), family })
            }
            None => match node.iter().copied().find(|ip| of_family(*ip)) {
                None => Err(UnderlayError::Family { name: family.name() }),
                Some(ip) => {
                    let address = self.addresses.iter().find(|a| a.ip == ip);
                    address.ok_or(UnderlayError::NodeAddress(ip))
                }
            },
        }?;
        let link = self.links.iter().find(|l| l.index == found.index);
        let on_link = self
            .addresses
            .iter()
            .filter(|a| a.index == found.index && of_family(a.ip) && is_global(a.ip))
            .filter_map(|a| Cidr::new(a.ip, a.prefix).ok())
            .filter(|block| block.prefix() < family.bits())
            .collect();
        let mtu = link.map_or(0, |l| l.mtu);
        Ok(Underlay { index: found.index, mtu, address: found.ip, on_link })
    }
}

/// The address that a packet to the outside would carry: no packet is sent. The targets are
/// documentation blocks (RFC 5737, RFC 3849).
pub(crate) fn of_default_route(family: Family) -> Option<IpAddr> {
    let outside: IpAddr = match family {
        Family::V4 => Ipv4Addr::new(192, 0, 2, 1).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    };
    let socket = UdpSocket::bind((family.unspecified(), 0)).ok()?;
    socket.connect((outside, 9)).ok()?;
    socket.local_addr().ok().map(|a| a.ip()).filter(|ip| is_global(*ip))
}

/// The node's addresses, preferred family first: each is kept as long as a link has it; then that
/// of the default route takes its place, then any. With nothing better the old one stays.
pub(crate) fn choose(
    now: &[IpAddr],
    families: &[Family],
    present: &[IpAddr],
    default: impl Fn(Family) -> Option<IpAddr>,
) -> Vec<IpAddr> {
    let mut order: Vec<Family> = now.iter().map(|ip| Family::of(*ip)).collect();
    order.extend(families);
    let mut out: Vec<IpAddr> = Vec::new();
    for family in order {
        if out.iter().any(|ip| Family::of(*ip) == family) {
            continue;
        }
        let of_family = |ip: &IpAddr| Family::of(*ip) == family;
        let old = now.iter().copied().find(of_family);
        let kept = old.filter(|ip| present.contains(ip));
        let next = || default(family).filter(|ip| present.contains(ip));
        let any = || present.iter().copied().find(of_family);
        out.extend(kept.or_else(next).or_else(any).or(old));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|t| t.parse().unwrap()).collect()
    }

    #[test]
    fn an_address_stays_while_a_link_has_it_and_the_default_routes_follows() {
        let both = Family::ALL;
        let default = |family| match family {
            Family::V4 => "198.51.100.9".parse().ok(),
            Family::V6 => "2001:db8::9".parse().ok(),
        };
        let now = list(&["192.0.2.1"]);
        let present = list(&["172.17.0.1", "192.0.2.1", "198.51.100.9"]);
        assert_eq!(choose(&now, &both, &present, default), now, "kept, and there is no IPv6");
        let present = list(&["172.17.0.1", "198.51.100.9", "2001:db8::9"]);
        assert_eq!(choose(&now, &both, &present, default), list(&["198.51.100.9", "2001:db8::9"]));
        assert_eq!(choose(&now, &both[..1], &present, |_| None), list(&["172.17.0.1"]));
        assert_eq!(choose(&now, &both, &[], default), now, "nothing better");
        let six_first = list(&["2001:db8::9", "192.0.2.1"]);
        assert_eq!(
            choose(&six_first, &both, &list(&["192.0.2.1", "2001:db8::9"]), default),
            six_first
        );
    }

    #[test]
    fn the_underlay_is_the_link_with_the_nodes_address_or_the_one_named() {
        let link = |index, name: &str, mtu| Link {
            index,
            name: name.into(),
            mac: Vec::new(),
            mtu,
            up: true,
        };
        let at = |index, ip: &str, prefix| Address { index, ip: ip.parse().unwrap(), prefix };
        let machine = Machine {
            links: vec![link(1, "lo", 65536), link(2, "eth0", 1500), link(3, "wlan0", 1400)],
            addresses: vec![
                at(1, "127.0.0.1", 8),
                at(2, "192.0.2.1", 24),
                at(2, "203.0.113.1", 32),
                at(2, "fe80::1", 64),
                at(3, "198.51.100.1", 25),
            ],
        };
        let node = list(&["192.0.2.1"]);
        let found = machine.underlay(Family::V4, None, &node).unwrap();
        assert_eq!((found.index, found.mtu), (2, 1500));
        assert_eq!(found.on_link, ["192.0.2.0/24".parse().unwrap()]);
        let named = machine.underlay(Family::V4, Some("wlan0"), &node).unwrap();
        assert_eq!((named.index, named.address), (3, "198.51.100.1".parse().unwrap()));
        for (family, interface, node, words) in [
            (Family::V6, None, &node, "this node has no IPv6 address"),
            (Family::V6, Some("eth0"), &node, "--flannel-iface=eth0"),
            (Family::V4, Some("eth7"), &node, "--flannel-iface=eth7"),
            (Family::V4, None, &list(&["192.0.2.77"]), "192.0.2.77 is on none"),
        ] {
            let said = machine.underlay(family, interface, node).unwrap_err().to_string();
            assert!(said.contains(words), "{said}");
        }
        assert_eq!(
            machine.candidates(&["wlan0"]),
            list(&["192.0.2.1", "203.0.113.1"]),
            "neither loopback, link-local nor ours"
        );
    }
}
