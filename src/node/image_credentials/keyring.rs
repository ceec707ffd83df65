//! Credentials by the address that they are for, found by the name of an image (upstream:
//! `pkg/credentialprovider/keyring.go`).

use std::collections::BTreeMap;
use std::fmt;

use proto::runtime::v1 as cri;
use serde::Serialize;

use crate::digest::sha256;

/// The key of credentials for the default registry.
const DEFAULT_REGISTRY: &str = "index.docker.io";

/// A user of a registry. The names and the order of the fields are those of docker's `AuthConfig`,
/// whose JSON is hashed.
#[derive(Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct RegistryLogin {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) username: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) password: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) email: String,
    #[serde(rename = "identitytoken", skip_serializing_if = "String::is_empty")]
    pub(crate) identity_token: String,
}

impl fmt::Debug for RegistryLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegistryLogin({})", self.username)
    }
}

impl RegistryLogin {
    /// SHA-256 of the JSON of the login, in hex: what records of pulls contain instead of it.
    fn hash(&self) -> String {
        let json = serde_json::to_string(self).unwrap_or_default();
        let digest = sha256(api::field::escape_html(&json).as_bytes());
        digest.trim_start_matches("sha256:").to_owned()
    }
}

/// A Secret or a ServiceAccount.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ObjectCoordinates {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// Whose credentials they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CredentialSource {
    /// The node's: every pod of the node may use them.
    Node,
    /// A pull secret.
    Secret(ObjectCoordinates),
    /// A service account, from whose token a plugin made them.
    ServiceAccount(ObjectCoordinates),
}

/// Credentials, whose they are, and their hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TrackedCredential {
    login: RegistryLogin,
    pub(crate) source: CredentialSource,
    /// See [`RegistryLogin::hash`].
    pub(crate) hash: String,
}

impl TrackedCredential {
    /// The credentials in the form of the runtime.
    pub(crate) fn auth(&self) -> cri::AuthConfig {
        cri::AuthConfig {
            username: self.login.username.clone(),
            password: self.login.password.clone(),
            identity_token: self.login.identity_token.clone(),
            ..cri::AuthConfig::default()
        }
    }
}

/// Credentials by key: a host with an optional port and path, without a scheme.
#[derive(Debug, Clone, Default)]
pub(crate) struct Keyring(BTreeMap<String, Vec<TrackedCredential>>);

impl Keyring {
    /// Adds the credentials for an address such as `https://index.docker.io/v1/`; an address that
    /// is no URL is ignored.
    pub(crate) fn add(&mut self, address: &str, login: &RegistryLogin, source: &CredentialSource) {
        let schemeless = address.strip_prefix("https://").or(address.strip_prefix("http://"));
        let parsed = match RegistryAddress::parse(schemeless.unwrap_or(address)) {
            Ok(parsed) => parsed,
            Err(error) => {
                tracing::warn!(address, %error, "ignoring credentials for an invalid address");
                return;
            }
        };
        let path = parsed.path;
        let is_versioned = path.starts_with("/v1/") || path.starts_with("/v2/");
        let path = if is_versioned { path.get(3..).unwrap_or_default() } else { path };
        let path = if path == "/" { "" } else { path };
        let credential =
            TrackedCredential { login: login.clone(), source: source.clone(), hash: login.hash() };
        self.0.entry(format!("{}{path}", parsed.host)).or_default().push(credential);
    }

    /// The credentials for the name of an image without tag and digest, longer keys first.
    pub(crate) fn lookup(&self, image: &str) -> Vec<TrackedCredential> {
        let matching = self.0.iter().rev().filter(|(key, _)| matches_image(key, image));
        let found: Vec<_> = matching.flat_map(|(_, all)| all.clone()).collect();
        if found.is_empty() && is_of_default_registry(image) {
            return self.0.get(DEFAULT_REGISTRY).cloned().unwrap_or_default();
        }
        found
    }
}

/// Why a text is not the address of a registry; the texts are those of Go's `net/url`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidAddress {
    #[error("parse {0}: net/url: invalid control character in URL")]
    Control(String),
    #[error("parse {0}: invalid character {1} in host name")]
    Host(String, String),
    #[error("parse {0}: invalid port {1} after host")]
    Port(String, String),
    #[error("parse {0}: invalid URL escape {1}")]
    Escape(String, String),
}

/// An address without a scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RegistryAddress<'a> {
    /// With the port.
    host: &'a str,
    /// Empty, or begins with a slash.
    path: &'a str,
}

impl<'a> RegistryAddress<'a> {
    /// Parses an address such as `*.example.com:5000/team`.
    pub(super) fn parse(text: &'a str) -> Result<Self, InvalidAddress> {
        let quote = api::field::go_quote;
        let url = || quote(&format!("https://{text}"));
        if text.bytes().any(|b| b < b' ' || b == 0x7f) {
            return Err(InvalidAddress::Control(url()));
        }
        let rest = text.split(['?', '#']).next().unwrap_or_default();
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let host = authority.rsplit('@').next().unwrap_or_default();
        let is_valid =
            |c: char| c.is_alphanumeric() || !c.is_ascii() || "!$&'()*+,;=:[]<>\"-_.~".contains(c);
        if let Some(bad) = host.chars().find(|c| !is_valid(*c)) {
            return Err(InvalidAddress::Host(url(), quote(&bad.to_string())));
        }
        let after = host.rfind(']').map_or(host, |end| host.get(end + 1..).unwrap_or_default());
        if let Some(port) = after.rfind(':').and_then(|at| after.get(at..)) {
            if !port.bytes().skip(1).all(|b| b.is_ascii_digit()) {
                return Err(InvalidAddress::Port(url(), quote(port)));
            }
        }
        for part in path.split('%').skip(1) {
            if !part.bytes().take(2).filter(u8::is_ascii_hexdigit).count().eq(&2) {
                let escape: String = part.chars().take(2).collect();
                return Err(InvalidAddress::Escape(url(), quote(&format!("%{escape}"))));
            }
        }
        Ok(Self { host, path })
    }

    /// The host without the port, and the port, which may be empty.
    fn host_and_port(&self) -> (&'a str, &'a str) {
        if let Some(rest) = self.host.strip_prefix('[') {
            return match rest.split_once("]:") {
                Some(split) => split,
                None => (self.host, ""),
            };
        }
        match self.host.split_once(':') {
            Some((_, port)) if port.contains(':') => (self.host, ""),
            Some(split) => split,
            None => (self.host, ""),
        }
    }
}

/// Whether an address, whose host may contain `*` within its parts, matches the name of an image:
/// the hosts have as many parts, the ports are equal, and the path is a prefix.
pub(super) fn matches_image(address: &str, image: &str) -> bool {
    let (Ok(glob), Ok(target)) = (RegistryAddress::parse(address), RegistryAddress::parse(image))
    else {
        return false;
    };
    let ((glob_host, glob_port), (host, port)) = (glob.host_and_port(), target.host_and_port());
    glob_port == port
        && glob_host.split('.').count() == host.split('.').count()
        && target.path.starts_with(glob.path)
        && glob_host.split('.').zip(host.split('.')).all(|(glob, part)| matches_part(glob, part))
}

/// Whether a part of a host matches a pattern in which `*` is any text and `?` one character.
fn matches_part(glob: &str, part: &str) -> bool {
    let Some(first) = glob.chars().next() else { return part.is_empty() };
    let rest = glob.get(first.len_utf8()..).unwrap_or_default();
    if first == '*' {
        let mut ends = part.char_indices().map(|(at, _)| at).chain([part.len()]);
        return ends.any(|at| matches_part(rest, part.get(at..).unwrap_or_default()));
    }
    let Some(next) = part.chars().next() else { return false };
    (first == '?' || first == next)
        && matches_part(rest, part.get(next.len_utf8()..).unwrap_or_default())
}

/// Whether an image comes from Docker Hub by the form of its name.
fn is_of_default_registry(image: &str) -> bool {
    match image.split_once('/') {
        None => !image.is_empty(),
        Some(("", _)) => false,
        Some(("docker.io" | "index.docker.io", _)) => true,
        Some((first, _)) => !first.contains(['.', ':']),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cases of `TestURLsMatch`.
    #[test]
    fn addresses_match_by_host_part_port_and_path() {
        for (glob, image) in [
            ("*.kubernetes.io", "prefix.kubernetes.io"),
            ("prefix.*.io", "prefix.kubernetes.io"),
            ("prefix.kubernetes.*", "prefix.kubernetes.io"),
            ("*-good.kubernetes.io", "prefix-good.kubernetes.io"),
            ("*.kubernetes.io/blah", "prefix.kubernetes.io/blah"),
            ("prefix.*.io/foo", "prefix.kubernetes.io/foo/bar"),
            ("*.kubernetes.io:1111/", "prefix.kubernetes.io:1111/"),
            ("*kubernetes.io", "kubernetes.io"),
            ("*.*.*.kubernetes.io", "a.b.c.kubernetes.io"),
            ("[::1]:5000", "[::1]:5000/a"),
        ] {
            assert!(matches_image(glob, image), "{glob} {image}");
        }
        for (glob, image) in [
            ("*.kubernetes.io", "kubernetes.io"),
            ("*.*.kubernetes.io", "prefix.kubernetes.io"),
            ("*.*.kubernetes.io", "kubernetes.io"),
            ("*kubernetes.io", "a.kubernetes.io"),
            ("kubernetes.io", "kubernetes.com"),
            ("k*.io", "quay.io"),
            ("*.kubernetes.io:1234/blah", "prefix.kubernetes.io:1111/blah"),
            ("*.kubernetes.io", "prefix.kubernetes.io:1111"),
            ("r.io/team", "r.io/other"),
        ] {
            assert!(!matches_image(glob, image), "{glob} {image}");
        }
    }

    #[test]
    fn invalid_addresses_have_the_errors_of_upstream() {
        let error = |text: &str| RegistryAddress::parse(text).unwrap_err().to_string();
        assert_eq!(
            error("a b.io"),
            "parse \"https://a b.io\": invalid character \" \" in host name"
        );
        assert_eq!(error("a.io:x"), "parse \"https://a.io:x\": invalid port \":x\" after host");
        assert_eq!(error("a.io/%zz"), "parse \"https://a.io/%zz\": invalid URL escape \"%zz\"");
    }

    #[test]
    fn the_default_registry_is_recognized_by_the_form_of_the_name() {
        for image in ["foo", "foo/bar", "docker.io/foo/bar", "index.docker.io/foo/bar"] {
            assert!(is_of_default_registry(image), "{image}");
        }
        for image in ["", "registry.tld/foo/bar", "registry:5000/foo/bar", "myhostdocker.io/a/b"] {
            assert!(!is_of_default_registry(image), "{image}");
        }
    }

    fn names(keys: &[&str], image: &str) -> Vec<String> {
        let mut keyring = Keyring::default();
        for key in keys {
            let login = RegistryLogin { username: (*key).to_owned(), ..RegistryLogin::default() };
            keyring.add(key, &login, &CredentialSource::Node);
        }
        keyring.lookup(image).into_iter().map(|found| found.login.username).collect()
    }

    #[test]
    fn every_matching_key_contributes_and_longer_ones_come_first() {
        let keys = ["bar.example.com", "bar.example.com/pong"];
        let both = ["bar.example.com/pong", "bar.example.com"];
        assert_eq!(names(&keys, "bar.example.com/pong"), both);
        assert_eq!(names(&keys, "bar.example.com/ping"), ["bar.example.com"]);
        assert_eq!(names(&keys, "bar.example.com/pongz"), both);
        assert_eq!(names(&keys, "bar.example.com/pong/pang"), both);
        assert!(names(&keys, "example.com").is_empty());
        assert!(names(&keys, "foo.example.com").is_empty());
        let forms = ["https://quay.io/v1/", "quay.io/v2/", "http://quay.io", "quay.io"];
        assert_eq!(names(&forms, "quay.io/a").len(), 4);
        let team = ["https://quay.io/v1/team"];
        assert_eq!((names(&team, "quay.io/team/a").len(), names(&team, "quay.io/a").len()), (1, 0));
    }

    #[test]
    fn names_of_docker_hub_have_the_credentials_of_its_index() {
        let keys = ["https://index.docker.io/v1/"];
        for image in ["docker.io/library/a", "library/a", "a", "index.docker.io/b/a"] {
            assert_eq!(names(&keys, image).len(), 1, "{image}");
        }
        assert!(names(&keys, "quay.io/a").is_empty());
    }

    #[test]
    fn the_hash_is_that_of_upstreams_json() {
        let login = RegistryLogin {
            username: "a<b".to_owned(),
            password: "p".to_owned(),
            ..RegistryLogin::default()
        };
        let json = br#"{"username":"a\u003cb","password":"p"}"#;
        assert_eq!(format!("sha256:{}", login.hash()), sha256(json));
        assert_eq!(format!("{login:?}"), "RegistryLogin(a<b)");
    }
}
