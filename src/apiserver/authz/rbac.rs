//! Role-based access control over an index that follows the watch cache.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use api::{Gvr, Object, ObjectKey, Status, WatchEvent};
use async_trait::async_trait;
use parking_lot::RwLock;
use serde::Deserialize;
use sorting::CompactSort as _;

use super::rule::{Rule, nullable};
use super::{Attributes, Authorizer, Decision, UserRules};
use crate::request::user::User;
use component_config::aggregate;

/// `rbac/v1 Subject`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Subject {
    /// `User`, `Group` or `ServiceAccount`.
    pub kind: String,
    /// The name.
    pub name: String,
    /// The namespace of a service account; empty means the binding's.
    pub namespace: String,
}

/// `rbac/v1 RoleRef`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RoleRef {
    /// `rbac.authorization.k8s.io`.
    pub api_group: String,
    /// `Role` or `ClusterRole`.
    pub kind: String,
    /// The name.
    pub name: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RoleBody {
    #[serde(deserialize_with = "nullable")]
    rules: Vec<Rule>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct BindingBody {
    #[serde(deserialize_with = "nullable")]
    subjects: Vec<Subject>,
    role_ref: RoleRef,
}

#[derive(Debug)]
struct Binding {
    key: ObjectKey,
    role: RoleRef,
    subjects: Vec<Subject>,
}

/// A binding and the index of one of its subjects.
type BoundSubject = (Arc<Binding>, usize);

/// A role cannot be resolved; its binding grants nothing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum RoleError {
    /// The kind is neither Role nor ClusterRole.
    #[error("unsupported role reference kind: {kind:?}")]
    Kind {
        /// The kind.
        kind: String,
    },
    /// The role does not exist.
    #[error("{resource}.rbac.authorization.k8s.io \"{name}\" not found")]
    NotFound {
        /// `role` or `clusterrole`.
        resource: &'static str,
        /// The name of the role.
        name: String,
    },
}

/// The bindings of one namespace (or of the cluster) by subject name.
#[derive(Default)]
struct Index {
    users: HashMap<Box<str>, Vec<BoundSubject>>,
    groups: HashMap<Box<str>, Vec<BoundSubject>>,
}

#[derive(Default)]
struct State {
    /// Roles by namespace and name; cluster roles have an empty namespace.
    roles: HashMap<ObjectKey, Arc<[Rule]>>,
    bindings: HashMap<ObjectKey, Arc<Binding>>,
    /// By namespace of the binding; empty for cluster role bindings.
    index: HashMap<Box<str>, Index>,
}

/// The RBAC authorizer. [`Rbac::observe`] must receive every event of the four RBAC resources.
#[derive(Default)]
pub struct Rbac {
    state: RwLock<State>,
}

impl Rbac {
    /// Creates an authorizer without roles.
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies an event of `roles`, `clusterroles`, `rolebindings` or `clusterrolebindings`; others
    /// are ignored.
    pub fn observe(&self, gvr: &Gvr, event: &WatchEvent) {
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => self.put(gvr, object),
            WatchEvent::Deleted(object) => self.remove(gvr, &object.key),
            WatchEvent::Bookmark { .. } | WatchEvent::Error(_) => {}
        }
    }

    /// Adds or replaces a role or binding.
    pub fn put(&self, gvr: &Gvr, object: &Object) {
        if &*gvr.group != "rbac.authorization.k8s.io" {
            return;
        }
        match &*gvr.resource {
            "roles" | "clusterroles" => match serde_json::from_slice::<RoleBody>(object.raw()) {
                Ok(role) => {
                    self.state.write().roles.insert(object.key.clone(), role.rules.into());
                }
                // A role that cannot be parsed grants nothing.
                Err(error) => {
                    tracing::warn!(role = %object.key, %error, "cannot decode a role; it grants nothing");
                    self.state.write().roles.insert(object.key.clone(), Arc::from([]));
                }
            },
            "rolebindings" | "clusterrolebindings" => {
                match serde_json::from_slice::<BindingBody>(object.raw()) {
                    Ok(body) => self.state.write().bind(Binding {
                        key: object.key.clone(),
                        role: body.role_ref,
                        subjects: body.subjects,
                    }),
                    Err(error) => {
                        tracing::warn!(binding = %object.key, %error, "cannot decode a binding; it grants nothing");
                        self.state.write().unbind(&object.key);
                    }
                }
            }
            _ => {}
        }
    }

    /// Replaces all objects of one of the four resources.
    pub fn replace(&self, gvr: &Gvr, objects: &[Arc<Object>]) {
        let namespaced = matches!(&*gvr.resource, "roles" | "rolebindings");
        let gone: Vec<ObjectKey> = {
            let state = self.state.read();
            let roles = state.roles.keys().filter(|_| gvr.resource.ends_with("roles"));
            let bindings = state.bindings.keys().filter(|_| gvr.resource.ends_with("rolebindings"));
            let ours = roles.chain(bindings).filter(|key| namespaced != key.namespace.is_empty());
            ours.filter(|key| !objects.iter().any(|o| o.key == **key)).cloned().collect()
        };
        for key in &gone {
            self.remove(gvr, key);
        }
        for object in objects {
            self.put(gvr, object);
        }
    }

    /// Removes a role or binding.
    pub fn remove(&self, gvr: &Gvr, key: &ObjectKey) {
        if &*gvr.group != "rbac.authorization.k8s.io" {
            return;
        }
        let mut state = self.state.write();
        match &*gvr.resource {
            "roles" | "clusterroles" => {
                state.roles.remove(key);
            }
            "rolebindings" | "clusterrolebindings" => state.unbind(key),
            _ => {}
        }
    }

    /// All rules of the user in this namespace (including cluster-wide ones), and the errors of
    /// role resolution.
    pub fn rules_for(&self, user: &User, namespace: &str) -> (Vec<Rule>, Vec<RoleError>) {
        let (mut rules, mut errors) = (Vec::new(), Vec::new());
        self.state.read().visit(user, namespace, |found| {
            match found {
                Ok((_, rule)) => rules.push(rule.clone()),
                Err(error) => errors.push(error),
            }
            true
        });
        (rules, errors)
    }

    /// The rules of the role that a binding in `namespace` (empty: the cluster) refers to.
    ///
    /// # Errors
    /// 404 if the role does not exist, 500 for an unknown kind of role.
    pub fn rules_of(&self, role: &RoleRef, namespace: &str) -> Result<Arc<[Rule]>, Status> {
        let (resource, namespace) = match role.kind.as_str() {
            "Role" => ("roles", namespace),
            "ClusterRole" => ("clusterroles", ""),
            other => {
                let error = RoleError::Kind { kind: other.to_owned() };
                return Err(Status::internal(&error.to_string()));
            }
        };
        let state = self.state.read();
        let found = state.roles.get(&ObjectKey::new(namespace, &role.name)).cloned();
        found.ok_or_else(|| Status::not_found("rbac.authorization.k8s.io", resource, &role.name))
    }
}

#[async_trait]
impl Authorizer for Rbac {
    async fn authorize(&self, user: &User, attributes: &Attributes<'_>) -> Decision {
        let mut errors = Vec::new();
        let mut allowed = None;
        self.state.read().visit(user, attributes.namespace, |found| match found {
            Ok(((binding, subject), rule)) if rule.allows(attributes) => {
                allowed = Some(describe(binding, *subject));
                false
            }
            Ok(_) => true,
            Err(error) => {
                errors.push(error);
                true
            }
        });
        match allowed {
            Some(by) => Decision::Allow(format!("RBAC: allowed by {by}")),
            None if errors.is_empty() => Decision::NoOpinion(String::new()),
            None => Decision::NoOpinion(format!("RBAC: {}", aggregate_sorted(&errors))),
        }
    }

    fn rules(&self, user: &User, namespace: &str) -> UserRules {
        let (rules, errors) = self.rules_for(user, namespace);
        let errors = errors.iter().map(ToString::to_string).collect();
        UserRules { rules, errors, incomplete: false }
    }
}

/// Joins the errors in sorted order, like upstream's aggregate.
fn aggregate_sorted(errors: &[RoleError]) -> String {
    let mut texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    texts.compact_sort();
    aggregate(texts)
}

fn describe(binding: &Binding, subject: usize) -> String {
    let mut text = String::new();
    let ObjectKey { namespace, name } = &binding.key;
    let _ = if namespace.is_empty() {
        write!(text, "ClusterRoleBinding \"{name}\"")
    } else {
        write!(text, "RoleBinding \"{name}/{namespace}\"")
    };
    let _ = write!(text, " of {} \"{}\" to ", binding.role.kind, binding.role.name);
    if let Some(subject) = binding.subjects.get(subject) {
        let _ = if subject.kind == "ServiceAccount" {
            let of =
                if subject.namespace.is_empty() { namespace } else { subject.namespace.as_str() };
            write!(text, "ServiceAccount \"{}/{of}\"", subject.name)
        } else {
            write!(text, "{} \"{}\"", subject.kind, subject.name)
        };
    }
    text
}

impl State {
    fn bind(&mut self, binding: Binding) {
        self.unbind(&binding.key);
        let binding = Arc::new(binding);
        let index = self.index.entry((*binding.key.namespace).into()).or_default();
        for (i, subject) in binding.subjects.iter().enumerate() {
            let (map, key): (_, Box<str>) = match subject.kind.as_str() {
                "User" => (&mut index.users, subject.name.as_str().into()),
                "Group" => (&mut index.groups, subject.name.as_str().into()),
                "ServiceAccount" => {
                    let of = if subject.namespace.is_empty() {
                        &*binding.key.namespace
                    } else {
                        subject.namespace.as_str()
                    };
                    if of.is_empty() {
                        continue;
                    }
                    (
                        &mut index.users,
                        format!("system:serviceaccount:{of}:{}", subject.name).into(),
                    )
                }
                _ => continue,
            };
            map.entry(key).or_default().push((Arc::clone(&binding), i));
        }
        self.bindings.insert(binding.key.clone(), binding);
    }

    fn unbind(&mut self, key: &ObjectKey) {
        let Some(old) = self.bindings.remove(key) else { return };
        let Some(index) = self.index.get_mut(&*key.namespace) else { return };
        let drop = |map: &mut HashMap<Box<str>, Vec<BoundSubject>>| {
            map.retain(|_, entries| {
                entries.retain(|(binding, _)| !Arc::ptr_eq(binding, &old));
                !entries.is_empty()
            });
        };
        drop(&mut index.users);
        drop(&mut index.groups);
        if index.users.is_empty() && index.groups.is_empty() {
            self.index.remove(&*key.namespace);
        }
    }

    /// Calls `visitor` with each rule that applies, cluster-wide ones first, until it returns
    /// `false`.
    fn visit<'s>(
        &'s self,
        user: &User,
        namespace: &str,
        mut visitor: impl FnMut(Result<(&'s BoundSubject, &'s Rule), RoleError>) -> bool,
    ) {
        let scopes = if namespace.is_empty() { &[""][..] } else { &["", namespace][..] };
        let mut seen: Vec<*const Binding> = Vec::new();
        for scope in scopes {
            let Some(index) = self.index.get(*scope) else { continue };
            let users = index.users.get(user.name.as_str()).into_iter();
            let groups = user.groups.iter().filter_map(|group| index.groups.get(group.as_str()));
            for entry in users.chain(groups).flatten() {
                if seen.contains(&Arc::as_ptr(&entry.0)) {
                    continue;
                }
                seen.push(Arc::as_ptr(&entry.0));
                if !self.visit_role(entry, scope, &mut visitor) {
                    return;
                }
            }
        }
    }

    fn visit_role<'s>(
        &'s self,
        entry: &'s BoundSubject,
        scope: &str,
        visitor: &mut impl FnMut(Result<(&'s BoundSubject, &'s Rule), RoleError>) -> bool,
    ) -> bool {
        let role = &entry.0.role;
        let (namespace, resource) = match role.kind.as_str() {
            "Role" => (scope, "role"),
            "ClusterRole" => ("", "clusterrole"),
            other => return visitor(Err(RoleError::Kind { kind: other.to_owned() })),
        };
        match self.roles.get(&ObjectKey::new(namespace, &role.name)) {
            Some(rules) => rules.iter().all(|rule| visitor(Ok((entry, rule)))),
            None => visitor(Err(RoleError::NotFound { resource, name: role.name.clone() })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lookup::{CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, ROLE_BINDINGS};
    use serde_json::json;

    fn object(value: serde_json::Value) -> Arc<Object> {
        Arc::new(Object::from_value(value).unwrap())
    }

    fn view() -> Rbac {
        let rbac = Rbac::new();
        rbac.put(
            &CLUSTER_ROLES,
            &object(json!({"metadata": {"name": "view"}, "rules": [{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]}]})),
        );
        rbac
    }

    fn list_pods(namespace: &str) -> Attributes<'_> {
        Attributes {
            verb: "list",
            version: "v1",
            resource: "pods",
            namespace,
            ..Attributes::default()
        }
    }

    #[tokio::test]
    async fn a_role_binding_grants_in_its_namespace_only_until_it_is_deleted() {
        let rbac = view();
        let binding = object(json!({
            "metadata": {"name": "viewers", "namespace": "shop"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
            "subjects": [{"kind": "User", "name": "other"}, {"kind": "ServiceAccount", "name": "bot"}],
        }));
        rbac.observe(&ROLE_BINDINGS, &WatchEvent::Added(Arc::clone(&binding)));
        let bot =
            User::authenticated("system:serviceaccount:shop:bot", &["system:serviceaccounts"]);
        assert_eq!(
            rbac.authorize(&bot, &list_pods("shop")).await,
            Decision::Allow(r#"RBAC: allowed by RoleBinding "viewers/shop" of ClusterRole "view" to ServiceAccount "bot/shop""#.into())
        );
        assert_eq!(
            rbac.authorize(&bot, &list_pods("bank")).await,
            Decision::NoOpinion(String::new())
        );
        assert_eq!(rbac.authorize(&bot, &list_pods("")).await, Decision::NoOpinion(String::new()));
        rbac.observe(&ROLE_BINDINGS, &WatchEvent::Deleted(binding));
        assert_eq!(
            rbac.authorize(&bot, &list_pods("shop")).await,
            Decision::NoOpinion(String::new())
        );
    }

    #[tokio::test]
    async fn a_missing_role_is_an_error_with_its_name() {
        let rbac = view();
        rbac.put(
            &CLUSTER_ROLE_BINDINGS,
            &object(json!({
                "metadata": {"name": "b"},
                "roleRef": {"kind": "ClusterRole", "name": "gone"},
                "subjects": [{"kind": "Group", "name": "system:authenticated"}],
            })),
        );
        assert_eq!(
            rbac.authorize(&User::authenticated("jane", &[]), &list_pods("")).await,
            Decision::NoOpinion(
                r#"RBAC: clusterrole.rbac.authorization.k8s.io "gone" not found"#.into()
            )
        );
    }

    #[tokio::test]
    async fn a_changed_binding_drops_its_former_subjects() {
        let rbac = view();
        let bind = |name: &str| {
            object(json!({
                "metadata": {"name": "b"},
                "roleRef": {"kind": "ClusterRole", "name": "view"},
                "subjects": [{"kind": "User", "name": name}],
            }))
        };
        rbac.put(&CLUSTER_ROLE_BINDINGS, &bind("jane"));
        rbac.put(&CLUSTER_ROLE_BINDINGS, &bind("joe"));
        assert_eq!(
            rbac.authorize(&User::authenticated("jane", &[]), &list_pods("")).await,
            Decision::NoOpinion(String::new())
        );
        assert!(matches!(
            rbac.authorize(&User::authenticated("joe", &[]), &list_pods("x")).await,
            Decision::Allow(_)
        ));
    }
}
