//! Queries of the authorizer: the values of `authorizer` and its methods, each of which adds a part
//! to a query, as in `authorizer.group('apps').resource('deployments').check('get')`.

use std::fmt;
use std::sync::Arc;

/// Decides the checks of expressions. It must not block: an evaluation does not wait.
pub trait Authorize: Send + Sync {
    /// Decides whether the service account of the check, or without one the user of the request, is
    /// allowed to do it.
    fn authorize(&self, check: &Check) -> Decision;
}

/// What is to be authorized. Empty fields are not specified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Check {
    /// Namespace and name of the service account, if the check is not for the user.
    pub service_account: Option<(String, String)>,
    /// A non-resource path, for a check of a path instead of a resource.
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
    /// The authorizers' reason; may be empty.
    pub reason: String,
    /// Error of the authorizers, if none of them could decide.
    pub error: Option<String>,
}

/// The last method of a query that was called; it determines the CEL type of the query and so the
/// methods that may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// `authorizer`, also after `serviceAccount()`.
    Authorizer,
    /// After `path()`.
    Path,
    /// After `group()`.
    Group,
    /// After `resource()`.
    Resource,
}

impl Stage {
    /// The name of the CEL type.
    pub(crate) fn type_name(self) -> &'static str {
        match self {
            Stage::Authorizer => "kubernetes.authorization.Authorizer",
            Stage::Path => "kubernetes.authorization.PathCheck",
            Stage::Group => "kubernetes.authorization.GroupCheck",
            Stage::Resource => "kubernetes.authorization.ResourceCheck",
        }
    }
}

/// A value of one of the CEL types of [`Stage`]: the parts of a check that are specified so far.
#[derive(Clone)]
pub(crate) struct AuthorizerQuery {
    /// Decides the check.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{Env, Host, Type, Value, Variables};

    /// Allows nothing; the reason shows the check.
    struct Echo;

    impl Authorize for Echo {
        fn authorize(&self, check: &Check) -> Decision {
            let Check { verb, group, resource, subresource, namespace, name, .. } = check;
            let account = check
                .service_account
                .as_ref()
                .map(|(namespace, name)| format!("{namespace}:{name} "));
            let account = account.unwrap_or_default();
            let reason = match &check.path {
                Some(path) => format!("{account}{verb} {path}"),
                None => {
                    format!("{account}{verb} {group}/{resource}/{subresource} {namespace}/{name}")
                }
            };
            Decision { reason, ..Decision::default() }
        }
    }

    /// The examples of `pkg/cel/library/authz.go` in k8s.io/apiserver.
    #[test]
    fn calls_build_up_a_check() {
        let of = Type::object("kubernetes.authorization.Authorizer", BTreeMap::new());
        let env = Env::new().variable("authorizer", of);
        let authorizer = Value::Host(Host::authorizer(Arc::new(Echo)));
        let variables = Variables(vec![("authorizer", authorizer)]);
        for (query, expected) in [
            ("path('/healthz').check('get')", "get /healthz"),
            (
                "group('').resource('pods').namespace('default').check('create')",
                "create /pods/ default/",
            ),
            (
                "group('apps').resource('deployments').namespace('test').name('backend')\
                 .check('update')",
                "update apps/deployments/ test/backend",
            ),
            (
                "group('apps').resource('deployments').subresource('scale').check('get')",
                "get apps/deployments/scale /",
            ),
            (
                "serviceAccount('default', 'myserviceaccount').path('/x').check('get')",
                "default:myserviceaccount get /x",
            ),
        ] {
            let program = env.compile_any(&format!("authorizer.{query}.reason()")).unwrap();
            let reason = program.eval(&variables, &mut 1_000_000).unwrap();
            assert_eq!(reason.to_string(), expected, "{query}");
        }
    }

    /// The type names of `pkg/cel/library/authz.go` in k8s.io/apiserver.
    #[test]
    fn the_calls_so_far_determine_the_type() {
        for (stage, expected) in [
            (Stage::Authorizer, "kubernetes.authorization.Authorizer"),
            (Stage::Path, "kubernetes.authorization.PathCheck"),
            (Stage::Group, "kubernetes.authorization.GroupCheck"),
            (Stage::Resource, "kubernetes.authorization.ResourceCheck"),
        ] {
            assert_eq!(stage.type_name(), expected);
        }
    }
}
