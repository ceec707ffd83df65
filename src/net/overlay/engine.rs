//! One pass: from what the API says and what the machine has to the kernel's state. Repeating it changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use crate::addr::{Cidr, Family};
use crate::config::Config;
use crate::netlink::Socket;
use crate::netlink::neighbour::Mac;
use crate::netlink::route::Address;
use crate::netlink::vxlan::Vxlan;
use crate::overlay::address::{self, Machine};
use crate::overlay::backend::{Backend, overhead_over};
use crate::overlay::kernel::{self, Tunnel, link_name};
use crate::overlay::peer::{Peer, VNI};
use crate::overlay::plan::{Own, Problem, Underlay, Wanted, plan};
use crate::overlay::probe::Target;

/// UDP port of flannel's VXLAN, which is also Linux's default.
pub(crate) const PORT: u16 = 8472;

/// The hardware address of a node's ends: the same after every start, so that peers' entries stay right. Locally
/// administered, and not a group's.
pub(crate) fn hardware_address(node: &str) -> Mac {
    let hash = node
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    let [_, _, a, b, c, d, e, f] = hash.to_be_bytes();
    [a & 0xfc | 2, b, c, d, e, f]
}

/// What is known of the cluster.
#[derive(Debug, Clone, Default)]
pub(crate) struct View {
    pub(crate) peers: Vec<Peer>,
    /// All nodes are in `peers`.
    pub(crate) complete: bool,
    /// This node's blocks.
    pub(crate) blocks: Vec<Cidr>,
}

/// What a pass found and did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The node's addresses.
    pub(crate) addresses: Vec<IpAddr>,
    /// Where other nodes send packets, per family.
    pub(crate) published: Vec<IpAddr>,
    pub(crate) problems: BTreeSet<Problem>,
    /// The ways to other nodes, with the largest packet of pods.
    pub(crate) ways: Vec<Target>,
    /// The smallest MTU of the links to other nodes.
    mtu: Option<u32>,
    /// Links whose changes matter.
    pub(crate) links: BTreeSet<u32>,
    /// All addresses of the machine.
    pub(crate) seen: Vec<Address>,
    pub(crate) changes: usize,
}

/// Applies views, one after the other.
#[derive(Debug)]
pub(crate) struct Engine {
    config: Config,
    families: Vec<Family>,
    mac: Mac,
    socket: Socket,
    holders: BTreeMap<Family, BTreeMap<Cidr, String>>,
}

impl Engine {
    pub(crate) fn open(config: &Config) -> io::Result<Self> {
        Ok(Self {
            families: config.families(),
            mac: hardware_address(&config.node_name),
            socket: Socket::route()?,
            config: config.clone(),
            holders: BTreeMap::new(),
        })
    }

    /// One pass.
    ///
    /// # Errors
    /// When the machine's links cannot be read; what cannot be applied is among the problems.
    pub(crate) fn sync(&mut self, view: &View) -> io::Result<Outcome> {
        let machine = Machine::read(&mut self.socket)?;
        let mut outcome = Outcome { seen: machine.addresses.clone(), ..Outcome::default() };
        let now = self.config.addresses.borrow().clone();
        outcome.addresses = if self.config.addresses_held {
            now
        } else {
            let ours = [&self.config.bridge, link_name(Family::V4), link_name(Family::V6)];
            let present = machine.candidates(&ours);
            address::choose(&now, &self.families, &present, address::of_default_route)
        };
        for family in Family::ALL {
            let done = if self.families.contains(&family) && self.reaches() {
                self.family(family, &machine, view, &mut outcome)
            } else {
                kernel::remove(&mut self.socket, family, &self.mac)
            };
            if let Err(error) = done {
                outcome.problems.insert(Problem::Kernel {
                    family,
                    what: format!("the {} overlay is not as it should be: {error}", family.name()),
                });
            }
        }
        let grows = self.config.backend.overhead(&self.families);
        let size = outcome.mtu.map_or(0, |mtu| mtu.saturating_sub(grows));
        let size = self.config.mtu.unwrap_or(size);
        outcome.ways.iter_mut().for_each(|way| way.size = size);
        Ok(outcome)
    }

    fn reaches(&self) -> bool {
        self.config.backend != Backend::None
    }

    fn family(
        &mut self,
        family: Family,
        machine: &Machine,
        view: &View,
        outcome: &mut Outcome,
    ) -> io::Result<()> {
        let interface = self.config.interface.as_deref();
        let underlay = match machine.underlay(family, interface, &outcome.addresses) {
            Ok(underlay) => underlay,
            Err(what) => {
                // What stands is left as it is: the address may come back.
                outcome.problems.insert(Problem::NoUnderlay { family, what });
                return Ok(());
            }
        };
        let own_peer = view.peers.iter().find(|p| p.name == self.config.node_name);
        let overwrite =
            own_peer.and_then(|p| p.overwrite.iter().copied().find(|ip| Family::of(*ip) == family));
        outcome.published.push(overwrite.unwrap_or(underlay.address));
        outcome.links.insert(underlay.index);
        outcome.mtu = Some(outcome.mtu.map_or(underlay.mtu, |mtu| mtu.min(underlay.mtu)));
        let of_family = |list: &[Cidr]| -> Vec<Cidr> {
            list.iter().copied().filter(|b| b.family() == family).collect()
        };
        let (blocks, cluster) = (of_family(&view.blocks), of_family(&self.config.cluster_cidrs));
        let Some(first) = blocks.first() else { return Ok(()) };
        let own = Own {
            name: &self.config.node_name,
            backend: self.config.backend,
            family,
            blocks: &blocks,
            cluster: &cluster,
            underlay: &underlay,
        };
        let none = BTreeMap::new();
        let before = self.holders.get(&family).unwrap_or(&none);
        let wanted = plan(&own, &view.peers, before);
        outcome.problems.extend(wanted.problems.iter().cloned());
        let tunnel = self.tunnel(family, &underlay, first);
        let done = self.apply(family, tunnel.as_ref(), &underlay, (&wanted, view.complete))?;
        outcome.changes += done.changes;
        outcome.links.extend(done.index);
        for block in wanted.routes.keys() {
            let gateway = crate::host::gateway(block);
            if let (Some(address), Some(node)) = (gateway, wanted.holders.get(block)) {
                outcome.ways.push(Target { node: node.clone(), address, size: 0 });
            }
        }
        self.holders.insert(family, wanted.holders);
        Ok(())
    }

    fn tunnel(&self, family: Family, underlay: &Underlay, block: &Cidr) -> Option<Tunnel> {
        self.config.backend.tunnels().then(|| Tunnel {
            family,
            vxlan: Vxlan { vni: VNI, port: PORT, device: underlay.index, local: underlay.address },
            mac: self.mac,
            mtu: underlay.mtu.saturating_sub(overhead_over(family)),
            address: block.first(),
        })
    }

    fn apply(
        &mut self,
        family: Family,
        tunnel: Option<&Tunnel>,
        underlay: &Underlay,
        wanted: (&Wanted, bool),
    ) -> io::Result<kernel::Done> {
        let device = Some(underlay.index);
        kernel::apply(&mut self.socket, family, tunnel, &self.mac, device, wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hardware_address_is_stable_and_a_machines_own() {
        assert_eq!(hardware_address("a"), hardware_address("a"));
        assert_ne!(hardware_address("a"), hardware_address("b"));
        for node in ["a", "edge-1", "edge-2", "x.example"] {
            assert_eq!(hardware_address(node)[0] & 3, 2, "locally administered, one machine's");
        }
    }
}
