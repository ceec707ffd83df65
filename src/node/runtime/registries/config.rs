//! The configuration of image registries: mirrors, TLS and credentials.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use proto::runtime::v1 as cri;

use serde::Deserialize;

use super::rewrite::{self, Rewrite};

/// The host of Docker Hub, which differs from its name in references.
const HUB: &str = "registry-1.docker.io";

/// The address of a registry or mirror.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// `https` or `http`.
    pub(super) scheme: &'static str,
    /// Name or address, with an optional port.
    pub(super) host: String,
    /// Prefix of the request paths; empty for the usual `/v2`.
    pub(super) path: String,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.host, self.path)
    }
}

impl Endpoint {
    /// Returns the endpoint of a registry itself.
    pub(super) fn of_registry(name: &str) -> Result<Self, &'static str> {
        let host = if name == "docker.io" { HUB } else { name };
        let local =
            host.rsplit_once(':').is_some_and(|(name, port)| is_local(name) && port != "443");
        // As in containerd, a registry on a port of this machine has no certificate.
        Self::new(if local { "http" } else { "https" }, host, "")
    }

    pub(super) fn new(scheme: &'static str, host: &str, path: &str) -> Result<Self, &'static str> {
        if host.is_empty() || !host.bytes().all(is_host_byte) || host.starts_with('.') {
            return Err("must be a host with an optional port, such as registry.example.com:5000");
        }
        let usual = matches!(path, "" | "/" | "/v2" | "/v2/");
        if !path.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-~%".contains(&b)) {
            return Err(
                "must be a URL without user, query and fragment; credentials belong in configs",
            );
        }
        let path = if usual { "" } else { path.trim_end_matches('/') };
        Ok(Self { scheme, host: host.to_owned(), path: path.to_owned() })
    }

    /// Parses an endpoint with optional scheme and path.
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

    /// The registry's name in image references.
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

/// The configuration of a host.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostConfig {
    pub(super) auth: Option<RegistryAuth>,
    pub(super) tls: Option<RegistryTls>,
}

/// Credentials, which are not printed.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RegistryAuth {
    username: String,
    password: String,
    /// `user:password` in base64.
    auth: String,
    #[serde(alias = "identitytoken")]
    identity_token: String,
}

impl fmt::Debug for RegistryAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Auth(..)")
    }
}

impl RegistryAuth {
    pub(super) fn as_message(&self) -> cri::AuthConfig {
        cri::AuthConfig {
            username: self.username.clone(),
            password: self.password.clone(),
            auth: self.auth.clone(),
            identity_token: self.identity_token.clone(),
            ..cri::AuthConfig::default()
        }
    }

    pub(super) fn invalid_reason(&self) -> Option<&'static str> {
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

/// Verification of a host's certificate, and the client certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RegistryTls {
    pub(super) ca_file: String,
    pub(super) cert_file: String,
    pub(super) key_file: String,
    pub(super) insecure_skip_verify: bool,
}

impl RegistryTls {
    pub(super) fn invalid_reason(&self) -> Option<&'static str> {
        (self.cert_file.is_empty() != self.key_file.is_empty())
            .then_some("cert_file and key_file must be set together")
    }

    /// The files that have to exist.
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

/// The key of the configuration for registries without their own.
pub(super) const ANY: &str = "*";

/// The mirrors of a registry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Mirror {
    /// Endpoints in the order of use.
    pub(super) endpoints: Vec<Endpoint>,
    /// Rewrites of the names at these endpoints.
    pub(super) rewrites: Vec<Rewrite>,
}

/// Settings of the node that change how its registries are used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RegistryOptions {
    /// A registry with mirrors is not used itself (`--disable-default-registry-endpoint`).
    pub no_default: bool,
    /// Nodes pull from each other (`--embedded-registry`).
    pub embedded: bool,
    /// Port of the registry on the loopback interface.
    pub port: u16,
}

/// The validated content of `registries.yaml`, and settings of the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registries {
    /// Mirrors by registry.
    pub(super) mirrors: BTreeMap<String, Mirror>,
    /// Settings by host.
    pub(super) configs: BTreeMap<String, HostConfig>,
    pub(super) options: RegistryOptions,
}

/// The name of a registry's mirrors in the paths of the local registry.
pub(super) fn path_name(mirror: &str) -> &str {
    if mirror == ANY { "_default" } else { mirror }
}

/// Whether a text is the name of a registry, such as `registry.example.com:5000`.
///
/// # Errors
///
/// What a name must be.
pub fn check_registry(text: &str) -> Result<(), &'static str> {
    Endpoint::of_registry(text).map(drop)
}

impl Registries {
    /// Sets the settings of the node.
    #[must_use]
    pub fn with_options(self, options: RegistryOptions) -> Self {
        Self { options, ..self }
    }

    /// The settings of the node.
    pub(crate) fn options(&self) -> RegistryOptions {
        self.options
    }

    /// Whether the file contains nothing.
    pub fn is_empty(&self) -> bool {
        self.mirrors.is_empty() && self.configs.is_empty()
    }

    /// Returns the key and mirrors of a registry; `None` without an entry.
    pub(super) fn mirror_of(&self, registry: &str) -> Option<(&str, &Mirror)> {
        let found = self.mirrors.get_key_value(registry);
        found
            .or_else(|| self.mirrors.get_key_value(ANY))
            .map(|(key, mirror)| (key.as_str(), mirror))
    }

    /// Whether a mirror has rewrites.
    pub(crate) fn has_rewrites(&self) -> bool {
        self.mirrors.values().any(|mirror| !mirror.rewrites.is_empty())
    }

    /// Whether nodes share the images of a registry: those listed under `mirrors`, as in k3s, and
    /// none of this machine.
    pub(crate) fn is_shared(&self, registry: &str) -> bool {
        let host = registry.rsplit_once(':').map_or(registry, |(host, _)| host);
        self.options.embedded && self.mirror_of(registry).is_some() && !is_local(host)
    }

    /// Returns the URL of a repository at a mirror with rewrites, by the name and index of the
    /// mirror in paths of the local registry.
    pub(crate) fn rewritten(&self, mirror: &str, index: usize, name: &str) -> Option<String> {
        let (_, mirror) = self.mirrors.iter().find(|(key, _)| path_name(key) == mirror)?;
        let endpoint = mirror.endpoints.get(index).filter(|_| !mirror.rewrites.is_empty())?;
        let name = rewrite::apply(&mirror.rewrites, name);
        let path = if endpoint.path.is_empty() { "/v2" } else { &endpoint.path };
        Some(format!("{}://{}{path}/{name}", endpoint.scheme, endpoint.host))
    }

    /// Returns the configuration of an endpoint, by its host or by the name of its registry.
    pub(super) fn settings(&self, endpoint: &Endpoint) -> Option<&HostConfig> {
        let names = [endpoint.host.as_str(), endpoint.registry()];
        names.iter().find_map(|name| self.configs.get(*name))
    }

    pub(super) fn tls(&self, endpoint: &Endpoint) -> Option<&RegistryTls> {
        self.settings(endpoint)?.tls.as_ref()
    }

    pub(super) fn auth(&self, endpoint: &Endpoint) -> Option<&RegistryAuth> {
        self.settings(endpoint).or_else(|| self.configs.get(ANY))?.auth.as_ref()
    }

    /// Returns the credentials for the endpoints of an image (`docker.io/library/a:1`), in the
    /// order in which these are used. containerd sends each to its endpoint only.
    pub(crate) fn credentials(&self, image: &str) -> Vec<cri::AuthConfig> {
        let registry = image.split('/').next().unwrap_or_default();
        let mirror = self.mirror_of(registry).map(|(_, mirror)| mirror);
        let own = Endpoint::of_registry(registry).ok();
        let own = own.filter(|_| !self.options.no_default || mirror.is_none());
        let mut out: Vec<cri::AuthConfig> = Vec::new();
        let endpoints = mirror.map(|mirror| mirror.endpoints.as_slice()).unwrap_or_default();
        for endpoint in endpoints.iter().chain(own.as_ref()) {
            let Some(auth) = self.auth(endpoint) else { continue };
            let server_address = format!("{}://{}", endpoint.scheme, endpoint.host);
            if out.iter().all(|a| a.server_address != server_address) {
                out.push(cri::AuthConfig { server_address, ..auth.as_message() });
            }
        }
        out
    }
}
