//! Comparison: Go's `eq` and `lt` of templates, and `reflect.DeepEqual`.

use crate::budget::{Budget, MAX_NESTING};
use crate::error::Failure;
use crate::go::printf;
use crate::value::Value;

#[derive(PartialEq, Eq, Clone, Copy)]
enum Basic {
    Bool,
    Int,
    Uint,
    Float,
    String,
    None,
}

fn basic(value: &Value) -> Basic {
    match value {
        Value::Bool(_) => Basic::Bool,
        Value::Int(_) | Value::Int64(_) | Value::Duration(_) => Basic::Int,
        Value::Byte(_) | Value::Uint64(_) => Basic::Uint,
        Value::Float(_) => Basic::Float,
        Value::String(_) | Value::Binary(_) => Basic::String,
        _ => Basic::None,
    }
}

fn int(value: &Value) -> i64 {
    match value {
        Value::Int(number) | Value::Int64(number) | Value::Duration(number) => *number,
        _ => 0,
    }
}

fn uint(value: &Value) -> u64 {
    match value {
        Value::Byte(number) => u64::from(*number),
        Value::Uint64(number) => *number,
        _ => 0,
    }
}

fn float(value: &Value) -> f64 {
    match value {
        Value::Float(number) => *number,
        _ => 0.0,
    }
}

fn is_nil(value: &Value) -> bool {
    match value {
        Value::List(list) => list.nil,
        value => value.is_nil(),
    }
}

fn incompatible(a: &Value, b: &Value) -> Failure {
    let (a, b) = (a.type_name(), b.type_name());
    Failure::new(format!("incompatible types for comparison: {a} and {b}"))
}

/// Whether the template function `eq` takes two values for equal.
///
/// # Errors
///
/// Go's text when the types cannot be compared.
pub(crate) fn equal(a: &Value, b: &Value, budget: &mut Budget) -> Result<bool, Failure> {
    let (left, right) = (basic(a), basic(b));
    if left != right {
        return match (left, right) {
            (Basic::Int, Basic::Uint) => Ok(u64::try_from(int(a)) == Ok(uint(b))),
            (Basic::Uint, Basic::Int) => Ok(u64::try_from(int(b)) == Ok(uint(a))),
            _ if a.is_nil() || b.is_nil() => Ok(false),
            _ => Err(incompatible(a, b)),
        };
    }
    #[expect(clippy::float_cmp, reason = "Go compares floats exactly")]
    let floats = float(a) == float(b);
    match left {
        Basic::Bool => Ok(a.truth() == b.truth()),
        Basic::Int => Ok(int(a) == int(b)),
        Basic::Uint => Ok(uint(a) == uint(b)),
        Basic::Float => Ok(floats),
        Basic::String => Ok(a.string_bytes() == b.string_bytes()),
        Basic::None => equal_other(a, b, budget),
    }
}

fn equal_other(a: &Value, b: &Value, budget: &mut Budget) -> Result<bool, Failure> {
    if is_nil(a) || is_nil(b) {
        return Ok(is_nil(a) == is_nil(b));
    }
    let mut text = |value: &Value| -> Result<String, Failure> {
        let text = printf::sprintf("%s", std::slice::from_ref(value), budget)?;
        Ok(String::from_utf8_lossy(text.string_bytes().unwrap_or_default()).into_owned())
    };
    let (left, right) = (a.type_name(), b.type_name());
    if a.kind_name() != b.kind_name() {
        let (a, b) = (text(a)?, text(b)?);
        return Err(Failure::new(format!("non-comparable types {a}: {left}, {right}: {b}")));
    }
    match (a, b) {
        (Value::Time(left), Value::Time(right)) => Ok(left.0 == right.0),
        (Value::Object(_), Value::Object(_)) => Ok(deep_equal(a, b, 0)),
        _ => Err(Failure::new(format!("non-comparable type {}: {right}", text(b)?))),
    }
}

/// Whether the template function `lt` holds.
///
/// # Errors
///
/// Go's text when the types have no order.
pub(crate) fn less(a: &Value, b: &Value) -> Result<bool, Failure> {
    let (left, right) = (basic(a), basic(b));
    let bad = || Failure::new("invalid type for comparison");
    if left == Basic::None || right == Basic::None {
        return Err(bad());
    }
    match (left, right) {
        (Basic::Int, Basic::Uint) => Ok(u64::try_from(int(a)).map_or(true, |a| a < uint(b))),
        (Basic::Uint, Basic::Int) => Ok(u64::try_from(int(b)).is_ok_and(|b| uint(a) < b)),
        _ if left != right => Err(incompatible(a, b)),
        (Basic::Int, _) => Ok(int(a) < int(b)),
        (Basic::Uint, _) => Ok(uint(a) < uint(b)),
        (Basic::Float, _) => Ok(float(a) < float(b)),
        (Basic::String, _) => Ok(a.string_bytes() < b.string_bytes()),
        _ => Err(bad()),
    }
}

/// `reflect.DeepEqual`: the types must be the same too.
pub(crate) fn deep_equal(a: &Value, b: &Value, depth: usize) -> bool {
    if depth > MAX_NESTING {
        return false;
    }
    match (a, b) {
        (Value::Nil | Value::Invalid, Value::Nil | Value::Invalid) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Int(a), Value::Int(b))
        | (Value::Int64(a), Value::Int64(b))
        | (Value::Duration(a), Value::Duration(b)) => a == b,
        (Value::Byte(a), Value::Byte(b)) => a == b,
        (Value::Uint64(a), Value::Uint64(b)) => a == b,
        #[expect(clippy::float_cmp, reason = "Go compares floats exactly")]
        (Value::Float(a), Value::Float(b)) => a == b,
        (Value::Bytes(a), Value::Bytes(b)) => a == b,
        (Value::Time(a), Value::Time(b)) => a.0 == b.0,
        (Value::List(a), Value::List(b)) => {
            a.elem == b.elem
                && a.nil == b.nil
                && a.items.len() == b.items.len()
                && a.items.iter().zip(b.items.iter()).all(|(a, b)| deep_equal(a, b, depth + 1))
        }
        (Value::Map(a), Value::Map(b)) => {
            if a.is(b) {
                return true;
            }
            let (left, right) = (a.entries(), b.entries());
            a.class == b.class
                && left.len() == right.len()
                && left.iter().all(|(key, value)| {
                    right.get(key).is_some_and(|other| deep_equal(value, other, depth + 1))
                })
        }
        (Value::Object(a), Value::Object(b)) => {
            a.type_name() == b.type_name() && a.text() == b.text()
        }
        _ => match (a.string_bytes(), b.string_bytes()) {
            (Some(a), Some(b)) => a == b,
            _ => false,
        },
    }
}
