//! Reads and validates `registries.yaml`.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::config::{ANY, Endpoint, HostConfig, Mirror, Registries, RegistryAuth, RegistryTls};
use super::rewrite::Rewrite;

/// Maximum size of the file in bytes.
const FILE_MAX: u64 = 1 << 20;

/// Why the file is rejected.
#[derive(Debug, thiserror::Error)]
pub enum InvalidRegistries {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The file is too large.
    #[error("is larger than {FILE_MAX} bytes")]
    TooLarge,
    /// The file is not YAML.
    #[error("{0}")]
    Decode(#[from] api::codec::DecodeError),
    /// An entry is invalid.
    #[error("{at}: {why}")]
    Entry {
        /// Path of the entry, such as `mirrors.docker.io.endpoint`.
        at: String,
        /// The reason, and what to write instead.
        why: String,
    },
}

fn invalid(at: impl Into<String>, why: impl Into<String>) -> InvalidRegistries {
    InvalidRegistries::Entry { at: at.into(), why: why.into() }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MirrorEntry {
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

fn read<T: DeserializeOwned>(at: &str, value: Value) -> Result<T, InvalidRegistries> {
    serde_json::from_value(value).map_err(|e| invalid(at, e.to_string()))
}

/// Parses the text; does not read the files that it names.
///
/// # Errors
///
/// The first invalid entry.
pub(super) fn parse(text: &[u8]) -> Result<Registries, InvalidRegistries> {
    let value = api::codec::yaml::parse(text)?;
    if value.is_null() {
        return Ok(Registries::default());
    }
    let file: File = read("registries.yaml", value)?;
    let mut out = Registries::default();
    for (registry, value) in file.mirrors {
        let at = format!("mirrors.{registry}");
        if registry != ANY {
            Endpoint::of_registry(&registry).map_err(|why| invalid(&at, why))?;
        }
        // `docker.io:` alone is an empty entry.
        let value = if value.is_null() { Value::Object(serde_json::Map::new()) } else { value };
        let mirror: MirrorEntry = read(&at, value)?;
        let rewrites = mirror.rewrite.iter().map(|(pattern, replacement)| {
            let at = || format!("{at}.rewrite {pattern:?}");
            Rewrite::new(pattern, replacement).map_err(|e| invalid(at(), e.to_string()))
        });
        let rewrites = rewrites.collect::<Result<Vec<_>, _>>()?;
        let mut endpoints: Vec<Endpoint> = Vec::new();
        for text in &mirror.endpoint {
            let endpoint = Endpoint::parse(text)
                .map_err(|why| invalid(format!("{at}.endpoint {text:?}"), why))?;
            if !endpoints.contains(&endpoint) {
                endpoints.push(endpoint);
            }
        }
        out.mirrors.insert(registry, Mirror { endpoints, rewrites });
    }
    for (host, value) in file.configs {
        let at = format!("configs.{host}");
        if host != ANY {
            Endpoint::of_registry(&host).map_err(|why| invalid(&at, why))?;
        }
        let settings: HostConfig = read(&at, value)?;
        if let Some(why) = settings.auth.as_ref().and_then(RegistryAuth::invalid_reason) {
            return Err(invalid(format!("{at}.auth"), why));
        }
        if let Some(why) = settings.tls.as_ref().and_then(RegistryTls::invalid_reason) {
            return Err(invalid(format!("{at}.tls"), why));
        }
        out.configs.insert(host, settings);
    }
    Ok(out)
}

/// Reads the file; a missing one is empty.
///
/// # Errors
///
/// The file is unreadable or not YAML, an entry is invalid, or a certificate file is missing.
pub fn load(path: &Path) -> Result<Registries, InvalidRegistries> {
    use std::io::Read;
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Registries::default()),
        Err(e) => return Err(e.into()),
    };
    let mut text = Vec::new();
    file.take(FILE_MAX + 1).read_to_end(&mut text)?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > FILE_MAX {
        return Err(InvalidRegistries::TooLarge);
    }
    let found = parse(&text)?;
    for (host, tls) in found.configs.iter().filter_map(|(host, s)| Some((host, s.tls.as_ref()?))) {
        for (field, file) in tls.files() {
            let absolute: PathBuf = file.to_owned();
            let at = || format!("configs.{host}.tls.{field} {:?}", absolute.display());
            if !file.is_absolute() {
                return Err(invalid(at(), "must be an absolute path"));
            }
            std::fs::File::open(file).map_err(|e| invalid(at(), e.to_string()))?;
        }
    }
    Ok(found)
}

/// The entry point of the fuzzer.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(text: &[u8]) {
    let Ok(registries) = parse(text) else { return };
    for (folder, hosts) in registries.hosts() {
        assert!(!folder.contains('/') && folder != "..", "{folder}");
        assert!(hosts.starts_with(super::hosts::HEADER));
    }
    for mirror in registries.mirrors.keys() {
        let _ = registries.credentials(&format!("{mirror}/library/busybox:1"));
        let _ = registries.rewritten(mirror, 0, "library/busybox");
    }
    let _ = registries.credentials("busybox");
}
