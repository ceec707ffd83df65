//! The file of `encryption-provider-config`: decoded strictly, defaulted and validated with
//! upstream's messages (`pkg/apis/apiserver/{v1,validation}`,
//! `pkg/server/options/encryptionconfig`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::codec::time::{duration_text, parse_duration};
use api::field::{Error, Path, go_quote};
use base::Tasks;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::errors::CipherError;
use super::kms::{Grpc, Kms};
use super::providers::{Keyed, Method, Provider};
use crate::metrics::EncryptionMetrics;
use component_config::aggregate_errors;
use component_config::strict_config::{ConfigDocument, ConfigError, DocumentError, Reader};

const VERSION: &str = "apiserver.config.k8s.io/v1";
const KIND: &str = "EncryptionConfiguration";
const FIELDS: [&str; 5] = ["aesgcm", "aescbc", "secretbox", "identity", "kms"];
/// The default timeout of KMS calls, in nanoseconds.
const TIMEOUT: i64 = 3_000_000_000;

/// A validated resource list with its providers.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) resources: Vec<String>,
    providers: Vec<DecodedProvider>,
}

/// A key and its secret.
#[derive(Clone, PartialEq, Eq)]
struct Key {
    name: String,
    secret: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq)]
enum DecodedProvider {
    Gcm(Vec<Key>),
    Cbc(Vec<Key>),
    Secretbox(Vec<Key>),
    Identity,
    Kms { name: String, socket: PathBuf, timeout: Duration },
}

/// The content of a file.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Configuration(pub(super) Vec<Rule>);

/// The content of a file is invalid. The messages contain no keys.
#[derive(Debug, thiserror::Error)]
pub(super) enum ContentError {
    /// It is not an object with distinct keys.
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error("Object 'Kind' is missing")]
    NoKind,
    #[error("Object 'apiVersion' is missing")]
    NoVersion,
    #[error("no kind {} is registered for version {}: must be {KIND} of {VERSION}",
        go_quote(.kind), go_quote(.version), KIND = KIND, VERSION = VERSION)]
    Kind { kind: String, version: String },
    /// Fields have the wrong type or are unknown.
    #[error(transparent)]
    Fields(#[from] ConfigError),
    /// Fields have invalid values.
    #[error("{}", aggregate_errors(.0))]
    Invalid(Vec<Error>),
    /// Both are names of resources with their groups, or wildcards.
    #[error(
        "error while building transformers: resource {} is masked by earlier rule {}",
        go_quote(.resource),
        go_quote(.earlier)
    )]
    Masked { resource: String, earlier: String },
}

/// The key of a provider is unusable; validation prevents it.
#[derive(Debug, thiserror::Error)]
#[error("error while creating cipher for named key {name}: {source}")]
pub(super) struct NamedKeyError {
    name: String,
    source: CipherError,
}

/// Parses YAML or JSON. `reload` is whether the file is reloaded when it changes.
///
/// # Errors
/// The field and its error; never a key.
pub(super) fn configuration(text: &[u8], reload: bool) -> Result<Configuration, ContentError> {
    let document = ConfigDocument::decode(text)?;
    let map = document.object("apiVersion, kind and resources")?;
    document.check_keys()?;
    let head = |field: &str| map.get(field).and_then(Value::as_str).unwrap_or_default();
    match (head("apiVersion"), head("kind")) {
        (_, "") => return Err(ContentError::NoKind),
        ("", _) => return Err(ContentError::NoVersion),
        (VERSION, KIND) => {}
        (version, kind) => {
            let (kind, version) = (kind.to_owned(), version.to_owned());
            return Err(ContentError::Kind { kind, version });
        }
    }
    let mut reader = Reader::default();
    reader.known(map, "", &["apiVersion", "kind", "resources"]);
    let root = Path::new("resources");
    let found = reader.objects(map, "resources", &Path::default());
    let mut errors = Vec::new();
    let mut names = BTreeSet::new();
    let mut rules = Vec::new();
    for (path, map) in &found {
        reader.known(map, &path.to_string(), &["resources", "providers"]);
        let resources = reader.strings(map, "resources", path);
        let (r, p) = (path.child("resources"), path.child("providers"));
        if resources.is_empty() {
            errors.push(Error::required(&r, format!("at least one {r} is required")));
        }
        overlap(&resources, &r, &mut errors);
        for (at, name) in resources.iter().enumerate() {
            if let Some(why) = bad_name(name) {
                errors.push(Error::invalid(&r.index(at), name.as_str(), why));
            }
        }
        let provider_maps = reader.objects(map, "providers", path);
        if provider_maps.is_empty() {
            errors.push(Error::required(&p, format!("at least one {p} is required")));
        }
        let providers = provider_maps.iter().filter_map(|(path, map)| {
            provider(&mut reader, map, path, (&mut names, reload), &mut errors)
        });
        rules.push(Rule { providers: providers.collect(), resources });
    }
    reader.finish()?;
    if rules.is_empty() {
        errors.push(Error::required(&root, "at least one resources is required"));
    }
    if !errors.is_empty() {
        return Err(ContentError::Invalid(errors));
    }
    check_masked(&rules)?;
    Ok(Configuration(rules))
}

/// The resource and group, split like `schema.ParseGroupResource`.
pub(super) fn split(name: &str) -> (&str, &str) {
    name.split_once('.').unwrap_or((name, ""))
}

fn overlap(resources: &[String], path: &Path, errors: &mut Vec<Error>) {
    let all: Vec<(&str, &str)> = resources.iter().map(|name| split(name)).collect();
    let (mut doubled, mut overlapping) = (false, false);
    for (i, one) in all.iter().enumerate() {
        for (j, other) in all.iter().enumerate() {
            if i == j {
                continue;
            }
            if one == other && !doubled {
                doubled = true;
                continue;
            }
            let same_group = one.1 == other.1 && (one.0 == "*" || other.0 == "*");
            overlapping |= *one == ("*", "*") || same_group;
        }
    }
    let value = || Value::from(resources.to_vec());
    if doubled {
        let why = "the same resource cannot be specified multiple times";
        errors.push(Error::invalid(path, value(), why));
    }
    if overlapping {
        let why = "using overlapping resources such as 'secrets' and '*.' in the same resource list is not allowed as they will be masked";
        errors.push(Error::invalid(path, value(), why));
    }
}

fn bad_name(name: &str) -> Option<&'static str> {
    let (resource, group) = split(name);
    if name.to_lowercase() != name {
        return Some("resource name should not contain capital letters");
    }
    match (name, group) {
        ("*", _) => Some(
            "use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources",
        ),
        ("apiserveripinfo" | "serviceipallocations" | "servicenodeportallocations", _) => {
            Some("resources which do not have REST API/s cannot be encrypted")
        }
        (_, "events.k8s.io") => Some(
            "'*.events.k8s.io' objects are stored using the 'events' API group in etcd. Use 'events' instead in the config file",
        ),
        (_, "extensions") => {
            Some("'extensions' group has been removed and cannot be used for encryption")
        }
        (_, "*") if resource != "*" => {
            Some("encrypting the same resource across groups is not supported")
        }
        _ => None,
    }
}

/// Checks that no resource is configured after a wildcard that includes it.
fn check_masked(rules: &[Rule]) -> Result<(), ContentError> {
    let name = |resource: &str, group: &str| match (resource, group) {
        ("*", "") => "*.".to_owned(),
        (resource, "") => resource.to_owned(),
        (resource, group) => format!("{resource}.{group}"),
    };
    let mut seen = BTreeSet::new();
    for (resource, group) in rules.iter().flat_map(|rule| &rule.resources).map(|name| split(name)) {
        let earlier = [("*", group), ("*", "*")].into_iter().find(|rule| seen.contains(rule));
        if let Some(earlier) = earlier {
            return Err(ContentError::Masked {
                resource: name(resource, group),
                earlier: name(earlier.0, earlier.1),
            });
        }
        seen.insert((resource, group));
    }
    Ok(())
}

fn provider(
    reader: &mut Reader,
    map: &Map<String, Value>,
    path: &Path,
    (names, reload): (&mut BTreeSet<String>, bool),
    errors: &mut Vec<Error>,
) -> Option<DecodedProvider> {
    reader.known(map, &path.to_string(), &FIELDS);
    let found: BTreeMap<&str, (Path, &Map<String, Value>)> = FIELDS
        .into_iter()
        .filter_map(|field| reader.object(map, field, path).map(|found| (field, found)))
        .collect();
    // Upstream prints the Go value including its keys.
    let invalid = |why: &str| Error::omitted(path, why);
    match found.len() {
        0 => errors.push(invalid("provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity")),
        1 => {}
        _ => errors.push(invalid("more than one provider specified in a single element, should split into different list elements")),
    }
    let mut keys = |this: &mut Reader, field: &str, lengths: &[usize]| {
        let (path, map) = found.get(field)?;
        Some(keys(this, map, path, lengths, errors))
    };
    // In upstream's order; the first of several counts.
    let gcm = keys(reader, "aesgcm", &[16, 24, 32]).map(DecodedProvider::Gcm);
    let cbc = keys(reader, "aescbc", &[16, 24, 32]).map(DecodedProvider::Cbc);
    let secretbox = keys(reader, "secretbox", &[32]).map(DecodedProvider::Secretbox);
    if let Some((path, map)) = found.get("identity") {
        reader.known(map, &path.to_string(), &[]);
    }
    let identity = found.contains_key("identity").then_some(DecodedProvider::Identity);
    let kms =
        found.get("kms").and_then(|(path, map)| kms(reader, map, path, (names, reload), errors));
    kms.or(gcm).or(cbc).or(secretbox).or(identity)
}

fn keys(
    reader: &mut Reader,
    map: &Map<String, Value>,
    path: &Path,
    lengths: &[usize],
    errors: &mut Vec<Error>,
) -> Vec<Key> {
    reader.known(map, &path.to_string(), &["keys"]);
    let maps = reader.objects(map, "keys", path);
    if maps.is_empty() {
        errors.push(Error::required(&path.child("keys"), "at least one keys is required"));
    }
    let mut keys = Vec::new();
    for (path, map) in &maps {
        reader.known(map, &path.to_string(), &["name", "secret"]);
        let name = reader.text(map, "name", path);
        let text = reader.text(map, "secret", path);
        let at = path.child("secret");
        if name.is_empty() {
            errors
                .push(Error::required(&path.child("name"), "name is a mandatory field for a key"));
        }
        if text.is_empty() {
            errors.push(Error::required(&at, "secret is a mandatory field for a key"));
            continue;
        }
        // Go's decoder ignores line breaks.
        let text: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
        let Ok(secret) = STANDARD.decode(text) else {
            errors.push(Error::invalid(&at, "REDACTED", "secrets must be base64 encoded"));
            continue;
        };
        if !lengths.contains(&secret.len()) {
            let lengths: Vec<String> = lengths.iter().map(ToString::to_string).collect();
            let why = format!(
                "secret is not of the expected length, got {}, expected one of [{}]",
                secret.len(),
                lengths.join(" ")
            );
            errors.push(Error::invalid(&at, "REDACTED", why));
        }
        keys.push(Key { name, secret });
    }
    keys
}

fn kms(
    reader: &mut Reader,
    map: &Map<String, Value>,
    path: &Path,
    (names, reload): (&mut BTreeSet<String>, bool),
    errors: &mut Vec<Error>,
) -> Option<DecodedProvider> {
    let known = ["apiVersion", "name", "cachesize", "endpoint", "timeout"];
    reader.known(map, &path.to_string(), &known);
    let name = reader.text(map, "name", path);
    let version = reader.text(map, "apiVersion", path);
    let version = if version.is_empty() { "v1" } else { version.as_str() };
    let at = path.child("name");
    if name.is_empty() {
        errors.push(Error::required(&at, "name is a mandatory field for a provider"));
    }
    if version != "v1" && name.contains(':') {
        let why = format!("invalid KMS provider name {name}, must not contain ':'");
        errors.push(Error::invalid(&at, name.as_str(), why));
    }
    if (reload || version != "v1") && names.contains(&name) {
        let why = format!("duplicate KMS provider name {name}, names must be unique");
        errors.push(Error::invalid(&at, name.as_str(), why));
    }
    names.insert(name.clone());
    let at = path.child("timeout");
    let text = reader.text(map, "timeout", path);
    let nanos = if text.is_empty() { Ok(TIMEOUT) } else { parse_duration(&text) };
    let nanos = nanos.unwrap_or_else(|why| {
        reader.unreadable.push(format!("{at}: {why}"));
        TIMEOUT
    });
    if nanos <= 0 {
        let value = duration_text(nanos);
        errors.push(Error::invalid(&at, value, "timeout should be a positive value"));
    }
    let socket = socket(&reader.text(map, "endpoint", path), &path.child("endpoint"), errors);
    let at = path.child("cachesize");
    let size = match map.get("cachesize") {
        None | Some(Value::Null) => None,
        Some(value) => {
            let size = value.as_i64().and_then(|size| i32::try_from(size).ok());
            if size.is_none() {
                reader.type_of(&at, "a number of 32 bits");
            }
            size
        }
    };
    match (version, size) {
        ("v1", Some(0)) => errors.push(Error::invalid(
            &at,
            0,
            "cachesize should be a positive value, or negative to disable",
        )),
        ("v1", _) | (_, None) => {}
        (_, Some(size)) => {
            errors.push(Error::invalid(&at, size, "cachesize is not supported in v2"));
        }
    }
    match version {
        "v2" => {}
        // Upstream rejects it later, unless a deprecated feature gate is enabled.
        "v1" => reader.unreadable.push(
            "error while building transformers: KMSv1 is deprecated and will only receive security updates going forward. Use KMSv2 instead.  Set --feature-gates=KMSv1=true to use the deprecated KMSv1 feature. (kube-lite has KMS v2 alone)".to_owned(),
        ),
        other => errors.push(Error::invalid(
            &path.child("apiVersion"),
            other,
            "unsupported apiVersion apiVersion for KMS provider, only v1 and v2 are supported",
        )),
    }
    let timeout = Duration::from_nanos(u64::try_from(nanos).unwrap_or_default());
    Some(DecodedProvider::Kms { name, socket, timeout })
}

/// The path in `unix:///path`, or `@name` in `unix:///@name`.
fn socket(endpoint: &str, path: &Path, errors: &mut Vec<Error>) -> PathBuf {
    if endpoint.is_empty() {
        let why = "endpoint is a mandatory field for a kms";
        errors.push(Error::invalid(path, "", why));
        return PathBuf::new();
    }
    let (scheme, rest) = endpoint.split_once(':').unwrap_or(("", endpoint));
    if scheme != "unix" {
        let why = format!(
            "unsupported scheme {} for KMS provider, only unix is supported",
            go_quote(scheme)
        );
        errors.push(Error::invalid(path, endpoint, why));
        return PathBuf::new();
    }
    // Text between the slashes would be a host.
    let path = match rest.strip_prefix("//") {
        Some(rest) => rest.find('/').and_then(|at| rest.get(at..)).unwrap_or_default(),
        None => rest,
    };
    match path.strip_prefix("/@") {
        Some(name) => PathBuf::from(format!("@{name}")),
        None => PathBuf::from(path),
    }
}

/// Providers by group and resource, either of which can be `*`.
pub(super) type Table = BTreeMap<String, BTreeMap<String, Arc<[Provider]>>>;

impl Configuration {
    /// Creates the providers, including KMS plugins.
    ///
    /// # Errors
    /// If a key is unusable.
    pub(super) fn build(
        &self,
        metrics: &Arc<EncryptionMetrics>,
        tasks: &Tasks,
    ) -> Result<(Table, Vec<Arc<Kms>>), NamedKeyError> {
        let mut lists: BTreeMap<(&str, &str), Vec<Provider>> = BTreeMap::new();
        let mut plugins = Vec::new();
        for rule in &self.0 {
            let mut providers = Vec::with_capacity(rule.providers.len());
            for decoded in &rule.providers {
                let provider = decoded.provider(metrics, tasks)?;
                if let Provider::Kms(kms) = &provider {
                    plugins.push(Arc::clone(kms));
                }
                providers.push(provider);
            }
            for name in &rule.resources {
                lists.entry(split(name)).or_default().extend(providers.iter().cloned());
            }
        }
        let mut table = Table::new();
        for ((resource, group), providers) in lists {
            let group = table.entry(group.to_owned()).or_default();
            group.insert(resource.to_owned(), providers.into());
        }
        Ok((table, plugins))
    }
}

/// Creates the cipher of a key.
type NewCipher = fn(&[u8]) -> Result<Method, CipherError>;

impl DecodedProvider {
    fn provider(
        &self,
        metrics: &Arc<EncryptionMetrics>,
        tasks: &Tasks,
    ) -> Result<Provider, NamedKeyError> {
        let keyed = |prefix, algorithm, keys: &[Key], cipher: NewCipher| {
            let keys = keys.iter().map(|key| match cipher(&key.secret) {
                Ok(method) => Ok((format!("{}:", key.name), method)),
                Err(source) => Err(NamedKeyError { name: key.name.clone(), source }),
            });
            let keys = keys.collect::<Result<_, _>>()?;
            Ok(Provider::Keyed(Arc::new(Keyed { prefix, keys, algorithm })))
        };
        match self {
            Self::Identity => Ok(Provider::Identity),
            Self::Gcm(keys) => keyed("k8s:enc:aesgcm:v1:", "AES", keys, Method::gcm),
            Self::Cbc(keys) => keyed("k8s:enc:aescbc:v1:", "AES", keys, Method::cbc),
            Self::Secretbox(keys) => {
                keyed("k8s:enc:secretbox:v1:", "Secretbox", keys, Method::secretbox)
            }
            Self::Kms { name, socket, timeout } => {
                let plugin = Arc::new(Grpc::new(socket.clone(), *timeout, tasks));
                Ok(Provider::Kms(Kms::new(name, plugin, metrics)))
            }
        }
    }
}

#[cfg(test)]
mod tests;
