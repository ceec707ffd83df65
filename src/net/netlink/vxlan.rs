//! VXLAN links: made, read and changed in place.

use std::io;
use std::net::IpAddr;

use crate::netlink::route::{
    GET_LINK, IFLA_ADDRESS, IFLA_INFO, IFLA_MTU, IFLA_NAME, Link, NEW_LINK, UP, body, link,
};
use crate::netlink::{CREATE, EXCL, Socket, Writer, attribute, ne32};
use settings::addr::{from_octets, octets};

const KIND: u16 = 1;
const DATA: u16 = 2;
const VNI: u16 = 1;
const DEVICE: u16 = 3;
const LOCAL: u16 = 4;
const LEARNING: u16 = 7;
const PORT: u16 = 15;
const LOCAL_V6: u16 = 17;
const CHECKSUM: u16 = 18;

/// What makes a VXLAN link what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Vxlan {
    pub(crate) vni: u32,
    pub(crate) port: u16,
    /// The link that carries it.
    pub(crate) device: u32,
    /// The node's address on that link.
    pub(crate) local: IpAddr,
}

fn local(w: &mut Writer, vxlan: &Vxlan) {
    let kind = if vxlan.local.is_ipv4() { LOCAL } else { LOCAL_V6 };
    w.ne32(DEVICE, vxlan.device).attr(kind, &octets(vxlan.local));
}

/// What a link's message says of its VXLAN; `None` for another kind, and for one that learns
/// addresses from packets.
fn vxlan(message: &[u8]) -> Option<Vxlan> {
    let info = attribute(message.get(16..)?, IFLA_INFO)?;
    if attribute(info, KIND)?.strip_suffix(b"\0")? != b"vxlan" {
        return None;
    }
    let data = attribute(info, DATA)?;
    if attribute(data, LEARNING).is_some_and(|l| l != [0]) {
        return None;
    }
    let local = attribute(data, LOCAL).or_else(|| attribute(data, LOCAL_V6));
    Some(Vxlan {
        vni: attribute(data, VNI).and_then(|v| ne32(v, 0))?,
        port: attribute(data, PORT)?.try_into().ok().map(u16::from_be_bytes)?,
        device: attribute(data, DEVICE).and_then(|d| ne32(d, 0)).unwrap_or(0),
        local: local.and_then(from_octets)?,
    })
}

impl Socket {
    /// The link of this name, and what it is as a VXLAN of ours.
    pub(crate) fn vxlan(&mut self, name: &str) -> io::Result<Option<(Link, Option<Vxlan>)>> {
        let mut w = body(0, 0, 0);
        w.text(IFLA_NAME, name);
        match self.get(GET_LINK, &w.0) {
            Ok(received) => Ok(link(&received).map(|l| (l, vxlan(&received.body)))),
            Err(e) if e.raw_os_error() == Some(nix::errno::Errno::ENODEV as i32) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Makes the link: it learns nothing from packets. The outer checksum stays off over IPv4, as
    /// in flannel: the inner packet has its own.
    pub(crate) fn add_vxlan(
        &mut self,
        name: &str,
        mtu: u32,
        mac: &[u8; 6],
        vxlan: &Vxlan,
    ) -> io::Result<()> {
        let mut w = body(0, UP, UP);
        w.text(IFLA_NAME, name).ne32(IFLA_MTU, mtu).attr(IFLA_ADDRESS, mac);
        w.nest(IFLA_INFO, |w| {
            w.text(KIND, "vxlan").nest(DATA, |w| {
                w.ne32(VNI, vxlan.vni).attr(PORT, &vxlan.port.to_be_bytes());
                w.attr(LEARNING, &[0]).attr(CHECKSUM, &[0]);
                local(w, vxlan);
            });
        });
        self.request(NEW_LINK, CREATE | EXCL, &w.0)
    }

    /// Moves a link to another device or address of the same family, without interrupting it.
    pub(crate) fn move_vxlan(&mut self, index: u32, vxlan: &Vxlan) -> io::Result<()> {
        let mut w = body(index, 0, 0);
        w.nest(IFLA_INFO, |w| {
            w.text(KIND, "vxlan").nest(DATA, |w| local(w, vxlan));
        });
        self.request(NEW_LINK, 0, &w.0)
    }

    /// Gives a link another MTU and hardware address.
    pub(crate) fn set_link(&mut self, index: u32, mtu: u32, mac: &[u8; 6]) -> io::Result<()> {
        let mut w = body(index, 0, 0);
        w.ne32(IFLA_MTU, mtu).attr(IFLA_ADDRESS, mac);
        self.request(NEW_LINK, 0, &w.0)
    }
}
