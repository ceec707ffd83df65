//! Permanent neighbour entries, and the forwarding entries of a tunnel: which machine has a
//! hardware address.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use crate::netlink::{CREATE, REPLACE, Socket, Writer, attribute, ne16, ne32};
use settings::addr::{Family, from_octets, octets};

const NEW: u16 = 28;
const DELETE: u16 = 29;
const GET: u16 = 30;
const AF_BRIDGE: u8 = 7;
const ADDRESS: u16 = 1;
const HARDWARE: u16 = 2;
/// `NUD_PERMANENT`.
const PERMANENT: u16 = 0x80;
/// `NUD_NOARP`.
const NO_ARP: u16 = 0x40;
/// `NTF_SELF`: the entry is the tunnel's own, not that of a bridge it is a port of.
const SELF: u8 = 2;

/// A hardware address.
pub(crate) type Mac = [u8; 6];

fn entry(family: u8, index: u32, state: u16, flags: u8, mac: &Mac, ip: IpAddr) -> Writer {
    let mut w = Writer::default();
    w.raw(&[family, 0, 0, 0]).raw(&index.to_ne_bytes()).raw(&state.to_ne_bytes());
    w.raw(&[flags, 0]).attr(ADDRESS, &octets(ip)).attr(HARDWARE, mac);
    w
}

fn gone_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.raw_os_error() == Some(nix::errno::Errno::ENOENT as i32) => Ok(()),
        other => other,
    }
}

impl Socket {
    fn entries(&mut self, family: u8, index: u32) -> io::Result<Vec<(IpAddr, Mac, u16)>> {
        let mut head = [0; 12];
        head[0] = family;
        let mut out = Vec::new();
        self.dump(GET, &head, |r| {
            if r.body.first() != Some(&family) || ne32(&r.body, 4) != Some(index) {
                return;
            }
            let list = r.body.get(12..).unwrap_or_default();
            let ip = attribute(list, ADDRESS).and_then(from_octets);
            let mac = attribute(list, HARDWARE).and_then(|m| m.try_into().ok());
            if let (Some(ip), Some(mac), Some(state)) = (ip, mac, ne16(&r.body, 8)) {
                out.push((ip, mac, state));
            }
        })?;
        Ok(out)
    }

    /// The permanent neighbours of a link.
    pub(crate) fn neighbours(
        &mut self,
        family: Family,
        index: u32,
    ) -> io::Result<BTreeMap<IpAddr, Mac>> {
        let all = self.entries(family.number(), index)?;
        let permanent = all.into_iter().filter(|(_, _, state)| state & PERMANENT != 0);
        Ok(permanent.map(|(ip, mac, _)| (ip, mac)).collect())
    }

    pub(crate) fn set_neighbour(&mut self, index: u32, ip: IpAddr, mac: &Mac) -> io::Result<()> {
        let w = entry(Family::of(ip).number(), index, PERMANENT, 0, mac, ip);
        self.request(NEW, CREATE | REPLACE, &w.0)
    }

    pub(crate) fn delete_neighbour(&mut self, index: u32, ip: IpAddr, mac: &Mac) -> io::Result<()> {
        let w = entry(Family::of(ip).number(), index, PERMANENT, 0, mac, ip);
        gone_is_fine(self.request(DELETE, 0, &w.0))
    }

    /// Behind which machines a tunnel has its hardware addresses.
    pub(crate) fn forwards(&mut self, index: u32) -> io::Result<Vec<(Mac, IpAddr)>> {
        let all = self.entries(AF_BRIDGE, index)?;
        Ok(all.into_iter().map(|(ip, mac, _)| (mac, ip)).collect())
    }

    pub(crate) fn set_forward(&mut self, index: u32, mac: &Mac, ip: IpAddr) -> io::Result<()> {
        let w = entry(AF_BRIDGE, index, PERMANENT | NO_ARP, SELF, mac, ip);
        self.request(NEW, CREATE | REPLACE, &w.0)
    }

    pub(crate) fn delete_forward(&mut self, index: u32, mac: &Mac, ip: IpAddr) -> io::Result<()> {
        let w = entry(AF_BRIDGE, index, PERMANENT | NO_ARP, SELF, mac, ip);
        gone_is_fine(self.request(DELETE, 0, &w.0))
    }
}
