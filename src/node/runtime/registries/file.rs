//! Reads `registries.yaml` and refuses what it cannot mean.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use proto::runtime::v1 as cri;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{ANY, Registries};

/// A larger file is none of ours, in bytes.
const FILE_MAX: u64 = 1 << 20;

/// Why the file is not taken.
#[derive(Debug, thiserror::Error)]
pub enum BadRegistries {
    /// It is there and cannot be read.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It is larger than such a file can be.
    #[error("is larger than {FILE_MAX} bytes")]
    TooLarge,
    /// It is no YAML.
    #[error("{0}")]
    Decode(#[from] api::codec::DecodeError),
    /// An entry means nothing: where, and why.
    #[error("{at}: {why}")]
    Entry {
        /// Such as `mirrors.docker.io.endpoint`.
        at: String,
        /// What is wrong, and what to write instead.
        why: String,
    },
}

fn bad(at: impl Into<String>, why: impl Into<String>) -> BadRegistries {
    BadRegistries::Entry { at: at.into(), why: why.into() }
}

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

/// Where Docker Hub's images are; its name in references is another.
const HUB: &str = "registry-1.docker.io";

impl Endpoint {
    /// Where a registry itself answers.
    pub(super) fn of_registry(name: &str) -> Result<Self, &'static str> {
        let host = if name == "docker.io" { HUB } else { name };
        let local =
            host.rsplit_once(':').is_some_and(|(name, port)| is_local(name) && port != "443");
        // As containerd: a registry of this machine on a port of its own has no certificate.
        Self::new(if local { "http" } else { "https" }, host, "")
    }

    fn new(scheme: &'static str, host: &str, path: &str) -> Result<Self, &'static str> {
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

    fn fault(&self) -> Option<&'static str> {
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
    fn fault(&self) -> Option<&'static str> {
        (self.cert_file.is_empty() != self.key_file.is_empty())
            .then_some("cert_file and key_file belong together")
    }

    /// The files that must be there.
    fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mirror {
    #[serde(default)]
    endpoint: Vec<String>,
    #[serde(default)]
    rewrite: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    mirrors: BTreeMap<String, Value>,
    #[serde(default)]
    configs: BTreeMap<String, Value>,
}

fn read<T: DeserializeOwned>(at: &str, value: Value) -> Result<T, BadRegistries> {
    serde_json::from_value(value).map_err(|e| bad(at, e.to_string()))
}

/// Reads the text; files that it names are not looked at.
///
/// # Errors
/// The first entry that means nothing, by name.
pub(super) fn parse(text: &[u8]) -> Result<Registries, BadRegistries> {
    let value = api::codec::yaml::parse(text)?;
    if value.is_null() {
        return Ok(Registries::default());
    }
    let file: File = read("registries.yaml", value)?;
    let mut out = Registries::default();
    for (registry, value) in file.mirrors {
        let at = format!("mirrors.{registry}");
        if registry != ANY {
            Endpoint::of_registry(&registry).map_err(|why| bad(&at, why))?;
        }
        // `docker.io:` alone is an empty entry.
        let value = if value.is_null() { Value::Object(serde_json::Map::new()) } else { value };
        let mirror: Mirror = read(&at, value)?;
        if !mirror.rewrite.is_empty() {
            let why = "containerd rewrites no names; put what stands in front of them into the endpoint, as https://mirror.example.com/v2/prefix";
            return Err(bad(format!("{at}.rewrite"), why));
        }
        let mut endpoints: Vec<Endpoint> = Vec::new();
        for text in &mirror.endpoint {
            let endpoint =
                Endpoint::parse(text).map_err(|why| bad(format!("{at}.endpoint {text:?}"), why))?;
            if !endpoints.contains(&endpoint) {
                endpoints.push(endpoint);
            }
        }
        out.mirrors.insert(registry, endpoints);
    }
    for (host, value) in file.configs {
        let at = format!("configs.{host}");
        if host != ANY {
            Endpoint::of_registry(&host).map_err(|why| bad(&at, why))?;
        }
        let settings: Settings = read(&at, value)?;
        if let Some(why) = settings.auth.as_ref().and_then(Auth::fault) {
            return Err(bad(format!("{at}.auth"), why));
        }
        if let Some(why) = settings.tls.as_ref().and_then(Tls::fault) {
            return Err(bad(format!("{at}.tls"), why));
        }
        out.configs.insert(host, settings);
    }
    Ok(out)
}

/// Reads the file; one that is not there says nothing.
///
/// # Errors
/// Why it is not taken: unreadable, no YAML, an entry that means nothing, a file of certificates that is not there.
pub fn load(path: &Path) -> Result<Registries, BadRegistries> {
    use std::io::Read;
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Registries::default()),
        Err(e) => return Err(e.into()),
    };
    let mut text = Vec::new();
    file.take(FILE_MAX + 1).read_to_end(&mut text)?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > FILE_MAX {
        return Err(BadRegistries::TooLarge);
    }
    let found = parse(&text)?;
    for (host, tls) in found.configs.iter().filter_map(|(host, s)| Some((host, s.tls.as_ref()?))) {
        for (field, file) in tls.files() {
            let absolute: PathBuf = file.to_owned();
            let at = || format!("configs.{host}.tls.{field} {:?}", absolute.display());
            if !file.is_absolute() {
                return Err(bad(at(), "must be an absolute path"));
            }
            std::fs::File::open(file).map_err(|e| bad(at(), e.to_string()))?;
        }
    }
    Ok(found)
}
