//! Questions to the authorizer, built up call by call.

use std::fmt;
use std::sync::Arc;

/// Who answers whether a user may do something. The answer must not need to be waited for.
pub trait Authorize: Send + Sync {
    /// Decides a check, for the user of the request or for the service account that it names.
    fn authorize(&self, check: &Check) -> Decision;
}

/// What is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Check {
    /// Namespace and name of the service account that is asked for instead of the user.
    pub service_account: Option<(String, String)>,
    /// A path that is no resource.
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

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    pub reason: String,
    /// Why nobody could decide.
    pub error: Option<String>,
}

/// How far a question is.
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

/// A question that is not finished.
#[derive(Clone)]
pub(crate) struct Asked {
    pub(crate) by: Arc<dyn Authorize>,
    pub(crate) stage: Stage,
    pub(crate) check: Check,
}

impl fmt::Debug for Asked {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Asked").field("stage", &self.stage).field("check", &self.check).finish()
    }
}
