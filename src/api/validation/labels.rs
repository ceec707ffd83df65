//! Validation of labels, annotations and label selectors.

use serde_json::{Value, json};

use super::{each, names};
use crate::field::{Error, ErrorList, Path};
use crate::value::{entries, get, is_empty, items, str_at};

/// Maximum total size in bytes of the keys and values of all annotations.
const ANNOTATIONS_MAX: usize = 256 * 1024;

/// Validates the keys and values of labels.
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

/// Validates the keys and the total size of annotations.
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

/// Checks that the metadata of a template has no fields other than labels and annotations, which
/// other functions validate (upstream's `ValidateTemplateObjectMeta`).
pub fn only_labels_and_annotations(metadata: &Value, path: &Path) -> ErrorList {
    // Upstream prints the Go name of a field with a lower-case first letter.
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

/// Validates a label selector; it may be absent. `lenient` skips the validation of values, as
/// upstream does in fields that were not validated in earlier releases.
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

/// Validates the operator and the values of a selector requirement. For an unknown operator it
/// returns `None`, and the caller decides.
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

/// Validates a requirement of the label or field selector of an access review, which may have an
/// unknown operator.
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

/// Whether a selector is empty and therefore selects everything.
pub fn selects_all(selector: &Value) -> bool {
    is_empty(selector, "matchLabels") && is_empty(selector, "matchExpressions")
}

/// Whether every requirement of a selector is valid, as upstream's conversion to a
/// `labels.Selector` requires.
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

/// The map as a field error prints it; an absent map prints as `{}`.
pub fn shown_map(map: &Value) -> Value {
    if map.is_null() { json!({}) } else { map.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::tests::same;

    /// `ValidateLabels` of `k8s.io/apimachinery/pkg/apis/meta/v1/validation` and
    /// `ValidateAnnotations` of `k8s.io/apimachinery/pkg/api/validation`.
    #[test]
    fn keys_are_qualified_names_and_values_short() {
        let labels = |map: Value, expected: &[&str]| {
            same(&validate_labels(&json!({ "l": map }), "l", &Path::new("p")), expected);
        };
        labels(json!({"simple": "bar", "1.2.3.4/5678": "", "example.com/A_B-c": "A.b"}), &[]);
        labels(json!({"a/b/c": ""}), &["p.l: Invalid value: \"a/b/c\": ..."]);
        labels(json!({"a": "-b"}), &["p.l: Invalid value: \"-b\": a valid label must be..."]);
        let long = "a".repeat(64);
        let text = format!("p.l: Invalid value: \"{long}\": must be no more than 63 bytes");
        labels(json!({ "a": long }), &[&text]);
        let annotations = |map: Value, expected: &[&str]| {
            same(&validate_annotations(&json!({ "a": map }), "a", &Path::new("p")), expected);
        };
        annotations(json!({"UPPER.example.com/a": "any text: {}"}), &[]);
        annotations(json!({"no good": ""}), &["p.a: Invalid value: \"no good\": ..."]);
        annotations(
            json!({"a": "x".repeat(256 * 1024)}),
            &["p.a: Too long: may not be more than 262144 bytes"],
        );
    }

    /// `ValidateLabelSelector` of `k8s.io/apimachinery/pkg/apis/meta/v1/validation`.
    #[test]
    fn operators_decide_whether_values_are_given() {
        let check = |operator: &str, values: Value, expected: &[&str]| {
            let expression = json!({"key": "k", "operator": operator, "values": values});
            let selector = json!({ "matchExpressions": [expression] });
            same(&validate_selector(&selector, &Path::new("s"), false), expected);
            assert_eq!(convertible(&selector), expected.is_empty());
        };
        const AT: &str = "s.matchExpressions[0]";
        check("In", json!(["a", ""]), &[]);
        check("DoesNotExist", json!([]), &[]);
        check(
            "NotIn",
            json!([]),
            &[&format!(
                "{AT}.values: Required value: \
                 must be specified when `operator` is 'In' or 'NotIn'"
            )],
        );
        check(
            "Exists",
            json!(["a"]),
            &[&format!(
                "{AT}.values: Forbidden: \
                 may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            )],
        );
        check(
            "Gt",
            json!(["1"]),
            &[&format!("{AT}.operator: Invalid value: \"Gt\": not a valid selector operator")],
        );
        check(
            "In",
            json!(["a", "b c"]),
            &[&format!("{AT}.values[1]: Invalid value: \"b c\": a valid label must be...")],
        );
    }

    /// `Requirement.Matches` of `k8s.io/apimachinery/pkg/labels`.
    #[test]
    fn absent_labels_match_not_in() {
        let check = |operator: &str, values: &[&str], expected: [bool; 3]| {
            let expression = json!({"key": "k", "operator": operator, "values": values});
            let selector = json!({ "matchExpressions": [expression] });
            let labels = [json!({"k": "a"}), json!({"k": "b"}), json!({"x": "a"})];
            assert_eq!(labels.map(|labels| matches(&selector, &labels)), expected, "{operator}");
        };
        check("In", &["a"], [true, false, false]);
        check("NotIn", &["a"], [false, true, true]);
        check("Exists", &[], [true, true, false]);
        check("DoesNotExist", &[], [false, false, true]);
    }
}
