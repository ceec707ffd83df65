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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::tests::{same, with};
    use serde_json::json;

    /// `ValidateCustomResourceDefinitionSubresources` of `pkg/apis/apiextensions/validation`.
    #[test]
    fn paths_of_scales_are_below_spec_and_status() {
        let check = |changes: Value, expected: &[&str]| {
            let base = json!({"specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas"});
            same(&scale(&with(&base, &changes), &Path::new("s")), expected);
        };
        check(json!({}), &[]);
        check(json!({"labelSelectorPath": ".status.labels"}), &[]);
        check(json!({"labelSelectorPath": ".spec.labels"}), &[]);
        check(
            json!({"specReplicasPath": "", "statusReplicasPath": ""}),
            &[
                "s.scale.specReplicasPath: Required value",
                "s.scale.statusReplicasPath: Required value",
            ],
        );
        check(
            json!({"specReplicasPath": "spec.replicas"}),
            &["s.scale.specReplicasPath: Invalid value: \"spec.replicas\": \
               must be a simple json path starting with ."],
        );
        check(
            json!({"specReplicasPath": ".status.replicas"}),
            &["s.scale.specReplicasPath: Invalid value: \".status.replicas\": \
               should be a json path under .spec"],
        );
        check(
            json!({"statusReplicasPath": ".spec.replicas"}),
            &["s.scale.statusReplicasPath: Invalid value: \".spec.replicas\": \
               should be a json path under .status"],
        );
        check(
            json!({"labelSelectorPath": ".metadata.labels"}),
            &["s.scale.labelSelectorPath: Invalid value: \".metadata.labels\": \
               should be a json path under either .spec or .status"],
        );
    }

    /// `ValidateCustomResourceColumnDefinition` of `pkg/apis/apiextensions/validation`.
    #[test]
    fn columns_have_a_name_a_type_and_a_path() {
        let check = |changes: Value, expected: &[&str]| {
            let base = json!({"name": "n", "type": "string", "jsonPath": ".spec.a"});
            same(&of_column(&with(&base, &changes), &Path::new("c")), expected);
        };
        const TYPES: &str = "must be one of boolean,date,integer,number,string";
        check(json!({}), &[]);
        check(json!({"type": "integer", "format": "int64", "jsonPath": "."}), &[]);
        check(json!({"name": ""}), &["c.name: Required value"]);
        check(json!({"type": null}), &[&format!("c.type: Required value: {TYPES}")]);
        check(json!({"type": "int"}), &[&format!("c.type: Invalid value: \"int\": {TYPES}")]);
        check(
            json!({"format": "x"}),
            &["c.format: Invalid value: \"x\": must be one of \
               byte,date,date-time,double,float,int32,int64,password"],
        );
        check(json!({"jsonPath": ""}), &["c.JSONPath: Required value"]);
        check(
            json!({"jsonPath": "spec"}),
            &["c.JSONPath: Invalid value: \"spec\": must be a simple json path starting with ."],
        );
    }

    /// `ValidateCustomResourceSelectableFields` of `pkg/apis/apiextensions/validation`.
    #[test]
    fn selectable_fields_are_few_and_scalar() {
        let text = json!({"type": "string"});
        let letters = json!({"a": text, "b": text, "c": text, "d": text, "e": text, "f": text,
            "g": text, "h": text, "i": text, "n": {"type": "number"}});
        let root = json!({"type": "object", "properties": {
            "metadata": {"type": "object", "properties": {"name": text}},
            "spec": {"type": "object", "properties": letters}}});
        let check = |paths: &[&str], expected: &[&str]| {
            let fields: Vec<Value> = paths.iter().map(|path| json!({ "jsonPath": path })).collect();
            same(&selectable(&root, &json!(fields), &Value::Null, &Path::new("f")), expected);
        };
        check(&[".spec.a", ".spec.b"], &[]);
        check(&[""], &["f[0].jsonPath: Required value"]);
        check(
            &[".spec.unknown"],
            &["f[0].jsonPath: Invalid value: \".spec.unknown\": \
               is an invalid path: does not refer to a valid field"],
        );
        check(
            &[".spec['a']"],
            &["f[0].jsonPath: Invalid value: \".spec['a']\": \
               is an invalid path: array notation is not allowed"],
        );
        check(
            &[".metadata.name"],
            &["f[0].jsonPath: Invalid value: \".metadata.name\": \
               must not point to fields in metadata"],
        );
        check(
            &[".spec.n"],
            &["f[0].jsonPath: Invalid value: \".spec.n\": \
               must point to a field of type string, boolean or integer. ..."],
        );
        check(&[".spec.a", ".spec.a"], &["f[1].jsonPath: Duplicate value: \".spec.a\""]);
        let nine =
            ["a", "b", "c", "d", "e", "f", "g", "h", "i"].map(|name| format!(".spec.{name}"));
        let nine: Vec<&str> = nine.iter().map(String::as_str).collect();
        check(&nine[..8], &[]);
        check(&nine, &["f: Too many: 9: must have at most 8 items"]);
    }
}
