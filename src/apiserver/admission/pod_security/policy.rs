//! Levels and versions, and how namespace labels say them.

use std::collections::BTreeMap;
use std::fmt;

/// The newest policy version: that of Kubernetes 1.37.
const LATEST: u32 = 37;

const PREFIX: &str = "pod-security.kubernetes.io/";

/// A level, in order of strictness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Everything goes.
    Privileged,
    /// Known privilege escalations are kept out.
    Baseline,
    /// Hardening as it is best practice.
    Restricted,
}

/// A version of the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// `latest`.
    Latest,
    /// `v1.<minor>`.
    Minor(u32),
}

impl Version {
    /// The minor version whose checks apply.
    pub fn minor(self) -> u32 {
        match self {
            Self::Latest => LATEST,
            Self::Minor(minor) => minor.min(LATEST),
        }
    }
}

/// A level in a version, shown as `restricted:latest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LevelVersion {
    /// Level.
    pub level: Level,
    /// Version.
    pub version: Version,
}

impl LevelVersion {
    /// Level and version as metrics say them: `privileged` is always that of the newest version, versions to come are one.
    pub(super) fn words(self) -> (&'static str, std::borrow::Cow<'static, str>) {
        let level = match self.level {
            Level::Privileged => return ("privileged", "latest".into()),
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        };
        let version = match self.version {
            Version::Latest => "latest".into(),
            Version::Minor(minor) if minor > LATEST => "future".into(),
            Version::Minor(minor) => format!("v1.{minor}").into(),
        };
        (level, version)
    }
}

impl fmt::Display for LevelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        };
        match self.version {
            Version::Latest => write!(f, "{level}:latest"),
            Version::Minor(minor) => write!(f, "{level}:v1.{minor}"),
        }
    }
}

/// What a namespace enforces, audits and warns of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Violations are refused.
    pub enforce: LevelVersion,
    /// Violations are logged.
    pub audit: LevelVersion,
    /// Violations are told to the client.
    pub warn: LevelVersion,
}

/// A label with a value that says nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadLabel {
    /// Full key.
    pub label: &'static str,
    /// Its value.
    pub value: String,
    /// Why it is bad.
    pub why: &'static str,
}

fn level(text: &str) -> Option<Level> {
    match text {
        "privileged" => Some(Level::Privileged),
        "baseline" => Some(Level::Baseline),
        "restricted" => Some(Level::Restricted),
        _ => None,
    }
}

fn version(text: &str) -> Option<Version> {
    if text == "latest" {
        return Some(Version::Latest);
    }
    let digits = text.strip_prefix("v1.")?;
    let plain =
        digits.bytes().all(|b| b.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    digits.parse().ok().filter(|_| plain).map(Version::Minor)
}

const fn latest(level: Level) -> LevelVersion {
    LevelVersion { level, version: Version::Latest }
}

impl Policy {
    /// Of namespaces that say nothing: upstream's default.
    pub const OPEN: Self = Self {
        enforce: latest(Level::Privileged),
        audit: latest(Level::Privileged),
        warn: latest(Level::Privileged),
    };

    /// Of namespaces that say nothing under `--profile=hardened`.
    pub const HARDENED: Self = Self {
        enforce: latest(Level::Baseline),
        audit: latest(Level::Restricted),
        warn: latest(Level::Restricted),
    };

    /// From the labels of a namespace, else from `defaults`; what cannot be read is strict for `enforce` and open for the rest.
    pub fn from_labels(labels: &BTreeMap<&str, &str>, defaults: Self) -> (Self, Vec<BadLabel>) {
        let mut policy = defaults;
        let mut bad = Vec::new();
        let mut read = |mode: &mut LevelVersion,
                        level_key: &'static str,
                        version_key: &'static str,
                        fallback: Level| {
            let mut refuse = |label: &'static str, value: &str, why| {
                bad.push(BadLabel { label, value: value.to_owned(), why })
            };
            let mut valid = None;
            if let Some(text) = labels.get(level_key) {
                valid = level(text);
                mode.level = valid.unwrap_or(fallback);
                if valid.is_none() {
                    refuse(level_key, text, "must be one of privileged, baseline, restricted");
                }
            }
            if let Some(text) = labels.get(version_key) {
                let parsed = version(text);
                mode.version = parsed.unwrap_or(Version::Latest);
                if parsed.is_none() {
                    refuse(version_key, text, "must be \"latest\" or \"v1.x\"");
                }
            }
            valid.is_some()
        };
        let enforced = read(
            &mut policy.enforce,
            "pod-security.kubernetes.io/enforce",
            "pod-security.kubernetes.io/enforce-version",
            Level::Restricted,
        );
        read(
            &mut policy.audit,
            "pod-security.kubernetes.io/audit",
            "pod-security.kubernetes.io/audit-version",
            Level::Privileged,
        );
        read(
            &mut policy.warn,
            "pod-security.kubernetes.io/warn",
            "pod-security.kubernetes.io/warn-version",
            Level::Privileged,
        );
        let given = |label: &str| labels.contains_key(format!("{PREFIX}{label}").as_str());
        if !given("warn") && enforced && policy.enforce.level > policy.warn.level {
            policy.warn.level = policy.enforce.level;
            if !given("warn-version") {
                policy.warn.version = policy.enforce.version;
            }
        }
        (policy, bad)
    }

    /// Nothing is enforced, audited or warned of.
    pub fn fully_privileged(&self) -> bool {
        [self.enforce, self.audit, self.warn].iter().all(|mode| mode.level == Level::Privileged)
    }
}
