//! Accepts packets of the overlay from nodes alone, by a separate table whose set follows the
//! nodes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::netlink::Socket;
use crate::nft::expr::{Rule, Verdict};
use crate::nft::set::{Element, Field, Set};
use crate::nft::{Batch, Error, Hook, dump_elements, has_table};
use crate::overlay::engine::PORT;
use settings::addr::{Family, from_octets, octets};

/// Added to the name of the node's tables.
const SUFFIX: &str = "-overlay";
const NODES: &str = "nodes";
const UDP: u8 = 17;
const IIFNAME: u32 = 6;
/// `NF_IP_PRI_RAW`: before the rules of any other program accept the packets.
const PRIORITY: i32 = -300;

/// One family's table.
#[derive(Debug)]
pub(crate) struct Guard {
    family: Family,
    table: String,
    bridge: String,
    /// The table is as this program makes it, and not left by another version.
    made: bool,
}

fn elements<'a>(nodes: impl IntoIterator<Item = &'a IpAddr>) -> Vec<Element> {
    nodes.into_iter().map(|ip| Element::key(octets(*ip))).collect()
}

impl Guard {
    pub(crate) fn new(family: Family, table: &str, bridge: &str) -> Self {
        let table = format!("{table}{SUFFIX}");
        Self { family, table, bridge: bridge.to_owned(), made: false }
    }

    fn present(&self, socket: &mut Socket) -> Result<BTreeSet<IpAddr>, Error> {
        let found = dump_elements(socket, self.family, &self.table, NODES)?;
        Ok(found.iter().filter_map(|e| from_octets(&e.key)).collect())
    }

    /// Adds nodes; without any node the overlay is closed. Returns the number of changes.
    ///
    /// # Errors
    /// When the kernel refuses the change; then no node was added.
    pub(crate) fn admit(
        &mut self,
        socket: &mut Socket,
        nodes: &BTreeSet<IpAddr>,
    ) -> Result<usize, Error> {
        let stands = has_table(socket, self.family, &self.table)?;
        let present = self.present(socket)?;
        let missing = elements(nodes.difference(&present));
        if !stands || !self.made {
            self.replace(socket, &elements(nodes.union(&present)))?;
            self.made = true;
            return Ok(missing.len() + usize::from(!stands));
        }
        let mut batch = Batch::new(self.family, &self.table);
        batch.add_elements(NODES, &missing);
        batch.commit(socket)?;
        Ok(missing.len())
    }

    /// Removes all nodes but these. Returns how many were removed.
    ///
    /// # Errors
    /// When the kernel refuses the change.
    pub(crate) fn expel(
        &self,
        socket: &mut Socket,
        nodes: &BTreeSet<IpAddr>,
    ) -> Result<usize, Error> {
        let present = self.present(socket)?;
        let stale = elements(present.difference(nodes));
        let mut batch = Batch::new(self.family, &self.table);
        batch.delete_elements(NODES, &stale);
        batch.commit(socket)?;
        Ok(stale.len())
    }

    /// Replaces the whole table in one transaction.
    fn replace(&self, socket: &mut Socket, nodes: &[Element]) -> Result<(), Error> {
        let f = self.family;
        let mut batch = Batch::new(f, &self.table);
        batch.add_table();
        batch.delete_table();
        batch.add_table();
        batch.add_set(&Set::of(NODES, &[Field::Address(f)]));
        batch.add_elements(NODES, nodes);
        let hook = |number| Some(Hook { kind: "filter", number, priority: PRIORITY });
        let to_port =
            || Rule::new().only_protocol(UDP).port(0).compare(0, true, &PORT.to_be_bytes());
        // On their way in packets are whole again: fragments do not pass for something else.
        batch.add_chain("input", hook(1));
        let stranger = to_port().source(0, f).lookup_absent(NODES, 0);
        batch.add_rule("input", &stranger.verdict(Verdict::Drop));
        // A pod that writes a node's address over its own is no node, neither here nor to others.
        let pod = || to_port().interface(IIFNAME, &self.bridge);
        batch.add_rule("input", &pod().verdict(Verdict::Drop));
        batch.add_chain("forward", hook(2));
        let pretends = pod().source(0, f).lookup(NODES, 0);
        batch.add_rule("forward", &pretends.verdict(Verdict::Drop));
        batch.commit(socket)
    }

    /// Removes the table.
    ///
    /// # Errors
    /// When the kernel refuses the change.
    pub(crate) fn remove(&mut self, socket: &mut Socket) -> Result<(), Error> {
        self.made = false;
        if !has_table(socket, self.family, &self.table)? {
            return Ok(());
        }
        let mut batch = Batch::new(self.family, &self.table);
        batch.delete_table();
        batch.commit(socket)
    }
}
