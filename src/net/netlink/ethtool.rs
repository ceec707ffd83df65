//! Features of links that drivers may leave to hardware: read and switched, as `ethtool -k` and
//! `-K` do.

use std::io;

use crate::netlink::{Received, Socket, Writer, attribute, attributes};

/// `GENL_ID_CTRL`, whose answers name the number of each family.
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// `ETHTOOL_MSG_FEATURES_GET` and `…_SET`.
const GET: u8 = 11;
const SET: u8 = 12;
const HEADER: u16 = 1;
const WANTED: u16 = 3;
const ACTIVE: u16 = 4;
const BITS: u16 = 3;
const BIT: u16 = 1;
const BIT_NAME: u16 = 2;
const BIT_VALUE: u16 = 3;
/// `ETHTOOL_FLAG_OMIT_REPLY`: an acknowledgement is enough.
const OMIT_REPLY: u32 = 2;

/// The link's driver completes the checksums of packets that it sends; what virtual links have is
/// this one.
pub(crate) const CHECKSUMS: &str = "tx-checksum-ip-generic";

fn body(command: u8, link: &str, flags: u32) -> Writer {
    let mut w = Writer::default();
    w.raw(&[command, 1, 0, 0]).nest(HEADER, |w| {
        w.text(2, link).ne32(3, flags);
    });
    w
}

/// The names of the bits that are set.
fn active(received: &Received) -> Vec<&[u8]> {
    let list = received.body.get(4..).unwrap_or_default();
    let bits = attribute(list, ACTIVE).and_then(|set| attribute(set, BITS)).unwrap_or_default();
    let name = |bit| attribute(bit, BIT_NAME)?.strip_suffix(b"\0");
    attributes(bits).into_iter().filter_map(|(_, bit)| name(bit)).collect()
}

/// A socket that speaks to ethtool's part of the kernel.
#[derive(Debug)]
pub(crate) struct Ethtool {
    socket: Socket,
    family: u16,
}

impl Ethtool {
    /// # Errors
    /// [`io::ErrorKind::NotFound`] from kernels without it (before 5.6, or CONFIG_ETHTOOL_NETLINK
    /// is off).
    pub(crate) fn open() -> io::Result<Self> {
        let mut socket = Socket::generic()?;
        let mut w = Writer::default();
        w.raw(&[GET_FAMILY, 1, 0, 0]).text(FAMILY_NAME, "ethtool");
        let answer = socket.get(CONTROL, &w.0)?;
        let id = answer.body.get(4..).and_then(|list| attribute(list, FAMILY_ID));
        let id = id.and_then(|id| id.try_into().ok()).map(u16::from_ne_bytes);
        let family = id.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        Ok(Self { socket, family })
    }

    /// Whether a feature of a link is on.
    pub(crate) fn is_on(&mut self, link: &str, feature: &str) -> io::Result<bool> {
        let answer = self.socket.get(self.family, &body(GET, link, 0).0)?;
        Ok(active(&answer).contains(&feature.as_bytes()))
    }

    /// Switches a feature of a link; what depends on it goes off with it.
    pub(crate) fn switch(&mut self, link: &str, feature: &str, on: bool) -> io::Result<()> {
        let mut w = body(SET, link, OMIT_REPLY);
        w.nest(WANTED, |w| {
            w.nest(BITS, |w| {
                w.nest(BIT, |w| {
                    w.text(BIT_NAME, feature);
                    if on {
                        w.attr(BIT_VALUE, &[]);
                    }
                });
            });
        });
        self.socket.request(self.family, 0, &w.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{in_namespace, privileged, shell};

    #[test]
    fn a_feature_is_switched_and_read_back() {
        if !privileged("a_feature_is_switched_and_read_back") {
            return;
        }
        in_namespace(|| {
            shell("ip link add x type vxlan id 7 dstport 8472 local 127.0.0.1");
            let mut ethtool = Ethtool::open().unwrap();
            assert!(ethtool.is_on("x", CHECKSUMS).unwrap());
            for on in [false, true, false] {
                ethtool.switch("x", CHECKSUMS, on).unwrap();
                assert_eq!(ethtool.is_on("x", CHECKSUMS).unwrap(), on);
            }
            let missing = ethtool.is_on("y", CHECKSUMS).unwrap_err();
            assert_eq!(missing.raw_os_error(), Some(nix::errno::Errno::ENODEV as i32));
            assert!(ethtool.switch("x", "no-such-feature", true).is_err());
        });
    }
}
