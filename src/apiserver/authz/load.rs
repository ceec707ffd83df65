//! The file of `authorization-config`: decoded strictly, defaulted and validated with upstream's
//! messages (`pkg/apis/apiserver/{v1,validation}`, `pkg/kubeapiserver/authorizer`).

use std::collections::BTreeSet;
use std::path::{Path as File, PathBuf};
use std::time::Duration;

use api::codec::time::{duration_text, parse_duration};
use api::field::{Error, Path, go_quote};
use api::validation::names::name_is_subdomain;
use serde_json::{Map, Value};

use super::config::{AuthorizerConfig, Configuration, Hook, Kind, Version};
use super::flags::NO_ABAC;
use super::webhook::conditions::{CONDITIONS_MAX, condition};
use component_config::aggregate_errors;
use component_config::strict_config::{ConfigDocument, ConfigError, DocumentError, Reader};

const GROUP: &str = "apiserver.config.k8s.io";
const KIND: &str = "AuthorizationConfiguration";
const TIMEOUT_MAX: i64 = 30_000_000_000;

/// The content of the file is invalid.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It cannot be decoded.
    #[error("failed to load AuthorizationConfiguration from file: {0}")]
    Decode(#[from] ContentError),
    /// Fields have invalid values.
    #[error("{}", aggregate_errors(.0))]
    Invalid(Vec<Error>),
    /// Authorizers have other names than those that upstream reserves for their types.
    #[error("{}", aggregate_errors(.0))]
    Names(Vec<NameError>),
}

/// The content of the file cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum ContentError {
    /// It is not an object with distinct keys.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// It has no `kind`.
    #[error("kind: Required value: must be {KIND}", KIND = KIND)]
    NoKind,
    /// The version is not supported.
    #[error(
        "apiVersion: Unsupported value: {}: must be {GROUP}/v1, v1beta1 or v1alpha1",
        go_quote(.0), GROUP = GROUP
    )]
    Version(String),
    /// It is of another kind.
    #[error("no kind {} is registered for version {}: must be {KIND}",
        go_quote(.kind), go_quote(.version), KIND = KIND)]
    Kind {
        /// The `kind`.
        kind: String,
        /// The `apiVersion`.
        version: String,
    },
    /// Fields have the wrong type or are unknown.
    #[error(transparent)]
    Fields(#[from] ConfigError),
}

/// An authorizer has another name than the one that upstream reserves for its type.
#[derive(Debug, thiserror::Error)]
#[error("expected name {expected} for authorizer {kind} instead of {name}")]
pub struct NameError {
    kind: &'static str,
    expected: String,
    name: String,
}

/// A kubeconfig cannot be read.
#[derive(Debug, thiserror::Error)]
enum KubeconfigFileError {
    #[error("must be an absolute path")]
    Relative,
    #[error("must be a regular file")]
    NotRegular,
    #[error("error loading file: stat {file}: {}", stat_text(.source))]
    Stat { file: String, source: std::io::Error },
}

/// Go's message for a failed `stat`.
fn stat_text(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        std::io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

/// Parses a configuration from YAML or JSON; checks that the kubeconfigs exist.
///
/// # Errors
/// The field and its error.
pub(super) fn configuration(text: &[u8]) -> Result<Configuration, LoadError> {
    let empty = Map::new();
    let document = ConfigDocument::decode(text).map_err(ContentError::from)?;
    let map = match &document.value {
        // As in upstream, an empty file is an empty configuration.
        Value::Null => &empty,
        _ => document.object("apiVersion, kind and authorizers").map_err(ContentError::from)?,
    };
    document.check_keys().map_err(ContentError::from)?;
    if !map.is_empty() {
        check_version(map)?;
    }
    let mut reader = Reader::default();
    reader.known(map, "", &["apiVersion", "kind", "authorizers"]);
    let found = reader.objects(map, "authorizers", &Path::default());
    let found: Vec<DecodedAuthorizer> =
        found.iter().map(|(path, map)| authorizer(&mut reader, map, path)).collect();
    let mut errors = std::mem::take(&mut reader.errors);
    reader.finish().map_err(ContentError::from)?;
    let entries = validated(&found, &mut errors);
    if !errors.is_empty() {
        return Err(LoadError::Invalid(errors));
    }
    let misnamed = misnamed(&entries);
    if misnamed.is_empty() { Ok(Configuration(entries)) } else { Err(LoadError::Names(misnamed)) }
}

fn check_version(map: &Map<String, Value>) -> Result<(), ContentError> {
    let text = |field: &str| map.get(field).and_then(Value::as_str).unwrap_or_default();
    let (version, kind) = (text("apiVersion"), text("kind"));
    if kind.is_empty() {
        return Err(ContentError::NoKind);
    }
    let known = version
        .strip_prefix(GROUP)
        .is_some_and(|rest| matches!(rest, "/v1" | "/v1beta1" | "/v1alpha1"));
    if version.is_empty() || !known {
        return Err(ContentError::Version(version.to_owned()));
    }
    if kind != KIND {
        return Err(ContentError::Kind { kind: kind.to_owned(), version: version.to_owned() });
    }
    Ok(())
}

/// The authorizers with other names than upstream's; only webhooks have names to choose.
fn misnamed(entries: &[AuthorizerConfig]) -> Vec<NameError> {
    let named = entries.iter().filter(|entry| !matches!(entry.kind, Kind::Webhook(_)));
    let wrong = named.filter_map(|entry| {
        let kind = entry.kind.name();
        let expected = kind.to_lowercase();
        (expected != entry.name).then(|| NameError { kind, expected, name: entry.name.clone() })
    });
    wrong.collect()
}

/// An authorizer from the file, with defaults.
struct DecodedAuthorizer {
    path: Path,
    kind: String,
    name: String,
    webhook: Option<DecodedWebhook>,
}

struct DecodedWebhook {
    authorized: (i64, bool),
    unauthorized: (i64, bool),
    timeout: i64,
    version: String,
    conditions_version: String,
    failure_policy: String,
    connection: String,
    kubeconfig: Option<String>,
    conditions: Vec<String>,
}

fn authorizer(reader: &mut Reader, map: &Map<String, Value>, path: &Path) -> DecodedAuthorizer {
    reader.known(map, &path.to_string(), &["type", "name", "webhook"]);
    let webhook = reader.object(map, "webhook", path);
    DecodedAuthorizer {
        path: path.clone(),
        kind: reader.text(map, "type", path),
        name: reader.text(map, "name", path),
        webhook: webhook.map(|(path, hook)| read_webhook(reader, hook, &path)),
    }
}

fn duration(reader: &mut Reader, map: &Map<String, Value>, key: &str, parent: &Path) -> i64 {
    match reader.text(map, key, parent).as_str() {
        "" => 0,
        text => parse_duration(text).unwrap_or_else(|why| {
            reader.unreadable.push(format!("{}: {why}", parent.child(key)));
            0
        }),
    }
}

fn read_webhook(reader: &mut Reader, map: &Map<String, Value>, path: &Path) -> DecodedWebhook {
    let known = [
        "authorizedTTL",
        "cacheAuthorizedRequests",
        "unauthorizedTTL",
        "cacheUnauthorizedRequests",
        "timeout",
        "subjectAccessReviewVersion",
        "matchConditionSubjectAccessReviewVersion",
        "failurePolicy",
        "connectionInfo",
        "matchConditions",
    ];
    reader.known(map, &path.to_string(), &known);
    let empty = Map::new();
    let connection_path = path.child("connectionInfo");
    let connection = reader.object(map, "connectionInfo", path).map_or(&empty, |(_, map)| map);
    reader.known(connection, &connection_path.to_string(), &["type", "kubeConfigFile"]);
    let conditions = reader.objects(map, "matchConditions", path);
    let conditions = conditions.iter().map(|(at, condition)| {
        reader.known(condition, &at.to_string(), &["expression"]);
        reader.text(condition, "expression", at)
    });
    let conditions = conditions.collect();
    let or = |nanos: i64, default: i64| if nanos == 0 { default } else { nanos };
    let authorized = or(duration(reader, map, "authorizedTTL", path), 300_000_000_000);
    let unauthorized = or(duration(reader, map, "unauthorizedTTL", path), 30_000_000_000);
    let kubeconfig = connection.get("kubeConfigFile").is_some_and(|file| !file.is_null());
    DecodedWebhook {
        authorized: (
            authorized,
            reader.boolean(map, "cacheAuthorizedRequests", path).unwrap_or(true),
        ),
        unauthorized: (
            unauthorized,
            reader.boolean(map, "cacheUnauthorizedRequests", path).unwrap_or(true),
        ),
        timeout: duration(reader, map, "timeout", path),
        version: reader.text(map, "subjectAccessReviewVersion", path),
        conditions_version: reader.text(map, "matchConditionSubjectAccessReviewVersion", path),
        failure_policy: reader.text(map, "failurePolicy", path),
        connection: reader.text(connection, "type", &connection_path),
        kubeconfig: kubeconfig.then(|| reader.text(connection, "kubeConfigFile", &connection_path)),
        conditions,
    }
}

fn validated(found: &[DecodedAuthorizer], errors: &mut Vec<Error>) -> Vec<AuthorizerConfig> {
    if found.is_empty() {
        let why = "at least one authorization mode must be defined";
        errors.push(Error::required(&Path::new("authorizers"), why));
    }
    let mut kinds = BTreeSet::new();
    let mut names = BTreeSet::new();
    let mut entries = Vec::with_capacity(found.len());
    for decoded in found {
        let field = decoded.path.child("type");
        let kind = decoded.kind.as_str();
        if kind.is_empty() {
            errors.push(Error::required(&field, ""));
            continue;
        }
        if kind == "ABAC" {
            errors.push(Error::forbidden(&field, NO_ABAC));
            continue;
        }
        if !Kind::NAMES.contains(&kind) {
            errors.push(Error::not_supported(&field, kind, &Kind::NAMES));
            continue;
        }
        if !kinds.insert(kind) && kind != "Webhook" {
            errors.push(Error::duplicate(&field, kind));
            continue;
        }
        let field = decoded.path.child("name");
        let why = name_is_subdomain(&decoded.name, false);
        if decoded.name.is_empty() {
            errors.push(Error::required(&field, ""));
        } else if names.contains(decoded.name.as_str()) {
            errors.push(Error::duplicate(&field, decoded.name.as_str()));
        } else if !why.is_empty() {
            let why = format!("authorizer name is invalid: {}", why.join(", "));
            errors.push(Error::invalid(&field, decoded.name.as_str(), why));
        }
        names.insert(decoded.name.as_str());
        let field = decoded.path.child("webhook");
        let kind = match (Kind::plain(kind), &decoded.webhook) {
            (None, None) => {
                errors.push(Error::required(&field, "required when type=Webhook"));
                continue;
            }
            (None, Some(hook)) => match hook.validated(&decoded.path, errors) {
                Some(hook) => Kind::Webhook(hook),
                None => continue,
            },
            (Some(kind), None) => kind,
            (Some(_), Some(_)) => {
                let why = "may only be specified when type=Webhook";
                errors.push(Error::invalid(&field, "non-null", why));
                continue;
            }
        };
        entries.push(AuthorizerConfig { name: decoded.name.clone(), kind });
    }
    entries
}

impl DecodedWebhook {
    /// The webhook; `None` if it is invalid. Upstream's error paths name its fields as those of the
    /// authorizer.
    fn validated(&self, path: &Path, errors: &mut Vec<Error>) -> Option<Hook> {
        let before = errors.len();
        let field = |name: &str| path.child(name);
        let mut time = |name: &str, nanos: i64, max: i64, why: &str| {
            if nanos == 0 {
                errors.push(Error::required(&field(name), ""));
            } else if nanos < 0 || nanos > max {
                errors.push(Error::invalid(&field(name), duration_text(nanos), why));
            }
            Duration::from_nanos(u64::try_from(nanos).unwrap_or_default())
        };
        let timeout = time("timeout", self.timeout, TIMEOUT_MAX, "must be > 0s and <= 30s");
        let (authorized, unauthorized) = (self.authorized, self.unauthorized);
        let authorized_ttl = time("authorizedTTL", authorized.0, i64::MAX, "must be > 0s");
        let unauthorized_ttl = time("unauthorizedTTL", unauthorized.0, i64::MAX, "must be > 0s");
        let mut choice = |name: &str, decoded: &str, known: &[&str], missing: Option<&str>| {
            if decoded.is_empty() {
                errors.extend(missing.map(|why| Error::required(&field(name), why)));
            } else if !known.contains(&decoded) {
                errors.push(Error::not_supported(&field(name), decoded, known));
            }
        };
        choice("subjectAccessReviewVersion", &self.version, &["v1", "v1beta1"], Some(""));
        let why = "required if match conditions are specified";
        let missing = (!self.conditions.is_empty()).then_some(why);
        let name = "matchConditionSubjectAccessReviewVersion";
        choice(name, &self.conditions_version, &["v1"], missing);
        choice("failurePolicy", &self.failure_policy, &["NoOpinion", "Deny"], Some(""));
        self.check_connection(&path.child("connectionInfo"), errors);
        check_conditions(&self.conditions, &path.child("matchConditions"), errors);
        let kept = |ttl: Duration, kept: bool| if kept { ttl } else { Duration::ZERO };
        (errors.len() == before).then(|| Hook {
            authorized_ttl: kept(authorized_ttl, authorized.1),
            unauthorized_ttl: kept(unauthorized_ttl, unauthorized.1),
            timeout,
            version: if self.version == "v1" { Version::V1 } else { Version::V1beta1 },
            denies_on_failure: self.failure_policy == "Deny",
            kubeconfig: PathBuf::from(self.kubeconfig.as_deref().unwrap_or_default()),
            conditions: self.conditions.clone(),
        })
    }

    fn check_connection(&self, path: &Path, errors: &mut Vec<Error>) {
        let field = path.child("kubeConfigFile");
        let file = self.kubeconfig.as_deref();
        match (self.connection.as_str(), file) {
            ("", _) => errors.push(Error::required(&path.child("type"), "")),
            ("InClusterConfig", Some(file)) => {
                let why = "can only be set when type=KubeConfigFile";
                errors.push(Error::invalid(&field, file, why));
            }
            ("InClusterConfig", None) => {
                let why = "is not allowed for kube-apiserver, which would ask itself: write KubeConfigFile";
                errors.push(Error::forbidden(&path.child("type"), why));
            }
            ("KubeConfigFile", None | Some("")) => errors.push(Error::required(&field, "")),
            ("KubeConfigFile", Some(file)) => {
                if let Err(why) = check_readable(file) {
                    errors.push(Error::invalid(&field, file, why.to_string()));
                }
            }
            (other, _) => {
                let known = ["InClusterConfig", "KubeConfigFile"];
                errors.push(Error::not_supported(&path.child("type"), other, &known));
            }
        }
    }
}

/// Checks that a kubeconfig can be read.
fn check_readable(file: &str) -> Result<(), KubeconfigFileError> {
    if !File::new(file).is_absolute() {
        return Err(KubeconfigFileError::Relative);
    }
    match std::fs::metadata(file) {
        Ok(found) if found.is_file() => Ok(()),
        Ok(_) => Err(KubeconfigFileError::NotRegular),
        Err(source) => Err(KubeconfigFileError::Stat { file: file.to_owned(), source }),
    }
}

fn check_conditions(conditions: &[String], path: &Path, errors: &mut Vec<Error>) {
    if conditions.len() > CONDITIONS_MAX {
        errors.push(Error::too_many(path, conditions.len(), CONDITIONS_MAX));
        return;
    }
    let mut seen = BTreeSet::new();
    for (at, text) in conditions.iter().enumerate() {
        let field = path.index(at).child("expression");
        if text.trim().is_empty() {
            errors.push(Error::required(&field, ""));
        } else if !seen.insert(text) {
            errors.push(Error::duplicate(&field, text.as_str()));
        } else if let Err(error) = condition(text) {
            errors.push(error.at(&field, text));
        }
    }
}

#[cfg(test)]
mod tests;
