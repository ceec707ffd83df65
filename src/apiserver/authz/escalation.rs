//! Prevents privilege escalation: checks writes of roles and bindings.

use std::sync::Arc;

use api::Status;
use api::field::go_quote;
use async_trait::async_trait;
use serde::Deserialize;
use serde_json::Value;
use sorting::CompactSort as _;

use super::rbac::{Rbac, RoleError, RoleRef};
use super::rule::{Rule, compact, display, go_list, missing, nullable};
use super::{Attributes, Authorizer, Decision};
use crate::admission::{Operation, Plugin, Request};
use crate::request::user::User;

const GROUP: &str = "rbac.authorization.k8s.io";

/// The RBAC escalation check.
pub struct Escalation {
    rbac: Arc<Rbac>,
    authorizer: Arc<dyn Authorizer>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Role {
    #[serde(deserialize_with = "nullable")]
    rules: Vec<Rule>,
    #[serde(deserialize_with = "nullable")]
    aggregation_rule: Aggregation,
    role_ref: RoleRef,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Aggregation {
    #[serde(deserialize_with = "nullable")]
    cluster_role_selectors: Vec<Value>,
}

impl Escalation {
    /// Creates the check with the rules in `rbac`; `authorizer` decides about the verbs `escalate`
    /// and `bind`.
    pub fn new(rbac: Arc<Rbac>, authorizer: Arc<dyn Authorizer>) -> Self {
        Self { rbac, authorizer }
    }

    /// Rejects a role or binding that grants permissions beyond those of the user.
    ///
    /// # Errors
    /// 403 with the missing permissions, 404 for a binding to a role that does not exist.
    pub async fn check(&self, request: &Request<'_>, object: &Value) -> Result<(), Status> {
        if &*request.gvr.group != GROUP
            || !request.subresource.is_empty()
            || !matches!(request.operation, Operation::Create | Operation::Update)
            || request.user.in_group("system:masters")
        {
            return Ok(());
        }
        let resource = &*request.gvr.resource;
        if request.old.is_some_and(|old| only_gc_fields_differ(object, old)) {
            return Ok(());
        }
        match resource {
            "roles" | "clusterroles" => self.check_role(request, resource, object).await,
            "rolebindings" | "clusterrolebindings" => {
                self.check_binding(request, resource, object).await
            }
            _ => Ok(()),
        }
    }

    async fn check_role(
        &self,
        request: &Request<'_>,
        resource: &str,
        object: &Value,
    ) -> Result<(), Status> {
        let name = if request.operation == Operation::Create { "" } else { request.name };
        if self.may(request.user, "escalate", resource, request.namespace, name).await {
            return Ok(());
        }
        let role = parse(object)?;
        let object_name =
            object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let refuse = |why: &str| Status::forbidden(GROUP, resource, object_name, why);
        self.confirm(request.user, request.namespace, &role.rules)
            .map_err(|error| refuse(&error.to_string()))?;
        let aggregates = |role: &Role| !role.aggregation_rule.cluster_role_selectors.is_empty();
        let aggregated = aggregates(&role)
            || request.old.map(parse).transpose()?.is_some_and(|old| aggregates(&old));
        if resource == "clusterroles"
            && aggregated
            && self.confirm(request.user, "", &everything()).is_err()
        {
            return Err(refuse("must have cluster-admin privileges to use the aggregationRule"));
        }
        Ok(())
    }

    async fn check_binding(
        &self,
        request: &Request<'_>,
        resource: &str,
        object: &Value,
    ) -> Result<(), Status> {
        let role = parse(object)?.role_ref;
        let referred = match role.kind.as_str() {
            "ClusterRole" => "clusterroles",
            "Role" => "roles",
            // Validation reports the unknown kind.
            _ => return Ok(()),
        };
        if role.api_group == GROUP
            && self.may(request.user, "bind", referred, request.namespace, &role.name).await
        {
            return Ok(());
        }
        let rules = self.rbac.rules_of(&role, request.namespace)?;
        let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        self.confirm(request.user, request.namespace, &rules)
            .map_err(|error| Status::forbidden(GROUP, resource, name, &error.to_string()))
    }

    async fn may(
        &self,
        user: &User,
        verb: &str,
        resource: &str,
        namespace: &str,
        name: &str,
    ) -> bool {
        let attributes = Attributes {
            verb,
            group: GROUP,
            version: "*",
            resource,
            namespace,
            name,
            ..Attributes::default()
        };
        matches!(self.authorizer.authorize(user, &attributes).await, Decision::Allow(_))
    }

    /// Checks that the user has these permissions.
    fn confirm(
        &self,
        user: &User,
        namespace: &str,
        rules: &[Rule],
    ) -> Result<(), MissingPermissions> {
        let (owned, resolution_errors) = self.rbac.rules_for(user, namespace);
        let lacking = missing(&owned, rules);
        if lacking.is_empty() {
            return Ok(());
        }
        let mut missing: Vec<String> = compact(lacking).iter().map(display).collect();
        missing.compact_sort();
        missing.dedup();
        let (user, groups) = (user.name.clone(), user.groups.clone());
        Err(MissingPermissions { user, groups, missing, resolution_errors })
    }
}

/// A user grants permissions beyond the user's own. The message is upstream's.
#[derive(Debug, thiserror::Error)]
#[error(
    "user {} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}{}",
    go_quote(.user),
    go_list(.groups),
    .missing.join("\n"),
    resolution_text(.resolution_errors)
)]
struct MissingPermissions {
    user: String,
    groups: Vec<String>,
    /// The rules, in upstream's text form.
    missing: Vec<String>,
    /// The errors because of which the user may have more permissions than are known.
    resolution_errors: Vec<RoleError>,
}

fn resolution_text(errors: &[RoleError]) -> String {
    if errors.is_empty() {
        return String::new();
    }
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    format!("; resolution errors: [{}]", texts.join(", "))
}

#[async_trait]
impl Plugin for Escalation {
    fn name(&self) -> &'static str {
        "RBACEscalation"
    }

    async fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Option<Value>,
    ) -> Result<(), Status> {
        match object.as_ref() {
            Some(object) => self.check(request, object).await,
            None => Ok(()),
        }
    }
}

fn everything() -> [Rule; 2] {
    let star = || vec!["*".to_owned()];
    [
        Rule { verbs: star(), api_groups: star(), resources: star(), ..Rule::default() },
        Rule { verbs: star(), non_resource_urls: star(), ..Rule::default() },
    ]
}

fn parse(object: &Value) -> Result<Role, Status> {
    Role::deserialize(object).map_err(|error| Status::bad_request(error.to_string()))
}

/// Whether only fields changed that the garbage collector needs to change.
fn only_gc_fields_differ(new: &Value, old: &Value) -> bool {
    let strip = |value: &Value| {
        let mut value = value.clone();
        if let Some(meta) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            for field in ["ownerReferences", "finalizers", "managedFields", "resourceVersion"] {
                meta.remove(field);
            }
        }
        value
    };
    strip(new) == strip(old)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authz::chain::Chain;
    use api::{Gvk, Object};
    use lookup::{CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES};
    use serde_json::json;

    fn world() -> Escalation {
        let rbac = Arc::new(Rbac::new());
        let put = |gvr: &api::Gvr, value| rbac.put(gvr, &Object::from_value(value).unwrap());
        put(
            &CLUSTER_ROLES,
            json!({"metadata": {"name": "author"}, "rules": [
                {"verbs": ["*"], "apiGroups": [GROUP], "resources": ["clusterroles", "clusterrolebindings"]},
                {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]},
            ]}),
        );
        put(
            &CLUSTER_ROLES,
            json!({"metadata": {"name": "secrets"}, "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"]}]}),
        );
        let rules = json!([{"verbs": ["create"], "apiGroups": [GROUP], "resources": ["clusterroles"]}, {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
        put(&CLUSTER_ROLES, json!({"metadata": {"name": "small"}, "rules": rules}));
        for (user, role) in [("amy", "author"), ("bob", "small")] {
            put(
                &CLUSTER_ROLE_BINDINGS,
                json!({"metadata": {"name": user}, "roleRef": {"kind": "ClusterRole", "name": role}, "subjects": [{"kind": "User", "name": user}]}),
            );
        }
        let chain: Arc<dyn Authorizer> =
            Arc::new(Chain::new(vec![Arc::clone(&rbac) as Arc<dyn Authorizer>]));
        Escalation::new(rbac, chain)
    }

    async fn write(
        world: &Escalation,
        user: &str,
        resource: &str,
        object: Value,
    ) -> Result<(), Status> {
        let warnings = parking_lot::Mutex::default();
        let gvr = api::Gvr::new(GROUP, "v1", resource);
        let request = Request {
            operation: Operation::Create,
            gvr: &gvr,
            gvk: &Gvk::new(GROUP, "v1", "X"),
            subresource: "",
            namespace: "",
            name: "",
            user: &User::authenticated(user, &[]),
            dry_run: false,
            old: None,
            options: Default::default(),
            reinvocation: &Default::default(),
            reservation: &Default::default(),
            warnings: &warnings,
        };
        world.check(&request, &object).await
    }

    #[tokio::test]
    async fn a_role_with_further_permissions_is_rejected_with_their_list() {
        let role = |resource: &str| json!({"metadata": {"name": "r"}, "rules": [{"verbs": ["get", "list"], "apiGroups": [""], "resources": [resource]}]});
        let error = write(&world(), "bob", "clusterroles", role("pods")).await.unwrap_err();
        assert_eq!(
            error.message,
            "clusterroles.rbac.authorization.k8s.io \"r\" is forbidden: user \"bob\" (groups=[\"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"list\"]}"
        );
        // `*` includes the verb `escalate`.
        assert!(write(&world(), "amy", "clusterroles", role("pods")).await.is_ok());
    }

    #[tokio::test]
    async fn a_binding_requires_the_permissions_or_the_verb_bind() {
        let binding = |role: &str| json!({"metadata": {"name": "b"}, "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role}});
        assert_eq!(
            write(&world(), "bob", "clusterrolebindings", binding("secrets"))
                .await
                .unwrap_err()
                .code,
            403
        );
        assert_eq!(
            write(&world(), "bob", "clusterrolebindings", binding("gone")).await.unwrap_err().code,
            404
        );
        assert!(write(&world(), "bob", "clusterrolebindings", binding("small")).await.is_ok());
    }
}
