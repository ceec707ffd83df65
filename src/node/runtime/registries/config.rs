//! The configuration of image registries: mirrors, TLS and credentials.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use proto::runtime::v1 as cri;

use serde::Deserialize;

/// Where Docker Hub's images are; its name in references is another.
const HUB: &str = "registry-1.docker.io";

/// Where a registry answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// `https` or `http`.
    pub(super) scheme: &'static str,
    /// Name or address, with the port where one is given.
    pub(super) host: String,
    /// What stands in front of the requests' paths; empty for the usual `/v2`.
    pub(super) path: String,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.host, self.path)
    }
}

impl Endpoint {
    /// Where a registry itself answers.
    pub(super) fn of_registry(name: &str) -> Result<Self, &'static str> {
        let host = if name == "docker.io" { HUB } else { name };
        let local =
            host.rsplit_once(':').is_some_and(|(name, port)| is_local(name) && port != "443");
        // As containerd: a registry of this machine on a port of its own has no certificate.
        Self::new(if local { "http" } else { "https" }, host, "")
    }

    pub(super) fn new(scheme: &'static str, host: &str, path: &str) -> Result<Self, &'static str> {
        if host.is_empty() || !host.bytes().all(is_host_byte) || host.starts_with('.') {
            return Err("must be a host with an optional port, such as registry.example.com:5000");
        }
        let usual = matches!(path, "" | "/" | "/v2" | "/v2/");
        if !path.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-~%".contains(&b)) {
            return Err(
                "must be a URL without user, query and fragment; credentials stand in configs",
            );
        }
        let path = if usual { "" } else { path.trim_end_matches('/') };
        Ok(Self { scheme, host: host.to_owned(), path: path.to_owned() })
    }

    /// As people write it: with or without a scheme, with or without a path.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let (scheme, rest) = match text.split_once("://") {
            Some(("https", rest)) => (Some("https"), rest),
            Some(("http", rest)) => (Some("http"), rest),
            Some(_) => return Err("must begin with https:// or http://"),
            None => (None, text),
        };
        let (host, path) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
        let named = Self::of_registry(host)?;
        Self::new(scheme.unwrap_or(named.scheme), &named.host, path)
    }

    /// The registry's name in references.
    pub(super) fn registry(&self) -> &str {
        if self.host == HUB { "docker.io" } else { &self.host }
    }
}

fn is_host_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b".-:[]_".contains(&b)
}

fn is_local(name: &str) -> bool {
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || address.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// What is said of a host.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    pub(super) auth: Option<Auth>,
    pub(super) tls: Option<Tls>,
}

/// Credentials; never shown.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Auth {
    username: String,
    password: String,
    /// `user:password` in base64.
    auth: String,
    #[serde(alias = "identitytoken")]
    identity_token: String,
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Auth(..)")
    }
}

impl Auth {
    pub(super) fn as_message(&self) -> cri::AuthConfig {
        cri::AuthConfig {
            username: self.username.clone(),
            password: self.password.clone(),
            auth: self.auth.clone(),
            identity_token: self.identity_token.clone(),
            ..cri::AuthConfig::default()
        }
    }

    pub(super) fn fault(&self) -> Option<&'static str> {
        use base64::Engine;
        let decoded = base64::engine::general_purpose::STANDARD.decode(&self.auth);
        let (user, token) = (!self.username.is_empty(), !self.identity_token.is_empty());
        match decoded {
            _ if self.auth.is_empty() && !user && !token => {
                Some("needs a username with a password, auth, or identity_token")
            }
            _ if self.auth.is_empty() => None,
            Ok(text) if text.contains(&b':') => None,
            _ => Some("auth must be user:password in base64"),
        }
    }
}

/// How a host's certificate is checked, and what it is shown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Tls {
    pub(super) ca_file: String,
    pub(super) cert_file: String,
    pub(super) key_file: String,
    pub(super) insecure_skip_verify: bool,
}

impl Tls {
    pub(super) fn fault(&self) -> Option<&'static str> {
        (self.cert_file.is_empty() != self.key_file.is_empty())
            .then_some("cert_file and key_file belong together")
    }

    /// The files that must be there.
    pub(super) fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let all = [
            ("ca_file", &self.ca_file),
            ("cert_file", &self.cert_file),
            ("key_file", &self.key_file),
        ];
        all.into_iter()
            .filter(|(_, f)| !f.is_empty())
            .map(|(name, f)| (name, Path::new(f.as_str())))
    }
}

/// The key of what holds for every registry that has no entry of its own.
pub(super) const ANY: &str = "*";

/// What `registries.yaml` says, checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registries {
    /// Endpoints by registry, in their order.
    pub(super) mirrors: BTreeMap<String, Vec<Endpoint>>,
    /// Settings by host.
    pub(super) configs: BTreeMap<String, Settings>,
    /// A registry with mirrors is not asked itself (`--disable-default-registry-endpoint`).
    pub(super) no_default: bool,
}

impl Registries {
    /// As it is, but registries with mirrors are asked only when they are among these.
    #[must_use]
    pub fn without_default(self, no_default: bool) -> Self {
        Self { no_default, ..self }
    }

    /// The endpoints for a registry's images; `None` when nothing is said of it.
    pub(super) fn mirrors_of(&self, registry: &str) -> Option<&[Endpoint]> {
        self.mirrors.get(registry).or_else(|| self.mirrors.get(ANY)).map(Vec::as_slice)
    }

    /// What is said of an endpoint, by the name that its requests go to or by that of its registry.
    pub(super) fn settings(&self, endpoint: &Endpoint) -> Option<&Settings> {
        let names = [endpoint.host.as_str(), endpoint.registry()];
        names.iter().find_map(|name| self.configs.get(*name))
    }

    pub(super) fn tls(&self, endpoint: &Endpoint) -> Option<&Tls> {
        self.settings(endpoint)?.tls.as_ref()
    }

    pub(super) fn auth(&self, endpoint: &Endpoint) -> Option<&Auth> {
        self.settings(endpoint).or_else(|| self.configs.get(ANY))?.auth.as_ref()
    }

    /// Credentials for the endpoints of an image (`docker.io/library/a:1`), in the order in which these are asked. containerd sends each
    /// to the endpoint alone that it is for.
    pub(crate) fn credentials(&self, image: &str) -> Vec<cri::AuthConfig> {
        let registry = image.split('/').next().unwrap_or_default();
        let mirrors = self.mirrors_of(registry);
        let own =
            Endpoint::of_registry(registry).ok().filter(|_| !self.no_default || mirrors.is_none());
        let mut out: Vec<cri::AuthConfig> = Vec::new();
        for endpoint in mirrors.into_iter().flatten().chain(own.as_ref()) {
            let Some(auth) = self.auth(endpoint) else { continue };
            let server_address = format!("{}://{}", endpoint.scheme, endpoint.host);
            if out.iter().all(|a| a.server_address != server_address) {
                out.push(cri::AuthConfig { server_address, ..auth.as_message() });
            }
        }
        out
    }
}
