//! VXLAN links: created, read and changed in place.

use std::io;
use std::net::IpAddr;

use nix::libc::RTM_NEWLINK;
use rtnetlink::packet_route::link::InfoKind;
use rtnetlink::{LinkMessageBuilder, LinkVxlan};

use crate::netlink::link::{Link, Mac, decode, kind};
use crate::netlink::{CREATE, EXCL, Socket, attribute, encode, ne32};
use settings::addr::from_octets;

// `IFLA_VXLAN_…`
const VNI: u16 = 1;
const DEVICE: u16 = 3;
const LOCAL: u16 = 4;
const LEARNING: u16 = 7;
const PORT: u16 = 15;
const LOCAL_V6: u16 = 17;

/// The settings of a VXLAN link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Vxlan {
    pub(crate) vni: u32,
    pub(crate) port: u16,
    /// The index of the link that carries the packets.
    pub(crate) device: u32,
    /// The node's address on that link.
    pub(crate) local: IpAddr,
}

impl Vxlan {
    /// Adds the settings that can change in place.
    fn place(&self, builder: LinkMessageBuilder<LinkVxlan>) -> LinkMessageBuilder<LinkVxlan> {
        let builder = builder.dev(self.device);
        match self.local {
            IpAddr::V4(ip) => builder.local(ip),
            IpAddr::V6(ip) => builder.local6(ip),
        }
    }

    /// The VXLAN settings of a link. `None` for another kind of link, and for a VXLAN that learns
    /// addresses from packets.
    fn decode(message: &[u8]) -> Option<Self> {
        let (kind, settings) = kind(message)?;
        if kind != b"vxlan" {
            return None;
        }
        if attribute(settings, LEARNING).is_some_and(|learns| learns != [0]) {
            return None;
        }
        let local = attribute(settings, LOCAL).or_else(|| attribute(settings, LOCAL_V6));
        Some(Self {
            vni: attribute(settings, VNI).and_then(|vni| ne32(vni, 0))?,
            port: attribute(settings, PORT)?.try_into().ok().map(u16::from_be_bytes)?,
            device: attribute(settings, DEVICE).and_then(|index| ne32(index, 0)).unwrap_or(0),
            local: local.and_then(from_octets)?,
        })
    }
}

impl Socket {
    /// The link of this name with its VXLAN settings; see [`Vxlan`] for links without them.
    pub(crate) fn vxlan(&mut self, name: &str) -> io::Result<Option<(Link, Option<Vxlan>)>> {
        Ok(self
            .describe_link(name)?
            .and_then(|received| Some((decode(&received.body)?, Vxlan::decode(&received.body)))))
    }

    /// Creates a VXLAN that learns nothing from packets. The outer checksum is off over IPv4, as
    /// in flannel: the inner packet has its own.
    pub(crate) fn add_vxlan(
        &mut self,
        name: &str,
        mtu: u32,
        mac: &Mac,
        vxlan: &Vxlan,
    ) -> io::Result<()> {
        let builder = LinkVxlan::new(name, vxlan.vni)
            .port(vxlan.port)
            .learning(false)
            .udp_csum(false)
            .mtu(mtu)
            .address(mac.to_vec())
            .up();
        self.request(RTM_NEWLINK, CREATE | EXCL, &encode(&vxlan.place(builder).build()))
    }

    /// Moves a VXLAN to another device or address of the same family without interrupting it.
    pub(crate) fn move_vxlan(&mut self, index: u32, vxlan: &Vxlan) -> io::Result<()> {
        let builder = LinkMessageBuilder::<LinkVxlan>::new_with_info_kind(InfoKind::Vxlan);
        self.request(RTM_NEWLINK, 0, &encode(&vxlan.place(builder.index(index)).build()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{connected_links, in_namespace, privileged, shell};

    #[test]
    fn a_vxlan_of_either_family_is_read_back_and_moves_in_place() {
        if !privileged("a_vxlan_of_either_family_is_read_back_and_moves_in_place") {
            return;
        }
        in_namespace(|| {
            connected_links();
            let mut socket = Socket::route().unwrap();
            let [d0, d1] = ["d0", "d1"].map(|name| socket.link(name).unwrap().unwrap().index);
            let mac = [2, 0, 0, 0, 0, 1];
            for (name, local, next) in
                [("v4", "192.0.2.1", "192.0.2.2"), ("v6", "2001:db8::1", "2001:db8::2")]
            {
                let (local, next) = (local.parse().unwrap(), next.parse().unwrap());
                let mut vxlan = Vxlan { vni: 7, port: 8472, device: d0, local };
                socket.add_vxlan(name, 1400, &mac, &vxlan).unwrap();
                let (link, found) = socket.vxlan(name).unwrap().unwrap();
                assert_eq!((found, link.mtu, link.up), (Some(vxlan), 1400, true));
                assert_eq!(link.mac, mac);
                (vxlan.device, vxlan.local) = (d1, next);
                socket.move_vxlan(link.index, &vxlan).unwrap();
                let (moved, found) = socket.vxlan(name).unwrap().unwrap();
                assert_eq!((found, moved.index, moved.mtu), (Some(vxlan), link.index, 1400));
            }
            let shown = shell("ip -d link show v4");
            assert!(shown.contains("nolearning") && shown.contains("noudpcsum"), "{shown}");
        });
    }

    #[test]
    fn a_vxlan_that_learns_and_another_kind_of_link_are_not_ours() {
        if !privileged("a_vxlan_that_learns_and_another_kind_of_link_are_not_ours") {
            return;
        }
        in_namespace(|| {
            connected_links();
            shell("ip link add v0 type vxlan id 7 dstport 8472 dev d0 local 192.0.2.1");
            let mut socket = Socket::route().unwrap();
            assert_eq!(socket.vxlan("v0").unwrap().unwrap().1, None);
            assert_eq!(socket.vxlan("d0").unwrap().unwrap().1, None);
            assert_eq!(socket.vxlan("v1").unwrap(), None);
        });
    }
}
