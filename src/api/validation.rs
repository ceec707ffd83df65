//! Validation of built-in kinds: pure functions from objects to field errors with upstream's texts
//! and order.

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
pub mod warnings;

use crate::field::{Error, ErrorList, Path};
use serde_json::Value;

/// Upstream's text for a field that may not change.
pub const IMMUTABLE: &str = "field is immutable";

/// An error per text, all about one value.
pub fn each(
    field: &Path,
    value: impl Into<Value>,
    texts: Vec<String>,
) -> impl Iterator<Item = Error> {
    let value = value.into();
    let field = field.clone();
    texts.into_iter().map(move |text| Error::invalid(&field, value.clone(), text))
}

/// The value may not change; semantic equality.
pub fn immutable(new: &Value, old: &Value, field: &Path) -> ErrorList {
    if crate::value::semantic_equal(new, old) {
        Vec::new()
    } else {
        vec![Error::invalid(field, new.clone(), IMMUTABLE)]
    }
}

/// The value may not change; it prints as an internal type (see [`internal`]).
pub fn immutable_as(new: &Value, old: &Value, field: &Path, kind: &'static str) -> ErrorList {
    immutable(new, old, field).into_iter().map(|error| error.printed_as(kind)).collect()
}

/// One of a closed set; `allowed` must be sorted as upstream prints it. Absence is upstream's empty
/// string.
pub fn one_of(value: &str, allowed: &[&str], field: &Path) -> Option<Error> {
    (!allowed.contains(&value)).then(|| Error::not_supported(field, value, allowed))
}
