//! Validation of `storagemigration.k8s.io`: StorageVersionMigration
//! (`pkg/apis/storagemigration/validation`).

use serde_json::Value;

use super::{IMMUTABLE, conditions, immutable_as, names};
use crate::field::{Error, ErrorList, Path};
use crate::resource_version::check;
use crate::value::{get, items, str_at};

/// Validates a new StorageVersionMigration.
pub fn migration(object: &Value) -> ErrorList {
    let resource = get(get(object, "spec"), "resource");
    let path = Path::new("spec").child("resource");
    let mut errors = ErrorList::new();
    let (name, field) = (str_at(resource, "resource"), path.child("resource"));
    if name.is_empty() {
        errors.push(Error::required(&field, "resource is required to be set"));
    } else {
        errors.extend(joined(&field, name, &names::dns1035_label(name)));
    }
    let group = str_at(resource, "group");
    if !group.is_empty() {
        errors.extend(joined(&path.child("group"), group, &names::dns1123_subdomain(group)));
    }
    errors
}

fn joined(field: &Path, value: &str, texts: &[String]) -> Option<Error> {
    (!texts.is_empty()).then(|| Error::invalid(field, value, texts.join(",")))
}

/// Validates an update of a StorageVersionMigration: its spec is immutable.
pub fn migration_change(object: &Value, old: &Value) -> ErrorList {
    let mut errors = migration(object);
    let (new, old) = (get(object, "spec"), get(old, "spec"));
    errors.extend(immutable_as(new, old, &Path::new("spec"), "StorageVersionMigrationSpec"));
    errors
}

/// Validates an update of the status of a StorageVersionMigration.
pub fn migration_status(object: &Value, old: &Value) -> ErrorList {
    let (status, old) = (get(object, "status"), get(old, "status"));
    let path = Path::new("status");
    let (field, list) = (path.child("resourceVersion"), path.child("conditions"));
    let (version, before) = (str_at(status, "resourceVersion"), str_at(old, "resourceVersion"));
    let mut errors = ErrorList::new();
    if !version.is_empty() {
        let bad = check(version).err();
        errors.extend(bad.map(|error| Error::invalid(&field, version, error.to_string())));
    }
    errors.extend(conditions::validate(items(status, "conditions"), &list));
    if !before.is_empty() && before != version {
        errors.push(Error::invalid(&field, version, IMMUTABLE));
    }
    let shown = get(status, "conditions");
    let mut refuse = |refused: bool, text: &str| {
        if refused {
            let error = Error::invalid(&list, shown.clone(), text);
            errors.push(error.printed_as("[MetaCondition"));
        }
    };
    let (succeeded, failed) = (is_true(status, "Succeeded"), is_true(status, "Failed"));
    let both = "Both success and failed conditions cannot be true at the same time";
    refuse(succeeded && failed, both);
    let text = "Success condition cannot be set to false once it is true";
    refuse(is_true(old, "Succeeded") && !succeeded, text);
    let text = "Failed condition cannot be set to false once it is true";
    refuse(is_true(old, "Failed") && !failed, text);
    errors
}

/// Whether a status has a condition of type `kind` that is true.
fn is_true(status: &Value, kind: &str) -> bool {
    let found = items(status, "conditions").iter().find(|c| str_at(c, "type") == kind);
    found.is_some_and(|condition| str_at(condition, "status") == "True")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(group: &str, resource: &str) -> Value {
        json!({"metadata": {"name": "m"},
            "spec": {"resource": {"group": group, "resource": resource}}})
    }

    fn texts(errors: &ErrorList) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    /// The cases of upstream's `TestValidateStorageVersionMigration`.
    #[test]
    fn resources_are_names_of_the_api() {
        assert_eq!(migration(&of("g", "rs")).len(), 0);
        assert_eq!(migration(&of("", "secrets")).len(), 0);
        let none = "spec.resource.resource: Required value: resource is required to be set";
        assert_eq!(texts(&migration(&of("", ""))), [none]);
        let bad = texts(&migration(&of("*", "@#$")));
        assert_eq!(bad.len(), 2);
        assert!(bad[0].starts_with("spec.resource.resource: Invalid value: \"@#$\": a DNS-1035"));
        assert!(bad[1].starts_with("spec.resource.group: Invalid value: \"*\": a lowercase RFC"));
    }

    #[test]
    fn the_spec_is_immutable() {
        assert_eq!(migration_change(&of("g", "a"), &of("g", "a")).len(), 0);
        assert_eq!(
            texts(&migration_change(&of("g", "b"), &of("g", "a"))),
            ["spec: Invalid value: {\"Resource\":{\"group\":\"g\",\"resource\":\"b\"}}: \
                 field is immutable"]
        );
    }

    fn status(version: &str, conditions: &[(&str, &str)]) -> Value {
        let condition = |(kind, status): &(&str, &str)| {
            json!({"type": kind, "status": status, "reason": "R", "message": "m",
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let conditions: Vec<Value> = conditions.iter().map(condition).collect();
        json!({"status": {"resourceVersion": version, "conditions": conditions}})
    }

    /// The cases of upstream's `TestValidateStorageVersionMigrationStatusUpdate`.
    #[test]
    fn a_status_only_advances() {
        let (none, running) = (status("", &[]), status("1", &[("Running", "True")]));
        let (done, failed) =
            (status("1", &[("Succeeded", "True")]), status("1", &[("Failed", "True")]));
        for (new, old) in
            [(&running, &none), (&done, &running), (&failed, &running), (&done, &done)]
        {
            assert_eq!(texts(&migration_status(new, old)), Vec::<String>::new());
        }
        let changed = texts(&migration_status(&status("2", &[("Running", "True")]), &running));
        let text = "status.resourceVersion: Invalid value: \"2\": field is immutable";
        assert_eq!(changed, [text]);
        for version in ["0", "01", "a", "-1"] {
            let bad = texts(&migration_status(&status(version, &[]), &none));
            let text = format!(
                "status.resourceVersion: Invalid value: \"{version}\": resource version is not \
                 well formed: {version}"
            );
            assert_eq!(bad, [text]);
        }
        let both = status("1", &[("Succeeded", "True"), ("Failed", "True")]);
        assert!(texts(&migration_status(&both, &running))[0].contains("Both success and failed"));
        let back = status("1", &[("Succeeded", "False")]);
        assert!(texts(&migration_status(&back, &done))[0].contains("Success condition cannot"));
        let back = status("1", &[("Failed", "False")]);
        assert!(texts(&migration_status(&back, &failed))[0].contains("Failed condition cannot"));
    }
}
