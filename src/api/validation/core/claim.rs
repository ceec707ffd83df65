//! The spec of a volume claim.

use serde_json::Value;

use crate::field::{Error, ErrorList, Path};
use crate::validation::labels::validate_selector;
use crate::validation::numbers::quantity;
use crate::validation::{each, names, one_of};
use crate::value::{at, get, has, items, semantic_equal, str_at};

pub(super) const ACCESS_MODES: [&str; 4] =
    ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

/// A claim's spec, also in templates.
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

/// Access modes of claims and volumes; `between` adds what upstream checks after presence.
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
