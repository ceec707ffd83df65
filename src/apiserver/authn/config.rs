//! The authentication configuration from flags and their files, validated before the server starts.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use api::field::{Error, Path};

use super::configuration::{self, Configuration};
use super::jwt::{Algorithm, Mapper};
use super::token_webhook::Webhook;
use crate::authn::flags::Settings;
use crate::webhook::kubeconfig::Place;

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

/// The authentication configuration. The default is upstream's: no issuers, anonymous requests are
/// accepted.
#[derive(Debug, Clone, Default)]
pub struct Plan {
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

impl Plan {
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
    /// The flag, file and field of the error, with the fix.
    pub fn read(settings: &Settings, own_issuers: &[String]) -> Result<Self, String> {
        let mut plan =
            Self { anonymous: settings.anonymous.unwrap_or(true).into(), ..Self::default() };
        plan.webhook = settings.webhook.as_ref().map(webhook).transpose()?;
        let mut place = "oidc-issuer-url".to_owned();
        if let Some(path) = &settings.config_file {
            let flag = "authentication-config";
            let content = base::fs::read(path).map_err(|e| format!("{flag}: {e}"))?;
            place = format!("{flag}={}", path.display());
            plan.configuration = configuration::read(&content)
                .map_err(|why| format!("{place}: {why}; correct the file and start again"))?;
            plan.algorithms = Algorithm::ALL.to_vec();
            plan.file = Some(File { path: path.clone(), content });
        } else if let Some(oidc) = &settings.oidc {
            let read = oidc.ca_file.as_ref().map(|path| base::fs::read_to_string(path));
            let read = read.transpose().map_err(|e| format!("oidc-ca-file: {e}"))?;
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
        match configuration::text_of(&errors) {
            None => Ok(plan),
            Some(why) => Err(format!(
                "{place}: invalid authentication configuration: {why}; correct it and start again"
            )),
        }
    }
}

fn webhook(settings: &crate::authn::flags::Webhook) -> Result<Webhook, String> {
    let (flag, file) = ("authentication-token-webhook-config-file", &settings.config_file);
    let text = base::fs::read(file).map_err(|e| format!("{flag}: {e}"))?;
    let folder = file.parent().unwrap_or(std::path::Path::new("."));
    let place = Place::of(&text, folder, "the token webhook").map_err(|why| {
        format!("{flag}={}: {why}; correct the file and start again", file.display())
    })?;
    Ok(Webhook { place, version: settings.version.clone(), cache_ttl: settings.cache_ttl })
}
