//! Named formats: `format.dns1123Label().validate(text)` and those of schemas that they share
//! (`apiserver/pkg/cel/library/format.go`, `kube-openapi/pkg/validation/strfmt`).

use std::sync::LazyLock;

use regex::Regex;

use crate::host::Url;
use crate::names;

/// A named format.
#[derive(Debug)]
pub(crate) struct Format {
    /// The name after `format.`.
    pub(crate) name: &'static str,
    /// Length of its pattern, or of an equivalent one: it determines the cost of a check.
    pub(crate) pattern: u64,
    check: fn(&str) -> Vec<String>,
}

impl Format {
    /// Returns the errors of a text; empty if the text is valid.
    pub(crate) fn faults(&self, text: &str) -> Vec<String> {
        (self.check)(text)
    }
}

/// Returns the format of this name.
pub(crate) fn named(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.name == name)
}

const DATE_TIME_PATTERN: &str =
    r"^([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))$";
/// Bytes of `strfmt.UUIDPattern`.
const UUID_PATTERN: u64 = 70;

static FORMATS: [Format; 13] = [
    Format { name: "dns1123Label", pattern: 30, check: |s| names::name_is_label(s, false) },
    Format { name: "dns1123Subdomain", pattern: 60, check: |s| names::name_is_subdomain(s, false) },
    Format { name: "dns1035Label", pattern: 30, check: |s| names::name_is_dns1035(s, false) },
    Format { name: "qualifiedName", pattern: 60, check: names::qualified_name },
    Format { name: "dns1123LabelPrefix", pattern: 30, check: |s| names::name_is_label(s, true) },
    Format {
        name: "dns1123SubdomainPrefix",
        pattern: 60,
        check: |s| names::name_is_subdomain(s, true),
    },
    Format { name: "dns1035LabelPrefix", pattern: 30, check: |s| names::name_is_dns1035(s, true) },
    Format { name: "labelValue", pattern: 40, check: names::label_value },
    Format {
        name: "uri",
        pattern: 1103,
        check: |s| Url::parse(s).err().iter().map(ToString::to_string).collect(),
    },
    Format {
        name: "uuid",
        pattern: UUID_PATTERN,
        check: |s| unless(is_uuid(s, None, false), "does not match the UUID format"),
    },
    Format { name: "byte", pattern: 84, check: |s| unless(is_base64(s), "invalid base64") },
    Format {
        name: "date",
        pattern: DATE_TIME_PATTERN.len() as u64,
        check: |s| unless(is_date(s), "invalid date"),
    },
    Format {
        name: "datetime",
        pattern: DATE_TIME_PATTERN.len() as u64,
        check: |s| unless(is_date_time(s), "invalid datetime"),
    },
];

fn unless(good: bool, text: &str) -> Vec<String> {
    if good { Vec::new() } else { vec![text.to_owned()] }
}

static DATE_TIME: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(DATE_TIME_PATTERN).expect("a pattern of ours is well formed"));

/// Checks groups of hexadecimal digits with optional dashes; the version and the variant are the
/// first digits of their groups.
pub fn is_uuid(text: &str, version: Option<u8>, variant: bool) -> bool {
    let mut bytes = text.bytes().peekable();
    for (group, length) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if group > 0 {
            bytes.next_if_eq(&b'-');
        }
        for place in 0..length {
            let Some(b) = bytes.next().filter(u8::is_ascii_hexdigit) else { return false };
            let wrong = match (group, place) {
                (2, 0) => version.is_some_and(|version| b != version),
                (3, 0) => variant && !matches!(b.to_ascii_lowercase(), b'8' | b'9' | b'a' | b'b'),
                _ => false,
            };
            if wrong {
                return false;
            }
        }
    }
    bytes.next().is_none()
}

/// Checks base64 with padding; an empty text is invalid.
pub fn is_base64(text: &str) -> bool {
    let padding = text.bytes().rev().take_while(|b| *b == b'=').count();
    let body = text.get(..text.len() - padding).unwrap_or_default();
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/');
    !text.is_empty() && text.len().is_multiple_of(4) && padding <= 2 && body.bytes().all(plain)
}

/// Checks a date such as `2006-01-02`.
pub fn is_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    let shaped = bytes.len() == 10
        && bytes.iter().enumerate().all(|(i, b)| match i {
            4 | 7 => *b == b'-',
            _ => b.is_ascii_digit(),
        });
    let number = |range| text.get(range).and_then(|t: &str| t.parse::<u32>().ok()).unwrap_or(0);
    let (year, month, day) = (number(0..4), number(5..7), number(8..10));
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days = match month {
        2 => 28 + u32::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => 0,
    };
    shaped && (1..=days).contains(&day)
}

/// Checks a date-time as upstream does: it ignores the text after a second `t`, and compares hours,
/// minutes and seconds as text.
pub fn is_date_time(text: &str) -> bool {
    let lower = text.to_lowercase();
    let mut parts = lower.split('t');
    let (Some(date), Some(time)) = (parts.next(), parts.next()) else { return false };
    let Some(found) = DATE_TIME.captures(time) else { return false };
    let at = |group, most: &str| found.get(group).is_some_and(|m| m.as_str() <= most);
    is_date(date) && at(1, "23") && at(2, "59") && at(3, "59")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of upstream's `format_test.go`.
    #[test]
    fn texts_are_upstreams() {
        let said = |name: &str, text: &str| named(name).unwrap().faults(text);
        for (name, text) in [
            ("dns1123Label", "my-label-name"),
            ("dns1123Subdomain", "apiextensions.k8s.io"),
            ("qualifiedName", "apiextensions.k8s.io/v1beta1"),
            ("dns1123LabelPrefix", "my-label-prefix-"),
            ("dns1123SubdomainPrefix", "mysubdomain.prefix.-"),
            ("dns1035LabelPrefix", "my-label-prefix-"),
            ("dns1035Label", "my-label-name"),
            ("uri", "http://example.com"),
            ("uuid", "123e4567-e89b-12d3-a456-426614174000"),
            ("byte", "aGVsbG8="),
            ("date", "2021-01-01"),
            ("datetime", "2021-01-01T00:00:00Z"),
        ] {
            assert!(said(name, text).is_empty(), "{name} {text}: {:?}", said(name, text));
        }
        assert_eq!(said("uuid", "invalid"), ["does not match the UUID format"]);
        assert_eq!(said("byte", "invalid"), ["invalid base64"]);
        assert_eq!(said("date", "invalid"), ["invalid date"]);
        assert_eq!(said("datetime", "invalid"), ["invalid datetime"]);
        assert_eq!(said("uri", "bad_uri"), ["parse \"bad_uri\": invalid URI for request"]);
        assert_eq!(said("dns1123Label", "a.b"), ["must not contain dots"]);
        assert!(named("unknown").is_none());
        let uuid = r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$";
        assert_eq!(UUID_PATTERN, uuid.len() as u64);
    }
}
