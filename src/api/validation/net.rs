//! Parsing and validation of IP addresses and CIDRs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::field::{Error, ErrorList, Path};

const BAD_IP: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
const BAD_CIDR: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
const LEADING_ZERO: &str = "must not have leading 0s";
const MAPPED: &str = "must not be an IPv4-mapped IPv6 address";

/// Parses an IP address as `ParseIPSloppy` of `k8s.io/utils/net` does: it accepts leading zeros in
/// IPv4 octets and reads these octets as decimal numbers.
pub fn sloppy_ip(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address);
    }
    let parts: Vec<&str> = text.split('.').collect();
    let digits = |p: &&str| (1..=16).contains(&p.len()) && p.bytes().all(|b| b.is_ascii_digit());
    if parts.len() != 4 || !parts.iter().all(digits) {
        return None;
    }
    let mut octets = [0_u8; 4];
    for (octet, part) in octets.iter_mut().zip(parts) {
        *octet = part.parse::<u64>().ok().and_then(|v| u8::try_from(v).ok())?;
    }
    Some(IpAddr::V4(Ipv4Addr::from(octets)))
}

/// Reports whether the address is an IPv6 address that is not an IPv4-mapped one.
pub fn is_v6(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_none())
}

/// Validates an IP address in a field that predates strict validation (`IsValidIPForLegacyField`).
/// Values in `known`, which are those of the old object, are accepted.
pub fn legacy_ip(field: &Path, value: &str, known: &[&str]) -> ErrorList {
    let bad = match sloppy_ip(value) {
        None => BAD_IP,
        Some(_) if value.parse::<IpAddr>().is_err() => LEADING_ZERO,
        Some(IpAddr::V6(v6)) if v6.to_ipv4_mapped().is_some() => MAPPED,
        Some(_) => return Vec::new(),
    };
    // `known` is searched only for an invalid value, because the list may be long.
    if known.contains(&value) { Vec::new() } else { vec![Error::invalid(field, value, bad)] }
}

/// Validates an IP address in canonical form (`IsValidIP`).
pub fn strict_ip(field: &Path, value: &str) -> ErrorList {
    let errors = legacy_ip(field, value, &[]);
    match (errors.is_empty(), sloppy_ip(value)) {
        (true, Some(address)) if address.to_string() != value => {
            vec![Error::invalid(field, value, format!("must be in canonical form (\"{address}\")"))]
        }
        _ => errors,
    }
}

/// Parses a CIDR into its address and prefix length. It accepts leading zeros in both and bits
/// beyond the prefix length (`ParseCIDRSloppy`).
pub fn sloppy_cidr(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = text.split_once('/')?;
    let address = sloppy_ip(address)?;
    if length.is_empty() || !length.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let length: u8 = length.parse().ok()?;
    (length <= if address.is_ipv4() { 32 } else { 128 }).then_some((address, length))
}

/// Validates the address of a network interface: an address in canonical form with a prefix length
/// (`IsValidInterfaceAddress`).
pub fn interface_address(field: &Path, value: &str) -> ErrorList {
    let Some((address, length)) = sloppy_cidr(value) else {
        let text = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
        return vec![Error::invalid(field, value, text)];
    };
    let canonical = match address {
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => format!("{v4}/{}", length.saturating_sub(96)),
            None => format!("{v6}/{length}"),
        },
        IpAddr::V4(v4) => format!("{v4}/{length}"),
    };
    if value == canonical {
        return Vec::new();
    }
    vec![Error::invalid(field, value, format!("must be in canonical form (\"{canonical}\")"))]
}

/// Returns the address with all bits beyond the prefix length set to zero.
pub fn masked(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from(u32::from(v4) & mask))
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from(u128::from(v6) & mask))
        }
    }
}

/// Validates a CIDR in a field that predates strict validation (`IsValidCIDRForLegacyField`).
/// Values in `known`, which are those of the old object, are accepted.
pub fn legacy_cidr(field: &Path, value: &str, known: &[&str]) -> ErrorList {
    if known.contains(&value) {
        return Vec::new();
    }
    let Some((address, length)) = sloppy_cidr(value) else {
        return vec![Error::invalid(field, value, BAD_CIDR)];
    };
    let mut errors = ErrorList::new();
    let (text, digits) = value.split_once('/').unwrap_or((value, ""));
    if text.parse::<IpAddr>().is_err() || (digits.len() > 1 && digits.starts_with('0')) {
        errors.push(Error::invalid(
            field,
            value,
            "must not have leading 0s in IP or prefix length",
        ));
    } else if matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some()) {
        errors.push(Error::invalid(field, value, "must not have an IPv4-mapped IPv6 address"));
    } else if masked(address, length) != address {
        let text = "must not have bits set beyond the prefix length";
        errors.push(Error::invalid(field, value, text));
    }
    errors
}

/// Returns the warning for an address that is accepted but not in the standard form
/// (`GetWarningsForIP`).
pub fn ip_warning(field: &Path, value: &str) -> Option<String> {
    let address = sloppy_ip(value)?;
    let mapped = matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    if value.parse::<IpAddr>().is_err() || mapped {
        let plain = match address {
            IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
            v4 => v4,
        };
        return Some(format!(
            "{field}: non-standard IP address \"{value}\" is invalid: use \"{plain}\""
        ));
    }
    let canonical = address.to_string();
    (address.is_ipv6() && canonical != value)
        .then(|| format!("{field}: IPv6 address \"{value}\" should be in RFC 5952 canonical format (\"{canonical}\")"))
}

/// Returns the warnings for a CIDR that is accepted but not in the standard form
/// (`GetWarningsForCIDR`).
pub fn cidr_warnings(field: &Path, value: &str) -> Vec<String> {
    let Some((address, length)) = sloppy_cidr(value) else { return Vec::new() };
    let (text, digits) = value.split_once('/').unwrap_or((value, ""));
    let network = masked(address, length);
    let mut list = Vec::new();
    if network != address {
        let whole = if address.is_ipv4() { 32 } else { 128 };
        list.push(format!(
            "{field}: CIDR value \"{value}\" is ambiguous in this context (should be \"{network}/{length}\" or \"{address}/{whole}\"?)"
        ));
    }
    let odd = text.parse::<IpAddr>().is_err() || (digits.len() > 1 && digits.starts_with('0'));
    if odd || matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some()) {
        list.push(format!(
            "{field}: non-standard CIDR value \"{value}\" is invalid: use \"{network}/{length}\""
        ));
    }
    let canonical = format!("{address}/{length}");
    if list.is_empty() && address.is_ipv6() && canonical != value {
        list.push(format!(
            "{field}: IPv6 CIDR value \"{value}\" should be in RFC 5952 canonical format (\"{canonical}\")"
        ));
    }
    list
}

/// Rejects addresses that an endpoint or an external IP cannot have (`ValidateEndpointIP`). An
/// IPv4-mapped IPv6 address is validated as an IPv4 address, as in Go.
pub fn special_address(field: &Path, value: &str, address: &IpAddr) -> ErrorList {
    let address = &address.to_canonical();
    let mut errors = ErrorList::new();
    let mut add = |text: &str| errors.push(Error::invalid(field, value, text));
    if address.is_unspecified() {
        add(&format!("may not be unspecified ({value})"));
    }
    if address.is_loopback() {
        add("may not be in the loopback range (127.0.0.0/8, ::1/128)");
    }
    let (link_local, multicast) = match address {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(v6) => (v6.is_unicast_link_local(), v6.segments()[0] & 0xff0f == 0xff02),
    };
    if link_local {
        add("may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    }
    if multicast {
        add("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)");
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C2.2: CVE-2021-25737: the address of an endpoint is not a loopback, link-local or metadata
    /// service address.
    #[test]
    fn special_addresses_are_no_endpoints() {
        let path = Path::new("ip");
        for (ip, want) in [
            ("127.0.0.1", "loopback"),
            ("::1", "loopback"),
            ("::ffff:127.0.0.1", "loopback"),
            ("169.254.169.254", "link-local range"),
            ("::ffff:169.254.169.254", "link-local range"),
            ("fe80::1", "link-local range"),
            ("224.0.0.1", "multicast"),
            ("ff02::1", "multicast"),
            ("0.0.0.0", "unspecified"),
            ("::", "unspecified"),
        ] {
            let errors = special_address(&path, ip, &ip.parse().unwrap());
            assert!(errors.iter().any(|e| e.detail.contains(want)), "{ip}");
        }
        assert!(special_address(&path, "10.0.0.1", &"10.0.0.1".parse().unwrap()).is_empty());
    }

    #[test]
    fn strictness_follows_the_field() {
        let path = Path::new("ip");
        assert!(legacy_ip(&path, "10.0.0.1", &[]).is_empty());
        assert_eq!(legacy_ip(&path, "010.0.0.1", &[])[0].detail, LEADING_ZERO);
        assert!(legacy_ip(&path, "010.0.0.1", &["010.0.0.1"]).is_empty());
        assert_eq!(legacy_ip(&path, "x", &[])[0].detail, BAD_IP);
        assert_eq!(
            cidr_warnings(&path, "10.1.2.3/16"),
            [
                "ip: CIDR value \"10.1.2.3/16\" is ambiguous in this context (should be \"10.1.0.0/16\" or \"10.1.2.3/32\"?)"
            ]
        );
        assert_eq!(
            cidr_warnings(&path, "2001:DB8::/32"),
            [
                "ip: IPv6 CIDR value \"2001:DB8::/32\" should be in RFC 5952 canonical format (\"2001:db8::/32\")"
            ]
        );
        assert!(cidr_warnings(&path, "10.1.0.0/16").is_empty());
        // `IsValidCIDR` of apimachinery returns one of its three errors, without a hint.
        let told = |cidr: &str| {
            legacy_cidr(&path, cidr, &[]).into_iter().map(|e| e.detail).collect::<Vec<_>>()
        };
        assert_eq!(told("10.200.0.0/2"), ["must not have bits set beyond the prefix length"]);
        assert_eq!(told("10.1.2.3/016"), ["must not have leading 0s in IP or prefix length"]);
        assert_eq!(masked("10.1.2.3".parse().unwrap(), 16).to_string(), "10.1.0.0");
    }
}
