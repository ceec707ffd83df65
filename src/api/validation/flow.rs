//! Priority levels and schemas of flow control.

mod schema;

use serde_json::Value;

use super::names::range_text;
use crate::field::{Error, ErrorList, Path};
use crate::value::{get, has, int_at, items, str_at};

pub use schema::schema;

/// A priority level of flow control.
pub fn priority_level(object: &Value) -> ErrorList {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let mut errors = ErrorList::new();
    let (kind, field) = (str_at(spec, "type"), path.child("type"));
    let (limited, exempt) = (has(spec, "limited"), has(spec, "exempt"));
    match kind {
        "Exempt" if limited => {
            let text = "must be nil if the type is not Limited";
            errors.push(Error::forbidden(&path.child("limited"), text));
        }
        "Exempt" => {
            let (part, field) = (get(spec, "exempt"), path.child("exempt"));
            errors.extend(shares(part, &field));
        }
        "Limited" => {
            if exempt {
                let text = "must be nil if the type is Limited";
                errors.push(Error::forbidden(&path.child("exempt"), text));
            }
            if limited {
                errors.extend(limits(get(spec, "limited"), &path.child("limited")));
            } else {
                errors.push(Error::required(&path.child("limited"), ""));
            }
        }
        other => {
            if limited {
                errors.push(Error::forbidden(&path.child("limited"), ""));
            }
            if other.is_empty() {
                errors.push(Error::required(&field, ""));
            } else {
                errors.push(Error::not_supported(&field, other, &["Exempt", "Limited"]));
            }
        }
    }
    errors
}

/// A write to the status of a schema or a level: each condition has a type of its own.
pub fn status(subresource: &str, object: &Value, _: &Value) -> ErrorList {
    if subresource != "status" {
        return Vec::new();
    }
    let list = items(get(object, "status"), "conditions");
    let path = Path::new("status").child("conditions");
    let mut errors = ErrorList::new();
    for (index, condition) in list.iter().enumerate() {
        let (field, kind) = (path.index(index).child("type"), str_at(condition, "type"));
        if list.iter().take(index).any(|other| str_at(other, "type") == kind) {
            errors.push(Error::duplicate(&field, kind));
        }
        if kind.is_empty() {
            errors.push(Error::required(&field, ""));
        }
    }
    errors
}

fn shares(part: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if let Some(value) = int_at(part, "nominalConcurrencyShares").filter(|v| *v < 0) {
        let text = "must be a non-negative integer";
        errors.push(Error::invalid(&path.child("nominalConcurrencyShares"), value, text));
    }
    if let Some(value) = int_at(part, "lendablePercent").filter(|v| !(0..=100).contains(v)) {
        errors.push(Error::invalid(&path.child("lendablePercent"), value, range_text(0, 100)));
    }
    errors
}

fn limits(limited: &Value, path: &Path) -> ErrorList {
    let mut errors = shares(limited, path);
    if let Some(value) = int_at(limited, "borrowingLimitPercent").filter(|v| *v < 0) {
        let text = "if specified, must be a non-negative integer";
        errors.push(Error::invalid(&path.child("borrowingLimitPercent"), value, text));
    }
    let (response, path) = (get(limited, "limitResponse"), path.child("limitResponse"));
    let (queuing, field) = (get(response, "queuing"), path.child("queuing"));
    match (str_at(response, "type"), queuing.is_object()) {
        ("Reject", true) => {
            let text = "must be nil if limited.limitResponse.type is not Limited";
            errors.push(Error::forbidden(&field, text));
        }
        ("Reject", false) => {}
        ("Queue", false) => errors.push(Error::required(&field, "")),
        ("Queue", true) => errors.extend(queues(queuing, &field)),
        (other, set) => {
            if set {
                errors.push(Error::forbidden(&field, ""));
            }
            let field = path.child("type");
            errors.push(if other.is_empty() {
                Error::required(&field, "")
            } else {
                Error::not_supported(&field, other, &["Queue", "Reject"])
            });
        }
    }
    errors
}

fn queues(queuing: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let number = |key: &str| int_at(queuing, key).unwrap_or_default();
    for key in ["queueLengthLimit", "queues"] {
        if number(key) <= 0 {
            errors.push(Error::invalid(&path.child(key), number(key), "must be positive"));
        }
    }
    let (hand, field) = (number("handSize"), path.child("handSize"));
    if hand <= 0 {
        errors.push(Error::invalid(&field, hand, "must be positive"));
    } else if hand > number("queues") {
        let text = format!("should not be greater than queues ({})", number("queues"));
        errors.push(Error::invalid(&field, hand, text));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn hands_fit_the_queues() {
        let level = |hand: i64| json!({"spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": {"queues": 4, "handSize": hand, "queueLengthLimit": 1}}}}});
        assert!(priority_level(&level(4)).is_empty());
        assert_eq!(
            priority_level(&level(5))[0].to_string(),
            "spec.limited.limitResponse.queuing.handSize: Invalid value: 5: should not be greater than queues (4)"
        );
    }
}
