//! Permanent neighbour entries, and the forwarding entries of a tunnel, which map hardware
//! addresses to machines.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use nix::errno::Errno;
use nix::libc::{NDA_DST, NDA_LLADDR, RTM_DELNEIGH, RTM_GETNEIGH, RTM_NEWNEIGH};
use rtnetlink::packet_core::Emitable;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::neighbour::{
    NeighbourAttribute, NeighbourFlags, NeighbourHeader, NeighbourMessage, NeighbourState,
};

use crate::netlink::link::Mac;
use crate::netlink::{CREATE, REPLACE, Socket, attribute, encode, unless};
use settings::addr::{Family, from_octets};

/// `NUD_PERMANENT`.
const PERMANENT: u16 = 0x80;
/// `NUD_NOARP`.
const NO_ARP: u16 = 0x40;

fn message(family: AddressFamily, index: u32, ip: IpAddr, mac: &Mac) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = family;
    message.header.ifindex = index;
    message.header.state = NeighbourState::Permanent;
    message.attributes = vec![
        NeighbourAttribute::Destination(ip.into()),
        NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
    ];
    message
}

fn neighbour(index: u32, ip: IpAddr, mac: &Mac) -> NeighbourMessage {
    message(Family::of(ip).number().into(), index, ip, mac)
}

/// `NTF_SELF`: the entry belongs to the tunnel itself, not to a bridge that it is a port of.
fn forward(index: u32, ip: IpAddr, mac: &Mac) -> NeighbourMessage {
    let mut message = message(AddressFamily::Bridge, index, ip, mac);
    message.header.state = NeighbourState::Other(PERMANENT | NO_ARP);
    message.header.flags = NeighbourFlags::Own;
    message
}

/// An entry of a neighbour or forwarding table.
struct TableEntry {
    ip: IpAddr,
    mac: Mac,
    /// `NUD_…` bits.
    state: u16,
}

fn decode(body: &[u8], family: AddressFamily, index: u32) -> Option<TableEntry> {
    let header = NeighbourHeader::parse(body).ok()?;
    if header.family != family || header.ifindex != index {
        return None;
    }
    let list = body.get(header.buffer_len()..)?;
    Some(TableEntry {
        ip: attribute(list, NDA_DST).and_then(from_octets)?,
        mac: attribute(list, NDA_LLADDR)?.try_into().ok()?,
        state: header.state.into(),
    })
}

impl Socket {
    fn table(&mut self, family: AddressFamily, index: u32) -> io::Result<Vec<TableEntry>> {
        let mut request = NeighbourMessage::default();
        request.header.family = family;
        let mut out = Vec::new();
        self.dump(RTM_GETNEIGH, &encode(&request), |received| {
            out.extend(decode(&received.body, family, index));
        })?;
        Ok(out)
    }

    /// The permanent neighbours of a link.
    pub(crate) fn neighbours(
        &mut self,
        family: Family,
        index: u32,
    ) -> io::Result<BTreeMap<IpAddr, Mac>> {
        let all = self.table(family.number().into(), index)?;
        let permanent = all.into_iter().filter(|entry| entry.state & PERMANENT != 0);
        Ok(permanent.map(|entry| (entry.ip, entry.mac)).collect())
    }

    /// Makes or replaces a permanent neighbour.
    pub(crate) fn set_neighbour(&mut self, index: u32, ip: IpAddr, mac: &Mac) -> io::Result<()> {
        self.request(RTM_NEWNEIGH, CREATE | REPLACE, &encode(&neighbour(index, ip, mac)))
    }

    /// Removes a permanent neighbour. A missing one is no error.
    pub(crate) fn delete_neighbour(&mut self, index: u32, ip: IpAddr, mac: &Mac) -> io::Result<()> {
        unless(Errno::ENOENT, self.request(RTM_DELNEIGH, 0, &encode(&neighbour(index, ip, mac))))
    }

    /// The forwarding entries of a tunnel: hardware addresses and the machines that have them.
    pub(crate) fn forwards(&mut self, index: u32) -> io::Result<Vec<(Mac, IpAddr)>> {
        let all = self.table(AddressFamily::Bridge, index)?;
        Ok(all.into_iter().map(|entry| (entry.mac, entry.ip)).collect())
    }

    /// Makes or replaces a forwarding entry.
    pub(crate) fn set_forward(&mut self, index: u32, mac: &Mac, ip: IpAddr) -> io::Result<()> {
        self.request(RTM_NEWNEIGH, CREATE | REPLACE, &encode(&forward(index, ip, mac)))
    }

    /// Removes a forwarding entry. A missing one is no error.
    pub(crate) fn delete_forward(&mut self, index: u32, mac: &Mac, ip: IpAddr) -> io::Result<()> {
        unless(Errno::ENOENT, self.request(RTM_DELNEIGH, 0, &encode(&forward(index, ip, mac))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::vxlan::Vxlan;
    use crate::testing::{connected_links, in_namespace, privileged};

    #[test]
    fn entries_of_both_families_are_read_back_and_removed() {
        if !privileged("entries_of_both_families_are_read_back_and_removed") {
            return;
        }
        in_namespace(|| {
            connected_links();
            let mut socket = Socket::route().unwrap();
            let device = socket.link("d0").unwrap().unwrap().index;
            let (own, mac) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
            for (name, local, peer) in
                [("v4", "192.0.2.1", "192.0.2.2"), ("v6", "2001:db8::1", "2001:db8::2")]
            {
                let (local, peer) = (local.parse().unwrap(), peer.parse().unwrap());
                let vxlan = Vxlan { vni: 7, port: 8472, device, local };
                socket.add_vxlan(name, 1400, &own, &vxlan).unwrap();
                let index = socket.link(name).unwrap().unwrap().index;
                let family = Family::of(peer);
                for _ in 0..2 {
                    socket.set_neighbour(index, peer, &mac).unwrap();
                    socket.set_forward(index, &mac, peer).unwrap();
                }
                let neighbours = socket.neighbours(family, index).unwrap();
                assert_eq!(neighbours.get(&peer), Some(&mac), "{neighbours:?}");
                assert_eq!(socket.neighbours(family, device).unwrap().get(&peer), None);
                assert_eq!(socket.forwards(index).unwrap(), [(mac, peer)]);
                assert_eq!(socket.forwards(device).unwrap(), []);
                for _ in 0..2 {
                    socket.delete_neighbour(index, peer, &mac).unwrap();
                    socket.delete_forward(index, &mac, peer).unwrap();
                }
                assert_eq!(socket.neighbours(family, index).unwrap().get(&peer), None);
                assert_eq!(socket.forwards(index).unwrap(), []);
            }
        });
    }
}
