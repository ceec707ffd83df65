//! Authorization: the attributes of a request and the trait that decides about them.

use async_trait::async_trait;

mod always;
pub mod chain;
pub mod config;
pub mod escalation;
mod flags;
mod load;
mod metrics;
pub mod node;
pub mod rbac;
pub mod reload;
pub mod rule;
mod webhook;

use crate::request::user::User;

/// The attributes of an authorization request.
#[derive(Debug, Clone, Default)]
pub struct Attributes<'a> {
    /// `get`, `list`, `create`, … or the lower-case HTTP method for non-resource paths.
    pub verb: &'a str,
    /// The API group; empty for core.
    pub group: &'a str,
    /// The API version.
    pub version: &'a str,
    /// The plural resource.
    pub resource: &'a str,
    /// The subresource, or empty.
    pub subresource: &'a str,
    /// The namespace, or empty.
    pub namespace: &'a str,
    /// The name, or empty.
    pub name: &'a str,
    /// The path of a non-resource request; empty for resource requests.
    pub path: &'a str,
    /// The field selector of the request, for the Node authorizer and webhooks.
    pub field_selector: &'a str,
    /// The label selector of the request, for webhooks.
    pub label_selector: &'a str,
}

/// The decision of an authorizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Allowed, with the reason for audit.
    Allow(String),
    /// Denied; ends the chain.
    Deny(String),
    /// No opinion: the next authorizer decides, and the end of the chain denies.
    NoOpinion(String),
    /// The authorizer failed. This is no approval; if no other authorizer allows the request, the
    /// error is returned.
    Failed(Failure),
}

/// The failure of an authorizer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Failure {
    /// Whether the failure denies the request; otherwise the next authorizer decides.
    pub denied: bool,
    /// The reason, as in a denial.
    pub reason: String,
    /// The error.
    pub error: String,
}

/// The permissions of a user in a namespace that authorizers can list (upstream's `RulesFor`).
#[derive(Debug, Clone, Default)]
pub struct UserRules {
    /// The rules.
    pub rules: Vec<rule::Rule>,
    /// Whether there can be permissions beyond the rules.
    pub incomplete: bool,
    /// The errors because of which rules are missing.
    pub errors: Vec<String>,
}

/// An authorizer, or a chain of them.
#[async_trait]
pub trait Authorizer: Send + Sync {
    /// Decides about one request.
    async fn authorize(&self, user: &User, attributes: &Attributes<'_>) -> Decision;

    /// The rules that apply to a user; empty if the authorizer has no rules.
    fn rules(&self, _user: &User, _namespace: &str) -> UserRules {
        UserRules::default()
    }

    /// Renders lines for `/metrics`.
    fn render(&self, _out: &mut String) {}
}

/// The entry point for fuzzing: parses an authorization configuration.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz_configuration(text: &[u8]) {
    drop(load::configuration(text));
}
