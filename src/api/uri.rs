//! Percent-encoding of URLs.

use std::fmt::Write as _;

/// Escapes all characters except the unreserved ones of RFC 3986, section 2.3, for a path segment
/// or a query value.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreserved_characters_alone_stay() {
        assert_eq!(escaped("aZ0-._~"), "aZ0-._~");
        assert_eq!(escaped("a/b=c d*\u{e9}"), "a%2Fb%3Dc%20d%2A%C3%A9");
    }
}
