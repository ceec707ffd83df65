//! The errors of the audit configuration and of its outputs.

use std::io;
use std::path::PathBuf;

use tokio::task::JoinError;

use component_config::strict_config::{ConfigError, DocumentError};

/// The audit configuration is unusable. Messages name the flag, the file and the field.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// A file cannot be read.
    #[error("{flag}: {source}")]
    ReadFile {
        /// The flag that names the file.
        flag: &'static str,
        /// The error, with the path.
        source: io::Error,
    },
    /// The policy file is invalid.
    #[error("audit-policy-file={}: {source}; correct the file and start again", file.display())]
    Policy {
        /// The file.
        file: PathBuf,
        /// The error.
        source: PolicyError,
    },
    /// The policy of a preset is invalid.
    #[error("{0}")]
    PresetPolicy(#[source] PolicyError),
    /// The kubeconfig of the webhook is invalid, or its certificates are unusable.
    #[error(
        "audit-webhook-config-file={}: {reason}; correct the file and start again",
        file.display()
    )]
    Kubeconfig {
        /// The file.
        file: PathBuf,
        /// The field and its error.
        reason: String,
    },
    /// The log file cannot be opened.
    #[error("audit-log-path: {0}; give a file in a folder that can be written to")]
    Log(#[source] io::Error),
}

/// A policy file is invalid (`pkg/apis/audit/validation`).
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file is not an object with distinct keys.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// `apiVersion` or `kind` is absent.
    #[error("{field}: Required value: must be {expected}")]
    Missing {
        /// The field.
        field: &'static str,
        /// The only supported value.
        expected: &'static str,
    },
    /// `apiVersion` or `kind` is unsupported.
    #[error("{field}: Unsupported value: {}: must be {expected}", api::field::go_quote(value))]
    Unsupported {
        /// The field.
        field: &'static str,
        /// The value.
        value: String,
        /// The only supported value.
        expected: &'static str,
    },
    /// Fields are unknown or invalid.
    #[error(transparent)]
    Fields(#[from] ConfigError),
    /// There are no rules.
    #[error("loaded illegal policy with 0 rules")]
    NoRules,
}

/// A line was not written to the log.
#[derive(Debug, thiserror::Error)]
pub(super) enum LogError {
    /// The writer has ended.
    #[error("the log has ended")]
    Ended,
    /// The file cannot be written.
    #[error("{0}")]
    Write(#[from] io::Error),
}

/// Events were not delivered to the webhook.
#[derive(Debug, thiserror::Error)]
#[error("Post {}: {source}", api::field::go_quote(url))]
pub(super) struct DeliveryError {
    /// The URL of the webhook.
    pub(super) url: String,
    /// The error of the last attempt.
    pub(super) source: AttemptError,
}

/// One attempt to post events has failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum AttemptError {
    /// There was no response in time.
    #[error("context deadline exceeded")]
    Timeout,
    /// There was no response; the message is in Go's format.
    #[error("{0}")]
    Post(String),
    /// The response has a status code other than success.
    #[error("the server responded with the status code {0}")]
    Status(u16),
}

/// The task of a log or webhook has ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum TaskError {
    /// Blocking work has panicked.
    #[error("{0}")]
    Blocking(#[from] JoinError),
    /// The semaphore of running deliveries is closed.
    #[error("{0}")]
    Semaphore(#[from] tokio::sync::AcquireError),
}
