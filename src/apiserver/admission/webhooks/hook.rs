//! One webhook of a configuration, parsed once per change of the configuration.

use std::time::Duration;

use api::expressions::{Compiler, Uses};
use api::value::{get, int_at, items, str_at, str_in};
use serde_json::Value;

use crate::admission::expressions::conditions::Conditions;
use crate::admission::matching::{Rule, Selectors};
use webhook::{Callout, Client, ClientConfig, ConfigError};

/// The default timeout of a webhook (upstream's default).
const TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum timeout; validation enforces it, too.
const TIMEOUT_SECONDS_MAX: u64 = 30;

/// The supported versions of AdmissionReview.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReviewVersion {
    V1,
    V1beta1,
}

/// A webhook.
pub(super) struct Hook {
    /// The name of the configuration.
    pub(super) configuration: String,
    /// The name of the webhook.
    pub(super) name: String,
    /// An ID that is unique among webhooks of the same kind.
    pub(super) id: String,
    pub(super) rules: Vec<Rule>,
    pub(super) selectors: Selectors,
    /// `matchPolicy: Equivalent`.
    pub(super) is_equivalent: bool,
    pub(super) conditions: Conditions,
    /// `failurePolicy: Ignore`.
    pub(super) fails_open: bool,
    /// `reinvocationPolicy: IfNeeded`.
    pub(super) is_reinvoked: bool,
    /// Whether the webhook may be called for a dry run.
    pub(super) supports_dry_run: bool,
    pub(super) timeout: Duration,
    /// The first review version that both sides support.
    pub(super) review_version: Option<ReviewVersion>,
    /// The client, or the reason why there is none.
    pub(super) client: Result<Client, ConfigError>,
}

impl Hook {
    /// The webhook in audit annotations, as JSON.
    pub(super) fn audit_annotation(&self, more: &[(&str, Value)]) -> String {
        let mut map = serde_json::Map::new();
        map.insert("configuration".to_owned(), self.configuration.as_str().into());
        map.insert("webhook".to_owned(), self.name.as_str().into());
        map.extend(more.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
        Value::Object(map).to_string()
    }
}

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hook({})", self.id)
    }
}

/// The webhooks of a configuration, in order. One with invalid selectors, which validation rejects,
/// is logged and skipped.
pub(super) fn of_configuration(configuration: &Value, callout: &Callout) -> Vec<Hook> {
    let name = str_in(configuration, &["metadata", "name"]);
    let hooks = items(configuration, "webhooks").iter().enumerate();
    let read = hooks.filter_map(|(index, hook)| match Selectors::of(hook) {
        Ok(selectors) => Some(one(name, index, hook, selectors, callout)),
        Err(error) => {
            tracing::warn!(
                configuration = name,
                index,
                %error,
                "ignoring a webhook with invalid selectors"
            );
            None
        }
    });
    read.collect()
}

fn one(
    configuration: &str,
    index: usize,
    hook: &Value,
    selectors: Selectors,
    callout: &Callout,
) -> Hook {
    let name = str_at(hook, "name");
    let client = ClientConfig::from_value(get(hook, "clientConfig"))
        .and_then(|config| Client::new(config, callout.clone()));
    let seconds = int_at(hook, "timeoutSeconds").and_then(|s| u64::try_from(s).ok());
    let timeout = seconds
        .filter(|s| *s > 0)
        .map_or(TIMEOUT, |s| Duration::from_secs(s.min(TIMEOUT_SECONDS_MAX)));
    let versions = items(hook, "admissionReviewVersions").iter().filter_map(Value::as_str);
    let review_version = versions
        .filter_map(|version| match version {
            "v1" => Some(ReviewVersion::V1),
            "v1beta1" => Some(ReviewVersion::V1beta1),
            _ => None,
        })
        .next();
    let uses = Uses { authorizer: true, ..Uses::default() };
    Hook {
        configuration: configuration.to_owned(),
        name: name.to_owned(),
        // Old configurations can contain duplicate names, hence the index.
        id: format!("{configuration}/{name}/{index}"),
        rules: items(hook, "rules").iter().map(Rule::of).collect(),
        selectors,
        is_equivalent: str_at(hook, "matchPolicy") == "Equivalent",
        conditions: Conditions::of(&Compiler::plain(), hook, uses),
        fails_open: str_at(hook, "failurePolicy") == "Ignore",
        is_reinvoked: str_at(hook, "reinvocationPolicy") == "IfNeeded",
        supports_dry_run: matches!(str_at(hook, "sideEffects"), "None" | "NoneOnDryRun"),
        timeout,
        review_version,
        client,
    }
}
