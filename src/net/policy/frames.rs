//! Frames of pods go to the node alone, and under the pod's own addresses. Rules ask for addresses where packets are
//! routed; a pod that makes frames itself could hand them to another pod of its bridge, where nobody routes, or take
//! another's address.
//!
//! Ports of a bridge can be isolated from each other, but a kernel with `br_netfilter` hands translated packets from port
//! to port itself. So frames are looked at where they come in, before anything is translated.

use std::collections::{BTreeMap, BTreeSet};

use crate::netlink::Socket;
use crate::nft::expr::{Register, Rule, Verdict};
use crate::nft::set::{Element, Field, Set, Value};
use crate::nft::{Batch, Error, Hook};
use crate::policy::decide::Local;
use settings::addr::{Cidr, Family, octets};

const IIFNAME: u32 = 6;
/// Before anybody else's (`NF_BR_PRI_FIRST`; `NF_BR_PRI_BRNF` is 0).
const PRIORITY: i32 = -300;
/// Links of pods.
const LINKS: &str = "links";
const ARP: [u8; 2] = [0x08, 0x06];
/// A link's name fills four registers.
const BEHIND_NAME: Register = 4;

/// What the sets hold, by their names.
pub(super) type Held = BTreeMap<&'static str, BTreeSet<Element>>;

/// Links with their addresses.
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

/// What the pods of this node come to.
pub(super) fn wanted(local: &[Local]) -> Held {
    let mut out = Held::new();
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

/// Makes the table anew, in one transaction. `mac` is the bridge's.
pub(super) fn replace(
    socket: &mut Socket,
    table: &str,
    mac: &[u8],
    held: &Held,
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
    // The lowest bit of the first byte makes an address one of many.
    let to_one = from_pod()
        .frame(0, 0, 6)
        .bitwise(0, &[1, 0, 0, 0, 0, 0], &[0; 6])
        .compare(0, true, &[0; 6]);
    drops(to_one.frame(0, 0, 6).compare(0, false, mac));
    for family in Family::ALL {
        let mut rule = from_pod().frame(0, 12, 2).compare(0, true, &ether_type(family));
        // A packet for one address in a frame for many would come around the node, too.
        let multicast = if family == Family::V4 { 0xe0 } else { 0xff };
        let to_many = rule.clone().frame(0, 0, 1).bitwise(0, &[1], &[0]).compare(0, false, &[0]);
        drops(
            to_many
                .destination(0, family)
                .bitwise(0, &first_byte(family, 0xff), &zero(family))
                .below(0, &first_byte(family, multicast)),
        );
        if family == Family::V6 {
            // Addresses of the link, and of who has none yet.
            if let Ok(link) =
                Cidr::new(std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0).into(), 10)
            {
                rule = rule.source(0, family).within(0, &link, false);
            }
            rule = rule.source(0, family).compare(0, false, &octets(family.unspecified()));
        }
        let own = rule.meta(0, IIFNAME).source(BEHIND_NAME, family);
        drops(own.lookup_absent(addresses(family), 0));
    }
    // Who says to have an address in the name of another would be sent what is that one's.
    let says = from_pod().frame(0, 12, 2).compare(0, true, &ARP).meta(0, IIFNAME).network(
        BEHIND_NAME,
        14,
        4,
    );
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

/// The difference between two states, in one transaction.
pub(super) fn apply(
    socket: &mut Socket,
    table: &str,
    before: &Held,
    now: &Held,
) -> Result<(), Error> {
    let mut batch = Batch::of_bridges(table);
    let none = BTreeSet::new();
    for set in &sets() {
        let of =
            |held: &'_ Held| held.get(set.name.as_str()).cloned().unwrap_or_else(|| none.clone());
        let (old, new) = (of(before), of(now));
        batch.delete_elements(&set.name, old.difference(&new));
        batch.add_elements(&set.name, new.difference(&old));
    }
    batch.commit(socket)
}

/// Takes the table away; none there is fine.
pub(super) fn remove(socket: &mut Socket, table: &str) -> Result<(), Error> {
    let mut batch = Batch::of_bridges(table);
    batch.add_table();
    batch.delete_table();
    batch.commit(socket)
}
