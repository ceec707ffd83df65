//! The formats of JSON schemas that Helm's validator asserts in drafts up to 7; later drafts treat
//! formats as annotations.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Whether a text has a format; unknown formats match every text.
pub(super) fn matches(format: &str, text: &str) -> bool {
    match format {
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "uri" => url::Url::parse(text).is_ok(),
        "uri-reference" => !text.contains(|c: char| c.is_whitespace() || c.is_control()),
        "email" => text.split_once('@').is_some_and(|(user, host)| {
            !user.is_empty() && !host.is_empty() && !host.contains('@')
        }),
        "hostname" => is_hostname(text),
        "date-time" => text.parse::<jiff::Timestamp>().is_ok(),
        "date" => text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok(),
        "regex" => regex::Regex::new(text).is_ok(),
        _ => true,
    }
}

fn is_hostname(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    text.len() <= 253 && text.split('.').all(is_label)
}
