//! Address families and CIDR blocks.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An IP address family. Allocators, nftables maps and routing tables exist once per family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both families, IPv4 first.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// `IPv4` or `IPv6`, as in `spec.ipFamilies` and `addressType`.
    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    /// The number of the family in netlink messages: `AF_INET` or `AF_INET6`, which are also
    /// `NFPROTO_IPV4` and `NFPROTO_IPV6`.
    pub fn number(self) -> u8 {
        match self {
            Self::V4 => 2,
            Self::V6 => 10,
        }
    }

    /// Size of an address in bytes.
    pub fn length(self) -> u8 {
        match self {
            Self::V4 => 4,
            Self::V6 => 16,
        }
    }

    /// Size of an address in bits.
    pub fn bits(self) -> u8 {
        self.length() * 8
    }

    /// The unspecified address, `0.0.0.0` or `::`.
    pub fn unspecified(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Self::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        }
    }
}

/// The bytes of an address in network order.
pub fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}

/// The address with these bytes in network order; `None` unless there are 4 or 16.
pub fn from_octets(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(four) = <[u8; 4]>::try_from(bytes) {
        return Some(IpAddr::from(four));
    }
    <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)
}

/// A CIDR block such as `10.42.0.0/16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    /// The lowest address: all host bits are zero.
    address: IpAddr,
    /// The prefix length in bits.
    prefix: u8,
}

/// Why a text is not a CIDR block.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not an address block such as 10.42.0.0/16")]
pub struct BadCidr(pub String);

/// Converts an address to the number that its bytes form, to calculate with addresses of both
/// families alike.
pub fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(a) => u128::from(u32::from(a)),
        IpAddr::V6(a) => u128::from(a),
    }
}

/// Converts a number from [`number`] back to an address of this family.
pub fn address(family: Family, number: u128) -> IpAddr {
    match family {
        // Only values below 2^32 reach this arm: they result from arithmetic within a V4 block.
        Family::V4 => IpAddr::V4(Ipv4Addr::from(u32::try_from(number).unwrap_or(u32::MAX))),
        Family::V6 => IpAddr::V6(Ipv6Addr::from(number)),
    }
}

impl Cidr {
    /// The block with a prefix of `prefix` bits that contains `ip`; host bits of `ip` are cleared.
    ///
    /// # Errors
    /// When the prefix is longer than the address.
    pub fn new(ip: IpAddr, prefix: u8) -> Result<Self, BadCidr> {
        let family = Family::of(ip);
        if prefix > family.bits() {
            return Err(BadCidr(format!("{ip}/{prefix}")));
        }
        let host_bits = u32::from(family.bits() - prefix);
        // `::/0` has 128 host bits, a shift that `>>` and `<<` do not support.
        let cleared =
            number(ip).checked_shr(host_bits).unwrap_or(0).checked_shl(host_bits).unwrap_or(0);
        Ok(Self { address: address(family, cleared), prefix })
    }

    /// The block that contains this address only.
    pub fn host(ip: IpAddr) -> Self {
        Self { address: ip, prefix: Family::of(ip).bits() }
    }

    /// The lowest address.
    pub fn first(&self) -> IpAddr {
        self.address
    }

    /// The highest address.
    pub fn last(&self) -> IpAddr {
        let host_bits = u32::from(self.family().bits() - self.prefix);
        // A block of one address has no host bits: the shift by 128 fails, and the mask is 0.
        let host_mask = u128::MAX.checked_shr(u128::BITS - host_bits).unwrap_or(0);
        address(self.family(), number(self.address) | host_mask)
    }

    /// The number of addresses; `u128::MAX` for `::/0`, which has one more.
    pub fn size(&self) -> u128 {
        1_u128.checked_shl(u32::from(self.family().bits() - self.prefix)).unwrap_or(u128::MAX)
    }

    /// The address at this index, counted from 0 at the lowest; `None` beyond the block.
    pub fn nth(&self, index: u128) -> Option<IpAddr> {
        (index < self.size())
            .then(|| address(self.family(), number(self.address).saturating_add(index)))
    }

    /// The index of an address, as for [`Cidr::nth`]; `None` outside of the block.
    pub fn index_of(&self, ip: IpAddr) -> Option<u128> {
        self.contains(ip).then(|| number(ip) - number(self.address))
    }

    /// The prefix length in bits.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// The address family.
    pub fn family(&self) -> Family {
        Family::of(self.address)
    }

    /// Parses a block, or an address as the block of it alone.
    ///
    /// # Errors
    /// The text is neither.
    pub fn of_block_or_address(text: &str) -> Result<Self, BadCidr> {
        match text.parse::<IpAddr>() {
            Ok(address) => Self::new(address, Family::of(address).bits()),
            Err(_) => text.parse(),
        }
    }

    /// Whether the block contains an address.
    pub fn contains(&self, ip: IpAddr) -> bool {
        Family::of(ip) == self.family()
            && Self::new(ip, self.prefix).is_ok_and(|block| block.address == self.address)
    }

    /// Whether both blocks have an address in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.address) || other.contains(self.address)
    }

    /// The bytes of the network mask in network order.
    pub fn mask(&self) -> Vec<u8> {
        let mut prefix_left = usize::from(self.prefix);
        (0..self.family().length())
            .map(|_| {
                let bits = prefix_left.min(8);
                prefix_left -= bits;
                // The low byte of 0xff00 shifted by `bits` begins with `bits` ones.
                u8::try_from(0xff00_u16 >> bits & 0xff).unwrap_or(0)
            })
            .collect()
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl FromStr for Cidr {
    type Err = BadCidr;

    fn from_str(text: &str) -> Result<Self, BadCidr> {
        let bad = || BadCidr(text.to_owned());
        let (ip, prefix) = text.trim().split_once('/').ok_or_else(bad)?;
        let ip: IpAddr = ip.parse().map_err(|_| bad())?;
        Self::new(ip, prefix.parse().map_err(|_| bad())?).map_err(|_| bad())
    }
}

impl Serialize for Cidr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cidr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_both_families_have_bounds_indexes_and_masks() {
        let four: Cidr = "10.42.3.7/24".parse().unwrap();
        assert_eq!(four.to_string(), "10.42.3.0/24");
        assert_eq!(four.last().to_string(), "10.42.3.255");
        assert_eq!(four.nth(1).unwrap().to_string(), "10.42.3.1");
        assert!(!four.contains("10.42.4.0".parse().unwrap()));
        assert_eq!("10.0.0.0/9".parse::<Cidr>().unwrap().mask(), [255, 128, 0, 0]);
        let six: Cidr = "fd00:42::/64".parse().unwrap();
        assert_eq!(six.last().to_string(), "fd00:42::ffff:ffff:ffff:ffff");
        assert_eq!(six.index_of("fd00:42::10".parse().unwrap()), Some(16));
        let all: Cidr = "::/0".parse().unwrap();
        assert!(all.contains("::1".parse().unwrap()) && !all.contains("1.1.1.1".parse().unwrap()));
        assert!(four.overlaps(&"10.0.0.0/8".parse().unwrap()) && !four.overlaps(&six));
        assert_eq!(four.nth(256), None);
        assert!("10.0.0.0/33".parse::<Cidr>().is_err() && "10.0.0.0".parse::<Cidr>().is_err());
    }
}
