//! Conversions between types, such as `int(x)` and `string(x)`, and Go's format of numbers.

use crate::host::{Host, Kind};
use crate::time;
use crate::value::{Error, Timestamp, Value};

/// Formats a double as Go's `%g`: the shortest digits that round-trip, with an exponent below -4
/// and from a million on.
pub(crate) fn general(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.into();
    }
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&exponent) { format!("{value}") } else { with_exponent(digits, exponent) }
}

fn with_exponent(digits: &str, exponent: i32) -> String {
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// Truncates to an integer; `None` outside of the range, with cel-go's exclusive bounds.
pub(crate) fn double_to_int(value: f64) -> Option<i64> {
    let bound = 9_223_372_036_854_775_808.0;
    (value > -bound && value < bound).then_some(value as i64)
}

pub(crate) fn double_to_uint(value: f64) -> Option<u64> {
    (0.0..18_446_744_073_709_551_616.0).contains(&value).then_some(value as u64)
}

fn unconvertible(value: &Value<'_>, to: &str) -> Error {
    Error::new(format!("type conversion error from '{}' to '{to}'", value.type_name()))
}

pub(crate) fn to_int<'a>(value: &Value<'a>) -> Result<Value<'a>, Error> {
    Ok(Value::Int(match value {
        Value::Int(v) => *v,
        Value::Uint(v) => i64::try_from(*v).map_err(|_| Error::new("integer overflow"))?,
        Value::Double(v) => double_to_int(*v).ok_or_else(|| Error::new("integer overflow"))?,
        Value::String(text) => text.parse().map_err(|_| unconvertible(value, "int"))?,
        Value::Timestamp(at) => at.seconds,
        Value::Duration(nanos) => *nanos,
        other => return Err(unconvertible(other, "int")),
    }))
}

pub(crate) fn to_uint<'a>(value: &Value<'a>) -> Result<Value<'a>, Error> {
    let overflow = || Error::new("unsigned integer overflow");
    Ok(Value::Uint(match value {
        Value::Uint(v) => *v,
        Value::Int(v) => u64::try_from(*v).map_err(|_| overflow())?,
        Value::Double(v) => double_to_uint(*v).ok_or_else(overflow)?,
        Value::String(text) if !text.starts_with('+') => {
            text.parse().map_err(|_| unconvertible(value, "uint"))?
        }
        other => return Err(unconvertible(other, "uint")),
    }))
}

pub(crate) fn to_double<'a>(value: &Value<'a>) -> Result<Value<'a>, Error> {
    Ok(Value::Double(match value {
        Value::Double(v) => *v,
        Value::Int(v) => *v as f64,
        Value::Uint(v) => *v as f64,
        Value::String(text) => {
            let parsed: f64 = text.parse().map_err(|_| unconvertible(value, "double"))?;
            // A number that is too large is an error; an explicit infinity is valid.
            if parsed.is_infinite() && text.chars().any(|c| c.is_ascii_digit()) {
                return Err(unconvertible(value, "double"));
            }
            parsed
        }
        other => return Err(unconvertible(other, "double")),
    }))
}

pub(crate) fn to_bool<'a>(value: &Value<'a>) -> Result<Value<'a>, Error> {
    Ok(Value::Bool(match value {
        Value::Bool(v) => *v,
        Value::String(text) => match &**text {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => true,
            "0" | "f" | "F" | "FALSE" | "false" | "False" => false,
            _ => return Err(unconvertible(value, "bool")),
        },
        other => return Err(unconvertible(other, "bool")),
    }))
}

pub(crate) fn to_bytes<'a>(value: &Value<'a>) -> Result<Value<'a>, Error> {
    match value {
        Value::Bytes(_) => Ok(value.clone()),
        Value::String(text) => Ok(Value::Bytes(text.as_bytes().into())),
        other => Err(unconvertible(other, "bytes")),
    }
}

pub(crate) fn to_string<'a>(value: &Value<'a>) -> Result<Value<'a>, Error> {
    Ok(Value::text(match value {
        Value::String(_) => return Ok(value.clone()),
        Value::Null => "null".to_owned(),
        Value::Bool(v) => v.to_string(),
        Value::Int(v) => v.to_string(),
        Value::Uint(v) => v.to_string(),
        Value::Double(v) => general(*v),
        Value::Bytes(bytes) => std::str::from_utf8(bytes)
            .map_err(|_| Error::new("invalid UTF-8 in bytes, cannot convert to string"))?
            .to_owned(),
        Value::Timestamp(at) => time::shown(at),
        Value::Duration(nanos) => time::seconds_shown(*nanos),
        Value::Type(name) => name.to_string(),
        Value::Host(host @ Host(Kind::Ip(_) | Kind::Cidr(..))) => host.to_string(),
        other => return Err(unconvertible(other, "string")),
    }))
}

pub(crate) fn to_timestamp<'a>(value: &Value<'a>) -> Result<Value<'a>, Error> {
    let overflow = || Error::new("timestamp overflow");
    match value {
        Value::Timestamp(_) => Ok(value.clone()),
        Value::Int(seconds) if time::in_range(*seconds) => {
            Ok(Value::Timestamp(Timestamp { seconds: *seconds, nanos: 0, offset: 0 }))
        }
        Value::Int(_) => Err(overflow()),
        Value::String(text) => {
            let at = time::parse_rfc3339(text)
                .ok_or_else(|| unconvertible(value, "google.protobuf.Timestamp"))?;
            if time::in_range(at.seconds) { Ok(Value::Timestamp(at)) } else { Err(overflow()) }
        }
        other => Err(unconvertible(other, "google.protobuf.Timestamp")),
    }
}

pub(crate) fn to_duration<'a>(value: &Value<'a>) -> Result<Value<'a>, Error> {
    match value {
        Value::Duration(_) => Ok(value.clone()),
        Value::String(text) => time::parse_duration(text)
            .map(Value::Duration)
            .ok_or_else(|| unconvertible(value, "google.protobuf.Duration")),
        other => Err(unconvertible(other, "google.protobuf.Duration")),
    }
}

#[cfg(test)]
mod tests {
    use crate::tests::{check_errors, check_true, check_values};

    /// Rows of CEL's conformance tests, `tests/simple/testdata/conversions.textproto`.
    #[test]
    fn numbers_texts_and_times_convert_to_each_other() {
        check_values(&[
            ("int(-7.9)", "-7"),
            ("int(double(36028797018963969))", "36028797018963968"),
            ("int(timestamp('2004-09-16T23:59:59Z'))", "1095379199"),
            ("int('987')", "987"),
            ("uint(25.5)", "25"),
            ("uint('300')", "300"),
            ("string(-4.5e-3)", "-0.0045"),
            ("string(123.456)", "123.456"),
            (r"string(b'\303\277')", "ÿ"),
            ("string(duration('1000000s'))", "1000000s"),
            ("string(timestamp('2009-02-13T23:31:30Z'))", "2009-02-13T23:31:30Z"),
            ("bool('t')", "true"),
            ("bool('FALSE')", "false"),
        ]);
        check_true(&[
            "double('6.02214e23') == 6.02214e23",
            "double('-84.32e7') == -8.432e8",
            r"bytes('ÿ') == b'\303\277'",
            "type(type(7)) == type(type(7u))",
        ]);
    }

    /// Rows of CEL's conformance tests, `tests/simple/testdata/conversions.textproto`, with the
    /// errors of cel-go's `common/types/err.go`.
    #[test]
    fn conversions_outside_of_the_range_are_errors() {
        check_errors(&[
            ("int(18446744073709551615u)", "integer overflow"),
            ("int(9223372036854775807.0)", "integer overflow"),
            ("int(-9223372036854775808.0)", "integer overflow"),
            ("int(1e99)", "integer overflow"),
            ("uint(-1)", "unsigned integer overflow"),
            ("uint(6.022e23)", "unsigned integer overflow"),
            ("bool('TrUe')", "type conversion error from 'string' to 'bool'"),
            ("int('a')", "type conversion error from 'string' to 'int'"),
            (r"string(b'\000\xff')", "invalid UTF-8 in bytes, cannot convert to string"),
        ]);
    }
}
