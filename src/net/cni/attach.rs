//! Links of one pod: a veth pair between the bridge and the pod's namespace.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use nix::sched::{CloneFlags, setns};
use serde_json::{Value, json};

use crate::cni::bandwidth::{Limits, ifb};
use crate::cni::{Failure, Reply, Request};
use crate::host;
use crate::ipam::Lease;
use crate::netlink::Socket;
use crate::netlink::link::{Link, mac_text};
use settings::addr::{Cidr, Family, octets};

/// Runs `work` on a thread of its own inside a network namespace.
fn inside<T: Send>(namespace: &File, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            setns(namespace, CloneFlags::CLONE_NEWNET)?;
            work()
        });
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the namespace thread panicked")))
    })
}

fn open(path: &str) -> Result<File, Failure> {
    File::open(path)
        .map_err(|e| Failure::environment(format!("cannot open network namespace {path}: {e}")))
}

fn fault(what: impl Into<String>) -> impl FnOnce(io::Error) -> Failure {
    let what = what.into();
    move |e| Failure::io(format!("{what}: {e}"))
}

/// The `loopback` plugin: `lo` up, which needs no agent.
pub(crate) fn loopback(request: &Request) -> Reply {
    let up = || -> Result<Value, Failure> {
        if !matches!(request.command.as_str(), "ADD" | "CHECK") {
            return Ok(Value::Null);
        }
        let namespace = open(&request.netns)?;
        if request.command == "CHECK" {
            let lo = inside(&namespace, || Socket::route()?.link("lo"));
            return match lo.map_err(fault("cannot look at lo"))? {
                Some(link) if link.up => Ok(Value::Null),
                _ => Err(Failure::io("lo is missing or down")),
            };
        }
        inside(&namespace, || Socket::route()?.set_up(1)).map_err(fault("cannot set up lo"))?;
        Ok(json!({
            "interfaces": [{"name": "lo", "mac": "00:00:00:00:00:00", "sandbox": request.netns}],
            "ips": [{"address": "127.0.0.1/8", "interface": 0}, {"address": "::1/128", "interface": 0}],
        }))
    };
    up().map_or_else(Reply::failed, Reply::done)
}

/// The hardware address that goes with a pod address, so that neighbours' entries stay right when
/// an address is given again.
fn hardware_address(lease: &Lease) -> [u8; 6] {
    let bytes = lease.addresses.first().map(|a| octets(*a)).unwrap_or_default();
    let mut out = [0x0a, 0x58, 0, 0, 0, 0];
    for (to, from) in out.iter_mut().rev().take(4).zip(bytes.iter().rev()) {
        *to = *from;
    }
    out
}

/// The host link's name for a sandbox interface.
pub(crate) fn host_link(container: &str, interface: &str) -> String {
    let hash = format!("{container}/{interface}")
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("veth{:010x}", hash & 0xff_ffff_ffff)
}

fn configure(interface: &str, lease: &Lease, gateways: &[IpAddr]) -> io::Result<Link> {
    let mut socket = Socket::route()?;
    socket.set_up(1)?;
    let missing = || io::Error::new(io::ErrorKind::NotFound, format!("no link {interface}"));
    let link = socket.link(interface)?.ok_or_else(missing)?;
    // All traffic goes through the node, so that replies find their way back through its
    // translation; a redirect to a neighbour on the bridge would undo that.
    for name in [
        "ipv4/conf/all/accept_redirects".to_owned(),
        format!("ipv4/conf/{interface}/accept_redirects"),
    ] {
        host::sysctl(&name, "0")?;
    }
    if lease.addresses.iter().any(IpAddr::is_ipv6) {
        host::sysctl(&format!("ipv6/conf/{interface}/disable_ipv6"), "0")?;
        for name in ["accept_redirects", "accept_ra", "accept_dad"] {
            host::sysctl(&format!("ipv6/conf/{interface}/{name}"), "0")?;
        }
    } else {
        // A pod without an address of IPv6 must not get one, and a way out, from a neighbour that
        // calls itself a router (CVE-2020-10749).
        let setting = format!("ipv6/conf/{interface}/accept_ra");
        match host::sysctl(&setting, "0") {
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            set => set?,
        }
    }
    socket.set_up(link.index)?;
    for address in &lease.addresses {
        socket.add_address(link.index, *address, Family::of(*address).bits())?;
    }
    for gateway in gateways {
        socket.add_link_route(link.index, Cidr::host(*gateway), None)?;
        let all = Cidr::new(Family::of(*gateway).unspecified(), 0).map_err(io::Error::other)?;
        socket.add_link_route(link.index, all, Some(*gateway))?;
    }
    Ok(link)
}

/// Where a pod is attached.
#[derive(Debug, Clone)]
pub(crate) struct Bridge {
    pub(crate) link: Link,
    pub(crate) mtu: u32,
    pub(crate) gateways: Vec<IpAddr>,
}

/// Makes the pod's link as the lease says; repeating it changes nothing. Undoes what it did when it
/// fails.
pub(crate) fn add(request: &Request, lease: &Lease, bridge: &Bridge) -> Result<Value, Failure> {
    let namespace = open(&request.netns)?;
    let limits = Limits::read(&request.config["runtimeConfig"]["bandwidth"])?;
    let mut socket = Socket::route().map_err(fault("cannot open a route socket"))?;
    let existing = check_with(&mut socket, &namespace, request, lease, &limits);
    if existing.is_err() {
        let host = &lease.host_link;
        socket.delete_link(host).map_err(fault(format!("cannot remove old link {host}")))?;
        let mac = hardware_address(lease);
        let peer = (request.interface.as_str(), &mac);
        let made = socket
            .add_veth(host, bridge.link.index, bridge.mtu, peer, namespace.as_raw_fd())
            .map_err(fault(format!(
                "cannot connect {} to {}",
                request.interface, bridge.link.name
            )));
        let done = made.and_then(|()| {
            let port = socket.link(host).map_err(fault("cannot find the host link"))?;
            if let Some(port) = port {
                socket.set_hairpin(port.index).map_err(fault("cannot set hairpin mode"))?;
                limits.apply(&mut socket, &port)?;
            }
            inside(&namespace, || configure(&request.interface, lease, &bridge.gateways))
                .map_err(fault(format!("cannot configure {} of the pod", request.interface)))
        });
        if let Err(failure) = done {
            let _ = remove_links(&mut socket, host);
            return Err(failure);
        }
    }
    let host = socket.link(&lease.host_link).ok().flatten();
    let text = |mac: Option<&[u8]>| mac.map(mac_text).unwrap_or_default();
    let ips: Vec<Value> = lease
        .addresses
        .iter()
        .map(|a| {
            let gateway = bridge.gateways.iter().find(|g| g.is_ipv4() == a.is_ipv4());
            json!({"address": Cidr::host(*a).to_string(), "gateway": gateway, "interface": 2})
        })
        .collect();
    let routes: Vec<Value> = bridge
        .gateways
        .iter()
        .map(|g| json!({"dst": if g.is_ipv4() { "0.0.0.0/0" } else { "::/0" }, "gw": g}))
        .collect();
    Ok(json!({
        "interfaces": [
            {"name": bridge.link.name, "mac": mac_text(&bridge.link.mac)},
            {"name": lease.host_link, "mac": text(host.as_ref().map(|l| l.mac.as_slice()))},
            {"name": request.interface, "mac": mac_text(&hardware_address(lease)), "sandbox": request.netns},
        ],
        "ips": ips,
        "routes": routes,
        "dns": {},
    }))
}

fn check_with(
    socket: &mut Socket,
    namespace: &File,
    request: &Request,
    lease: &Lease,
    limits: &Limits,
) -> Result<(), Failure> {
    let host = socket.link(&lease.host_link).map_err(fault("cannot find the host link"))?;
    if !host.is_some_and(|l| l.up) {
        return Err(Failure::io(format!("link {} is missing or down", lease.host_link)));
    }
    let (present, routed) = inside(namespace, || {
        let mut socket = Socket::route()?;
        let Some(link) = socket.link(&request.interface)? else { return Ok(Default::default()) };
        let mut routed = Vec::new();
        for family in Family::ALL {
            if socket.has_default_route(link.index, family)? {
                routed.push(family);
            }
        }
        Ok((socket.addresses(link.index)?, routed))
    })
    .map_err(fault("cannot look into the pod's namespace"))?;
    let interface = &request.interface;
    for address in &lease.addresses {
        if !present.iter().any(|(p, _)| p == address) {
            return Err(Failure::io(format!("{interface} has not the address {address}")));
        }
        let family = Family::of(*address);
        if !routed.contains(&family) {
            let name = family.name();
            return Err(Failure::io(format!("{interface} has no default route of {name}")));
        }
    }
    limits.check(socket, &lease.host_link)
}

/// Whether the pod's link, addresses, routes, bandwidth limits and host ports are as the lease and
/// the runtime say.
pub(crate) fn check(request: &Request, lease: &Lease) -> Result<(), Failure> {
    let told = request.config["prevResult"]["ips"].as_array().into_iter().flatten();
    for text in told.filter_map(|ip| ip["address"].as_str()) {
        let address = text.split('/').next().unwrap_or_default().parse::<IpAddr>();
        if !address.is_ok_and(|a| lease.addresses.contains(&a)) {
            return Err(Failure::config(format!(
                "prevResult names the address {text}, which was not given to this sandbox"
            )));
        }
    }
    if request.host_ports(&lease.addresses)? != lease.host_ports {
        return Err(Failure::config("the host ports are not those that were set up"));
    }
    let namespace = open(&request.netns)?;
    let limits = Limits::read(&request.config["runtimeConfig"]["bandwidth"])?;
    let mut socket = Socket::route().map_err(fault("cannot open a route socket"))?;
    check_with(&mut socket, &namespace, request, lease, &limits)
}

/// Removes the pod's link; nothing there is fine.
pub(crate) fn remove(lease: &Lease) -> Result<(), Failure> {
    let mut socket = Socket::route().map_err(fault("cannot open a route socket"))?;
    remove_links(&mut socket, &lease.host_link)
        .map_err(fault(format!("cannot remove {}", lease.host_link)))
}

/// Removes a host link and the link that limits it.
fn remove_links(socket: &mut Socket, host_link: &str) -> io::Result<()> {
    socket.delete_link(host_link)?;
    socket.delete_link(&ifb(host_link))
}
