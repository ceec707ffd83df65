//! Levels and versions of the policy, and their namespace labels.

use std::collections::BTreeMap;
use std::fmt;

/// The newest policy version: that of Kubernetes 1.37.
const LATEST: u32 = 37;

const PREFIX: &str = "pod-security.kubernetes.io/";

/// A level, ordered by strictness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Unrestricted.
    Privileged,
    /// Prevents known privilege escalations.
    Baseline,
    /// Follows pod hardening best practices.
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

/// A level and a version, displayed as `restricted:latest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LevelVersion {
    /// The level.
    pub level: Level,
    /// The version.
    pub version: Version,
}

impl LevelVersion {
    /// Level and version as metric labels: `privileged` always has the version `latest`, versions
    /// after the newest one are `future`.
    pub(super) fn metric_labels(self) -> (&'static str, std::borrow::Cow<'static, str>) {
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

/// The policy of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Violations are rejected.
    pub enforce: LevelVersion,
    /// Violations are added to the audit log.
    pub audit: LevelVersion,
    /// Violations are returned to the client as warnings.
    pub warn: LevelVersion,
}

/// A label with an invalid value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadLabel {
    /// The full key.
    pub label: &'static str,
    /// The value.
    pub value: String,
    /// The reason why it is invalid.
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

/// The level and the version of these texts; `None` for an invalid one.
pub fn parse(level_text: &str, version_text: &str) -> (Option<Level>, Option<Version>) {
    (level(level_text), version(version_text))
}

const fn latest(level: Level) -> LevelVersion {
    LevelVersion { level, version: Version::Latest }
}

impl Policy {
    /// The policy of namespaces without labels: upstream's default.
    pub const OPEN: Self = Self {
        enforce: latest(Level::Privileged),
        audit: latest(Level::Privileged),
        warn: latest(Level::Privileged),
    };

    /// The policy of namespaces without labels under `--profile=hardened`.
    pub const HARDENED: Self = Self {
        enforce: latest(Level::Baseline),
        audit: latest(Level::Restricted),
        warn: latest(Level::Restricted),
    };

    /// Parses the labels of a namespace and falls back to `defaults`. An invalid value is
    /// `restricted` for `enforce` and `privileged` for the other modes.
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

    /// Whether nothing is enforced, audited or warned about.
    pub fn fully_privileged(&self) -> bool {
        [self.enforce, self.audit, self.warn].iter().all(|mode| mode.level == Level::Privileged)
    }
}
