//! Validation of `metav1` conditions (`ValidateConditions` of
//! `k8s.io/apimachinery/pkg/apis/meta/v1/validation`).

use std::collections::BTreeSet;

use serde_json::Value;

use super::{each, names};
use crate::field::{Error, ErrorList, Path};
use crate::value::{get, int_at, str_at};

/// The values of `status`, in the order in which errors list them.
const STATUSES: [&str; 3] = ["False", "True", "Unknown"];
/// Maximum length in bytes of the reason.
const REASON_MAX: usize = 1024;
/// Maximum length in bytes of the message.
const MESSAGE_MAX: usize = 32 * 1024;

/// Validates each condition, and that no two conditions have the same type.
pub fn validate(conditions: &[Value], path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut kinds = BTreeSet::new();
    for (index, condition) in conditions.iter().enumerate() {
        let (field, kind) = (path.index(index), str_at(condition, "type"));
        if !kinds.insert(kind) {
            errors.push(Error::duplicate(&field, kind));
        }
        errors.extend(one(condition, &field));
    }
    errors
}

fn one(condition: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let (kind, field) = (str_at(condition, "type"), path.child("type"));
    if kind.is_empty() {
        errors.push(Error::required(&field, "is required"));
    } else {
        errors.extend(each(&field, kind, names::qualified_name(kind)));
    }
    let (status, field) = (str_at(condition, "status"), path.child("status"));
    if status.is_empty() {
        errors.push(Error::required(&field, ""));
    } else if !STATUSES.contains(&status) {
        errors.push(Error::not_supported(&field, status, &STATUSES));
    }
    if let Some(generation) = int_at(condition, "observedGeneration").filter(|g| *g < 0) {
        let text = "must be greater than or equal to zero";
        errors.push(Error::invalid(&path.child("observedGeneration"), generation, text));
    }
    if !get(condition, "lastTransitionTime").is_string() {
        errors.push(Error::required(&path.child("lastTransitionTime"), ""));
    }
    let (reason, field) = (str_at(condition, "reason"), path.child("reason"));
    if reason.is_empty() {
        errors.push(Error::required(&field, ""));
    } else {
        if !is_reason(reason) {
            errors.push(Error::invalid(&field, reason, REASON));
        }
        if reason.len() > REASON_MAX {
            errors.push(Error::too_long(&field, REASON_MAX));
        }
    }
    if str_at(condition, "message").len() > MESSAGE_MAX {
        errors.push(Error::too_long(&path.child("message"), MESSAGE_MAX));
    }
    errors
}

const REASON: &str = "a condition reason must start with alphabetic character, optionally followed by a string of \
alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  \
or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is \
'[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')";

fn is_reason(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ',' | ':');
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(inner)
        && text.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn texts(conditions: Value) -> Vec<String> {
        let list = conditions.as_array().unwrap();
        validate(list, &Path::new("c")).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_condition_says_type_status_time_and_reason() {
        let good = json!({"type": "A", "status": "True", "reason": "Why", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        assert_eq!(texts(json!([good])), [""; 0]);
        assert_eq!(texts(json!([good, good])), ["c[1]: Duplicate value: \"A\""]);
        assert_eq!(
            texts(json!([{}])),
            [
                "c[0].type: Required value: is required",
                "c[0].status: Required value",
                "c[0].lastTransitionTime: Required value",
                "c[0].reason: Required value",
            ]
        );
        let mut bad = good.clone();
        bad["status"] = json!("Maybe");
        bad["observedGeneration"] = json!(-1);
        assert_eq!(
            texts(json!([bad])),
            [
                "c[0].status: Unsupported value: \"Maybe\": supported values: \"False\", \"True\", \"Unknown\"",
                "c[0].observedGeneration: Invalid value: -1: must be greater than or equal to zero",
            ]
        );
    }

    #[test]
    fn a_reason_is_a_word() {
        assert!(is_reason("a") && is_reason("ReasonA:ReasonB") && is_reason("X_"));
        assert!(!is_reason("1a") && !is_reason("a:") && !is_reason("a b"));
        let condition = json!({"type": "A", "status": "True", "reason": "a b", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        assert_eq!(
            texts(json!([condition])),
            [
                "c[0].reason: Invalid value: \"a b\": a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')"
            ]
        );
    }
}
