//! Which authorizers there are and in which order: flags and the file of `authorization-config`, read and found good
//! (`pkg/kubeapiserver/options/authorization.go`, `pkg/kubeapiserver/authorizer`).

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::webhook::kubeconfig::Place;

use super::{flags, load};

/// The flag that names the file.
pub(super) const FILE_FLAG: &str = "authorization-config";
/// Name of the webhook that flags describe.
const DEFAULT_WEBHOOK: &str = "default";

/// Which version of SubjectAccessReview a webhook speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    V1,
    V1beta1,
}

/// How a webhook is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hook {
    /// How long approvals are remembered; zero is not at all.
    pub(super) authorized_ttl: Duration,
    /// The same of everything else that is answered.
    pub(super) unauthorized_ttl: Duration,
    /// For one attempt.
    pub(super) timeout: Duration,
    pub(super) version: Version,
    /// Without an answer the request is denied; else the next authorizer is asked.
    pub(super) denies_on_failure: bool,
    /// Where it is.
    pub(super) kubeconfig: PathBuf,
    /// Texts of its match conditions.
    pub(super) conditions: Vec<String>,
}

/// What kind of authorizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    AlwaysAllow,
    AlwaysDeny,
    Node,
    Rbac,
    Webhook(Hook),
}

impl Kind {
    /// Names of kinds, sorted; ABAC is none of them.
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

    /// A kind that needs nothing but its name.
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

/// One authorizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) kind: Kind,
}

impl Entry {
    /// Under the name that upstream gives kinds.
    pub(super) fn plain(kind: Kind) -> Self {
        Self { name: kind.name().to_lowercase(), kind }
    }
}

/// All authorizers in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Configuration(pub(super) Vec<Entry>);

impl Configuration {
    /// Reads the kubeconfigs of its webhooks.
    ///
    /// # Errors
    /// Field, file and what is wrong in it.
    pub(super) fn places(&self) -> Result<Vec<Option<Place>>, String> {
        let place = |(at, entry): (usize, &Entry)| match &entry.kind {
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

/// Everything that flags and files say, read and found good; nothing runs yet.
#[derive(Debug, Clone)]
pub struct Plan {
    pub(super) configuration: Configuration,
    /// Of webhooks, by their position.
    pub(super) places: Vec<Option<Place>>,
    /// The file that is read again when it changes, and what it says now.
    pub(super) file: Option<(PathBuf, Vec<u8>)>,
    /// A mode of the flags allows everything.
    allows_all: bool,
}

impl Default for Plan {
    /// Node and RBAC, as k3s starts its API server.
    fn default() -> Self {
        let entries = [Kind::Node, Kind::Rbac].map(Entry::plain).to_vec();
        Self::of(Configuration(entries), vec![None, None])
    }
}

impl Plan {
    pub(super) fn of(configuration: Configuration, places: Vec<Option<Place>>) -> Self {
        Self { configuration, places, file: None, allows_all: false }
    }

    /// Whether a flag of the API server belongs here.
    pub fn is_flag(name: &str) -> bool {
        flags::FLAGS.contains(&name)
    }

    /// Reads flags given as `NAME=VALUE`, all of which [`Plan::is_flag`] knows, and the files they name.
    ///
    /// # Errors
    /// Flag, file and field of what is wrong, and what to do.
    pub fn read(arguments: &[String]) -> Result<Self, String> {
        match flags::Given::of(arguments)?.meant()? {
            flags::Meant::Nothing => Ok(Self::default()),
            flags::Meant::File(file) => Self::from_file(file),
            flags::Meant::Modes(modes, hook) => Self::from_modes(&modes, hook.as_ref()),
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
                (Some(kind), _) => (Entry::plain(kind), None),
                (None, Some(hook)) => {
                    let why = |why| format!("{why}; correct the file and start again");
                    let place = place("authorization-webhook-config-file", &hook.kubeconfig)
                        .map_err(why)?;
                    let kind = Kind::Webhook(hook.clone());
                    (Entry { name: DEFAULT_WEBHOOK.to_owned(), kind }, Some(place))
                }
                // Flags were found good.
                (None, None) => continue,
            };
            entries.push(made.0);
            places.push(made.1);
        }
        let allows_all = entries.iter().any(|entry| entry.kind == Kind::AlwaysAllow);
        Ok(Self { allows_all, ..Self::of(Configuration(entries), places) })
    }

    /// Requests without credentials may be `system:anonymous`. Upstream refuses them with the mode AlwaysAllow of the flag, which would
    /// let everybody do anything.
    pub fn admits_anonymous(&self) -> bool {
        if self.allows_all {
            tracing::warn!(
                "requests without credentials are refused: authorization-mode has AlwaysAllow"
            );
        }
        !self.allows_all
    }
}
