//! Address ranges such as `10.43.0.0/16`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// An address range; the address is the first of the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cidr {
    first: IpAddr,
    prefix: u8,
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(u32::from(ip)),
        IpAddr::V6(ip) => u128::from(ip),
    }
}

impl Cidr {
    fn bits(self) -> u8 {
        if self.first.is_ipv4() { 32 } else { 128 }
    }

    fn mask(self) -> u128 {
        let host = u32::from(self.bits() - self.prefix);
        u128::MAX.checked_shl(host).unwrap_or(0)
    }

    /// The family.
    pub fn is_ipv4(&self) -> bool {
        self.first.is_ipv4()
    }

    /// The address lies in the range.
    pub fn contains(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.is_ipv4() && number(ip) & self.mask() == number(self.first)
    }

    /// Both have an address in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.first) || other.contains(self.first)
    }

    /// The `n`th address, counted from 0; `None` beyond the range.
    pub fn nth(&self, n: u32) -> Option<IpAddr> {
        let value = number(self.first).checked_add(u128::from(n))?;
        let ip = match self.first {
            IpAddr::V4(_) => IpAddr::V4(u32::try_from(value).ok()?.into()),
            IpAddr::V6(_) => IpAddr::V6(value.into()),
        };
        self.contains(ip).then_some(ip)
    }
}

impl FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (ip, prefix) = text.split_once('/').ok_or("must be ADDRESS/BITS")?;
        let ip: IpAddr = ip.trim().parse().map_err(|_| format!("{ip:?} is no address"))?;
        let bits = if ip.is_ipv4() { 32 } else { 128 };
        let prefix = prefix
            .trim()
            .parse::<u8>()
            .ok()
            .filter(|p| *p <= bits)
            .ok_or(format!("the number of bits must be 0 to {bits}"))?;
        let cidr = Self { first: ip, prefix };
        if number(ip) & cidr.mask() != number(ip) {
            return Err("the address has bits behind the prefix".into());
        }
        Ok(cidr)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_parsed_and_counted() {
        let range: Cidr = "10.43.0.0/16".parse().unwrap();
        assert_eq!(range.nth(10).unwrap().to_string(), "10.43.0.10");
        assert_eq!(range.nth(70000), None);
        let six: Cidr = "fd00:43::/112".parse().unwrap();
        assert_eq!(six.nth(1).unwrap().to_string(), "fd00:43::1");
        assert!(range.overlaps(&"10.0.0.0/8".parse().unwrap()));
        assert!(!range.overlaps(&six));
        for wrong in ["10.43.0.1/16", "10.43.0.0", "10.43.0.0/33", "x/8"] {
            assert!(wrong.parse::<Cidr>().is_err(), "{wrong}");
        }
    }
}
