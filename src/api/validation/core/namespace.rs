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
