//! The file of `--kube-scheduler-arg=config`: a KubeSchedulerConfiguration, decoded strictly,
//! defaulted and validated as upstream does (`pkg/scheduler/apis/config/{v1,validation}`).

mod args;
mod extenders;
mod plugins;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

use api::field::{Error, Path, go_quote};
use component_config::strict_config::{ConfigDocument, ConfigError, DocumentError, Reader};
use serde_json::{Map, Value};

use crate::extender::Extenders;
use crate::profile::{DEFAULT_SCHEDULER, Profile, Profiles};

const VERSION: &str = "kubescheduler.config.k8s.io/v1";
const KIND: &str = "KubeSchedulerConfiguration";
/// Fields of a file, and of those what has no effect, with the reason.
const FIELDS: &[(&str, Option<&str>)] = &[
    ("apiVersion", None),
    ("kind", None),
    ("clientConnection", Some("the scheduler is part of the server, without a client of its own")),
    ("delayCacheUntilActive", Some("only the leading server runs the scheduler")),
    ("enableContentionProfiling", Some("there is no profiling endpoint")),
    ("enableProfiling", Some("there is no profiling endpoint")),
    ("extenders", None),
    ("leaderElection", Some("the leader is that of the store")),
    ("parallelism", Some("one cycle filters nodes in one thread")),
    ("percentageOfNodesToScore", None),
    ("podInitialBackoffSeconds", None),
    ("podMaxBackoffSeconds", None),
    ("profiles", None),
];

/// How the scheduler works.
#[derive(Debug, Clone)]
pub struct Configuration {
    pub(crate) profiles: Profiles,
    pub(crate) extenders: Extenders,
    /// Back-off of a pod after its first failure.
    pub(crate) initial_backoff: Duration,
    /// The longest back-off.
    pub(crate) max_backoff: Duration,
    /// Fields of the file that have no effect, each with the reason.
    pub without_effect: Vec<String>,
}

impl Default for Configuration {
    fn default() -> Self {
        Self {
            profiles: Profiles::default(),
            extenders: Extenders::default(),
            initial_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(10),
            without_effect: Vec::new(),
        }
    }
}

/// The content of a file is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// It is not an object with distinct keys.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// It is of another kind.
    #[error("no kind {} is registered for version {}: must be {KIND} of {VERSION}",
        go_quote(.kind), go_quote(.version), KIND = KIND, VERSION = VERSION)]
    Kind {
        /// `kind` of the file.
        kind: String,
        /// `apiVersion` of the file.
        version: String,
    },
    /// Fields have the wrong type, are unknown or have invalid values.
    #[error(transparent)]
    Fields(#[from] ConfigError),
}

/// Parses YAML or JSON.
///
/// # Errors
///
/// The fields and their errors.
pub fn parse(text: &[u8]) -> Result<Configuration, ConfigurationError> {
    let document = ConfigDocument::decode(text)?;
    let map = document.object("apiVersion and kind")?;
    document.check_keys()?;
    let head = |field: &str| map.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (version, kind) = (head("apiVersion"), head("kind"));
    if (version.as_str(), kind.as_str()) != (VERSION, KIND) {
        return Err(ConfigurationError::Kind { kind, version });
    }
    let mut reader = Reader::default();
    let names: Vec<&str> = FIELDS.iter().map(|(name, _)| *name).collect();
    reader.known(map, "", &names);
    let configuration = read(&mut reader, map);
    reader.finish()?;
    Ok(configuration)
}

fn read(reader: &mut Reader, map: &Map<String, Value>) -> Configuration {
    let root = Path::default();
    let percentage = percentage(reader, map, &root);
    let initial = integer(reader, map, "podInitialBackoffSeconds", &root).unwrap_or(1);
    let max = integer(reader, map, "podMaxBackoffSeconds", &root).unwrap_or(10);
    if initial <= 0 {
        let path = Path::new("podInitialBackoffSeconds");
        reader.errors.push(Error::invalid(&path, initial, "must be greater than 0"));
    }
    if max < initial {
        let path = Path::new("podMaxBackoffSeconds");
        let why = "must be greater than or equal to PodInitialBackoffSeconds";
        reader.errors.push(Error::invalid(&path, max, why));
    }
    if integer(reader, map, "parallelism", &root).is_some_and(|threads| threads <= 0) {
        let path = Path::new("parallelism");
        let why = "should be an integer value greater than zero";
        reader.errors.push(Error::invalid(&path, map["parallelism"].clone(), why));
    }
    let extenders = extenders::read(reader, map);
    let without_effect = FIELDS
        .iter()
        .filter_map(|(name, reason)| Some((name, (*reason)?)))
        .filter(|(name, _)| map.contains_key(**name))
        .map(|(name, reason)| (name.to_string(), reason))
        .chain(extenders.without_effect)
        .map(|(name, reason)| format!("--kube-scheduler-arg=config: {name}: {reason}"))
        .collect();
    Configuration {
        profiles: profiles(reader, map, percentage, &extenders.ignored_resources),
        extenders: Extenders::new(extenders.extenders),
        initial_backoff: seconds(initial),
        max_backoff: seconds(max),
        without_effect,
    }
}

fn seconds(count: i64) -> Duration {
    Duration::from_secs(u64::try_from(count).unwrap_or_default())
}

/// The profiles. `ignored` are the resources that extenders check instead of NodeResourcesFit; they
/// take the place of those of its arguments (`buildExtenders`).
fn profiles(
    reader: &mut Reader,
    map: &Map<String, Value>,
    percentage: Option<usize>,
    ignored: &BTreeSet<String>,
) -> Profiles {
    let given = reader.objects(map, "profiles", &Path::default());
    let mut profiles: Vec<Profile> = Vec::new();
    for (path, profile) in &given {
        let known = ["schedulerName", "percentageOfNodesToScore", "plugins", "pluginConfig"];
        reader.known(profile, &path.to_string(), &known);
        let mut name = reader.text(profile, "schedulerName", path);
        if name.is_empty() && given.len() == 1 {
            name = DEFAULT_SCHEDULER.into();
        }
        let name_path = path.child("schedulerName");
        if name.is_empty() {
            reader.errors.push(Error::required(&name_path, ""));
        } else if let Some(at) = profiles.iter().position(|p| p.scheduler_name == name) {
            let first = Path::new("profiles").index(at).child("schedulerName");
            reader.errors.push(Error::duplicate(&name_path, first.to_string()));
        }
        let own = self::percentage(reader, profile, path).or(percentage);
        profiles.push(Profile {
            scheduler_name: name,
            percentage_of_nodes_to_score: own.unwrap_or(0),
            args: args::read(reader, profile, path),
            ..plugins::read(reader, profile, path)
        });
    }
    if profiles.is_empty() {
        let percentage_of_nodes_to_score = percentage.unwrap_or(0);
        profiles.push(Profile { percentage_of_nodes_to_score, ..Profile::default() });
    }
    if !ignored.is_empty() {
        for profile in &mut profiles {
            profile.args.ignored_resources = ignored.clone();
        }
    }
    Profiles::new(profiles)
}

fn percentage(reader: &mut Reader, map: &Map<String, Value>, parent: &Path) -> Option<usize> {
    const FIELD: &str = "percentageOfNodesToScore";
    let value = integer(reader, map, FIELD, parent)?;
    if !(0..=100).contains(&value) {
        let path = parent.child(FIELD);
        reader.errors.push(Error::invalid(&path, value, "not in valid range [0-100]"));
    }
    usize::try_from(value).ok()
}

/// A whole number; `None` if absent.
fn integer(reader: &mut Reader, map: &Map<String, Value>, key: &str, parent: &Path) -> Option<i64> {
    match map.get(key) {
        None | Some(Value::Null) => None,
        Some(value) => {
            let number = value.as_i64();
            if number.is_none() {
                reader.type_of(&parent.child(key), "an integer");
            }
            number
        }
    }
}
