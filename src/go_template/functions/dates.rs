//! Dates of sprig. The zone `Local` is UTC.

use crate::error::Failure;
use crate::function::{Args, Call, Function, Plain, fixed};
use crate::go::duration::{self, SECOND};
use crate::signature::Param::{Any, Str, Time as TimeParam};
use crate::time::{self, Time};
use crate::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    fixed("now", &[], |_, _| Ok(Value::Time(Time::now()))),
    fixed("date", &[Str, Any], |_, args| Ok(format(&args.text(0), &args.value(1), "Local"))),
    fixed("dateInZone", &[Str, Any, Str], IN_ZONE),
    fixed("date_in_zone", &[Str, Any, Str], IN_ZONE),
    fixed("htmlDate", &[Any], |_, args| Ok(format("2006-01-02", &args.value(0), "Local"))),
    fixed("htmlDateInZone", &[Any, Str], |_, args| {
        Ok(format("2006-01-02", &args.value(0), &args.text(1)))
    }),
    fixed("dateModify", &[Str, TimeParam], MODIFY),
    fixed("date_modify", &[Str, TimeParam], MODIFY),
    fixed("mustDateModify", &[Str, TimeParam], modify),
    fixed("must_date_modify", &[Str, TimeParam], modify),
    fixed("ago", &[Any], |_, args| {
        let nanos = since(&moment(&args.value(0)));
        Ok(Value::from(duration::text(duration::round(nanos, SECOND))))
    }),
    fixed("duration", &[Any], |_, args| {
        let seconds = match args.value(0) {
            Value::String(text) => text.parse().unwrap_or(0),
            Value::Int64(seconds) => seconds,
            _ => 0_i64,
        };
        Ok(Value::from(duration::text(seconds.wrapping_mul(SECOND))))
    }),
    fixed("durationRound", &[Any], |_, args| Ok(Value::from(round(&args.value(0))))),
    fixed("toDate", &[Str, Str], |_, args| {
        let time = time::parse(&args.text(0), &args.text(1)).unwrap_or_else(|_| Time::zero());
        Ok(Value::Time(time))
    }),
    fixed("mustToDate", &[Str, Str], |_, args| {
        time::parse(&args.text(0), &args.text(1))
            .map(Value::Time)
            .map_err(|error| Failure::new(error.to_string()))
    }),
    fixed("unixEpoch", &[TimeParam], |_, args| match args.first() {
        Some(Value::Time(time)) => Ok(Value::from(time.unix_seconds().to_string())),
        _ => Ok(Value::from("")),
    }),
];

const IN_ZONE: Plain = |_, args| Ok(format(&args.text(0), &args.value(1), &args.text(2)));

const MODIFY: Plain = |call, args| match modify(call, args) {
    Ok(value) => Ok(value),
    Err(_) => Ok(args.value(1)),
};

/// A time, seconds since 1970, or now.
fn moment(value: &Value) -> Time {
    match value {
        Value::Time(time) => time.clone(),
        Value::Int(seconds) | Value::Int64(seconds) => Time::unix(*seconds),
        _ => Time::now(),
    }
}

fn format(layout: &str, value: &Value, zone: &str) -> Value {
    Value::from(moment(value).in_zone(zone).format(layout))
}

fn since(time: &Time) -> i64 {
    let nanos = Time::now().0.timestamp().as_nanosecond() - time.0.timestamp().as_nanosecond();
    i64::try_from(nanos).unwrap_or(i64::MAX)
}

fn modify(_: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let nanos = duration::parse(&args.text(0)).map_err(|error| Failure::new(error.to_string()))?;
    match args.get(1) {
        Some(Value::Time(time)) => time
            .add(nanos)
            .map(Value::Time)
            .ok_or_else(|| Failure::new("time: the date is out of range")),
        _ => Ok(args.value(1)),
    }
}

/// The largest unit of a duration.
fn round(value: &Value) -> String {
    let nanos = match value {
        Value::String(text) => duration::parse(text).unwrap_or(0),
        Value::Int64(nanos) => *nanos,
        Value::Time(time) => since(time),
        _ => 0,
    };
    let size = nanos.unsigned_abs();
    let second = SECOND.unsigned_abs();
    let hour = 3600 * second;
    let units = [
        (hour * 24 * 365, "y"),
        (hour * 24 * 30, "mo"),
        (hour * 24, "d"),
        (hour, "h"),
        (60 * second, "m"),
        (second, "s"),
    ];
    let unit = units.into_iter().find(|(length, _)| size > *length);
    unit.map_or_else(|| "0s".into(), |(length, name)| format!("{}{name}", size / length))
}
