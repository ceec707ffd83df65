//! The configured authorizers and their order: flags and the file of `authorization-config`, parsed
//! and validated (`pkg/kubeapiserver/options/authorization.go`, `pkg/kubeapiserver/authorizer`).

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::webhook::kubeconfig::Place;

use super::{flags, load};

/// The flag for the configuration file.
pub(super) const FILE_FLAG: &str = "authorization-config";
/// The name of the webhook that flags configure.
const DEFAULT_WEBHOOK: &str = "default";

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
    /// The field, the file and the error in it.
    pub(super) fn places(&self) -> Result<Vec<Option<Place>>, String> {
        let place = |(at, entry): (usize, &AuthorizerConfig)| match &entry.kind {
            Kind::Webhook(hook) => {
                let field = format!("authorizers[{at}].connectionInfo.kubeConfigFile");
                place(&field, &hook.kubeconfig).map(Some)
            }
            _ => Ok(None),
        };
        self.0.iter().enumerate().map(place).collect()
    }
}

fn place(field: &str, file: &Path) -> Result<Place, String> {
    let text = base::fs::read(file).map_err(|e| format!("{field}: {e}"))?;
    let folder = file.parent().unwrap_or(Path::new("."));
    let place = Place::of(&text, folder, "the authorization webhook");
    place.map_err(|why| format!("{field}={}: {why}", file.display()))
}

/// The validated configuration from flags and files, before any authorizer is created.
#[derive(Debug, Clone)]
pub struct Plan {
    pub(super) configuration: Configuration,
    /// The endpoints of webhooks, by index of the authorizer.
    pub(super) places: Vec<Option<Place>>,
    /// The configuration file, which is reloaded when it changes, and its current content.
    pub(super) file: Option<(PathBuf, Vec<u8>)>,
    /// Whether the flags enable the mode AlwaysAllow.
    allows_all: bool,
}

impl Default for Plan {
    /// Node and RBAC, as k3s configures its API server.
    fn default() -> Self {
        let entries = [Kind::Node, Kind::Rbac].map(AuthorizerConfig::plain).to_vec();
        Self::of(Configuration(entries), vec![None, None])
    }
}

impl Plan {
    pub(super) fn of(configuration: Configuration, places: Vec<Option<Place>>) -> Self {
        Self { configuration, places, file: None, allows_all: false }
    }

    /// Whether this is an authorization flag.
    pub fn is_flag(name: &str) -> bool {
        flags::FLAGS.contains(&name)
    }

    /// Parses flags in the form `NAME=VALUE`, for all of which [`Plan::is_flag`] must be true, and
    /// the files that they name.
    ///
    /// # Errors
    /// The flag, file and field of the error, with the fix.
    pub fn read(arguments: &[String]) -> Result<Self, String> {
        match flags::FlagValues::of(arguments)?.resolve()? {
            flags::SelectedConfiguration::Nothing => Ok(Self::default()),
            flags::SelectedConfiguration::File(file) => Self::from_file(file),
            flags::SelectedConfiguration::Modes(modes, hook) => {
                Self::from_modes(&modes, hook.as_ref())
            }
        }
    }

    fn from_file(file: PathBuf) -> Result<Self, String> {
        let text = base::fs::read(&file).map_err(|e| format!("{FILE_FLAG}: {e}"))?;
        let made = load::configuration(&text)
            .and_then(|configuration| Ok((configuration.places()?, configuration)));
        let (places, configuration) = made.map_err(|why| {
            format!("{FILE_FLAG}={}: {why}; correct the file and start again", file.display())
        })?;
        Ok(Self { file: Some((file, text)), ..Self::of(configuration, places) })
    }

    fn from_modes(modes: &[String], hook: Option<&Hook>) -> Result<Self, String> {
        let mut entries = Vec::with_capacity(modes.len());
        let mut places = Vec::with_capacity(modes.len());
        for mode in modes {
            let made = match (Kind::plain(mode), hook) {
                (Some(kind), _) => (AuthorizerConfig::plain(kind), None),
                (None, Some(hook)) => {
                    let why = |why| format!("{why}; correct the file and start again");
                    let place = place("authorization-webhook-config-file", &hook.kubeconfig)
                        .map_err(why)?;
                    let kind = Kind::Webhook(hook.clone());
                    (AuthorizerConfig { name: DEFAULT_WEBHOOK.to_owned(), kind }, Some(place))
                }
                // The flags are validated already.
                (None, None) => continue,
            };
            entries.push(made.0);
            places.push(made.1);
        }
        let allows_all = entries.iter().any(|entry| entry.kind == Kind::AlwaysAllow);
        Ok(Self { allows_all, ..Self::of(Configuration(entries), places) })
    }

    /// Whether anonymous requests can be accepted. Upstream rejects them together with the mode
    /// AlwaysAllow of the flag, which would allow everything to everybody.
    pub fn admits_anonymous(&self) -> bool {
        if self.allows_all {
            tracing::warn!(
                "requests without credentials are refused: authorization-mode has AlwaysAllow"
            );
        }
        !self.allows_all
    }
}
