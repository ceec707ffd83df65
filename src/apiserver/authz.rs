//! May they? The question, and the seam that answers it.

use async_trait::async_trait;

pub mod chain;
pub mod escalation;
pub mod node;
pub mod rbac;
pub mod rule;

use crate::user::User;

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
    /// Field selector of the request, for the Node authorizer.
    pub field_selector: &'a str,
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
}

/// One authorizer, or the chain of them.
#[async_trait]
pub trait Authorizer: Send + Sync {
    /// Answers one question.
    async fn authorize(&self, user: &User, attributes: &Attributes<'_>) -> Decision;
}
