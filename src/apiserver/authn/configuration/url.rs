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

/// A URL cannot be parsed. The messages are Go's.
#[derive(Debug, thiserror::Error)]
#[error("parse {}: {problem}", go_quote(.url))]
pub(super) struct UrlError {
    url: String,
    problem: UrlProblem,
}

#[derive(Debug, thiserror::Error)]
enum UrlProblem {
    #[error("net/url: invalid control character in URL")]
    ControlCharacter,
    #[error("missing protocol scheme")]
    MissingScheme,
    #[error("first path segment in URL cannot contain colon")]
    ColonInPath,
    #[error("missing ']' in host")]
    MissingBracket,
    #[error("invalid port {} after host", go_quote(.0))]
    Port(String),
    #[error("invalid character {} in host name", go_quote(&.0.to_string()))]
    HostCharacter(char),
    #[error("invalid URL escape {}", go_quote(.0))]
    Escape(String),
}

/// Parses a URL.
///
/// # Errors
/// If Go's parser rejects the URL.
pub(super) fn parse(text: &str) -> Result<Parts<'_>, UrlError> {
    let invalid = |problem| UrlError { url: text.to_owned(), problem };
    if text.bytes().any(|c| c < b' ' || c == 0x7f) {
        return Err(invalid(UrlProblem::ControlCharacter));
    }
    let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
    if rest.starts_with(':') {
        return Err(invalid(UrlProblem::MissingScheme));
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
        return Err(invalid(UrlProblem::ColonInPath));
    }
    let (authority, path) = match rest.strip_prefix("//") {
        Some(after) => after.split_at(after.find('/').unwrap_or(after.len())),
        None => ("", rest),
    };
    let (user, host) =
        authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    if host.starts_with('[') && !host.contains(']') {
        return Err(invalid(UrlProblem::MissingBracket));
    }
    let after = host.rsplit_once(']').map_or(host, |(_, after)| after);
    if let Some(at) = after.rfind(':') {
        let port = after.get(at..).unwrap_or_default();
        if !port.bytes().skip(1).all(|c| c.is_ascii_digit()) {
            return Err(invalid(UrlProblem::Port(port.to_owned())));
        }
    }
    if let Some(bad) = host.chars().find(|c| b" <>\"\\^`{|}".iter().any(|b| char::from(*b) == *c)) {
        return Err(invalid(UrlProblem::HostCharacter(bad)));
    }
    if let Some(escape) = [host, path].into_iter().find_map(bad_escape) {
        return Err(invalid(UrlProblem::Escape(escape.to_owned())));
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages of Go's `net/url` (`url.go`, `url_test.go`).
    #[test]
    fn urls_that_go_rejects_are_errors() {
        let error = |text: &str| parse(text).unwrap_err().to_string();
        for (text, problem) in [
            ("https://a\u{7f}", r#""https://a\x7f": net/url: invalid control character in URL"#),
            (":a", r#"":a": missing protocol scheme"#),
            ("1a://b", r#""1a://b": first path segment in URL cannot contain colon"#),
            ("https://[::1", r#""https://[::1": missing ']' in host"#),
            ("https://[::1]:x", r#""https://[::1]:x": invalid port ":x" after host"#),
            ("https://a b", r#""https://a b": invalid character " " in host name"#),
            ("https://a/%zz", r#""https://a/%zz": invalid URL escape "%zz""#),
            ("https://a/%4", r#""https://a/%4": invalid URL escape "%4""#),
        ] {
            assert_eq!(error(text), format!("parse {problem}"));
        }
    }

    #[test]
    fn urls_are_split_like_in_go() {
        let parts = parse("HTTPS://jane:secret@a:1/b?c#d").unwrap();
        let want = Parts { scheme: "https".into(), has_user: true, query: "c", fragment: "d" };
        assert_eq!(parts, want);
    }
}
