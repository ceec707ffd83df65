//! Matches the rules of a webhook against requests: operations, resources, scope, labels of
//! namespace and object (upstream's `pkg/admission/plugin/webhook/predicates`).

use api::selector::{LabelSelector, SelectorError};
use api::value::{at, get, items, str_at, str_in};
use api::{Gvr, Object, Status};
use serde_json::{Map, Value};

use super::{Operation, Request};
use lookup::Lookup;

/// Kinds that configure webhooks and policies: these are exempt from both, so that a broken
/// configuration can be fixed.
const EXEMPT: [&str; 6] = [
    "ValidatingWebhookConfiguration",
    "MutatingWebhookConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
];

/// Virtual resources, which are not stored: exempt from webhooks, so that a broken webhook does not
/// lock users out (`ExcludeAdmissionWebhookVirtualResources`, on by default in 1.37).
const VIRTUAL: [(&str, &str); 6] = [
    ("authentication.k8s.io", "tokenreviews"),
    ("authentication.k8s.io", "selfsubjectreviews"),
    ("authorization.k8s.io", "localsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectrulesreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
];

/// Whether the request is exempt from webhooks.
pub(crate) fn is_exempt(request: &Request<'_>) -> bool {
    let kind = request.gvk;
    (&*kind.group == "admissionregistration.k8s.io" && EXEMPT.contains(&&*kind.kind))
        || is_virtual(request)
}

/// Whether the request is for an admission policy or a binding.
pub(crate) fn is_policy(request: &Request<'_>) -> bool {
    let kind = request.gvk;
    &*kind.group == "admissionregistration.k8s.io" && kind.kind.contains("AdmissionPolicy")
}

/// Whether the request is for a virtual resource, which is not stored.
pub(crate) fn is_virtual(request: &Request<'_>) -> bool {
    VIRTUAL.iter().any(|(group, resource)| request.is(group, resource))
}

/// One `RuleWithOperations`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    resources: Vec<String>,
    scope: String,
}

impl Rule {
    /// Parses a rule from its API form.
    pub(crate) fn of(rule: &Value) -> Self {
        let list = |key: &str| {
            items(rule, key).iter().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        Self {
            operations: list("operations"),
            groups: list("apiGroups"),
            versions: list("apiVersions"),
            resources: list("resources"),
            scope: str_at(rule, "scope").to_owned(),
        }
    }

    /// Whether the rule covers this operation on this resource; `namespace` is that of the request,
    /// see [`namespace_of`].
    pub(crate) fn matches(
        &self,
        operation: Operation,
        gvr: &Gvr,
        subresource: &str,
        namespace: &str,
    ) -> bool {
        let is_cluster = is_namespace(gvr) || namespace.is_empty();
        let in_scope = match self.scope.as_str() {
            "Namespaced" => !is_cluster,
            "Cluster" => is_cluster,
            _ => true,
        };
        let has =
            |list: &[String], value: &str| list.iter().any(|item| item == "*" || item == value);
        in_scope
            && has(&self.operations, operation_name(operation))
            && has(&self.groups, &gvr.group)
            && has(&self.versions, &gvr.version)
            && self.resources.iter().any(|pattern| {
                let (resource, sub) = pattern.split_once('/').unwrap_or((pattern, ""));
                (resource == "*" || resource == &*gvr.resource)
                    && (sub == "*" || sub == subresource)
            })
    }
}

/// Whether the resource is `namespaces` of the core group.
fn is_namespace(gvr: &Gvr) -> bool {
    gvr.group.is_empty() && &*gvr.version == "v1" && &*gvr.resource == "namespaces"
}

/// The name of an operation in reviews and rules.
pub(crate) fn operation_name(operation: Operation) -> &'static str {
    match operation {
        Operation::Create => "CREATE",
        Operation::Update => "UPDATE",
        Operation::Delete => "DELETE",
        Operation::Connect => "CONNECT",
    }
}

/// The namespace of a request; for a Namespace, its own name.
pub(crate) fn namespace_of<'a>(request: &Request<'a>, object: Option<&'a Value>) -> &'a str {
    if !request.namespace.is_empty() || !is_namespace(request.gvr) {
        return request.namespace;
    }
    match (request.name, object) {
        ("", Some(object)) => str_in(object, &["metadata", "name"]),
        (name, _) => name,
    }
}

/// The selectors of a webhook; an empty one selects everything.
#[derive(Debug, Clone)]
pub(crate) struct Selectors {
    namespace: LabelSelector,
    object: LabelSelector,
}

impl Selectors {
    /// Parses `namespaceSelector` and `objectSelector`; an absent one selects everything.
    ///
    /// # Errors
    /// If a selector is invalid.
    pub(crate) fn of(hook: &Value) -> Result<Self, SelectorError> {
        let read = |key: &str| match get(hook, key) {
            Value::Null => Ok(LabelSelector::everything()),
            selector => LabelSelector::from_value(Some(selector)),
        };
        Ok(Self { namespace: read("namespaceSelector")?, object: read("objectSelector")? })
    }

    /// Whether the labels of the namespace are selected. Cluster-scoped objects other than
    /// namespaces always are.
    ///
    /// # Errors
    /// 404 if the namespace does not exist; relevant only if a rule matches.
    pub(crate) async fn namespace(
        &self,
        request: &Request<'_>,
        object: Option<&Value>,
        lookup: &dyn Lookup,
    ) -> Result<bool, Status> {
        let name = namespace_of(request, object);
        if (name.is_empty() && &*request.gvr.resource != "namespaces") || self.namespace.is_empty()
        {
            return Ok(true);
        }
        let written = is_namespace(request.gvr)
            && request.subresource.is_empty()
            && matches!(request.operation, Operation::Create | Operation::Update);
        if let Some(object) = object.filter(|_| written) {
            return Ok(matches_labels(&self.namespace, object));
        }
        let namespace = namespace(lookup, name).await?;
        Ok(self.namespace.matches(&*namespace))
    }

    /// Whether the labels of the new or of the old object are selected.
    pub(crate) fn object(&self, new: Option<&Value>, old: Option<&Value>) -> bool {
        self.object.is_empty()
            || new.is_some_and(|o| matches_labels(&self.object, o))
            || old.is_some_and(|o| matches_labels(&self.object, o))
    }
}

/// A namespace from the cache, else from the store.
///
/// # Errors
/// 404 if it does not exist, 500 if it cannot be read.
pub(crate) async fn namespace(
    lookup: &dyn Lookup,
    name: &str,
) -> Result<std::sync::Arc<Object>, Status> {
    let found = lookup.find(&lookup::NAMESPACES, "", name).await;
    let found = found.map_err(|error| Status::internal(&error.message))?;
    found.ok_or_else(|| Status::not_found("", "namespaces", name))
}

fn matches_labels(selector: &LabelSelector, object: &Value) -> bool {
    let empty = Map::new();
    selector.matches(at(object, &["metadata", "labels"]).as_object().unwrap_or(&empty))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Rows of upstream's `rules_test.go`: the rule, then requests as `OPERATION
    /// group/version/resource/subresource namespace`.
    fn check(rule: Value, yes: &[&str], no: &[&str]) {
        let rule = Rule::of(&rule);
        for (requests, expected) in [(yes, true), (no, false)] {
            for text in requests {
                let (operation, rest) = text.split_once(' ').unwrap();
                let (path, namespace) = rest.split_once(' ').unwrap_or((rest, ""));
                let parts: Vec<&str> = path.split('/').collect();
                let operation = match operation {
                    "CREATE" => Operation::Create,
                    "UPDATE" => Operation::Update,
                    "DELETE" => Operation::Delete,
                    _ => Operation::Connect,
                };
                let gvr = Gvr::new(parts[0], parts[1], parts[2]);
                let subresource = parts.get(3).copied().unwrap_or_default();
                assert_eq!(
                    rule.matches(operation, &gvr, subresource, namespace),
                    expected,
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn wildcards_match_groups_versions_and_operations() {
        let rule = json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]});
        check(rule, &["CREATE g/v/r", "DELETE /v1/pods n"], &["CREATE g/v/r/exec"]);
        let rule = json!({"operations": ["CREATE", "UPDATE"], "apiGroups": ["g1", "g2"], "apiVersions": ["v2"], "resources": ["r"]});
        check(
            rule,
            &["CREATE g1/v2/r", "UPDATE g2/v2/r"],
            &["DELETE g1/v2/r", "CREATE g3/v2/r", "CREATE g1/v3/r", "CREATE g1/v2/r2"],
        );
    }

    #[test]
    fn rules_match_subresources_by_name_or_wildcard() {
        let rule = |resources: Value| json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": resources});
        check(rule(json!(["*/*"])), &["CREATE g/v/r", "CREATE g/v/r/exec"], &[]);
        check(
            rule(json!(["r/*"])),
            &["CREATE g/v/r", "CREATE g/v/r/exec"],
            &["CREATE g/v/r2/exec"],
        );
        check(rule(json!(["*/exec"])), &["CONNECT g/v/r/exec"], &["CREATE g/v/r"]);
        check(
            rule(json!(["r1", "r2/exec"])),
            &["CREATE g/v/r1", "CREATE g/v/r2/exec"],
            &["CREATE g/v/r2"],
        );
    }

    #[test]
    fn namespaces_are_cluster_scoped() {
        let rule = |scope: &str| json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "scope": scope});
        let (inside, outside) = ("CREATE apps/v1/deployments n", "CREATE /v1/nodes");
        let namespace = "CREATE /v1/namespaces n";
        check(rule("Namespaced"), &[inside], &[outside, namespace]);
        check(rule("Cluster"), &[outside, namespace], &[inside]);
        check(rule("*"), &[inside, outside, namespace], &[]);
    }

    #[test]
    fn object_selectors_match_old_and_new_objects() {
        let selectors =
            Selectors::of(&json!({"objectSelector": {"matchLabels": {"a": "b"}}})).unwrap();
        let labelled = json!({"metadata": {"labels": {"a": "b"}}});
        let bare = json!({"metadata": {}});
        assert!(selectors.object(Some(&labelled), None));
        assert!(selectors.object(Some(&bare), Some(&labelled)));
        assert!(!selectors.object(Some(&bare), None));
        assert!(!selectors.object(None, None));
    }
}
