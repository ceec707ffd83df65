//! The node's side of the pod network: bridge, gateway addresses, forwarding.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use crate::config::{Config, Error};
use crate::netlink::Socket;
use crate::netlink::link::Link;
use crate::overlay::address::Machine;
use settings::addr::{Cidr, Family};

/// Ethernet's; used when the node's link is not found.
const MTU: u32 = 1500;

/// Writes a kernel setting under `/proc/sys/net` of the thread's network namespace.
pub(crate) fn sysctl(name: &str, value: &str) -> io::Result<()> {
    let path = Path::new("/proc/sys/net").join(name);
    let error =
        |e: io::Error| io::Error::new(e.kind(), format!("cannot set {}: {e}", path.display()));
    if std::fs::read_to_string(&path).map_err(error)?.trim() == value {
        return Ok(());
    }
    std::fs::write(&path, value).map_err(error)
}

/// Sets how long the kernel remembers silent TCP connections to services, as kube-proxy's
/// `conntrack.tcpEstablishedTimeout` and `tcpCloseWaitTimeout`. A kernel whose settings cannot be
/// written keeps its own.
pub(crate) fn set_conntrack_timeouts() {
    for (state, seconds) in [("established", "86400"), ("close_wait", "3600")] {
        let name = format!("netfilter/nf_conntrack_tcp_timeout_{state}");
        if let Err(error) = sysctl(&name, seconds) {
            tracing::warn!(%error, "proxy: the kernel keeps its own timeout of tracked connections");
        }
    }
}

/// The gateway of a block: its first usable address.
pub(crate) fn gateway(block: &Cidr) -> Option<IpAddr> {
    block.nth(1)
}

/// What a pod may send in one packet so that it fits the link to other nodes with all that the
/// overlay adds.
fn pod_mtu(socket: &mut Socket, config: &Config) -> io::Result<u32> {
    let machine = Machine::read(socket)?;
    let node = config.addresses.borrow().clone();
    let interface = config.interface.as_deref();
    let families = config.cluster.families();
    // The smaller one, where the families have different links.
    let found = families.iter().filter_map(|f| machine.underlay(*f, interface, &node).ok());
    let mtu = found.map(|u| u.mtu).filter(|mtu| *mtu > 0).min().unwrap_or(MTU);
    let mtu = config.cluster.overlay.link_mtu.unwrap_or(mtu);
    Ok(mtu.saturating_sub(config.cluster.backend.overhead(&families)))
}

/// An address of the bridge's own: without one it takes that of a port, and changes it when ports
/// come and go, which pods' neighbour entries do not follow.
fn hardware_address(node: &str) -> [u8; 6] {
    let hash =
        node.bytes().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
    let [a, b, c, d] = hash.to_be_bytes();
    [0x0a, 0x58, a, b, c, d]
}

/// The bridge as it should be; safe to repeat. `services` are all blocks of services, once they are
/// known: until then those of the configuration. Returns the link and the pods' MTU.
pub(crate) fn ensure_bridge(
    config: &Config,
    blocks: &[Cidr],
    services: Option<&[Cidr]>,
) -> Result<(Link, u32), Error> {
    let mut socket = Socket::route().map_err(Error::io("cannot open a route socket"))?;
    let named = |what: &str| format!("cannot {what} bridge {}", config.bridge);
    let mtu = match config.cluster.pod_mtu {
        Some(mtu) => mtu,
        None => pod_mtu(&mut socket, config).map_err(Error::io("cannot read the node's links"))?,
    };
    if socket.link(&config.bridge).map_err(Error::io(named("find")))?.is_none() {
        let mac = hardware_address(&config.node_name);
        socket.add_bridge(&config.bridge, mtu, mac).map_err(Error::io(named("make")))?;
    }
    let missing = || io::Error::from(io::ErrorKind::NotFound);
    let link = socket
        .link(&config.bridge)
        .and_then(|l| l.ok_or_else(missing))
        .map_err(Error::io(named("find")))?;
    socket.set_up(link.index).map_err(Error::io(named("set up")))?;
    let settings = |family: Family| match family {
        Family::V4 => vec![
            ("ipv4/ip_forward".to_owned(), "1"),
            // Pods send everything to the bridge, also for neighbours. A redirect would be wrong,
            // and it uses up the allowance of ICMP messages that refusals need; the kernel asks
            // both settings.
            ("ipv4/conf/all/send_redirects".to_owned(), "0"),
            // For host ports at loopback addresses, which are the proxy's affair as is the rule
            // that keeps pods from the node's own (CVE-2020-8558).
            (
                format!("ipv4/conf/{}/route_localnet", config.bridge),
                if config.cluster.proxy { "1" } else { "0" },
            ),
            (format!("ipv4/conf/{}/send_redirects", config.bridge), "0"),
        ],
        Family::V6 => vec![
            (format!("ipv6/conf/{}/disable_ipv6", config.bridge), "0"),
            (format!("ipv6/conf/{}/accept_dad", config.bridge), "0"),
            (format!("ipv6/conf/{}/accept_ra", config.bridge), "0"),
        ],
    };
    for family in Family::ALL {
        if !present_family(config, family) {
            continue;
        }
        for (name, value) in settings(family) {
            sysctl(&name, value).map_err(Error::io("the pod network needs a kernel setting"))?;
        }
        if family == Family::V6 {
            forward_v6(&mut socket).map_err(Error::io("cannot forward IPv6"))?;
        }
    }
    let mut wanted: Vec<(IpAddr, u8)> =
        blocks.iter().filter_map(|b| Some((gateway(b)?, b.prefix()))).collect();
    wanted.extend(config.cluster.cluster_dns.iter().map(|ip| (*ip, Family::of(*ip).bits())));
    let present = socket.addresses(link.index).map_err(Error::io(named("read addresses of")))?;
    for (ip, prefix) in &present {
        let link_local = matches!(ip, IpAddr::V6(a) if a.segments()[0] & 0xffc0 == 0xfe80);
        // A block that the node no longer has must not keep its route.
        if !blocks.is_empty() && !link_local && !wanted.contains(&(*ip, *prefix)) {
            let _ = socket.delete_address(link.index, *ip, *prefix);
        }
    }
    for (ip, prefix) in wanted {
        socket
            .add_address(link.index, ip, prefix)
            .map_err(Error::io(format!("cannot give {ip}/{prefix} to bridge {}", config.bridge)))?;
    }
    if !blocks.is_empty() {
        route_services(&mut socket, config, link.index, services)?;
    }
    Ok((link, mtu))
}

/// Without a default route the node could not even send to a service; translation happens before it
/// leaves.
fn route_services(
    socket: &mut Socket,
    config: &Config,
    bridge: u32,
    services: Option<&[Cidr]>,
) -> Result<(), Error> {
    let wanted = services.unwrap_or(&config.cluster.service_cidrs);
    for block in wanted.iter().filter(|b| present_family(config, b.family())) {
        socket
            .add_link_route(bridge, *block, None)
            .map_err(Error::io(format!("cannot route services {block} to {}", config.bridge)))?;
    }
    for family in Family::ALL.into_iter().filter(|_| services.is_some()) {
        let present = socket.link_routes(bridge, family);
        for block in present.map_err(Error::io("cannot read the routes of services"))? {
            if !wanted.contains(&block) {
                let gone = socket.delete_link_route(bridge, block);
                gone.map_err(Error::io(format!("cannot remove the route of services {block}")))?;
            }
        }
    }
    Ok(())
}

fn present_family(config: &Config, family: Family) -> bool {
    config.cluster.cluster_cidrs.iter().any(|c| c.family() == family)
}

/// Switches IPv6 forwarding on without losing routes learned from router advertisements.
fn forward_v6(socket: &mut Socket) -> io::Result<()> {
    for link in socket.links()? {
        let name = format!("ipv6/conf/{}/accept_ra", link.name);
        let path = Path::new("/proc/sys/net").join(&name);
        if std::fs::read_to_string(path).is_ok_and(|v| v.trim() == "1") {
            sysctl(&name, "2")?;
        }
    }
    sysctl("ipv6/conf/all/forwarding", "1")
}
