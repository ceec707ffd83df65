//! Pools of virtual addresses: ranges such as `192.0.2.10-192.0.2.20`, blocks and single addresses.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::addr::{Cidr, Family, address, number};

/// Maximum number of addresses in a pool.
pub const POOL_MAX: u128 = 65_536;

/// A range of addresses of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressRange {
    first: IpAddr,
    last: IpAddr,
}

/// Why a text is not a range, or ranges are not a pool.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PoolError {
    /// Neither a range, a block nor an address.
    #[error(
        "{0:?} is not a range such as 192.0.2.10-192.0.2.20, a block such as 192.0.2.16/28 or an \
         address"
    )]
    Form(String),
    /// The ends have different families.
    #[error("{0:?} starts in one IP family and ends in the other")]
    Families(String),
    /// The last address is below the first.
    #[error("{0:?} ends before it starts")]
    Order(String),
    /// A block with host bits.
    #[error("{text:?} has host bits set, use {block}")]
    HostBits {
        /// The text.
        text: String,
        /// The block that contains it.
        block: Cidr,
    },
    /// An address that no machine can hold.
    #[error(
        "{0} cannot be held by a machine: it is unspecified, loopback, link-local or multicast"
    )]
    Unusable(IpAddr),
    /// Two ranges with a common address.
    #[error("{0} overlaps with {1}")]
    Overlap(AddressRange, AddressRange),
    /// Too many addresses.
    #[error("it has more than {POOL_MAX} addresses")]
    Size,
}

/// Whether a machine can hold the address next to its own.
fn is_usable(ip: IpAddr) -> bool {
    let is_special = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast() || ip.octets()[0] == 0,
        IpAddr::V6(ip) => ip.segments()[0] & 0xffc0 == 0xfe80,
    };
    !(is_special || ip.is_unspecified() || ip.is_loopback() || ip.is_multicast())
}

impl AddressRange {
    /// The lowest address.
    pub fn first(&self) -> IpAddr {
        self.first
    }

    /// The highest address.
    pub fn last(&self) -> IpAddr {
        self.last
    }

    /// The address family.
    pub fn family(&self) -> Family {
        Family::of(self.first)
    }

    /// The number of addresses; `u128::MAX` for all of IPv6.
    pub fn size(&self) -> u128 {
        (number(self.last) - number(self.first)).saturating_add(1)
    }

    /// Whether the range contains an address.
    pub fn contains(&self, ip: IpAddr) -> bool {
        Family::of(ip) == self.family() && self.first <= ip && ip <= self.last
    }

    /// Whether both have an address in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.family() == other.family() && self.first <= other.last && other.first <= self.last
    }

    /// Whether the range and the block have an address in common.
    pub fn overlaps_block(&self, block: &Cidr) -> bool {
        self.overlaps(&Self { first: block.first(), last: block.last() })
    }

    /// The addresses in ascending order.
    pub fn addresses(self) -> impl Iterator<Item = IpAddr> {
        let family = self.family();
        (number(self.first)..=number(self.last)).map(move |n| address(family, n))
    }
}

/// The hosts of a block: an IPv4 block with more than two addresses without its network address and
/// its broadcast address, which hosts of that network cannot use.
fn hosts(block: Cidr) -> AddressRange {
    let (first, last) = (block.first(), block.last());
    if block.family() == Family::V6 || block.size() <= 2 {
        return AddressRange { first, last };
    }
    let host = |n| address(Family::V4, n);
    AddressRange { first: host(number(first) + 1), last: host(number(last) - 1) }
}

impl FromStr for AddressRange {
    type Err = PoolError;

    fn from_str(text: &str) -> Result<Self, PoolError> {
        let form = || PoolError::Form(text.to_owned());
        let ip = |text: &str| text.trim().parse::<IpAddr>().map_err(|_| form());
        let range = if let Some((address, _)) = text.split_once('/') {
            let block: Cidr = text.parse().map_err(|_| form())?;
            if ip(address)? != block.first() {
                return Err(PoolError::HostBits { text: text.to_owned(), block });
            }
            hosts(block)
        } else if let Some((first, last)) = text.split_once('-') {
            Self { first: ip(first)?, last: ip(last)? }
        } else {
            let only = ip(text)?;
            Self { first: only, last: only }
        };
        if Family::of(range.first) != Family::of(range.last) {
            return Err(PoolError::Families(text.to_owned()));
        }
        if range.first > range.last {
            return Err(PoolError::Order(text.to_owned()));
        }
        match [range.first, range.last].into_iter().find(|ip| !is_usable(*ip)) {
            Some(ip) => Err(PoolError::Unusable(ip)),
            None => Ok(range),
        }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            return write!(f, "{}", self.first);
        }
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl Serialize for AddressRange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for AddressRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The addresses that Services of type LoadBalancer get (`--lb-pool`); empty without the flag.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AddressPool(Vec<AddressRange>);

impl AddressPool {
    /// The pool with these ranges, blocks and addresses.
    ///
    /// # Errors
    /// A text of another form, an overlap, or too many addresses.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, PoolError> {
        let mut ranges: Vec<AddressRange> = Vec::new();
        let mut size = 0_u128;
        for text in texts {
            let range: AddressRange = text.parse()?;
            if let Some(other) = ranges.iter().find(|other| other.overlaps(&range)) {
                return Err(PoolError::Overlap(range, *other));
            }
            size = size.saturating_add(range.size());
            ranges.push(range);
        }
        if size > POOL_MAX { Err(PoolError::Size) } else { Ok(Self(ranges)) }
    }

    /// Whether there is no address.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ranges in the order of the flag.
    pub fn ranges(&self) -> &[AddressRange] {
        &self.0
    }

    /// Whether the pool contains an address.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.0.iter().any(|range| range.contains(ip))
    }

    /// The addresses of a family in the order of the ranges.
    pub fn addresses(&self, family: Family) -> impl Iterator<Item = IpAddr> {
        self.0.iter().filter(move |range| range.family() == family).flat_map(|r| r.addresses())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(text: &str) -> u128 {
        text.parse::<AddressRange>().unwrap().size()
    }

    #[test]
    fn ranges_blocks_and_addresses_are_parsed() {
        for (text, shown, count) in [
            ("192.0.2.10-192.0.2.20", "192.0.2.10-192.0.2.20", 11),
            ("192.0.2.10 - 192.0.2.10", "192.0.2.10", 1),
            ("192.0.2.7", "192.0.2.7", 1),
            ("192.0.2.16/28", "192.0.2.17-192.0.2.30", 14),
            ("192.0.2.16/31", "192.0.2.16-192.0.2.17", 2),
            ("2001:db8::10/124", "2001:db8::10-2001:db8::1f", 16),
            ("2001:db8::1-2001:db8::3", "2001:db8::1-2001:db8::3", 3),
        ] {
            assert_eq!(text.parse::<AddressRange>().unwrap().to_string(), shown);
            assert_eq!(size(text), count, "{text}");
        }
        let range: AddressRange = "192.0.2.254-192.0.3.1".parse().unwrap();
        let all: Vec<String> = range.addresses().map(|ip| ip.to_string()).collect();
        assert_eq!(all, ["192.0.2.254", "192.0.2.255", "192.0.3.0", "192.0.3.1"]);
    }

    #[test]
    fn texts_that_are_no_pool_are_refused_with_the_reason() {
        for (texts, why) in [
            (&["192.0.2"][..], "is not a range such as"),
            (&["192.0.2.1-2001:db8::1"], "starts in one IP family"),
            (&["192.0.2.9-192.0.2.1"], "ends before it starts"),
            (&["192.0.2.17/28"], "has host bits set, use 192.0.2.16/28"),
            (&["192.0.2.0/33"], "is not a range such as"),
            (&["127.0.0.1"], "127.0.0.1 cannot be held"),
            (&["224.0.0.1-224.0.0.2"], "cannot be held"),
            (&["fe80::1"], "cannot be held"),
            (&["192.0.2.1-192.0.2.9", "192.0.2.8/30"], "192.0.2.9-192.0.2.10 overlaps with"),
            (&["10.0.0.0/8"], "more than 65536 addresses"),
            (&["2001:db8::/64"], "more than 65536 addresses"),
        ] {
            let error = AddressPool::parse(texts.iter().copied()).unwrap_err().to_string();
            assert!(error.contains(why), "{texts:?}: {error}");
        }
    }

    #[test]
    fn a_pool_has_both_families_and_is_the_same_after_json() {
        let pool = AddressPool::parse(["192.0.2.10-192.0.2.11", "2001:db8::1"]).unwrap();
        assert_eq!(pool.addresses(Family::V4).count(), 2);
        assert_eq!(pool.addresses(Family::V6).count(), 1);
        assert!(pool.contains("192.0.2.11".parse().unwrap()));
        assert!(!pool.contains("192.0.2.12".parse().unwrap()));
        let text = serde_json::to_string(&pool).unwrap();
        assert_eq!(text, r#"["192.0.2.10-192.0.2.11","2001:db8::1"]"#);
        assert_eq!(serde_json::from_str::<AddressPool>(&text).unwrap(), pool);
        assert!(pool.ranges()[0].overlaps_block(&"192.0.2.8/30".parse().unwrap()));
        assert!(!pool.ranges()[0].overlaps_block(&"192.0.2.0/29".parse().unwrap()));
    }
}
