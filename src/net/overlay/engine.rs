//! One pass of the overlay: applies the nodes of the API and the links of the machine to the
//! kernel. Passes are idempotent.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use crate::config::{Config, Error};
use crate::netlink::Socket;
use crate::netlink::address::Address;
use crate::netlink::link::{Link, Mac};
use crate::netlink::vxlan::Vxlan;
use crate::netlink::wireguard::PublicKey;
use crate::overlay::address::{self, Machine};
use crate::overlay::guard::Guard;
use crate::overlay::kernel::{self, Done, Tunnel};
use crate::overlay::peer::{Ends, Peer};
use crate::overlay::plan::{DesiredState, NextHop, Own, Problem, Underlay, members, plan};
use crate::overlay::probe::Target;
use crate::overlay::wireguard::{self, End, KEEPALIVE, Wire};
use settings::Backend;
use settings::addr::{Cidr, Family};
use sorting::CollectOrdered as _;

/// The hardware address of a node's ends: the same after every start, so that peers' entries stay
/// right. Locally administered, and not a group's.
pub(crate) fn hardware_address(node: &str) -> Mac {
    let hash = node
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    let [_, _, a, b, c, d, e, f] = hash.to_be_bytes();
    [a & 0xfc | 2, b, c, d, e, f]
}

/// The cluster as the API reports it.
#[derive(Debug, Clone, Default)]
pub(crate) struct View {
    pub(crate) peers: Vec<Peer>,
    /// All nodes are in `peers`.
    pub(crate) complete: bool,
    /// This node's blocks.
    pub(crate) blocks: Vec<Cidr>,
    /// Families in which checksums were found spoiled, and on the way to which node.
    pub(crate) spoiled: BTreeMap<Family, String>,
}

/// The result of a pass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The node's addresses.
    pub(crate) addresses: Vec<IpAddr>,
    /// Where other nodes send packets, per family.
    pub(crate) published: Vec<IpAddr>,
    /// This node's key of WireGuard.
    pub(crate) key: Option<PublicKey>,
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

/// The file that records spoiled checksums of a family over restarts.
fn spoiled_path(config: &Config, family: Family) -> PathBuf {
    config.state_dir.join(format!("spoiled-checksums-{}", family.name()))
}

fn spoiled(config: &Config) -> BTreeMap<Family, String> {
    let kept = |family| {
        let text = base::fs::read_to_string(&spoiled_path(config, family)).ok()?;
        Some((family, text.trim().to_owned()))
    };
    Family::ALL.into_iter().filter_map(kept).collect_map()
}

/// Applies views, one after the other.
#[derive(Debug)]
pub(crate) struct Engine {
    config: Config,
    families: Vec<Family>,
    mac: Mac,
    socket: Socket,
    netfilter: Socket,
    guards: BTreeMap<Family, Guard>,
    /// Families whose checksums the kernel makes, and the node whose packets were spoiled.
    spoiled: BTreeMap<Family, String>,
    holders: BTreeMap<Family, BTreeMap<Cidr, String>>,
    wire: Option<Wire>,
}

impl Engine {
    /// Opens the kernel's sides.
    ///
    /// # Errors
    /// When there is no route socket, or no WireGuard where it is asked for.
    pub(crate) fn open(config: &Config) -> Result<Self, Error> {
        let wire = match config.cluster.backend.encrypts() {
            true => Some(Wire::open(&config.state_dir)?),
            false => None,
        };
        Ok(Self {
            families: config.cluster.families(),
            mac: hardware_address(&config.node_name),
            socket: Socket::route().map_err(Error::io("cannot open a route socket"))?,
            netfilter: Socket::netfilter().map_err(Error::io("cannot open a netfilter socket"))?,
            guards: BTreeMap::new(),
            spoiled: spoiled(config),
            config: config.clone(),
            holders: BTreeMap::new(),
            wire,
        })
    }

    /// What other nodes are to know of this node's ends, once they are there.
    pub(crate) fn ends(&self, outcome: &Outcome) -> Option<Ends> {
        let there = outcome.key.is_some() || !self.config.cluster.backend.encrypts();
        there.then_some(Ends {
            mac: self.mac,
            vni: self.config.cluster.overlay.vni,
            key: outcome.key,
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
            let vxlan =
                Family::ALL.map(|f| kernel::own_links(&machine.links, f, &self.mac)).concat();
            let mut ours: Vec<&str> = vxlan.iter().map(|link| link.name.as_str()).collect();
            ours.extend(Family::ALL.map(wireguard::link_name));
            ours.push(&self.config.bridge);
            let mut present = machine.candidates(&ours);
            present.retain(|ip| !self.config.is_virtual(*ip));
            address::choose(&now, &self.families, &present, address::of_default_route)
        };
        for family in Family::ALL {
            let (table, bridge) = (&self.config.table, &self.config.bridge);
            let port = self.config.cluster.overlay.vxlan_port;
            let guard = self.guards.remove(&family);
            let mut guard = guard.unwrap_or_else(|| Guard::new(family, table, bridge, port));
            let done = self.guarded(&mut guard, family, &machine, view, &mut outcome);
            self.guards.insert(family, guard);
            if let Err(error) = done {
                outcome.problems.insert(Problem::Kernel {
                    family,
                    what: format!("the {} overlay is not as it should be: {error}", family.name()),
                });
            }
        }
        let grows = self.config.cluster.backend.overhead(&self.families);
        let size = outcome.mtu.map_or(0, |mtu| mtu.saturating_sub(grows));
        let size = self.config.cluster.pod_mtu.unwrap_or(size);
        outcome.ways.iter_mut().for_each(|way| way.size = size);
        Ok(outcome)
    }

    fn reaches(&self) -> bool {
        self.config.cluster.backend != Backend::None
    }

    /// One family. Nodes are let in before the ways to them are made, and shut out after those are
    /// gone.
    fn guarded(
        &mut self,
        guard: &mut Guard,
        family: Family,
        machine: &Machine,
        view: &View,
        outcome: &mut Outcome,
    ) -> io::Result<()> {
        let wanted = self.families.contains(&family) && self.reaches();
        let nodes = members(&self.config.node_name, family, &view.peers);
        let guarded = wanted && self.config.cluster.backend.tunnels();
        if guarded {
            let admitted = guard.admit(&mut self.netfilter, &nodes);
            outcome.changes += admitted.map_err(io::Error::other)?;
        }
        if wanted {
            self.family(family, machine, view, outcome)?;
        } else {
            wireguard::remove(&mut self.socket, family, &mut Done::default())?;
            let own = kernel::own_links(&machine.links, family, &self.mac);
            kernel::remove(&mut self.socket, family, &own)?;
        }
        if !guarded {
            guard.remove(&mut self.netfilter).map_err(io::Error::other)?;
        } else if view.complete {
            let expelled = guard.expel(&mut self.netfilter, &nodes);
            outcome.changes += expelled.map_err(io::Error::other)?;
        }
        Ok(())
    }

    fn family(
        &mut self,
        family: Family,
        machine: &Machine,
        view: &View,
        outcome: &mut Outcome,
    ) -> io::Result<()> {
        let interface = self.config.interface.as_deref();
        let overlay = self.config.cluster.overlay.clone();
        let mut underlay = match machine.underlay(family, interface, &outcome.addresses) {
            Ok(underlay) => underlay,
            Err(error) => {
                // The kernel's state is left as it is: the address may come back.
                let what = error.to_string();
                outcome.problems.insert(Problem::NoUnderlay { family, what });
                return Ok(());
            }
        };
        underlay.mtu = overlay.link_mtu.unwrap_or(underlay.mtu);
        let published = self.publish_underlay(&underlay, family, view, outcome);
        let of_family = |list: &[Cidr]| -> Vec<Cidr> {
            list.iter().copied().filter(|b| b.family() == family).collect()
        };
        let (blocks, cluster) =
            (of_family(&view.blocks), of_family(&self.config.cluster.cluster_cidrs));
        let Some(first) = blocks.first() else { return Ok(()) };
        let mut done = Done::default();
        let end = End {
            family,
            mtu: underlay.mtu.saturating_sub(self.config.cluster.backend.overhead_over(family)),
            address: first.first(),
            port: overlay.wireguard_port(family),
        };
        let standing = match &mut self.wire {
            Some(wire) => Some(wire.ensure(&mut self.socket, &end, &mut done)?),
            None => None,
        };
        outcome.key = standing.as_ref().map(|s| s.key).or(outcome.key);
        let own = Own {
            name: &self.config.node_name,
            backend: self.config.cluster.backend,
            family,
            blocks: &blocks,
            cluster: &cluster,
            underlay: &underlay,
            key: outcome.key,
            wireguard_port: end.port,
        };
        let none = BTreeMap::new();
        let before = self.holders.get(&family).unwrap_or(&none);
        let wanted = plan(&own, &view.peers, before);
        outcome.problems.extend(wanted.problems.iter().cloned());
        self.note_spoiled(family, view, outcome);
        let ready = (&wanted, view.complete);
        let own_links = kernel::own_links(&machine.links, family, &self.mac);
        match (&mut self.wire, &standing) {
            (Some(wire), Some(standing)) => {
                // A node that publishes an address other than its own is behind a NAT.
                let behind = published != underlay.address;
                let default = if behind { KEEPALIVE } else { 0 };
                let keepalive = overlay.wireguard_keepalive.unwrap_or(default);
                let to = (&end, standing, own_links.as_slice());
                let socket = &mut self.socket;
                wire.apply(socket, to, &cluster, keepalive, ready, &mut done)?;
                outcome.links.insert(standing.index);
            }
            _ => {
                let tunnel = self.tunnel(&end, &underlay);
                let applied = self.apply(family, tunnel.as_ref(), &underlay, &own_links, ready)?;
                done.changes += applied.changes;
                outcome.links.extend(applied.index);
            }
        }
        outcome.changes += done.changes;
        outcome.ways.extend(probe_targets(&wanted));
        self.holders.insert(family, wanted.holders);
        Ok(())
    }

    /// Adds the link to other nodes to the outcome. Returns the address that other nodes send to:
    /// the external one with `--flannel-external-ip`, the one that the user sets in the annotation,
    /// or else that of the link.
    fn publish_underlay(
        &self,
        underlay: &Underlay,
        family: Family,
        view: &View,
        outcome: &mut Outcome,
    ) -> IpAddr {
        let own = view.peers.iter().find(|p| p.name == self.config.node_name);
        let overwrite = own.and_then(|p| p.overwrite.iter().find(|ip| Family::of(**ip) == family));
        let external = self.config.external_addresses.iter().find(|ip| Family::of(**ip) == family);
        let published = external.or(overwrite).copied().unwrap_or(underlay.address);
        outcome.published.push(published);
        outcome.links.insert(underlay.index);
        outcome.mtu = Some(outcome.mtu.map_or(underlay.mtu, |mtu| mtu.min(underlay.mtu)));
        published
    }

    /// Records and reports that network cards spoil checksums of a family.
    fn note_spoiled(&mut self, family: Family, view: &View, outcome: &mut Outcome) {
        if !self.config.cluster.backend.tunnels() {
            return;
        }
        if let (Some(node), None) = (view.spoiled.get(&family), self.spoiled.get(&family)) {
            self.spoiled.insert(family, node.clone());
            let path = spoiled_path(&self.config, family);
            if let Err(error) = base::fs::write_atomic(&path, format!("{node}\n").as_bytes(), 0o600)
            {
                tracing::warn!(%error, "cannot remember that checksums are spoiled");
            }
        }
        if let Some(node) = self.spoiled.get(&family) {
            let file = spoiled_path(&self.config, family).display().to_string();
            let (node, link) = (node.clone(), self.config.cluster.overlay.vxlan_link(family));
            outcome.problems.insert(Problem::Spoiled { family, node, link, file });
        }
    }

    fn tunnel(&self, end: &End, underlay: &Underlay) -> Option<Tunnel> {
        let overlay = &self.config.cluster.overlay;
        self.config.cluster.backend.tunnels().then(|| Tunnel {
            name: overlay.vxlan_link(end.family),
            family: end.family,
            vxlan: Vxlan {
                vni: overlay.vni,
                port: overlay.vxlan_port,
                device: underlay.index,
                local: underlay.address,
            },
            plain: self.spoiled.contains_key(&end.family),
            mac: self.mac,
            mtu: end.mtu,
            address: end.address,
        })
    }

    fn apply(
        &mut self,
        family: Family,
        tunnel: Option<&Tunnel>,
        underlay: &Underlay,
        own: &[Link],
        wanted: (&DesiredState, bool),
    ) -> io::Result<kernel::Done> {
        let device = Some(underlay.index);
        let socket = &mut self.socket;
        let mut done = kernel::apply(socket, family, tunnel, own, device, wanted)?;
        if wanted.1 {
            wireguard::remove(socket, family, &mut done)?;
        }
        Ok(done)
    }
}

/// The gateways of other nodes' pods, for probes; their size is set after all families.
fn probe_targets(desired: &DesiredState) -> Vec<Target> {
    let target = |(block, hop): (&Cidr, &NextHop)| {
        let address = crate::host::gateway(block)?;
        let node = desired.holders.get(block)?.clone();
        Some(Target { node, address, size: 0, tunnel: matches!(hop, NextHop::Tunnel(_)) })
    };
    desired.routes.iter().filter_map(target).collect()
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
