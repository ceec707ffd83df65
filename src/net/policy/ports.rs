//! Ports and address blocks split into disjoint pieces, as the kernel's interval sets require;
//! pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use settings::addr::{self, Cidr, Family};
use sorting::{CollectOrdered as _, CompactSort as _};

/// Ports of each protocol; the ranges of one are sorted, apart from each other, and inclusive.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ports {
    everything: bool,
    ranges: BTreeMap<u8, Vec<(u16, u16)>>,
}

/// A range of protocols with a range of their ports, both inclusive.
pub(crate) type Piece = ((u8, u8), (u16, u16));

impl Ports {
    /// All ports of all protocols, including protocols without ports.
    pub(crate) fn everything() -> Self {
        Self { everything: true, ranges: BTreeMap::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.everything && self.ranges.is_empty()
    }

    pub(crate) fn add(&mut self, protocol: u8, first: u16, last: u16) {
        if self.everything || first > last {
            return;
        }
        let ranges = self.ranges.entry(protocol).or_default();
        ranges.push((first, last));
        ranges.compact_sort();
        let mut merged: Vec<(u16, u16)> = Vec::with_capacity(ranges.len());
        for (from, to) in ranges.drain(..) {
            match merged.last_mut() {
                Some(before) if from <= before.1.saturating_add(1) => before.1 = before.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        *ranges = merged;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        if other.everything {
            *self = Self::everything();
        }
        for (protocol, ranges) in &other.ranges {
            for (first, last) in ranges {
                self.add(*protocol, *first, *last);
            }
        }
    }

    /// The ports as pieces without overlap.
    pub(crate) fn pieces(&self) -> Vec<Piece> {
        if self.everything {
            return vec![((0, u8::MAX), (0, u16::MAX))];
        }
        let each = self.ranges.iter();
        each.flat_map(|(p, list)| list.iter().map(|range| ((*p, *p), *range))).collect()
    }
}

/// Inclusive range of addresses.
pub(crate) type Span = (IpAddr, IpAddr);

/// The rest of a block after its exceptions.
pub(crate) fn spans(block: &Cidr, except: &[Cidr]) -> Vec<Span> {
    let family = block.family();
    let mut cut: Vec<(u128, u128)> = except
        .iter()
        .filter(|e| e.family() == family)
        .map(|e| (addr::number(e.first()), addr::number(e.last())))
        .collect();
    cut.compact_sort();
    let end = addr::number(block.last());
    let mut out = Vec::new();
    let mut next = Some(addr::number(block.first()));
    for (from, to) in cut {
        let Some(start) = next.filter(|n| *n <= end) else { break };
        if from > start {
            let last = end.min(from.saturating_sub(1));
            out.push((addr::address(family, start), addr::address(family, last)));
        }
        next = if to >= start { to.checked_add(1) } else { Some(start) };
    }
    if let Some(start) = next.filter(|n| *n <= end) {
        out.push((addr::address(family, start), addr::address(family, end)));
    }
    out
}

/// Splits overlapping spans into disjoint ones, each with the union of the ports that apply to it.
pub(crate) fn apart(family: Family, list: &[(Span, Ports)]) -> Vec<(Span, Ports)> {
    let numbers: Vec<(u128, u128, &Ports)> = list
        .iter()
        .filter(|((first, _), _)| Family::of(*first) == family)
        .map(|((first, last), ports)| (addr::number(*first), addr::number(*last), ports))
        .collect();
    let top = match family {
        Family::V4 => u128::from(u32::MAX),
        Family::V6 => u128::MAX,
    };
    let begins: BTreeSet<u128> = numbers
        .iter()
        .flat_map(|(first, last, _)| [Some(*first), last.checked_add(1).filter(|n| *n <= top)])
        .flatten()
        .collect_set();
    let ends = begins.iter().skip(1).map(|next| next - 1).chain([top]);
    let mut out: Vec<(u128, u128, Ports)> = Vec::new();
    for (first, last) in begins.iter().copied().zip(ends) {
        let mut all = Ports::default();
        for (_, _, ports) in numbers.iter().filter(|(from, to, _)| *from <= first && last <= *to) {
            all.merge(ports);
        }
        match out.last_mut() {
            _ if all.is_empty() => {}
            Some((_, to, ports)) if to.checked_add(1) == Some(first) && *ports == all => *to = last,
            _ => out.push((first, last, all)),
        }
    }
    let named = |n| addr::address(family, n);
    out.into_iter().map(|(first, last, ports)| ((named(first), named(last)), ports)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    fn text(list: &[Span]) -> String {
        list.iter().map(|(a, b)| format!("{a}-{b}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn exceptions_are_cut_out_of_a_block() {
        for (of, except, want) in [
            // The API documentation's own example.
            (
                "172.17.0.0/16",
                &["172.17.1.0/24"][..],
                "172.17.0.0-172.17.0.255 172.17.2.0-172.17.255.255",
            ),
            ("10.0.0.0/8", &[], "10.0.0.0-10.255.255.255"),
            ("10.0.0.0/24", &["10.0.0.0/25"], "10.0.0.128-10.0.0.255"),
            ("10.0.0.0/24", &["10.0.0.128/25", "10.0.0.0/26"], "10.0.0.64-10.0.0.127"),
            ("10.0.0.0/24", &["10.0.0.0/24"], ""),
            ("10.0.0.0/24", &["10.0.0.0/25", "10.0.0.16/28"], "10.0.0.128-10.0.0.255"),
            ("0.0.0.0/0", &["255.255.255.255/32"], "0.0.0.0-255.255.255.254"),
            ("::/0", &["8000::/1"], "::-7fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("::/0", &["::/1"], "8000::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ] {
            let except: Vec<Cidr> = except.iter().map(|e| block(e)).collect();
            assert_eq!(text(&spans(&block(of), &except)), want, "{of} {except:?}");
        }
    }

    #[test]
    fn ports_of_one_protocol_are_merged_and_everything_swallows_them() {
        let mut ports = Ports::default();
        for (protocol, first, last) in [(6, 80, 80), (6, 81, 90), (6, 85, 100), (17, 53, 53)] {
            ports.add(protocol, first, last);
        }
        assert_eq!(ports.pieces(), [((6, 6), (80, 100)), ((17, 17), (53, 53))]);
        ports.add(6, 0, u16::MAX);
        assert_eq!(ports.pieces(), [((6, 6), (0, 65535)), ((17, 17), (53, 53))]);
        ports.merge(&Ports::everything());
        ports.add(6, 1, 2);
        assert_eq!(ports.pieces(), [((0, 255), (0, 65535))]);
        assert!(Ports::default().is_empty() && !ports.is_empty());
    }

    #[test]
    fn overlapping_blocks_come_apart_and_lose_nothing() {
        let with = |protocol, port| {
            let mut ports = Ports::default();
            ports.add(protocol, port, port);
            ports
        };
        let span = |text: &str| (block(text).first(), block(text).last());
        let list = [
            (span("10.0.0.0/8"), with(6, 80)),
            (span("10.1.0.0/16"), with(6, 443)),
            (span("10.2.0.0/16"), with(6, 80)),
            (span("fd00::/8"), with(6, 1)),
        ];
        let got: Vec<(String, Vec<Piece>)> = apart(Family::V4, &list)
            .into_iter()
            .map(|(span, ports)| (text(&[span]), ports.pieces()))
            .collect();
        let http = vec![((6, 6), (80, 80))];
        let both = vec![((6, 6), (80, 80)), ((6, 6), (443, 443))];
        assert_eq!(
            got,
            [
                ("10.0.0.0-10.0.255.255".into(), http.clone()),
                ("10.1.0.0-10.1.255.255".into(), both),
                ("10.2.0.0-10.255.255.255".into(), http),
            ]
        );
        let all = [(span("::/0"), with(6, 1)), (span("0.0.0.0/0"), with(6, 2))];
        assert_eq!(text(&[apart(Family::V6, &all)[0].0]), text(&[span("::/0")]));
        assert_eq!(text(&[apart(Family::V4, &all)[0].0]), "0.0.0.0-255.255.255.255");
    }
}
