//! Addresses of links of the thread's network namespace.

use std::io;
use std::net::IpAddr;

use nix::libc::{IFA_ADDRESS, IFA_LOCAL, RTM_DELADDR, RTM_GETADDR, RTM_NEWADDR};
use rtnetlink::packet_core::Emitable;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{
    AddressAttribute, AddressHeader, AddressHeaderFlags, AddressMessage, CacheInfo,
};

use crate::netlink::{CREATE, REPLACE, Socket, attribute, encode};
use settings::addr::{Family, from_octets};

/// An address of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    /// The index of the link.
    pub(crate) index: u32,
    pub(crate) ip: IpAddr,
    pub(crate) prefix: u8,
}

/// The address that a message describes. `IFA_LOCAL` has precedence: on a point-to-point link
/// `IFA_ADDRESS` is that of the other end.
pub(super) fn decode(body: &[u8]) -> Option<Address> {
    let header = AddressHeader::parse(body).ok()?;
    let list = body.get(header.buffer_len()..)?;
    let ip = attribute(list, IFA_LOCAL).or_else(|| attribute(list, IFA_ADDRESS));
    Some(Address { index: header.index, ip: ip.and_then(from_octets)?, prefix: header.prefix_len })
}

/// `AddressMessageBuilder` would add a broadcast address, which pods and bridges do not have.
fn message(index: u32, ip: IpAddr, prefix: u8) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.index = index;
    message.header.prefix_len = prefix;
    message.header.family = AddressFamily::Inet;
    if ip.is_ipv6() {
        message.header.family = AddressFamily::Inet6;
        // Addresses of pods are unique: duplicate address detection would only delay them.
        message.header.flags = AddressHeaderFlags::Nodad;
    }
    message.attributes = vec![AddressAttribute::Local(ip), AddressAttribute::Address(ip)];
    message
}

impl Socket {
    /// Adds an address to a link. An existing address is no error.
    pub(crate) fn add_address(&mut self, index: u32, ip: IpAddr, prefix: u8) -> io::Result<()> {
        self.request(RTM_NEWADDR, CREATE | REPLACE, &encode(&message(index, ip, prefix)))
    }

    /// Adds an address that no packet gets as its source by default, or changes when the kernel
    /// removes it: after `seconds`, or never.
    pub(crate) fn add_expiring_address(
        &mut self,
        index: u32,
        ip: IpAddr,
        seconds: Option<u32>,
    ) -> io::Result<()> {
        let mut message = message(index, ip, Family::of(ip).bits());
        // The preferred time of zero is what keeps it from being a source (RFC 4862, section
        // 5.5.4).
        let mut times = CacheInfo::default();
        times.ifa_valid = seconds.unwrap_or(u32::MAX);
        message.attributes.push(AddressAttribute::CacheInfo(times));
        self.request(RTM_NEWADDR, CREATE | REPLACE, &encode(&message))
    }

    /// Removes an address from a link.
    pub(crate) fn delete_address(&mut self, index: u32, ip: IpAddr, prefix: u8) -> io::Result<()> {
        self.request(RTM_DELADDR, 0, &encode(&message(index, ip, prefix)))
    }

    /// The addresses of all links.
    pub(crate) fn all_addresses(&mut self) -> io::Result<Vec<Address>> {
        let mut out = Vec::new();
        self.dump(RTM_GETADDR, &encode(&AddressMessage::default()), |received| {
            out.extend(decode(&received.body));
        })?;
        Ok(out)
    }

    /// The addresses of a link with their prefix lengths.
    pub(crate) fn addresses(&mut self, index: u32) -> io::Result<Vec<(IpAddr, u8)>> {
        let all = self.all_addresses()?;
        Ok(all.into_iter().filter(|a| a.index == index).map(|a| (a.ip, a.prefix)).collect())
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;
    use crate::testing::{connected_links, in_namespace, privileged, shell};

    #[test]
    fn addresses_of_both_families_are_added_once_and_removed() {
        if !privileged("addresses_of_both_families_are_added_once_and_removed") {
            return;
        }
        in_namespace(|| {
            let mut socket = Socket::route().unwrap();
            let four: IpAddr = "192.0.2.1".parse().unwrap();
            let six: IpAddr = "2001:db8::1".parse().unwrap();
            for _ in 0..2 {
                socket.add_address(1, four, 24).unwrap();
                socket.add_address(1, six, 64).unwrap();
            }
            let of_lo = socket.addresses(1).unwrap();
            assert_eq!(of_lo.iter().filter(|a| **a == (four, 24)).count(), 1);
            assert_eq!(of_lo.iter().filter(|a| **a == (six, 64)).count(), 1);
            let shown = shell("ip address show lo");
            assert!(shown.contains("2001:db8::1/64 scope global nodad"), "{shown}");
            assert!(shown.contains("192.0.2.1/24 scope global lo"), "no broadcast: {shown}");
            socket.delete_address(1, four, 24).unwrap();
            let missing = socket.delete_address(1, four, 24).unwrap_err();
            assert_eq!(missing.raw_os_error(), Some(Errno::EADDRNOTAVAIL as i32));
            assert!(!socket.addresses(1).unwrap().contains(&(four, 24)));
        });
    }

    #[test]
    fn the_local_address_of_a_point_to_point_link_has_precedence() {
        if !privileged("the_local_address_of_a_point_to_point_link_has_precedence") {
            return;
        }
        in_namespace(|| {
            connected_links();
            shell("ip address add 192.0.2.1 peer 192.0.2.2/32 dev d0");
            let found = Socket::route().unwrap().all_addresses().unwrap();
            assert!(found.iter().any(|a| a.ip.to_string() == "192.0.2.1"), "{found:?}");
            assert!(!found.iter().any(|a| a.ip.to_string() == "192.0.2.2"), "{found:?}");
        });
    }
}
