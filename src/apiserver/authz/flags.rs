//! The authorization flags of the API server, with upstream's names, defaults and messages
//! (`pkg/kubeapiserver/options/authorization.go`).

use std::path::PathBuf;
use std::time::Duration;

use api::field::go_quote;

use super::config::{FILE_FLAG, Hook, Kind, Version};
use super::rule::go_list;
use crate::response::aggregate::aggregate;

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
    pub(super) fn of(arguments: &'a [String]) -> Result<Self, String> {
        let one = |argument: &'a String| {
            let (name, value) = crate::flags::parts(argument);
            let value =
                value.ok_or_else(|| format!("{name}: needs a value, write {name}=VALUE"))?;
            match FLAGS.iter().find(|known| **known == name) {
                Some(name) => Ok((*name, value)),
                None => Err(format!("{name} is no flag of authorization")),
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
    /// Upstream's messages.
    pub(super) fn resolve(&self) -> Result<SelectedConfiguration, String> {
        if self.is_given(POLICY_FILE) {
            return Err(format!("{POLICY_FILE} is not supported: {NO_ABAC}"));
        }
        let file = self.text(FILE_FLAG);
        if !file.is_empty() {
            let legacy = [MODE, WEBHOOK_FILE, WEBHOOK_VERSION, AUTHORIZED_TTL, UNAUTHORIZED_TTL];
            if legacy.iter().any(|name| self.is_given(name)) {
                return Err(format!(
                    "--{FILE_FLAG} can not be specified when --{MODE} or --authorization-webhook-* flags are defined"
                ));
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
        let mut errors = Vec::new();
        if modes.is_empty() && self.is_given(MODE) {
            errors.push(format!("at least one {MODE} must be passed"));
        }
        let hooked = modes.iter().any(|mode| mode == "Webhook");
        let no_file = hook.kubeconfig.as_os_str().is_empty();
        for mode in &modes {
            if mode == "ABAC" {
                errors.push(format!("{MODE} ABAC is not supported: {NO_ABAC}"));
            } else if !Kind::NAMES.contains(&mode.as_str()) {
                errors.push(format!("{MODE} {} is not a valid mode", go_quote(mode)));
            }
            if mode == "Webhook" && no_file {
                errors.push(format!("{MODE} Webhook's authorization config file not passed"));
            }
        }
        if !no_file && !hooked {
            errors.push(format!("cannot specify --{WEBHOOK_FILE} without mode Webhook"));
        }
        let mut sorted = modes.clone();
        sorted.sort();
        sorted.dedup();
        if sorted.len() != modes.len() {
            errors.push(format!("{MODE} {} has mode specified more than once", go_list(&modes)));
        }
        if errors.is_empty() {
            return Ok(SelectedConfiguration::Modes(modes, hooked.then_some(hook)));
        }
        Err(aggregate(errors))
    }

    fn hook(&self) -> Result<Hook, String> {
        let version = match self.text(WEBHOOK_VERSION) {
            "v1" => Version::V1,
            "" | "v1beta1" => Version::V1beta1,
            other => {
                return Err(format!(
                    "unsupported webhook authorizer version {}, supported versions are \"v1\", \"v1beta1\"",
                    go_quote(other)
                ));
            }
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

    fn duration(&self, name: &str, default: Duration) -> Result<Duration, String> {
        let text = self.text(name);
        if text.is_empty() {
            return Ok(default);
        }
        let nanos = api::codec::time::parse_duration(text);
        let nanos = nanos.map_err(|why| format!("{name}={text}: {why}"))?;
        let nanos = u64::try_from(nanos);
        nanos.map(Duration::from_nanos).map_err(|_| format!("{name}={text}: must not be negative"))
    }
}

/// Why ABAC is rejected, with alternatives.
pub(super) const NO_ABAC: &str =
    "attribute-based access control is not there, write roles and bindings (RBAC) or ask a webhook";

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(arguments: &[&str]) -> Result<SelectedConfiguration, String> {
        let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
        FlagValues::of(&arguments)?.resolve()
    }

    #[test]
    fn defaults_are_upstreams() {
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
    fn modes_add_up_in_their_order() {
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
    fn what_makes_no_sense_is_refused() {
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
            assert_eq!(resolve(flags).unwrap_err(), want, "{flags:?}");
        }
    }
}
