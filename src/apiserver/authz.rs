//! May they? The question, and the seam that answers it.

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

/// What is asked of an authorizer.
#[derive(Debug, Clone, Default)]
pub struct Attributes<'a> {
    /// `get`, `list`, `create`, … or the lower-case HTTP method for non-resource paths.
    pub verb: &'a str,
    /// Group; empty for core.
    pub group: &'a str,
    /// Version.
    pub version: &'a str,
    /// Plural resource.
    pub resource: &'a str,
    /// Subresource, or empty.
    pub subresource: &'a str,
    /// Namespace, or empty.
    pub namespace: &'a str,
    /// Name, or empty.
    pub name: &'a str,
    /// Path of a non-resource request; empty for resource requests.
    pub path: &'a str,
    /// Field selector of the request, for the Node authorizer and webhooks.
    pub field_selector: &'a str,
    /// Label selector of the request, for webhooks.
    pub label_selector: &'a str,
}

/// The answer of an authorizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Allowed, with the reason for audit.
    Allow(String),
    /// Denied, whatever others say.
    Deny(String),
    /// Not known here; the next authorizer is asked, and the end of the chain denies.
    NoOpinion(String),
    /// An authorizer could not do its work. That is no approval, and a request that nobody else approves is answered with the error.
    Failed(Failure),
}

/// What an authorizer came to that could not do its work.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Failure {
    /// Denied, whatever others say; else the next authorizer is asked.
    pub denied: bool,
    /// As of a refusal.
    pub reason: String,
    /// What went wrong.
    pub error: String,
}

/// What a user may do in a namespace, as far as rules tell.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// The rules.
    pub rules: Vec<rule::Rule>,
    /// There may be more that no rule tells.
    pub incomplete: bool,
    /// Why some are missing.
    pub errors: Vec<String>,
}

/// One authorizer, or the chain of them.
#[async_trait]
pub trait Authorizer: Send + Sync {
    /// Answers one question.
    async fn authorize(&self, user: &User, attributes: &Attributes<'_>) -> Decision;

    /// What rules say of a user; nothing where the authorizer has none.
    fn rules(&self, _user: &User, _namespace: &str) -> Known {
        Known::default()
    }

    /// Lines for `/metrics`.
    fn render(&self, _out: &mut String) {}
}

/// What fuzzers feed: a configuration of authorizers.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz_configuration(text: &[u8]) {
    drop(load::configuration(text));
}
