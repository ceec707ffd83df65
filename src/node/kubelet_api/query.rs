//! Query parameters and percent-encoding of requests.

use std::collections::HashMap;
use std::convert::Infallible;

use axum::extract::FromRequestParts;
use http::request::Parts;

/// Decoded query parameters; a name may occur several times.
#[derive(Debug, Default)]
pub(super) struct Query(HashMap<String, Vec<String>>);

impl Query {
    pub(super) fn parse(text: &str) -> Self {
        let mut values = HashMap::<String, Vec<String>>::new();
        for pair in text.split('&').filter(|p| !p.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            values.entry(decode(name)).or_default().push(decode(value));
        }
        Self(values)
    }

    /// All values of a parameter.
    pub(super) fn all(&self, name: &str) -> &[String] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    pub(super) fn first(&self, name: &str) -> Option<&str> {
        self.all(name).first().map(String::as_str)
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        matches!(self.first(name), Some("true" | "1"))
    }
}

impl<S: Sync> FromRequestParts<S> for Query {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::parse(parts.uri.query().unwrap_or_default()))
    }
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
        let q = Query::parse("command=echo&command=a%20b&follow=true&x=%");
        assert_eq!(q.all("command"), ["echo", "a b"]);
        assert!(q.flag("follow") && q.first("x") == Some("%"));
    }
}
