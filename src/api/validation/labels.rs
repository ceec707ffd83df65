//! Labels, annotations and label selectors.

use serde_json::{Value, json};

use super::{each, names};
use crate::field::{Error, ErrorList, Path};
use crate::value::{entries, get, is_empty, items, str_at};

/// Annotations together, keys and values.
const ANNOTATIONS_MAX: usize = 256 * 1024;

/// Keys and values of labels.
pub fn validate_labels(object: &Value, key: &str, path: &Path) -> ErrorList {
    let field = path.child(key);
    let mut errors = ErrorList::new();
    for (name, value) in entries(object, key) {
        errors.extend(each(&field, name.as_str(), names::qualified_name(name)));
        let value = value.as_str().unwrap_or_default();
        errors.extend(each(&field, value, names::label_value(value)));
    }
    errors
}

/// Keys of annotations and their size.
pub fn validate_annotations(object: &Value, key: &str, path: &Path) -> ErrorList {
    let field = path.child(key);
    let mut errors = ErrorList::new();
    let mut size = 0;
    for (name, value) in entries(object, key) {
        size += name.len() + value.as_str().map_or(0, str::len);
        errors.extend(each(&field, name.as_str(), names::qualified_name(&name.to_lowercase())));
    }
    if size > ANNOTATIONS_MAX {
        errors.push(Error::too_long(&field, ANNOTATIONS_MAX));
    }
    errors
}

/// The metadata of an object that is made of a template has labels and annotations, which others
/// check, and nothing else (upstream's `ValidateTemplateObjectMeta`).
pub fn only_labels_and_annotations(metadata: &Value, path: &Path) -> ErrorList {
    // Upstream shows Go's name of a field with its first letter small.
    const OTHERS: [(&str, &str); 13] = [
        ("name", "name"),
        ("generateName", "generateName"),
        ("namespace", "namespace"),
        ("selfLink", "selfLink"),
        ("uid", "uID"),
        ("resourceVersion", "resourceVersion"),
        ("generation", "generation"),
        ("creationTimestamp", "creationTimestamp"),
        ("deletionTimestamp", "deletionTimestamp"),
        ("deletionGracePeriodSeconds", "deletionGracePeriodSeconds"),
        ("ownerReferences", "ownerReferences"),
        ("finalizers", "finalizers"),
        ("managedFields", "managedFields"),
    ];
    let set = OTHERS.into_iter().filter(|(key, _)| match get(metadata, key) {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Number(number) => *key != "generation" || number.as_i64() != Some(0),
        _ => true,
    });
    set.map(|(_, shown)| Error::forbidden(&path.child(shown), "cannot be set")).collect()
}

/// A label selector; absent is good. `lenient` leaves values unchecked, as upstream does where it
/// once did not check.
pub fn validate_selector(selector: &Value, path: &Path, lenient: bool) -> ErrorList {
    let mut errors = validate_labels(selector, "matchLabels", path);
    for (index, expression) in items(selector, "matchExpressions").iter().enumerate() {
        errors.extend(requirement(
            expression,
            &path.child("matchExpressions").index(index),
            lenient,
        ));
    }
    errors
}

/// Operator and values of a requirement of a selector; an unknown operator is `None` and
/// left to the caller.
fn operands(expression: &Value, path: &Path) -> Option<ErrorList> {
    let mut errors = ErrorList::new();
    let values = items(expression, "values");
    match str_at(expression, "operator") {
        "In" | "NotIn" if values.is_empty() => {
            errors.push(Error::required(
                &path.child("values"),
                "must be specified when `operator` is 'In' or 'NotIn'",
            ));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            errors.push(Error::forbidden(
                &path.child("values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            ));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        _ => return None,
    }
    Some(errors)
}

/// A requirement in a question about access, of labels or of fields: an operator that is not known
/// yet may stand there.
pub fn asked_requirement(expression: &Value, path: &Path, labels: bool) -> ErrorList {
    let mut errors = operands(expression, path).unwrap_or_default();
    if labels {
        errors.extend(key_and_values(expression, path, false));
    } else if is_empty(expression, "key") {
        errors.insert(0, Error::required(&path.child("key"), "must be specified"));
    }
    errors
}

fn requirement(expression: &Value, path: &Path, lenient: bool) -> ErrorList {
    let operator = str_at(expression, "operator");
    let mut errors = operands(expression, path).unwrap_or_else(|| {
        let text = "not a valid selector operator";
        vec![Error::invalid(&path.child("operator"), operator, text)]
    });
    errors.extend(key_and_values(expression, path, lenient));
    errors
}

fn key_and_values(expression: &Value, path: &Path, lenient: bool) -> ErrorList {
    let (mut errors, values) = (ErrorList::new(), items(expression, "values"));
    let key = str_at(expression, "key");
    errors.extend(each(&path.child("key"), key, names::qualified_name(key)));
    if !lenient {
        for (index, value) in values.iter().enumerate() {
            let value = value.as_str().unwrap_or_default();
            errors.extend(each(
                &path.child("values").index(index),
                value,
                names::label_value(value),
            ));
        }
    }
    errors
}

/// A selector that selects everything.
pub fn selects_all(selector: &Value) -> bool {
    is_empty(selector, "matchLabels") && is_empty(selector, "matchExpressions")
}

/// Whether every requirement of the selector can be evaluated, as upstream's conversion to a
/// selector demands.
pub fn convertible(selector: &Value) -> bool {
    validate_selector(selector, &Path::default(), false).is_empty()
}

/// Whether a selector matches labels.
pub fn matches(selector: &Value, labels: &Value) -> bool {
    let all = entries(selector, "matchLabels").all(|(key, value)| get(labels, key) == value);
    all && items(selector, "matchExpressions").iter().all(|expression| {
        let found = labels.get(str_at(expression, "key"));
        let listed = found.is_some_and(|value| items(expression, "values").contains(value));
        match str_at(expression, "operator") {
            "In" => listed,
            "NotIn" => !listed,
            "Exists" => found.is_some(),
            "DoesNotExist" => found.is_none(),
            _ => false,
        }
    })
}

/// A map as a field error shows it; an absent one is shown as `{}` when empty.
pub fn shown_map(map: &Value) -> Value {
    if map.is_null() { json!({}) } else { map.clone() }
}
