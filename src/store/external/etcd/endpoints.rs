//! The URLs of an etcd's members, in the form of k3s and of etcd's clients.

use std::fmt;

use url::Url;

/// Maximum number of members; etcd itself advises against more than seven.
const MEMBERS_MAX: usize = 32;
/// The form of the list, for error messages.
const FORM: &str = "is a list of http://HOST:PORT or https://HOST:PORT, with commas between";

/// Address of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemberAddress {
    /// Host name or address, without brackets.
    pub(super) host: String,
    /// Port.
    pub(super) port: u16,
}

impl fmt::Display for MemberAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Why the URLs of an etcd are refused. No message contains a possible password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointsError {
    /// A part is not a URL with the scheme `http` or `https`, or has no host.
    #[error("{FORM}")]
    Form,
    /// A part is not a URL.
    #[error("{FORM}; one is not a URL ({0})")]
    Url(#[source] url::ParseError),
    /// A URL has a user or a password.
    #[error(
        "has a user of etcd, which would be ignored: this server authenticates with its \
         certificate (--datastore-certfile)"
    )]
    User,
    /// A URL has a path, a query or a fragment.
    #[error("{FORM}; one has text after its port")]
    Path,
    /// A URL has no port.
    #[error("{FORM}; {0} has no port, etcd's is 2379")]
    NoPort(String),
    /// There are too many members.
    #[error("names {0} members of etcd: at most {MEMBERS_MAX}")]
    TooMany(usize),
    /// The schemes differ.
    #[error("mixes http:// and https://: all members of an etcd must use the same scheme")]
    MixedSchemes,
}

/// The endpoints of an etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoints {
    /// Never empty.
    pub(super) members: Vec<MemberAddress>,
    /// Whether TLS is used.
    pub(super) tls: bool,
}

impl Endpoints {
    /// Parses `http://HOST:PORT[,http://HOST:PORT…]`, or all of them with `https`.
    ///
    /// # Errors
    /// A message without what may be a password.
    pub(crate) fn parse(text: &str) -> Result<Self, EndpointsError> {
        let mut members = Vec::new();
        let mut schemes = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (scheme, member) = member(part)?;
            schemes.push(scheme);
            members.push(member);
        }
        if members.len() > MEMBERS_MAX {
            return Err(EndpointsError::TooMany(members.len()));
        }
        let tls = schemes.contains(&true);
        if tls && schemes.contains(&false) {
            return Err(EndpointsError::MixedSchemes);
        }
        Ok(Self { members, tls })
    }

    /// Whether TLS is used.
    pub(crate) fn is_tls(&self) -> bool {
        self.tls
    }

    /// The scheme of its URLs.
    pub(super) fn scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }
}

impl fmt::Display for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, member) in self.members.iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            write!(f, "{comma}{}://{member}", self.scheme())?;
        }
        Ok(())
    }
}

/// Parses a URL; returns whether it uses TLS, and the member.
fn member(text: &str) -> Result<(bool, MemberAddress), EndpointsError> {
    let tls = match text.split_once("://") {
        Some(("https", _)) => true,
        Some(("http", _)) => false,
        _ => return Err(EndpointsError::Form),
    };
    // Unparsable text may be a password: it is not repeated.
    let url = Url::parse(text).map_err(EndpointsError::Url)?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(EndpointsError::User);
    }
    if !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some() {
        return Err(EndpointsError::Path);
    }
    let host = url.host_str().filter(|host| !host.is_empty()).ok_or(EndpointsError::Form)?;
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    // The parser drops the default port of a scheme.
    let own = if tls { ":443" } else { ":80" };
    let given = text.trim_end_matches('/').ends_with(own);
    let port = url.port().or(given.then_some(if tls { 443 } else { 80 }));
    let port = port.ok_or_else(|| EndpointsError::NoPort(host.clone()))?;
    Ok((tls, MemberAddress { host, port }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_parsed_and_urls_with_ignored_parts_are_refused() {
        for (text, want) in [
            (
                "https://10.0.0.1:2379,https://10.0.0.2:2379",
                Ok("https://10.0.0.1:2379,https://10.0.0.2:2379"),
            ),
            ("http://etcd:2379/", Ok("http://etcd:2379")),
            (
                "https://[fd00::1]:2379, https://etcd:443",
                Ok("https://[fd00::1]:2379,https://etcd:443"),
            ),
            ("https://etcd", Err("etcd has no port, etcd's is 2379")),
            ("https://a:1,http://b:1", Err("mixes http:// and https://")),
            ("https://u:secret@a:1", Err("has a user of etcd")),
            ("https://a:1/x", Err("after its port")),
            ("https://a:1,", Err("a list of http://HOST:PORT")),
            ("https://a:secret", Err("one is not a URL")),
        ] {
            let got = Endpoints::parse(text).map(|e| e.to_string()).map_err(|e| e.to_string());
            match (&got, want) {
                (Ok(got), Ok(want)) => assert_eq!(got, want),
                (Err(got), Err(want)) => {
                    assert!(got.contains(want) && !got.contains("secret"), "{got}")
                }
                _ => panic!("{text}: {got:?}"),
            }
        }
    }
}
