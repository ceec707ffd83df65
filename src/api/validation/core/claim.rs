//! Validation of persistent volume claims.

use serde_json::Value;

use super::persistent_volume::mode_stays;
use super::resources::is_native;
use crate::field::{Error, ErrorList, Path};
use crate::validation::checks::{Shape, go_lines, unified_diff};
use crate::validation::labels::validate_selector;
use crate::validation::numbers::quantity;
use crate::validation::{each, names, one_of};
use crate::value::{at, entries, get, has, items, restore, semantic_equal, set, str_at, str_in};

/// Access modes of volumes and claims, sorted.
pub const ACCESS_MODES: [&str; 4] =
    ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

/// Validates the spec of a claim or of a claim template (`ValidatePersistentVolumeClaimSpec`).
pub fn claim_spec(spec: &Value, path: &Path) -> ErrorList {
    let mut errors =
        access_modes(spec, path, "at least 1 access mode is required", |errors, spec, path| {
            errors.extend(validate_selector(get(spec, "selector"), &path.child("selector"), false));
        });
    let field = path.child("resources").key("storage");
    match quantity(at(spec, &["resources", "requests", "storage"])) {
        None => errors.push(Error::required(&field, "")),
        Some(amount) if amount.sign() <= 0 => {
            errors.push(Error::invalid(&field, amount.to_string(), "must be greater than zero"))
        }
        Some(_) => {}
    }
    for key in ["storageClassName", "volumeAttributesClassName"] {
        let name = str_at(spec, key);
        if !name.is_empty() {
            errors.extend(each(&path.child(key), name, names::dns1123_subdomain(name)));
        }
    }
    errors.extend(
        get(spec, "volumeMode")
            .as_str()
            .and_then(|m| one_of(m, &["Block", "Filesystem"], &path.child("volumeMode"))),
    );
    errors.extend(sources(spec, path));
    errors
}

/// Validates `accessModes` of a claim or a volume. `missing` is the text of the error for an empty
/// list; `between` adds the errors that upstream reports between the check for an empty list and
/// the checks of its values.
pub(super) fn access_modes(
    spec: &Value,
    path: &Path,
    missing: &str,
    between: fn(&mut ErrorList, &Value, &Path),
) -> ErrorList {
    let field = path.child("accessModes");
    let modes: Vec<&str> = items(spec, "accessModes").iter().filter_map(Value::as_str).collect();
    let mut errors = ErrorList::new();
    if modes.is_empty() {
        errors.push(Error::required(&field, missing));
    }
    between(&mut errors, spec, path);
    errors.extend(modes.iter().filter_map(|mode| one_of(mode, &ACCESS_MODES, &field)));
    let alone = modes.contains(&"ReadWriteOncePod");
    if alone && modes.iter().any(|m| *m != "ReadWriteOncePod" && ACCESS_MODES.contains(m)) {
        errors
            .push(Error::forbidden(&field, "may not use ReadWriteOncePod with other access modes"));
    }
    errors
}

fn sources(spec: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    for key in ["dataSource", "dataSourceRef"] {
        let Some(source) = spec.get(key).filter(|s| s.is_object()) else { continue };
        let field = path.child(key);
        let missing = ["name", "kind"].into_iter().filter(|k| str_at(source, k).is_empty());
        errors.extend(missing.map(|k| Error::required(&field.child(k), "")));
        let (group, kind) = (str_at(source, "apiGroup"), str_at(source, "kind"));
        if group.is_empty() && kind != "PersistentVolumeClaim" {
            let text = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            errors.push(Error::invalid(&field, kind, text));
        }
        if !group.is_empty() {
            errors.extend(each(&field.child("apiGroup"), group, names::dns1123_subdomain(group)));
        }
        let namespace = str_at(source, "namespace");
        if !namespace.is_empty() {
            errors.extend(each(
                &field.child("namespace"),
                namespace,
                names::dns1123_label(namespace),
            ));
        }
    }
    let (old, new) = (get(spec, "dataSource"), get(spec, "dataSourceRef"));
    let empty = || Value::Object(serde_json::Map::new());
    if !str_at(new, "namespace").is_empty() {
        if has(spec, "dataSource") {
            errors.push(Error::invalid(
                path,
                empty(),
                "may not be specified when dataSourceRef.namespace is specified",
            ));
        }
    } else if old.is_object() && new.is_object() && !semantic_equal(old, new) {
        errors.push(Error::invalid(path, empty(), "must match dataSourceRef"));
    }
    errors
}

/// The spec of a claim in the form in which upstream prints it.
const PRINTED: Shape = Shape::Struct(&[
    ("AccessModes", "accessModes", Shape::List(&Shape::Text)),
    ("Selector", "selector", Shape::Selector),
    (
        "Resources",
        "resources",
        Shape::Struct(&[
            ("Limits", "limits", Shape::Pointer),
            ("Requests", "requests", Shape::Pointer),
        ]),
    ),
    ("VolumeName", "volumeName", Shape::Text),
    ("StorageClassName", "storageClassName", Shape::Pointer),
    ("VolumeMode", "volumeMode", Shape::Pointer),
    (
        "DataSource",
        "dataSource",
        Shape::Optional(&Shape::Struct(&[
            ("APIGroup", "apiGroup", Shape::Pointer),
            ("Kind", "kind", Shape::Text),
            ("Name", "name", Shape::Text),
        ])),
    ),
    (
        "DataSourceRef",
        "dataSourceRef",
        Shape::Optional(&Shape::Struct(&[
            ("APIGroup", "apiGroup", Shape::Pointer),
            ("Kind", "kind", Shape::Text),
            ("Name", "name", Shape::Text),
            ("Namespace", "namespace", Shape::Pointer),
        ])),
    ),
    ("VolumeAttributesClassName", "volumeAttributesClassName", Shape::Pointer),
]);

/// Annotation that names the storage class; the field `storageClassName` has replaced it.
const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

/// Validates a new claim (`ValidatePersistentVolumeClaim`).
pub fn validate(object: &Value) -> ErrorList {
    claim_spec(get(object, "spec"), &Path::new("spec"))
}

/// Validates an update of a claim (`ValidatePersistentVolumeClaimUpdate`). Only the size and the
/// volume attributes class of a bound claim, and the volume name of a claim without one, may
/// change. An unset storage class may be set; if the claim has the class annotation, only to its
/// value.
pub fn validate_change(object: &Value, old: &Value) -> ErrorList {
    let mut errors = super::config_map::prefix(object);
    errors.extend(validate(object));
    // If a data source of the old claim has an API group, the new one may have any
    // (`allowInvalidAPIGroupInDataSourceOrRef`).
    let source = |key: &str| at(old, &["spec", key, "apiGroup"]).is_string();
    if source("dataSource") || source("dataSourceRef") {
        errors.retain(|error| {
            !matches!(
                error.field.to_string().as_str(),
                "spec.dataSource.apiGroup" | "spec.dataSourceRef.apiGroup"
            )
        });
    }
    let (mut new, mut was) = (get(object, "spec").clone(), get(old, "spec").clone());
    if str_at(&was, "volumeName").is_empty() {
        let name = new.clone();
        restore(&mut was, &name, "volumeName");
    }
    let annotation = |o: &Value| {
        at(o, &["metadata", "annotations"])
            .get(CLASS_ANNOTATION)
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    let (named, before) = (annotation(object), annotation(old));
    let class = get(&new, "storageClassName").as_str().map(str::to_owned);
    let upgraded = !has(&was, "storageClassName") && class.is_some();
    let from_annotation =
        upgraded && before.is_some() && class == before && (named.is_none() || named == before);
    if !from_annotation && named != before {
        let field = Path::new("metadata").child("annotations").key(CLASS_ANNOTATION);
        errors.push(Error::invalid(
            &field,
            named.unwrap_or_default(),
            crate::validation::IMMUTABLE,
        ));
    }
    if upgraded && (before.is_none() || class == before) {
        let from = was.clone();
        restore(&mut new, &from, "storageClassName");
    }
    if str_in(object, &["status", "phase"]) == "Bound" {
        let size = at(&was, &["resources", "requests", "storage"]).clone();
        let requests = new.get_mut("resources").and_then(|r| r.get_mut("requests"));
        if let Some(requests) = requests.filter(|r| r.is_object()) {
            set(requests, "storage", size);
        }
        let from = was.clone();
        restore(&mut new, &from, "volumeAttributesClassName");
    }
    if !semantic_equal(&new, &was) {
        let diff = unified_diff(&go_lines(&was, PRINTED), &go_lines(&new, PRINTED));
        let text = format!(
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n{diff}"
        );
        errors.push(Error::forbidden(&Path::new("spec"), text));
    }
    errors.extend(size_change(object, old));
    errors.extend(mode_stays(get(object, "spec"), get(old, "spec")));
    errors.extend(attributes_class_change(object, old));
    errors
}

/// Rejects the removal of a volume attributes class that is in use
/// (`validateVolumeAttributesClassName`).
fn attributes_class_change(object: &Value, old: &Value) -> Option<Error> {
    const CLASS: &str = "volumeAttributesClassName";
    let (class, before) = (get(get(object, "spec"), CLASS), get(get(old, "spec"), CLASS));
    if class != before && has(get(old, "status"), "currentVolumeAttributesClassName") {
        let to = match class.as_str() {
            None => Some("nil"),
            Some("") => Some("empty string"),
            Some(_) => None,
        };
        return to.map(|to| {
            let text = format!("update to {to} is forbidden when status.currentVolumeAttributesClassName is not nil");
            Error::forbidden(&Path::new("spec").child(CLASS), text)
        });
    }
    None
}

/// States of a resize, in the order in which errors list them.
const RESIZES: [&str; 5] = [
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
    "NodeResizePending",
];

/// Validates a status update (`ValidatePersistentVolumeClaimStatusUpdate`).
pub fn status(subresource: &str, object: &Value, _: &Value) -> ErrorList {
    if subresource != "status" {
        return Vec::new();
    }
    let (status, path) = (get(object, "status"), Path::new("status"));
    let mut errors = ErrorList::new();
    let negative = |amount: &Value, field: &Path| {
        let amount = quantity(amount).filter(|amount| amount.sign() < 0)?;
        Some(Error::invalid(field, amount.value(), "must be a valid resource quantity"))
    };
    for (name, amount) in entries(status, "capacity") {
        errors.extend(negative(amount, &path.child("capacity").key(name)));
    }
    let field = path.child("allocatedResourceStatuses");
    for (name, step) in entries(status, "allocatedResourceStatuses") {
        errors.extend(storage_name(name, &field));
        if !step.as_str().is_some_and(|step| RESIZES.contains(&step)) {
            // Upstream's error contains the name of the resource, not the state.
            errors.push(Error::not_supported(&field, name.as_str(), &RESIZES));
        }
    }
    let field = path.child("allocatedResources");
    for (name, amount) in entries(status, "allocatedResources") {
        let wrong = storage_name(name, &field);
        let field = field.key(name);
        if !wrong.is_empty() {
            errors.extend(wrong);
        } else if let Some(error) = negative(amount, &field) {
            errors.push(error);
        }
    }
    errors
}

/// Validates a resource name in a status: of the native resources, only `storage` is valid.
fn storage_name(name: &str, field: &Path) -> ErrorList {
    let errors: ErrorList = each(field, name, names::qualified_name(name)).collect();
    if errors.is_empty() && is_native(name) && name != "storage" {
        return vec![Error::not_supported(field, name, &["storage"])];
    }
    errors
}

/// Rejects a decrease of the requested size to the capacity of the status or below.
fn size_change(object: &Value, old: &Value) -> Option<Error> {
    let zero = crate::quantity::Quantity::from_int(0);
    let amount = |v: &Value, path: &[&str]| quantity(at(v, path)).unwrap_or(zero);
    let wanted = ["spec", "resources", "requests", "storage"];
    let (new, was) = (amount(object, &wanted), amount(old, &wanted));
    let has = amount(old, &["status", "capacity", "storage"]);
    let shrinks = new.minus(was).sign() < 0 && new.minus(has).sign() <= 0;
    let field = Path::new("spec").child("resources").child("requests").child("storage");
    shrinks.then(|| Error::forbidden(&field, "field can not be less than status.capacity"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_group_that_is_named_may_be_any() {
        let claim = |group: &str| {
            json!({"metadata": {"resourceVersion": "1"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
                "dataSourceRef": {"apiGroup": group, "kind": "K", "name": "n"}}})
        };
        let told = |errors: ErrorList| {
            errors.iter().filter(|e| e.field.to_string().ends_with("apiGroup")).count()
        };
        assert_eq!(told(validate(&claim("-5Mi"))), 1);
        assert_eq!(told(validate_change(&claim("-5Mi"), &claim("example.com"))), 0);
    }

    /// Cases of upstream's `TestValidatePersistentVolumeClaimStatusUpdate`.
    #[test]
    fn a_status_speaks_of_storage() {
        let claim = json!({"status": {
            "capacity": {"storage": "-1"},
            "allocatedResourceStatuses": {"storage": "foobar", "example.com/x": "NodeResizePending", "cpu": "NodeResizePending"},
            "allocatedResources": {"cpu": "1", "storage": "-10Gi"},
        }});
        let said: Vec<String> =
            status("status", &claim, &claim).iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "status.capacity[storage]: Invalid value: -1: must be a valid resource quantity",
                "status.allocatedResourceStatuses: Unsupported value: \"cpu\": supported values: \"storage\"",
                "status.allocatedResourceStatuses: Unsupported value: \"storage\": supported values: \"ControllerResizeInProgress\", \"ControllerResizeInfeasible\", \"NodeResizeInProgress\", \"NodeResizeInfeasible\", \"NodeResizePending\"",
                "status.allocatedResources: Unsupported value: \"cpu\": supported values: \"storage\"",
                "status.allocatedResources[storage]: Invalid value: -10737418240: must be a valid resource quantity",
            ]
        );
    }
}
