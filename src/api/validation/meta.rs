//! Validation of `metadata`, for every kind.

use std::collections::HashSet;

use serde_json::Value;
use sorting::CompactSort as _;

use super::labels::{validate_annotations, validate_labels};
use super::names;
use super::numbers::NEGATIVE;
use super::{IMMUTABLE, each};
use crate::field::{Error, ErrorList, Path};
use crate::value::{bool_at, get, int_at, items, str_at};

/// Validates `metadata` of a new object. `namespaced` is whether the kind is namespaced;
/// `name_rule` validates a name or, with `true`, a name prefix.
pub fn validate_create(
    object: &Value,
    namespaced: bool,
    name_rule: impl Fn(&str, bool) -> names::Messages,
) -> ErrorList {
    let (meta, path) = (get(object, "metadata"), &Path::new("metadata"));
    let mut errors = ErrorList::new();
    let (name, prefix) = (str_at(meta, "name"), str_at(meta, "generateName"));
    if !prefix.is_empty() {
        errors.extend(each(&path.child("generateName"), prefix, name_rule(prefix, true)));
    }
    if name.is_empty() {
        errors.push(Error::required(&path.child("name"), "name or generateName is required"));
    } else {
        errors.extend(each(&path.child("name"), name, name_rule(name, false)));
    }
    let namespace = str_at(meta, "namespace");
    let field = path.child("namespace");
    match (namespaced, namespace.is_empty()) {
        (true, true) => errors.push(Error::required(&field, "")),
        (true, false) => errors.extend(each(&field, namespace, names::dns1123_label(namespace))),
        (false, false) => errors.push(Error::forbidden(&field, "not allowed on this type")),
        (false, true) => {}
    }
    errors.extend(generation(meta, path));
    errors.extend(common(meta, path));
    errors.extend(finalizers(meta, has_standard_finalizers(object), path));
    errors.extend(managed_fields(meta, path));
    errors
}

fn common(meta: &Value, path: &Path) -> ErrorList {
    let mut errors = validate_labels(meta, "labels", path);
    errors.extend(validate_annotations(meta, "annotations", path));
    errors.extend(owner_references(meta, path));
    errors
}

/// Finalizers without a domain that upstream accepts.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "foregroundDeletion", "orphan"];

/// Whether a finalizer of the kind must be a standard one or have a domain. Upstream requires this
/// of kinds validated by `ValidateObjectMeta` of `pkg/apis/core/validation`, and not of those
/// validated only by that of apimachinery.
fn has_standard_finalizers(object: &Value) -> bool {
    const GROUPS: [&str; 13] = [
        "apps",
        "autoscaling",
        "batch",
        "certificates.k8s.io",
        "discovery.k8s.io",
        "events.k8s.io",
        "flowcontrol.apiserver.k8s.io",
        "networking.k8s.io",
        "rbac.authorization.k8s.io",
        "resource.k8s.io",
        "scheduling.k8s.io",
        "storage.k8s.io",
        "storagemigration.k8s.io",
    ];
    let version = str_at(object, "apiVersion");
    match version.split_once('/') {
        Some((group, _)) => GROUPS.contains(&group),
        // Upstream keeps the earlier, less strict rules for events of `v1`.
        None => version == "v1" && str_at(object, "kind") != "Event",
    }
}

fn generation(meta: &Value, path: &Path) -> Option<Error> {
    let value = int_at(meta, "generation").filter(|g| *g < 0)?;
    Some(Error::invalid(&path.child("generation"), value, NEGATIVE))
}

fn owner_references(meta: &Value, path: &Path) -> ErrorList {
    let list = path.child("ownerReferences");
    let mut errors = ErrorList::new();
    let mut controller: Option<String> = None;
    for (index, owner) in items(meta, "ownerReferences").iter().enumerate() {
        let field = list.index(index);
        let version = str_at(owner, "apiVersion");
        let (group, bare) = version.split_once('/').unwrap_or(("", version));
        if !version.is_empty() && (bare.is_empty() || bare.contains('/')) {
            errors.push(Error::invalid(
                &field.child("apiVersion"),
                version,
                "must be <group>/<version> or <version>",
            ));
        }
        let required = ["apiVersion", "kind", "name", "uid"];
        errors.extend(
            required
                .iter()
                .filter(|key| str_at(owner, key).is_empty())
                .map(|key| Error::required(&field.child(key), "must not be empty")),
        );
        if group.is_empty() && version == "v1" && str_at(owner, "kind") == "Event" {
            errors.push(Error::invalid(
                &field,
                owner.clone(),
                "/v1, Kind=Event is disallowed from being an owner",
            ));
        }
        if bool_at(owner, "controller") {
            let name = format!("{}/{}", str_at(owner, "kind"), str_at(owner, "name"));
            match &controller {
                Some(first) => errors.push(Error::invalid(
                    &list,
                    get(meta, "ownerReferences").clone(),
                    format!("Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}"),
                )),
                None => controller = Some(name),
            }
        }
    }
    errors
}

fn finalizers(meta: &Value, core_kind: bool, path: &Path) -> ErrorList {
    let field = path.child("finalizers");
    let mut errors = ErrorList::new();
    let names: Vec<&str> = items(meta, "finalizers").iter().filter_map(Value::as_str).collect();
    for (index, name) in names.iter().enumerate() {
        errors.extend(each(&field, *name, names::qualified_name(name)));
        if core_kind && !name.contains('/') && !STANDARD_FINALIZERS.contains(name) {
            let text = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(Error::invalid(&field.index(index), *name, text));
        }
    }
    if names.contains(&"orphan") && names.contains(&"foregroundDeletion") {
        let text = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.push(Error::invalid(&field, get(meta, "finalizers").clone(), text));
    }
    errors
}

/// Maximum length in bytes of the name of a field manager.
const MANAGER_MAX: usize = 128;
/// Maximum length in bytes of the name of a subresource.
const SUBRESOURCE_MAX: usize = 256;

fn managed_fields(meta: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    for (index, entry) in items(meta, "managedFields").iter().enumerate() {
        let field = path.child("managedFields").index(index);
        match str_at(entry, "operation") {
            "Apply" | "Update" => {}
            "" => errors.push(Error::required(&field.child("operation"), "must not be empty")),
            other => errors.push(Error::not_supported(
                &field.child("operation"),
                other,
                &["Apply", "Update"],
            )),
        }
        let kind = str_at(entry, "fieldsType");
        if !kind.is_empty() && kind != "FieldsV1" {
            errors.push(Error::invalid(&field.child("fieldsType"), kind, "must be `FieldsV1`"));
        }
        if str_at(entry, "manager").len() > MANAGER_MAX {
            errors.push(Error::too_long(&field.child("manager"), MANAGER_MAX));
        }
        if str_at(entry, "subresource").len() > SUBRESOURCE_MAX {
            errors.push(Error::too_long(&field.child("subresource"), SUBRESOURCE_MAX));
        }
    }
    errors
}

/// Validates `metadata` of an updated object: immutable fields, and fields that are validated
/// again.
pub fn validate_update(object: &Value, old: &Value) -> ErrorList {
    let (meta, old, path) = (get(object, "metadata"), get(old, "metadata"), Path::new("metadata"));
    let mut errors = ErrorList::new();
    if get(old, "deletionTimestamp").is_string() {
        errors.extend(no_new_finalizers(meta, old, &path));
    }
    if str_at(meta, "resourceVersion").is_empty() {
        errors.push(Error::invalid(
            &path.child("resourceVersion"),
            "",
            "must be specified for an update",
        ));
    }
    errors.extend(generation(meta, &path));
    let (new_generation, old_generation) = (
        int_at(meta, "generation").unwrap_or_default(),
        int_at(old, "generation").unwrap_or_default(),
    );
    if new_generation < old_generation {
        errors.push(Error::invalid(
            &path.child("generation"),
            new_generation,
            "must not be decremented",
        ));
    }
    for key in ["name", "namespace"] {
        let (new, old) = (str_at(meta, key), str_at(old, key));
        if new != old {
            errors.push(Error::invalid(&path.child(key), new, IMMUTABLE));
        }
    }
    for key in ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let (new, old) = (get(meta, key), get(old, key));
        let shown = if key == "uid" && new.is_null() { Value::from("") } else { new.clone() };
        if new != old {
            errors.push(Error::invalid(&path.child(key), shown, IMMUTABLE));
        }
    }
    errors.extend(common(meta, &path));
    errors.extend(managed_fields(meta, &path));
    errors
}

fn no_new_finalizers(meta: &Value, old: &Value, path: &Path) -> Option<Error> {
    let known: HashSet<&Value> = items(old, "finalizers").iter().collect();
    let mut extra: Vec<&str> = items(meta, "finalizers")
        .iter()
        .filter(|f| !known.contains(f))
        .filter_map(Value::as_str)
        .collect();
    if extra.is_empty() {
        return None;
    }
    extra.compact_sort();
    let list: Vec<String> = extra.iter().map(|f| crate::field::go_quote(f)).collect();
    let text = format!(
        "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
        list.join(", ")
    );
    Some(Error::forbidden(&path.child("finalizers"), text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn new_names_are_checked_by_rule() {
        let object = json!({"metadata": {"name": "Bad", "namespace": "n"}});
        let errors = validate_create(&object, true, names::name_is_label);
        assert_eq!(errors.len(), 1);
        assert!(
            errors[0]
                .to_string()
                .starts_with("metadata.name: Invalid value: \"Bad\": a lowercase RFC 1123 label")
        );
        let errors = validate_create(&json!({}), false, names::name_is_label);
        assert_eq!(
            errors[0].to_string(),
            "metadata.name: Required value: name or generateName is required"
        );
    }

    /// `pkg/apis/node/validation`, `coordination/validation` and `policy/validation` validate
    /// metadata by the rules of apimachinery; `core/validation` does not validate that of `v1`
    /// events.
    #[test]
    fn finalizers_of_some_kinds_need_no_domain() {
        let count = |version: &str, kind: &str| {
            let object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": "a", "finalizers": ["x"]}});
            validate_create(&object, false, names::name_is_subdomain).len()
        };
        assert_eq!(count("v1", "Node"), 1);
        assert_eq!(count("events.k8s.io/v1", "Event"), 1);
        for (version, kind) in [
            ("v1", "Event"),
            ("node.k8s.io/v1", "RuntimeClass"),
            ("coordination.k8s.io/v1", "Lease"),
            ("policy/v1", "PodDisruptionBudget"),
        ] {
            assert_eq!(count(version, kind), 0, "{kind}");
        }
    }

    #[test]
    fn a_dying_object_gets_no_finalizers() {
        let old = json!({"metadata": {"deletionTimestamp": "x", "resourceVersion": "1"}});
        let new = json!({"metadata": {"deletionTimestamp": "x", "resourceVersion": "1", "finalizers": ["a/b"]}});
        assert_eq!(
            validate_update(&new, &old)[0].to_string(),
            "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{\"a/b\"}"
        );
    }
}
