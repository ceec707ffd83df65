//! Applies the desired elements to the kernel: one table per family, one transaction per change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::netlink::Socket;
use crate::nft::expr::{Register, Rule, Verdict};
use crate::nft::set::{Element, Field, Set};
use crate::nft::{Batch, Error, Hook, dump_elements};
use crate::proxy::rules::{Class, NodeContext, SetName};
use crate::proxy::state::{Difference, State};
use settings::addr::{Cidr, Family, octets};

/// The bit of the packet mark that requests masquerade, kube-proxy's default (`MasqueradeBit` 14).
const MASQUERADE: u32 = 1 << 14;
const AFFINITY: &str = "affinity";
/// Holds the packet mark while the mark carries a map's value; above all registers that lookups use
/// in either family.
const SPARE: Register = 15;
const TCP: u8 = 6;
const UDP: u8 = 17;
const IIFNAME: u32 = 6;
const OIFNAME: u32 = 7;
const SOURCE: u32 = 1;
const DESTINATION: u32 = 2;

/// The parameters of the constant rules.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) family: Family,
    pub(crate) table: String,
    pub(crate) bridge: String,
    pub(crate) cluster: Vec<Cidr>,
    pub(crate) service: Vec<Cidr>,
    /// UDP port of the overlay, if it has one.
    pub(crate) tunnel: Option<u16>,
    /// Whether node ports are served at loopback addresses of IPv4, as by kube-proxy's mode
    /// iptables (`--iptables-localhost-nodeports`).
    pub(crate) localhost: bool,
}

const FIXED: [SetName; 12] = [
    SetName::ClusterIps,
    SetName::Masquerade,
    SetName::Local,
    SetName::Reject,
    SetName::Drop,
    SetName::Firewalled,
    SetName::Allowed,
    SetName::Hairpin,
    SetName::Endpoints,
    SetName::Slots,
    SetName::Live,
    SetName::HostPorts,
];

/// Chains that refuse new connections to Services without endpoints.
const REFUSING: [&str; 2] = ["filter-prerouting", "filter-output"];

const LOOKUP_CHAINS: [(&str, Class, bool); 4] = [
    ("address-main", Class::Main, false),
    ("address-short", Class::ShortCircuit, false),
    ("port-main", Class::Main, true),
    ("port-short", Class::ShortCircuit, true),
];

impl Layout {
    fn set(&self, name: SetName) -> Set {
        let a = Field::Address(self.family);
        let key = [a, Field::Protocol, Field::Port];
        let endpoint = [a, Field::Port];
        let pair = [Field::Number, Field::Number];
        let text = name.text();
        match name {
            SetName::ClusterIps => Set::of(&text, &[a]),
            SetName::Masquerade
            | SetName::Local
            | SetName::Reject
            | SetName::Drop
            | SetName::Firewalled => Set::of(&text, &key),
            SetName::Allowed => Set::of(&text, &[a, Field::Protocol, Field::Port, a]).interval(),
            SetName::Hairpin => Set::of(&text, &[a, a, Field::Protocol, Field::Port]),
            SetName::Endpoints | SetName::Live => Set::map(&text, &pair, &endpoint),
            SetName::Slots => Set::map(&text, &pair, &[Field::Number]),
            SetName::HostPorts => Set::map(&text, &key, &endpoint),
            SetName::Choose { .. } | SetName::Sticky { .. } => {
                Set::map(&text, &key, &[Field::Number])
            }
        }
    }

    fn words(&self) -> Register {
        self.family.length() / 4
    }

    /// Loads (destination, protocol, port) from register 0 on; with `any`, (unspecified, protocol,
    /// port).
    fn key(&self, rule: Rule, any: bool) -> Rule {
        let w = self.words();
        let rule = if any {
            rule.immediate(0, &octets(self.family.unspecified()))
        } else {
            rule.destination(0, self.family)
        };
        rule.protocol(w).port(w + 1)
    }

    fn not_loopback(&self, rule: Rule) -> Rule {
        let loopback = match self.family {
            Family::V4 => Cidr::new([127, 0, 0, 0].into(), 8),
            Family::V6 => Cidr::new(std::net::Ipv6Addr::LOCALHOST.into(), 128),
        };
        match loopback {
            Ok(block) => rule.destination(0, self.family).within(0, &block, false),
            Err(_) => rule,
        }
    }

    /// A destination that has node ports.
    fn node_address(&self, rule: Rule) -> Rule {
        let rule = rule.fib_local(DESTINATION);
        if self.localhost && self.family == Family::V4 { rule } else { self.not_loopback(rule) }
    }

    fn chains(&self, batch: &mut Batch) {
        for name in ["services", "node-ports", "check", "firewall"] {
            batch.add_chain(name, None);
        }
        for (name, _, _) in LOOKUP_CHAINS {
            batch.add_chain(name, None);
        }
        let filter = |number, priority| Some(Hook { kind: "filter", number, priority });
        let nat = |number, priority| Some(Hook { kind: "nat", number, priority });
        for (name, hook) in [
            // Before the connection lookup (`NF_IP_PRI_RAW`).
            ("prerouting-raw", filter(0, -300)),
            ("output-raw", filter(3, -300)),
            ("prerouting-before", filter(0, -110)),
            ("output-before", filter(3, -110)),
            ("prerouting", nat(0, -100)),
            ("output", nat(3, -100)),
            ("postrouting", nat(4, 100)),
            // After translation and before forwarding: a packet that leaves by the bridge it came
            // from causes a redirect, over IPv6 always, which uses up the ICMP rate limit that its
            // refusal needs.
            ("filter-prerouting", filter(0, -90)),
            ("filter-output", filter(3, 0)),
        ] {
            batch.add_chain(name, hook);
        }
    }

    fn dispatch(&self, batch: &mut Batch, node_context: &NodeContext) {
        let f = self.family;
        // The bridge has the addresses that this process serves itself: ports of any local address
        // do not include them.
        for own in node_context.own_ips.iter().filter(|ip| Family::of(**ip) == f) {
            let rule = Rule::new().destination(0, f).compare(0, true, &octets(*own));
            batch.add_rule("services", &rule.verdict(Verdict::Accept));
        }
        let mut outside = Rule::new().destination(0, f).lookup("cluster-ips", 0);
        for block in &self.cluster {
            outside = outside.source(0, f).within(0, block, false);
        }
        batch.add_rule("services", &outside.set_mark(MASQUERADE));
        for (chain, any, short, main) in [
            ("services", false, "address-short", "address-main"),
            ("node-ports", true, "port-short", "port-main"),
        ] {
            let key = |set: &str| self.key(Rule::new(), any).lookup(set, 0);
            batch.add_rule(chain, &key("masquerade").set_mark(MASQUERADE));
            for block in &self.cluster {
                let inside = key("local-policy").source(0, f).within(0, block, true);
                batch.add_rule(chain, &inside.verdict(Verdict::Goto(short)));
            }
            let own = || key("local-policy").fib_local(SOURCE);
            batch.add_rule(chain, &own().set_mark(MASQUERADE));
            batch.add_rule(chain, &own().verdict(Verdict::Goto(short)));
            batch.add_rule(chain, &Rule::new().verdict(Verdict::Jump(main)));
        }
        let node = self.node_address(Rule::new());
        batch.add_rule("services", &node.verdict(Verdict::Jump("node-ports")));
        let w = self.words();
        for any in [false, true] {
            let start = Rule::new().fib_local(DESTINATION);
            let rule = self.key(start, any).lookup_to("host-ports", 0, 8).dnat(f, 8, 8 + w);
            batch.add_rule("services", &rule);
        }
        batch.add_rule("prerouting", &Rule::new().verdict(Verdict::Jump("services")));
        batch.add_rule("output", &Rule::new().verdict(Verdict::Jump("services")));
    }

    fn masquerade(&self, batch: &mut Batch) {
        let f = self.family;
        let w = self.words();
        batch.add_rule("postrouting", &Rule::new().take_mark(MASQUERADE).masquerade());
        let hairpin = Rule::new()
            .translated()
            .source(0, f)
            .destination(w, f)
            .protocol(2 * w)
            .port(2 * w + 1)
            .lookup("hairpin", 0)
            .masquerade();
        batch.add_rule("postrouting", &hairpin);
        let (loopback, multicast) = match f {
            Family::V4 => {
                (Cidr::new([127, 0, 0, 0].into(), 8), Cidr::new([224, 0, 0, 0].into(), 4))
            }
            Family::V6 => (
                Cidr::new(std::net::Ipv6Addr::LOCALHOST.into(), 128),
                Cidr::new(std::net::Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0).into(), 8),
            ),
        };
        if let Ok(loopback) = loopback {
            // Host ports reached through the loopback address.
            let rule = Rule::new().translated().interface(OIFNAME, &self.bridge);
            let rule = rule.source(0, f).within(0, &loopback, true).masquerade();
            batch.add_rule("postrouting", &rule);
        }
        for from in &self.cluster {
            let mut rule = Rule::new().source(0, f).within(0, from, true);
            for not in self.cluster.iter().chain(multicast.as_ref().ok()) {
                rule = rule.destination(0, f).within(0, not, false);
            }
            batch.add_rule("postrouting", &rule.masquerade());
        }
    }

    fn filters(&self, batch: &mut Batch, node_context: &NodeContext) {
        let f = self.family;
        let new = || Rule::new().new_connection();
        for chain in REFUSING {
            batch.add_rule(chain, &new().verdict(Verdict::Jump("check")));
        }
        for own in node_context.own_ips.iter().filter(|ip| Family::of(**ip) == f) {
            let rule = Rule::new().destination(0, f).compare(0, true, &octets(*own));
            batch.add_rule("check", &rule.verdict(Verdict::Accept));
        }
        for any in [false, true] {
            let key = |set: &str| {
                let start = Rule::new();
                let start = if any { self.node_address(start) } else { start };
                self.key(start, any).lookup(set, 0)
            };
            // Some clients ignore ICMPv6 replies to a SYN, so TCP connections are refused with a
            // reset.
            batch.add_rule("check", &key("no-endpoints").only_protocol(TCP).reset());
            batch.add_rule("check", &key("no-endpoints").reject(f));
            batch.add_rule("check", &key("no-local-endpoints").verdict(Verdict::Drop));
        }
        for chain in REFUSING {
            let known = || new().destination(0, f).lookup("cluster-ips", 0);
            batch.add_rule(chain, &known().only_protocol(TCP).reset());
            batch.add_rule(chain, &known().reject(f));
            for block in &self.service {
                let mut rule = new();
                for own in node_context.own_ips.iter().filter(|ip| Family::of(**ip) == f) {
                    rule = rule.destination(0, f).compare(0, false, &octets(*own));
                }
                let unknown = rule.destination(0, f).within(0, block, true);
                batch.add_rule(chain, &unknown.verdict(Verdict::Drop));
            }
        }
        if f == Family::V4
            && let Ok(loopback) = Cidr::new([127, 0, 0, 0].into(), 8)
        {
            // Loopback addresses are routed for host ports and node ports; neither pods nor other
            // machines may reach the host's own (CVE-2020-8558).
            let rule = Rule::new().other_interface(IIFNAME, "lo").destination(0, f);
            let rule = rule.within(0, &loopback, true).verdict(Verdict::Drop);
            batch.add_rule("prerouting-before", &rule);
        }
        let w = self.words();
        for any in [false, true] {
            let listed = self.key(Rule::new(), any).lookup("source-ranges", 0);
            // The route lookup is slower than the set and overwrites the key.
            let listed = if any { self.key(listed.fib_local(DESTINATION), any) } else { listed };
            let refused = listed
                .source(w + 2, f)
                .lookup_absent("source-ranges-allowed", 0)
                .verdict(Verdict::Drop);
            batch.add_rule("firewall", &refused);
        }
        for chain in ["prerouting-before", "output-before"] {
            batch.add_rule(chain, &new().verdict(Verdict::Jump("firewall")));
        }
    }

    /// Excludes the overlay's own packets from connection tracking: translating them is always
    /// wrong (old kernels corrupt the checksum), and tracking costs time and memory.
    fn overlay(&self, batch: &mut Batch) {
        let Some(port) = self.tunnel else { return };
        let to_port = |rule: Rule| {
            rule.only_protocol(UDP).port(0).compare(0, true, &port.to_be_bytes()).untracked()
        };
        // Packets of pods to this port of other hosts pass here as well and do not belong to the
        // overlay.
        let here = Rule::new().fib_local(DESTINATION);
        batch.add_rule("prerouting-raw", &to_port(here));
        batch.add_rule("output-raw", &to_port(Rule::new()));
    }

    /// The rules that try every lookup map; one per distinct number of endpoints, whatever the
    /// number of Services.
    fn lookups(&self, batch: &mut Batch, sets: &BTreeSet<SetName>) {
        let f = self.family;
        let w = self.words();
        for (chain, class, any) in LOOKUP_CHAINS {
            // Clients with an affinity entry are matched first.
            for set in sets {
                let SetName::Sticky { class: c, seconds } = *set else { continue };
                if c != class {
                    continue;
                }
                let rule = self
                    .key(Rule::new(), any)
                    .lookup_to(&set.text(), 0, w)
                    .copy_via_mark(w, SPARE)
                    .source(0, f)
                    .lookup_to(AFFINITY, 0, w + 1)
                    .copy_via_mark(w + 1, SPARE)
                    .lookup_to("sticky-endpoints", w, 8)
                    .update(AFFINITY, 0, w + 1, u64::from(seconds) * 1000)
                    .dnat(f, 8, 8 + w);
                batch.add_rule(chain, &rule);
            }
            for set in sets {
                let SetName::Choose { class: c, count, seconds } = *set else { continue };
                if c != class {
                    continue;
                }
                let rule = self.key(Rule::new(), any);
                let rule = if seconds == 0 {
                    rule.lookup_to(&set.text(), 0, 8)
                        .copy_via_mark(8, SPARE)
                        .random(9, count)
                        .lookup_to("endpoints", 8, 10)
                        .dnat(f, 10, 10 + w)
                } else {
                    rule.lookup_to(&set.text(), 0, w)
                        .copy_via_mark(w, SPARE)
                        .source(0, f)
                        .random(w + 1, count)
                        .lookup_to("sticky-slots", w, w + 1)
                        .copy_via_mark(w + 1, SPARE)
                        .lookup_to("sticky-endpoints", w, 8)
                        // An update keeps the old value of an element whose endpoint has gone.
                        .forget(AFFINITY, 0, w + 1)
                        .update(AFFINITY, 0, w + 1, u64::from(seconds) * 1000)
                        .dnat(f, 8, 8 + w)
                };
                batch.add_rule(chain, &rule);
            }
        }
    }

    fn affinity(&self) -> Set {
        let key = [Field::Address(self.family), Field::Number];
        Set::map(AFFINITY, &key, &[Field::Number]).dynamic()
    }

    /// Replaces the whole table in one transaction. Connections live in conntrack and continue;
    /// client affinity is carried over.
    pub(crate) fn replace(
        &self,
        socket: &mut Socket,
        state: &State,
        node_context: &NodeContext,
    ) -> Result<(), Error> {
        let kept = dump_elements(socket, self.family, &self.table, AFFINITY)?;
        let mut batch = Batch::new(self.family, &self.table);
        batch.add_table();
        batch.delete_table();
        batch.add_table();
        self.chains(&mut batch);
        batch.add_set(&self.affinity());
        let lookups = state.lookups();
        for name in FIXED.iter().chain(&lookups) {
            batch.add_set(&self.set(*name));
        }
        for (name, elements) in state.all() {
            batch.add_elements(&name.text(), elements);
        }
        let kept: Vec<Element> = kept
            .into_iter()
            .filter(|e| e.expires > 0 && !e.data.is_empty())
            .map(|e| Element {
                timeout: Some((e.timeout.max(e.expires), e.expires)),
                ..Element::pair(e.key, e.data)
            })
            .collect();
        batch.add_elements(AFFINITY, &kept);
        self.overlay(&mut batch);
        self.dispatch(&mut batch, node_context);
        self.masquerade(&mut batch);
        self.filters(&mut batch, node_context);
        self.lookups(&mut batch, &lookups);
        batch.commit(socket)
    }

    /// Applies a difference.
    pub(crate) fn apply(
        &self,
        socket: &mut Socket,
        state: &State,
        difference: &Difference,
    ) -> Result<(), Error> {
        let mut batch = Batch::new(self.family, &self.table);
        for name in &difference.new_sets {
            batch.add_set(&self.set(*name));
        }
        let changed = |map: &BTreeMap<SetName, Vec<Arc<Element>>>| -> Vec<SetName> {
            map.keys().copied().filter(|n| !difference.gone_sets.contains(n)).collect()
        };
        for name in changed(&difference.delete) {
            let elements = difference.delete.get(&name).into_iter().flatten();
            batch.delete_elements(&name.text(), elements.map(|e| &**e));
        }
        for (name, elements) in &difference.add {
            batch.add_elements(&name.text(), elements.iter().map(|e| &**e));
        }
        if !difference.new_sets.is_empty() || !difference.gone_sets.is_empty() {
            for (chain, _, _) in LOOKUP_CHAINS {
                batch.flush_chain(chain);
            }
            self.lookups(&mut batch, &state.lookups());
        }
        for name in &difference.gone_sets {
            batch.delete_set(&name.text());
        }
        batch.commit(socket)
    }
}

/// Removes the table of a family.
pub(crate) fn remove(socket: &mut Socket, family: Family, table: &str) -> Result<(), Error> {
    let mut batch = Batch::new(family, table);
    // Added first, so that deleting a missing table is not an error.
    batch.add_table();
    batch.delete_table();
    batch.commit(socket)
}

#[cfg(test)]
mod tests;
