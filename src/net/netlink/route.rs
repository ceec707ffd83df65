//! Links, addresses and routes of the thread's network namespace.

use std::io;
use std::net::IpAddr;

use crate::netlink::{CREATE, EXCL, REPLACE, Received, Socket, Writer, attribute, ne32};
use settings::addr::{Cidr, Family, from_octets, octets};

pub(crate) const NEW_LINK: u16 = 16;
pub(crate) const DELETE_LINK: u16 = 17;
pub(super) const GET_LINK: u16 = 18;
const SET_LINK: u16 = 19;
pub(crate) const NEW_ADDRESS: u16 = 20;
pub(crate) const DELETE_ADDRESS: u16 = 21;
const GET_ADDRESS: u16 = 22;
pub(crate) const NEW_ROUTE: u16 = 24;
pub(crate) const DELETE_ROUTE: u16 = 25;
const GET_ROUTE: u16 = 26;
pub(super) const IFLA_ADDRESS: u16 = 1;
pub(super) const IFLA_NAME: u16 = 3;
pub(super) const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
pub(super) const IFLA_INFO: u16 = 18;
const IFLA_NS_FD: u16 = 28;
pub(super) const UP: u32 = 1;
/// `IFA_F_NODAD`: pod addresses are ours alone, duplicate detection would only delay them.
const NODAD: u8 = 2;

/// `RTNH_F_ONLINK`: the gateway is reached through the link, whatever its addresses say.
const ONLINK: u32 = 4;
/// `RT_TABLE_MAIN`.
const MAIN: u8 = 254;
/// `RTPROT_STATIC`.
const STATIC: u8 = 4;
/// `RTN_UNICAST`.
const UNICAST: u8 = 1;

/// An address as the kernel tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    /// Its link.
    pub(crate) index: u32,
    pub(crate) ip: IpAddr,
    pub(crate) prefix: u8,
}

/// A route by a gateway or by its link alone, of table main.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Via {
    pub(crate) to: Cidr,
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) index: u32,
    pub(crate) on_link: bool,
    /// `RTPROT_…`: who made it.
    pub(crate) protocol: u8,
}

/// A link as the kernel tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) mac: Vec<u8>,
    pub(crate) mtu: u32,
    pub(crate) up: bool,
}

pub(super) fn body(index: u32, flags: u32, change: u32) -> Writer {
    let mut w = Writer::default();
    w.raw(&[0, 0, 0, 0])
        .raw(&index.to_ne_bytes())
        .raw(&flags.to_ne_bytes())
        .raw(&change.to_ne_bytes());
    w
}

pub(super) fn link(received: &Received) -> Option<Link> {
    let attributes = received.body.get(16..)?;
    let name = attribute(attributes, IFLA_NAME)?;
    Some(Link {
        index: ne32(&received.body, 4)?,
        name: String::from_utf8_lossy(name.strip_suffix(b"\0").unwrap_or(name)).into_owned(),
        mac: attribute(attributes, IFLA_ADDRESS).unwrap_or_default().to_vec(),
        mtu: attribute(attributes, IFLA_MTU).and_then(|m| ne32(m, 0)).unwrap_or(0),
        up: ne32(&received.body, 8)? & UP != 0,
    })
}

/// `02:42:aa:bb:cc:dd` of a hardware address.
pub(crate) fn mac_text(mac: &[u8]) -> String {
    mac.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(":")
}

impl Socket {
    /// The link of this name, if there is one.
    pub(crate) fn link(&mut self, name: &str) -> io::Result<Option<Link>> {
        let mut w = body(0, 0, 0);
        w.text(IFLA_NAME, name);
        match self.get(GET_LINK, &w.0) {
            Ok(received) => Ok(link(&received)),
            Err(e) if e.raw_os_error() == Some(nix::errno::Errno::ENODEV as i32) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// All links.
    pub(crate) fn links(&mut self) -> io::Result<Vec<Link>> {
        let mut out = Vec::new();
        self.dump(GET_LINK, &body(0, 0, 0).0, |r| out.extend(link(r)))?;
        Ok(out)
    }

    pub(crate) fn add_bridge(&mut self, name: &str, mtu: u32, mac: [u8; 6]) -> io::Result<()> {
        let mut w = body(0, UP, UP);
        w.text(IFLA_NAME, name).ne32(IFLA_MTU, mtu).attr(IFLA_ADDRESS, &mac);
        w.nest(IFLA_INFO, |w| {
            w.text(1, "bridge");
        });
        self.request(NEW_LINK, CREATE | EXCL, &w.0)
    }

    /// A veth pair: `host` here with its port on `bridge`, `peer` (name, hardware address) in the
    /// namespace behind `ns`.
    pub(crate) fn add_veth(
        &mut self,
        host: &str,
        bridge: u32,
        mtu: u32,
        peer: (&str, &[u8; 6]),
        ns: i32,
    ) -> io::Result<()> {
        let mut w = body(0, UP, UP);
        w.text(IFLA_NAME, host).ne32(IFLA_MTU, mtu).ne32(IFLA_MASTER, bridge);
        w.nest(IFLA_INFO, |w| {
            w.text(1, "veth").nest(2, |w| {
                w.nest(1, |w| {
                    let inner = body(0, 0, 0);
                    w.raw(&inner.0).text(IFLA_NAME, peer.0).ne32(IFLA_MTU, mtu);
                    w.attr(IFLA_ADDRESS, peer.1);
                    w.attr(IFLA_NS_FD, &ns.to_ne_bytes());
                });
            });
        });
        self.request(NEW_LINK, CREATE | EXCL, &w.0)
    }

    /// Makes the port send frames back where they came from.
    pub(crate) fn set_hairpin(&mut self, index: u32) -> io::Result<()> {
        let mut w = Writer::default();
        // AF_BRIDGE; IFLA_PROTINFO holds IFLA_BRPORT_MODE.
        w.raw(&[7, 0, 0, 0]).raw(&index.to_ne_bytes()).raw(&[0; 8]);
        w.nest(12, |w| {
            w.attr(4, &[1]);
        });
        self.request(SET_LINK, 0, &w.0)
    }

    pub(crate) fn set_up(&mut self, index: u32) -> io::Result<()> {
        self.request(NEW_LINK, 0, &body(index, UP, UP).0)
    }

    /// Removes a link; one that is not there is fine.
    pub(crate) fn delete_link(&mut self, name: &str) -> io::Result<()> {
        let mut w = body(0, 0, 0);
        w.text(IFLA_NAME, name);
        match self.request(DELETE_LINK, 0, &w.0) {
            Err(e) if e.raw_os_error() == Some(nix::errno::Errno::ENODEV as i32) => Ok(()),
            other => other,
        }
    }

    fn address(
        &mut self,
        kind: u16,
        flags: u16,
        index: u32,
        a: IpAddr,
        prefix: u8,
    ) -> io::Result<()> {
        let mut w = Writer::default();
        let nodad = if a.is_ipv6() { NODAD } else { 0 };
        w.raw(&[Family::of(a).number(), prefix, nodad, 0]).raw(&index.to_ne_bytes());
        w.attr(2, &octets(a)).attr(1, &octets(a));
        self.request(kind, flags, &w.0)
    }

    /// Adds an address; one that is there already is fine.
    pub(crate) fn add_address(&mut self, index: u32, a: IpAddr, prefix: u8) -> io::Result<()> {
        self.address(NEW_ADDRESS, CREATE | REPLACE, index, a, prefix)
    }

    pub(crate) fn delete_address(&mut self, index: u32, a: IpAddr, prefix: u8) -> io::Result<()> {
        self.address(DELETE_ADDRESS, 0, index, a, prefix)
    }

    /// The addresses of all links.
    pub(crate) fn all_addresses(&mut self) -> io::Result<Vec<Address>> {
        let mut out = Vec::new();
        self.dump(GET_ADDRESS, &[0; 8], |r| {
            let (Some(prefix), Some(index)) = (r.body.get(1), ne32(&r.body, 4)) else { return };
            let list = r.body.get(8..).unwrap_or_default();
            let ip = attribute(list, 2).or_else(|| attribute(list, 1)).and_then(from_octets);
            out.extend(ip.map(|ip| Address { index, ip, prefix: *prefix }));
        })?;
        Ok(out)
    }

    /// The addresses of a link.
    pub(crate) fn addresses(&mut self, index: u32) -> io::Result<Vec<(IpAddr, u8)>> {
        let all = self.all_addresses()?;
        Ok(all.into_iter().filter(|a| a.index == index).map(|a| (a.ip, a.prefix)).collect())
    }

    /// Whether the default route of a family goes through a link.
    pub(crate) fn has_default_route(&mut self, index: u32, family: Family) -> io::Result<bool> {
        let mut head = [0; 12];
        head[0] = family.number();
        let mut found = false;
        // The head: family, bits of the destination, …, type in byte 7 (1: unicast); attribute 4 is
        // the link.
        self.dump(GET_ROUTE, &head, |r| {
            let byte = |n: usize| r.body.get(n).copied();
            let link = r.body.get(12..).and_then(|list| attribute(list, 4));
            found |= byte(0) == Some(family.number())
                && byte(1) == Some(0)
                && byte(7) == Some(1)
                && link == Some(index.to_ne_bytes().as_slice());
        })?;
        Ok(found)
    }

    /// A route to `to` through a link, on the link itself or by a gateway.
    pub(crate) fn add_route(
        &mut self,
        index: u32,
        to: Cidr,
        gateway: Option<IpAddr>,
    ) -> io::Result<()> {
        self.request(NEW_ROUTE, CREATE | REPLACE, &route_body(index, to, gateway).0)
    }

    /// Removes a route on a link itself; one that is not there is fine.
    pub(crate) fn delete_route(&mut self, index: u32, to: Cidr) -> io::Result<()> {
        match self.request(DELETE_ROUTE, 0, &route_body(index, to, None).0) {
            Err(e) if e.raw_os_error() == Some(nix::errno::Errno::ESRCH as i32) => Ok(()),
            other => other,
        }
    }

    /// The routes that [`Socket::add_route`] made on a link itself.
    pub(crate) fn link_routes(&mut self, index: u32, family: Family) -> io::Result<Vec<Cidr>> {
        let mut head = [0; 12];
        head[0] = family.number();
        let mut out = Vec::new();
        self.dump(GET_ROUTE, &head, |r| {
            let byte = |n: usize| r.body.get(n).copied();
            let list = r.body.get(12..).unwrap_or_default();
            let ours = byte(0) == Some(family.number())
                && byte(4) == Some(MAIN)
                && byte(5) == Some(STATIC)
                && byte(7) == Some(UNICAST)
                && attribute(list, 4) == Some(index.to_ne_bytes().as_slice())
                && attribute(list, 5).is_none();
            if let (true, Some(first), Some(prefix)) =
                (ours, attribute(list, 1).and_then(from_octets), byte(1))
            {
                out.extend(Cidr::new(first, prefix).ok());
            }
        })?;
        Ok(out)
    }

    /// Makes a route, or puts it in the place of the one to the same block.
    pub(crate) fn set_via(&mut self, route: &Via) -> io::Result<()> {
        self.request(NEW_ROUTE, CREATE | REPLACE, &via_body(route).0)
    }

    /// Removes a route; one that is not there is fine.
    pub(crate) fn delete_via(&mut self, route: &Via) -> io::Result<()> {
        match self.request(DELETE_ROUTE, 0, &via_body(route).0) {
            Err(e) if e.raw_os_error() == Some(nix::errno::Errno::ESRCH as i32) => Ok(()),
            other => other,
        }
    }

    /// The routes of a family to blocks.
    pub(crate) fn via_routes(&mut self, family: Family) -> io::Result<Vec<Via>> {
        let mut head = [0; 12];
        head[0] = family.number();
        let mut out = Vec::new();
        self.dump(GET_ROUTE, &head, |r| out.extend(via(&r.body, family)))?;
        Ok(out)
    }
}

fn route_body(index: u32, to: Cidr, gateway: Option<IpAddr>) -> Writer {
    let family = to.family();
    let mut w = Writer::default();
    // Of the scope of the link, or of the universe.
    let scope = if gateway.is_none() && family == Family::V4 { 253 } else { 0 };
    w.raw(&[family.number(), to.prefix(), 0, 0, MAIN, STATIC, scope, UNICAST, 0, 0, 0, 0]);
    if to.prefix() > 0 {
        w.attr(1, &octets(to.first()));
    }
    if let Some(gateway) = gateway {
        w.attr(5, &octets(gateway));
    }
    w.ne32(4, index);
    w
}

fn via_body(route: &Via) -> Writer {
    let mut w = Writer::default();
    let flags = if route.on_link { ONLINK } else { 0 };
    let family = route.to.family();
    // Scope link or universe.
    let scope = if route.gateway.is_none() && family == Family::V4 { 253 } else { 0 };
    w.raw(&[family.number(), route.to.prefix(), 0, 0])
        .raw(&[MAIN, route.protocol, scope, UNICAST])
        .raw(&flags.to_ne_bytes());
    w.attr(1, &octets(route.to.first())).ne32(4, route.index);
    if let Some(gateway) = route.gateway {
        w.attr(5, &octets(gateway));
    }
    w
}

/// Reads a route message; `None` for what is no route by one link in table main.
pub(crate) fn via(body: &[u8], family: Family) -> Option<Via> {
    let head = body.get(..8)?;
    let (of, prefix, table, protocol, kind) =
        (*head.first()?, *head.get(1)?, *head.get(4)?, *head.get(5)?, *head.get(7)?);
    if of != family.number() || table != MAIN || kind != UNICAST {
        return None;
    }
    let list = body.get(12..)?;
    let first = attribute(list, 1).map_or(Some(family.unspecified()), from_octets)?;
    Some(Via {
        to: Cidr::new(first, prefix).ok()?,
        gateway: attribute(list, 5).and_then(from_octets),
        index: attribute(list, 4).and_then(|i| ne32(i, 0))?,
        on_link: ne32(body, 8)? & ONLINK != 0,
        protocol,
    })
}
