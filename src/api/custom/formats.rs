//! Formats of strings and numbers (`k8s.io/kube-openapi/pkg/validation/strfmt`,
//! `pkg/apiserver/validation/formats.go`).
//!
//! Formats that Kubernetes 1.37 does not support, or that do not apply to the type, are ignored.

use std::net::Ipv6Addr;
use std::sync::LazyLock;

use kcel::formats::{is_base64, is_date, is_date_time, is_uuid};
use regex::Regex;

use super::node::Type;
use crate::codec::time::parse_duration;
use crate::validation::net::{sloppy_cidr, sloppy_ip};

/// A supported format, and its name as the schema spells it.
#[derive(Debug, Clone)]
pub(crate) struct Format {
    pub name: Box<str>,
    pub what: What,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum What {
    Int32,
    Int64,
    Float,
    Double,
    Text(fn(&str) -> bool),
}

impl Format {
    /// The format with this name for a type; `None` for names that are not supported for the type.
    /// A schema without a type supports the formats of strings.
    pub(super) fn of(name: &str, kind: Option<Type>) -> Option<Self> {
        let what = match (kind, name) {
            (_, "") => return None,
            (None | Some(Type::String), name) => What::Text(text(&name.replace('-', ""))?),
            (Some(Type::Integer), "int32") => What::Int32,
            (Some(Type::Integer), "int64") => What::Int64,
            (Some(Type::Number), "float") => What::Float,
            (Some(Type::Number), "double") => What::Double,
            _ => return None,
        };
        Some(Self { name: name.into(), what })
    }

    /// Whether Kubernetes supports the format for this type; other formats are reported as
    /// warnings.
    pub(crate) fn known(name: &str, kind: Option<Type>) -> bool {
        name.is_empty() || Self::of(name, kind).is_some()
    }
}

macro_rules! pattern {
    ($($name:ident = $source:literal;)*) => {
        $(static $name: LazyLock<Regex> =
            LazyLock::new(|| Regex::new($source).expect("a pattern of ours is well formed"));)*
    };
}

pattern! {
    HOSTNAME = r"^([a-zA-Z0-9\p{S}\p{L}]((-?[a-zA-Z0-9\p{S}\p{L}]{0,62})?)|([a-zA-Z0-9\p{S}\p{L}](([a-zA-Z0-9\-\p{S}\p{L}]{0,61}[a-zA-Z0-9\p{S}\p{L}])?)(\.)){1,}([a-zA-Z\p{L}]){2,63})$";
    CREDIT_CARD = r"^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35[0-9]{3})[0-9]{11})$";
    RGB_COLOR = r"^rgb\([\t\n\x0C\r ]*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])[\t\n\x0C\r ]*,[\t\n\x0C\r ]*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])[\t\n\x0C\r ]*,[\t\n\x0C\r ]*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])[\t\n\x0C\r ]*\)$";
    SSN = r"^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$";
    SCALA_DURATION = r"([0-9]+)[\t\n\x0C\r ]*([A-Za-zµ]+)";
}

/// The check of a format whose name has its dashes removed.
fn text(name: &str) -> Option<fn(&str) -> bool> {
    Some(match name {
        "bsonobjectid" => |s| s.len() == 24 && s.bytes().all(|b| b.is_ascii_hexdigit()),
        "uri" => is_request_uri,
        "email" => is_email,
        "hostname" => is_hostname,
        "ipv4" => |s| s.contains('.') && sloppy_ip(s).is_some(),
        "ipv6" => |s| s.contains(':') && s.parse::<Ipv6Addr>().is_ok(),
        "cidr" => |s| sloppy_cidr(s).is_some(),
        "mac" => is_mac,
        "uuid" => |s| is_uuid(s, None, false),
        "uuid3" => |s| is_uuid(s, Some(b'3'), false),
        "uuid4" => |s| is_uuid(s, Some(b'4'), true),
        "uuid5" => |s| is_uuid(s, Some(b'5'), true),
        "isbn" => |s| is_isbn10(s) || is_isbn13(s),
        "isbn10" => is_isbn10,
        "isbn13" => is_isbn13,
        "creditcard" => is_credit_card,
        "ssn" => |s| s.len() == 11 && SSN.is_match(s),
        "hexcolor" => |s| {
            let digits = s.strip_prefix('#').unwrap_or(s);
            matches!(digits.len(), 3 | 6) && digits.bytes().all(|b| b.is_ascii_hexdigit())
        },
        "rgbcolor" => |s| RGB_COLOR.is_match(s),
        "byte" => is_base64,
        "password" => |_| true,
        "date" => is_date,
        "duration" => is_duration,
        "datetime" => is_date_time,
        "k8sshortname" => |s| s.len() <= 63 && is_short_name(s),
        "k8slongname" => |s| s.len() <= 253 && s.split('.').all(is_short_name),
        _ => return None,
    })
}

fn is_hostname(text: &str) -> bool {
    text.len() <= 255 && text.split('.').all(|part| part.len() <= 63) && HOSTNAME.is_match(text)
}

fn digits_of_isbn(text: &str) -> Vec<u8> {
    text.bytes().filter(|b| !matches!(b, b'\t' | b'\n' | 0xc | b'\r' | b' ' | b'-')).collect()
}

fn is_isbn10(text: &str) -> bool {
    let digits = digits_of_isbn(text);
    let sum: Option<u32> = digits
        .iter()
        .zip(1_u32..)
        .map(|(b, place)| match b {
            b'0'..=b'9' => Some(place * u32::from(b - b'0')),
            b'X' if place == 10 => Some(100),
            _ => None,
        })
        .sum();
    digits.len() == 10 && sum.is_some_and(|sum| sum % 11 == 0)
}

fn is_isbn13(text: &str) -> bool {
    let digits = digits_of_isbn(text);
    let sum: Option<u32> = digits
        .iter()
        .zip([1_u32, 3].into_iter().cycle())
        .map(|(b, factor)| b.is_ascii_digit().then(|| factor * u32::from(b - b'0')))
        .sum();
    digits.len() == 13 && sum.is_some_and(|sum| sum % 10 == 0)
}

fn is_credit_card(text: &str) -> bool {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    let sum: u32 = digits
        .bytes()
        .rev()
        .zip([1_u32, 2].into_iter().cycle())
        .map(|(b, factor)| {
            let value = u32::from(b - b'0') * factor;
            if value >= 10 { value - 9 } else { value }
        })
        .sum();
    CREDIT_CARD.is_match(&digits) && sum.is_multiple_of(10)
}

fn is_mac(text: &str) -> bool {
    let groups = |separator: char, size: usize| {
        let parts: Vec<&str> = text.split(separator).collect();
        let good = |part: &&str| part.len() == size && part.bytes().all(|b| b.is_ascii_hexdigit());
        parts.iter().all(good).then_some(parts.len() * size / 2)
    };
    let octets = match text.find([':', '-', '.']) {
        Some(2) if text.contains(':') => groups(':', 2),
        Some(2) => groups('-', 2),
        Some(4) => groups('.', 4),
        _ => None,
    };
    matches!(octets, Some(6 | 8 | 20))
}

/// Whether a text is a duration in Go's syntax, or contains a number and a unit of Scala's
/// durations.
fn is_duration(text: &str) -> bool {
    if parse_duration(text).is_ok() {
        return true;
    }
    const SHORT: [&str; 12] = ["ns", "us", "µs", "ms", "s", "m", "h", "hr", "d", "w", "wk", "sec"];
    const LONG: [&str; 8] = ["nano", "micro", "milli", "sec", "min", "hour", "day", "week"];
    let mut any = false;
    for found in SCALA_DURATION.captures_iter(text) {
        let part = |group| found.get(group).map_or("", |m| m.as_str());
        if part(1).parse::<i64>().is_err() {
            return false;
        }
        let unit = part(2).to_lowercase();
        any |= SHORT.contains(&&*unit) || LONG.iter().any(|long| unit.starts_with(long));
    }
    any
}

fn is_short_name(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    !text.is_empty()
        && text.bytes().all(|b| inner(b) || b == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Whether Go's `url.ParseRequestURI` accepts the text: an absolute URI or an absolute path.
fn is_request_uri(text: &str) -> bool {
    if text.is_empty() || text.bytes().any(|b| b < 0x20 || b == 0x7f) {
        return false;
    }
    if text == "*" {
        return true;
    }
    let (scheme, rest) = match text.find(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c))
    {
        Some(0) if text.starts_with(':') => return false,
        Some(end) if text.get(end..).is_some_and(|rest| rest.starts_with(':')) => {
            let scheme = text.get(..end).unwrap_or_default();
            if scheme.starts_with(|c: char| c.is_ascii_alphabetic()) {
                (scheme, text.get(end + 1..).unwrap_or_default())
            } else {
                ("", text)
            }
        }
        _ => ("", text),
    };
    let rest = rest.split('?').next().unwrap_or_default();
    if !rest.starts_with('/') {
        return !scheme.is_empty();
    }
    let path = match rest.strip_prefix("//") {
        Some(after) if !scheme.is_empty() => {
            let end = after.find('/').unwrap_or(after.len());
            if !is_authority(after.get(..end).unwrap_or_default()) {
                return false;
            }
            after.get(end..).unwrap_or_default()
        }
        _ => rest,
    };
    escapes_are_whole(path)
}

fn escapes_are_whole(text: &str) -> bool {
    let hex = |b: Option<&u8>| b.is_some_and(u8::is_ascii_hexdigit);
    let bytes = text.as_bytes();
    bytes
        .iter()
        .enumerate()
        .all(|(i, b)| *b != b'%' || hex(bytes.get(i + 1)) && hex(bytes.get(i + 2)))
}

fn is_authority(text: &str) -> bool {
    let (user, host) = text.rsplit_once('@').unwrap_or(("", text));
    let user_good =
        user.chars().all(|c| c.is_ascii_alphanumeric() || "-._:~!$&'()*+,;=%@".contains(c));
    let port = if host.starts_with('[') {
        let Some((_, after)) = host.rsplit_once(']') else { return false };
        match after.strip_prefix(':') {
            Some(port) => port,
            None if after.is_empty() => "",
            None => return false,
        }
    } else {
        host.rsplit_once(':').map_or("", |(_, port)| port)
    };
    let host_good = host.chars().all(|c| {
        !c.is_ascii() || c.is_ascii_alphanumeric() || "!$&'()*+,;=:[]<>\"-_.~%".contains(c)
    });
    user_good
        && escapes_are_whole(user)
        && host_good
        && escapes_are_whole(host)
        && port.bytes().all(|b| b.is_ascii_digit())
}

/// Whether a text is an address of a mail header (RFC 5322): bare, or in angle brackets after a
/// name. Comments are not accepted.
fn is_email(text: &str) -> bool {
    let text = text.trim_matches([' ', '\t']);
    let address = match text.strip_suffix('>').and_then(|rest| rest.rsplit_once('<')) {
        Some((name, address)) => {
            let name = name.trim_matches([' ', '\t']);
            let quoted = is_quoted(name);
            if !name.is_empty()
                && !quoted
                && !name.split([' ', '\t', '.']).all(|w| w.chars().all(is_atext))
            {
                return false;
            }
            address
        }
        None => text,
    };
    let Some((local, domain)) = address.rsplit_once('@') else { return false };
    let literal = domain
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .is_some_and(|rest| rest.trim_start_matches("IPv6:").parse::<std::net::IpAddr>().is_ok());
    (is_dot_atom(local) || is_quoted(local)) && (literal || is_dot_atom(domain))
}

fn is_quoted(text: &str) -> bool {
    let Some(inner) = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else {
        return false;
    };
    let mut escaped = false;
    for c in inner.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return false,
            c if c.is_ascii_control() && c != '\t' => return false,
            _ => {}
        }
    }
    !escaped
}

fn is_atext(c: char) -> bool {
    c.is_ascii_alphanumeric() || !c.is_ascii() || "!#$%&'*+-/=?^_`{|}~".contains(c)
}

fn is_dot_atom(text: &str) -> bool {
    text.split('.').all(|part| !part.is_empty() && part.chars().all(is_atext))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of `pkg/apiserver/validation/formats_test.go` and of the tests of `strfmt` and
    /// `govalidator`.
    #[test]
    fn values_of_upstreams_tests() {
        for (name, good, bad) in [
            ("bsonobjectid", "507f1f77bcf86cd799439011", "507f1f77bcf86cd79943901"),
            ("uri", "http://somewhere.com/", "somewhere.com"),
            ("email", "somebody@somewhere.com", "somebody@somewhere@com"),
            ("hostname", "somewhere.com", "somewhere.com!"),
            ("ipv4", "192.168.254.1", "198.168.254.2.2"),
            ("ipv6", "::1", "127.0.0.1"),
            ("cidr", "192.168.254.0/24", "198.168.254.2/33"),
            ("mac", "01:02:03:04:05:06", "01:02:03:04:05"),
            ("uuid", "a8098c1a-f86e-11da-bd1a-00112444be1e", "not-a-uuid"),
            (
                "uuid3",
                "bcd02e22-68f0-3046-a512-327cca9def8f",
                "a8098c1a-f86e-11da-bd1a-00112444be1e",
            ),
            (
                "uuid4",
                "025b0d74-00a2-4048-bf57-227c5111bb34",
                "bcd02e22-68f0-3046-a512-327cca9def8f",
            ),
            (
                "uuid5",
                "886313e1-3b8a-5372-9b90-0c9aee199e5d",
                "025b0d74-00a2-4048-bf57-227c5111bb34",
            ),
            ("isbn", "0321751043", "836217463"),
            ("isbn10", "0321751043", "836217463"),
            ("isbn13", "978-0321751041", "978-0321751042"),
            ("creditcard", "4111-1111-1111-1111", "4111-1111-1111-1112"),
            ("ssn", "111-11-1111", "999-99-999"),
            ("hexcolor", "#FFFFFF", "#FFFFFG"),
            ("rgbcolor", "rgb(1,1,1)", "rgb(256,1,1)"),
            ("byte", "ZWxpemFiZXRocG9zZXk=", "ZWxpemFiZXRocG9zZXk"),
            ("date", "2024-02-29", "2023-02-29"),
            ("duration", "1w", "1x"),
            ("datetime", "2014-12-15T19:30:20.000Z", "2014-12-15T24:30:20Z"),
            ("date-time", "2014-12-15t19:30:20z", "2014-12-15 19:30:20Z"),
            ("k8s-short-name", "a-b", "a.b"),
            ("k8s-long-name", "a-b.c", "a-.c"),
        ] {
            let format = Format::of(name, Some(Type::String)).expect(name);
            let What::Text(check) = format.what else { panic!("{name}") };
            assert!(check(good), "{name} {good}");
            assert!(!check(bad), "{name} {bad}");
        }
    }

    #[test]
    fn formats_that_do_not_fit_the_type_are_none() {
        assert!(Format::of("int32", Some(Type::String)).is_none());
        assert!(Format::of("date", Some(Type::Integer)).is_none());
        assert!(Format::of("nope", Some(Type::String)).is_none());
        assert!(Format::of("int64", Some(Type::Integer)).is_some());
    }
}
