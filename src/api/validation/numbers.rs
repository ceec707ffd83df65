//! Numbers, quantities and int-or-string values.

use serde_json::Value;

use super::names;
use crate::field::{Error, ErrorList, Path};
use crate::quantity::Quantity;
use crate::value::{get, int_at};

/// Upstream's text for a negative number.
pub const NEGATIVE: &str = "must be greater than or equal to 0";

/// The number, when present, is not negative.
pub fn non_negative(object: &Value, key: &str, path: &Path) -> Option<Error> {
    let value = int_at(object, key).filter(|v| *v < 0)?;
    Some(Error::invalid(&path.child(key), value, NEGATIVE))
}

/// Several numbers of one object that must not be negative.
pub fn all_non_negative(object: &Value, keys: &[&str], path: &Path, errors: &mut ErrorList) {
    errors.extend(keys.iter().filter_map(|key| non_negative(object, key, path)));
}

/// The number, when present, is at least one.
pub fn positive(object: &Value, key: &str, path: &Path) -> Option<Error> {
    let value = int_at(object, key).filter(|v| *v <= 0)?;
    Some(Error::invalid(&path.child(key), value, "must be greater than 0"))
}

/// Reads a quantity value.
pub fn quantity(value: &Value) -> Option<Quantity> {
    Quantity::parse(value.as_str()?).ok()
}

/// A quantity that is not negative.
pub fn non_negative_quantity(value: &Value, path: &Path) -> Option<Error> {
    let amount = quantity(value)?;
    (amount.sign() < 0).then(|| Error::invalid(path, amount.to_string(), NEGATIVE))
}

/// A quantity above zero.
pub fn positive_quantity(value: &Value, path: &Path) -> Option<Error> {
    let amount = quantity(value)?;
    (amount.sign() <= 0)
        .then(|| Error::invalid(path, amount.to_string(), "must be greater than zero"))
}

/// A number or percentage that is not negative.
pub fn non_negative_int_or_percent(object: &Value, key: &str, path: &Path) -> ErrorList {
    let field = path.child(key);
    match get(object, key) {
        Value::String(text) => super::each(&field, text.as_str(), names::percent(text)).collect(),
        Value::Number(_) => non_negative(object, key, path).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// A percentage is at most 100.
pub fn not_more_than_100_percent(object: &Value, key: &str, path: &Path) -> Option<Error> {
    let text = get(object, key).as_str()?;
    let value: i64 = text.strip_suffix('%')?.parse().ok()?;
    (value > 100).then(|| Error::invalid(&path.child(key), text, "must not be greater than 100%"))
}

/// The number in an int-or-string, a percentage without its sign; zero when absent or unreadable.
pub fn int_or_percent_value(value: &Value) -> i64 {
    match value {
        Value::String(text) => {
            // What is no percentage may still be a number (`IntOrString.IntValue`).
            text.strip_suffix('%').unwrap_or(text).parse().unwrap_or_default()
        }
        other => other.as_i64().unwrap_or_default(),
    }
}
