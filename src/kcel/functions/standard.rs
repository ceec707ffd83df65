//! The standard functions and optionals; dispatches other functions to the libraries.

use std::cmp::Ordering;
use std::sync::Arc;

use super::{exactly, format, hosts, int, lists, pattern_of, strings, text};
use crate::convert;
use crate::node::Call;
use crate::ops;
use crate::time;
use crate::value::{Error, Map, Value};

type Result<T> = std::result::Result<T, Error>;

/// Evaluates a function; `None` if neither this file nor the libraries have it.
pub(super) fn call<'a>(call: &Call, args: Vec<Value<'a>>) -> Result<Option<Value<'a>>> {
    let name = call.function.as_str();
    if name == "_+_" {
        return add(args).map(Some);
    }
    if name == "cel.@mapInsert" {
        return insert(args).map(Some);
    }
    if let Some(result) = operator(name, &args) {
        return result.map(Some);
    }
    if let Some(result) = conversion(name, &args) {
        return result.map(Some);
    }
    if let Some(result) = general(call, &args) {
        return result.map(Some);
    }
    if let Some(result) = strings::call(call, &args) {
        return result.map(Some);
    }
    if let Some(result) = hosts::call(call, &args) {
        return result.map(Some);
    }
    lists::call(call, &args).transpose()
}

fn add<'a>(args: Vec<Value<'a>>) -> Result<Value<'a>> {
    let [one, other] = <[Value<'a>; 2]>::try_from(args).map_err(|_| Error::no_overload())?;
    let adds = matches!(
        one,
        Value::Int(_)
            | Value::Uint(_)
            | Value::Double(_)
            | Value::String(_)
            | Value::Bytes(_)
            | Value::Timestamp(_)
            | Value::Duration(_)
            | Value::List(_)
    );
    if adds { ops::add(one, other) } else { Err(untaken("_+_")) }
}

fn untaken(name: &str) -> Error {
    Error::new(format!("no such overload: {name}"))
}

fn insert<'a>(args: Vec<Value<'a>>) -> Result<Value<'a>> {
    let mut args = args.into_iter();
    let (Some(Value::Map(map)), Some(second)) = (args.next(), args.next()) else {
        return Err(Error::no_overload());
    };
    if let Some(value) = args.next() {
        return ops::insert(map, &second, value).map(Value::Map);
    }
    let Value::Map(more) = second else { return Err(Error::no_overload()) };
    let mut map: Map<'a> = map;
    for key in more.keys() {
        let value = more.find(&key)?.ok_or_else(Error::no_overload)?;
        map = ops::insert(map, &key, value)?;
    }
    Ok(Value::Map(map))
}

fn operator<'a>(name: &str, args: &[Value<'a>]) -> Option<Result<Value<'a>>> {
    use Value::{Bool, Double, Duration, Int, Timestamp, Uint};
    let result = match (name, args) {
        ("!_", [Bool(value)]) => Ok(Bool(!value)),
        ("!_", [_]) => Err(Error::no_overload()),
        ("-_", [value @ (Int(_) | Double(_) | Duration(_))]) => ops::negate(value),
        ("-_", [Bool(_)]) => Err(Error::no_overload()),
        ("_-_", [one @ (Int(_) | Uint(_) | Double(_) | Duration(_) | Timestamp(_)), other]) => {
            ops::subtract(one, other)
        }
        ("_*_", [one @ (Int(_) | Uint(_) | Double(_)), other]) => ops::multiply(one, other),
        ("_/_", [one @ (Int(_) | Uint(_) | Double(_)), other]) => ops::divide(one, other),
        ("_%_", [one @ (Int(_) | Uint(_)), other]) => ops::modulo(one, other),
        ("_<_" | "_<=_" | "_>_" | "_>=_", [one, other]) if ops::is_comparable(one) => {
            ops::order(one, other).map(|order| {
                Bool(match name {
                    "_<_" => order == Ordering::Less,
                    "_<=_" => order != Ordering::Greater,
                    "_>_" => order == Ordering::Greater,
                    _ => order != Ordering::Less,
                })
            })
        }
        ("@in", [value, of]) => ops::is_in(value, of).map(Bool),
        ("@not_strictly_false", [Bool(value)]) => Ok(Bool(*value)),
        ("@not_strictly_false", [_]) => Ok(Bool(true)),
        ("-_" | "_-_" | "_*_" | "_/_" | "_%_" | "_<_" | "_<=_" | "_>_" | "_>=_", _) => {
            Err(untaken(name))
        }
        _ => return None,
    };
    Some(result)
}

fn conversion<'a>(name: &str, args: &[Value<'a>]) -> Option<Result<Value<'a>>> {
    let [value] = args else { return None };
    Some(match name {
        "bool" => convert::to_bool(value),
        "bytes" => convert::to_bytes(value),
        "double" => convert::to_double(value),
        "duration" => convert::to_duration(value),
        "dyn" => Ok(value.clone()),
        "int" => convert::to_int(value),
        "string" => convert::to_string(value),
        "timestamp" => convert::to_timestamp(value),
        "type" => Ok(Value::Type(value.type_name().into())),
        "uint" => convert::to_uint(value),
        _ => return None,
    })
}

fn general<'a>(call: &Call, args: &[Value<'a>]) -> Option<Result<Value<'a>>> {
    let name = call.function.as_str();
    Some(match name {
        "size" => match args {
            [value @ (Value::String(_) | Value::Bytes(_) | Value::List(_) | Value::Map(_))] => {
                Ok(Value::Int(i64::try_from(value.size()).unwrap_or(i64::MAX)))
            }
            _ => Err(untaken(name)),
        },
        "matches" => match args {
            [Value::String(subject), pattern] => {
                pattern_of(call, pattern).map(|regex| Value::Bool(regex.is_match(subject)))
            }
            _ => Err(untaken(name)),
        },
        "contains" | "startsWith" | "endsWith" => contained(name, args),
        "getFullYear" | "getMonth" | "getDate" | "getDayOfMonth" | "getDayOfYear"
        | "getDayOfWeek" | "getHours" | "getMinutes" | "getSeconds" | "getMilliseconds" => {
            part(name, args)
        }
        "format" => match args {
            [Value::String(pattern), Value::List(values)] => format::format(pattern, values),
            _ => Err(Error::no_overload()),
        },
        "optional.of"
        | "optional.ofNonZeroValue"
        | "optional.none"
        | "value"
        | "hasValue"
        | "optional.unwrap"
        | "unwrapOpt" => optional(name, args),
        _ => return None,
    })
}

fn contained<'a>(name: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    let [whole, piece] = exactly::<2>(args)?;
    let (whole, piece) = (text(whole)?, text(piece)?);
    Ok(Value::Bool(match name {
        "contains" => whole.contains(piece),
        "startsWith" => whole.starts_with(piece),
        _ => whole.ends_with(piece),
    }))
}

fn part<'a>(name: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    let found = match args {
        [Value::Timestamp(at)] => time::part(name, at, 0),
        [Value::Timestamp(at), zone] => {
            let offset = time::zone_offset(text(zone)?, at)?;
            time::part(name, at, offset)
        }
        [Value::Duration(nanos)] => match name {
            "getHours" => Some(nanos / (3600 * time::SECOND_NANOS)),
            "getMinutes" => Some(nanos / (60 * time::SECOND_NANOS)),
            "getSeconds" => Some(nanos / time::SECOND_NANOS),
            "getMilliseconds" => Some(nanos / 1_000_000),
            _ => None,
        },
        _ => None,
    };
    found.map(Value::Int).ok_or_else(Error::no_overload)
}

/// Whether a value is the zero value of its type.
fn is_zero(value: &Value<'_>) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Int(value) | Value::Duration(value) => *value == 0,
        Value::Uint(value) => *value == 0,
        Value::Double(value) => *value == 0.0,
        Value::String(value) => value.is_empty(),
        Value::Bytes(value) => value.is_empty(),
        // Go's zero time is January 1 of year 1.
        Value::Timestamp(at) => at.seconds == -62_135_596_800 && at.nanos == 0,
        Value::List(list) => list.is_empty(),
        Value::Map(map) => map.is_empty(),
        Value::Object(object) => object.fields.is_empty(),
        _ => false,
    }
}

fn optional<'a>(name: &str, args: &[Value<'a>]) -> Result<Value<'a>> {
    match (name, args) {
        ("optional.none", []) => Ok(Value::Optional(None)),
        ("optional.of", [value]) => Ok(value.clone().some()),
        ("optional.ofNonZeroValue", [value]) if is_zero(value) => Ok(Value::Optional(None)),
        ("optional.ofNonZeroValue", [value]) => Ok(value.clone().some()),
        ("hasValue", [Value::Optional(inner)]) => Ok(Value::Bool(inner.is_some())),
        ("value", [Value::Optional(Some(inner))]) => Ok(Arc::unwrap_or_clone(inner.clone())),
        ("value", [Value::Optional(None)]) => Err(Error::new("optional.none() dereference")),
        ("optional.unwrap" | "unwrapOpt", [Value::List(list)]) => {
            let mut out = Vec::new();
            for item in list.iter() {
                match item? {
                    Value::Optional(inner) => out.extend(inner.map(Arc::unwrap_or_clone)),
                    other => return Err(Error::new(format!("value {other} is not optional"))),
                }
            }
            Ok(Value::list(out))
        }
        _ => Err(Error::no_overload()),
    }
}

/// Converts a non-negative whole number.
pub(super) fn count(value: &Value<'_>) -> Result<Option<usize>> {
    Ok(usize::try_from(int(value)?).ok())
}

#[cfg(test)]
mod tests {
    use crate::tests::{check_errors, check_true, check_values};

    /// Rows of CEL's conformance tests, `tests/simple/testdata/string.textproto`.
    #[test]
    fn strings_are_searched_and_measured_in_code_points() {
        check_values(&[
            ("size('ÿ')", "1"),
            ("size('πέντε')", "5"),
            ("size(b'abc')", "3"),
            ("size({1: 'one', 2: 'two', 3: 'three'})", "3"),
            ("''.startsWith('foo')", "false"),
            ("'завтра'.startsWith('за')", "true"),
            ("'forté'.endsWith('té')", "true"),
            ("'abababc'.contains('ababc')", "true"),
            ("'hello'.contains('ol')", "false"),
            ("''.contains('')", "true"),
            ("'¢' + 'ÿ' + 'Ȁ'", "¢ÿȀ"),
        ]);
    }

    /// Rows of CEL's conformance tests, `tests/simple/testdata/string.textproto`.
    #[test]
    fn a_pattern_matches_a_part_of_the_string() {
        check_values(&[
            ("'hubba'.matches('ubb')", "true"),
            ("''.matches('foo|bar')", "false"),
            ("'cows'.matches('')", "true"),
            ("'grey'.matches('gr(a|e)y')", "true"),
            ("'banana'.matches('ba(na)*')", "true"),
            ("'mañana'.matches('a+ñ+a+')", "true"),
            ("'🐱😀😀'.matches('(a|😀){2}')", "true"),
        ]);
    }

    /// Rows of CEL's conformance tests, `tests/simple/testdata/lists.textproto`.
    #[test]
    fn membership_compares_numbers_by_value() {
        check_values(&[
            ("7 in []", "false"),
            ("'alpha' in ['alpha', 'beta', 'gamma']", "true"),
            ("dyn(3.0) in [5, 4, 3, 2, 1]", "true"),
            ("dyn(3u) in [5.0, 4.0, 3.0, 2.0, 1.0]", "true"),
            ("'hawaiian' in ['meat', 'veggie', 'margarita', 'cheese']", "false"),
            ("[0, 1, 2] + [3, 4, 5] == [0, 1, 2, 3, 4, 5]", "true"),
        ]);
    }

    /// Rows of CEL's conformance tests, `tests/simple/testdata/optionals.textproto` and
    /// `timestamps.textproto`.
    #[test]
    fn zero_values_are_no_optional_values_and_durations_have_whole_parts() {
        check_true(&[
            "optional.of(null).hasValue()",
            "!optional.ofNonZeroValue(null).hasValue()",
            "!optional.ofNonZeroValue(0.0).hasValue()",
            "!optional.ofNonZeroValue('').hasValue()",
            "!optional.ofNonZeroValue({}).hasValue()",
            "optional.ofNonZeroValue(42).or(optional.of(20)).value() == 42",
            "duration('10000s').getHours() == 2",
            "duration('3730s').getMinutes() == 62",
            "duration('3730s').getSeconds() == 3730",
        ]);
        check_errors(&[("optional.none().value()", "optional.none() dereference")]);
    }
}
