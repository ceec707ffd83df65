//! Validation of events. `events.k8s.io/v1` has strict rules in addition to those of `v1`.
//!
//! Error paths use the field names of `v1` for both versions, and many errors have an empty value:
//! upstream validates its internal type.

use serde_json::Value;

use super::checks::{Shape, go_json, printed, required};
use super::{IMMUTABLE, each, names};
use crate::field::{Error, ErrorList, Path};
use crate::value::{get, has, int_at, is_empty, semantic_equal, str_at, str_in};

/// Maximum length in bytes of `reportingInstance`, `action` and `reason`
/// (`pkg/apis/core/validation/events.go`).
const SHORT_MAX: usize = 128;
/// Maximum length in bytes of the message.
const NOTE_MAX: usize = 1024;

/// An ObjectReference as Go prints it.
const REFERENCE: Shape = Shape::Struct(&[
    ("Kind", "kind", Shape::Text),
    ("Namespace", "namespace", Shape::Text),
    ("Name", "name", Shape::Text),
    ("UID", "uid", Shape::Text),
    ("APIVersion", "apiVersion", Shape::Text),
    ("ResourceVersion", "resourceVersion", Shape::Text),
    ("FieldPath", "fieldPath", Shape::Text),
]);

/// Whether the strict rules of `events.k8s.io/v1` apply.
fn is_strict(object: &Value) -> bool {
    str_at(object, "apiVersion").starts_with("events.k8s.io/")
}

/// The reference to the object of an event; its field has another name in each version.
fn involved_object(object: &Value) -> &Value {
    get(object, if is_strict(object) { "regarding" } else { "involvedObject" })
}

/// Validates a new event.
pub fn validate(object: &Value) -> ErrorList {
    let mut errors = validate_common(object);
    if !is_strict(object) {
        return errors;
    }
    errors.extend(series(object));
    if !has(object, "eventTime") {
        errors.push(Error::required(&Path::new("eventTime"), ""));
    }
    let kind = str_at(object, "type");
    if !matches!(kind, "Normal" | "Warning") {
        let text = format!("has invalid value: {kind}");
        errors.push(Error::invalid(&Path::new("type"), "", text));
    }
    for (key, shown) in [
        ("deprecatedFirstTimestamp", "firstTimestamp"),
        ("deprecatedLastTimestamp", "lastTimestamp"),
        ("deprecatedCount", "count"),
        ("deprecatedSource", "source"),
    ] {
        let zero = int_at(object, key) == Some(0) || semantic_equal(get(object, key), &Value::Null);
        let source = get(object, key);
        let empty = source.is_object() && is_empty(source, "component") && is_empty(source, "host");
        if !zero && !empty {
            errors.push(Error::invalid(&Path::new(shown), "", "needs to be unset"));
        }
    }
    errors
}

/// Strict rules of `series`.
fn series(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let series = get(object, "series");
    if series.is_object() {
        if int_at(series, "count").unwrap_or_default() < 2 {
            errors.push(Error::invalid(&Path::new("series.count"), "", "should be at least 2"));
        }
        if !has(series, "lastObservedTime") {
            errors.push(Error::required(&Path::new("series.lastObservedTime"), ""));
        }
    }
    errors
}

/// Rules of both versions (`legacyValidateEvent`).
fn validate_common(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let (own, other) =
        (str_in(object, &["metadata", "namespace"]), str_at(involved_object(object), "namespace"));
    let field = Path::new("involvedObject").child("namespace");
    let mismatch = || Error::invalid(&field, other, "does not match event.namespace");
    // Events without `eventTime` have the old form, for which there are no further rules.
    if !has(object, "eventTime") {
        let matches = if other.is_empty() { matches!(own, "" | "default") } else { own == other };
        if !matches {
            errors.push(mismatch());
        }
        return errors;
    }
    if other.is_empty() && !matches!(own, "default" | "kube-system") {
        errors.push(mismatch());
    }
    let (controller, note) = if is_strict(object) {
        ("reportingController", "note")
    } else {
        ("reportingComponent", "message")
    };
    errors.extend(required(object, &[controller], &Path::default()));
    let name = str_at(object, controller);
    errors.extend(each(&Path::new(controller), name, names::qualified_name(name)));
    for key in ["reportingInstance", "action", "reason"] {
        errors.extend(required(object, &[key], &Path::default()));
        errors.extend(too_long(object, key, key, SHORT_MAX));
    }
    errors.extend(too_long(object, note, "message", NOTE_MAX));
    errors
}

fn too_long(object: &Value, key: &str, shown: &str, max: usize) -> Option<Error> {
    let text = format!("can have at most {max} characters");
    (str_at(object, key).len() > max).then(|| Error::invalid(&Path::new(shown), "", text))
}

/// Validates an update of an event: in `events.k8s.io/v1` only `series` and the metadata may
/// change.
pub fn validate_change(object: &Value, old: &Value) -> ErrorList {
    let mut errors = validate_common(object);
    if !is_strict(object) {
        return errors;
    }
    if !semantic_equal(get(object, "series"), get(old, "series")) {
        errors.extend(series(object));
    }
    if !semantic_equal(involved_object(object), involved_object(old)) {
        let shown = go_json(involved_object(object), REFERENCE);
        errors.push(printed(&Path::new("involvedObject"), &shown, IMMUTABLE));
    }
    for (key, shown) in [
        ("reason", "reason"),
        ("note", "message"),
        ("deprecatedSource", "source"),
        ("deprecatedFirstTimestamp", "firstTimestamp"),
        ("deprecatedLastTimestamp", "lastTimestamp"),
        ("deprecatedCount", "count"),
        ("type", "type"),
        ("eventTime", "eventTime"),
        ("action", "action"),
        ("related", "related"),
        ("reportingController", "reportingController"),
        ("reportingInstance", "reportingInstance"),
    ] {
        let (new, was) = (get(object, key), get(old, key));
        // An absent string equals an empty one, as in Go.
        let is_same_text = new.as_str().unwrap_or_default() == was.as_str().unwrap_or_default()
            && (new.is_null() || was.is_null());
        if is_same_text && (new.is_string() || was.is_string()) || semantic_equal(new, was) {
            continue;
        }
        let is_text = matches!(
            key,
            "reason" | "note" | "type" | "action" | "reportingController" | "reportingInstance"
        );
        let value =
            if is_text { Value::from(new.as_str().unwrap_or_default()) } else { new.clone() };
        errors.push(Error::invalid(&Path::new(shown), value, IMMUTABLE));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_event_must_have_the_namespace_of_its_object() {
        let event = |namespace: &str| json!({"apiVersion": "v1", "metadata": {"name": "e", "namespace": "a"}, "involvedObject": {"namespace": namespace}});
        assert!(validate(&event("a")).is_empty());
        assert_eq!(
            validate(&event("b"))[0].to_string(),
            "involvedObject.namespace: Invalid value: \"b\": does not match event.namespace"
        );
    }
}
