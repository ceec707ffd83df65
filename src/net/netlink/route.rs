//! Routes of table main of the thread's network namespace.

use std::io;
use std::net::IpAddr;

use nix::errno::Errno;
use nix::libc::{RTA_DST, RTA_GATEWAY, RTA_OIF, RTM_DELROUTE, RTM_GETROUTE, RTM_NEWROUTE};
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_core::Emitable;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::route::{
    RouteFlags, RouteHeader, RouteMessage, RouteScope, RouteType,
};

use crate::netlink::{CREATE, REPLACE, Socket, attribute, encode, ne32, unless};
use settings::addr::{Cidr, Family, from_octets};

/// `RTPROT_STATIC`: routes of the bridge and of pods have no origin of their own.
const STATIC: u8 = 4;

/// A unicast route of table main through one link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) to: Cidr,
    /// `None`: the destinations are on the link itself.
    pub(crate) gateway: Option<IpAddr>,
    /// The index of the link.
    pub(crate) index: u32,
    /// The gateway is reached through the link, whatever the link's addresses are.
    pub(crate) on_link: bool,
    /// The program that made the route (`RTPROT_…`).
    pub(crate) protocol: u8,
}

impl Route {
    /// A route of the bridge or of a pod.
    fn of_link(index: u32, to: Cidr, gateway: Option<IpAddr>) -> Self {
        Self { to, gateway, index, on_link: false, protocol: STATIC }
    }

    fn message(&self) -> io::Result<RouteMessage> {
        let mut builder = RouteMessageBuilder::<IpAddr>::new()
            .destination_prefix(self.to.first(), self.to.prefix())
            .map_err(io::Error::other)?
            .output_interface(self.index)
            .protocol(self.protocol.into());
        if let Some(gateway) = self.gateway {
            builder = builder.gateway(gateway).map_err(io::Error::other)?;
        } else if self.to.family() == Family::V4 {
            builder = builder.scope(RouteScope::Link);
        }
        if self.on_link {
            builder = builder.onlink();
        }
        Ok(builder.build())
    }

    /// Reads a route message. `None` for a route of another table, of another kind, or over
    /// several links: the pod network made none of these.
    pub(super) fn decode(body: &[u8]) -> Option<Self> {
        let header = RouteHeader::parse(body).ok()?;
        if header.table != RouteHeader::RT_TABLE_MAIN || header.kind != RouteType::Unicast {
            return None;
        }
        let family = match header.address_family {
            AddressFamily::Inet => Family::V4,
            AddressFamily::Inet6 => Family::V6,
            _ => return None,
        };
        let list = body.get(header.buffer_len()..)?;
        let first = attribute(list, RTA_DST).map_or(Some(family.unspecified()), from_octets)?;
        Some(Self {
            to: Cidr::new(first, header.destination_prefix_length).ok()?,
            gateway: attribute(list, RTA_GATEWAY).and_then(from_octets),
            index: attribute(list, RTA_OIF).and_then(|index| ne32(index, 0))?,
            on_link: header.flags.contains(RouteFlags::Onlink),
            protocol: header.protocol.into(),
        })
    }
}

impl Socket {
    /// The routes of a family.
    pub(crate) fn routes(&mut self, family: Family) -> io::Result<Vec<Route>> {
        let mut request = RouteMessage::default();
        request.header.address_family = family.number().into();
        let mut out = Vec::new();
        self.dump(RTM_GETROUTE, &encode(&request), |received| {
            out.extend(Route::decode(&received.body).filter(|r| r.to.family() == family));
        })?;
        Ok(out)
    }

    /// Makes a route or replaces the one to the same block.
    pub(crate) fn set_route(&mut self, route: &Route) -> io::Result<()> {
        self.request(RTM_NEWROUTE, CREATE | REPLACE, &encode(&route.message()?))
    }

    /// Removes a route. A missing route is no error.
    pub(crate) fn delete_route(&mut self, route: &Route) -> io::Result<()> {
        unless(Errno::ESRCH, self.request(RTM_DELROUTE, 0, &encode(&route.message()?)))
    }

    /// Whether the default route of a family goes through a link.
    pub(crate) fn has_default_route(&mut self, index: u32, family: Family) -> io::Result<bool> {
        let routes = self.routes(family)?;
        Ok(routes.iter().any(|route| route.to.prefix() == 0 && route.index == index))
    }

    /// Makes a static route to `to` through a link, on the link itself or by a gateway.
    pub(crate) fn add_link_route(
        &mut self,
        index: u32,
        to: Cidr,
        gateway: Option<IpAddr>,
    ) -> io::Result<()> {
        self.set_route(&Route::of_link(index, to, gateway))
    }

    /// Removes a static route on a link itself. A missing route is no error.
    pub(crate) fn delete_link_route(&mut self, index: u32, to: Cidr) -> io::Result<()> {
        self.delete_route(&Route::of_link(index, to, None))
    }

    /// The routes that [`Socket::add_link_route`] made on a link itself.
    pub(crate) fn link_routes(&mut self, index: u32, family: Family) -> io::Result<Vec<Cidr>> {
        let routes = self.routes(family)?.into_iter();
        let made = routes
            .filter(|r| r.index == index && r.protocol == STATIC && r.gateway.is_none())
            .map(|r| r.to);
        Ok(made.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{connected_links, in_namespace, privileged, shell};

    #[test]
    fn routes_of_both_families_are_read_back_as_they_were_made() {
        if !privileged("routes_of_both_families_are_read_back_as_they_were_made") {
            return;
        }
        in_namespace(|| {
            connected_links();
            shell("ip address add 192.0.2.1/24 dev d0");
            shell("ip address add 2001:db8::1/64 dev d0 nodad");
            let mut socket = Socket::route().unwrap();
            let index = socket.link("d0").unwrap().unwrap().index;
            let block = |text: &str| text.parse::<Cidr>().unwrap();
            let by = |text: &str| Some(text.parse::<IpAddr>().unwrap());
            let cases = [
                (block("10.42.1.0/24"), by("192.0.2.2"), false),
                (block("10.42.2.0/24"), by("10.42.2.0"), true),
                (block("10.42.3.0/24"), None, false),
                (block("fd00:42:1::/64"), by("2001:db8::2"), false),
                (block("fd00:42:2::/64"), None, false),
            ];
            for (to, gateway, on_link) in cases {
                let route = Route { to, gateway, index, on_link, protocol: 108 };
                socket.set_route(&route).unwrap();
                socket.set_route(&route).unwrap();
                let family = to.family();
                let found = socket.routes(family).unwrap();
                assert_eq!(found.iter().filter(|r| **r == route).count(), 1, "{route:?} {found:?}");
                socket.delete_route(&route).unwrap();
                socket.delete_route(&route).unwrap();
                assert!(!socket.routes(family).unwrap().contains(&route), "{route:?}");
            }
        });
    }

    #[test]
    fn default_and_link_routes_of_a_pod_are_found() {
        if !privileged("default_and_link_routes_of_a_pod_are_found") {
            return;
        }
        in_namespace(|| {
            connected_links();
            shell("ip address add 10.42.0.9/32 dev d0; ip address add fd00:42::9/128 dev d0 nodad");
            let mut socket = Socket::route().unwrap();
            let index = socket.link("d0").unwrap().unwrap().index;
            for (family, gateway) in [(Family::V4, "10.42.0.1"), (Family::V6, "fd00:42::1")] {
                let gateway: IpAddr = gateway.parse().unwrap();
                assert!(!socket.has_default_route(index, family).unwrap());
                socket.add_link_route(index, Cidr::host(gateway), None).unwrap();
                let all = Cidr::new(family.unspecified(), 0).unwrap();
                socket.add_link_route(index, all, Some(gateway)).unwrap();
                assert!(socket.has_default_route(index, family).unwrap());
                assert!(!socket.has_default_route(1, family).unwrap(), "through another link");
                assert_eq!(socket.link_routes(index, family).unwrap(), [Cidr::host(gateway)]);
            }
            let gateway: IpAddr = "10.42.0.1".parse().unwrap();
            let shown = shell("ip route show dev d0");
            assert!(shown.contains("default via 10.42.0.1 proto static"), "{shown}");
            assert!(shown.contains("10.42.0.1 proto static scope link"), "{shown}");
            socket.delete_link_route(index, Cidr::host(gateway)).unwrap();
            socket.delete_link_route(index, Cidr::host(gateway)).unwrap();
            assert!(socket.link_routes(index, Family::V4).unwrap().is_empty());
        });
    }
}
