//! Query parameters and percent-encoding of requests.

use std::collections::HashMap;

/// Decoded query parameters; a name may occur several times.
pub(crate) type Query = HashMap<String, Vec<String>>;

pub(crate) fn query(text: &str) -> Query {
    let mut out = Query::new();
    for pair in text.split('&').filter(|p| !p.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        out.entry(decode(name)).or_default().push(decode(value));
    }
    out
}

pub(crate) fn first_value<'a>(query: &'a Query, name: &str) -> Option<&'a str> {
    query.get(name).and_then(|v| v.first()).map(String::as_str)
}

pub(crate) fn flag(query: &Query, name: &str) -> bool {
    matches!(first_value(query, name), Some("true" | "1"))
}

/// Decodes a name or value of a query.
fn decode(text: &str) -> String {
    String::from_utf8_lossy(&percent_decoded(&text.replace('+', " "))).into_owned()
}

/// Decodes percent-encoded text; a percent sign without two hex digits is kept.
pub(super) fn percent_decoded(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|h| std::str::from_utf8(h).ok());
        let value = hex.filter(|_| *byte == b'%').and_then(|h| u8::from_str_radix(h, 16).ok());
        out.push(value.unwrap_or(*byte));
        rest = if value.is_some() { after.get(2..).unwrap_or_default() } else { after };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_parameters_are_decoded() {
        let q = query("command=echo&command=a%20b&follow=true&x=%");
        assert_eq!(q["command"], ["echo", "a b"]);
        assert!(flag(&q, "follow") && first_value(&q, "x") == Some("%"));
    }
}
