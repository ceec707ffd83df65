//! Sockets of the kernel's netlink interface, blocking, in the network namespace of their thread.
//!
//! Messages about links, addresses, routes and neighbours are those of rtnetlink; nftables,
//! conntrack, traffic control, WireGuard and ethtool, which it has no messages for, use [`Writer`].

pub(crate) mod address;
pub(crate) mod conntrack;
pub(crate) mod ethtool;
pub(crate) mod link;
pub(crate) mod monitor;
pub(crate) mod neighbour;
pub(crate) mod route;
pub(crate) mod traffic_control;
pub(crate) mod vxlan;
pub(crate) mod wireguard;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use rtnetlink::packet_core::Emitable;

pub(crate) const REQUEST: u16 = 1;
pub(crate) const ACK: u16 = 4;
pub(crate) const REPLACE: u16 = 0x100;
pub(crate) const EXCL: u16 = 0x200;
pub(crate) const CREATE: u16 = 0x400;
pub(crate) const APPEND: u16 = 0x800;
pub(crate) const DUMP: u16 = 0x300;
const NESTED: u16 = 0x8000;
const HEADER: usize = 16;
const TYPE_ERROR: u16 = 2;
const TYPE_DONE: u16 = 3;
/// An answer that takes longer than this means a kernel that does not answer.
const ANSWER_SECONDS_MAX: i64 = 10;

/// Bytes of one message or attribute under construction.
#[derive(Debug, Default, Clone)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn attr(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        // Callers split lists before 64 KiB; a longer value would be a bug of ours, not input.
        let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub(crate) fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attr(kind, &bytes)
    }

    pub(crate) fn be32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attr(kind, &value.to_be_bytes())
    }

    pub(crate) fn be64(&mut self, kind: u16, value: u64) -> &mut Self {
        self.attr(kind, &value.to_be_bytes())
    }

    pub(crate) fn ne32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attr(kind, &value.to_ne_bytes())
    }

    pub(crate) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Writer)) -> &mut Self {
        let mut inner = Writer::default();
        fill(&mut inner);
        self.attr(kind | NESTED, &inner.0)
    }
}

/// The bytes of a message of rtnetlink, without the header.
fn encode(message: &impl Emitable) -> Vec<u8> {
    let mut bytes = vec![0; message.buffer_len()];
    message.emit(&mut bytes);
    bytes
}

/// Takes one error for success: that of an object that is already missing.
fn unless(missing: Errno, result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(missing as i32) => Ok(()),
        other => other,
    }
}

/// One netlink message as bytes; its sequence number is given when sent.
pub(crate) fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + body.len()).unwrap_or(u32::MAX);
    let mut out = Vec::with_capacity(HEADER + body.len() + 4);
    out.extend_from_slice(&length.to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(&(flags | REQUEST).to_ne_bytes());
    out.extend_from_slice(&sequence.to_ne_bytes());
    out.extend_from_slice(&0_u32.to_ne_bytes());
    out.extend_from_slice(body);
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

/// A received message.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) kind: u16,
    pub(crate) sequence: u32,
    pub(crate) body: Vec<u8>,
}

pub(crate) fn ne16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

pub(crate) fn ne32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

/// The attributes of a body: type without flags, value. Stops at the first malformed one.
pub(crate) fn attributes(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut out = Vec::new();
    while let (Some(length), Some(kind)) = (ne16(bytes, 0), ne16(bytes, 2)) {
        let length = usize::from(length);
        let Some(value) = bytes.get(4..length) else { break };
        out.push((kind & 0x3fff, value));
        let Some(rest) = bytes.get(length.next_multiple_of(4)..) else { break };
        bytes = rest;
    }
    out
}

/// The first attribute of a type.
pub(crate) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).into_iter().find(|(k, _)| *k == kind).map(|(_, v)| v)
}

fn split(mut bytes: &[u8]) -> Vec<Received> {
    let mut out = Vec::new();
    while let Some(length) = ne32(bytes, 0).and_then(|l| usize::try_from(l).ok()) {
        let (Some(kind), Some(sequence), Some(body)) =
            (ne16(bytes, 4), ne32(bytes, 8), bytes.get(HEADER..length))
        else {
            break;
        };
        out.push(Received { kind, sequence, body: body.to_vec() });
        let Some(rest) = bytes.get(length.next_multiple_of(4)..) else { break };
        bytes = rest;
    }
    out
}

/// The error number of an error message; 0 is an acknowledgement.
pub(crate) fn error_of(body: &[u8]) -> i32 {
    body.get(..4)
        .and_then(|b| b.try_into().ok())
        .map_or(libc_eio(), |b: [u8; 4]| -i32::from_ne_bytes(b))
}

fn libc_eio() -> i32 {
    nix::errno::Errno::EIO as i32
}

/// A socket of one netlink protocol, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Socket {
    fn open(protocol: SockProtocol) -> io::Result<Self> {
        let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::new(ANSWER_SECONDS_MAX, 0))?;
        // Large batches; without CAP_NET_ADMIN the ordinary limit stays and small ones still work.
        let _ = setsockopt(&fd, sockopt::RcvBufForce, &(4 << 20));
        Ok(Self { fd, sequence: 1, buffer: vec![0; 64 << 10] })
    }

    /// Routes, links, addresses.
    pub(crate) fn route() -> io::Result<Self> {
        Self::open(SockProtocol::NetlinkRoute)
    }

    /// nftables and conntrack.
    pub(crate) fn netfilter() -> io::Result<Self> {
        Self::open(SockProtocol::NetlinkNetFilter)
    }

    /// Whatever has a number of its own only at run time.
    pub(crate) fn generic() -> io::Result<Self> {
        Self::open(SockProtocol::NetlinkGeneric)
    }

    /// A sequence number not used before.
    pub(crate) fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    /// Sends bytes that may be many messages, as one datagram.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() > 100 << 10 {
            let _ = setsockopt(&self.fd, sockopt::SndBufForce, &bytes.len().saturating_mul(2));
        }
        send(self.fd.as_raw_fd(), bytes, MsgFlags::empty())?;
        Ok(())
    }

    /// The next datagram's messages.
    pub(crate) fn receive(&mut self) -> io::Result<Vec<Received>> {
        let length = recv(self.fd.as_raw_fd(), &mut self.buffer, MsgFlags::empty())?;
        Ok(split(self.buffer.get(..length).unwrap_or_default()))
    }

    /// One request, answered by an acknowledgement or an error.
    pub(crate) fn request(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        let sequence = self.next_sequence();
        self.send(&message(kind, flags | ACK, sequence, body))?;
        loop {
            for answer in self.receive()? {
                if answer.sequence == sequence && answer.kind == TYPE_ERROR {
                    return match error_of(&answer.body) {
                        0 => Ok(()),
                        error => Err(io::Error::from_raw_os_error(error)),
                    };
                }
            }
        }
    }

    /// One request answered by one message.
    pub(crate) fn get(&mut self, kind: u16, body: &[u8]) -> io::Result<Received> {
        let sequence = self.next_sequence();
        self.send(&message(kind, 0, sequence, body))?;
        loop {
            for answer in self.receive()? {
                if answer.sequence != sequence {
                    continue;
                }
                if answer.kind == TYPE_ERROR {
                    return Err(io::Error::from_raw_os_error(error_of(&answer.body)));
                }
                return Ok(answer);
            }
        }
    }

    /// A dump: every message is given to `each`.
    pub(crate) fn dump(
        &mut self,
        kind: u16,
        body: &[u8],
        mut each: impl FnMut(&Received),
    ) -> io::Result<()> {
        let sequence = self.next_sequence();
        self.send(&message(kind, DUMP, sequence, body))?;
        loop {
            for answer in self.receive()? {
                if answer.sequence != sequence {
                    continue;
                }
                match answer.kind {
                    TYPE_DONE => return Ok(()),
                    TYPE_ERROR => {
                        return Err(io::Error::from_raw_os_error(error_of(&answer.body)));
                    }
                    _ => each(&answer),
                }
            }
        }
    }
}

pub(crate) fn is_error(received: &Received) -> bool {
    received.kind == TYPE_ERROR
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_nested_and_torn_ones_end_the_list() {
        let mut writer = Writer::default();
        writer.text(1, "ab").nest(2, |w| {
            w.be32(3, 0x0102_0304);
        });
        assert_eq!(writer.0.len(), 8 + 4 + 8);
        let list = attributes(&writer.0);
        assert_eq!(list[0], (1, &b"ab\0"[..]));
        assert_eq!(attribute(list[1].1, 3), Some(&[1, 2, 3, 4][..]));
        assert!(attributes(&[9, 0, 1, 0, 7]).is_empty());
        assert!(attributes(&[0, 0, 1, 0]).is_empty());
    }
}
