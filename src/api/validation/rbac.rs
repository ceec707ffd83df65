//! Validation of RBAC roles and bindings.

use serde_json::Value;

use super::checks::{Shape, go_json, printed, required, segment};
use super::labels::{convertible, validate_selector};
use super::names::name_is_subdomain;
use super::{IMMUTABLE, each};
use crate::field::{Error, ErrorList, Path};
use crate::value::{get, has, is_empty, items, semantic_equal, str_at};

const GROUP: &str = "rbac.authorization.k8s.io";
const ROLE_REF: Shape = Shape::Struct(&[
    ("APIGroup", "apiGroup", Shape::Text),
    ("Kind", "kind", Shape::Text),
    ("Name", "name", Shape::Text),
]);

/// Validates a Role.
pub fn role(object: &Value) -> ErrorList {
    rules(object, true)
}

/// Validates a ClusterRole.
pub fn cluster_role(object: &Value) -> ErrorList {
    let mut errors = rules(object, false);
    if !has(object, "aggregationRule") {
        return errors;
    }
    let path = Path::new("aggregationRule").child("clusterRoleSelectors");
    let selectors = items(get(object, "aggregationRule"), "clusterRoleSelectors");
    if selectors.is_empty() {
        errors.push(Error::required(
            &path,
            "at least one clusterRoleSelector required if aggregationRule is non-nil",
        ));
    }
    for (index, selector) in selectors.iter().enumerate() {
        let field = path.index(index);
        errors.extend(validate_selector(selector, &field, false));
        if !convertible(selector) {
            errors.push(Error::invalid(&field, Value::Null, "invalid label selector."));
        }
    }
    errors
}

fn rules(object: &Value, namespaced: bool) -> ErrorList {
    let path = Path::new("rules");
    let list = items(object, "rules").iter().enumerate();
    list.flat_map(|(index, rule)| policy_rule(rule, namespaced, &path.index(index))).collect()
}

fn policy_rule(rule: &Value, namespaced: bool, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if is_empty(rule, "verbs") {
        errors.push(Error::required(&path.child("verbs"), ""));
    }
    if !is_empty(rule, "nonResourceURLs") {
        let (field, shown) = (path.child("nonResourceURLs"), get(rule, "nonResourceURLs"));
        if namespaced {
            let text = "namespaced rules cannot apply to non-resource URLs";
            errors.push(Error::invalid(&field, shown.clone(), text));
        }
        if ["apiGroups", "resources", "resourceNames"].iter().any(|key| !is_empty(rule, key)) {
            let text = "rules cannot apply to both regular resources and non-resource URLs";
            errors.push(Error::invalid(&field, shown.clone(), text));
        }
        return errors;
    }
    for (key, text) in [
        ("apiGroups", "resource rules must supply at least one api group"),
        ("resources", "resource rules must supply at least one resource"),
    ] {
        if is_empty(rule, key) {
            errors.push(Error::required(&path.child(key), text));
        }
    }
    errors
}

/// Validates a RoleBinding.
pub fn role_binding(object: &Value) -> ErrorList {
    binding(object, &["Role", "ClusterRole"], true)
}

/// Validates a ClusterRoleBinding.
pub fn cluster_role_binding(object: &Value) -> ErrorList {
    binding(object, &["ClusterRole"], false)
}

/// Validates an update of a RoleBinding: `roleRef` is immutable.
pub fn role_binding_change(object: &Value, old: &Value) -> ErrorList {
    with_same_role(role_binding(object), object, old)
}

/// Validates an update of a ClusterRoleBinding: `roleRef` is immutable.
pub fn cluster_role_binding_change(object: &Value, old: &Value) -> ErrorList {
    with_same_role(cluster_role_binding(object), object, old)
}

fn with_same_role(mut errors: ErrorList, object: &Value, old: &Value) -> ErrorList {
    let (new, was) = (get(object, "roleRef"), get(old, "roleRef"));
    let same = ["apiGroup", "kind", "name"].iter().all(|key| str_at(new, key) == str_at(was, key));
    if !same && !semantic_equal(new, was) {
        errors.push(printed(&Path::new("roleRef"), &go_json(new, ROLE_REF), IMMUTABLE));
    }
    errors
}

fn binding(object: &Value, kinds: &[&str], namespaced: bool) -> ErrorList {
    let (role, path) = (get(object, "roleRef"), Path::new("roleRef"));
    let mut errors = ErrorList::new();
    for (key, allowed) in [("apiGroup", &[GROUP][..]), ("kind", kinds)] {
        let value = str_at(role, key);
        if !allowed.contains(&value) {
            errors.push(Error::not_supported(&path.child(key), value, allowed));
        }
    }
    errors.extend(super::checks::required_as(role, "name", &path, segment));
    let list = Path::new("subjects");
    for (index, one) in items(object, "subjects").iter().enumerate() {
        errors.extend(subject(one, namespaced, &list.index(index)));
    }
    errors
}

fn subject(subject: &Value, namespaced: bool, path: &Path) -> ErrorList {
    let mut errors = required(subject, &["name"], path);
    let (name, group) = (str_at(subject, "name"), str_at(subject, "apiGroup"));
    let of_group = |allowed: &str| {
        let error = || Error::not_supported(&path.child("apiGroup"), group, &[allowed]);
        (group != allowed).then(error)
    };
    match str_at(subject, "kind") {
        "ServiceAccount" => {
            if !name.is_empty() {
                errors.extend(each(&path.child("name"), name, name_is_subdomain(name, false)));
            }
            errors.extend(of_group(""));
            if !namespaced && str_at(subject, "namespace").is_empty() {
                errors.push(Error::required(&path.child("namespace"), ""));
            }
        }
        "User" | "Group" => errors.extend(of_group(GROUP)),
        other => errors.push(Error::not_supported(
            &path.child("kind"),
            other,
            &["ServiceAccount", "User", "Group"],
        )),
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_role_of_a_binding_stays() {
        let role = |name: &str| json!({"roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": name}});
        assert!(cluster_role_binding_change(&role("view"), &role("view")).is_empty());
        let errors = cluster_role_binding_change(&role("edit"), &role("view"));
        assert_eq!(
            errors[0].to_string(),
            "roleRef: Invalid value: {\"APIGroup\":\"rbac.authorization.k8s.io\",\"Kind\":\"ClusterRole\",\"Name\":\"edit\"}: field is immutable"
        );
    }
}
