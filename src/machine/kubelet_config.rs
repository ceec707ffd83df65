//! Files of KubeletConfiguration: the one of `--kubelet-arg=config=FILE`, and those of a folder,
//! merged as by the kubelet (`cmd/kubelet/app/server.go`). Their fields become arguments of the
//! kubelet.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use component_config::strict_config::{ConfigDocument, DocumentError};
use node::EvictionThresholds;
use serde_json::{Map, Value};
use sorting::CompactSort as _;

use crate::command_line::components::PlacedArgument;
use crate::command_line::components::kubelet::ENFORCE;
use crate::command_line::components::kubelet_config::{
    EVICTION_HARD, FIELDS, Field, Form, MERGE_THRESHOLDS,
};
use crate::command_line::nearest;

/// Largest file.
const SIZE_MAX: u64 = 1 << 20;
/// Maximum number of files in the folder, and of folders below each other.
const FILES_MAX: usize = 256;
const DEPTH_MAX: usize = 8;
/// The file in which k3s writes its own defaults.
const DEFAULTS_OF_K3S: &str = "00-k3s-defaults.conf";

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum KubeletConfigError {
    /// A file or folder cannot be read.
    #[error("{}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file is too large, or there are too many.
    #[error("{}: {limit}", .path.display())]
    Limit {
        /// The file or folder.
        path: PathBuf,
        /// The limit.
        limit: &'static str,
    },
    /// A file is not an object with distinct keys.
    #[error("{}: {source}", .path.display())]
    Document {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: DocumentError,
    },
    /// A file is of another kind.
    #[error(
        "{}: must have apiVersion kubelet.config.k8s.io/v1beta1 and kind KubeletConfiguration",
        .0.display()
    )]
    Kind(PathBuf),
    /// There is no such field.
    #[error("{}: unknown field {field:?}{near}", .path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
        /// The path of the field.
        field: String,
        /// The field that is probably meant, as the end of the sentence.
        near: String,
    },
    /// A value has the wrong type.
    #[error("{}: {field} must be {want}", .path.display())]
    Type {
        /// The file.
        path: PathBuf,
        /// The path of the field.
        field: &'static str,
        /// The right type.
        want: &'static str,
    },
}

/// The merged files.
#[derive(Debug, Default)]
pub(super) struct KubeletConfig {
    merged: Map<String, Value>,
    /// The last file with each field.
    files: BTreeMap<&'static str, PathBuf>,
    /// Files that are not read, with the reason.
    pub(super) not_read: Vec<String>,
}

/// The fields as arguments.
#[derive(Debug, Default)]
pub(super) struct FieldArguments {
    /// Arguments of the kubelet.
    pub(super) arguments: Vec<PlacedArgument>,
    /// Fields without an argument.
    pub(super) own: Vec<PlacedArgument>,
}

impl KubeletConfig {
    /// Reads a file, then those of a folder.
    ///
    /// # Errors
    /// The first file that is invalid, or a file or folder that cannot be read.
    pub(super) fn read(
        file: Option<&Path>,
        folder: Option<&Path>,
    ) -> Result<Self, KubeletConfigError> {
        let mut config = Self::default();
        if let Some(file) = file {
            config.add_file(file)?;
        }
        let mut files = Vec::new();
        if let Some(folder) = folder {
            list(folder, 0, &mut files)?;
        }
        for file in files {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            if name == DEFAULTS_OF_K3S {
                let why = "it is a file of k3s with the defaults of its kubelet";
                config.not_read.push(format!("{}: {why}", file.display()));
            } else if file.extension().is_none_or(|extension| extension != "conf") {
                let why = "only files whose names end with .conf are read";
                config.not_read.push(format!("{}: {why}", file.display()));
            } else {
                config.add_file(&file)?;
            }
        }
        Ok(config)
    }

    fn add_file(&mut self, path: &Path) -> Result<(), KubeletConfigError> {
        let error = |source| KubeletConfigError::Read { path: path.to_owned(), source };
        let mut text = Vec::new();
        let file = std::fs::File::open(path).map_err(error)?;
        file.take(SIZE_MAX + 1).read_to_end(&mut text).map_err(error)?;
        if u64::try_from(text.len()).is_ok_and(|size| size > SIZE_MAX) {
            let limit = "is larger than 1 MiB";
            return Err(KubeletConfigError::Limit { path: path.to_owned(), limit });
        }
        self.add(path, &text)
    }

    /// Merges the text of a file (RFC 7396).
    fn add(&mut self, path: &Path, text: &[u8]) -> Result<(), KubeletConfigError> {
        let error = |source| KubeletConfigError::Document { path: path.to_owned(), source };
        let document = ConfigDocument::decode(text).map_err(error)?;
        document.check_keys().map_err(error)?;
        let mut object = document.object("apiVersion and kind").map_err(error)?.clone();
        let version = object.remove("apiVersion");
        let kind = object.remove("kind");
        let is = |value: Option<Value>, text: &str| value.is_some_and(|v| v.as_str() == Some(text));
        if !is(version, "kubelet.config.k8s.io/v1beta1") || !is(kind, "KubeletConfiguration") {
            return Err(KubeletConfigError::Kind(path.to_owned()));
        }
        check(path, "", &object)?;
        for field in FIELDS {
            if let Some(value) = at(&object, field.path) {
                if !value.is_null() {
                    text_of(field, value).ok_or_else(|| wrong_type(path, field))?;
                }
                self.files.insert(field.path, path.to_owned());
            }
        }
        merge(&mut self.merged, object);
        Ok(())
    }

    /// Whether thresholds that `evictionHard` does not name keep their defaults. That is the
    /// default here, because k3s merges the files with thresholds of its own.
    fn merges_default_thresholds(&self) -> bool {
        at(&self.merged, MERGE_THRESHOLDS) != Some(&Value::Bool(false))
    }

    /// The value of a field; `None` if no file has it, or one that is the same as none.
    pub(super) fn value(&self, field: &Field) -> Option<&Value> {
        let value = at(&self.merged, field.path).filter(|value| !value.is_null())?;
        let text = text_of(field, value)?;
        (!field.zero_is_unset || !is_zero(field.form, value, &text)).then_some(value)
    }

    /// The fields as arguments, without those whose argument is in `given`.
    ///
    /// # Errors
    /// A value of the wrong type.
    pub(super) fn arguments(&self, given: &[&str]) -> Result<FieldArguments, KubeletConfigError> {
        let mut out = FieldArguments::default();
        for field in FIELDS {
            let value = at(&self.merged, field.path).filter(|value| !value.is_null());
            let (Some(value), Some(file)) = (value, self.files.get(field.path)) else { continue };
            let mut text = text_of(field, value).ok_or_else(|| wrong_type(file, field))?;
            if field.zero_is_unset && is_zero(field.form, value, &text) {
                continue;
            }
            if field.argument == Some(ENFORCE) && text.is_empty() {
                // An empty list is not the default, as in the kubelet.
                text = "none".to_owned();
            }
            if field.argument == Some(EVICTION_HARD) && self.merges_default_thresholds() {
                text = with_default_thresholds(&text);
            }
            let place = Some(format!("{}: {}", file.display(), field.path));
            match field.argument {
                // Feature gates of both apply; the kubelet checks all of them.
                Some(name) if given.contains(&name) && field.form != Form::Gates => {}
                Some(name) => {
                    out.arguments.push(PlacedArgument { text: format!("{name}={text}"), place })
                }
                None => {
                    out.own.push(PlacedArgument { text: format!("{}={text}", field.path), place })
                }
            }
        }
        Ok(out)
    }
}

fn wrong_type(path: &Path, field: &Field) -> KubeletConfigError {
    let want = match field.form {
        Form::Text | Form::Url => "a string",
        Form::Duration => "a duration, such as 40s or 1h",
        Form::Number => "a whole number",
        Form::Bool => "true or false",
        Form::Texts => "a list of strings",
        Form::Pairs(_) => "an object with strings",
        Form::Gates => "an object with true or false",
        Form::Taints => "a list of taints with key, value and effect",
        Form::ReservedMemory => "a list of numaNode and limits",
        Form::GracePeriods => "a list of priority and shutdownGracePeriodSeconds",
        Form::Headers => "an object with lists of strings",
        Form::Any => "a value",
    };
    KubeletConfigError::Type { path: path.to_owned(), field: field.path, want }
}

/// The files below a folder in the order in which the kubelet reads them.
fn list(folder: &Path, depth: usize, out: &mut Vec<PathBuf>) -> Result<(), KubeletConfigError> {
    let error = |source| KubeletConfigError::Read { path: folder.to_owned(), source };
    let limit = |limit| KubeletConfigError::Limit { path: folder.to_owned(), limit };
    if depth > DEPTH_MAX {
        return Err(limit("has more than eight folders below each other"));
    }
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(error)? {
        let entry = entry.map_err(error)?;
        entries.push((entry.path(), entry.file_type().map_err(error)?.is_dir()));
        if entries.len() > FILES_MAX {
            return Err(limit("contains more than 256 files"));
        }
    }
    entries.compact_sort();
    for (path, is_folder) in entries {
        if is_folder {
            list(&path, depth + 1, out)?;
        } else {
            out.push(path);
        }
        if out.len() > FILES_MAX {
            return Err(limit("contains more than 256 files"));
        }
    }
    Ok(())
}

/// Rejects unknown fields.
fn check(path: &Path, parent: &str, object: &Map<String, Value>) -> Result<(), KubeletConfigError> {
    for (key, value) in object {
        let field = if parent.is_empty() { key.clone() } else { format!("{parent}.{key}") };
        if FIELDS.iter().any(|known| known.path == field) {
            continue;
        }
        let inner = format!("{field}.");
        let has_fields = FIELDS.iter().any(|known| known.path.starts_with(&inner));
        match value {
            Value::Object(object) if has_fields => check(path, &field, object)?,
            Value::Null if has_fields => {}
            _ => {
                let near = nearest(&field, FIELDS.iter().map(|known| known.path));
                let near = near.map(|n| format!(", did you mean {n}?")).unwrap_or_default();
                return Err(KubeletConfigError::Unknown { path: path.to_owned(), field, near });
            }
        }
    }
    Ok(())
}

/// The value at a path with dots.
fn at<'a>(object: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    match path.split_once('.') {
        None => object.get(path),
        Some((first, rest)) => at(object.get(first)?.as_object()?, rest),
    }
}

/// Merges `patch` into `object`: null removes, objects are merged, other values replace.
fn merge(object: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (key, value) in patch {
        match value {
            Value::Null => {
                object.remove(&key);
            }
            Value::Object(inner) => {
                let target = object.entry(key).or_insert(Value::Null);
                if !target.is_object() {
                    *target = Value::Object(Map::new());
                }
                if let Value::Object(target) = target {
                    merge(target, inner);
                }
            }
            value => {
                object.insert(key, value);
            }
        }
    }
}

/// The value as the text of an argument; `None` if it has the wrong type.
fn text_of(field: &Field, value: &Value) -> Option<String> {
    let scalar = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        _ => None,
    };
    match field.form {
        Form::Text | Form::Url => scalar(value),
        Form::Duration => {
            let text = value.as_str()?;
            api::codec::time::parse_duration(text).ok()?;
            Some(short_duration(text))
        }
        Form::Number => value.as_i64().map(|number| number.to_string()),
        Form::Bool => value.as_bool().map(|is| is.to_string()),
        Form::Texts => {
            let texts: Option<Vec<String>> = value.as_array()?.iter().map(scalar).collect();
            Some(texts?.join(","))
        }
        Form::Pairs(between) => {
            let pair = |(name, value): (&String, &Value)| match value {
                // A null removes an entry of an earlier file.
                Value::Null => Some(None),
                value => Some(Some(format!("{name}{between}{}", scalar(value)?))),
            };
            let pairs: Option<Vec<_>> = value.as_object()?.iter().map(pair).collect();
            Some(pairs?.into_iter().flatten().collect::<Vec<_>>().join(","))
        }
        Form::Gates => {
            let gate =
                |(name, value): (&String, &Value)| Some(format!("{name}={}", value.as_bool()?));
            let gates: Option<Vec<_>> = value.as_object()?.iter().map(gate).collect();
            Some(gates?.join(","))
        }
        Form::Taints => {
            let taints: Option<Vec<_>> = value.as_array()?.iter().map(taint).collect();
            Some(taints?.join(","))
        }
        Form::ReservedMemory => {
            let nodes: Option<Vec<_>> = value.as_array()?.iter().map(reserved_memory).collect();
            Some(nodes?.join(";"))
        }
        Form::GracePeriods => {
            let periods: Option<Vec<_>> = value.as_array()?.iter().map(grace_period).collect();
            Some(periods?.join(","))
        }
        Form::Headers => {
            let is_text = |value: &Value| value.is_string();
            let is_list = |v: &Value| v.as_array().is_some_and(|list| list.iter().all(is_text));
            let is_valid = value.as_object()?.values().all(is_list);
            // A value may contain the commas of the argument.
            is_valid.then(|| value.to_string())
        }
        Form::Any => Some(value.to_string()),
    }
}

/// `PRIORITY=SECONDS`
fn grace_period(value: &Value) -> Option<String> {
    const SECONDS: &str = "shutdownGracePeriodSeconds";
    let object = value.as_object()?;
    if object.keys().any(|key| !matches!(key.as_str(), "priority" | SECONDS)) {
        return None;
    }
    let number = |key: &str| object.get(key).map_or(Some(0), Value::as_i64);
    let priority = i32::try_from(number("priority")?).ok()?;
    Some(format!("{priority}={}", number(SECONDS)?))
}

/// `NODE:TYPE=QUANTITY,…`
fn reserved_memory(value: &Value) -> Option<String> {
    let object = value.as_object()?;
    if object.keys().any(|key| !matches!(key.as_str(), "numaNode" | "limits")) {
        return None;
    }
    let node = object.get("numaNode").map_or(Some(0), Value::as_u64)?;
    let limit = |(name, amount): (&String, &Value)| match amount {
        Value::String(text) => Some(format!("{name}={text}")),
        Value::Number(number) => Some(format!("{name}={number}")),
        _ => None,
    };
    let limits: Option<Vec<_>> = object.get("limits")?.as_object()?.iter().map(limit).collect();
    Some(format!("{node}:{}", limits?.join(",")))
}

/// `KEY=VALUE:EFFECT`
fn taint(value: &Value) -> Option<String> {
    let object = value.as_object()?;
    if object.keys().any(|key| !matches!(key.as_str(), "key" | "value" | "effect")) {
        return None;
    }
    let text = |key: &str| object.get(key).map_or(Some(""), Value::as_str);
    Some(format!("{}={}:{}", text("key")?, text("value")?, text("effect")?))
}

/// `4h` for `4h0m0s`, as upstream writes durations.
fn short_duration(text: &str) -> String {
    let text = text.strip_suffix("m0s").map_or(text.to_owned(), |rest| format!("{rest}m"));
    text.strip_suffix("h0m").map(|rest| format!("{rest}h")).unwrap_or(text)
}

fn is_zero(form: Form, value: &Value, text: &str) -> bool {
    match form {
        Form::Number => value.as_i64() == Some(0),
        Form::Bool => value.as_bool() == Some(false),
        Form::Duration => api::codec::time::parse_duration(text).is_ok_and(|time| time == 0),
        Form::Any | Form::Headers => match value {
            Value::Array(items) => items.is_empty(),
            Value::Object(items) => items.is_empty(),
            Value::Number(number) => number.as_f64() == Some(0.0),
            _ => false,
        },
        _ => text.is_empty(),
    }
}

/// Adds the default thresholds of signals that are not named.
fn with_default_thresholds(text: &str) -> String {
    let named: Vec<&str> = text.split(',').filter_map(|part| part.split('<').next()).collect();
    let mut parts: Vec<String> = text.split(',').map(str::to_owned).collect();
    for (signal, value) in EvictionThresholds::default().texts().hard {
        if !named.contains(&signal) {
            parts.push(format!("{signal}<{value}"));
        }
    }
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

    fn config(texts: &[&str]) -> Result<KubeletConfig, String> {
        let mut config = KubeletConfig::default();
        for (n, text) in texts.iter().enumerate() {
            let path = format!("/{n}.conf");
            config
                .add(Path::new(&path), format!("{KIND}{text}").as_bytes())
                .map_err(|error| error.to_string())?;
        }
        Ok(config)
    }

    fn texts(given: &[PlacedArgument]) -> Vec<String> {
        given.iter().map(|g| format!("{} ({})", g.text, g.place.as_deref().unwrap())).collect()
    }

    #[test]
    fn fields_are_arguments_and_later_files_take_precedence() {
        let config = config(&[
            "maxPods: 50\nsystemReserved: {cpu: 100m, memory: 1Gi}\nreadOnlyPort: 0\n\
             serializeImagePulls: false\nstreamingConnectionIdleTimeout: 4h0m0s\n\
             authentication: {anonymous: {enabled: false}}\nimageMinimumGCAge: 0s\n\
             registerWithTaints: [{key: a, value: b, effect: NoSchedule}]\n",
            "maxPods: 60\nsystemReserved: {cpu: null, memory: 2Gi}\nshutdownGracePeriod: 20s\n\
             allowedUnsafeSysctls: [net.*, kernel.msg*]\nregisterWithTaints: null\n",
        ])
        .unwrap();
        let fields = config.arguments(&["serialize-image-pulls"]).unwrap();
        assert_eq!(
            texts(&fields.arguments),
            [
                "allowed-unsafe-sysctls=net.*,kernel.msg* (/1.conf: allowedUnsafeSysctls)",
                "anonymous-auth=false (/0.conf: authentication.anonymous.enabled)",
                "max-pods=60 (/1.conf: maxPods)",
                "streaming-connection-idle-timeout=4h (/0.conf: streamingConnectionIdleTimeout)",
                "system-reserved=memory=2Gi (/1.conf: systemReserved)",
            ]
        );
        let own = ["shutdownGracePeriod=20s (/1.conf: shutdownGracePeriod)"];
        assert_eq!(texts(&fields.own), own);
    }

    #[test]
    fn thresholds_that_are_not_named_keep_their_defaults() {
        let text = |merge: &str| {
            let hard = "evictionHard: {memory.available: 1Gi, nodefs.available: 0%}";
            let config = config(&[&format!("{hard}\n{merge}")]).unwrap();
            config.arguments(&[]).unwrap().arguments[0].text.clone()
        };
        let own = "eviction-hard=memory.available<1Gi,nodefs.available<0%";
        let merged =
            format!("{own},imagefs.available<5%,imagefs.inodesFree<5%,nodefs.inodesFree<5%");
        assert_eq!(text(""), merged);
        assert_eq!(text("mergeDefaultEvictionSettings: true"), merged);
        assert_eq!(text("mergeDefaultEvictionSettings: false"), own);
    }

    #[test]
    fn invalid_files_are_refused_with_the_place() {
        for (text, want) in [
            ("maxPod: 1", "/0.conf: unknown field \"maxPod\", did you mean maxPods?"),
            ("authentication: {x: 1}", "/0.conf: unknown field \"authentication.x\""),
            ("maxPods: many", "/0.conf: maxPods must be a whole number"),
            ("evictionHard: [a]", "/0.conf: evictionHard must be an object with strings"),
            ("syncFrequency: 5", "/0.conf: syncFrequency must be a duration"),
            ("maxPods: 1\nmaxPods: 2", "/0.conf: strict decoding error: "),
            ("registerWithTaints: [{key: a, time: b}]", "must be a list of taints"),
        ] {
            let error = config(&[text]).unwrap_err();
            assert!(error.starts_with(want) || error.contains(want), "{error}");
        }
        let mut none = KubeletConfig::default();
        let error = none.add(Path::new("/x"), b"kind: KubeletConfiguration").unwrap_err();
        assert!(error.to_string().contains("must have apiVersion kubelet.config.k8s.io/v1beta1"));
        let error = none.add(Path::new("/x"), b"[]").unwrap_err();
        assert_eq!(error.to_string(), "/x: is no object with apiVersion and kind");
    }

    #[test]
    fn the_files_of_a_folder_are_read_in_the_order_of_their_names() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            std::fs::write(root.path().join(name), format!("{KIND}{text}")).unwrap();
        };
        std::fs::create_dir(root.path().join("20")).unwrap();
        write("10.conf", "maxPods: 10");
        write("20/x.conf", "maxPods: 20\npodsPerCore: 2");
        write("15.conf", "maxPods: 15");
        write("99.yaml", "maxPods: 99");
        write(DEFAULTS_OF_K3S, "clusterDNS: [10.43.0.10]");
        let config = KubeletConfig::read(None, Some(root.path())).unwrap();
        let fields = config.arguments(&[]).unwrap();
        let given: Vec<_> = fields.arguments.iter().map(|g| g.text.as_str()).collect();
        assert_eq!(given, ["max-pods=20", "pods-per-core=2"]);
        assert_eq!(config.not_read.len(), 2, "{:?}", config.not_read);
        let missing = root.path().join("missing");
        assert!(KubeletConfig::read(None, Some(&missing)).is_err());
    }
}
