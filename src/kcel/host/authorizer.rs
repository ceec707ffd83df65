//! Queries of the authorizer, which expressions build up call by call.

use std::fmt;
use std::sync::Arc;

/// An authorizer of queries. It must decide without waiting.
pub trait Authorize: Send + Sync {
    /// Decides a check for the user of the request or for the service account of the check.
    fn authorize(&self, check: &Check) -> Decision;
}

/// A check of the authorizer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Check {
    /// Namespace and name of the service account, if the check is not for the user.
    pub service_account: Option<(String, String)>,
    /// A non-resource path.
    pub path: Option<String>,
    pub group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    pub field_selector: String,
    pub label_selector: String,
    pub verb: String,
}

/// The decision of the authorizer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    pub reason: String,
    /// Error of the authorizers, if none of them could decide.
    pub error: Option<String>,
}

/// The methods that have been called so far, which determine the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Authorizer,
    Path,
    Group,
    Resource,
}

impl Stage {
    pub(crate) fn type_name(self) -> &'static str {
        match self {
            Stage::Authorizer => "kubernetes.authorization.Authorizer",
            Stage::Path => "kubernetes.authorization.PathCheck",
            Stage::Group => "kubernetes.authorization.GroupCheck",
            Stage::Resource => "kubernetes.authorization.ResourceCheck",
        }
    }
}

/// A query that the methods of `authorizer` build up to a check.
#[derive(Clone)]
pub(crate) struct AuthorizerQuery {
    pub(crate) by: Arc<dyn Authorize>,
    pub(crate) stage: Stage,
    pub(crate) check: Check,
}

impl fmt::Debug for AuthorizerQuery {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("AuthorizerQuery")
            .field("stage", &self.stage)
            .field("check", &self.check)
            .finish()
    }
}
