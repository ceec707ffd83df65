//! Restricts the frames of pods: they may go to the node only, and carry the pod's own addresses
//! only. Policy rules filter addresses where packets are routed; a pod that crafts frames could
//! otherwise reach another pod on the bridge without routing, or use another pod's address.
//!
//! Isolated bridge ports do not suffice: a kernel with `br_netfilter` forwards translated packets
//! from port to port by itself. So frames are filtered at ingress, before translation.

use std::collections::{BTreeMap, BTreeSet};

use crate::netlink::Socket;
use crate::nft::expr::{Register, Rule, Verdict};
use crate::nft::set::{Element, Field, Set, Value};
use crate::nft::{Batch, Error, Hook};
use crate::policy::decide::Local;
use settings::addr::{Cidr, Family, octets};

const IIFNAME: u32 = 6;
/// Before all other chains (`NF_BR_PRI_FIRST`; `NF_BR_PRI_BRNF` is 0).
const PRIORITY: i32 = -300;
/// Set of the host links of pods.
const LINKS: &str = "links";
const ARP: [u8; 2] = [0x08, 0x06];
/// First register after a link's name, which fills four registers.
const AFTER_NAME: Register = 4;

/// The elements of each set, by set name.
pub(super) type FrameSets = BTreeMap<&'static str, BTreeSet<Element>>;

/// Name of the set of links with their addresses.
fn addresses(family: Family) -> &'static str {
    match family {
        Family::V4 => "addresses-4",
        Family::V6 => "addresses-6",
    }
}

fn ether_type(family: Family) -> [u8; 2] {
    match family {
        Family::V4 => [0x08, 0x00],
        Family::V6 => [0x86, 0xdd],
    }
}

/// Computes the elements for the pods of this node.
pub(super) fn wanted(local: &[Local]) -> FrameSets {
    let mut out = FrameSets::new();
    for pod in local {
        out.entry(LINKS).or_default().insert(Element::key(Value::default().name(&pod.link).0));
        for address in &pod.addresses {
            let key = Value::default().name(&pod.link).address(*address).0;
            out.entry(addresses(Family::of(*address))).or_default().insert(Element::key(key));
        }
    }
    out
}

fn sets() -> [Set; 3] {
    let of = |family| Set::of(addresses(family), &[Field::Name, Field::Address(family)]);
    [Set::of(LINKS, &[Field::Name]), of(Family::V4), of(Family::V6)]
}

fn from_pod() -> Rule {
    Rule::new().meta(0, IIFNAME).lookup(LINKS, 0)
}

/// Replaces the table in one transaction. `mac` is the bridge's hardware address.
pub(super) fn replace(
    socket: &mut Socket,
    table: &str,
    mac: &[u8],
    held: &FrameSets,
) -> Result<(), Error> {
    let mut batch = Batch::of_bridges(table);
    batch.add_table();
    batch.delete_table();
    batch.add_table();
    for set in &sets() {
        batch.add_set(set);
        batch.add_elements(
            &set.name,
            held.iter().filter(|(n, _)| **n == set.name).flat_map(|(_, e)| e),
        );
    }
    let chain = "from-pods";
    batch.add_chain(chain, Some(Hook { kind: "filter", number: 0, priority: PRIORITY }));
    let mut drops = |rule: Rule| batch.add_rule(chain, &rule.verdict(Verdict::Drop));
    // The lowest bit of the first byte marks a multicast address.
    let to_one = from_pod()
        .frame(0, 0, 6)
        .bitwise(0, &[1, 0, 0, 0, 0, 0], &[0; 6])
        .compare(0, true, &[0; 6]);
    drops(to_one.frame(0, 0, 6).compare(0, false, mac));
    for family in Family::ALL {
        let mut rule = from_pod().frame(0, 12, 2).compare(0, true, &ether_type(family));
        // A unicast packet in a multicast frame would bypass the node as well.
        let multicast = if family == Family::V4 { 0xe0 } else { 0xff };
        let to_many = rule.clone().frame(0, 0, 1).bitwise(0, &[1], &[0]).compare(0, false, &[0]);
        drops(
            to_many
                .destination(0, family)
                .bitwise(0, &first_byte(family, 0xff), &zero(family))
                .below(0, &first_byte(family, multicast)),
        );
        if family == Family::V6 {
            // Link-local and unspecified source addresses.
            if let Ok(link) =
                Cidr::new(std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0).into(), 10)
            {
                rule = rule.source(0, family).within(0, &link, false);
            }
            rule = rule.source(0, family).compare(0, false, &octets(family.unspecified()));
        }
        let own = rule.meta(0, IIFNAME).source(AFTER_NAME, family);
        drops(own.lookup_absent(addresses(family), 0));
    }
    // ARP with a foreign sender address would redirect the traffic of the address's owner.
    let says = from_pod()
        .frame(0, 12, 2)
        .compare(0, true, &ARP)
        .meta(0, IIFNAME)
        .network(AFTER_NAME, 14, 4);
    drops(says.lookup_absent(addresses(Family::V4), 0));
    batch.commit(socket)
}

fn zero(family: Family) -> Vec<u8> {
    vec![0; usize::from(family.length())]
}

fn first_byte(family: Family, value: u8) -> Vec<u8> {
    let mut out = zero(family);
    if let Some(first) = out.first_mut() {
        *first = value;
    }
    out
}

/// Applies the difference between two states in one transaction.
pub(super) fn apply(
    socket: &mut Socket,
    table: &str,
    before: &FrameSets,
    now: &FrameSets,
) -> Result<(), Error> {
    let mut batch = Batch::of_bridges(table);
    let none = BTreeSet::new();
    for set in &sets() {
        let of = |held: &'_ FrameSets| {
            held.get(set.name.as_str()).cloned().unwrap_or_else(|| none.clone())
        };
        let (old, new) = (of(before), of(now));
        batch.delete_elements(&set.name, old.difference(&new));
        batch.add_elements(&set.name, new.difference(&old));
    }
    batch.commit(socket)
}

/// Removes the table; a missing table is not an error.
pub(super) fn remove(socket: &mut Socket, table: &str) -> Result<(), Error> {
    let mut batch = Batch::of_bridges(table);
    batch.add_table();
    batch.delete_table();
    batch.commit(socket)
}
