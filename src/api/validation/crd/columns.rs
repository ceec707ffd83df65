//! Validation of the scale subresource, the printer columns and the selectable fields of a version.

use std::collections::HashSet;

use serde_json::Value;

use super::paths;
use crate::field::{Error, ErrorList, Path};
use crate::value::str_at;

const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] =
    ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
/// Maximum number of selectable fields of a version.
const SELECTABLE_MAX: usize = 8;

fn simple_path(path: &str, field: &Path) -> Option<Error> {
    let text = "must be a simple json path starting with .";
    (!path.starts_with('.')).then(|| Error::invalid(field, path, text))
}

/// Validates the JSON paths of the replica counts and the selector of the scale subresource.
pub(super) fn scale(scale: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if !scale.is_object() {
        return errors;
    }
    for (key, under, text, required) in [
        ("specReplicasPath", [".spec.", ".spec."], "should be a json path under .spec", true),
        (
            "statusReplicasPath",
            [".status.", ".status."],
            "should be a json path under .status",
            true,
        ),
        (
            "labelSelectorPath",
            [".spec.", ".status."],
            "should be a json path under either .spec or .status",
            false,
        ),
    ] {
        let (value, field) = (str_at(scale, key), path.child(&format!("scale.{key}")));
        if value.is_empty() {
            errors.extend(required.then(|| Error::required(&field, "")));
        } else if let Some(error) = simple_path(value, &field) {
            errors.push(error);
        } else if !under.iter().any(|start| value.starts_with(start)) {
            errors.push(Error::invalid(&field, value, text));
        }
    }
    errors
}

/// Validates a printer column.
pub(super) fn of_column(column: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if str_at(column, "name").is_empty() {
        errors.push(Error::required(&path.child("name"), ""));
    }
    let (kind, text) =
        (str_at(column, "type"), format!("must be one of {}", COLUMN_TYPES.join(",")));
    if kind.is_empty() {
        errors.push(Error::required(&path.child("type"), text));
    } else if !COLUMN_TYPES.contains(&kind) {
        errors.push(Error::invalid(&path.child("type"), kind, text));
    }
    let format = str_at(column, "format");
    if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
        let text = format!("must be one of {}", COLUMN_FORMATS.join(","));
        errors.push(Error::invalid(&path.child("format"), format, text));
    }
    match str_at(column, "jsonPath") {
        "" => errors.push(Error::required(&path.child("JSONPath"), "")),
        value => errors.extend(simple_path(value, &path.child("JSONPath"))),
    }
    errors
}

/// Validates selectable fields. `before` are those of the old version: an unchanged list may exceed
/// [`SELECTABLE_MAX`].
pub(super) fn selectable(root: &Value, fields: &Value, before: &Value, path: &Path) -> ErrorList {
    let list = items_of(fields);
    if list.is_empty() {
        return ErrorList::new();
    }
    if !root.is_object() {
        let text = if path.to_string() == "spec.selectableFields" {
            "may only be set when validations.schema is included"
        } else {
            "may only be set when `version.schema.openAPIV3Schema` is not included"
        };
        return vec![Error::invalid(path, "", text)];
    }
    let mut errors = ErrorList::new();
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, one) in list.iter().enumerate() {
        let (source, field) = (str_at(one, "jsonPath"), path.index(index).child("jsonPath"));
        if source.is_empty() {
            errors.push(Error::required(&field, ""));
            continue;
        }
        let (first, found) = match paths::find(source, root, false) {
            Ok(found) => found,
            Err(why) => {
                errors.push(Error::invalid(&field, source, format!("is an invalid path: {why}")));
                continue;
            }
        };
        if first == "metadata" {
            errors.push(Error::invalid(&field, source, "must not point to fields in metadata"));
        }
        if !matches!(str_at(found, "type"), "string" | "boolean" | "integer") {
            let text = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            errors.push(Error::invalid(&field, source, text));
        }
        if !seen.insert(source) {
            errors.push(Error::duplicate(&field, source));
        }
    }
    let kept = items_of(before).len() > SELECTABLE_MAX && before == fields;
    if seen.len() > SELECTABLE_MAX && !kept {
        errors.push(Error::too_many(path, seen.len(), SELECTABLE_MAX));
    }
    errors
}

fn items_of(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}
