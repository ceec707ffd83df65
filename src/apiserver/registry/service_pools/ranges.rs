//! Ranges of Service addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses that are tried at random before the range is walked through.
pub(crate) const RANDOM_TRIES: u32 = 256;

/// Why a text is not a range of Service addresses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// It is not in CIDR notation.
    #[error("service range {0:?} is no network such as 10.43.0.0/16")]
    Malformed(String),
    /// It has fewer addresses than a cluster needs.
    #[error("service range {0:?} is too small: it needs at least 8 addresses")]
    TooSmall(String),
    /// It has no address besides its edges.
    #[error("service range {0:?} holds no address to give")]
    Empty(String),
}

/// Why an address cannot be allocated from a range; the texts are those of upstream's
/// `ipallocator`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AddressError {
    /// It is an address of another network.
    #[error("the provided network does not match the current range")]
    OtherNetwork,
    /// It is at an edge of the range.
    #[error(
        "the provided IP ({address}) is not in the valid range. The range of valid IPs is {range}"
    )]
    OutOfRange { address: IpAddr, range: String },
}

/// One range, without its first address and, for IPv4, its last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Range {
    v4: bool,
    base: u128,
    /// Addresses of the whole block.
    size: u128,
    text: String,
}

/// Addresses of a range that are allocated without a request; the rest of a larger IPv6 range is
/// allocated only on request.
const DRAWN_MAX: u128 = 1 << 64;

impl Range {
    /// How many addresses can be allocated without a request.
    pub(crate) fn capacity(&self) -> u128 {
        self.size.min(DRAWN_MAX) - if self.v4 { 2 } else { 1 }
    }

    /// In CIDR notation.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Parses CIDR notation.
    ///
    /// # Errors
    /// When the text is not a network of at least 8 addresses.
    pub(crate) fn parse(text: &str) -> Result<Self, RangeError> {
        let range = Self::of_any_size(text)?;
        match range.size {
            0..8 => Err(RangeError::TooSmall(text.to_owned())),
            _ => Ok(range),
        }
    }

    /// Parses the CIDR notation of a `ServiceCIDR`, which may hold as little as one allocatable
    /// address.
    ///
    /// # Errors
    /// When the text is not a network with an allocatable address.
    pub(crate) fn of_any_size(text: &str) -> Result<Self, RangeError> {
        let bad = || RangeError::Malformed(text.to_owned());
        let (address, bits) = text.split_once('/').ok_or_else(bad)?;
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let bits: u32 = bits.parse().map_err(|_| bad())?;
        let (v4, width, number) = match address {
            IpAddr::V4(a) => (true, 32, u128::from(u32::from(a))),
            IpAddr::V6(a) => (false, 128, u128::from(a)),
        };
        if bits == 0 || bits > width {
            return Err(bad());
        }
        let size = 1_u128.checked_shl(width - bits).ok_or_else(bad)?;
        if size < 3 {
            return Err(RangeError::Empty(text.to_owned()));
        }
        Ok(Self { v4, base: number & !(size - 1), size, text: text.to_owned() })
    }

    /// `IPv4` or `IPv6`.
    pub(crate) fn family(&self) -> &'static str {
        if self.v4 { "IPv4" } else { "IPv6" }
    }

    /// Whether an address lies in the block, allocatable or not.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let number = Self::number(address);
        address.is_ipv4() == self.v4 && number >= self.base && number - self.base < self.size
    }

    fn number(address: IpAddr) -> u128 {
        match address {
            IpAddr::V4(a) => u128::from(u32::from(a)),
            IpAddr::V6(a) => u128::from(a),
        }
    }

    /// Checks that an address is allocatable.
    ///
    /// # Errors
    /// When the address is outside the block or at its edge.
    pub(crate) fn check(&self, address: IpAddr) -> Result<(), AddressError> {
        if !self.contains(address) {
            return Err(AddressError::OtherNetwork);
        }
        let offset = Self::number(address) - self.base;
        if offset == 0 || (self.v4 && offset == self.size - 1) {
            return Err(self.out_of_range(address));
        }
        Ok(())
    }

    /// The error of an address that is not allocatable; in a dry run also that of an address of
    /// another network.
    pub(crate) fn out_of_range(&self, address: IpAddr) -> AddressError {
        AddressError::OutOfRange { address, range: self.text.clone() }
    }

    /// An address to try: at random from the upper part first, because users choose from the lower
    /// (`calculateRangeOffset` of `pkg/registry/core/service/ipallocator`).
    pub(crate) fn candidate(&self, attempt: u32, random: u64) -> IpAddr {
        let usable = self.capacity();
        let reserved = (self.size / 16).clamp(16, 256).min(usable / 2);
        let random = u128::from(random);
        let offset = if attempt < RANDOM_TRIES {
            reserved + random % (usable - reserved)
        } else {
            (random + u128::from(attempt)) % usable
        };
        let number = self.base + 1 + offset;
        // Numbers of an IPv4 range fit 32 bits by construction.
        if self.v4 {
            IpAddr::V4(Ipv4Addr::from(u32::try_from(number).unwrap_or_default()))
        } else {
            IpAddr::V6(Ipv6Addr::from(number))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_inside_the_range_and_never_its_edges() {
        let range = Range::parse("10.96.0.0/16").unwrap();
        for attempt in [0, 300] {
            for random in [0, 1, 65_533, u64::MAX] {
                let address = range.candidate(attempt, random);
                assert_eq!(range.check(address), Ok(()), "{address}");
            }
        }
        assert!(range.check("10.96.0.0".parse().unwrap()).is_err());
        assert!(range.check("10.96.255.255".parse().unwrap()).is_err());
        assert_eq!(
            range.check("1.2.3.4".parse().unwrap()).unwrap_err(),
            AddressError::OtherNetwork
        );
        assert_eq!(
            range.out_of_range("10.0.0.1".parse().unwrap()).to_string(),
            "the provided IP (10.0.0.1) is not in the valid range. The range of valid IPs is 10.96.0.0/16"
        );
        assert!(Range::parse("10.96.0.0/33").is_err());
        assert!(
            Range::parse("10.96.0.0/30").is_err() && Range::of_any_size("10.96.0.0/32").is_err()
        );
        let small = Range::of_any_size("10.96.0.0/30").unwrap();
        let mut all: Vec<String> = (256..264).map(|n| small.candidate(n, 9).to_string()).collect();
        all.sort();
        all.dedup();
        assert_eq!(all, ["10.96.0.1", "10.96.0.2"], "later tries pass over every address");
        let six = Range::parse("fd00::/108").unwrap();
        assert_eq!(six.check(six.candidate(0, 5)), Ok(()));
    }
}
