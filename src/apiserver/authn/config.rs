//! The authentication configuration from flags and their files, validated before the server starts.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use api::field::{Error, Path};

use super::configuration::{self, Configuration, ContentError, InvalidConfiguration};
use super::jwt::{Algorithm, Mapper};
use super::token_webhook::Webhook;
use crate::authn::flags::Settings;
use webhook::kubeconfig::{KubeconfigError, WebhookEndpoint};

/// The configuration file and its content.
#[derive(Debug, Clone)]
pub(crate) struct File {
    pub(crate) path: PathBuf,
    pub(crate) content: Vec<u8>,
}

/// The requests without credentials that are accepted as `system:anonymous`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Anonymous {
    /// No request.
    Nowhere,
    /// All requests: upstream's default.
    #[default]
    Everywhere,
    /// Requests to exactly these paths.
    At(BTreeSet<String>),
}

impl Anonymous {
    /// Whether anonymous requests to this path are accepted.
    pub(crate) fn allows(&self, path: &str) -> bool {
        match self {
            Self::Nowhere => false,
            Self::Everywhere => true,
            Self::At(paths) => paths.contains(path),
        }
    }
}

impl From<bool> for Anonymous {
    fn from(everywhere: bool) -> Self {
        if everywhere { Self::Everywhere } else { Self::Nowhere }
    }
}

/// The authentication configuration is invalid. The message names the flag, the file and the field,
/// with the fix.
#[derive(Debug, thiserror::Error)]
pub enum AuthenticationConfigError {
    /// The configuration file cannot be read.
    #[error("authentication-config: {0}")]
    ReadFile(#[source] io::Error),
    /// The configuration file cannot be decoded.
    #[error("authentication-config={}: {source}; correct the file and start again", .file.display())]
    File {
        /// The path.
        file: PathBuf,
        /// The cause.
        source: ContentError,
    },
    /// The CA file of the issuer cannot be read.
    #[error("oidc-ca-file: {0}")]
    ReadCaFile(#[source] io::Error),
    /// The configuration has invalid values.
    #[error("{origin}: invalid authentication configuration: {source}; correct it and start again")]
    Invalid {
        /// The flag of the configuration, with the path if it is a file.
        origin: String,
        /// The errors.
        source: InvalidConfiguration,
    },
    /// The kubeconfig of the token webhook cannot be read.
    #[error("authentication-token-webhook-config-file: {0}")]
    ReadWebhookFile(#[source] io::Error),
    /// The kubeconfig of the token webhook is invalid.
    #[error(transparent)]
    WebhookFile(#[from] WebhookFileError),
}

/// The kubeconfig of the token webhook is invalid.
#[derive(Debug, thiserror::Error)]
#[error(
    "authentication-token-webhook-config-file={}: {source}; correct the file and start again",
    .file.display()
)]
pub struct WebhookFileError {
    file: PathBuf,
    source: KubeconfigError,
}

/// The authentication configuration. The default is upstream's: no issuers, anonymous requests are
/// accepted.
#[derive(Debug, Clone, Default)]
pub struct AuthenticationConfig {
    pub(crate) configuration: Configuration,
    /// The compiled expressions, one mapper per issuer.
    pub(crate) mappers: Vec<Arc<Mapper>>,
    /// The signature algorithms that are accepted.
    pub(crate) algorithms: Vec<Algorithm>,
    /// The configuration file, followed for changes.
    pub(crate) file: Option<File>,
    pub(crate) anonymous: Anonymous,
    /// The token webhook.
    pub(crate) webhook: Option<Webhook>,
}

impl AuthenticationConfig {
    /// Rejects anonymous requests, unless the file configures them.
    #[must_use]
    pub fn without_anonymous(mut self) -> Self {
        if self.configuration.anonymous.is_none() {
            self.anonymous = Anonymous::Nowhere;
        }
        self
    }

    /// Accepts anonymous requests to health and version endpoints only, unless the file configures
    /// them.
    #[must_use]
    pub fn with_anonymous_probes(mut self) -> Self {
        if self.configuration.anonymous.is_none() && self.anonymous == Anonymous::Everywhere {
            let paths = ["/livez", "/readyz", "/healthz", "/version"];
            self.anonymous = Anonymous::At(paths.map(str::to_owned).into());
        }
        self
    }

    /// Reads the files that the settings name. `own_issuers` are the issuers of the cluster's own
    /// tokens, which the file must not configure.
    ///
    /// # Errors
    /// If a file cannot be read or is invalid.
    pub fn read(
        settings: &Settings,
        own_issuers: &[String],
    ) -> Result<Self, AuthenticationConfigError> {
        let mut plan =
            Self { anonymous: settings.anonymous.unwrap_or(true).into(), ..Self::default() };
        plan.webhook = settings.webhook.as_ref().map(webhook).transpose()?;
        let mut origin = "oidc-issuer-url".to_owned();
        if let Some(path) = &settings.config_file {
            let content = base::fs::read(path).map_err(AuthenticationConfigError::ReadFile)?;
            origin = format!("authentication-config={}", path.display());
            plan.configuration = configuration::read(&content)
                .map_err(|source| AuthenticationConfigError::File { file: path.clone(), source })?;
            plan.algorithms = Algorithm::ALL.to_vec();
            plan.file = Some(File { path: path.clone(), content });
        } else if let Some(oidc) = &settings.oidc {
            let read = oidc.ca_file.as_ref().map(|path| base::fs::read_to_string(path));
            let read = read.transpose().map_err(AuthenticationConfigError::ReadCaFile)?;
            plan.configuration = oidc.configuration(read);
            plan.algorithms.clone_from(&oidc.algorithms);
        }
        let (mappers, mut errors) = configuration::validate(&plan.configuration, own_issuers);
        plan.mappers = mappers;
        if let Some(anonymous) = &plan.configuration.anonymous {
            if settings.anonymous.is_some() {
                let why = "--anonymous-auth flag cannot be set when anonymous field is configured in authentication configuration file";
                errors.insert(0, Error::forbidden(&Path::new("anonymous"), why));
            }
            plan.anonymous = match (anonymous.enabled, anonymous.paths.is_empty()) {
                (false, _) => Anonymous::Nowhere,
                (true, true) => Anonymous::Everywhere,
                (true, false) => Anonymous::At(anonymous.paths.iter().cloned().collect()),
            };
        }
        InvalidConfiguration::check(errors)
            .map_err(|source| AuthenticationConfigError::Invalid { origin, source })?;
        Ok(plan)
    }
}

fn webhook(settings: &crate::authn::flags::Webhook) -> Result<Webhook, AuthenticationConfigError> {
    let file = &settings.config_file;
    let text = base::fs::read(file).map_err(AuthenticationConfigError::ReadWebhookFile)?;
    let folder = file.parent().unwrap_or(std::path::Path::new("."));
    let endpoint = WebhookEndpoint::of(&text, folder, "the token webhook")
        .map_err(|source| WebhookFileError { file: file.clone(), source })?;
    Ok(Webhook { endpoint, version: settings.version.clone(), cache_ttl: settings.cache_ttl })
}
