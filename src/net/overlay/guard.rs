//! Drops packets to the port of the overlay that do not come from nodes. The rules are in an
//! nftables table of their own with a set of the addresses of all nodes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::netlink::Socket;
use crate::nft::expr::{Rule, Verdict};
use crate::nft::set::{Element, Field, Set};
use crate::nft::{Batch, Error, Hook, dump_elements, has_table};
use settings::addr::{Family, from_octets, octets};

/// The table has the name of the node's tables with this suffix.
const TABLE_SUFFIX: &str = "-overlay";
/// The set of node addresses.
const NODES: &str = "nodes";
/// `IPPROTO_UDP`.
const UDP: u8 = 17;
/// `NFT_META_IIFNAME`.
const IIFNAME: u32 = 6;
/// `NF_IP_PRI_RAW`: the chains run before those of other programs.
const PRIORITY: i32 = -300;

/// The table of one address family.
#[derive(Debug)]
pub(crate) struct Guard {
    family: Family,
    table: String,
    /// The bridge of this node's pods.
    bridge: String,
    /// The UDP port of the overlay.
    port: u16,
    /// This process has written the table; otherwise another version may have left it.
    is_current: bool,
}

/// The elements of the set for these addresses.
fn elements<'a>(nodes: impl IntoIterator<Item = &'a IpAddr>) -> Vec<Element> {
    nodes.into_iter().map(|ip| Element::key(octets(*ip))).collect()
}

impl Guard {
    pub(crate) fn new(family: Family, table: &str, bridge: &str, port: u16) -> Self {
        let table = format!("{table}{TABLE_SUFFIX}");
        Self { family, table, bridge: bridge.to_owned(), port, is_current: false }
    }

    /// Returns the nodes in the set; none if the table is missing.
    fn admitted(&self, socket: &mut Socket) -> Result<BTreeSet<IpAddr>, Error> {
        let found = dump_elements(socket, self.family, &self.table, NODES)?;
        Ok(found.iter().filter_map(|e| from_octets(&e.key)).collect())
    }

    /// Adds nodes to the set, and creates or replaces the table where necessary. While the set is
    /// empty, the node drops all packets of the overlay. Returns the number of changes.
    ///
    /// # Errors
    /// When the kernel refuses the change; then no node was added.
    pub(crate) fn admit(
        &mut self,
        socket: &mut Socket,
        nodes: &BTreeSet<IpAddr>,
    ) -> Result<usize, Error> {
        let exists = has_table(socket, self.family, &self.table)?;
        let admitted = self.admitted(socket)?;
        let missing = elements(nodes.difference(&admitted));
        if !exists || !self.is_current {
            // The nodes of an earlier table stay: only `expel` removes nodes.
            self.replace(socket, &elements(nodes.union(&admitted)))?;
            self.is_current = true;
            return Ok(missing.len() + usize::from(!exists));
        }
        let mut batch = Batch::new(self.family, &self.table);
        batch.add_elements(NODES, &missing);
        batch.commit(socket)?;
        Ok(missing.len())
    }

    /// Removes all nodes except these from the set. Returns the number of removed nodes.
    ///
    /// # Errors
    /// When the kernel refuses the change.
    pub(crate) fn expel(
        &self,
        socket: &mut Socket,
        nodes: &BTreeSet<IpAddr>,
    ) -> Result<usize, Error> {
        let admitted = self.admitted(socket)?;
        let stale = elements(admitted.difference(nodes));
        let mut batch = Batch::new(self.family, &self.table);
        batch.delete_elements(NODES, &stale);
        batch.commit(socket)?;
        Ok(stale.len())
    }

    /// Replaces the whole table in one transaction.
    fn replace(&self, socket: &mut Socket, nodes: &[Element]) -> Result<(), Error> {
        let f = self.family;
        let mut batch = Batch::new(f, &self.table);
        // The deletion of a missing table fails, so the batch adds it first.
        batch.add_table();
        batch.delete_table();
        batch.add_table();
        batch.add_set(&Set::of(NODES, &[Field::Address(f)]));
        batch.add_elements(NODES, nodes);
        let hook = |number| Some(Hook { kind: "filter", number, priority: PRIORITY });
        let port = self.port.to_be_bytes();
        let to_port = || Rule::new().only_protocol(UDP).port(0).compare(0, true, &port);
        // The input hook sees reassembled packets, so fragments cannot evade the match of the port.
        batch.add_chain("input", hook(1));
        let not_a_node = to_port().source(0, f).lookup_absent(NODES, 0);
        batch.add_rule("input", &not_a_node.verdict(Verdict::Drop));
        // A pod can send packets with the source address of a node. Drop those to this node, and
        // those that it would forward to other nodes.
        let from_pod = || to_port().interface(IIFNAME, &self.bridge);
        batch.add_rule("input", &from_pod().verdict(Verdict::Drop));
        batch.add_chain("forward", hook(2));
        let spoofed = from_pod().source(0, f).lookup(NODES, 0);
        batch.add_rule("forward", &spoofed.verdict(Verdict::Drop));
        batch.commit(socket)
    }

    /// Removes the table, if it exists.
    ///
    /// # Errors
    /// When the kernel refuses the change.
    pub(crate) fn remove(&mut self, socket: &mut Socket) -> Result<(), Error> {
        self.is_current = false;
        if !has_table(socket, self.family, &self.table)? {
            return Ok(());
        }
        let mut batch = Batch::new(self.family, &self.table);
        batch.delete_table();
        batch.commit(socket)
    }
}
