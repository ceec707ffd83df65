//! Validation of the built-in kinds: pure functions from an object to field errors with the texts
//! and the order of upstream.

pub mod admission;
pub mod apps;
pub mod batch;
pub mod checks;
pub mod conditions;
pub mod core;
pub mod crd;
pub mod endpoints;
pub mod events;
pub mod flow;
pub mod internal;
pub mod labels;
pub mod meta;
pub mod names;
pub mod net;
pub mod networking;
pub mod numbers;
pub mod rbac;
pub mod resource;
pub mod scaling;
pub mod signers;
pub mod small_kinds;
pub mod storage;
pub mod storage_migration;
pub mod warnings;

use crate::field::{Error, ErrorList, Path};
use serde_json::Value;

/// The error text of an immutable field, as upstream has it.
pub const IMMUTABLE: &str = "field is immutable";

/// Returns one `Invalid` error for each text, all with the same field and value.
pub fn each(
    field: &Path,
    value: impl Into<Value>,
    texts: Vec<String>,
) -> impl Iterator<Item = Error> {
    let value = value.into();
    let field = field.clone();
    texts.into_iter().map(move |text| Error::invalid(&field, value.clone(), text))
}

/// Checks that a value is unchanged, by semantic equality.
pub fn immutable(new: &Value, old: &Value, field: &Path) -> ErrorList {
    if crate::value::semantic_equal(new, old) {
        Vec::new()
    } else {
        vec![Error::invalid(field, new.clone(), IMMUTABLE)]
    }
}

/// Checks that a value is unchanged; the error prints the value as the internal type `kind` (see
/// [`internal`]).
pub fn immutable_as(new: &Value, old: &Value, field: &Path, kind: &'static str) -> ErrorList {
    immutable(new, old, field).into_iter().map(|error| error.printed_as(kind)).collect()
}

/// Checks that a value is in the closed set `allowed`, which must have the order in which upstream
/// prints it. The value of an absent field is the empty string, as upstream has it.
pub fn one_of(value: &str, allowed: &[&str], field: &Path) -> Option<Error> {
    (!allowed.contains(&value)).then(|| Error::not_supported(field, value, allowed))
}

/// What the tests of the rules share, and tests of the checks above.
#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    /// The texts are the expected ones; of an expected one that ends with `...` the rest is left
    /// out.
    #[track_caller]
    pub(crate) fn same<T: ToString>(found: &[T], expected: &[&str]) {
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        let fits = |(text, wanted): (&String, &&str)| match wanted.strip_suffix("...") {
            Some(start) => text.starts_with(start),
            None => text == wanted,
        };
        let all = found.len() == expected.len() && found.iter().zip(expected).all(fits);
        assert!(all, "found {found:#?}\nexpected {expected:#?}");
    }

    /// An object with changes, as a merge patch states them.
    pub(crate) fn with(object: &Value, changes: &Value) -> Value {
        let Value::Object(changes) = changes else { return changes.clone() };
        let mut merged = object.as_object().cloned().unwrap_or_default();
        for (key, change) in changes {
            if change.is_null() {
                merged.remove(key);
            } else {
                let inner = merged.get(key).cloned().unwrap_or_default();
                merged.insert(key.clone(), with(&inner, change));
            }
        }
        Value::Object(merged)
    }

    /// `ValidateImmutableField` of `k8s.io/apimachinery/pkg/api/validation`.
    #[test]
    fn immutable_fields_are_compared_by_meaning() {
        let check = |new: Value, old: Value, expected: &[&str]| {
            same(&immutable(&new, &old, &Path::new("f")), expected);
        };
        check(json!("a"), json!("a"), &[]);
        check(json!([]), Value::Null, &[]);
        check(json!({}), Value::Null, &[]);
        check(json!("a"), json!("b"), &["f: Invalid value: \"a\": field is immutable"]);
        check(json!(1), Value::Null, &["f: Invalid value: 1: field is immutable"]);
    }
}
