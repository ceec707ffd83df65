//! The configured authorizers and their order: flags and the file of `authorization-config`, parsed
//! and validated (`pkg/kubeapiserver/options/authorization.go`, `pkg/kubeapiserver/authorizer`).

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::flags::FlagError;
use super::load::LoadError;
use super::{flags, load};
use webhook::kubeconfig::{KubeconfigError, WebhookEndpoint};

/// The flag for the configuration file.
pub(super) const FILE_FLAG: &str = "authorization-config";
/// The name of the webhook that flags configure.
const DEFAULT_WEBHOOK: &str = "default";

/// The configuration of authorizers is invalid. The message names the flag, the file and the field,
/// with the fix.
#[derive(Debug, thiserror::Error)]
pub enum AuthorizationConfigError {
    /// Flags are invalid.
    #[error(transparent)]
    Flags(#[from] FlagError),
    /// The configuration file cannot be read.
    #[error("authorization-config: {0}")]
    ReadFile(#[source] io::Error),
    /// The configuration file is invalid.
    #[error("authorization-config={}: {source}; correct the file and start again", .file.display())]
    File {
        /// The path.
        file: PathBuf,
        /// The cause.
        source: FileError,
    },
    /// The kubeconfig of the webhook of the flags is invalid.
    #[error("{0}; correct the file and start again")]
    Webhook(#[source] EndpointError),
}

/// The configuration file, or a kubeconfig that it names, is invalid.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The configuration file.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The kubeconfig of a webhook.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
}

/// The kubeconfig of a webhook is invalid. `field` names the kubeconfig: a flag, or a field of the
/// configuration file.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct EndpointError(#[from] EndpointCause);

#[derive(Debug, thiserror::Error)]
enum EndpointCause {
    #[error("{field}: {source}")]
    Read { field: String, source: io::Error },
    #[error("{field}={}: {source}", .file.display())]
    Content { field: String, file: PathBuf, source: KubeconfigError },
}

/// The version of SubjectAccessReview for a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    V1,
    V1beta1,
}

/// The configuration of a webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hook {
    /// The TTL of cached approvals; zero disables caching.
    pub(super) authorized_ttl: Duration,
    /// The TTL of other cached decisions; zero disables caching.
    pub(super) unauthorized_ttl: Duration,
    /// The timeout of one attempt.
    pub(super) timeout: Duration,
    pub(super) version: Version,
    /// Whether a failed call denies the request; otherwise the next authorizer decides.
    pub(super) denies_on_failure: bool,
    /// The kubeconfig with the address of the webhook.
    pub(super) kubeconfig: PathBuf,
    /// The expressions of its match conditions.
    pub(super) conditions: Vec<String>,
}

/// The type of an authorizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    AlwaysAllow,
    AlwaysDeny,
    Node,
    Rbac,
    Webhook(Hook),
}

impl Kind {
    /// The names of all types, sorted; ABAC is not supported.
    pub(super) const NAMES: [&str; 5] = ["AlwaysAllow", "AlwaysDeny", "Node", "RBAC", "Webhook"];

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::AlwaysAllow => "AlwaysAllow",
            Self::AlwaysDeny => "AlwaysDeny",
            Self::Node => "Node",
            Self::Rbac => "RBAC",
            Self::Webhook(_) => "Webhook",
        }
    }

    /// Parses a type that needs no further configuration.
    pub(super) fn plain(name: &str) -> Option<Self> {
        Some(match name {
            "AlwaysAllow" => Self::AlwaysAllow,
            "AlwaysDeny" => Self::AlwaysDeny,
            "Node" => Self::Node,
            "RBAC" => Self::Rbac,
            _ => return None,
        })
    }
}

/// A configured authorizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AuthorizerConfig {
    pub(super) name: String,
    pub(super) kind: Kind,
}

impl AuthorizerConfig {
    /// An authorizer with upstream's default name for its type.
    pub(super) fn plain(kind: Kind) -> Self {
        Self { name: kind.name().to_lowercase(), kind }
    }
}

/// All authorizers, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Configuration(pub(super) Vec<AuthorizerConfig>);

impl Configuration {
    /// Parses the kubeconfigs of the webhooks; `None` for other authorizers.
    ///
    /// # Errors
    /// If a kubeconfig cannot be read or is invalid.
    pub(super) fn endpoints(&self) -> Result<Vec<Option<WebhookEndpoint>>, EndpointError> {
        let endpoint = |(at, entry): (usize, &AuthorizerConfig)| match &entry.kind {
            Kind::Webhook(hook) => {
                let field = format!("authorizers[{at}].connectionInfo.kubeConfigFile");
                read_endpoint(&field, &hook.kubeconfig).map(Some)
            }
            _ => Ok(None),
        };
        self.0.iter().enumerate().map(endpoint).collect()
    }
}

fn read_endpoint(field: &str, file: &Path) -> Result<WebhookEndpoint, EndpointError> {
    let text = base::fs::read(file)
        .map_err(|source| EndpointCause::Read { field: field.to_owned(), source })?;
    let folder = file.parent().unwrap_or(Path::new("."));
    let endpoint = WebhookEndpoint::of(&text, folder, "the authorization webhook");
    Ok(endpoint.map_err(|source| EndpointCause::Content {
        field: field.to_owned(),
        file: file.to_owned(),
        source,
    })?)
}

/// The validated configuration from flags and files, before any authorizer is created.
#[derive(Debug, Clone)]
pub struct AuthorizationConfig {
    pub(super) configuration: Configuration,
    /// The endpoints of webhooks, by index of the authorizer.
    pub(super) endpoints: Vec<Option<WebhookEndpoint>>,
    /// The configuration file, which is reloaded when it changes, and its current content.
    pub(super) file: Option<(PathBuf, Vec<u8>)>,
    /// Whether the flags enable the mode AlwaysAllow.
    allows_all: bool,
}

impl Default for AuthorizationConfig {
    /// Node and RBAC, as k3s configures its API server.
    fn default() -> Self {
        let entries = [Kind::Node, Kind::Rbac].map(AuthorizerConfig::plain).to_vec();
        Self::of(Configuration(entries), vec![None, None])
    }
}

impl AuthorizationConfig {
    pub(super) fn of(
        configuration: Configuration,
        endpoints: Vec<Option<WebhookEndpoint>>,
    ) -> Self {
        Self { configuration, endpoints, file: None, allows_all: false }
    }

    /// Whether this is an authorization flag.
    pub fn is_flag(name: &str) -> bool {
        flags::FLAGS.contains(&name)
    }

    /// Parses flags in the form `NAME=VALUE`, for all of which [`AuthorizationConfig::is_flag`]
    /// must be true, and the files that they name.
    ///
    /// # Errors
    /// The flag, file and field of the error, with the fix.
    pub fn read(arguments: &[String]) -> Result<Self, AuthorizationConfigError> {
        match flags::FlagValues::of(arguments)?.resolve()? {
            flags::SelectedConfiguration::Nothing => Ok(Self::default()),
            flags::SelectedConfiguration::File(file) => Self::from_file(file),
            flags::SelectedConfiguration::Modes(modes, hook) => {
                Self::from_modes(&modes, hook.as_ref())
            }
        }
    }

    fn from_file(file: PathBuf) -> Result<Self, AuthorizationConfigError> {
        let text = base::fs::read(&file).map_err(AuthorizationConfigError::ReadFile)?;
        let parse = || {
            let configuration = load::configuration(&text)?;
            Ok((configuration.endpoints()?, configuration))
        };
        let (endpoints, configuration) = parse()
            .map_err(|source| AuthorizationConfigError::File { file: file.clone(), source })?;
        Ok(Self { file: Some((file, text)), ..Self::of(configuration, endpoints) })
    }

    fn from_modes(modes: &[String], hook: Option<&Hook>) -> Result<Self, AuthorizationConfigError> {
        let mut entries = Vec::with_capacity(modes.len());
        let mut endpoints = Vec::with_capacity(modes.len());
        for mode in modes {
            let made = match (Kind::plain(mode), hook) {
                (Some(kind), _) => (AuthorizerConfig::plain(kind), None),
                (None, Some(hook)) => {
                    let flag = "authorization-webhook-config-file";
                    let endpoint = read_endpoint(flag, &hook.kubeconfig);
                    let endpoint = endpoint.map_err(AuthorizationConfigError::Webhook)?;
                    let kind = Kind::Webhook(hook.clone());
                    (AuthorizerConfig { name: DEFAULT_WEBHOOK.to_owned(), kind }, Some(endpoint))
                }
                // The flags are validated already.
                (None, None) => continue,
            };
            entries.push(made.0);
            endpoints.push(made.1);
        }
        let allows_all = entries.iter().any(|entry| entry.kind == Kind::AlwaysAllow);
        Ok(Self { allows_all, ..Self::of(Configuration(entries), endpoints) })
    }

    /// Whether anonymous requests can be accepted. Upstream rejects them together with the mode
    /// AlwaysAllow of the flag, which would allow everything to all clients.
    pub fn admits_anonymous(&self) -> bool {
        if self.allows_all {
            tracing::warn!("anonymous requests are rejected: authorization-mode has AlwaysAllow");
        }
        !self.allows_all
    }
}
