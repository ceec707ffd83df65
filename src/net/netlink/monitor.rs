//! Notifications of changes of the kernel's links, addresses and routes.
//!
//! The socket is read here and not by rtnetlink's connection: that one needs a task, drops a
//! notification with an attribute that it cannot decode, and queues unread notifications without
//! a bound.

use std::io;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::libc::{RTM_DELADDR, RTM_DELLINK, RTM_DELROUTE, RTM_NEWADDR, RTM_NEWLINK};
use nix::sys::socket::{
    AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, socket,
};
use rtnetlink::MulticastGroup;
use rtnetlink::packet_route::link::LinkHeader;
use tokio::net::UnixDatagram;

use crate::netlink::address::{self, Address};
use crate::netlink::route::Route;
use crate::netlink::{Received, split};

/// The bits of the groups that the socket joins.
const GROUPS: u32 = bit(MulticastGroup::Link)
    | bit(MulticastGroup::Ipv4Ifaddr)
    | bit(MulticastGroup::Ipv4Route)
    | bit(MulticastGroup::Ipv6Ifaddr)
    | bit(MulticastGroup::Ipv6Route);

const fn bit(group: MulticastGroup) -> u32 {
    1 << (group as u32 - 1)
}

/// A change in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KernelChange {
    /// A link of this index was made, changed or removed.
    Link(u32),
    /// An address was added, or one that exists was announced again.
    AddressAdded(Address),
    /// An address was removed.
    AddressRemoved(Address),
    /// A route was removed.
    RouteRemoved(Route),
}

impl KernelChange {
    fn decode(received: &Received) -> Option<Self> {
        let body = &received.body;
        match received.kind {
            RTM_NEWLINK | RTM_DELLINK => Some(Self::Link(LinkHeader::parse(body).ok()?.index)),
            RTM_NEWADDR => address::decode(body).map(Self::AddressAdded),
            RTM_DELADDR => address::decode(body).map(Self::AddressRemoved),
            RTM_DELROUTE => Route::decode(body).map(Self::RouteRemoved),
            _ => None,
        }
    }
}

/// The result of one read.
#[derive(Debug)]
pub(crate) enum Notification {
    /// These changes.
    Changes(Vec<KernelChange>),
    /// The kernel dropped notifications: anything may have changed.
    Lost,
}

/// A socket that receives the notifications of the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Monitor {
    /// A netlink socket is a datagram socket: `recv`, the only call of this type that is used, is
    /// the same for both.
    socket: UnixDatagram,
    buffer: Vec<u8>,
}

impl Monitor {
    pub(crate) fn open() -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let protocol = SockProtocol::NetlinkRoute;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, GROUPS))?;
        let socket = UnixDatagram::from_std(std::os::unix::net::UnixDatagram::from(fd))?;
        Ok(Self { socket, buffer: vec![0; 32 << 10] })
    }

    /// The next changes.
    ///
    /// # Errors
    /// When the socket is broken.
    pub(crate) async fn next(&mut self) -> io::Result<Notification> {
        match self.socket.recv(&mut self.buffer).await {
            Ok(length) => {
                let messages = split(self.buffer.get(..length).unwrap_or_default());
                let changes = messages.iter().filter_map(KernelChange::decode);
                Ok(Notification::Changes(changes.collect()))
            }
            Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => {
                Ok(Notification::Lost)
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Socket;
    use crate::testing::{connected_links, in_namespace, privileged, shell};

    #[test]
    fn changes_of_links_addresses_and_routes_are_reported() {
        if !privileged("changes_of_links_addresses_and_routes_are_reported") {
            return;
        }
        in_namespace(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let mut monitor = Monitor::open().unwrap();
                connected_links();
                let index = Socket::route().unwrap().link("d0").unwrap().unwrap().index;
                let (ip, prefix) = ("192.0.2.1".parse().unwrap(), 24);
                let address = Address { index, ip, prefix };
                shell("ip address add 192.0.2.1/24 dev d0");
                shell("ip route add 10.42.1.0/24 via 192.0.2.2 proto 108");
                shell("ip route del 10.42.1.0/24; ip address del 192.0.2.1/24 dev d0");
                let gateway = Some("192.0.2.2".parse().unwrap());
                let to = "10.42.1.0/24".parse().unwrap();
                let route = Route { to, gateway, index, on_link: false, protocol: 108 };
                let mut missing = vec![
                    KernelChange::Link(index),
                    KernelChange::AddressAdded(address),
                    KernelChange::RouteRemoved(route),
                    KernelChange::AddressRemoved(address),
                ];
                while !missing.is_empty() {
                    let next =
                        tokio::time::timeout(std::time::Duration::from_secs(10), monitor.next());
                    match next
                        .await
                        .unwrap_or_else(|_| panic!("not reported: {missing:?}"))
                        .unwrap()
                    {
                        Notification::Changes(changes) => missing.retain(|c| !changes.contains(c)),
                        Notification::Lost => panic!("the kernel dropped notifications"),
                    }
                }
            });
        });
    }
}
