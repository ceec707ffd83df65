//! The flags of kube-apiserver in `--kube-apiserver-arg`, and `--audit`.

use std::fmt::Display;

use apiserver::admission::configuration::{self, AdmissionConfig};
use apiserver::audit::{AuditConfig, AuditFlags, FlagError, Preset};
use apiserver::authn;
use apiserver::priority_and_fairness::flags as flow;
use apiserver::request_tracing;
use component_config::flags;

use super::apiserver_settings::ApiServerSettings;
use crate::command_line::AuditPreset;
use crate::error_catalogue::invalid_flag;
use crate::error_catalogue::{BAD_VALUE, CommandError, UNSUPPORTED_FLAG};
use crate::machine::Machine;

/// An invalid value of `--kube-apiserver-arg`.
pub(crate) fn apiserver_arg_error(why: &dyn Display) -> CommandError {
    BAD_VALUE.usage_error(format!("--kube-apiserver-arg: {why}"))
}

/// Arguments that may be given several times.
const MANY: [&str; 2] = ["oidc-required-claim", "oidc-signing-algs"];

/// The values of `--kube-apiserver-arg` by subject.
pub(super) struct ApiServerArgs {
    pub(super) authorization: apiserver::authz::config::AuthorizationConfig,
    pub(super) authentication: authn::AuthenticationConfig,
    pub(super) encryption: Option<encryption::EncryptionConfig>,
    pub(super) flow: flow::FlowFlags,
    pub(super) spans: Option<request_tracing::TracingConfig>,
    pub(super) admission: AdmissionConfig,
    /// Single values.
    pub(super) settings: ApiServerSettings,
    /// Audit flags.
    pub(super) audit: Vec<String>,
}

impl ApiServerArgs {
    /// Parses arguments of the form `NAME=VALUE`.
    pub(super) fn parse(arguments: Vec<String>) -> Result<Self, CommandError> {
        let (authorization, rest) =
            split(arguments, apiserver::authz::config::AuthorizationConfig::is_flag);
        let (authentication, rest) = split(rest, authn::flags::is_flag);
        let (encryption, rest) = split(rest, encryption::EncryptionConfig::is_flag);
        let (flow, rest) = split(rest, flow::is_flag);
        let (spans, rest) = split(rest, request_tracing::is_flag);
        let (admission, rest) = split(rest, configuration::is_flag);
        let (audit, rest) = split(rest, |name| name.starts_with("audit-"));
        let single = ApiServerSettings::parse(&rest)?;
        let parsers = [&authorization, &authentication, &encryption, &flow, &spans, &audit];
        for arguments in parsers {
            check_once(arguments)?;
        }
        let settings =
            authn::flags::Settings::of(&authentication).map_err(|e| apiserver_arg_error(&e))?;
        Ok(Self {
            authorization: apiserver::authz::config::AuthorizationConfig::read(&authorization)
                .map_err(|e| apiserver_arg_error(&e))?,
            authentication: authn::AuthenticationConfig::read(&settings, &single.issuers)
                .map_err(|e| apiserver_arg_error(&e))?,
            encryption: encryption::EncryptionConfig::read(&encryption)
                .map_err(|e| apiserver_arg_error(&e))?,
            flow: flow::FlowFlags::parse(&flow).map_err(|e| apiserver_arg_error(&e))?,
            spans: request_tracing::TracingConfig::read(&spans)
                .map_err(|e| apiserver_arg_error(&e))?,
            admission: AdmissionConfig::read(&admission).map_err(|e| apiserver_arg_error(&e))?,
            settings: single,
            audit,
        })
    }

    /// The authenticators; without anonymous requests where no authorizer accepts them.
    pub(super) fn authentication_plan(
        &self,
        arguments: &[String],
        machine: &Machine,
    ) -> Result<authn::AuthenticationConfig, CommandError> {
        let plan = apply_profile(self.authentication.clone(), arguments, machine)?;
        Ok(if self.authorization.admits_anonymous() { plan } else { plan.without_anonymous() })
    }
}

/// Rejects an argument with one value that is given twice.
fn check_once(arguments: &[String]) -> Result<(), CommandError> {
    let names: Vec<&str> = arguments.iter().map(|argument| flags::parts(argument).0).collect();
    let twice = names.iter().enumerate().find(|(at, name)| {
        !MANY.contains(name) && names.iter().take(*at).any(|earlier| earlier == *name)
    });
    match twice {
        Some((_, name)) => {
            Err(apiserver_arg_error(&format!("{name} is given twice; remove one of them")))
        }
        None => Ok(()),
    }
}

/// Splits arguments into those whose name matches and the rest.
fn split(arguments: Vec<String>, is_match: fn(&str) -> bool) -> (Vec<String>, Vec<String>) {
    arguments.into_iter().partition(|argument| is_match(flags::parts(argument).0))
}

fn audit_error(error: FlagError) -> CommandError {
    match error {
        FlagError::Unknown(name) => {
            UNSUPPORTED_FLAG.usage_error(format!("--kube-apiserver-arg={name} is not supported"))
        }
        error => apiserver_arg_error(&error),
    }
}

/// The audit log: by the policy file in the arguments, else by a preset.
pub(super) fn audit_plan(
    arguments: &[String],
    preset: Option<AuditPreset>,
    machine: &Machine,
) -> Result<Option<AuditConfig>, CommandError> {
    let settings = AuditFlags::parse(arguments).map_err(audit_error)?;
    if let (Some(file), Some(preset)) = (&settings.policy_file, preset) {
        let why = format!("contradicts audit-policy-file={}; use only one of them", file.display());
        return Err(invalid_flag("audit", preset.name(), why));
    }
    let form = match preset {
        // The policy file takes precedence, even if it records nothing.
        None if settings.policy_file.is_some() => None,
        None if machine.is_hardened() => Some(Preset::Metadata),
        Some(AuditPreset::Metadata) => Some(Preset::Metadata),
        None | Some(AuditPreset::Compact) => Some(Preset::Compact),
        Some(AuditPreset::Off) if arguments.is_empty() => None,
        Some(AuditPreset::Off) => {
            let why =
                "contradicts the settings of audit in --kube-apiserver-arg; use only one of them";
            return Err(invalid_flag("audit", "off", why));
        }
    };
    match form {
        None => AuditConfig::read(&settings).map_err(|e| apiserver_arg_error(&e)),
        Some(form) => {
            let path = machine.data_dir.join("server/logs/audit.log");
            let settings = form.with_arguments(&path, arguments).map_err(audit_error)?;
            form.config(&settings).map_err(|e| apiserver_arg_error(&e))
        }
    }
}

/// Applies `--profile=hardened` to authentication and rejects the settings that contradict it.
fn apply_profile(
    plan: authn::AuthenticationConfig,
    arguments: &[String],
    machine: &Machine,
) -> Result<authn::AuthenticationConfig, CommandError> {
    if !machine.is_hardened() {
        return Ok(plan);
    }
    for argument in arguments {
        let (name, value) = flags::parts(argument);
        let value = value.unwrap_or("true");
        let why = match name {
            "anonymous-auth" if value == "true" => {
                "contradicts --profile=hardened; list the anonymous paths in \
                 authentication-config=FILE"
            }
            "authorization-mode" if value.split(',').any(|mode| mode == "AlwaysAllow") => {
                "contradicts --profile=hardened; the default is Node,RBAC"
            }
            _ => continue,
        };
        return Err(invalid_flag("kube-apiserver-arg", argument, why));
    }
    Ok(plan.with_anonymous_probes())
}
