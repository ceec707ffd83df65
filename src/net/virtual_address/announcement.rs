//! Sends the frames of [`super::frame`] and receives the answers; blocking.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, recv, send, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

use super::interface::Interface;
use super::{frame, sys};
use crate::netlink::link::Mac;

/// How often another machine is asked whether it has an address.
const PROBES: u32 = 2;
/// How long the answer to each may take.
const ANSWER: Duration = Duration::from_millis(60);
/// Longest frame that is read; announcements are shorter.
const FRAME_MAX: usize = 256;

fn open(interface: &Interface, ip: IpAddr) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    // Without a protocol it receives nothing before it is bound.
    let socket = socket(AddressFamily::Packet, SockType::Raw, flags, None)?;
    sys::bind_packets(&socket, interface.index, frame::protocol(ip))?;
    Ok(socket)
}

/// Tells all machines of the link that this one has the addresses.
pub(super) fn announce(interface: &Interface, addresses: &[IpAddr]) -> io::Result<()> {
    let Some(mac) = interface.mac else { return Ok(()) };
    for ip in addresses {
        let socket = open(interface, *ip)?;
        for frame in frame::announcement(*ip, &mac) {
            send(socket.as_raw_fd(), &frame, MsgFlags::empty())?;
        }
    }
    Ok(())
}

/// Asks whether another machine of the link has the address; returns its hardware address.
pub(super) fn find_owner(interface: &Interface, ip: IpAddr) -> io::Result<Option<Mac>> {
    let Some(mac) = interface.mac else { return Ok(None) };
    let socket = open(interface, ip)?;
    let mut buffer = [0; FRAME_MAX];
    for _ in 0..PROBES {
        send(socket.as_raw_fd(), &frame::probe(ip, &mac), MsgFlags::empty())?;
        let end = base::clock::now() + ANSWER;
        loop {
            let left = end.saturating_duration_since(base::clock::now());
            let micros = i64::try_from(left.as_micros()).unwrap_or(0);
            if micros == 0 {
                break;
            }
            setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(0, micros))?;
            match recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(length) => {
                    let frame = buffer.get(..length).unwrap_or_default();
                    if let Some(owner) = frame::owner(frame, ip, &mac) {
                        return Ok(Some(owner));
                    }
                }
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Socket;
    use crate::testing::{connected_links, in_namespace, privileged, shell};

    #[test]
    fn the_owner_of_an_address_on_the_link_is_found_in_both_families() {
        if !privileged("the_owner_of_an_address_on_the_link_is_found_in_both_families") {
            return;
        }
        in_namespace(|| {
            connected_links();
            shell("sysctl -qw net.ipv6.conf.all.disable_ipv6=0");
            shell("ip netns add va-test 2>/dev/null || true; ip link set d1 netns va-test");
            shell("ip -n va-test link set d1 up; ip -n va-test addr add 192.0.2.10/32 dev d1");
            shell("ip -n va-test addr add 2001:db8::10/128 dev d1 nodad");
            shell("ip addr add 192.0.2.1/24 dev d0; ip addr add 2001:db8::1/64 dev d0 nodad");
            let link = Socket::route().unwrap().link("d0").unwrap().unwrap();
            let mac = link.mac.as_slice().try_into().ok();
            let interface = Interface { index: link.index, mac };
            let owner = |ip: &str| find_owner(&interface, ip.parse().unwrap()).unwrap();
            let found = owner("192.0.2.10");
            let free = owner("192.0.2.11");
            let six = owner("2001:db8::10");
            announce(&interface, &["192.0.2.12".parse().unwrap()]).unwrap();
            shell("ip netns del va-test");
            assert!(found.is_some() && free.is_none());
            assert_eq!(six, found);
        });
    }
}
