//! Which admission plugins run, and their configuration: the flags `enable-admission-plugins`,
//! `disable-admission-plugins` and `admission-control-config-file` of upstream's API server.

use std::path::PathBuf;

use api::field::{Error, Path};
use api::validation::names;
use serde_json::{Map, Value};

use super::event_rate_limit::{EventLimit, LimitType};
use super::pod_security::policy::{self, LevelVersion, Policy};
use component_config::flags::parts;
use component_config::strict_config::{ConfigDocument, ConfigError, DocumentError, Reader};

const ENABLE: &str = "enable-admission-plugins";
const DISABLE: &str = "disable-admission-plugins";
const FILE: &str = "admission-control-config-file";

/// The plugins that run by default, in upstream's order; all can be disabled.
const DEFAULT: [&str; 23] = [
    "NamespaceLifecycle",
    "LimitRanger",
    "ServiceAccount",
    "NodeRestriction",
    "TaintNodesByCondition",
    "PodSecurity",
    "Priority",
    "DefaultTolerationSeconds",
    "DefaultStorageClass",
    "StorageObjectInUseProtection",
    "PersistentVolumeClaimResize",
    "RuntimeClass",
    "CertificateApproval",
    "CertificateSigning",
    "CertificateSubjectRestriction",
    "DefaultIngressClass",
    "PodTopologyLabels",
    "PodResizeValidator",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionWebhook",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionWebhook",
    "ResourceQuota",
];

/// The plugins that run only when they are enabled.
const OPTIONAL: [&str; 2] = ["DenyServiceExternalIPs", "EventRateLimit"];

/// Plugins of upstream that kube-lite does not have: to disable them changes nothing.
const ABSENT: [&str; 15] = [
    "AlwaysAdmit",
    "AlwaysDeny",
    "AlwaysPullImages",
    "ClusterTrustBundleAttest",
    "ExtendedResourceToleration",
    "ImagePolicyWebhook",
    "LimitPodHardAntiAffinityTopology",
    "NamespaceAutoProvision",
    "NamespaceExists",
    "NodeDeclaredFeatureValidator",
    "OwnerReferencesPermissionEnforcement",
    "PersistentVolumeLabel",
    "PodNodeSelector",
    "PodTolerationRestriction",
    "SecurityContextDeny",
];

/// A setting of admission cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionConfigError {
    /// Upstream has no such plugin.
    #[error("{flag} plugin {name:?} is unknown")]
    Unknown {
        /// The flag.
        flag: &'static str,
        /// The plugin.
        name: String,
    },
    /// kube-lite does not have the plugin.
    #[error("{ENABLE}: plugin {0} is not part of kube-lite; remove it")]
    Absent(String),
    /// Both flags name a plugin.
    #[error("{0} in {ENABLE} and {DISABLE} overlapped")]
    Overlap(String),
    /// The plugin needs limits.
    #[error("{ENABLE}: EventRateLimit needs its configuration in {FILE}")]
    NoLimits,
    /// A file cannot be read.
    #[error("{FILE}: {0}")]
    Unreadable(#[from] std::io::Error),
    /// A file is no configuration.
    #[error("{FILE}={}: {source}", .file.display())]
    Invalid {
        /// The file.
        file: PathBuf,
        /// Why.
        source: ContentError,
    },
}

/// The content of a file is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ContentError {
    /// It is not an object with distinct keys.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// It is of another kind.
    #[error("must be {wanted}, not {kind} of {version}")]
    Kind {
        /// The expected kinds.
        wanted: &'static str,
        /// The kind that it has.
        kind: String,
        /// The version that it has.
        version: String,
    },
    /// kube-lite cannot configure this plugin.
    #[error("plugin {0} cannot be configured; remove it")]
    Plugin(String),
    /// A plugin has two configurations, or none.
    #[error("plugin {0} needs either configuration or path")]
    NoConfiguration(String),
    /// A file that `path` names cannot be read.
    #[error(transparent)]
    Unreadable(#[from] std::io::Error),
    /// Fields have the wrong type, are unknown or have invalid values.
    #[error(transparent)]
    Fields(#[from] ConfigError),
}

/// `PodSecurityConfiguration`: the policy of namespaces without labels, and exemptions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodSecurityConfig {
    /// The policy of namespaces without labels.
    pub defaults: Policy,
    /// Users whose requests are not checked.
    pub usernames: Vec<String>,
    /// Runtime classes whose pods are not checked.
    pub runtime_classes: Vec<String>,
    /// Namespaces whose pods are not checked.
    pub namespaces: Vec<String>,
}

/// The settings of admission.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AdmissionConfig {
    /// Optional plugins that run.
    enabled: Vec<String>,
    /// Plugins that do not run.
    disabled: Vec<String>,
    /// The configuration of PodSecurity, if a file has it.
    pub pod_security: Option<PodSecurityConfig>,
    /// The limits of EventRateLimit, if a file has them.
    pub event_limits: Option<Vec<EventLimit>>,
}

/// Whether this is one of the flags.
pub fn is_flag(name: &str) -> bool {
    matches!(name, ENABLE | DISABLE | FILE)
}

impl AdmissionConfig {
    /// Reads the flags and the file that they name.
    ///
    /// # Errors
    /// A plugin that is unknown or absent, or a file that is invalid.
    pub fn read(arguments: &[String]) -> Result<Self, AdmissionConfigError> {
        let mut config = Self::default();
        for argument in arguments {
            let (name, value) = parts(argument);
            let value = value.unwrap_or_default();
            let list = || value.split(',').map(str::trim).filter(|name| !name.is_empty());
            match name {
                ENABLE => config.enabled.extend(list().map(str::to_owned)),
                DISABLE => config.disabled.extend(list().map(str::to_owned)),
                FILE => config.read_file(PathBuf::from(value))?,
                _ => {}
            }
        }
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), AdmissionConfigError> {
        let known = |name: &str| DEFAULT.contains(&name) || OPTIONAL.contains(&name);
        for (flag, list) in [(ENABLE, &self.enabled), (DISABLE, &self.disabled)] {
            let is_unknown = |name: &&String| !known(name) && !ABSENT.contains(&name.as_str());
            if let Some(name) = list.iter().find(is_unknown) {
                return Err(AdmissionConfigError::Unknown { flag, name: name.clone() });
            }
        }
        if let Some(name) = self.enabled.iter().find(|name| !known(name)) {
            return Err(AdmissionConfigError::Absent(name.clone()));
        }
        if let Some(name) = self.enabled.iter().find(|name| self.disabled.contains(name)) {
            return Err(AdmissionConfigError::Overlap(name.clone()));
        }
        if self.enables("EventRateLimit") && self.event_limits.is_none() {
            return Err(AdmissionConfigError::NoLimits);
        }
        Ok(())
    }

    /// Whether an optional plugin was enabled.
    pub fn enables(&self, name: &str) -> bool {
        self.enabled.iter().any(|enabled| enabled == name)
    }

    /// Whether a plugin was disabled.
    pub fn disables(&self, name: &str) -> bool {
        self.disabled.iter().any(|disabled| disabled == name)
    }

    fn read_file(&mut self, file: PathBuf) -> Result<(), AdmissionConfigError> {
        let text = base::fs::read(&file)?;
        self.read_text(&text, file.parent().unwrap_or(std::path::Path::new("/")))
            .map_err(|source| AdmissionConfigError::Invalid { file, source })
    }

    /// Reads `AdmissionConfiguration`; relative paths in it are those in `directory`.
    fn read_text(&mut self, text: &[u8], directory: &std::path::Path) -> Result<(), ContentError> {
        const VERSIONS: [&str; 2] =
            ["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1alpha1"];
        let document = ConfigDocument::decode(text)?;
        let map = document.object("apiVersion, kind and plugins")?;
        document.check_keys()?;
        kind_is(map, "AdmissionConfiguration", &VERSIONS)?;
        let mut reader = Reader::default();
        reader.known(map, "", &["apiVersion", "kind", "plugins"]);
        let plugins = reader.objects(map, "plugins", &Path::default());
        for (path, plugin) in &plugins {
            reader.known(plugin, &path.to_string(), &["name", "path", "configuration"]);
            let name = reader.text(plugin, "name", path);
            let file = reader.text(plugin, "path", path);
            let inline = plugin.get("configuration").filter(|value| !value.is_null());
            let own = match (inline, file.as_str()) {
                (Some(_), "") => None,
                (None, file) if !file.is_empty() => {
                    Some(ConfigDocument::decode(&base::fs::read(&directory.join(file))?)?)
                }
                _ => return Err(ContentError::NoConfiguration(name)),
            };
            let value = own.as_ref().map(|document| &document.value).or(inline);
            let map = value.and_then(Value::as_object);
            let map = map.ok_or(DocumentError::NotObject("apiVersion and kind"))?;
            match name.as_str() {
                "PodSecurity" => self.pod_security = Some(pod_security(map)?),
                "EventRateLimit" => self.event_limits = Some(event_limits(map)?),
                _ => return Err(ContentError::Plugin(name)),
            }
        }
        Ok(reader.finish()?)
    }
}

fn kind_is(
    map: &Map<String, Value>,
    kind: &'static str,
    versions: &[&str],
) -> Result<(), ContentError> {
    let head = |field: &str| map.get(field).and_then(Value::as_str).unwrap_or_default();
    if head("kind") == kind && versions.contains(&head("apiVersion")) {
        return Ok(());
    }
    let (found, version) = (head("kind").to_owned(), head("apiVersion").to_owned());
    Err(ContentError::Kind { wanted: kind, kind: found, version })
}

/// Upstream's `PodSecurityConfiguration` with its validation.
fn pod_security(map: &Map<String, Value>) -> Result<PodSecurityConfig, ContentError> {
    const GROUP: [&str; 3] = [
        "pod-security.admission.config.k8s.io/v1",
        "pod-security.admission.config.k8s.io/v1beta1",
        "pod-security.admission.config.k8s.io/v1alpha1",
    ];
    kind_is(map, "PodSecurityConfiguration", &GROUP)?;
    let mut reader = Reader::default();
    reader.known(map, "", &["apiVersion", "kind", "defaults", "exemptions"]);
    let empty = Map::new();
    let part = |name: &str| map.get(name).and_then(Value::as_object).unwrap_or(&empty);
    let (defaults, path) = (part("defaults"), Path::new("defaults"));
    let mut mode = |name: &str| -> LevelVersion {
        let version = format!("{name}-version");
        let level_text = reader.text(defaults, name, &path);
        let version_text = reader.text(defaults, &version, &path);
        let parsed = policy::parse(
            if level_text.is_empty() { "privileged" } else { &level_text },
            if version_text.is_empty() { "latest" } else { &version_text },
        );
        if parsed.0.is_none() {
            let why = "must be one of privileged, baseline, restricted";
            reader.errors.push(Error::invalid(&path.child(name), level_text, why));
        }
        if parsed.1.is_none() {
            let why = "must be \"latest\" or \"v1.x\"";
            reader.errors.push(Error::invalid(&path.child(&version), version_text, why));
        }
        let open = Policy::OPEN.enforce;
        LevelVersion {
            level: parsed.0.unwrap_or(open.level),
            version: parsed.1.unwrap_or(open.version),
        }
    };
    let policy = Policy { enforce: mode("enforce"), audit: mode("audit"), warn: mode("warn") };
    let fields = ["enforce", "audit", "warn"];
    let known: Vec<String> =
        fields.iter().flat_map(|f| [(*f).to_owned(), format!("{f}-version")]).collect();
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    reader.known(defaults, "defaults", &known);
    let (exemptions, path) = (part("exemptions"), Path::new("exemptions"));
    reader.known(exemptions, "exemptions", &["usernames", "runtimeClasses", "namespaces"]);
    let mut list = |name: &str, check: fn(&str) -> Option<String>| -> Vec<String> {
        let found = reader.strings(exemptions, name, &path);
        for (at, text) in found.iter().enumerate() {
            let field = path.child(name).index(at);
            if let Some(why) = check(text.as_str()) {
                reader.errors.push(Error::invalid(&field, text.as_str(), why));
            } else if found.iter().take(at).any(|earlier| earlier == text) {
                reader.errors.push(Error::duplicate(&field, text.as_str()));
            }
        }
        found
    };
    let config = PodSecurityConfig {
        defaults: policy,
        usernames: list("usernames", |name| {
            name.is_empty().then(|| "username must not be empty".to_owned())
        }),
        runtime_classes: list("runtimeClasses", |name| {
            Some(names::dns1123_subdomain(name).join(", ")).filter(|why| !why.is_empty())
        }),
        namespaces: list("namespaces", |name| {
            Some(names::dns1123_label(name).join(", ")).filter(|why| !why.is_empty())
        }),
    };
    reader.finish()?;
    Ok(config)
}

/// Upstream's `Configuration` of EventRateLimit with its validation.
fn event_limits(map: &Map<String, Value>) -> Result<Vec<EventLimit>, ContentError> {
    kind_is(map, "Configuration", &["eventratelimit.admission.k8s.io/v1alpha1"])?;
    let mut reader = Reader::default();
    reader.known(map, "", &["apiVersion", "kind", "limits"]);
    let root = Path::new("limits");
    let found = reader.objects(map, "limits", &Path::default());
    if found.is_empty() {
        reader.errors.push(Error::invalid(&root, Value::Array(Vec::new()), "must not be empty"));
    }
    let types =
        [LimitType::Server, LimitType::Namespace, LimitType::User, LimitType::SourceAndObject];
    let mut limits = Vec::new();
    for (path, limit) in &found {
        reader.known(limit, &path.to_string(), &["type", "qps", "burst", "cacheSize"]);
        let name = reader.text(limit, "type", path);
        let kind = types.into_iter().find(|kind| kind.name() == name);
        if kind.is_none() {
            let names = types.map(LimitType::name);
            reader.errors.push(Error::not_supported(&path.child("type"), name, &names));
        }
        let mut number = |field: &str, least: i64, why: &str| -> u32 {
            let value = limit.get(field).map_or(Some(0), Value::as_i64).unwrap_or(-1);
            if value < least {
                reader.errors.push(Error::invalid(&path.child(field), value, why));
            }
            u32::try_from(value).unwrap_or_default()
        };
        let burst = number("burst", 1, "must be positive");
        let rate = number("qps", 1, "must be positive");
        let cache = match kind {
            Some(LimitType::Server) | None => 0,
            Some(_) => number("cacheSize", 0, "must not be negative"),
        };
        let cache = usize::try_from(cache).unwrap_or_default();
        limits.extend(kind.map(|kind| EventLimit::new(kind, rate.into(), burst.into(), cache)));
    }
    reader.finish()?;
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file of k3s's hardening guide.
    const GUIDE: &str = r#"
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: PodSecurity
  configuration:
    apiVersion: pod-security.admission.config.k8s.io/v1beta1
    kind: PodSecurityConfiguration
    defaults:
      enforce: "restricted"
      enforce-version: "latest"
      audit: "restricted"
      audit-version: "v1.30"
      warn: "restricted"
    exemptions:
      usernames: []
      runtimeClasses: []
      namespaces: [kube-system, cis-operator-system]
- name: EventRateLimit
  configuration:
    apiVersion: eventratelimit.admission.k8s.io/v1alpha1
    kind: Configuration
    limits:
    - type: Server
      qps: 5000
      burst: 20000
"#;

    fn read(text: &str) -> Result<AdmissionConfig, String> {
        let mut config = AdmissionConfig::default();
        let read = config.read_text(text.as_bytes(), std::path::Path::new("/"));
        read.map(|()| config).map_err(|error| error.to_string())
    }

    #[test]
    fn the_file_of_the_hardening_guide_is_read() {
        let config = read(GUIDE).unwrap();
        let pods = config.pod_security.unwrap();
        assert_eq!(pods.defaults.enforce.to_string(), "restricted:latest");
        assert_eq!(pods.defaults.audit.to_string(), "restricted:v1.30");
        assert_eq!(pods.namespaces, ["kube-system", "cis-operator-system"]);
        let limit = EventLimit::new(LimitType::Server, 5000.0, 20000.0, 0);
        assert_eq!(config.event_limits.unwrap(), [limit]);
    }

    #[test]
    fn invalid_files_are_rejected_by_field() {
        for (from, to, want) in [
            ("\"restricted\"\n      enforce-v", "\"strict\"\n      enforce-v", "defaults.enforce"),
            ("v1.30", "v2", "defaults.audit-version: Invalid value: \"v2\""),
            ("kube-system, cis", "kube-system, kube-system, cis", "Duplicate value"),
            ("type: Server", "type: Pod", "limits[0].type: Unsupported value: \"Pod\""),
            ("qps: 5000", "qps: 0", "limits[0].qps: Invalid value: 0: must be positive"),
            ("name: EventRateLimit", "name: ImagePolicyWebhook", "cannot be configured"),
            ("defaults:", "default:", "unknown field \"default\""),
            ("kind: Admission", "kind: Omission", "must be AdmissionConfiguration, not Omission"),
        ] {
            assert!(GUIDE.contains(from), "{from}");
            let error = read(&GUIDE.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(want), "{want}: {error}");
        }
    }

    #[test]
    fn plugins_are_enabled_and_disabled_by_name() {
        let read = |arguments: &[&str]| {
            let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
            AdmissionConfig::read(&arguments).map_err(|error| error.to_string())
        };
        let config = read(&[
            "enable-admission-plugins=NodeRestriction,DenyServiceExternalIPs",
            "disable-admission-plugins=LimitRanger,PodNodeSelector",
        ])
        .unwrap();
        assert!(config.enables("DenyServiceExternalIPs") && config.disables("LimitRanger"));
        for (arguments, want) in [
            (&["enable-admission-plugins=Nope"][..], "plugin \"Nope\" is unknown"),
            (&["enable-admission-plugins=PodNodeSelector"], "is not part of kube-lite"),
            (&["enable-admission-plugins=EventRateLimit"], "needs its configuration"),
            (
                &["enable-admission-plugins=Priority", "disable-admission-plugins=Priority"],
                "Priority in enable-admission-plugins and disable-admission-plugins overlapped",
            ),
            (&["admission-control-config-file=/nonexistent"], "admission-control-config-file: "),
        ] {
            let error = read(arguments).unwrap_err();
            assert!(error.contains(want), "{want}: {error}");
        }
    }
}
