//! IP prefixes: what is inside what, and how one is cut into smaller ones.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::str::FromStr;

/// An IP network in CIDR notation, its host bits cleared. Ordered by family, address and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Prefix {
    v4: bool,
    /// The address as a number, in the low 32 bits for IPv4.
    base: u128,
    length: u8,
}

fn number(address: IpAddr) -> (u128, bool) {
    match address {
        IpAddr::V4(v4) => (u128::from(v4.to_bits()), true),
        IpAddr::V6(v6) => (v6.to_bits(), false),
    }
}

impl Prefix {
    fn width(&self) -> u8 {
        if self.v4 { 32 } else { 128 }
    }

    fn mask(width: u8, length: u8) -> u128 {
        let all = if width == 32 { u128::from(u32::MAX) } else { u128::MAX };
        all.checked_shr(u32::from(length)).map_or(all, |host| all & !host)
    }

    /// Whether this is an IPv4 network.
    pub(crate) fn is_v4(&self) -> bool {
        self.v4
    }

    /// Whether the address lies in it.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let (bits, v4) = number(address);
        v4 == self.v4 && bits & Self::mask(self.width(), self.length) == self.base
    }

    /// Whether `other` lies in it; a network lies in itself.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.v4 == other.v4
            && self.length <= other.length
            && other.base & Self::mask(self.width(), self.length) == self.base
    }

    /// Number of bits that all of its addresses have in common.
    pub(crate) fn length(&self) -> u8 {
        self.length
    }

    /// The network of the shorter `length` that covers it.
    pub(crate) fn widened(&self, length: u8) -> Self {
        let length = length.min(self.length);
        Self { base: self.base & Self::mask(self.width(), length), length, ..*self }
    }

    /// The first and the last network, in their order, whose first address lies in it.
    pub(crate) fn extent(&self) -> RangeInclusive<Self> {
        let last = self.base | !Self::mask(self.width(), self.length);
        let last = last & Self::mask(self.width(), self.width());
        Self { length: 0, ..*self }..=Self { base: last, length: u8::MAX, ..*self }
    }

    /// How many networks of `length` it holds: at least one, `u64::MAX` at most.
    pub(crate) fn count(&self, length: u8) -> u64 {
        1_u64.checked_shl(u32::from(length.saturating_sub(self.length))).unwrap_or(u64::MAX)
    }

    /// The network number `index` of `length` in it (itself when it is no larger); `None` beyond
    /// [`Prefix::count`].
    pub(crate) fn subnet(&self, length: u8, index: u64) -> Option<Self> {
        let length = length.max(self.length).min(self.width());
        let step = u128::from(index).checked_shl(u32::from(self.width() - length));
        let base = if index == 0 { self.base } else { self.base.checked_add(step?)? };
        (index < self.count(length)).then_some(Self { base, length, v4: self.v4 })
    }
}

/// A text is not an IP network in CIDR notation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no network in CIDR notation")]
pub(crate) struct InvalidPrefix(String);

impl FromStr for Prefix {
    type Err = InvalidPrefix;

    fn from_str(text: &str) -> Result<Self, InvalidPrefix> {
        let bad = || InvalidPrefix(text.to_owned());
        let (address, length) = text.split_once('/').ok_or_else(bad)?;
        let (bits, v4) = number(address.parse().map_err(|_| bad())?);
        let length: u8 = length.parse().map_err(|_| bad())?;
        let width = if v4 { 32 } else { 128 };
        if length > width {
            return Err(bad());
        }
        Ok(Self { base: bits & Self::mask(width, length), length, v4 })
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = match u32::try_from(self.base) {
            Ok(bits) if self.v4 => IpAddr::V4(Ipv4Addr::from_bits(bits)),
            Ok(_) | Err(_) => IpAddr::V6(Ipv6Addr::from_bits(self.base)),
        };
        write!(f, "{address}/{}", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn p(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    #[test]
    fn networks_are_cut_in_order() {
        assert_eq!(p("10.42.0.0/16").subnet(24, 3).unwrap().to_string(), "10.42.3.0/24");
        assert_eq!(p("10.42.0.0/16").subnet(24, 256), None);
        assert_eq!(p("fd00:42::/56").subnet(64, 255).unwrap().to_string(), "fd00:42:0:ff::/64");
        assert_eq!(p("10.0.0.0/26").subnet(24, 0).unwrap().to_string(), "10.0.0.0/26");
        assert_eq!(p("10.0.0.0/26").subnet(24, 1), None);
        assert_eq!(p("::/0").subnet(64, 1).unwrap().to_string(), "0:0:0:1::/64");
    }

    #[test]
    fn the_extent_of_a_network_has_all_that_begin_in_it() {
        for text in ["10.0.0.0/8", "0.0.0.0/0", "10.255.255.255/32", "fd00::/48", "::/0"] {
            let (network, extent) = (p(text), p(text).extent());
            assert!(extent.contains(&network), "{text}");
            assert_eq!(
                extent.contains(&p("10.255.255.255/32")),
                network.covers(&p("10.255.255.255/32"))
            );
            assert_eq!(extent.contains(&p("fd00::ffff/128")), network.covers(&p("fd00::ffff/128")));
        }
        assert_eq!(p("10.1.2.0/24").widened(8), p("10.0.0.0/8"));
    }

    #[test]
    fn families_never_mix() {
        assert!(p("10.43.0.0/16").contains("10.43.255.1".parse().unwrap()));
        assert!(!p("0.0.0.0/0").contains("::1".parse().unwrap()));
        assert!(p("0.0.0.0/0").covers(&p("10.0.0.0/8")));
        assert!(!p("10.0.0.0/8").covers(&p("0.0.0.0/0")));
        assert!("10.0.0.0/33".parse::<Prefix>().is_err() && "x/8".parse::<Prefix>().is_err());
    }
}
