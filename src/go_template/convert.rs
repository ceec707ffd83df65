//! Conversions of `github.com/spf13/cast`, and sprig's `strval`.

use crate::budget::Budget;
use crate::error::Failure;
use crate::go::print;
use crate::parse::number::{parse_float, parse_int, to_float};
use crate::value::Value;

/// Go's conversion of a float to `int64`: out of range becomes the smallest.
pub(crate) fn truncate(value: f64) -> i64 {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    if value.is_nan() || !(-LIMIT..LIMIT).contains(&value) {
        return i64::MIN;
    }
    #[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
    let int = value as i64;
    int
}

/// Cuts `.00` off.
fn trim_zero_decimal(text: &str) -> &str {
    let trimmed = text.trim_end_matches('0');
    match trimmed.strip_suffix('.') {
        Some(head) if trimmed.len() < text.len() => head,
        _ => text,
    }
}

/// `cast.ToInt64`: 0 for what is no number.
pub(crate) fn to_int(value: &Value) -> i64 {
    match value {
        Value::Int(number) | Value::Int64(number) => *number,
        Value::Byte(number) => i64::from(*number),
        // Go's conversion wraps.
        Value::Uint64(number) => i64::from_ne_bytes(number.to_ne_bytes()),
        Value::Float(number) => truncate(*number),
        Value::Bool(value) => i64::from(*value),
        Value::String(text) => parse_int(trim_zero_decimal(text)).unwrap_or(0),
        _ => 0,
    }
}

/// `cast.ToFloat64`: 0 for what is no number.
pub(crate) fn to_f64(value: &Value) -> f64 {
    match value {
        Value::Int(number) | Value::Int64(number) => to_float(*number),
        Value::Byte(number) => f64::from(*number),
        Value::Uint64(number) => number.to_string().parse().unwrap_or(0.0),
        Value::Float(number) => *number,
        Value::Bool(value) => f64::from(u8::from(*value)),
        Value::String(text) => parse_float(text).unwrap_or(0.0),
        _ => 0.0,
    }
}

/// sprig's `strval`: the string of a value.
///
/// # Errors
///
/// The text would be larger than the budget.
pub(crate) fn strval(value: &Value, budget: &mut Budget) -> Result<Value, Failure> {
    match value {
        Value::Bytes(bytes) => Ok(Value::from_bytes(bytes.to_vec())),
        value => print::sprint(value, budget),
    }
}

/// [`strval`] as text; bytes that are not UTF-8 are replaced.
///
/// # Errors
///
/// The text would be larger than the budget.
pub(crate) fn text_of(value: &Value, budget: &mut Budget) -> Result<String, Failure> {
    let value = strval(value, budget)?;
    Ok(String::from_utf8_lossy(value.string_bytes().unwrap_or_default()).into_owned())
}

/// sprig's `strslice`: the strings of a list without nil.
///
/// # Errors
///
/// The texts would be larger than the budget.
pub(crate) fn strings_of(value: &Value, budget: &mut Budget) -> Result<Vec<Value>, Failure> {
    match value.items() {
        Some(items) => {
            items.iter().filter(|item| !item.is_nil()).map(|item| strval(item, budget)).collect()
        }
        None if value.is_nil() => Ok(Vec::new()),
        None => Ok(vec![strval(value, budget)?]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_convert_as_in_cast() {
        let ints: [(Value, i64); 9] = [
            (Value::from("42"), 42),
            (Value::from("4.0"), 4),
            (Value::from("4.5"), 0),
            (Value::from("0x10"), 16),
            (Value::from("08"), 0),
            (Value::Float(3.9), 3),
            (Value::Bool(true), 1),
            (Value::Nil, 0),
            (Value::from("x"), 0),
        ];
        for (value, expected) in ints {
            assert_eq!(to_int(&value), expected);
        }
        assert!((to_f64(&Value::from("1.5")) - 1.5).abs() < 1e-9);
    }
}
