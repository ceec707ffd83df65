//! Durations of Helm.

use crate::error::Failure;
use crate::function::{Args, Function, fixed};
use crate::go::duration::{self, SECOND};
use crate::go::float;
use crate::go::quote::quote;
use crate::parse::number::{parse_float, to_float};
use crate::signature::Param::Any;
use crate::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    fixed("mustToDuration", &[Any], |_, args| read(&args.value(0)).map(Value::Duration)),
    fixed("durationSeconds", &[Any], |_, args| Ok(parts(args, 1))),
    fixed("durationMinutes", &[Any], |_, args| Ok(parts(args, 60))),
    fixed("durationHours", &[Any], |_, args| Ok(parts(args, 3600))),
    fixed("durationDays", &[Any], |_, args| Ok(parts(args, 86_400))),
    fixed("durationWeeks", &[Any], |_, args| Ok(parts(args, 604_800))),
    fixed("durationMilliseconds", &[Any], |_, args| Ok(whole(args, 1_000_000))),
    fixed("durationMicroseconds", &[Any], |_, args| Ok(whole(args, 1_000))),
    fixed("durationNanoseconds", &[Any], |_, args| Ok(whole(args, 1))),
    fixed("durationRoundTo", &[Any, Any], |_, args| Ok(to_multiple(args, duration::round))),
    fixed("durationTruncateTo", &[Any, Any], |_, args| Ok(to_multiple(args, duration::truncate))),
];

fn from_seconds(seconds: f64) -> Result<i64, Failure> {
    let text = float::display(seconds);
    if !seconds.is_finite() {
        return Err(Failure::new(format!("invalid duration seconds: {text}")));
    }
    let nanos = seconds * 1e9;
    if nanos.abs() > 9.223_372_036_854_775e18 {
        return Err(Failure::new(format!("duration seconds overflow: {text}")));
    }
    Ok(crate::convert::truncate(nanos))
}

/// A duration in nanoseconds out of text or seconds.
fn read(value: &Value) -> Result<i64, Failure> {
    match value {
        Value::Duration(nanos) => Ok(*nanos),
        Value::Nil | Value::Invalid => Err(Failure::new("invalid duration")),
        Value::String(text) => {
            let trimmed = text.trim();
            if trimmed.is_empty() {
                return Err(Failure::new("empty duration"));
            }
            if let Ok(nanos) = duration::parse(trimmed) {
                return Ok(nanos);
            }
            match parse_float(trimmed) {
                Some(seconds) => from_seconds(seconds),
                None => Err(Failure::new(format!("could not parse duration {}", quote(text)))),
            }
        }
        Value::Int(seconds) | Value::Int64(seconds) => seconds
            .checked_mul(SECOND)
            .ok_or_else(|| Failure::new(format!("duration seconds overflow: {seconds}"))),
        Value::Float(seconds) => from_seconds(*seconds),
        value => Err(Failure::new(format!("unsupported duration type {}", value.type_name()))),
    }
}

fn parts(args: &[Value], seconds: i64) -> Value {
    let nanos = read(&args.value(0)).unwrap_or(0);
    let unit = match seconds {
        1 => SECOND,
        60 => 60 * SECOND,
        _ => 3600 * SECOND,
    };
    // As Go: whole units and a fraction, then days and weeks out of hours.
    let value = to_float(nanos / unit) + to_float(nanos % unit) / to_float(unit);
    Value::Float(match seconds {
        86_400 => value / 24.0,
        604_800 => value / 24.0 / 7.0,
        _ => value,
    })
}

fn whole(args: &[Value], unit: i64) -> Value {
    Value::Int64(read(&args.value(0)).unwrap_or(0) / unit)
}

fn to_multiple(args: &[Value], round: fn(i64, i64) -> i64) -> Value {
    let Ok(nanos) = read(&args.value(0)) else {
        return Value::Duration(0);
    };
    match read(&args.value(1)) {
        Ok(multiple) => Value::Duration(round(nanos, multiple)),
        Err(_) => Value::Duration(nanos),
    }
}
