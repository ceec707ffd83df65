//! Parses the bootstrap RBAC policy from its compact text.

use serde_json::{Map, Value, json};

use crate::authz::rule::Rule;

/// The roles and bindings of 1.37; comments at the start of the file explain the format.
const TEXT: &str = include_str!("rbac.txt");

const GROUP: &str = "rbac.authorization.k8s.io";
const AGGREGATE: &str = "rbac.authorization.k8s.io/aggregate-to-";

/// One role.
#[derive(Debug, Clone, Default)]
pub struct Role {
    /// Empty for cluster roles.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The names of the roles that aggregate its rules.
    pub aggregates_to: Vec<String>,
    /// The name under which it aggregates the rules of other roles.
    pub aggregates: Option<String>,
    /// The rules; empty for aggregated roles, whose rules the aggregation controller maintains.
    pub rules: Vec<Rule>,
}

struct Binding {
    namespace: String,
    name: String,
    role: String,
    subjects: Vec<Value>,
}

fn scoped(name: &str) -> (String, String) {
    let (namespace, name) = name.split_once('/').unwrap_or(("", name));
    (namespace.to_owned(), name.to_owned())
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace()
        .map(|w| if w == "core" { String::new() } else { w.to_owned() })
        .collect()
}

fn parse() -> (Vec<Role>, Vec<Binding>) {
    let (mut roles, mut bindings): (Vec<Role>, Vec<Binding>) = (Vec::new(), Vec::new());
    let mut in_role = true;
    for line in TEXT.lines().filter(|line| !line.starts_with('#')) {
        if let Some(head) = line.strip_prefix("role ") {
            in_role = true;
            roles.push(role(head));
        } else if let Some(head) = line.strip_prefix("bind ") {
            in_role = false;
            let (full, role) = head.split_once(" -> ").unwrap_or((head, ""));
            let (namespace, name) = scoped(full);
            let role = if role.is_empty() { name.clone() } else { role.to_owned() };
            bindings.push(Binding { namespace, name, role, subjects: Vec::new() });
        } else if in_role {
            if let Some(role) = roles.last_mut() {
                role.rules.push(rule(line));
            }
        } else if let Some(binding) = bindings.last_mut() {
            binding.subjects.extend(subject(line.trim()));
        }
    }
    (roles, bindings)
}

fn role(head: &str) -> Role {
    let mut parts = head.split_whitespace();
    let (namespace, name) = scoped(parts.next().unwrap_or_default());
    let mut role = Role { namespace, name, ..Role::default() };
    for flag in parts {
        if let Some(to) = flag.strip_prefix('+') {
            role.aggregates_to.push(to.to_owned());
        } else if let Some(of) = flag.strip_prefix('=') {
            role.aggregates = Some(of.to_owned());
        }
    }
    role
}

fn rule(line: &str) -> Rule {
    let mut parts = line.split('|');
    let mut next = || words(parts.next().unwrap_or_default());
    let (verbs, second, resources, resource_names) = (next(), next(), next(), next());
    if resources.is_empty() {
        Rule { verbs, non_resource_urls: second, ..Rule::default() }
    } else {
        Rule { verbs, api_groups: second, resources, resource_names, ..Rule::default() }
    }
}

fn subject(text: &str) -> Option<Value> {
    let (kind, name) = text.split_once(':')?;
    Some(match kind {
        "Account" => {
            let (namespace, name) = name.split_once('/')?;
            json!({"kind": "ServiceAccount", "name": name, "namespace": namespace})
        }
        _ => json!({"kind": kind, "apiGroup": GROUP, "name": name}),
    })
}

/// All roles.
pub fn roles() -> Vec<Role> {
    parse().0
}

fn metadata(namespace: &str, name: &str, aggregates_to: &[String]) -> Value {
    let mut labels =
        Map::from_iter([("kubernetes.io/bootstrapping".to_owned(), json!("rbac-defaults"))]);
    labels.extend(aggregates_to.iter().map(|to| (format!("{AGGREGATE}{to}"), json!("true"))));
    let mut meta = json!({
        "name": name, "labels": labels, "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
    });
    if let (false, Some(map)) = (namespace.is_empty(), meta.as_object_mut()) {
        map.insert("namespace".into(), json!(namespace));
    }
    meta
}

/// All roles and bindings as objects, with the resource that each belongs to.
pub(super) fn objects() -> Vec<(&'static str, Value)> {
    let (roles, bindings) = parse();
    let mut out = Vec::with_capacity(roles.len() + bindings.len());
    for role in roles {
        let (resource, kind) = if role.namespace.is_empty() {
            ("clusterroles", "ClusterRole")
        } else {
            ("roles", "Role")
        };
        let mut object = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
            "metadata": metadata(&role.namespace, &role.name, &role.aggregates_to), "rules": role.rules,
        });
        if role.aggregates.is_some() {
            object["rules"] = Value::Null;
        }
        if let (Some(label), Some(map)) = (&role.aggregates, object.as_object_mut()) {
            let label = Map::from_iter([(format!("{AGGREGATE}{label}"), json!("true"))]);
            map.insert(
                "aggregationRule".into(),
                json!({"clusterRoleSelectors": [{"matchLabels": label}]}),
            );
        }
        out.push((resource, object));
    }
    for binding in bindings {
        let (resource, kind, role) = if binding.namespace.is_empty() {
            ("clusterrolebindings", "ClusterRoleBinding", "ClusterRole")
        } else {
            ("rolebindings", "RoleBinding", "Role")
        };
        let mut object = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
            "metadata": metadata(&binding.namespace, &binding.name, &[]),
            "roleRef": {"apiGroup": GROUP, "kind": role, "name": binding.role},
        });
        if let (false, Some(map)) = (binding.subjects.is_empty(), object.as_object_mut()) {
            map.insert("subjects".into(), Value::Array(binding.subjects));
        }
        out.push((resource, object));
    }
    out
}
