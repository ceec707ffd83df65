//! Frames that announce an address (RFC 5227, RFC 4861 section 7.2.6) and ask whether another
//! machine has it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::netlink::link::Mac;

/// `ETH_P_ARP` and `ETH_P_IPV6`.
pub(super) const ARP: u16 = 0x0806;
pub(super) const IPV6: u16 = 0x86dd;
const BROADCAST: Mac = [0xff; 6];
const ARP_REQUEST: u16 = 1;
const ARP_REPLY: u16 = 2;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
/// The bit `override` of an advertisement.
const OVERRIDE: u32 = 0x2000_0000;
/// Types of options: source and target link-layer address.
const TARGET_ADDRESS: u8 = 2;
const ICMPV6: u8 = 58;

/// The kind of frames of an address.
pub(super) fn protocol(ip: IpAddr) -> u16 {
    if ip.is_ipv4() { ARP } else { IPV6 }
}

/// The frames that tell all machines of the link that `own` has the address.
pub(super) fn announcement(ip: IpAddr, own: &Mac) -> Vec<Vec<u8>> {
    match ip {
        // Some machines update their tables on requests only, others on replies only.
        IpAddr::V4(ip) => {
            vec![arp(ARP_REQUEST, own, ip, &[0; 6], ip), arp(ARP_REPLY, own, ip, &BROADCAST, ip)]
        }
        IpAddr::V6(ip) => {
            let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
            let mut body = OVERRIDE.to_be_bytes().to_vec();
            body.extend(ip.octets());
            body.extend([TARGET_ADDRESS, 1]);
            body.extend(own);
            vec![icmp(NEIGHBOUR_ADVERTISEMENT, own, (ip, all_nodes), &body)]
        }
    }
}

/// The frame that asks whether another machine has the address.
pub(super) fn probe(ip: IpAddr, own: &Mac) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => arp(ARP_REQUEST, own, Ipv4Addr::UNSPECIFIED, &[0; 6], ip),
        IpAddr::V6(ip) => {
            let [.., a, b, c] = ip.octets();
            let low = u16::from_be_bytes([b, c]);
            let solicited = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), low);
            let mut body = vec![0; 4];
            body.extend(ip.octets());
            icmp(NEIGHBOUR_SOLICITATION, own, (Ipv6Addr::UNSPECIFIED, solicited), &body)
        }
    }
}

/// The machine that a received frame shows to have the address; `None` for other frames and for
/// those of `own`.
pub(super) fn owner(frame: &[u8], ip: IpAddr, own: &Mac) -> Option<Mac> {
    let kind = u16::from_be_bytes(frame.get(12..14)?.try_into().ok()?);
    let payload = frame.get(14..)?;
    let mac: Mac = match (ip, kind) {
        (IpAddr::V4(ip), ARP) if payload.get(14..18)? == ip.octets() => {
            payload.get(8..14)?.try_into().ok()?
        }
        (IpAddr::V6(ip), IPV6)
            if *payload.get(6)? == ICMPV6
                && *payload.get(40)? == NEIGHBOUR_ADVERTISEMENT
                && payload.get(48..64)? == ip.octets() =>
        {
            frame.get(6..12)?.try_into().ok()?
        }
        _ => return None,
    };
    (mac != *own).then_some(mac)
}

fn ethernet(to: &Mac, from: &Mac, kind: u16) -> Vec<u8> {
    [&to[..], &from[..], &kind.to_be_bytes()].concat()
}

fn arp(operation: u16, from: &Mac, sender: Ipv4Addr, to: &Mac, target: Ipv4Addr) -> Vec<u8> {
    let mut frame = ethernet(&BROADCAST, from, ARP);
    // Ethernet and IPv4, with lengths of 6 and 4 bytes.
    frame.extend([0, 1, 8, 0, 6, 4]);
    frame.extend(operation.to_be_bytes());
    frame.extend(from);
    frame.extend(sender.octets());
    frame.extend(to);
    frame.extend(target.octets());
    frame
}

/// A message of the neighbour discovery: `body` follows type, code and checksum.
fn icmp(kind: u8, from: &Mac, (source, to): (Ipv6Addr, Ipv6Addr), body: &[u8]) -> Vec<u8> {
    let [.., a, b, c, d] = to.octets();
    let mut frame = ethernet(&[0x33, 0x33, a, b, c, d], from, IPV6);
    let length = u16::try_from(body.len() + 4).unwrap_or(u16::MAX);
    frame.extend([0x60, 0, 0, 0]);
    frame.extend(length.to_be_bytes());
    // Receivers drop messages whose hop limit is not 255.
    frame.extend([ICMPV6, 255]);
    frame.extend(source.octets());
    frame.extend(to.octets());
    let mut message = vec![kind, 0, 0, 0];
    message.extend(body);
    let sum = checksum(&source, &to, &message);
    message.splice(2..4, sum.to_be_bytes());
    frame.extend(message);
    frame
}

/// The checksum of ICMPv6 over the pseudo header and the message (RFC 4443, section 2.3).
fn checksum(source: &Ipv6Addr, to: &Ipv6Addr, message: &[u8]) -> u16 {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
    let bytes = [&source.octets()[..], &to.octets(), &length, &[0, 0, 0, ICMPV6], message].concat();
    let pairs = bytes.chunks(2).map(|pair| match pair {
        [high, low] => u32::from(u16::from_be_bytes([*high, *low])),
        [high] => u32::from(*high) << 8,
        _ => 0,
    });
    let mut sum: u32 = pairs.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Mac = [2, 0, 0, 0, 0, 1];

    #[test]
    fn announcements_of_ipv4_are_a_request_and_a_reply_with_the_address_twice() {
        let ip: IpAddr = "192.0.2.10".parse().unwrap();
        let frames = announcement(ip, &OWN);
        for (frame, operation) in frames.iter().zip([1, 2]) {
            assert_eq!(frame.len(), 42);
            assert_eq!(frame[..6], BROADCAST);
            assert_eq!(frame[20..22], [0, operation]);
            assert_eq!(
                (&frame[28..32], &frame[38..42]),
                (&[192, 0, 2, 10][..], &[192, 0, 2, 10][..])
            );
            assert_eq!(owner(frame, ip, &[2, 0, 0, 0, 0, 9]), Some(OWN));
            assert_eq!(owner(frame, ip, &OWN), None, "its own frame");
        }
        assert_eq!(owner(&probe(ip, &OWN), ip, &[0; 6]), None, "a probe has no sender address");
    }

    #[test]
    fn messages_of_neighbour_discovery_have_a_valid_checksum_and_address() {
        let ip: IpAddr = "2001:db8::12:3456".parse().unwrap();
        let frame = announcement(ip, &OWN).remove(0);
        assert_eq!(frame[..6], [0x33, 0x33, 0, 0, 0, 1]);
        assert_eq!((frame[21], frame[54], frame[58]), (255, 136, 0x20));
        let solicitation = probe(ip, &OWN);
        assert_eq!(solicitation[..6], [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]);
        for frame in [&frame, &solicitation] {
            let address =
                |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&frame[at..at + 16]).unwrap());
            // The sum over a message with its checksum is 0xffff.
            assert_eq!(checksum(&address(22), &address(38), &frame[54..]), 0);
        }
        assert_eq!(owner(&frame, ip, &[9; 6]), Some(OWN));
        assert_eq!(owner(&solicitation, ip, &[9; 6]), None);
        for cut in 0..frame.len() {
            let _ = owner(&frame[..cut], ip, &[9; 6]);
        }
    }
}
