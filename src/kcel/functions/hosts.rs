//! Functions of the Kubernetes libraries.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::{exactly, text};
use crate::formats;
use crate::host::{AuthorizerQuery, Host, Kind, Quantity, Stage, Url, Version};
use crate::node::Call;
use crate::value::{Error, Key, Map, Text, Value};

type Result<T> = std::result::Result<T, Error>;

fn host<'a>(kind: Kind) -> Value<'a> {
    Value::Host(Host(kind))
}

fn kind<'s>(value: &'s Value<'_>) -> Result<&'s Kind> {
    match value {
        Value::Host(Host(kind)) => Ok(kind),
        _ => Err(Error::no_overload()),
    }
}

pub(super) fn call<'a>(call: &Call, args: &[Value<'a>]) -> Option<Result<Value<'a>>> {
    let name = call.function.as_str();
    Some(match name {
        "ip"
        | "isIP"
        | "ip.isCanonical"
        | "family"
        | "isUnspecified"
        | "isLoopback"
        | "isLinkLocalMulticast"
        | "isLinkLocalUnicast"
        | "isGlobalUnicast" => address(name, args),
        "cidr" | "isCIDR" | "containsIP" | "containsCIDR" | "masked" | "prefixLength" => {
            network(name, args)
        }
        "url" | "isURL" | "getScheme" | "getHost" | "getHostname" | "getPort"
        | "getEscapedPath" | "getQuery" => url(name, args),
        "quantity" | "isQuantity" | "sign" | "asInteger" | "isInteger" | "asApproximateFloat"
        | "add" | "sub" => quantity(name, args),
        "semver" | "isSemver" | "major" | "minor" | "patch" => semver(name, args),
        "compareTo" | "isGreaterThan" | "isLessThan" => compare(name, args),
        "serviceAccount" | "path" | "group" | "resource" | "subresource" | "namespace" | "name"
        | "fieldSelector" | "labelSelector" | "check" => ask(name, args),
        "allowed" | "reason" | "error" | "errored" => decision(name, args),
        "validate" => validate(args),
        name if name.starts_with("format.") => format(name, args),
        _ => return None,
    })
}

/// Evaluates `format.named(name)` or a function that returns a format.
fn format<'a>(name: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    let of = |name: &str| formats::named(name).map(|format| host(Kind::Format(format)));
    match (name.trim_start_matches("format."), args) {
        ("named", [name]) => Ok(of(text(name)?).map_or(Value::Optional(None), Value::some)),
        (name, []) => of(name).ok_or_else(Error::no_overload),
        _ => Err(Error::no_overload()),
    }
}

/// Returns the errors of a text, if any.
fn validate<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [format, value] = exactly::<2>(args)?;
    let Kind::Format(format) = kind(format)? else { return Err(Error::no_overload()) };
    let faults = format.faults(text(value)?);
    if faults.is_empty() {
        return Ok(Value::Optional(None));
    }
    let texts = faults.into_iter().map(Value::text);
    Ok(Value::list(texts.collect()).some())
}

fn parse_ip(raw: &str) -> Result<IpAddr> {
    if raw.contains('%') && raw.contains(':') {
        let message = format!("IP address {raw:?} with zone value is not allowed");
        return Err(Error::new(message));
    }
    let address: IpAddr = raw.parse().map_err(|_| {
        Error::new(format!(
            "IP Address {raw:?} parse error during conversion from string: {}",
            ip_fault(raw)
        ))
    })?;
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            Err(Error::new(format!("IPv4-mapped IPv6 address {raw:?} is not allowed")))
        }
        address => Ok(address),
    }
}

/// Returns the text of Go's `netip.ParseAddr` for the most common errors.
fn ip_fault(raw: &str) -> String {
    let why = if raw.contains(':') {
        "unable to parse IP"
    } else if raw.contains('.') {
        let parts: Vec<&str> = raw.split('.').collect();
        if parts.iter().any(|part| part.bytes().any(|c| !c.is_ascii_digit())) {
            "unexpected character"
        } else if parts.len() < 4 {
            "IPv4 address too short"
        } else if parts.len() > 4 {
            "IPv4 address too long"
        } else if parts.iter().any(|part| part.is_empty()) {
            "IPv4 field must have at least one digit"
        } else if parts.iter().any(|part| part.len() > 1 && part.starts_with('0')) {
            "IPv4 field has octet with leading zero"
        } else {
            "IPv4 field has value >255"
        }
    } else {
        "unable to parse IP"
    };
    format!("ParseAddr({raw:?}): {why}")
}

fn address<'a>(name: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    let [value] = exactly::<1>(args)?;
    if let ("ip", Value::Host(Host(Kind::Cidr(address, _)))) = (name, value) {
        return Ok(host(Kind::Ip(*address)));
    }
    match name {
        "ip" => return Ok(host(Kind::Ip(parse_ip(text(value)?)?))),
        "isIP" => return Ok(Value::Bool(parse_ip(text(value)?).is_ok())),
        "ip.isCanonical" => {
            let raw = text(value)?;
            return Ok(Value::Bool(parse_ip(raw)?.to_string() == raw));
        }
        _ => {}
    }
    let Kind::Ip(address) = kind(value)? else { return Err(Error::no_overload()) };
    Ok(match name {
        "family" => Value::Int(if address.is_ipv4() { 4 } else { 6 }),
        "isUnspecified" => Value::Bool(address.is_unspecified()),
        "isLoopback" => Value::Bool(address.is_loopback()),
        "isLinkLocalMulticast" => Value::Bool(match address {
            IpAddr::V4(v4) => v4.octets().starts_with(&[224, 0, 0]),
            IpAddr::V6(v6) => v6.segments().first().is_some_and(|s| s & 0xff0f == 0xff02),
        }),
        "isLinkLocalUnicast" => Value::Bool(is_link_local(address)),
        _ => Value::Bool(is_global(address)),
    })
}

fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.segments().first().is_some_and(|s| s & 0xffc0 == 0xfe80),
    }
}

/// As in Go, private addresses are global unicast, too.
fn is_global(address: &IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    !(broadcast
        || address.is_unspecified()
        || address.is_loopback()
        || address.is_multicast()
        || is_link_local(address))
}

fn parse_cidr(raw: &str) -> Result<(IpAddr, u8)> {
    let fault = |why: &str| {
        Error::new(format!(
            "network address parse error during conversion from string: netip.ParsePrefix({raw:?}): {why}"
        ))
    };
    let (address, bits) = raw.rsplit_once('/').ok_or_else(|| fault("no '/'"))?;
    let address: IpAddr = match address.parse() {
        Ok(address) => address,
        Err(_) if address.contains('%') => {
            return Err(fault("IPv6 zones cannot be present in a prefix"));
        }
        Err(_) => return Err(fault(&ip_fault(address))),
    };
    let written = bits.bytes().all(|c| c.is_ascii_digit())
        && !bits.is_empty()
        && (bits.len() == 1 || !bits.starts_with('0'));
    if !written {
        return Err(fault(&format!("bad bits after slash: {bits:?}")));
    }
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.parse::<u8>().ok().filter(|bits| *bits <= most);
    let bits = bits.ok_or_else(|| fault("prefix length out of range"))?;
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            Err(Error::new(format!("IPv4-mapped IPv6 address {raw:?} is not allowed")))
        }
        address => Ok((address, bits)),
    }
}

/// Returns an address with all bits but the first ones set to zero.
fn masked(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from(u32::from(v4) & mask))
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits.min(128))).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from(u128::from(v6) & mask))
        }
    }
}

fn network<'a>(name: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    match (name, args) {
        ("cidr", [raw]) => {
            let (address, bits) = parse_cidr(text(raw)?).map_err(|error| {
                Error::new(format!(
                    "network address parse error during conversion from string: {error}"
                ))
            })?;
            return Ok(host(Kind::Cidr(address, bits)));
        }
        ("isCIDR", [raw]) => return Ok(Value::Bool(parse_cidr(text(raw)?).is_ok())),
        _ => {}
    }
    let (Some(first), other) = (args.first(), args.get(1)) else {
        return Err(Error::no_overload());
    };
    let Kind::Cidr(address, bits) = kind(first)? else { return Err(Error::no_overload()) };
    let (address, bits) = (*address, *bits);
    match (name, other) {
        ("masked", None) => Ok(host(Kind::Cidr(masked(address, bits), bits))),
        ("prefixLength", None) => Ok(Value::Int(i64::from(bits))),
        ("containsIP", Some(other)) => {
            // Upstream has no more specific text for an invalid address.
            let other = match other {
                Value::String(raw) => parse_ip(raw).map_err(|_| Error::no_overload())?,
                other => match kind(other)? {
                    Kind::Ip(address) => *address,
                    _ => return Err(Error::no_overload()),
                },
            };
            Ok(Value::Bool(same_network(address, other, bits)))
        }
        ("containsCIDR", Some(other)) => {
            let (other, length) = match other {
                Value::String(raw) => {
                    let read = parse_cidr(raw);
                    read.map_err(|error| {
                        Error::new(format!(
                            "network address parse error during conversion from string: {error}"
                        ))
                    })?
                }
                other => match kind(other)? {
                    Kind::Cidr(address, bits) => (*address, *bits),
                    _ => return Err(Error::no_overload()),
                },
            };
            Ok(Value::Bool(bits <= length && same_network(address, other, bits)))
        }
        _ => Err(Error::no_overload()),
    }
}

fn same_network(one: IpAddr, other: IpAddr, bits: u8) -> bool {
    one.is_ipv4() == other.is_ipv4() && masked(one, bits) == masked(other, bits)
}

fn url<'a>(name: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    let [value] = exactly::<1>(args)?;
    match name {
        "isURL" => return Ok(Value::Bool(Url::parse(text(value)?).is_ok())),
        "url" => {
            let url = Url::parse(text(value)?).map_err(|error| {
                Error::new(format!("URL parse error during conversion from string: {error}"))
            })?;
            return Ok(host(Kind::Url(Arc::new(url))));
        }
        _ => {}
    }
    let Kind::Url(url) = kind(value)? else { return Err(Error::no_overload()) };
    Ok(match name {
        "getScheme" => Value::text(url.scheme.as_str()),
        "getHost" => Value::text(url.host.as_str()),
        "getHostname" => Value::text(url.hostname()),
        "getPort" => Value::text(url.port()),
        "getEscapedPath" => Value::text(url.escaped_path()),
        _ => {
            let mut values: BTreeMap<String, Vec<Value<'a>>> = BTreeMap::new();
            for (name, value) in url.query() {
                values.entry(name).or_default().push(Value::text(value));
            }
            let entries = values.into_iter().map(|(name, values)| {
                (Key::String(Text::Shared(name.into())), Value::list(values))
            });
            Value::Map(Map::owned(entries.collect()))
        }
    })
}

fn as_quantity(value: &Value<'_>) -> Result<Quantity> {
    match kind(value)? {
        Kind::Quantity(quantity) => Ok(*quantity),
        _ => Err(Error::no_overload()),
    }
}

fn quantity<'a>(name: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    match (name, args) {
        ("quantity", [raw]) => {
            let read = Quantity::parse(text(raw)?).map_err(Error::new)?;
            Ok(host(Kind::Quantity(read)))
        }
        ("isQuantity", [raw]) => Ok(Value::Bool(Quantity::parse(text(raw)?).is_ok())),
        ("sign", [value]) => {
            let sign = as_quantity(value)?.nanos().signum();
            Ok(Value::Int(i64::try_from(sign).unwrap_or(0)))
        }
        ("isInteger", [value]) => Ok(Value::Bool(as_quantity(value)?.integer().is_some())),
        ("asInteger", [value]) => as_quantity(value)?
            .integer()
            .map(Value::Int)
            .ok_or_else(|| Error::new("cannot convert value to integer")),
        ("asApproximateFloat", [value]) => Ok(Value::Double(as_quantity(value)?.approximate())),
        ("add" | "sub", [one, other]) => {
            let one = as_quantity(one)?;
            let other = match other {
                Value::Int(value) => Quantity::Small(*value, 0),
                other => as_quantity(other)?,
            };
            Ok(host(Kind::Quantity(one.plus(other, name == "sub"))))
        }
        _ => Err(Error::no_overload()),
    }
}

fn semver<'a>(name: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    let (raw, is_lenient) = match (name, args) {
        ("semver" | "isSemver", [raw]) => (text(raw)?, false),
        ("semver" | "isSemver", [raw, Value::Bool(lenient)]) => (text(raw)?, *lenient),
        (_, [value]) => {
            let Kind::Semver(version) = kind(value)? else { return Err(Error::no_overload()) };
            let number = match name {
                "major" => version.major,
                "minor" => version.minor,
                _ => version.patch,
            };
            return Ok(Value::Int(i64::try_from(number).unwrap_or(i64::MAX)));
        }
        _ => return Err(Error::no_overload()),
    };
    let parsed = if is_lenient { Version::parse_lenient(raw) } else { Version::parse(raw) };
    if name == "isSemver" {
        return Ok(Value::Bool(parsed.is_ok()));
    }
    let version = parsed.map_err(|error| Error::new(error.to_string()))?;
    Ok(host(Kind::Semver(Arc::new(version))))
}

fn compare<'a>(name: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    let [one, other] = exactly::<2>(args)?;
    let order = match (kind(one)?, kind(other)?) {
        (Kind::Quantity(a), Kind::Quantity(b)) => a.nanos().cmp(&b.nanos()),
        (Kind::Semver(a), Kind::Semver(b)) => a.order(b),
        _ => return Err(Error::no_overload()),
    };
    Ok(match name {
        "compareTo" => Value::Int(order as i64),
        "isGreaterThan" => Value::Bool(order.is_gt()),
        _ => Value::Bool(order.is_lt()),
    })
}

fn ask<'a>(name: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    let (Some(first), rest) = (args.first(), args.get(1..).unwrap_or_default()) else {
        return Err(Error::no_overload());
    };
    let Kind::AuthorizerQuery(asked) = kind(first)? else { return Err(Error::no_overload()) };
    let mut next = AuthorizerQuery::clone(asked);
    let words = rest.iter().map(text).collect::<Result<Vec<&str>>>()?;
    match (name, asked.stage, words.as_slice()) {
        ("serviceAccount", Stage::Authorizer, [namespace, account]) => {
            if !is_subdomain(account) {
                return Err(Error::new("Invalid service account name"));
            }
            if !is_label(namespace) {
                return Err(Error::new("Invalid service account namespace"));
            }
            next.check.service_account = Some(((*namespace).into(), (*account).into()));
        }
        ("path", Stage::Authorizer, [path]) => {
            if path.trim().is_empty() {
                return Err(Error::new("path must not be empty"));
            }
            next.check.path = Some((*path).into());
            next.stage = Stage::Path;
        }
        ("group", Stage::Authorizer, [group]) => {
            next.check.group = (*group).into();
            next.stage = Stage::Group;
        }
        ("resource", Stage::Group, [resource]) => {
            if resource.trim().is_empty() {
                return Err(Error::new("resource must not be empty"));
            }
            next.check.resource = (*resource).into();
            next.stage = Stage::Resource;
        }
        ("subresource", Stage::Resource, [word]) => next.check.subresource = (*word).into(),
        ("namespace", Stage::Resource, [word]) => next.check.namespace = (*word).into(),
        ("name", Stage::Resource, [word]) => next.check.name = (*word).into(),
        ("fieldSelector", Stage::Resource, [word]) => next.check.field_selector = (*word).into(),
        ("labelSelector", Stage::Resource, [word]) => next.check.label_selector = (*word).into(),
        ("check", Stage::Path | Stage::Resource, [verb]) => {
            next.check.verb = (*verb).into();
            let decision = next.by.authorize(&next.check);
            return Ok(host(Kind::Decision(Arc::new(decision))));
        }
        _ => return Err(Error::no_overload()),
    }
    Ok(host(Kind::AuthorizerQuery(Arc::new(next))))
}

fn is_label(text: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    !text.is_empty()
        && text.len() <= 63
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn is_subdomain(text: &str) -> bool {
    let label = |part: &str| !part.is_empty() && is_label(part.get(..63).unwrap_or(part));
    text.len() <= 253 && text.split('.').all(label)
}

fn decision<'a>(name: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    let [value] = exactly::<1>(args)?;
    let Kind::Decision(decision) = kind(value)? else { return Err(Error::no_overload()) };
    Ok(match name {
        "allowed" => Value::Bool(decision.allowed),
        "reason" => Value::text(decision.reason.as_str()),
        "errored" => Value::Bool(decision.error.is_some()),
        _ => Value::text(decision.error.as_deref().unwrap_or_default()),
    })
}

#[cfg(test)]
mod tests {
    use crate::tests::{check_errors, check_true, check_values};

    /// Rows of `pkg/cel/library/ip_test.go` in k8s.io/apiserver.
    #[test]
    fn addresses_are_classified_as_in_go() {
        check_values(&[
            ("isIP('192.168.0.1.0')", "false"),
            ("ip.isCanonical('127.0.0.1')", "true"),
            ("ip('192.168.0.1').family()", "4"),
            ("ip('0.0.0.0').isUnspecified()", "true"),
            ("ip('127.0.0.1').isLoopback()", "true"),
            ("ip('224.0.0.1').isLinkLocalMulticast()", "true"),
            ("ip('224.0.1.1').isLinkLocalMulticast()", "false"),
            ("ip('169.254.169.254').isLinkLocalUnicast()", "true"),
            ("ip('192.168.0.1').isGlobalUnicast()", "true"),
            ("ip('255.255.255.255').isGlobalUnicast()", "false"),
            ("ip.isCanonical('2001:DB8::68')", "false"),
            ("ip('ff02::1').isLinkLocalMulticast()", "true"),
            ("ip('fe80::1').isLinkLocalUnicast()", "true"),
            ("ip('ff00::1').isGlobalUnicast()", "false"),
        ]);
        check_errors(&[
            (
                "ip('192.168.0.1.0')",
                "IP Address \"192.168.0.1.0\" parse error during conversion from string: \
                 ParseAddr(\"192.168.0.1.0\"): IPv4 address too long",
            ),
            (
                "isIP(cidr('192.168.0.0/24'))",
                "found no matching overload for 'isIP' applied to '(net.CIDR)'",
            ),
        ]);
    }

    /// Rows of `pkg/cel/library/cidr_test.go` in k8s.io/apiserver.
    #[test]
    fn networks_contain_addresses_and_smaller_networks() {
        check_values(&[
            ("cidr('192.168.0.0/24').containsIP(ip('192.168.0.1'))", "true"),
            ("cidr('192.168.0.0/24').containsIP('192.168.1.1')", "false"),
            ("cidr('192.168.0.0/24').containsCIDR(cidr('192.168.0.1/32'))", "true"),
            ("cidr('192.168.0.0/24').containsCIDR('192.168.0.0/23')", "false"),
            ("cidr('192.168.0.1/24').masked()", "192.168.0.0/24"),
            ("cidr('192.168.0.0/24').prefixLength()", "24"),
            ("cidr('2001:db8::/32').containsIP('2001:dc8::1')", "false"),
            ("cidr('2001:db8::/32').containsCIDR('2001:db8::/33')", "true"),
            ("cidr('2001:db8:1::/32').masked()", "2001:db8::/32"),
            ("cidr('2001:db8::/32').ip()", "2001:db8::"),
        ]);
        check_errors(&[(
            "cidr('192.168.0.0/')",
            "network address parse error during conversion from string: network address parse \
             error during conversion from string: netip.ParsePrefix(\"192.168.0.0/\"): bad bits \
             after slash: \"\"",
        )]);
    }

    /// Rows of `pkg/cel/library/format_test.go` in k8s.io/apiserver.
    #[test]
    fn named_formats_return_errors_or_nothing() {
        check_true(&[
            "!format.dns1123Label().validate('my-label-name').hasValue()",
            "!format.qualifiedName().validate('apiextensions.k8s.io/v1beta1').hasValue()",
            "!format.dns1123SubdomainPrefix().validate('mysubdomain.prefix.-').hasValue()",
            "!format.uri().validate('http://example.com').hasValue()",
            "!format.uuid().validate('123e4567-e89b-12d3-a456-426614174000').hasValue()",
            "!format.byte().validate('aGVsbG8=').hasValue()",
            "!format.datetime().validate('2021-01-01T00:00:00Z').hasValue()",
            "format.dns1035Label().validate('contains a space').value()[0] \
             .startsWith('a DNS-1035 label must consist of lower case alphanumeric characters')",
        ]);
    }

    /// The examples of `pkg/cel/library/authz.go` in k8s.io/apiserver.
    #[test]
    fn queries_of_the_authorizer_need_names() {
        check_errors(&[
            ("authorizer.path('  ')", "path must not be empty"),
            ("authorizer.group('apps').resource('  ')", "resource must not be empty"),
            (
                "authorizer.serviceAccount('not@a#valid!namespace', 'validname')",
                "Invalid service account namespace",
            ),
            (
                "authorizer.serviceAccount('default', 'invalid@*name')",
                "Invalid service account name",
            ),
        ]);
    }
}
