//! Files of the kind CredentialProviderConfig (upstream:
//! `pkg/credentialprovider/plugin/config.go`).

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::codec::time::parse_duration;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::provider_validation::{InvalidProviders, validate};
use crate::digest::Sha256;

/// Maximum size of a file in bytes.
const SIZE_MAX: u64 = 1 << 20;
/// Maximum number of files in a directory.
const FILES_MAX: usize = 256;
/// The versions of the protocol with a plugin, sorted.
pub(super) const PROTOCOLS: [&str; 3] = [
    PROTOCOL_V1,
    "credentialprovider.kubelet.k8s.io/v1alpha1",
    "credentialprovider.kubelet.k8s.io/v1beta1",
];
/// The version that may send tokens of service accounts.
pub(super) const PROTOCOL_V1: &str = "credentialprovider.kubelet.k8s.io/v1";
const GROUP: &str = "kubelet.config.k8s.io/";

/// Why credential providers cannot be used; the texts are those of upstream.
#[derive(Debug, thiserror::Error)]
pub enum CredentialProviderError {
    /// The directory of the plugins does not exist.
    #[error("plugin binary directory {} did not exist", .0.display())]
    NoDirectory(PathBuf),
    /// The directory of the plugins cannot be inspected.
    #[error("error inspecting binary directory {}: {source}", .path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The configuration cannot be accessed.
    #[error("unable to access path {:?}: {source}", .path.display().to_string())]
    Access {
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A file or directory cannot be read.
    #[error("unable to read {kind} {:?}: {source}", .path.display().to_string())]
    Read {
        /// `file` or `directory`.
        kind: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The directory contains no configuration.
    #[error("no configuration files found in directory {:?}", .0.display().to_string())]
    NoFiles(PathBuf),
    /// A file has an invalid form.
    #[error("error decoding config {:?}: {why}", .path.display().to_string())]
    Decode {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: ProviderFileError,
    },
    /// Two providers have the same name.
    #[error("duplicate provider name {0:?} found in configuration file(s)")]
    Duplicate(String),
    /// A value is invalid.
    #[error("failed to validate credential provider config: {0}")]
    Invalid(InvalidProviders),
    /// The program of a provider does not exist.
    #[error("plugin binary executable {} did not exist", .0.display())]
    NoProgram(PathBuf),
    /// The program of a provider cannot be run.
    #[error("error inspecting binary executable {}: {source}", .path.display())]
    Program {
        /// The program.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

/// Why a file is no configuration of credential providers.
#[derive(Debug, thiserror::Error)]
pub enum ProviderFileError {
    /// The text is not YAML.
    #[error(transparent)]
    Syntax(#[from] api::codec::DecodeError),
    /// The document is a list or a single value.
    #[error("is no object with apiVersion and kind")]
    NoObject,
    /// The document has another kind.
    #[error(
        "must have apiVersion kubelet.config.k8s.io/v1 and kind CredentialProviderConfig, not \
         {version:?} and {kind:?}"
    )]
    Kind {
        /// Its `apiVersion`.
        version: String,
        /// Its `kind`.
        kind: String,
    },
    /// The document has fields that are not known.
    #[error("strict decoding error: {}", .0.join(", "))]
    UnknownFields(Vec<String>),
    /// A field has another type.
    #[error("providers: {0}")]
    Type(#[from] serde_json::Error),
}

/// The checked configuration of all providers.
#[derive(Debug, Clone)]
pub struct CredentialProviders {
    pub(super) providers: Vec<ProviderConfig>,
    pub(super) bin_dir: PathBuf,
    /// `sha256:…` of the files, for the metrics.
    pub(super) hash: String,
}

/// The configuration of one provider.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ProviderConfig {
    /// The name of its program.
    #[serde(default, deserialize_with = "or_default")]
    pub(super) name: String,
    /// The images that it is run for.
    #[serde(default, deserialize_with = "or_default")]
    pub(super) match_images: Vec<String>,
    /// How long its answer is used unless it says so, in nanoseconds; validation requires it.
    #[serde(default, deserialize_with = "duration")]
    pub(super) default_cache_duration: Option<i64>,
    /// The version of the protocol.
    #[serde(default, deserialize_with = "or_default")]
    pub(super) api_version: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) args: Vec<String>,
    /// Variables in addition to those of this process.
    #[serde(default, deserialize_with = "or_default")]
    pub(super) env: Vec<Variable>,
    #[serde(default)]
    pub(super) token_attributes: Option<TokenAttributes>,
}

impl ProviderConfig {
    /// How long an answer is used unless it says so.
    pub(super) fn default_lifetime(&self) -> Duration {
        let nanos = self.default_cache_duration.and_then(|nanos| u64::try_from(nanos).ok());
        Duration::from_nanos(nanos.unwrap_or_default())
    }
}

/// A variable of the environment of a plugin.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Variable {
    #[serde(default, deserialize_with = "or_default")]
    pub(super) name: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) value: String,
}

/// What a plugin receives of the pod's service account (KEP 4412).
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct TokenAttributes {
    /// The audience of the tokens.
    #[serde(deserialize_with = "or_default")]
    pub(super) service_account_token_audience: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) cache_type: String,
    /// Whether the plugin does not run for pods without a service account.
    pub(super) require_service_account: Option<bool>,
    #[serde(deserialize_with = "or_default")]
    pub(super) required_service_account_annotation_keys: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) optional_service_account_annotation_keys: Vec<String>,
}

/// Null is the same as an absent field.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A duration in Go's notation.
fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    let text: Option<String> = Option::deserialize(deserializer)?;
    text.map(|text| parse_duration(&text).map_err(serde::de::Error::custom)).transpose()
}

impl CredentialProviders {
    /// Reads the configuration, a file or a directory, and checks that the programs exist in
    /// `bin_dir`.
    ///
    /// # Errors
    /// The first thing that is missing or invalid.
    pub fn load(path: &Path, bin_dir: &Path) -> Result<Self, CredentialProviderError> {
        match std::fs::metadata(bin_dir) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(CredentialProviderError::NoDirectory(bin_dir.to_owned()));
            }
            Err(source) => {
                let path = bin_dir.to_owned();
                return Err(CredentialProviderError::Directory { path, source });
            }
        }
        let mut hash = Sha256::default();
        let mut providers: Vec<ProviderConfig> = Vec::new();
        for file in files(path)? {
            let text = read(&file)?;
            let length = u64::try_from(text.len()).unwrap_or(u64::MAX);
            hash.update(&length.to_be_bytes());
            hash.update(&text);
            let found = decode(&text)
                .map_err(|why| CredentialProviderError::Decode { path: file.clone(), why })?;
            for provider in found {
                if providers.iter().any(|known| known.name == provider.name) {
                    return Err(CredentialProviderError::Duplicate(provider.name));
                }
                providers.push(provider);
            }
        }
        validate(&providers).map_err(CredentialProviderError::Invalid)?;
        for provider in &providers {
            check_program(&bin_dir.join(&provider.name))?;
        }
        Ok(Self { providers, bin_dir: bin_dir.to_owned(), hash: hash.finish() })
    }
}

/// The files of a configuration in the order of their names.
fn files(path: &Path) -> Result<Vec<PathBuf>, CredentialProviderError> {
    let access = |source| CredentialProviderError::Access { path: path.to_owned(), source };
    if !std::fs::metadata(path).map_err(access)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let kind = "directory";
    let read = |source| CredentialProviderError::Read { kind, path: path.to_owned(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(read)? {
        let entry = entry.map_err(read)?;
        let file = entry.path();
        let extension = file.extension().and_then(OsStr::to_str);
        let is_config = matches!(extension, Some("json" | "yaml" | "yml"));
        if is_config && !entry.file_type().map_err(read)?.is_dir() {
            files.push(file);
        }
        if files.len() > FILES_MAX {
            return Err(read(io::Error::other("contains more than 256 files")));
        }
    }
    if files.is_empty() {
        return Err(CredentialProviderError::NoFiles(path.to_owned()));
    }
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<Vec<u8>, CredentialProviderError> {
    use std::io::Read;
    let kind = "file";
    let error = |source| CredentialProviderError::Read { kind, path: path.to_owned(), source };
    let mut text = Vec::new();
    let file = std::fs::File::open(path).map_err(error)?;
    file.take(SIZE_MAX + 1).read_to_end(&mut text).map_err(error)?;
    if u64::try_from(text.len()).is_ok_and(|size| size > SIZE_MAX) {
        return Err(error(io::Error::other("is larger than 1 MiB")));
    }
    Ok(text)
}

/// Checks that a program is a file that can be executed.
fn check_program(path: &Path) -> Result<(), CredentialProviderError> {
    let error = |source| CredentialProviderError::Program { path: path.to_owned(), source };
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(CredentialProviderError::NoProgram(path.to_owned()));
        }
        Err(source) => return Err(error(source)),
    };
    if metadata.is_dir() {
        return Err(error(io::Error::other("is a directory")));
    }
    if metadata.permissions().mode() & 0o111 == 0 {
        return Err(error(io::ErrorKind::PermissionDenied.into()));
    }
    Ok(())
}

/// Decodes a file; its fields have no meaning beyond their types yet.
fn decode(text: &[u8]) -> Result<Vec<ProviderConfig>, ProviderFileError> {
    let value = api::codec::yaml::parse(text)?;
    let object = value.as_object().ok_or(ProviderFileError::NoObject)?;
    let field = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default();
    let (version, kind) = (field("apiVersion"), field("kind"));
    let known = version.strip_prefix(GROUP).filter(|v| matches!(*v, "v1" | "v1beta1" | "v1alpha1"));
    let (Some(known), "CredentialProviderConfig") = (known, kind) else {
        let (version, kind) = (version.to_owned(), kind.to_owned());
        return Err(ProviderFileError::Kind { version, kind });
    };
    let mut unknown = Vec::new();
    collect_unknown(object, "", &["apiVersion", "kind", "providers"], &mut unknown);
    let providers = object.get("providers").cloned().unwrap_or_default();
    for (index, provider) in providers.as_array().into_iter().flatten().enumerate() {
        collect_unknown_of_provider(provider, index, known == "v1", &mut unknown);
    }
    if !unknown.is_empty() {
        let fields: Vec<String> =
            unknown.iter().map(|path| format!("unknown field {path:?}")).collect();
        return Err(ProviderFileError::UnknownFields(fields));
    }
    let providers: Option<Vec<ProviderConfig>> = serde_json::from_value(providers)?;
    Ok(providers.unwrap_or_default())
}

fn collect_unknown_of_provider(
    provider: &Value,
    index: usize,
    has_tokens: bool,
    out: &mut Vec<String>,
) {
    let Some(object) = provider.as_object() else { return };
    let prefix = format!("providers[{index}].");
    let mut known =
        vec!["name", "matchImages", "defaultCacheDuration", "apiVersion", "args", "env"];
    if has_tokens {
        known.push("tokenAttributes");
    }
    collect_unknown(object, &prefix, &known, out);
    for (at, variable) in
        object.get("env").and_then(Value::as_array).into_iter().flatten().enumerate()
    {
        let Some(variable) = variable.as_object() else { continue };
        collect_unknown(variable, &format!("{prefix}env[{at}]."), &["name", "value"], out);
    }
    if let Some(attributes) = object.get("tokenAttributes").and_then(Value::as_object) {
        let known = [
            "serviceAccountTokenAudience",
            "cacheType",
            "requireServiceAccount",
            "requiredServiceAccountAnnotationKeys",
            "optionalServiceAccountAnnotationKeys",
        ];
        if has_tokens {
            collect_unknown(attributes, &format!("{prefix}tokenAttributes."), &known, out);
        }
    }
}

fn collect_unknown(
    object: &Map<String, Value>,
    prefix: &str,
    known: &[&str],
    out: &mut Vec<String>,
) {
    let unknown = object.keys().filter(|key| !known.contains(&key.as_str()));
    out.extend(unknown.map(|key| format!("{prefix}{key}")));
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n";

    fn provider(name: &str) -> String {
        format!(
            "providers: [{{name: {name}, matchImages: [r.io, '*.r.io'], defaultCacheDuration: 10m, \
             apiVersion: credentialprovider.kubelet.k8s.io/v1, args: [get], \
             env: [{{name: A, value: b}}]}}]\n"
        )
    }

    fn load(files: &[(&str, &str)], programs: &[&str]) -> Result<CredentialProviders, String> {
        let root = tempfile::tempdir().unwrap();
        let (config, bin) = (root.path().join("config"), root.path().join("bin"));
        std::fs::create_dir_all(&config).unwrap();
        std::fs::create_dir_all(&bin).unwrap();
        for (name, text) in files {
            std::fs::write(config.join(name), text).unwrap();
        }
        for program in programs {
            let path = bin.join(program);
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        CredentialProviders::load(&config, &bin)
            .map_err(|error| error.to_string().replace(&root.path().display().to_string(), "ROOT"))
    }

    #[test]
    fn the_files_of_a_directory_are_read_in_the_order_of_their_names() {
        let (a, b) = (format!("{V1}{}", provider("a")), format!("{V1}{}", provider("b")));
        let files = [("2.yml", a.as_str()), ("1.yaml", b.as_str()), ("0.txt", "{")];
        let loaded = load(&files, &["a", "b"]).unwrap();
        let names: Vec<&str> = loaded.providers.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["b", "a"]);
        let first = &loaded.providers[0];
        assert_eq!(first.default_lifetime(), Duration::from_secs(600));
        assert_eq!((first.args.len(), first.env[0].value.as_str()), (1, "b"));
        assert!(loaded.hash.starts_with("sha256:"));
        let json = r#"{"apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "CredentialProviderConfig", "providers": [{"name": "c", "matchImages": ["x"],
            "defaultCacheDuration": "0s", "args": null,
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1beta1"}]}"#;
        assert_eq!(
            load(&[("a.yaml", &a), ("c.json", json)], &["a", "c"]).unwrap().providers.len(),
            2
        );
    }

    #[test]
    fn invalid_files_have_the_errors_of_upstream() {
        let a = format!("{V1}{}", provider("a"));
        let alpha = a.replace("k8s.io/v1\nkind", "k8s.io/v1alpha1\nkind");
        let tokens = alpha.replace("args:", "tokenAttributes: {}, args:");
        let field = a.replace("args:", "arg:");
        let group = a.replace("kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v2");
        let kind = a.replace("CredentialProviderConfig", "Config");
        let unknown = "strict decoding error: unknown field \"providers[0].";
        for (files, want) in [
            (vec![], "no configuration files found in directory \"ROOT/config\"".to_owned()),
            (vec![("a.txt", a.as_str())], "no configuration files found in".to_owned()),
            (
                vec![("1.yaml", a.as_str()), ("2.yaml", a.as_str())],
                "duplicate provider name \"a\" found in configuration file(s)".to_owned(),
            ),
            (vec![("a.yaml", field.as_str())], format!("{unknown}arg\"")),
            (vec![("a.yaml", tokens.as_str())], format!("{unknown}tokenAttributes\"")),
            (vec![("a.yaml", group.as_str())], "must have apiVersion".to_owned()),
            (vec![("a.yaml", kind.as_str())], "must have apiVersion".to_owned()),
            (
                vec![("a.yaml", V1)],
                "failed to validate credential provider config: providers: Required value: at \
                 least 1 item in plugins is required"
                    .to_owned(),
            ),
            (
                vec![("a.yaml", alpha.as_str())],
                "plugin binary executable ROOT/bin/a did not".into(),
            ),
        ] {
            let error = load(&files, &[]).unwrap_err();
            assert!(error.contains(&want), "{error}");
        }
        let none = Path::new("/none");
        let error = CredentialProviders::load(none, none).unwrap_err().to_string();
        assert_eq!(error, "plugin binary directory /none did not exist");
        let error = CredentialProviders::load(none, Path::new("/")).unwrap_err().to_string();
        assert!(error.starts_with("unable to access path \"/none\": "), "{error}");
    }
}
