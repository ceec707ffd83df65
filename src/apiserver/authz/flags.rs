//! The authorization flags of the API server, with upstream's names, defaults and messages
//! (`pkg/kubeapiserver/options/authorization.go`).

use std::path::PathBuf;
use std::time::Duration;

use api::field::go_quote;
use sorting::CompactSort as _;

use super::config::{FILE_FLAG, Hook, Kind, Version};
use super::rule::go_list;
use component_config::aggregate_errors;

const MODE: &str = "authorization-mode";
const POLICY_FILE: &str = "authorization-policy-file";
const WEBHOOK_FILE: &str = "authorization-webhook-config-file";
const WEBHOOK_VERSION: &str = "authorization-webhook-version";
const AUTHORIZED_TTL: &str = "authorization-webhook-cache-authorized-ttl";
const UNAUTHORIZED_TTL: &str = "authorization-webhook-cache-unauthorized-ttl";

/// All authorization flags.
pub(super) const FLAGS: [&str; 7] =
    [FILE_FLAG, MODE, POLICY_FILE, WEBHOOK_FILE, WEBHOOK_VERSION, AUTHORIZED_TTL, UNAUTHORIZED_TTL];

/// The timeout of one attempt for the webhook of the flags.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A flag has an invalid value or conflicts with another one. The messages are upstream's.
#[derive(Debug, thiserror::Error)]
pub enum FlagError {
    /// The flag has no value.
    #[error("{name}: needs a value, write {name}=VALUE")]
    NoValue {
        /// The name of the flag.
        name: String,
    },
    /// It is not an authorization flag.
    #[error("{name} is no flag of authorization")]
    Unknown {
        /// The name of the flag.
        name: String,
    },
    /// The policy file of ABAC is not supported.
    #[error("authorization-policy-file is not supported: {NO_ABAC}", NO_ABAC = NO_ABAC)]
    PolicyFile,
    /// The configuration file and flags for single settings exclude each other.
    #[error(
        "--authorization-config can not be specified when --authorization-mode or \
         --authorization-webhook-* flags are defined"
    )]
    FileWithFlags,
    /// The modes are invalid.
    #[error("{}", aggregate_errors(.0))]
    Modes(Vec<ModeError>),
    /// The version of SubjectAccessReview is not supported.
    #[error(
        "unsupported webhook authorizer version {}, supported versions are \"v1\", \"v1beta1\"",
        go_quote(.version)
    )]
    WebhookVersion {
        /// The version.
        version: String,
    },
    /// The value is not a duration.
    #[error("{name}={value}: {reason}")]
    Duration {
        /// The name of the flag.
        name: String,
        /// Its value.
        value: String,
        /// Go's message.
        reason: String,
    },
    /// The duration is negative.
    #[error("{name}={value}: must not be negative")]
    NegativeDuration {
        /// The name of the flag.
        name: String,
        /// Its value.
        value: String,
    },
}

/// An invalid value of `authorization-mode`, or a conflict with the webhook's configuration file.
#[derive(Debug, thiserror::Error)]
pub enum ModeError {
    /// The flag names no mode.
    #[error("at least one authorization-mode must be passed")]
    Missing,
    /// ABAC is not supported.
    #[error("authorization-mode ABAC is not supported: {NO_ABAC}", NO_ABAC = NO_ABAC)]
    Abac,
    /// There is no such mode.
    #[error("authorization-mode {} is not a valid mode", go_quote(.0))]
    Unknown(String),
    /// The mode Webhook needs a configuration file.
    #[error("authorization-mode Webhook's authorization config file not passed")]
    NoWebhookFile,
    /// The configuration file needs the mode Webhook.
    #[error("cannot specify --authorization-webhook-config-file without mode Webhook")]
    NoWebhookMode,
    /// A mode occurs twice in these modes.
    #[error("authorization-mode {} has mode specified more than once", go_list(.0))]
    Repeated(Vec<String>),
}

/// Flags as given; the last value of a flag counts, modes are concatenated.
pub(super) struct FlagValues<'a>(Vec<(&'a str, &'a str)>);

/// The configuration that the flags select.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SelectedConfiguration {
    /// No configuration.
    Nothing,
    /// A configuration file.
    File(PathBuf),
    /// Modes in order, and the webhook if one of them is `Webhook`.
    Modes(Vec<String>, Option<Hook>),
}

impl<'a> FlagValues<'a> {
    /// Parses `NAME=VALUE` arguments.
    ///
    /// # Errors
    /// The argument that has no value or is not an authorization flag.
    pub(super) fn of(arguments: &'a [String]) -> Result<Self, FlagError> {
        let one = |argument: &'a String| {
            let (name, value) = component_config::flags::parts(argument);
            let value = value.ok_or_else(|| FlagError::NoValue { name: name.to_owned() })?;
            match FLAGS.iter().find(|known| **known == name) {
                Some(name) => Ok((*name, value)),
                None => Err(FlagError::Unknown { name: name.to_owned() }),
            }
        };
        arguments.iter().map(one).collect::<Result<_, _>>().map(Self)
    }

    fn text(&self, name: &str) -> &'a str {
        self.0.iter().rev().find(|(given, _)| *given == name).map_or("", |(_, value)| *value)
    }

    fn is_given(&self, name: &str) -> bool {
        self.0.iter().any(|(given, _)| *given == name)
    }

    /// Validates all flags together.
    ///
    /// # Errors
    /// If a value is invalid or flags conflict.
    pub(super) fn resolve(&self) -> Result<SelectedConfiguration, FlagError> {
        if self.is_given(POLICY_FILE) {
            return Err(FlagError::PolicyFile);
        }
        let file = self.text(FILE_FLAG);
        if !file.is_empty() {
            let legacy = [MODE, WEBHOOK_FILE, WEBHOOK_VERSION, AUTHORIZED_TTL, UNAUTHORIZED_TTL];
            if legacy.iter().any(|name| self.is_given(name)) {
                return Err(FlagError::FileWithFlags);
            }
            return Ok(SelectedConfiguration::File(PathBuf::from(file)));
        }
        let given = self.0.iter().filter(|(name, _)| *name == MODE);
        let modes: Vec<String> = given
            .flat_map(|(_, value)| value.split(','))
            .filter(|mode| !mode.is_empty())
            .map(str::to_owned)
            .collect();
        let hook = self.hook()?;
        if !self.is_given(MODE) && hook.kubeconfig.as_os_str().is_empty() {
            return Ok(SelectedConfiguration::Nothing);
        }
        let errors = self.check_modes(&modes, &hook);
        if !errors.is_empty() {
            return Err(FlagError::Modes(errors));
        }
        let hook = modes.iter().any(|mode| mode == "Webhook").then_some(hook);
        Ok(SelectedConfiguration::Modes(modes, hook))
    }

    fn check_modes(&self, modes: &[String], hook: &Hook) -> Vec<ModeError> {
        let mut errors = Vec::new();
        if modes.is_empty() && self.is_given(MODE) {
            errors.push(ModeError::Missing);
        }
        let has_webhook = modes.iter().any(|mode| mode == "Webhook");
        let has_file = !hook.kubeconfig.as_os_str().is_empty();
        for mode in modes {
            if mode == "ABAC" {
                errors.push(ModeError::Abac);
            } else if !Kind::NAMES.contains(&mode.as_str()) {
                errors.push(ModeError::Unknown(mode.clone()));
            }
            if mode == "Webhook" && !has_file {
                errors.push(ModeError::NoWebhookFile);
            }
        }
        if has_file && !has_webhook {
            errors.push(ModeError::NoWebhookMode);
        }
        let mut sorted = modes.to_vec();
        sorted.compact_sort();
        sorted.dedup();
        if sorted.len() != modes.len() {
            errors.push(ModeError::Repeated(modes.to_vec()));
        }
        errors
    }

    fn hook(&self) -> Result<Hook, FlagError> {
        let version = match self.text(WEBHOOK_VERSION) {
            "v1" => Version::V1,
            "" | "v1beta1" => Version::V1beta1,
            other => return Err(FlagError::WebhookVersion { version: other.to_owned() }),
        };
        Ok(Hook {
            authorized_ttl: self.duration(AUTHORIZED_TTL, Duration::from_secs(5 * 60))?,
            unauthorized_ttl: self.duration(UNAUTHORIZED_TTL, Duration::from_secs(30))?,
            timeout: TIMEOUT,
            version,
            denies_on_failure: false,
            kubeconfig: PathBuf::from(self.text(WEBHOOK_FILE)),
            conditions: Vec::new(),
        })
    }

    fn duration(&self, name: &str, default: Duration) -> Result<Duration, FlagError> {
        let text = self.text(name);
        if text.is_empty() {
            return Ok(default);
        }
        let nanos = api::codec::time::parse_duration(text).map_err(|e| FlagError::Duration {
            name: name.to_owned(),
            value: text.to_owned(),
            reason: e.to_string(),
        })?;
        u64::try_from(nanos).map(Duration::from_nanos).map_err(|_| FlagError::NegativeDuration {
            name: name.to_owned(),
            value: text.to_owned(),
        })
    }
}

/// Why ABAC is rejected, with alternatives.
pub(super) const NO_ABAC: &str =
    "attribute-based access control is not there, write roles and bindings (RBAC) or ask a webhook";

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(arguments: &[&str]) -> Result<SelectedConfiguration, FlagError> {
        let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
        FlagValues::of(&arguments)?.resolve()
    }

    #[test]
    fn webhook_flags_default_to_upstreams_values() {
        assert_eq!(resolve(&[]).unwrap(), SelectedConfiguration::Nothing);
        let flags = ["--authorization-mode=Node,Webhook", "authorization-webhook-config-file=/h"];
        let SelectedConfiguration::Modes(modes, Some(hook)) = resolve(&flags).unwrap() else {
            panic!("no webhook")
        };
        assert_eq!(modes, ["Node", "Webhook"]);
        assert_eq!((hook.authorized_ttl.as_secs(), hook.unauthorized_ttl.as_secs()), (300, 30));
        assert_eq!((hook.timeout.as_secs(), hook.version), (30, Version::V1beta1));
        assert!(!hook.denies_on_failure);
    }

    #[test]
    fn modes_of_several_flags_are_concatenated() {
        let modes = |flags: &[&str]| match resolve(flags) {
            Ok(SelectedConfiguration::Modes(modes, None)) => modes.join(" "),
            other => panic!("{other:?}"),
        };
        assert_eq!(modes(&["authorization-mode=RBAC,Node"]), "RBAC Node");
        assert_eq!(modes(&["authorization-mode=RBAC", "authorization-mode=Node"]), "RBAC Node");
        assert_eq!(modes(&["authorization-mode=AlwaysDeny"]), "AlwaysDeny");
    }

    /// Messages of upstream's `Validate`.
    #[test]
    fn invalid_and_conflicting_flags_are_rejected() {
        for (flags, want) in [
            (&["authorization-mode="][..], "at least one authorization-mode must be passed"),
            (&["authorization-mode=rbac"], r#"authorization-mode "rbac" is not a valid mode"#),
            (
                &["authorization-mode=Node,Node"],
                r#"authorization-mode ["Node" "Node"] has mode specified more than once"#,
            ),
            (
                &["authorization-mode=Webhook"],
                "authorization-mode Webhook's authorization config file not passed",
            ),
            (
                &["authorization-mode=RBAC", "authorization-webhook-config-file=/h"],
                "cannot specify --authorization-webhook-config-file without mode Webhook",
            ),
            (
                &["authorization-webhook-config-file=/h"],
                "cannot specify --authorization-webhook-config-file without mode Webhook",
            ),
            (
                &["authorization-config=/f", "authorization-mode=RBAC"],
                "--authorization-config can not be specified when --authorization-mode or --authorization-webhook-* flags are defined",
            ),
            (
                &["authorization-config=/f", "authorization-webhook-cache-authorized-ttl=1m"],
                "--authorization-config can not be specified when --authorization-mode or --authorization-webhook-* flags are defined",
            ),
            (
                &["authorization-mode=X,Webhook"],
                r#"[authorization-mode "X" is not a valid mode, authorization-mode Webhook's authorization config file not passed]"#,
            ),
            (
                &["authorization-webhook-version=v2"],
                r#"unsupported webhook authorizer version "v2", supported versions are "v1", "v1beta1""#,
            ),
            (
                &["authorization-webhook-cache-unauthorized-ttl=5"],
                r#"authorization-webhook-cache-unauthorized-ttl=5: time: missing unit in duration "5""#,
            ),
            (
                &["authorization-mode=ABAC"],
                "authorization-mode ABAC is not supported: attribute-based access control is not there, write roles and bindings (RBAC) or ask a webhook",
            ),
            (
                &["authorization-policy-file=/p"],
                "authorization-policy-file is not supported: attribute-based access control is not there, write roles and bindings (RBAC) or ask a webhook",
            ),
            (
                &["authorization-mode"],
                "authorization-mode: needs a value, write authorization-mode=VALUE",
            ),
        ] {
            assert_eq!(resolve(flags).unwrap_err().to_string(), want, "{flags:?}");
        }
    }
}
