//! The ends of WireGuard: devices, keys and peers are brought to what is wanted.
//!
//! As with flannel each family has a device and a port of its own. The route of the whole pod
//! network leads into the device, and the device knows which peer has which block: what no peer has
//! is dropped there and never sent in the clear.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use nix::errno::Errno;
use sorting::CollectOrdered as _;

use crate::config::Error;
use crate::netlink::Socket;
use crate::netlink::link::Link;
use crate::netlink::route::Route;
use crate::netlink::wireguard::{Change, Generic, PeerState, PrivateKey, PublicKey};
use crate::overlay::kernel::{self, Done, PROTOCOL, worded};
use crate::overlay::key;
use crate::overlay::plan::{DesiredState, Remote};
use settings::addr::{Cidr, Family};

/// Seconds between packets that keep the memory of a NAT in front of this node fresh (what `wg`'s
/// manual recommends).
pub(crate) const KEEPALIVE: u16 = 25;
/// A session without a handshake for so long carries nothing (`REJECT_AFTER_TIME` of WireGuard, in
/// seconds).
const STALE: u64 = 180;
/// Marks links as ours.
const ALIAS: &str = "kube-lite";

/// The names of flannel's links.
pub(crate) fn link_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "flannel-wg",
        Family::V6 => "flannel-wg-v6",
    }
}

/// The reason why this machine's kernel cannot run WireGuard.
#[derive(Debug, thiserror::Error)]
pub enum WireGuardError {
    /// The kernel has no WireGuard. `release` is that of the kernel after a space, or empty.
    #[error(
        "--flannel-backend=wireguard-native needs WireGuard, \
         and this machine's kernel{release} has none"
    )]
    Missing {
        /// The release of the kernel.
        release: String,
    },
    /// The request for its number failed.
    #[error("the kernel's WireGuard does not answer: {0}")]
    NoAnswer(#[source] io::Error),
}

/// Finds the kernel's WireGuard. The request loads the module where there is one.
fn generic() -> Result<Generic, WireGuardError> {
    match Generic::open() {
        Ok(Some(generic)) => Ok(generic),
        Ok(None) => {
            let release = nix::sys::utsname::uname()
                .map(|u| format!(" {}", u.release().to_string_lossy()))
                .unwrap_or_default();
            Err(WireGuardError::Missing { release })
        }
        Err(error) => Err(WireGuardError::NoAnswer(error)),
    }
}

/// Whether this machine's kernel has WireGuard.
///
/// # Errors
/// When it has none.
pub(crate) fn supported() -> Result<(), WireGuardError> {
    generic().map(drop)
}

/// What one device is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) family: Family,
    pub(crate) mtu: u32,
    /// The first address of the node's block.
    pub(crate) address: IpAddr,
    /// The UDP port of WireGuard.
    pub(crate) port: u16,
}

/// The current state of a WireGuard device in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) index: u32,
    /// The node's key; the kernel works it out from the private one.
    pub(crate) key: PublicKey,
    peers: BTreeMap<PublicKey, PeerState>,
}

/// What is to be done about a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Set(PublicKey, Change),
    Remove(PublicKey),
}

/// From the peers that stand to those that are wanted. `told` is where each was last said to be:
/// one that says nothing new and has a session stays where the kernel found it, which may be behind
/// a NAT. Without `complete` none is removed.
fn decide(
    present: &BTreeMap<PublicKey, PeerState>,
    wanted: &BTreeMap<PublicKey, Remote>,
    told: &BTreeMap<PublicKey, SocketAddr>,
    keepalive: u16,
    unix_time: u64,
    complete: bool,
) -> Vec<Step> {
    let mut out = Vec::new();
    for (key, remote) in wanted {
        let unknown = PeerState::default();
        let seen = present.get(key).unwrap_or(&unknown);
        let moved = told.get(key).is_some_and(|before| *before != remote.endpoint);
        let stale = unix_time.saturating_sub(seen.handshake) >= STALE;
        let lead = seen.endpoint.is_none() || moved || stale;
        let change = Change {
            endpoint: (lead && seen.endpoint != Some(remote.endpoint)).then_some(remote.endpoint),
            keepalive: (seen.keepalive != keepalive).then_some(keepalive),
            allowed: (seen.allowed != remote.allowed).then(|| remote.allowed.clone()),
        };
        if change != Change::default() {
            out.push(Step::Set(*key, change));
        }
    }
    if complete {
        // Last: the blocks of one whose key changed are the new key's by now.
        out.extend(
            present.keys().filter(|key| !wanted.contains_key(*key)).copied().map(Step::Remove),
        );
    }
    out
}

/// The node's WireGuard.
#[derive(Debug)]
pub(crate) struct Wire {
    generic: Generic,
    private: PrivateKey,
    told: BTreeMap<(Family, PublicKey), SocketAddr>,
}

impl Wire {
    /// Opens it, with the key that `directory` keeps.
    ///
    /// # Errors
    /// When the kernel has no WireGuard, or the key cannot be kept.
    pub(crate) fn open(directory: &Path) -> Result<Self, Error> {
        let generic = generic().map_err(|error| Error::Config(error.to_string()))?;
        let private = key::load_or_make(directory)
            .map_err(Error::io("cannot keep the node's key of WireGuard"))?;
        Ok(Self { generic, private, told: BTreeMap::new() })
    }

    fn link(&self, socket: &mut Socket, end: &End, done: &mut Done) -> io::Result<(u32, bool)> {
        let name = link_name(end.family);
        let mut found = socket.wireguard(name)?;
        if found.as_ref().is_some_and(|n| !n.wireguard) {
            socket.delete_link(name).map_err(worded(format!("remove the other {name}")))?;
            found = None;
        }
        let found = match found {
            Some(found) => found,
            None => {
                socket.add_wireguard(name, end.mtu).map_err(worded(format!("make link {name}")))?;
                done.changes += 1;
                let made = socket.wireguard(name)?;
                made.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?
            }
        };
        let link = found.link;
        if link.mtu != end.mtu || found.alias != ALIAS {
            let set = socket.set_wireguard(link.index, end.mtu, ALIAS);
            set.map_err(worded(format!("change {name}")))?;
            done.changes += 1;
        }
        Ok((link.index, link.up))
    }

    /// Makes the device what it is to be, all but its peers.
    pub(crate) fn ensure(
        &mut self,
        socket: &mut Socket,
        end: &End,
        done: &mut Done,
    ) -> io::Result<Standing> {
        let (name, port) = (link_name(end.family), end.port);
        let (index, up) = self.link(socket, end, done)?;
        let in_use = |e: io::Error| match e.raw_os_error() {
            Some(n) if n == Errno::EADDRINUSE as i32 => io::Error::other(format!(
                "UDP port {port} of {name} is another program's; is a second WireGuard running on this machine?"
            )),
            _ => worded(format!("set up {name}"))(e),
        };
        let mut device = self.generic.device(index).map_err(worded(format!("read {name}")))?;
        if device.private.as_ref() != Some(&self.private) || device.port != port {
            self.generic.set_device(index, &self.private, port).map_err(in_use)?;
            done.changes += 1;
            device = self.generic.device(index).map_err(worded(format!("read {name}")))?;
        }
        let key = device.public.ok_or_else(|| io::Error::other(format!("{name} has no key")))?;
        kernel::settings(end.family, name)?;
        kernel::address(socket, index, name, end.address, done)?;
        if !up {
            socket.set_up(index).map_err(in_use)?;
            done.changes += 1;
        }
        Ok(Standing { index, key, peers: device.peers })
    }

    /// Brings peers and routes to what is wanted. Straight routes and the VXLAN links `own` of an
    /// earlier run go at once: their packets are not encrypted.
    pub(crate) fn apply(
        &mut self,
        socket: &mut Socket,
        (end, standing, own): (&End, &Standing, &[Link]),
        cluster: &[Cidr],
        keepalive: u16,
        (wanted, complete): (&DesiredState, bool),
        done: &mut Done,
    ) -> io::Result<()> {
        let family = end.family;
        let told: BTreeMap<PublicKey, SocketAddr> = self
            .told
            .iter()
            .filter(|((of, _), _)| *of == family)
            .map(|((_, key), at)| (*key, *at))
            .collect_map();
        let now = base::clock::unix_time().as_secs();
        for step in decide(&standing.peers, &wanted.peers, &told, keepalive, now, complete) {
            match step {
                Step::Set(key, change) => {
                    let node = wanted.peers.get(&key).map_or("", |remote| remote.node.as_str());
                    let set = self.generic.set_peer(standing.index, &key, &change);
                    set.map_err(worded(format!("reach node {node}")))?;
                }
                Step::Remove(key) => {
                    let removed = self.generic.remove_peer(standing.index, &key);
                    removed.map_err(worded(format!("remove peer {key}")))?;
                }
            }
            done.changes += 1;
        }
        self.told.retain(|(of, key), _| *of != family || wanted.peers.contains_key(key));
        self.told.extend(wanted.peers.iter().map(|(key, r)| ((family, *key), r.endpoint)));
        let routes: Vec<Route> = cluster
            .iter()
            .map(|to| Route {
                to: *to,
                gateway: None,
                index: standing.index,
                on_link: false,
                protocol: PROTOCOL,
            })
            .collect();
        kernel::apply_routes(socket, family, Some(standing.index), &routes, true, done)?;
        kernel::remove_links(socket, own, None, done)
    }
}

/// Takes away the device of a family if it is ours; its peers and routes go with it.
pub(crate) fn remove(socket: &mut Socket, family: Family, done: &mut Done) -> io::Result<()> {
    let name = link_name(family);
    if socket.wireguard(name)?.is_some_and(|found| found.wireguard && found.alias == ALIAS) {
        socket.delete_link(name)?;
        done.changes += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000;

    fn key(n: u8) -> PublicKey {
        PublicKey([n; 32])
    }

    fn remote(n: u8, endpoint: &str) -> (PublicKey, Remote) {
        let allowed = [format!("10.42.{n}.0/24").parse().unwrap()].into();
        (key(n), Remote { node: format!("n{n}"), endpoint: endpoint.parse().unwrap(), allowed })
    }

    fn standing(n: u8, endpoint: &str, handshake: u64) -> (PublicKey, PeerState) {
        let allowed = [format!("10.42.{n}.0/24").parse().unwrap()].into();
        (key(n), PeerState { endpoint: endpoint.parse().ok(), keepalive: 0, handshake, allowed })
    }

    fn steps(
        present: &[(PublicKey, PeerState)],
        wanted: &[(PublicKey, Remote)],
        told: &[(PublicKey, &str)],
    ) -> Vec<Step> {
        let present = present.iter().cloned().collect();
        let told = told.iter().map(|(key, at)| (*key, at.parse().unwrap())).collect();
        decide(&present, &wanted.iter().cloned().collect(), &told, 0, NOW, true)
    }

    #[test]
    fn a_new_peer_is_made_and_one_that_is_right_is_left_alone() {
        let wanted = [remote(1, "192.0.2.1:51820")];
        let change = Change {
            endpoint: "192.0.2.1:51820".parse().ok(),
            keepalive: None,
            allowed: Some(["10.42.1.0/24".parse().unwrap()].into()),
        };
        assert_eq!(steps(&[], &wanted, &[]), [Step::Set(key(1), change)]);
        assert_eq!(steps(&[standing(1, "192.0.2.1:51820", 0)], &wanted, &[]), []);
    }

    #[test]
    fn a_peer_behind_a_nat_stays_where_the_kernel_found_it_until_it_moves_or_falls_silent() {
        let roamed = |handshake| [standing(1, "203.0.113.9:40000", handshake)];
        let wanted = [remote(1, "192.0.2.1:51820")];
        let back = |steps: Vec<Step>| match &steps[..] {
            [] => None,
            [Step::Set(_, change)] => change.endpoint,
            other => panic!("{other:?}"),
        };
        let published = "192.0.2.1:51820".parse().ok();
        assert_eq!(back(steps(&roamed(NOW - 179), &wanted, &[])), None, "also after a restart");
        let same = [(key(1), "192.0.2.1:51820")];
        assert_eq!(back(steps(&roamed(NOW - 179), &wanted, &same)), None);
        assert_eq!(back(steps(&roamed(NOW - 180), &wanted, &same)), published);
        let other = [(key(1), "192.0.2.77:51820")];
        assert_eq!(back(steps(&roamed(NOW - 1), &wanted, &other)), published);
    }

    #[test]
    fn a_changed_key_takes_the_blocks_before_the_old_one_goes() {
        let present = [standing(1, "192.0.2.1:51820", NOW)];
        let new = (key(9), Remote { ..remote(1, "192.0.2.1:51820").1 });
        let found = steps(&present, std::slice::from_ref(&new), &[]);
        let [Step::Set(set, change), Step::Remove(gone)] = &found[..] else { panic!("{found:?}") };
        assert_eq!((*set, *gone), (key(9), key(1)));
        assert!(change.allowed.is_some() && change.endpoint.is_some());
        let present: BTreeMap<_, _> = present.into();
        let kept = decide(&present, &[new].into(), &BTreeMap::new(), 0, NOW, false);
        assert_eq!(kept.len(), 1, "not all nodes are known yet: {kept:?}");
    }

    #[test]
    fn packets_against_a_nats_forgetting_are_switched_on_and_off() {
        let present: BTreeMap<_, _> = [standing(1, "192.0.2.1:51820", NOW)].into();
        let wanted = [remote(1, "192.0.2.1:51820")].into();
        let found = decide(&present, &wanted, &BTreeMap::new(), KEEPALIVE, NOW, true);
        let change = Change { keepalive: Some(25), ..Change::default() };
        assert_eq!(found, [Step::Set(key(1), change)]);
    }
}
