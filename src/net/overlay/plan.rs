//! Computes routes, neighbours and forwarding entries of one family from all nodes; pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use crate::netlink::link::Mac;
use crate::netlink::wireguard::PublicKey;
use crate::overlay::peer::Peer;
use settings::Backend;
use settings::addr::{Cidr, Family};
use sorting::{CollectOrdered as _, CompactSort as _};

/// The link that carries packets to other nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Underlay {
    pub(crate) index: u32,
    pub(crate) mtu: u32,
    /// This node's address on it.
    pub(crate) address: IpAddr,
    /// What is reached on it without a gateway.
    pub(crate) on_link: Vec<Cidr>,
}

/// This node in one family.
#[derive(Debug, Clone)]
pub(crate) struct Own<'a> {
    pub(crate) name: &'a str,
    pub(crate) backend: Backend,
    pub(crate) family: Family,
    pub(crate) blocks: &'a [Cidr],
    pub(crate) cluster: &'a [Cidr],
    pub(crate) underlay: &'a Underlay,
    /// Its key of WireGuard.
    pub(crate) key: Option<PublicKey>,
    /// The UDP port of WireGuard on all nodes.
    pub(crate) wireguard_port: u16,
}

/// How a peer's pods are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextHop {
    /// Over the shared link by the peer's address.
    Direct(IpAddr),
    /// Through the VXLAN by the address of the peer's end.
    Tunnel(IpAddr),
    /// Through WireGuard, which knows the peer by its key.
    Encrypted,
}

/// A peer of WireGuard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) node: String,
    /// Where it says to be.
    pub(crate) endpoint: SocketAddr,
    /// The blocks of its pods: only packets from these are taken from it.
    pub(crate) allowed: BTreeSet<Cidr>,
}

/// A problem of the overlay; each is reported once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Problem {
    /// Two nodes have the same addresses for pods.
    Overlap { node: String, block: Cidr, holder: String, held: Cidr },
    /// A node claims addresses that are not those of pods.
    Outside { node: String, block: Cidr },
    /// host-gw, and the peer is behind a router.
    NotOnLink { node: String, address: IpAddr },
    /// A node with pods of a family in which it has no address.
    NoAddress { node: String, block: Cidr },
    /// One of two nodes encrypts and the other does not.
    Mixed { node: String, theirs: &'static str, ours: &'static str },
    /// Two nodes have the same key of WireGuard.
    SameKey { node: String, holder: String },
    /// Large packets to a node's pods are lost without a word.
    Hole { node: String, address: IpAddr, size: u32, arrives: u32 },
    /// Checksums of packets to a node's pods are spoiled unless the kernel makes them, as it does
    /// since.
    Spoiled { family: Family, node: String, link: String, file: String },
    /// This node's own address is on no link.
    NoUnderlay { family: Family, what: String },
    /// The kernel cannot do it.
    Kernel { family: Family, what: String },
}

impl Problem {
    /// The reason of the event.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Overlap { .. } => "OverlappingPodCIDR",
            Self::Outside { .. } => "PodCIDROutsideCluster",
            Self::NotOnLink { .. } => "PeerNotOnLink",
            Self::NoAddress { .. } => "PeerWithoutAddress",
            Self::Mixed { .. } => "MixedBackends",
            Self::SameKey { .. } => "DuplicateWireGuardKey",
            Self::Hole { .. } => "MTUBlackHole",
            Self::Spoiled { .. } => "SpoiledChecksums",
            Self::NoUnderlay { .. } => "NoUnderlay",
            Self::Kernel { .. } => "OverlayFailed",
        }
    }

    /// The key on the board of problems.
    pub(crate) fn key(&self) -> String {
        match self {
            Self::Overlap { node, block, .. } => format!("overlay/duplicate/{node}/{block}"),
            Self::Outside { node, block } => format!("overlay/outside/{node}/{block}"),
            Self::NotOnLink { node, address } => format!("overlay/link/{node}/{address}"),
            Self::NoAddress { node, block } => format!("overlay/address/{node}/{block}"),
            Self::Mixed { node, .. } => format!("overlay/backend/{node}"),
            Self::SameKey { node, .. } => format!("overlay/key/{node}"),
            Self::Hole { node, address, .. } => format!("overlay/mtu/{node}/{address}"),
            Self::Spoiled { family, .. } => format!("overlay/checksums/{}", family.name()),
            Self::NoUnderlay { family, .. } => format!("overlay/underlay/{}", family.name()),
            Self::Kernel { family, .. } => format!("overlay/kernel/{}", family.name()),
        }
    }

    /// What is wrong.
    pub(crate) fn what(&self) -> String {
        match self {
            Self::Overlap { node, block, holder, held } => format!(
                "duplicate pod CIDR: node {node} claims {block}, which overlaps {held} of node {holder}; packets go \
                 to {holder}"
            ),
            Self::Outside { node, block } => format!(
                "node {node} claims the pod CIDR {block}, which is outside the cluster's pod network; it gets no route"
            ),
            Self::NotOnLink { node, address } => format!(
                "node {node} at {address} is not on one link with this node, and host-gw has no other way: its pods \
                 are not reached"
            ),
            Self::NoAddress { node, block } => format!(
                "node {node} has pods in {block} but no {} address of its own: they are not reached",
                block.family().name()
            ),
            Self::Mixed { node, theirs, ours } => format!(
                "node {node} has the overlay backend {theirs} and this node {ours}: their pods do not reach each \
                 other, since packets are not sent in the clear where encryption was asked for"
            ),
            Self::SameKey { node, holder } => format!(
                "node {node} has the same WireGuard key as node {holder}: its pods are not reached"
            ),
            Self::Hole { node, size, arrives, .. } => format!(
                "packets of pods to node {node} are lost above {arrives} bytes, and pods send up to {size}: something \
                 between the nodes has a smaller MTU and does not say so"
            ),
            Self::Spoiled { node, link, .. } => format!(
                "checksums of packets of pods to node {node} were spoiled on their way: a network card of this node \
                 does not complete them inside VXLAN; since then the kernel does it for {link}, which costs throughput"
            ),
            Self::NoUnderlay { what, .. } | Self::Kernel { what, .. } => what.clone(),
        }
    }

    /// How to fix it.
    pub(crate) fn fix(&self) -> String {
        match self {
            Self::Overlap { node, .. } | Self::Outside { node, .. } => {
                format!("delete the Node object {node} and restart its agent: it gets a block of its own")
            }
            Self::NotOnLink { .. } => "use --flannel-backend=auto or vxlan".into(),
            Self::NoAddress { .. } => {
                "start it with --node-ip naming one address of each family of the pod network".into()
            }
            Self::Mixed { .. } => {
                "give --flannel-backend=wireguard-native to the server alone, or another backend, and restart every \
                 node: agents without the flag take the server's"
                    .into()
            }
            Self::SameKey { node, holder } => format!(
                "if {node} is a copy of {holder}'s disk, remove agent/net/wireguard.key in the data directory of {node} \
                 and restart it; if {holder} is gone for good: kubectl delete node {holder}"
            ),
            Self::Hole { size, arrives, .. } => format!(
                "lower the MTU of the links between the nodes by {} bytes on both (ip link set dev LINK mtu …), then \
                 restart the pods; or let ICMP messages \"fragmentation needed\" pass",
                size.saturating_sub(*arrives)
            ),
            Self::Spoiled { link, file, .. } => format!(
                "update the driver, firmware or hypervisor of the network card; then remove {file}, run `ethtool -K \
                 {link} tx on` and restart kube-lite, and it is tried again"
            ),
            Self::NoUnderlay { .. } => {
                "give an interface the address, or name another with --node-ip or --flannel-iface".into()
            }
            Self::Kernel { .. } => {
                "it is tried again; where the kernel lacks VXLAN, --flannel-backend=host-gw joins nodes on one link"
                    .into()
            }
        }
    }
}

/// The kernel's desired state in one family.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DesiredState {
    pub(crate) routes: BTreeMap<Cidr, NextHop>,
    /// Address of a peer's end to its hardware address.
    pub(crate) neighbours: BTreeMap<IpAddr, Mac>,
    /// Hardware address of a peer's end to the peer.
    pub(crate) forwards: BTreeMap<Mac, IpAddr>,
    /// The peers of WireGuard.
    pub(crate) peers: BTreeMap<PublicKey, Remote>,
    /// Whose each block is.
    pub(crate) holders: BTreeMap<Cidr, String>,
    pub(crate) problems: Vec<Problem>,
}

/// The blocks of nodes, each overlapping no other: those held before come first, then the oldest
/// node's.
fn disjoint_blocks<'a>(
    own: &Own<'_>,
    peers: &'a [Peer],
    before: &BTreeMap<Cidr, String>,
    wanted: &mut DesiredState,
) -> Vec<(Cidr, &'a Peer)> {
    let mut claims: Vec<(bool, &str, &str, Cidr, &Peer)> = peers
        .iter()
        .filter(|peer| peer.name != own.name)
        .flat_map(|peer| peer.blocks.iter().map(move |block| (*block, peer)))
        .filter(|(block, _)| block.family() == own.family)
        .map(|(block, peer)| {
            let new = before.get(&block) != Some(&peer.name);
            (new, peer.created.as_str(), peer.name.as_str(), block, peer)
        })
        .collect();
    claims.compact_sort_by(|a, b| (a.0, a.1, a.2, a.3).cmp(&(b.0, b.1, b.2, b.3)));
    // Blocks by first address. They are disjoint, so only the two neighbors of a new block can
    // overlap it.
    let mut taken: BTreeMap<IpAddr, (Cidr, &str)> =
        own.blocks.iter().map(|b| (b.first(), (*b, own.name))).collect();
    let mut out = Vec::new();
    for (_, _, _, block, peer) in claims {
        let node = peer.name.clone();
        if !own.cluster.iter().any(|c| c.contains(block.first()) && c.contains(block.last())) {
            wanted.problems.push(Problem::Outside { node, block });
            continue;
        }
        let below = taken.range(..=block.first()).next_back();
        let beside = below.into_iter().chain(taken.range(block.first()..).next());
        let clash = beside.map(|(_, held)| *held).find(|(held, _)| held.overlaps(&block));
        if let Some((held, holder)) = clash {
            let holder = holder.to_owned();
            wanted.problems.push(Problem::Overlap { node, block, holder, held });
            continue;
        }
        taken.insert(block.first(), (block, &peer.name));
        wanted.holders.insert(block, node);
        out.push((block, peer));
    }
    out
}

impl DesiredState {
    fn add_problem(&mut self, problem: Problem) {
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    /// A block of a node that encrypts as this one does.
    fn encrypted(&mut self, own: &Own<'_>, block: Cidr, peer: &Peer, address: IpAddr) {
        let Some(key) = peer.face(own.family).key else { return };
        let held = self.peers.get(&key).map(|remote| remote.node.as_str());
        let holder = if own.key == Some(key) { Some(own.name) } else { held };
        if let Some(holder) = holder.filter(|holder| *holder != peer.name) {
            let (node, holder) = (peer.name.clone(), holder.to_owned());
            self.add_problem(Problem::SameKey { node, holder });
            return;
        }
        let remote = self.peers.entry(key).or_insert_with(|| Remote {
            node: peer.name.clone(),
            endpoint: SocketAddr::new(address, own.wireguard_port),
            allowed: BTreeSet::new(),
        });
        remote.allowed.insert(block);
        self.routes.insert(block, NextHop::Encrypted);
    }
}

/// Where packets of the overlay come from, in one family: the addresses of all nodes that have an
/// end of it, whichever way packets to them go.
pub(crate) fn members(own: &str, family: Family, peers: &[Peer]) -> BTreeSet<IpAddr> {
    let others = peers.iter().filter(|peer| peer.name != own && peer.tunnels);
    let all =
        others.flat_map(|peer| peer.face(family).address.into_iter().chain(peer.known.clone()));
    all.filter(|ip| Family::of(*ip) == family).collect_set()
}

/// Plans one address family. `before` maps each block to the node that held it.
pub(crate) fn plan(own: &Own<'_>, peers: &[Peer], before: &BTreeMap<Cidr, String>) -> DesiredState {
    let mut wanted = DesiredState::default();
    let blocks = disjoint_blocks(own, peers, before, &mut wanted);
    for (block, peer) in blocks {
        // One that has none has not said yet how it is reached.
        let Some(theirs) = peer.backend() else { continue };
        if peer.encrypts != own.backend.encrypts() {
            let ours = own.backend.name();
            wanted.add_problem(Problem::Mixed { node: peer.name.clone(), theirs, ours });
            continue;
        }
        let node = || peer.name.clone();
        let face = peer.face(own.family);
        let Some(address) = face.address.filter(|a| *a != own.underlay.address) else {
            wanted.problems.push(Problem::NoAddress { node: node(), block });
            continue;
        };
        if own.backend.encrypts() {
            wanted.encrypted(own, block, peer, address);
            continue;
        }
        let on_link = own.underlay.on_link.iter().any(|link| link.contains(address));
        if on_link && own.backend.direct() && peer.direct {
            wanted.routes.insert(block, NextHop::Direct(address));
            continue;
        }
        match (own.backend.tunnels() && peer.tunnels, face.vtep) {
            (true, Some(mac)) => {
                wanted.routes.insert(block, NextHop::Tunnel(block.first()));
                wanted.neighbours.insert(block.first(), mac);
                wanted.forwards.insert(mac, address);
            }
            (true, None) => {}
            (false, _) => wanted.problems.push(Problem::NotOnLink { node: node(), address }),
        }
    }
    wanted
}

#[cfg(test)]
mod tests;
