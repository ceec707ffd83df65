//! Validation of resource quotas.

use serde_json::Value;
use sorting::CompactSort as _;

use super::resources::{is_count, quantity_value, resource_name};
use crate::field::{Error, ErrorList, Path};
use crate::validation::IMMUTABLE;
use crate::validation::checks::texts;
use crate::validation::numbers::quantity;
use crate::value::{entries, get, is_empty, items, str_at};

const SCOPES: [&str; 7] = [
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];

/// Validates a new resource quota (`ValidateResourceQuota`).
pub fn quota(object: &Value) -> ErrorList {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let mut errors = amounts(spec, "hard", &path);
    let scopes = texts(spec, "scopes");
    let field = path.child("scopes");
    // Upstream reports these errors per scope and resource. They are all equal, and a `Status`
    // contains equal errors once. Each error contains the whole list of scopes, so keeping all of
    // them would take memory quadratic in its length.
    let mut reported = Vec::new();
    for scope in &scopes {
        let text = if !SCOPES.contains(scope) {
            "unsupported scope"
        } else if entries(spec, "hard").any(|(name, _)| !is_valid_for_resource(scope, name)) {
            "unsupported scope applied to resource"
        } else {
            continue;
        };
        if !reported.contains(&text) {
            reported.push(text);
            errors.push(Error::invalid(&field, get(spec, "scopes").clone(), text));
        }
    }
    for (one, other) in [("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")] {
        if scopes.contains(&one) && scopes.contains(&other) {
            let shown = get(spec, "scopes").clone();
            errors.push(Error::invalid(&field, shown, "conflicting scopes"));
        }
    }
    let field = path.child("scopeSelector").child("matchExpressions");
    for one in items(get(spec, "scopeSelector"), "matchExpressions") {
        errors.extend(scope_requirement(one, &field));
    }
    errors
}

/// Validates a status update (`ValidateResourceQuotaStatusUpdate`).
pub fn quota_status(subresource: &str, object: &Value, _: &Value) -> ErrorList {
    if subresource != "status" {
        return Vec::new();
    }
    let (status, path) = (get(object, "status"), Path::new("status"));
    let mut errors = amounts(status, "hard", &path);
    errors.extend(amounts(status, "used", &path));
    errors
}

/// Validates the names and quantities of the resources in the field `key`.
fn amounts(parent: &Value, key: &str, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    for (name, amount) in entries(parent, key) {
        let field = path.child(key).key(name);
        errors.extend(resource_name(name, &field));
        if !name.contains('/') && !standard_quota(name) {
            let text = "must be a standard resource for quota";
            errors.push(Error::invalid(&field, name.as_str(), text));
        }
        if let Some(amount) = quantity(amount) {
            errors.extend(quantity_value(name, amount, &field));
        }
    }
    errors
}

fn standard_quota(name: &str) -> bool {
    name.starts_with("hugepages-")
        || name.starts_with("requests.hugepages-")
        || matches!(
            name.strip_prefix("requests.").or(name.strip_prefix("limits.")),
            Some("cpu" | "memory" | "ephemeral-storage" | "storage")
        ) && name != "limits.storage"
        || matches!(name, "cpu" | "memory" | "ephemeral-storage")
        || is_count(name)
}

/// Reports whether a scope can limit a resource. Any scope can be combined with a resource that is
/// not a standard one (`IsResourceQuotaScopeValidForResource`).
fn is_valid_for_resource(scope: &str, resource: &str) -> bool {
    let is_of_pods = || {
        let compute = resource.strip_prefix("requests.").or(resource.strip_prefix("limits."));
        matches!(compute.unwrap_or(resource), "cpu" | "memory")
    };
    !standard_quota(resource)
        || match scope {
            "BestEffort" => resource == "pods",
            "VolumeAttributesClass" => {
                matches!(resource, "persistentvolumeclaims" | "requests.storage")
            }
            _ => resource == "pods" || is_of_pods(),
        }
}

fn scope_requirement(one: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let (scope, operator) = (str_at(one, "scopeName"), str_at(one, "operator"));
    let values = !is_empty(one, "values");
    let field = path.child("scopeName");
    if !SCOPES.contains(&scope) {
        errors.push(Error::invalid(&field, scope, "unsupported scope"));
    }
    let by_value = matches!(scope, "PriorityClass" | "VolumeAttributesClass");
    if SCOPES.contains(&scope) && !by_value && operator != "Exists" {
        let text = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
        errors.push(Error::invalid(&path.child("operator"), operator, text));
    }
    match operator {
        "In" | "NotIn" if !values => errors.push(Error::required(
            &path.child("values"),
            "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
        )),
        "Exists" | "DoesNotExist" if values => errors.push(Error::invalid(
            &path.child("values"),
            get(one, "values").clone(),
            "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector",
        )),
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        other => errors.push(Error::invalid(
            &path.child("operator"),
            other,
            "not a valid selector operator",
        )),
    }
    errors
}

/// Validates an update of a resource quota (`ValidateResourceQuotaUpdate`): the scopes are
/// immutable.
pub fn quota_change(object: &Value, old: &Value) -> ErrorList {
    let mut errors = quota(object);
    let sorted = |object: &Value| {
        let mut list: Vec<String> =
            texts(get(object, "spec"), "scopes").into_iter().map(str::to_owned).collect();
        list.compact_sort();
        list.dedup();
        list
    };
    if sorted(object) != sorted(old) {
        let shown = get(get(object, "spec"), "scopes").clone();
        errors.push(Error::invalid(&Path::new("spec").child("scopes"), shown, IMMUTABLE));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_used_is_counted_as_what_is_allowed() {
        let quota =
            json!({"status": {"hard": {"pods": "1"}, "used": {"pods": "-1", "other": "1"}}});
        let said: Vec<String> =
            quota_status("status", &quota, &quota).iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "status.used[other]: Invalid value: \"other\": must be a standard resource type or fully qualified",
                "status.used[other]: Invalid value: \"other\": must be a standard resource for quota",
                "status.used[pods]: Invalid value: \"-1\": must be greater than or equal to 0",
            ]
        );
    }

    #[test]
    fn devices_of_claims_are_limited_by_class_and_by_extended_resource() {
        let hard = json!({
            "count/resourceclaims.resource.k8s.io": "1",
            "gpu.deviceclass.resource.k8s.io/devices": "2",
            "requests.deviceclass.resource.kubernetes.io/gpu": "2",
            "requests.example.com/gpu": "2",
        });
        assert!(quota(&json!({"spec": {"hard": hard}})).is_empty());
        let half = json!({"gpu.deviceclass.resource.k8s.io/devices": "500m"});
        let errors = quota(&json!({"spec": {"hard": half}}));
        let said: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "spec.hard[gpu.deviceclass.resource.k8s.io/devices]: Invalid value: \"500m\": must be an integer"
            ]
        );
    }

    /// The sets of upstream's `IsResourceQuotaScopeValidForResource`.
    #[test]
    fn scopes_apply_to_their_resources_only() {
        let check = |scope: &str, resource: &str, is_valid: bool| {
            let spec = json!({"hard": {resource: "1"}, "scopes": [scope]});
            let errors: Vec<String> =
                quota(&json!({"spec": spec})).iter().map(ToString::to_string).collect();
            let text = format!(
                "spec.scopes: Invalid value: [\"{scope}\"]: unsupported scope applied to resource"
            );
            let expected = if is_valid { vec![] } else { vec![text] };
            assert_eq!(errors, expected, "{scope} {resource}");
        };
        for (scope, valid, invalid) in [
            ("Terminating", ["pods", "limits.cpu"], ["secrets", "requests.storage"]),
            ("PriorityClass", ["cpu", "requests.memory"], ["hugepages-2Mi", "services"]),
            ("BestEffort", ["pods", "count/jobs.batch"], ["cpu", "configmaps"]),
            (
                "VolumeAttributesClass",
                ["persistentvolumeclaims", "requests.storage"],
                ["pods", "memory"],
            ),
        ] {
            valid.iter().for_each(|resource| check(scope, resource, true));
            invalid.iter().for_each(|resource| check(scope, resource, false));
        }
    }

    #[test]
    fn several_unsupported_scopes_are_one_error() {
        let spec = json!({"hard": {"pods": "1"}, "scopes": ["A", "BestEffort", "B"]});
        let errors: Vec<String> =
            quota(&json!({"spec": spec})).iter().map(ToString::to_string).collect();
        let text = r#"spec.scopes: Invalid value: ["A","BestEffort","B"]: unsupported scope"#;
        assert_eq!(errors, [text]);
    }

    #[test]
    fn scopes_stay() {
        let quota = |scope: &str| json!({"spec": {"hard": {"pods": "1"}, "scopes": [scope]}});
        assert!(quota_change(&quota("BestEffort"), &quota("BestEffort")).is_empty());
        assert_eq!(
            quota_change(&quota("NotBestEffort"), &quota("BestEffort"))[0].to_string(),
            "spec.scopes: Invalid value: [\"NotBestEffort\"]: field is immutable"
        );
    }
}
