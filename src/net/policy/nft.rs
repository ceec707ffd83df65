//! The policy table of a family: a few constant rules over sets of elements.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::config::Guard;
use crate::netlink::Socket;
use crate::nft::expr::{Register, Rule, Verdict};
use crate::nft::set::{Element, Field, Set};
use crate::nft::{Batch, Error, Hook};
use crate::policy::decide::{SetName, Sets};
use crate::policy::drops::Drops;
use settings::addr::{Cidr, Family, octets};
use sorting::CollectOrdered as _;

const IIFNAME: u32 = 6;
const TCP: u8 = 6;
const ICMPV6: u8 = 58;
/// Holds the packet mark while the mark carries a map's value; above all registers that lookups use
/// in either family.
const SPARE: Register = 15;
/// After the service proxy's refusals (`NF_IP_PRI_FILTER`).
const PRIORITY: i32 = 1;
/// Addresses of all nodes, for [`Guard`].
const NODES: &str = "nodes";
/// Cloud metadata services: AWS, Azure, GCP, OpenStack and others, and the IPv6 address of AWS.
const METADATA: [IpAddr; 2] = [
    IpAddr::V4(std::net::Ipv4Addr::new(169, 254, 169, 254)),
    IpAddr::V6(std::net::Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

/// The parameters of the rules of a family.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) family: Family,
    pub(crate) table: String,
    pub(crate) bridge: String,
    /// What is closed to pods unless one of their policies opens it.
    pub(crate) guard: Option<Guard>,
}

/// The name of the policy tables, derived from the proxy's.
pub(crate) fn table(proxy: &str) -> String {
    format!("{proxy}-policy")
}

fn node_elements(family: Family, nodes: &BTreeSet<IpAddr>) -> BTreeSet<Element> {
    nodes
        .iter()
        .filter(|a| Family::of(**a) == family)
        .map(|a| Element::key(octets(*a)))
        .collect_set()
}

impl Layout {
    fn words(&self) -> Register {
        self.family.length() / 4
    }

    fn set(&self, name: SetName) -> Set {
        let a = Field::Address(self.family);
        let text = name.text();
        match name {
            SetName::Ingress | SetName::Egress | SetName::Classes => {
                Set::map(text, &[a], &[Field::Number])
            }
            SetName::IngressDrops | SetName::EgressDrops => Set::map(text, &[a], &[Field::Verdict]),
            SetName::Own => Set::of(text, &[a, a]),
            SetName::Pods => {
                Set::of(text, &[Field::Number, Field::Number, Field::Protocol, Field::Port])
                    .interval()
            }
            SetName::Blocks => {
                Set::of(text, &[Field::Number, a, Field::Protocol, Field::Port]).interval()
            }
        }
    }

    /// The chain of one direction: returns for traffic that the pod's profile allows and drops the
    /// rest in the chain of the policies that isolate the pod. `own` loads the isolated pod's
    /// address, `other` its peer's.
    fn side(
        &self,
        batch: &mut Batch,
        (chain, map, drops): (&str, SetName, SetName),
        own: impl Fn(Rule, Register) -> Rule,
        other: impl Fn(Rule, Register) -> Rule,
    ) {
        let w = self.words();
        let returns = |rule: Rule| rule.verdict(Verdict::Return);
        let itself = other(own(Rule::new(), 0), w).lookup(SetName::Own.text(), 0);
        batch.add_rule(chain, &returns(itself));
        let profile = || own(Rule::new(), 1).lookup_to(map.text(), 1, 0).copy_via_mark(0, SPARE);
        let pods = other(profile(), 1)
            .lookup_to(SetName::Classes.text(), 1, 1)
            .copy_via_mark(1, SPARE)
            .protocol(2)
            .port(3)
            .lookup(SetName::Pods.text(), 0);
        batch.add_rule(chain, &returns(pods));
        let blocks = other(profile(), 1).protocol(1 + w).port(2 + w);
        batch.add_rule(chain, &returns(blocks.lookup(SetName::Blocks.text(), 0)));
        batch.add_rule(chain, &own(Rule::new(), 0).lookup_verdict(drops.text(), 0));
        batch.add_rule(chain, &Rule::new().verdict(Verdict::Drop));
    }

    fn rules(&self, batch: &mut Batch) {
        let f = self.family;
        for name in ["out", "in", "out-then-in", "guard", "guard-here"] {
            batch.add_chain(name, None);
        }
        let hook = |number| Some(Hook { kind: "filter", number, priority: PRIORITY });
        batch.add_chain("filter-forward", hook(2));
        batch.add_chain("filter-input", hook(1));
        let source = |rule: Rule, at: Register| rule.source(at, f);
        let destination = |rule: Rule, at: Register| rule.destination(at, f);
        let (out, into) = (SetName::EgressDrops, SetName::IngressDrops);
        self.side(batch, ("out", SetName::Egress, out), source, destination);
        self.side(batch, ("in", SetName::Ingress, into), destination, source);
        let leaves = || Rule::new().source(0, f).lookup_to(SetName::Egress.text(), 0, 8);
        let comes = || Rule::new().destination(0, f).lookup_to(SetName::Ingress.text(), 0, 8);
        batch.add_rule("out-then-in", &Rule::new().verdict(Verdict::Jump("out")));
        batch.add_rule("out-then-in", &comes().verdict(Verdict::Goto("in")));
        let accept = |rule: Rule| rule.verdict(Verdict::Accept);
        if f == Family::V6 {
            // Neighbour discovery (types 133 to 137, RFC 4861) carries no other data.
            let neighbours = Rule::new().only_protocol(ICMPV6).message_type(133, 137);
            batch.add_rule("filter-input", &accept(neighbours));
            if let Ok(link) =
                Cidr::new(std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0).into(), 10)
            {
                // Link-local addresses of pods are unknown here and would bypass the rules for the
                // pod's other addresses.
                let rule = Rule::new().interface(IIFNAME, &self.bridge).source(0, f);
                let rule = rule.within(0, &link, true).protocol(0).compare(0, false, &[ICMPV6]);
                batch.add_rule("filter-input", &rule.verdict(Verdict::Drop));
            }
        }
        for (chain, isolated, guard) in [
            ("filter-input", Verdict::Goto("out"), "guard-here"),
            ("filter-forward", Verdict::Goto("out-then-in"), "guard"),
        ] {
            batch.add_rule(chain, &accept(Rule::new().known_connection()));
            batch.add_rule(chain, &leaves().verdict(isolated));
            if self.guard.is_some() {
                let from_pods = Rule::new().interface(IIFNAME, &self.bridge);
                batch.add_rule(chain, &from_pods.verdict(Verdict::Jump(guard)));
            }
        }
        batch.add_rule("filter-forward", &comes().verdict(Verdict::Goto("in")));
        self.guarded(batch);
    }

    fn guarded(&self, batch: &mut Batch) {
        let Some(guard) = &self.guard else { return };
        let f = self.family;
        batch.add_set(&Set::of(NODES, &[Field::Address(f)]));
        for address in METADATA.iter().filter(|a| Family::of(**a) == f) {
            let rule = Rule::new().destination(0, f).compare(0, true, &octets(*address));
            for chain in ["guard", "guard-here"] {
                batch.add_rule(chain, &rule.clone().verdict(Verdict::Drop));
            }
        }
        let to_port = |rule: Rule, port: u16| {
            rule.only_protocol(TCP).port(0).compare(0, true, &port.to_be_bytes())
        };
        for (chain, to_nodes) in
            [("guard", Rule::new().destination(0, f).lookup(NODES, 0)), ("guard-here", Rule::new())]
        {
            for port in &guard.closed {
                batch.add_rule(chain, &to_port(to_nodes.clone(), *port).verdict(Verdict::Drop));
            }
            // Traffic to the Service `kubernetes` was translated before this chain.
            batch.add_rule(chain, &Rule::new().translated().verdict(Verdict::Return));
            for port in &guard.by_service {
                batch.add_rule(chain, &to_port(to_nodes.clone(), *port).verdict(Verdict::Drop));
            }
        }
    }

    /// Replaces the whole table in one transaction.
    pub(crate) fn replace(
        &self,
        socket: &mut Socket,
        (sets, drops): (&Sets, &Drops),
        nodes: &BTreeSet<IpAddr>,
    ) -> Result<(), Error> {
        let mut batch = Batch::new(self.family, &self.table);
        batch.add_table();
        batch.delete_table();
        batch.add_table();
        drops.add_chains(&mut batch, &Drops::default());
        for name in SetName::ALL {
            batch.add_set(&self.set(name));
            batch.add_elements(name.text(), sets.get(&name).into_iter().flatten());
        }
        self.rules(&mut batch);
        if self.guard.is_some() {
            batch.add_elements(NODES, &node_elements(self.family, nodes));
        }
        batch.commit(socket)
    }

    /// Applies the difference between two states in one transaction; returns the number of changed
    /// elements.
    pub(crate) fn apply(
        &self,
        socket: &mut Socket,
        (before, drops_before, nodes_before): (&Sets, &Drops, &BTreeSet<IpAddr>),
        (now, drops, nodes): (&Sets, &Drops, &BTreeSet<IpAddr>),
    ) -> Result<usize, Error> {
        let mut batch = Batch::new(self.family, &self.table);
        let none = BTreeSet::new();
        drops.add_chains(&mut batch, drops_before);
        let mut count = 0;
        let mut change = |name: &str, old: &BTreeSet<Element>, new: &BTreeSet<Element>| {
            let (gone, fresh): (Vec<_>, Vec<_>) =
                (old.difference(new).collect(), new.difference(old).collect());
            count += gone.len() + fresh.len();
            batch.delete_elements(name, gone);
            batch.add_elements(name, fresh);
        };
        for name in SetName::ALL {
            change(
                name.text(),
                before.get(&name).unwrap_or(&none),
                now.get(&name).unwrap_or(&none),
            );
        }
        if self.guard.is_some() {
            let of = |nodes| node_elements(self.family, nodes);
            change(NODES, &of(nodes_before), &of(nodes));
        }
        drops_before.delete_chains(&mut batch, drops);
        batch.commit(socket)?;
        Ok(count)
    }

    /// Removes the table; a missing table is not an error.
    pub(crate) fn remove(&self, socket: &mut Socket) -> Result<(), Error> {
        crate::proxy::nft::remove(socket, self.family, &self.table)
    }
}
