//! Datagrams whose checksum is made here, by no driver: where these arrive and others do not,
//! something between spoils what the kernel leaves to be completed.

use std::io;
use std::net::{IpAddr, SocketAddr};

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use tokio::net::UdpSocket;

use settings::addr::{Family, octets};

const UDP: u8 = 17;

/// The internet checksum (RFC 1071).
pub(crate) fn internet(bytes: &[u8]) -> u16 {
    let (mut high, mut total) = (true, 0_u64);
    for byte in bytes {
        total += if high { u64::from(*byte) << 8 } else { u64::from(*byte) };
        high = !high;
    }
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    !u16::try_from(total).unwrap_or(0)
}

/// A UDP header and `payload`, with the checksum of these addresses.
pub(crate) fn datagram(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len() + 8).unwrap_or(u16::MAX).to_be_bytes();
    let header = |check: u16| {
        [from.port().to_be_bytes(), to.port().to_be_bytes(), length, check.to_be_bytes()].concat()
    };
    let pseudo = [octets(from.ip()), octets(to.ip()), length.to_vec(), vec![0, UDP]].concat();
    let sum = internet(&[&pseudo[..], &header(0), payload].concat());
    // None at all is written as zero, so zero is written as its other form.
    let check = if sum == 0 { u16::MAX } else { sum };
    [&header(check)[..], payload].concat()
}

/// A socket to `to` that sends what it is given behind an IP header and hears whether the port is
/// closed. Its own address is known once it is connected.
fn raw(to: IpAddr) -> io::Result<UdpSocket> {
    let family = match Family::of(to) {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(family, SockType::Raw, flags, SockProtocol::Udp)?;
    UdpSocket::from_std(std::net::UdpSocket::from(fd))
}

/// Sends `payload` to a port, with a checksum of our own. The socket hears the answer.
pub(crate) async fn send(to: SocketAddr, payload: &[u8]) -> io::Result<UdpSocket> {
    let socket = raw(to.ip())?;
    socket.connect(to).await?;
    // An ephemeral port: no program waits for an answer there.
    let from = SocketAddr::new(socket.local_addr()?.ip(), 65_000);
    socket.send(&datagram(from, to, payload)).await?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_rfc_and_of_a_real_packet() {
        // RFC 1071, section 3: the sum is ddf2.
        assert_eq!(internet(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
        assert_eq!(internet(&[1]), !0x0100);
        // 192.0.2.1:1 to 192.0.2.2:2, empty: c000+0201+c000+0202+0011+0008 + 0001+0002+0008 =
        // 18427, folded 8428.
        let of = |text: &str| text.parse().unwrap();
        let packet = datagram(of("192.0.2.1:1"), of("192.0.2.2:2"), &[]);
        assert_eq!(packet, [0, 1, 0, 2, 0, 8, 0x7b, 0xd7]);
    }
}
