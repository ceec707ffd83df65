//! The record of a release (`pkg/release/v1` of Helm).

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// State of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Not known.
    #[default]
    Unknown,
    /// Applied completely.
    Deployed,
    /// Removed.
    Uninstalled,
    /// Followed by a later revision.
    Superseded,
    /// Not applied completely.
    Failed,
    /// A removal began.
    Uninstalling,
    /// An installation began.
    PendingInstall,
    /// An upgrade began.
    PendingUpgrade,
    /// A rollback began.
    PendingRollback,
}

impl Status {
    /// Whether an operation began and did not end.
    pub fn is_pending(self) -> bool {
        matches!(self, Self::PendingInstall | Self::PendingUpgrade | Self::PendingRollback)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "unknown",
            Self::Deployed => "deployed",
            Self::Uninstalled => "uninstalled",
            Self::Superseded => "superseded",
            Self::Failed => "failed",
            Self::Uninstalling => "uninstalling",
            Self::PendingInstall => "pending-install",
            Self::PendingUpgrade => "pending-upgrade",
            Self::PendingRollback => "pending-rollback",
        })
    }
}

/// Times and state of a release.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Info {
    /// First installation.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub first_deployed: String,
    /// This revision.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub last_deployed: String,
    /// Removal.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub deleted: String,
    /// What happened last.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// State.
    pub status: Status,
    /// The revision that a rollback returned to.
    #[serde(skip_serializing_if = "is_zero")]
    pub rollback_revision: i64,
    /// NOTES.txt.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub notes: String,
}

fn is_zero(value: &i64) -> bool {
    *value == 0
}

/// When a hook ran.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HookExecution {
    /// Begin.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub started_at: String,
    /// End.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub completed_at: String,
    /// `Running`, `Succeeded`, `Failed` or `Unknown`.
    pub phase: String,
}

/// A hook of a release.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Hook {
    /// Name of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Kind of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Path of the template.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// Text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub manifest: String,
    /// Events that run it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<String>,
    /// Its last run.
    pub last_run: HookExecution,
    /// Place in the order; lower ones first.
    #[serde(skip_serializing_if = "is_zero")]
    pub weight: i64,
    /// When its object is removed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub delete_policies: Vec<String>,
    /// When its output is logged.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub output_log_policies: Vec<String>,
}

/// A revision of a release. Fields that only Helm knows are kept.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Release {
    /// Name.
    pub name: String,
    /// Times and state.
    pub info: Info,
    /// The chart.
    pub chart: Value,
    /// Values given by the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<Map<String, Value>>,
    /// Rendered documents without hooks.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub manifest: String,
    /// Hooks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hooks: Option<Vec<Hook>>,
    /// Number of the revision.
    pub version: i64,
    /// Namespace.
    pub namespace: String,
    /// `ssa`, `csa` or empty for releases of Helm 3.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub apply_method: String,
    /// Other fields.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Release {
    /// Sets state and description.
    pub fn set_status(&mut self, status: Status, description: impl Into<String>) {
        self.info.status = status;
        self.info.description = description.into();
    }

    /// The hooks.
    pub fn hooks_mut(&mut self) -> &mut Vec<Hook> {
        self.hooks.get_or_insert_default()
    }
}

/// The current time as Go formats it.
pub fn now() -> String {
    jiff::Timestamp::now().to_string()
}
