//! Finds and forgets UDP connections whose endpoint is gone: conntrack by netlink.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;

use crate::netlink::{Received, Socket, Writer, attribute};
use settings::addr::{Family, from_octets};

const GET: u16 = 1 << 8 | 1;
const DELETE: u16 = 1 << 8 | 2;
const UDP: u8 = 17;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Tuple {
    source: (IpAddr, u16),
    destination: (IpAddr, u16),
}

fn tuple(bytes: &[u8]) -> Option<Tuple> {
    let addresses = attribute(bytes, 1)?;
    let address = |four, six| {
        attribute(addresses, four).or_else(|| attribute(addresses, six)).and_then(from_octets)
    };
    let protocol = attribute(bytes, 2)?;
    if attribute(protocol, 1)? != [UDP] {
        return None;
    }
    let port = |kind| attribute(protocol, kind)?.try_into().ok().map(u16::from_be_bytes);
    Some(Tuple { source: (address(1, 3)?, port(2)?), destination: (address(2, 4)?, port(3)?) })
}

/// UDP destinations (unspecified address: any local one) and the endpoints whose connections stay.
pub(crate) type Keep = HashMap<(IpAddr, u16), Vec<(IpAddr, u16)>>;

fn is_stale(original: &Tuple, reply: &Tuple, family: Family, keep: &Keep) -> bool {
    let (ip, port) = original.destination;
    if let Some(endpoints) = keep.get(&(ip, port)) {
        return !endpoints.contains(&reply.source);
    }
    // A node port names no address: an untranslated connection to a port without endpoints may be
    // one to another machine.
    keep.get(&(family.unspecified(), port)).is_some_and(|endpoints| {
        let translated = reply.source != original.destination;
        !endpoints.contains(&reply.source) && (translated || !endpoints.is_empty())
    })
}

/// Deletes the UDP connections to these destinations that lead elsewhere; returns how many there
/// were.
pub(crate) fn forget_stale(socket: &mut Socket, family: Family, keep: &Keep) -> io::Result<usize> {
    if keep.is_empty() {
        return Ok(0);
    }
    let head = [family.number(), 0, 0, 0];
    let mut stale: Vec<Vec<u8>> = Vec::new();
    socket.dump(GET, &head, |received: &Received| {
        let Some(list) = received.body.get(4..) else { return };
        let (Some(original), Some(reply)) = (attribute(list, 1), attribute(list, 2)) else {
            return;
        };
        if let (Some(o), Some(r)) = (tuple(original), tuple(reply))
            && is_stale(&o, &r, family, keep)
        {
            let mut w = Writer::default();
            w.raw(&head).attr(1 | 0x8000, original);
            // The id tells a newer connection of the same tuple apart.
            if let Some(id) = attribute(list, 12) {
                w.attr(12, id);
            }
            stale.push(w.0);
        }
    })?;
    for body in &stale {
        match socket.request(DELETE, 0, body) {
            // It ended by itself meanwhile.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
    }
    Ok(stale.len())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// How many connections to a UDP port are known.
    pub(crate) fn tracked(socket: &mut Socket, family: Family, port: u16) -> usize {
        let mut all = 0;
        let each = |received: &Received| {
            let original = attribute(received.body.get(4..).unwrap(), 1).and_then(tuple);
            all += usize::from(original.is_some_and(|o| o.destination.1 == port));
        };
        socket.dump(GET, &[family.number(), 0, 0, 0], each).unwrap();
        all
    }

    #[test]
    fn connections_to_gone_endpoints_are_stale_and_those_of_others_are_left() {
        let at = |ip: &str, port| (ip.parse::<IpAddr>().unwrap(), port);
        let keep = Keep::from([
            (at("10.43.0.1", 53), vec![at("10.42.0.2", 53)]),
            (at("0.0.0.0", 30053), vec![]),
        ]);
        let check = |destination, endpoint| {
            let client = at("10.42.0.9", 999);
            let original = Tuple { source: client, destination };
            let reply = Tuple { source: endpoint, destination: client };
            is_stale(&original, &reply, Family::V4, &keep)
        };
        assert!(!check(at("10.43.0.1", 53), at("10.42.0.2", 53)));
        assert!(check(at("10.43.0.1", 53), at("10.42.0.3", 53)));
        assert!(
            check(at("10.43.0.1", 53), at("10.43.0.1", 53)),
            "sent before there were endpoints"
        );
        assert!(check(at("192.168.0.1", 30053), at("10.42.0.2", 53)));
        assert!(
            !check(at("192.168.0.1", 30053), at("192.168.0.1", 30053)),
            "to another machine's port"
        );
        assert!(!check(at("192.168.0.1", 53), at("192.168.0.1", 53)));
    }
}
