//! Validation of numbers, quantities and int-or-string values.

use serde_json::Value;

use super::names;
use crate::field::{Error, ErrorList, Path};
use crate::quantity::Quantity;
use crate::value::{get, int_at};

/// The error text of a negative number, as upstream has it.
pub const NEGATIVE: &str = "must be greater than or equal to 0";

/// Checks that a number, if present, is not negative.
pub fn non_negative(object: &Value, key: &str, path: &Path) -> Option<Error> {
    let value = int_at(object, key).filter(|v| *v < 0)?;
    Some(Error::invalid(&path.child(key), value, NEGATIVE))
}

/// Checks that several numbers of one object, if present, are not negative.
pub fn all_non_negative(object: &Value, keys: &[&str], path: &Path, errors: &mut ErrorList) {
    errors.extend(keys.iter().filter_map(|key| non_negative(object, key, path)));
}

/// Checks that a number, if present, is at least one.
pub fn positive(object: &Value, key: &str, path: &Path) -> Option<Error> {
    let value = int_at(object, key).filter(|v| *v <= 0)?;
    Some(Error::invalid(&path.child(key), value, "must be greater than 0"))
}

/// Parses a quantity; `None` if it is invalid.
pub fn quantity(value: &Value) -> Option<Quantity> {
    Quantity::parse(value.as_str()?).ok()
}

/// Checks that a quantity is not negative.
pub fn non_negative_quantity(value: &Value, path: &Path) -> Option<Error> {
    let amount = quantity(value)?;
    (amount.sign() < 0).then(|| Error::invalid(path, amount.to_string(), NEGATIVE))
}

/// Checks that a quantity is above zero.
pub fn positive_quantity(value: &Value, path: &Path) -> Option<Error> {
    let amount = quantity(value)?;
    (amount.sign() <= 0)
        .then(|| Error::invalid(path, amount.to_string(), "must be greater than zero"))
}

/// Checks that a number or percentage is not negative.
pub fn non_negative_int_or_percent(object: &Value, key: &str, path: &Path) -> ErrorList {
    let field = path.child(key);
    match get(object, key) {
        Value::String(text) => super::each(&field, text.as_str(), names::percent(text)).collect(),
        Value::Number(_) => non_negative(object, key, path).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// Checks that a percentage is at most 100.
pub fn not_more_than_100_percent(object: &Value, key: &str, path: &Path) -> Option<Error> {
    let text = get(object, key).as_str()?;
    let value: i64 = text.strip_suffix('%')?.parse().ok()?;
    (value > 100).then(|| Error::invalid(&path.child(key), text, "must not be greater than 100%"))
}

/// Returns the number of an int-or-string, for a percentage without the sign; zero if absent or
/// invalid.
pub fn int_or_percent_value(value: &Value) -> i64 {
    match value {
        Value::String(text) => {
            // A string without a percent sign may be a number (`IntOrString.IntValue`).
            text.strip_suffix('%').unwrap_or(text).parse().unwrap_or_default()
        }
        other => other.as_i64().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::tests::same;
    use serde_json::json;

    /// `ValidateNonnegativeField` of `k8s.io/apimachinery/pkg/api/validation`;
    /// `ValidateNonnegativeQuantity` and `ValidatePositiveQuantityValue` of
    /// `pkg/apis/core/validation`.
    #[test]
    fn amounts_must_not_be_negative() {
        let path = Path::new("p");
        let number = |value: Value, expected: &[&str]| {
            let found: Vec<Error> =
                non_negative(&json!({ "n": value }), "n", &path).into_iter().collect();
            same(&found, expected);
        };
        number(json!(0), &[]);
        number(Value::Null, &[]);
        number(json!(-1), &["p.n: Invalid value: -1: must be greater than or equal to 0"]);
        let amount = |text: &str, allowed: &[&str], positive: &[&str]| {
            let value = json!(text);
            let found: Vec<Error> = non_negative_quantity(&value, &path).into_iter().collect();
            same(&found, allowed);
            let found: Vec<Error> = positive_quantity(&value, &path).into_iter().collect();
            same(&found, positive);
        };
        amount("1Gi", &[], &[]);
        amount("0", &[], &["p: Invalid value: \"0\": must be greater than zero"]);
        amount(
            "-1500m",
            &["p: Invalid value: \"-1500m\": must be greater than or equal to 0"],
            &["p: Invalid value: \"-1500m\": must be greater than zero"],
        );
    }

    /// `ValidatePositiveIntOrPercent` and `IsNotMoreThan100Percent` of
    /// `pkg/apis/apps/validation`.
    #[test]
    fn percentages_are_numbers_up_to_100() {
        let check = |value: Value, expected: &[&str]| {
            let (object, path) = (json!({ "n": value }), Path::new("p"));
            let mut found = non_negative_int_or_percent(&object, "n", &path);
            found.extend(not_more_than_100_percent(&object, "n", &path));
            same(&found, expected);
        };
        check(json!(0), &[]);
        check(json!(200), &[]);
        check(json!("100%"), &[]);
        check(json!(-1), &["p.n: Invalid value: -1: must be greater than or equal to 0"]);
        check(json!("101%"), &["p.n: Invalid value: \"101%\": must not be greater than 100%"]);
        for text in ["5", "-5%", "5.5%", "%", ""] {
            let error =
                format!("p.n: Invalid value: \"{text}\": a valid percent string must be...");
            check(json!(text), &[&error]);
        }
    }

    /// `getIntOrPercentValue` of `pkg/apis/apps/validation`.
    #[test]
    fn unreadable_amounts_count_as_zero() {
        for (value, expected) in
            [(json!(3), 3), (json!("7%"), 7), (json!("9"), 9), (json!("x"), 0), (Value::Null, 0)]
        {
            assert_eq!(int_or_percent_value(&value), expected, "{value}");
        }
    }
}
