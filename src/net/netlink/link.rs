//! Links of the network namespace in which the socket was opened: bridges, veth pairs and their
//! settings.

use std::io;

use nix::errno::Errno;
use nix::libc::{
    IFLA_ADDRESS, IFLA_IFNAME, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINKINFO, IFLA_MTU,
    RTM_DELLINK, RTM_GETLINK, RTM_NEWLINK,
};
use rtnetlink::packet_core::Emitable;
use rtnetlink::packet_route::link::{InfoData, InfoVeth, LinkFlags, LinkHeader, LinkMessage};
use rtnetlink::{LinkBridge, LinkBridgePort, LinkUnspec, LinkVeth};

use crate::netlink::{CREATE, EXCL, Received, Socket, attribute, encode, ne32, unless};

/// The hardware address of an Ethernet link.
pub(crate) type Mac = [u8; 6];

/// The settings of a link that the pod network reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    /// The hardware address: 6 bytes for Ethernet, other lengths for other kinds of links.
    pub(crate) mac: Vec<u8>,
    pub(crate) mtu: u32,
    /// The link is administratively up (`IFF_UP`), with or without a carrier.
    pub(crate) up: bool,
}

/// Formats a hardware address as `02:42:aa:bb:cc:dd`.
pub(crate) fn mac_text(mac: &[u8]) -> String {
    mac.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(":")
}

/// The attributes of a link message: the bytes after its header.
pub(super) fn attributes_of(body: &[u8]) -> &[u8] {
    body.get(LinkHeader::default().buffer_len()..).unwrap_or_default()
}

/// The value of a text attribute without the terminating zero byte.
pub(super) fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.strip_suffix(b"\0").unwrap_or(value)).into_owned()
}

/// The link that a message describes; `None` for a message without a name. Only these attributes
/// are read: `LinkMessage` fails for a whole link when it cannot decode one attribute of a driver
/// or of a newer kernel, and the decoder of all kinds of links is large.
pub(super) fn decode(body: &[u8]) -> Option<Link> {
    let header = LinkHeader::parse(body).ok()?;
    let list = attributes_of(body);
    Some(Link {
        index: header.index,
        name: text(attribute(list, IFLA_IFNAME)?),
        mac: attribute(list, IFLA_ADDRESS).unwrap_or_default().to_vec(),
        mtu: attribute(list, IFLA_MTU).and_then(|m| ne32(m, 0)).unwrap_or(0),
        up: header.flags.contains(LinkFlags::Up),
    })
}

/// The kind of a link, such as `vxlan`, and the attributes specific to the kind, which may be
/// empty. `None` for links without a kind, such as Ethernet cards.
pub(super) fn kind(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let info = attribute(attributes_of(body), IFLA_LINKINFO)?;
    let kind = attribute(info, IFLA_INFO_KIND)?;
    let settings = attribute(info, IFLA_INFO_DATA).unwrap_or_default();
    Some((kind.strip_suffix(b"\0").unwrap_or(kind), settings))
}

impl Socket {
    /// Requests the whole message about the link with this name; `None` if there is no such link.
    pub(super) fn describe_link(&mut self, name: &str) -> io::Result<Option<Received>> {
        match self.get(RTM_GETLINK, &encode(&LinkUnspec::new_with_name(name).build())) {
            Ok(received) => Ok(Some(received)),
            Err(e) if e.raw_os_error() == Some(Errno::ENODEV as i32) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The link with this name; `None` if there is no such link.
    pub(crate) fn link(&mut self, name: &str) -> io::Result<Option<Link>> {
        Ok(self.describe_link(name)?.and_then(|received| decode(&received.body)))
    }

    /// All links.
    pub(crate) fn links(&mut self) -> io::Result<Vec<Link>> {
        let mut out = Vec::new();
        self.dump(RTM_GETLINK, &encode(&LinkMessage::default()), |received| {
            out.extend(decode(&received.body));
        })?;
        Ok(out)
    }

    /// Creates a bridge that is up.
    pub(crate) fn add_bridge(&mut self, name: &str, mtu: u32, mac: Mac) -> io::Result<()> {
        let bridge = LinkBridge::new(name).mtu(mtu).address(mac.to_vec()).up().build();
        self.request(RTM_NEWLINK, CREATE | EXCL, &encode(&bridge))
    }

    /// Creates a veth pair. The end `host` is in this namespace, is a port of the bridge with the
    /// index `bridge`, and is up. The end `peer` (name, hardware address) is in the namespace of
    /// the file descriptor `ns`, and is down.
    pub(crate) fn add_veth(
        &mut self,
        host: &str,
        bridge: u32,
        mtu: u32,
        peer: (&str, &Mac),
        ns: i32,
    ) -> io::Result<()> {
        let peer_link = LinkUnspec::new_with_name(peer.0)
            .mtu(mtu)
            .address(peer.1.to_vec())
            .setns_by_fd(ns)
            .build();
        let veth = LinkVeth::new(host, peer.0)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer_link)))
            .mtu(mtu)
            .controller(bridge)
            .up()
            .build();
        self.request(RTM_NEWLINK, CREATE | EXCL, &encode(&veth))
    }

    /// Sets hairpin mode: the bridge may send a frame back through the port that it came from, as
    /// when a pod reaches itself through a Service.
    pub(crate) fn set_hairpin(&mut self, index: u32) -> io::Result<()> {
        self.request(RTM_NEWLINK, 0, &encode(&LinkBridgePort::new(index).hairpin(true).build()))
    }

    /// Sets a link up.
    pub(crate) fn set_up(&mut self, index: u32) -> io::Result<()> {
        self.request(RTM_NEWLINK, 0, &encode(&LinkUnspec::new_with_index(index).up().build()))
    }

    /// Changes the MTU and the hardware address of a link.
    pub(crate) fn set_link(&mut self, index: u32, mtu: u32, mac: &Mac) -> io::Result<()> {
        let link = LinkUnspec::new_with_index(index).mtu(mtu).address(mac.to_vec()).build();
        self.request(RTM_NEWLINK, 0, &encode(&link))
    }

    /// Removes a link. A missing link is no error.
    pub(crate) fn delete_link(&mut self, name: &str) -> io::Result<()> {
        let link = LinkUnspec::new_with_name(name).build();
        unless(Errno::ENODEV, self.request(RTM_DELLINK, 0, &encode(&link)))
    }
}

#[cfg(test)]
mod tests {
    use nix::libc::IFLA_TXQLEN;
    use rtnetlink::packet_core::Parseable;

    use super::*;
    use crate::testing::{in_namespace, privileged, shell};

    /// Appends an attribute to a message.
    fn push(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
        body.extend(u16::try_from(value.len() + 4).unwrap().to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(value);
        body.resize(body.len().next_multiple_of(4), 0);
    }

    #[test]
    fn decode_reads_a_link_with_attributes_of_unknown_form() {
        // `ifinfomsg` with the index at 4 and the flags at 8, here `IFF_UP`.
        let mut body = vec![0; 16];
        body[4] = 7;
        body[8] = 1;
        push(&mut body, IFLA_MTU, &1400_u32.to_ne_bytes());
        // The nested attributes of a driver are invalid, and a number has one byte instead of four.
        push(&mut body, IFLA_LINKINFO, &[0xff; 7]);
        push(&mut body, IFLA_TXQLEN, &[1]);
        push(&mut body, IFLA_IFNAME, b"eth0\0");
        let expected = Link { index: 7, name: "eth0".into(), mac: Vec::new(), mtu: 1400, up: true };
        assert_eq!(decode(&body), Some(expected));
        assert!(LinkMessage::parse(&body).is_err(), "the whole message cannot be decoded");
        assert!(decode(&body[..15]).is_none(), "a truncated header is no link");
    }

    #[test]
    fn bridges_and_veth_pairs_have_the_settings_of_their_creation() {
        if !privileged("bridges_and_veth_pairs_have_the_settings_of_their_creation") {
            return;
        }
        in_namespace(|| {
            let mut socket = Socket::route().unwrap();
            let (mac, inner) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
            socket.add_bridge("br0", 1400, mac).unwrap();
            let bridge = socket.link("br0").unwrap().unwrap();
            assert_eq!((bridge.mac.as_slice(), bridge.mtu, bridge.up), (&mac[..], 1400, true));
            let again = socket.add_bridge("br0", 1400, mac).unwrap_err();
            assert_eq!(again.raw_os_error(), Some(Errno::EEXIST as i32));
            let here = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
            let ns = std::os::fd::AsRawFd::as_raw_fd(&here);
            socket.add_veth("host0", bridge.index, 1300, ("pod0", &inner), ns).unwrap();
            let (host, pod) =
                (socket.link("host0").unwrap().unwrap(), socket.link("pod0").unwrap().unwrap());
            assert_eq!((host.mtu, host.up), (1300, true));
            assert_eq!((pod.mac.as_slice(), pod.mtu, pod.up), (&inner[..], 1300, false));
            socket.set_hairpin(host.index).unwrap();
            assert!(shell("ip -d link show host0").contains("hairpin on"));
            assert!(shell("ip -d link show host0").contains("master br0"));
            socket.set_up(pod.index).unwrap();
            socket.set_link(pod.index, 1200, &[2, 0, 0, 0, 0, 3]).unwrap();
            let pod = socket.link("pod0").unwrap().unwrap();
            assert_eq!((mac_text(&pod.mac).as_str(), pod.mtu), ("02:00:00:00:00:03", 1200));
            let mut names: Vec<String> =
                socket.links().unwrap().into_iter().map(|link| link.name).collect();
            names.retain(|name| ["lo", "br0", "host0", "pod0"].contains(&name.as_str()));
            names.sort();
            assert_eq!(names, ["br0", "host0", "lo", "pod0"]);
            socket.delete_link("host0").unwrap();
            socket.delete_link("host0").unwrap();
            assert_eq!(socket.link("pod0").unwrap(), None, "both ends are removed");
        });
    }
}
