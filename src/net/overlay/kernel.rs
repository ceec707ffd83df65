//! Reconciles the kernel with the desired state of one family: existing entries that match are
//! kept, and only entries of this program are removed.

use std::io;
use std::net::IpAddr;

use crate::host::sysctl;
use crate::netlink::Socket;
use crate::netlink::ethtool::{CHECKSUMS, Ethtool};
use crate::netlink::link::{Link, Mac};
use crate::netlink::route::Route;
use crate::netlink::vxlan::Vxlan;
use crate::overlay::plan::{DesiredState, NextHop};
use settings::addr::Family;
use settings::vxlan_link_prefix;

/// Marks routes as ours (`RTPROT_…`); no routing program of `/etc/iproute2/rt_protos` has this
/// number.
pub(crate) const PROTOCOL: u8 = 108;

/// This node's end of the VXLAN of one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tunnel {
    /// The name of the link.
    pub(crate) name: String,
    pub(crate) family: Family,
    pub(crate) vxlan: Vxlan,
    pub(crate) mac: Mac,
    pub(crate) mtu: u32,
    /// The address of this end: the first of the node's block.
    pub(crate) address: IpAddr,
    /// Checksums are not left to network cards.
    pub(crate) plain: bool,
}

/// What was done.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Done {
    /// Links, addresses, routes and entries made, changed or removed.
    pub(crate) changes: usize,
    /// The tunnel's link.
    pub(crate) index: Option<u32>,
}

pub(crate) fn worded(what: impl std::fmt::Display) -> impl FnOnce(io::Error) -> io::Error {
    move |e| io::Error::new(e.kind(), format!("cannot {what}: {e}"))
}

fn make(socket: &mut Socket, tunnel: &Tunnel) -> io::Result<u32> {
    let name = tunnel.name.as_str();
    let made = socket.add_vxlan(name, tunnel.mtu, &tunnel.mac, &tunnel.vxlan);
    made.map_err(|e| match e.raw_os_error() {
        Some(n) if n == nix::errno::Errno::EOPNOTSUPP as i32 => io::Error::other(format!(
            "cannot make link {name}: this kernel has no VXLAN (CONFIG_VXLAN, module vxlan)"
        )),
        Some(n) if n == nix::errno::Errno::EEXIST as i32 => io::Error::other(format!(
            "cannot make link {name}: another link has VXLAN identifier {} on UDP port {}; is a second pod network \
             running on this machine?",
            tunnel.vxlan.vni, tunnel.vxlan.port
        )),
        _ => worded(format!("make link {name}"))(e),
    })?;
    let link = socket.link(name)?.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    Ok(link.index)
}

fn ensure_link(socket: &mut Socket, tunnel: &Tunnel, done: &mut Done) -> io::Result<u32> {
    let name = tunnel.name.as_str();
    let want = &tunnel.vxlan;
    match socket.vxlan(name)? {
        Some((link, Some(now)))
            if (now.vni, now.port, now.local.is_ipv4())
                == (want.vni, want.port, want.local.is_ipv4()) =>
        {
            if now != *want {
                socket.move_vxlan(link.index, want).map_err(worded(format!("move {name}")))?;
                done.changes += 1;
            }
            if link.mtu != tunnel.mtu || link.mac != tunnel.mac {
                let set = socket.set_link(link.index, tunnel.mtu, &tunnel.mac);
                set.map_err(worded(format!("change {name}")))?;
                done.changes += 1;
            }
            if !link.up {
                socket.set_up(link.index).map_err(worded(format!("set up {name}")))?;
                done.changes += 1;
            }
            Ok(link.index)
        }
        other => {
            if other.is_some() {
                socket.delete_link(name).map_err(worded(format!("remove the other {name}")))?;
            }
            done.changes += 1;
            make(socket, tunnel)
        }
    }
}

/// The kernel's settings of a tunnel's link.
pub(crate) fn settings(family: Family, name: &str) -> io::Result<()> {
    match family {
        // While a peer changes from one way to the other, its packets may come the way that ours do
        // not go.
        Family::V4 => sysctl(&format!("ipv4/conf/{name}/rp_filter"), "2"),
        Family::V6 => {
            for (setting, value) in [("disable_ipv6", "0"), ("accept_dad", "0"), ("accept_ra", "0")]
            {
                sysctl(&format!("ipv6/conf/{name}/{setting}"), value)?;
            }
            Ok(())
        }
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.segments()[0] & 0xffc0 == 0xfe80)
}

/// The kernel completes checksums before encapsulation, so that no card has to read inner packets.
fn ensure_plain(name: &str, done: &mut Done) -> io::Result<()> {
    let mut ethtool = Ethtool::open()?;
    if ethtool.is_on(name, CHECKSUMS)? {
        ethtool.switch(name, CHECKSUMS, false)?;
        done.changes += 1;
    }
    Ok(())
}

fn ensure_tunnel(socket: &mut Socket, tunnel: &Tunnel, done: &mut Done) -> io::Result<u32> {
    let index = ensure_link(socket, tunnel, done)?;
    let name = tunnel.name.as_str();
    settings(tunnel.family, name)?;
    if tunnel.plain {
        let switched = ensure_plain(name, done);
        switched.map_err(worded(format!("switch off checksum offload of {name}")))?;
    }
    address(socket, index, name, tunnel.address, done)?;
    Ok(index)
}

/// Gives a tunnel's link one address and takes others away.
pub(crate) fn address(
    socket: &mut Socket,
    index: u32,
    name: &str,
    address: IpAddr,
    done: &mut Done,
) -> io::Result<()> {
    let bits = Family::of(address).bits();
    let present = socket.addresses(index)?;
    for (ip, prefix) in &present {
        if (*ip, *prefix) != (address, bits) && !is_link_local(*ip) {
            socket.delete_address(index, *ip, *prefix)?;
            done.changes += 1;
        }
    }
    if !present.contains(&(address, bits)) {
        let added = socket.add_address(index, address, bits);
        added.map_err(worded(format!("give {address} to {name}")))?;
        done.changes += 1;
    }
    Ok(())
}

fn entries(
    socket: &mut Socket,
    family: Family,
    index: u32,
    wanted: &DesiredState,
    done: &mut Done,
) -> io::Result<()> {
    let present = socket.neighbours(family, index)?;
    for (ip, mac) in &wanted.neighbours {
        if present.get(ip) != Some(mac) {
            socket.set_neighbour(index, *ip, mac).map_err(worded(format!("reach {ip}")))?;
            done.changes += 1;
        }
    }
    let present = socket.forwards(index)?;
    for (mac, ip) in &wanted.forwards {
        if !present.contains(&(*mac, *ip)) {
            socket.set_forward(index, mac, *ip).map_err(worded(format!("reach {ip}")))?;
            done.changes += 1;
        }
    }
    Ok(())
}

fn remove_entries(
    socket: &mut Socket,
    family: Family,
    index: u32,
    wanted: &DesiredState,
    done: &mut Done,
) -> io::Result<()> {
    for (ip, mac) in socket.neighbours(family, index)? {
        if !wanted.neighbours.contains_key(&ip) {
            socket.delete_neighbour(index, ip, &mac)?;
            done.changes += 1;
        }
    }
    for (mac, ip) in socket.forwards(index)? {
        if wanted.forwards.get(&mac) != Some(&ip) {
            socket.delete_forward(index, &mac, ip)?;
            done.changes += 1;
        }
    }
    Ok(())
}

/// Applies one family: `own` are the VXLAN links of this program, and `device` carries direct
/// routes. Entries come before the routes that need them and go after them, so that no packet of a
/// running connection is lost. Without `complete` no entry or route is taken away: not all nodes
/// are known yet.
pub(crate) fn apply(
    socket: &mut Socket,
    family: Family,
    tunnel: Option<&Tunnel>,
    own: &[Link],
    device: Option<u32>,
    (wanted, complete): (&DesiredState, bool),
) -> io::Result<Done> {
    let mut done = Done::default();
    let index = match tunnel {
        Some(tunnel) => {
            // Links of another identifier go at once: peers use the new one, and over IPv6 the
            // kernel refuses a gateway to which a route leads by another link.
            remove_links(socket, own, Some(&tunnel.name), &mut done)?;
            Some(ensure_tunnel(socket, tunnel, &mut done)?)
        }
        None => own.first().map(|link| link.index),
    };
    if let (Some(index), Some(_)) = (index, tunnel) {
        entries(socket, family, index, wanted, &mut done)?;
    }
    let mut routes = Vec::with_capacity(wanted.routes.len());
    for (to, route) in &wanted.routes {
        let (gateway, link, on_link) = match route {
            NextHop::Direct(gateway) => (*gateway, device, false),
            NextHop::Tunnel(gateway) => (*gateway, index.filter(|_| tunnel.is_some()), true),
            NextHop::Encrypted => continue,
        };
        let (Some(link), gateway) = (link, Some(gateway)) else { continue };
        routes.push(Route { to: *to, gateway, index: link, on_link, protocol: PROTOCOL });
    }
    apply_routes(socket, family, index, &routes, complete, &mut done)?;
    if complete {
        match (index, tunnel) {
            (Some(index), Some(_)) => remove_entries(socket, family, index, wanted, &mut done)?,
            _ => remove_links(socket, own, None, &mut done)?,
        }
    }
    done.index = index.filter(|_| tunnel.is_some());
    Ok(done)
}

/// Brings the routes of a family to what is wanted: those of ours, and all by gateways that lead
/// into our link `index`. Without `complete` nothing is taken away.
pub(crate) fn apply_routes(
    socket: &mut Socket,
    family: Family,
    index: Option<u32>,
    wanted: &[Route],
    complete: bool,
    done: &mut Done,
) -> io::Result<()> {
    let ours =
        |r: &Route| r.protocol == PROTOCOL || (Some(r.index) == index && r.gateway.is_some());
    let present: Vec<Route> = socket.routes(family)?.into_iter().filter(ours).collect();
    for route in wanted.iter().filter(|route| !present.contains(route)) {
        let by = route.gateway.map(|ip| format!(" by {ip}")).unwrap_or_default();
        socket.set_route(route).map_err(worded(format!("route {}{by}", route.to)))?;
        done.changes += 1;
    }
    if complete {
        for stale in present.iter().filter(|route| !wanted.contains(route)) {
            socket.delete_route(stale)?;
            done.changes += 1;
        }
    }
    Ok(())
}

/// The VXLAN links of a family that are ours, with any network identifier: another program's have
/// another hardware address.
pub(crate) fn own_links(links: &[Link], family: Family, mac: &Mac) -> Vec<Link> {
    let prefix = vxlan_link_prefix(family);
    let has_name =
        |link: &&Link| link.name.strip_prefix(prefix).is_some_and(|vni| vni.parse::<u32>().is_ok());
    links.iter().filter(has_name).filter(|link| link.mac == *mac).cloned().collect()
}

/// Removes links of ours, except the one with the name `kept`.
pub(crate) fn remove_links(
    socket: &mut Socket,
    own: &[Link],
    kept: Option<&str>,
    done: &mut Done,
) -> io::Result<()> {
    for link in own.iter().filter(|link| Some(link.name.as_str()) != kept) {
        socket.delete_link(&link.name)?;
        done.changes += 1;
    }
    Ok(())
}

/// Takes away everything of a family that is ours; `own` are its VXLAN links.
pub(crate) fn remove(socket: &mut Socket, family: Family, own: &[Link]) -> io::Result<()> {
    apply(socket, family, None, own, None, (&DesiredState::default(), true)).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_with_flannels_names_and_our_hardware_address_are_ours() {
        let mac = [2, 0, 0, 0, 0, 1];
        let link = |name: &str, mac: Mac| Link {
            index: 1,
            name: name.into(),
            mac: mac.to_vec(),
            mtu: 1450,
            up: true,
        };
        let links = [
            link("flannel.1", mac),
            link("flannel.42", mac),
            link("flannel.7", [2, 0, 0, 0, 0, 2]),
            link("flannel-v6.1", mac),
            link("flannel-wg", mac),
            link("eth0", mac),
        ];
        let names = |family| -> Vec<String> {
            own_links(&links, family, &mac).into_iter().map(|l| l.name).collect()
        };
        assert_eq!(names(Family::V4), ["flannel.1", "flannel.42"]);
        assert_eq!(names(Family::V6), ["flannel-v6.1"]);
    }
}
