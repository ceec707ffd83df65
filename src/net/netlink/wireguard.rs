//! WireGuard links, and their keys and peers by generic netlink.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use nix::libc::{IFLA_IFALIAS, RTM_NEWLINK};
use rtnetlink::packet_route::link::LinkAttribute;
use rtnetlink::{LinkUnspec, LinkWireguard};

use crate::netlink::link::{Link, attributes_of, decode, kind, text};
use crate::netlink::{CREATE, EXCL, Socket, Writer, attribute, attributes, encode, ne16};
use settings::addr::{Cidr, Family, from_octets, octets};

/// `GENL_ID_CTRL`: the controller, which resolves the IDs of the other generic netlink families.
const CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

// linux/wireguard.h
const VERSION: u8 = 1;
const GET_DEVICE: u8 = 0;
const SET_DEVICE: u8 = 1;
const DEVICE_INDEX: u16 = 1;
const DEVICE_PRIVATE: u16 = 3;
const DEVICE_PUBLIC: u16 = 4;
const DEVICE_PORT: u16 = 6;
const DEVICE_PEERS: u16 = 8;
const PEER_KEY: u16 = 1;
const PEER_FLAGS: u16 = 3;
const PEER_ENDPOINT: u16 = 4;
const PEER_KEEPALIVE: u16 = 5;
const PEER_HANDSHAKE: u16 = 6;
const PEER_ALLOWED: u16 = 9;
const ALLOWED_FAMILY: u16 = 1;
const ALLOWED_ADDRESS: u16 = 2;
const ALLOWED_PREFIX: u16 = 3;
const REMOVE: u32 = 1;
const REPLACE_ALLOWED: u32 = 2;
/// Blocks in one message: an attribute is at most 64 KiB long, and a block takes 40 bytes.
const BLOCKS_MAX: usize = 500;

fn of_base64(text: &str) -> Option<[u8; 32]> {
    let bytes = STANDARD.decode(text.trim()).ok()?;
    bytes.try_into().ok().filter(|key| *key != [0; 32])
}

/// A public key, as text in the base64 that `wg` and flannel write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PublicKey(pub(crate) [u8; 32]);

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        of_base64(text).map(Self).ok_or(())
    }
}

/// A private key. Its `Debug` form has no key: only [`PrivateKey::to_file`] gives its text.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PrivateKey([u8; 32]);

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey")
    }
}

impl PrivateKey {
    /// A key of 32 random bytes, in the form that Curve25519 takes (RFC 7748, section 5).
    pub(crate) fn new(mut bytes: [u8; 32]) -> Self {
        bytes[0] &= 248;
        bytes[31] = bytes[31] & 127 | 64;
        Self(bytes)
    }

    /// Reads what [`PrivateKey::to_file`] or `wg genkey` wrote.
    pub(crate) fn of_file(text: &str) -> Option<Self> {
        of_base64(text).map(Self::new)
    }

    /// One line for a file that root alone reads.
    pub(crate) fn to_file(&self) -> String {
        format!("{}\n", STANDARD.encode(self.0))
    }
}

/// A peer as the kernel knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PeerState {
    /// Where packets to it go; a peer that moves is followed by the kernel.
    pub(crate) endpoint: Option<SocketAddr>,
    /// Seconds between packets that keep a NAT's memory fresh; 0 is none.
    pub(crate) keepalive: u16,
    /// Unix time of the last handshake; 0 before the first.
    pub(crate) handshake: u64,
    /// The addresses that are behind it.
    pub(crate) allowed: BTreeSet<Cidr>,
}

/// A device as the kernel knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) private: Option<PrivateKey>,
    pub(crate) public: Option<PublicKey>,
    pub(crate) port: u16,
    pub(crate) peers: BTreeMap<PublicKey, PeerState>,
}

/// What is to change about a peer; `None` stays.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) endpoint: Option<SocketAddr>,
    pub(crate) keepalive: Option<u16>,
    pub(crate) allowed: Option<BTreeSet<Cidr>>,
}

/// Talks to the kernel's WireGuard.
#[derive(Debug)]
pub(crate) struct Generic {
    socket: Socket,
    family: u16,
}

fn header(command: u8) -> Writer {
    let mut w = Writer::default();
    w.raw(&[command, VERSION, 0, 0]);
    w
}

/// `struct sockaddr_in` or `sockaddr_in6`.
fn sockaddr(at: SocketAddr) -> Vec<u8> {
    let family = Family::of(at.ip());
    let mut out = u16::from(family.number()).to_ne_bytes().to_vec();
    out.extend(at.port().to_be_bytes());
    if family == Family::V6 {
        out.extend([0; 4]);
    }
    out.extend(octets(at.ip()));
    out.extend(if family == Family::V4 { &[0; 8][..] } else { &[0; 4] });
    out
}

fn read_sockaddr(bytes: &[u8]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
    let ip = match ne16(bytes, 0)? {
        2 => from_octets(bytes.get(4..8)?)?,
        10 => from_octets(bytes.get(8..24)?)?,
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

fn allowed(list: &[u8]) -> Option<Cidr> {
    let ip = from_octets(attribute(list, ALLOWED_ADDRESS)?)?;
    Cidr::new(ip, *attribute(list, ALLOWED_PREFIX)?.first()?).ok()
}

impl Device {
    /// Adds one message of a dump. The next message continues a peer with many blocks.
    fn take(&mut self, message: &[u8]) {
        let key = |value: &[u8]| value.try_into().ok().filter(|key| *key != [0; 32]);
        for (kind, value) in attributes(message.get(4..).unwrap_or_default()) {
            match kind {
                DEVICE_PRIVATE => self.private = key(value).map(PrivateKey),
                DEVICE_PUBLIC => self.public = key(value).map(PublicKey),
                DEVICE_PORT => self.port = ne16(value, 0).unwrap_or_default(),
                DEVICE_PEERS => attributes(value).iter().for_each(|(_, peer)| self.peer(peer)),
                _ => {}
            }
        }
    }

    fn peer(&mut self, list: &[u8]) {
        let Some(key) = attribute(list, PEER_KEY).and_then(|k| k.try_into().ok()) else { return };
        let seen = self.peers.entry(PublicKey(key)).or_default();
        for (kind, value) in attributes(list) {
            match kind {
                PEER_ENDPOINT => seen.endpoint = read_sockaddr(value),
                PEER_KEEPALIVE => seen.keepalive = ne16(value, 0).unwrap_or_default(),
                PEER_HANDSHAKE => {
                    let seconds = value.get(..8).and_then(|s| s.try_into().ok());
                    let seconds = i64::from_ne_bytes(seconds.unwrap_or_default());
                    seen.handshake = u64::try_from(seconds).unwrap_or_default();
                }
                PEER_ALLOWED => {
                    seen.allowed.extend(attributes(value).iter().filter_map(|(_, a)| allowed(a)));
                }
                _ => {}
            }
        }
    }
}

/// The body of a message about one peer.
fn peer_message(index: u32, key: &PublicKey, flags: u32, fill: impl FnOnce(&mut Writer)) -> Writer {
    let mut w = header(SET_DEVICE);
    w.ne32(DEVICE_INDEX, index).nest(DEVICE_PEERS, |w| {
        w.nest(0, |w| {
            w.attr(PEER_KEY, &key.0).ne32(PEER_FLAGS, flags);
            fill(w);
        });
    });
    w
}

impl Generic {
    /// Opens it in the thread's network namespace; `None` where the kernel has no WireGuard, not
    /// even as a module that it can load.
    pub(crate) fn open() -> io::Result<Option<Self>> {
        let mut socket = Socket::generic()?;
        let mut w = Writer::default();
        w.raw(&[GET_FAMILY, 1, 0, 0]).text(FAMILY_NAME, "wireguard");
        let answer = match socket.get(CONTROL, &w.0) {
            Ok(answer) => answer,
            Err(e) if e.raw_os_error() == Some(nix::errno::Errno::ENOENT as i32) => {
                return Ok(None);
            }
            Err(e) => return Err(e),
        };
        let list = answer.body.get(4..).unwrap_or_default();
        let family = attribute(list, FAMILY_ID).and_then(|id| ne16(id, 0));
        Ok(family.map(|family| Self { socket, family }))
    }

    /// Reads a device.
    pub(crate) fn device(&mut self, index: u32) -> io::Result<Device> {
        let mut w = header(GET_DEVICE);
        w.ne32(DEVICE_INDEX, index);
        let mut device = Device::default();
        self.socket.dump(self.family, &w.0, |message| device.take(&message.body))?;
        Ok(device)
    }

    /// Gives a device its key and port.
    pub(crate) fn set_device(&mut self, index: u32, key: &PrivateKey, port: u16) -> io::Result<()> {
        let mut w = header(SET_DEVICE);
        w.ne32(DEVICE_INDEX, index).attr(DEVICE_PRIVATE, &key.0);
        w.attr(DEVICE_PORT, &port.to_ne_bytes());
        self.socket.request(self.family, 0, &w.0)
    }

    /// Makes a peer or changes it. A block that another peer has becomes this one's.
    pub(crate) fn set_peer(
        &mut self,
        index: u32,
        key: &PublicKey,
        change: &Change,
    ) -> io::Result<()> {
        let blocks: Vec<Cidr> = change.allowed.iter().flatten().copied().collect();
        let mut parts = blocks.chunks(BLOCKS_MAX);
        let mut send = |flags: u32, change: &Change, part: &[Cidr]| {
            let w = peer_message(index, key, flags, |w| {
                if let Some(endpoint) = change.endpoint {
                    w.attr(PEER_ENDPOINT, &sockaddr(endpoint));
                }
                if let Some(keepalive) = change.keepalive {
                    w.attr(PEER_KEEPALIVE, &keepalive.to_ne_bytes());
                }
                w.nest(PEER_ALLOWED, |w| part.iter().for_each(|block| put_block(w, block)));
            });
            self.socket.request(self.family, 0, &w.0)
        };
        let flags = if change.allowed.is_some() { REPLACE_ALLOWED } else { 0 };
        send(flags, change, parts.next().unwrap_or_default())?;
        parts.try_for_each(|part| send(0, &Change::default(), part))
    }

    /// Removes a peer; one that is not there is fine.
    pub(crate) fn remove_peer(&mut self, index: u32, key: &PublicKey) -> io::Result<()> {
        let w = peer_message(index, key, REMOVE, |_| {});
        self.socket.request(self.family, 0, &w.0)
    }
}

fn put_block(w: &mut Writer, block: &Cidr) {
    w.nest(0, |w| {
        w.attr(ALLOWED_FAMILY, &u16::from(block.family().number()).to_ne_bytes());
        w.attr(ALLOWED_ADDRESS, &octets(block.first())).attr(ALLOWED_PREFIX, &[block.prefix()]);
    });
}

/// What a link of a name is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) link: Link,
    /// It is WireGuard's.
    pub(crate) wireguard: bool,
    /// The words that its maker gave it.
    pub(crate) alias: String,
}

fn named(message: &[u8]) -> Option<Named> {
    let alias = attribute(attributes_of(message), IFLA_IFALIAS).unwrap_or_default();
    Some(Named {
        link: decode(message)?,
        wireguard: kind(message).is_some_and(|(kind, _)| kind == b"wireguard"),
        alias: text(alias),
    })
}

impl Socket {
    /// The link of this name, and whether it is WireGuard's.
    pub(crate) fn wireguard(&mut self, name: &str) -> io::Result<Option<Named>> {
        Ok(self.describe_link(name)?.and_then(|received| named(&received.body)))
    }

    /// Creates a WireGuard link that is down.
    pub(crate) fn add_wireguard(&mut self, name: &str, mtu: u32) -> io::Result<()> {
        let link = LinkWireguard::new(name).mtu(mtu).build();
        self.request(RTM_NEWLINK, CREATE | EXCL, &encode(&link))
    }

    /// Changes the MTU and the alias of a link.
    pub(crate) fn set_wireguard(&mut self, index: u32, mtu: u32, alias: &str) -> io::Result<()> {
        let link = LinkUnspec::new_with_index(index)
            .mtu(mtu)
            .append_extra_attribute(LinkAttribute::IfAlias(alias.to_owned()))
            .build();
        self.request(RTM_NEWLINK, 0, &encode(&link))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_and_written_as_wg_does_and_the_private_one_is_not_shown() {
        // RFC 7748, section 6.1: Bob's keys.
        let text = "3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=";
        let key: PublicKey = text.parse().unwrap();
        assert_eq!((key.0[0], key.0[31]), (0xde, 0x4f));
        assert_eq!(key.to_string(), text);
        for bad in ["", "3p7b", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "not base64 at all"]
        {
            assert!(bad.parse::<PublicKey>().is_err(), "{bad}");
        }
        let private = PrivateKey::new([0xff; 32]);
        assert_eq!((private.0[0], private.0[31]), (0xf8, 0x7f));
        assert_eq!(private.to_file(), "+P///////////////////////////////////////38=\n");
        assert_eq!(PrivateKey::of_file(&private.to_file()), Some(private.clone()));
        assert_eq!(format!("{private:?}"), "PrivateKey");
    }

    #[test]
    fn endpoints_have_the_form_of_the_kernel() {
        let four = sockaddr("192.0.2.1:51820".parse().unwrap());
        assert_eq!(four.len(), 16);
        assert_eq!(four[2..8], [0xca, 0x6c, 192, 0, 2, 1]);
        let six = sockaddr("[2001:db8::1]:51821".parse().unwrap());
        assert_eq!(six.len(), 28);
        assert_eq!(six[8..12], [0x20, 0x01, 0x0d, 0xb8]);
        for bytes in [&four, &six] {
            assert_eq!(sockaddr(read_sockaddr(bytes).unwrap()), **bytes);
        }
        assert_eq!(read_sockaddr(&four[..6]), None);
        assert_eq!(read_sockaddr(&[]), None);
    }

    #[test]
    fn a_peer_that_goes_on_in_the_next_message_is_one() {
        let key = PublicKey([7; 32]);
        let message = |block: &str, endpoint: Option<&str>| {
            peer_message(3, &key, 0, |w| {
                if let Some(endpoint) = endpoint {
                    w.attr(PEER_ENDPOINT, &sockaddr(endpoint.parse().unwrap()));
                    w.attr(PEER_HANDSHAKE, &[1_i64.to_ne_bytes(), [0; 8]].concat());
                }
                w.nest(PEER_ALLOWED, |w| put_block(w, &block.parse().unwrap()));
            })
        };
        let mut device = Device::default();
        device.take(&message("10.42.1.0/24", Some("192.0.2.1:51820")).0);
        device.take(&message("10.42.7.0/24", None).0);
        device.take(&[1, 1, 0, 0, 9, 9]);
        let seen = &device.peers[&key];
        assert_eq!(device.peers.len(), 1);
        assert_eq!(seen.endpoint, "192.0.2.1:51820".parse().ok());
        assert_eq!(seen.handshake, 1);
        let blocks: Vec<String> = seen.allowed.iter().map(ToString::to_string).collect();
        assert_eq!(blocks, ["10.42.1.0/24", "10.42.7.0/24"]);
    }
}
