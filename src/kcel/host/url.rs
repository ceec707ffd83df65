//! URLs, as Go's `url.ParseRequestURI` and `url.Parse` parse them.

/// The parts of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    pub(crate) scheme: String,
    /// User and password; only compared.
    user: String,
    /// Host and port.
    pub(crate) host: String,
    /// The path, escaped as in the text.
    path: String,
    query: String,
    fragment: String,
}

/// A text that is not a URL, with the text of Go's `url.Error`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("parse {text:?}: {reason}")]
pub(crate) struct UrlError {
    text: String,
    reason: UrlErrorReason,
}

/// Why a text is not a URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum UrlErrorReason {
    #[error("empty url")]
    Empty,
    #[error("net/url: invalid control character in URL")]
    ControlCharacter,
    #[error("invalid URI for request")]
    /// The text has no scheme and does not begin with a slash.
    NoRequestUri,
    #[error("missing protocol scheme")]
    NoScheme,
    #[error("missing ']' in host")]
    NoBracket,
    #[error("invalid port {0:?} after host")]
    Port(String),
    #[error("invalid character {0:?} in host name")]
    HostCharacter(String),
    #[error(transparent)]
    Escape(InvalidEscape),
}

/// A percent sign that is not followed by two hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid URL escape {0:?}")]
struct InvalidEscape(String);

fn url_error(text: &str, reason: UrlErrorReason) -> UrlError {
    UrlError { text: text.to_owned(), reason }
}

impl Url {
    /// Parses a URL.
    ///
    /// # Errors
    ///
    /// The error of Go's `url.ParseRequestURI`.
    pub(crate) fn parse(text: &str) -> Result<Url, UrlError> {
        if text.is_empty() {
            return Err(url_error(text, UrlErrorReason::Empty));
        }
        if text.bytes().any(|c| c < b' ' || c == 0x7f) {
            return Err(url_error(text, UrlErrorReason::ControlCharacter));
        }
        let (scheme, rest) = scheme(text)?;
        if scheme.is_empty() && !rest.starts_with('/') {
            return Err(url_error(text, UrlErrorReason::NoRequestUri));
        }
        let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = match rest.strip_prefix("//").filter(|_| !scheme.is_empty()) {
            Some(after) => after.split_at(after.find('/').unwrap_or(after.len())),
            None => ("", rest),
        };
        let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        check_host(host).map_err(|reason| url_error(text, reason))?;
        // Only validates the escapes: the path is kept as it is.
        unescape(path, false).map_err(|error| url_error(text, UrlErrorReason::Escape(error)))?;
        Ok(Url {
            scheme: scheme.to_ascii_lowercase(),
            user: user.into(),
            host: host.into(),
            path: path.into(),
            query: query.into(),
            fragment: fragment.into(),
        })
    }

    /// The host without port and without the brackets of an IPv6 address.
    pub(crate) fn hostname(&self) -> &str {
        let host = self.host.as_str();
        if let Some(inner) = host.strip_prefix('[') {
            return inner.split_once(']').map_or(inner, |(address, _)| address);
        }
        host.rsplit_once(':').map_or(host, |(name, _)| name)
    }

    /// The port; empty if the URL has none.
    pub(crate) fn port(&self) -> &str {
        let after = self.host.rsplit_once(']').map_or(self.host.as_str(), |(_, after)| after);
        after.rsplit_once(':').map_or("", |(_, port)| port)
    }

    /// The path as in the text if its escaping is valid, otherwise escaped again, as Go's
    /// `URL.EscapedPath`.
    pub(crate) fn escaped_path(&self) -> String {
        // Characters that Go does not escape in a path.
        let is_unescaped = |c: u8| c.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&c);
        if self.path.bytes().all(|c| is_unescaped(c) || b"!'()*[]%".contains(&c)) {
            return self.path.clone();
        }
        let mut out = String::new();
        for byte in unescape(&self.path, false).unwrap_or_default() {
            if is_unescaped(byte) {
                out.push(char::from(byte));
            } else {
                out.push_str(&format!("%{byte:02X}"));
            }
        }
        out
    }

    /// Returns the names and values of the query in their order. As Go's `URL.Query`, it skips
    /// parts with a semicolon or an invalid escape.
    pub(crate) fn query(&self) -> Vec<(String, String)> {
        let text = |part: &str| {
            let bytes = unescape(part, true).ok()?;
            Some(String::from_utf8_lossy(&bytes).into_owned())
        };
        self.query
            .split('&')
            .filter(|part| !part.is_empty() && !part.contains(';'))
            .filter_map(|part| {
                let (name, value) = part.split_once('=').unwrap_or((part, ""));
                Some((text(name)?, text(value)?))
            })
            .collect()
    }
}

/// Splits a URL into its scheme, which is empty if it has none, and the rest after the colon.
fn scheme(text: &str) -> Result<(&str, &str), UrlError> {
    for (at, c) in text.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if at > 0 => {}
            ':' if at == 0 => return Err(url_error(text, UrlErrorReason::NoScheme)),
            ':' => {
                let (scheme, rest) = text.split_at(at);
                return Ok((scheme, rest.get(1..).unwrap_or_default()));
            }
            _ => break,
        }
    }
    Ok(("", text))
}

/// Checks the port and the characters of a host.
fn check_host(host: &str) -> Result<(), UrlErrorReason> {
    let port = if let Some(inner) = host.strip_prefix('[') {
        inner.split_once(']').ok_or(UrlErrorReason::NoBracket)?.1
    } else {
        host.rfind(':').and_then(|at| host.get(at..)).unwrap_or("")
    };
    let valid = match port.strip_prefix(':') {
        Some(digits) => digits.bytes().all(|c| c.is_ascii_digit()),
        None => port.is_empty(),
    };
    if !valid {
        return Err(UrlErrorReason::Port(port.to_owned()));
    }
    match host.chars().find(|c| matches!(c, ' ' | '{' | '}' | '|' | '\\' | '^' | '`')) {
        Some(c) => Err(UrlErrorReason::HostCharacter(c.to_string())),
        None => Ok(()),
    }
}

/// Decodes percent escapes; in a query, a plus sign is a space.
fn unescape(text: &str, is_query: bool) -> Result<Vec<u8>, InvalidEscape> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'%' => {
                let digits = bytes.get(at + 1..at + 3).and_then(|d| std::str::from_utf8(d).ok());
                let value = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
                let Some(value) = value else {
                    let end = (at + 3).min(bytes.len());
                    let bad = bytes.get(at..end).unwrap_or_default();
                    return Err(InvalidEscape(String::from_utf8_lossy(bad).into_owned()));
                };
                out.push(value);
                at += 3;
                continue;
            }
            b'+' if is_query => out.push(b' '),
            other => out.push(*other),
        }
        at += 1;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{check_errors, check_values};

    /// The examples of `pkg/cel/library/urls.go` in k8s.io/apiserver.
    #[test]
    fn urls_are_split_into_parts() {
        check_values(&[
            ("url('/path').getScheme()", ""),
            ("url('https://example.com/').getScheme()", "https"),
            ("url('https://example.com:80/').getHost()", "example.com:80"),
            ("url('https://[::1]:80/').getHost()", "[::1]:80"),
            ("url('https://127.0.0.1:80/').getHostname()", "127.0.0.1"),
            ("url('https://[::1]:80/').getHostname()", "::1"),
            ("url('https://example.com:80/').getPort()", "80"),
            ("url('/path').getPort()", ""),
            (
                "url('https://example.com/path with spaces/').getEscapedPath()",
                "/path%20with%20spaces/",
            ),
            ("url('https://example.com').getEscapedPath()", ""),
            ("url('https://example.com/path?k1=a&k2=b&k2=c').getQuery()", "{k1: [a], k2: [b, c]}"),
            (
                "url('https://example.com/path?key with spaces=value with spaces').getQuery()",
                "{key with spaces: [value with spaces]}",
            ),
            ("url('https://example.com/path?').getQuery()", "{}"),
        ]);
    }

    /// The examples of `pkg/cel/library/urls.go` in k8s.io/apiserver.
    #[test]
    fn a_url_is_absolute_or_an_absolute_path() {
        check_values(&[
            ("isURL('https://user:pass@example.com:80/path?query=val#fragment')", "true"),
            ("isURL('/absolute-path')", "true"),
            ("isURL('https://a:b:c/')", "false"),
            ("isURL('../relative-path')", "false"),
        ]);
        check_errors(&[(
            "url('../relative-path')",
            "parse \"../relative-path\": invalid URI for request",
        )]);
    }

    /// `parse`, `getScheme` and `unescape` of Go's `net/url/url.go`.
    #[test]
    fn invalid_urls_are_errors_with_the_text_of_go() {
        for (text, expected) in [
            ("", "parse \"\": empty url"),
            (":a", "parse \":a\": missing protocol scheme"),
            ("http://[::1", "parse \"http://[::1\": missing ']' in host"),
            ("http://a:b", "parse \"http://a:b\": invalid port \":b\" after host"),
            ("http://a b", "parse \"http://a b\": invalid character \" \" in host name"),
            ("http://a/%zz", "parse \"http://a/%zz\": invalid URL escape \"%zz\""),
        ] {
            assert_eq!(Url::parse(text).unwrap_err().to_string(), expected);
        }
    }
}
