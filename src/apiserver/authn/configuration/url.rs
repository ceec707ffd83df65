//! Parses URLs of issuers like Go's `url.Parse`.

use api::field::go_quote;

/// The parts of an issuer's URL that upstream validates.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parts<'a> {
    /// The scheme, in lower case.
    pub(super) scheme: String,
    pub(super) has_user: bool,
    pub(super) query: &'a str,
    pub(super) fragment: &'a str,
}

/// Parses a URL.
///
/// # Errors
/// Go's message.
pub(super) fn parse(text: &str) -> Result<Parts<'_>, String> {
    let wrong = |why: &str| format!("parse {}: {why}", go_quote(text));
    if text.bytes().any(|c| c < b' ' || c == 0x7f) {
        return Err(wrong("net/url: invalid control character in URL"));
    }
    let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
    if rest.starts_with(':') {
        return Err(wrong("missing protocol scheme"));
    }
    let is_scheme = |scheme: &str| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|c| c.is_ascii_alphanumeric() || b"+-.".contains(&c))
    };
    let (scheme, rest) = match rest.split_once(':') {
        Some((scheme, rest)) if is_scheme(scheme) => (scheme, rest),
        _ => ("", rest),
    };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    if scheme.is_empty()
        && !rest.starts_with('/')
        && rest.split('/').next().is_some_and(|segment| segment.contains(':'))
    {
        return Err(wrong("first path segment in URL cannot contain colon"));
    }
    let (authority, path) = match rest.strip_prefix("//") {
        Some(after) => after.split_at(after.find('/').unwrap_or(after.len())),
        None => ("", rest),
    };
    let (user, host) =
        authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    if host.starts_with('[') && !host.contains(']') {
        return Err(wrong("missing ']' in host"));
    }
    let after = host.rsplit_once(']').map_or(host, |(_, after)| after);
    if let Some(at) = after.rfind(':') {
        let port = after.get(at..).unwrap_or_default();
        if !port.bytes().skip(1).all(|c| c.is_ascii_digit()) {
            return Err(wrong(&format!("invalid port {} after host", go_quote(port))));
        }
    }
    if let Some(bad) = host.chars().find(|c| b" <>\"\\^`{|}".iter().any(|b| char::from(*b) == *c)) {
        return Err(wrong(&format!(
            "invalid character {} in host name",
            go_quote(&bad.to_string())
        )));
    }
    if let Some(escape) = [host, path].into_iter().find_map(bad_escape) {
        return Err(wrong(&format!("invalid URL escape {}", go_quote(escape))));
    }
    Ok(Parts { scheme: scheme.to_ascii_lowercase(), has_user: user.is_some(), query, fragment })
}

/// The first `%` without two hexadecimal digits after it.
fn bad_escape(text: &str) -> Option<&str> {
    let at = text.match_indices('%').map(|(at, _)| at).find(|at| {
        let digits = text.as_bytes().get(at + 1..at + 3);
        !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    })?;
    let rest = text.get(at..)?;
    Some(rest.char_indices().nth(3).and_then(|(end, _)| rest.get(..end)).unwrap_or(rest))
}
