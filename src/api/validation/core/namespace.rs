//! Validation of namespaces.

use serde_json::Value;

use crate::field::{Error, ErrorList, Path};
use crate::validation::{each, names};
use crate::value::{at, get, items, str_in};

const STANDARD: [&str; 3] = ["kubernetes", "foregroundDeletion", "orphan"];

/// Validates a new namespace (`ValidateNamespace`).
pub fn validate(object: &Value) -> ErrorList {
    let path = Path::new("spec").child("finalizers");
    items(get(object, "spec"), "finalizers")
        .iter()
        .flat_map(|name| finalizer(name.as_str().unwrap_or_default(), &path))
        .collect()
}

fn finalizer(name: &str, path: &Path) -> ErrorList {
    let mut errors: ErrorList = each(path, name, names::qualified_name(name)).collect();
    if !name.contains('/') && !STANDARD.contains(&name) {
        errors.push(Error::invalid(
            path,
            name,
            "name is neither a standard finalizer name nor is it fully qualified",
        ));
    }
    errors
}

/// Validates an update of `status` (`ValidateNamespaceStatusUpdate`) or `finalize`
/// (`ValidateNamespaceFinalizeUpdate`).
pub fn validate_subresource(subresource: &str, object: &Value, _: &Value) -> ErrorList {
    match subresource {
        "status" => {
            let phase = str_in(object, &["status", "phase"]);
            let dying = at(object, &["metadata", "deletionTimestamp"]).is_string();
            let field = Path::new("status").child("Phase");
            match (dying, phase) {
                (false, "Active") | (true, "Terminating") => Vec::new(),
                (false, other) => vec![Error::invalid(
                    &field,
                    other,
                    "may only be 'Active' if `deletionTimestamp` is empty",
                )],
                (true, other) => vec![Error::invalid(
                    &field,
                    other,
                    "may only be 'Terminating' if `deletionTimestamp` is not empty",
                )],
            }
        }
        "finalize" => {
            let path = Path::new("spec").child("finalizers");
            let names = items(get(object, "spec"), "finalizers").iter().enumerate();
            names
                .flat_map(|(index, name)| {
                    finalizer(name.as_str().unwrap_or_default(), &path.index(index))
                })
                .collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::tests::same;
    use serde_json::json;

    /// `validateFinalizerName` of `pkg/apis/core/validation`.
    #[test]
    fn finalizers_are_standard_or_qualified() {
        let check = |name: &str, expected: &[&str]| {
            same(&validate(&json!({"spec": {"finalizers": [name]}})), expected);
        };
        check("kubernetes", &[]);
        check("orphan", &[]);
        check("foregroundDeletion", &[]);
        check("example.com/mine", &[]);
        const TEXT: &str = "name is neither a standard finalizer name nor is it fully qualified";
        check("mine", &[&format!("spec.finalizers: Invalid value: \"mine\": {TEXT}")]);
        check(
            "example.com/",
            &[
                "spec.finalizers: Invalid value: \"example.com/\": name part must be non-empty",
                "spec.finalizers: Invalid value: \"example.com/\": name part ...",
            ],
        );
        same(
            &validate_subresource(
                "finalize",
                &json!({"spec": {"finalizers": ["orphan", "mine"]}}),
                &Value::Null,
            ),
            &[&format!("spec.finalizers[1]: Invalid value: \"mine\": {TEXT}")],
        );
    }

    /// `ValidateNamespaceStatusUpdate` of `pkg/apis/core/validation`.
    #[test]
    fn only_deleted_namespaces_terminate() {
        let check = |time: Value, phase: &str, expected: &[&str]| {
            let object =
                json!({"metadata": {"deletionTimestamp": time}, "status": {"phase": phase}});
            same(&validate_subresource("status", &object, &Value::Null), expected);
        };
        let time = json!("2026-01-01T00:00:00Z");
        check(Value::Null, "Active", &[]);
        check(time.clone(), "Terminating", &[]);
        check(
            Value::Null,
            "Terminating",
            &["status.Phase: Invalid value: \"Terminating\": \
               may only be 'Active' if `deletionTimestamp` is empty"],
        );
        check(
            time,
            "Active",
            &["status.Phase: Invalid value: \"Active\": \
               may only be 'Terminating' if `deletionTimestamp` is not empty"],
        );
    }
}
