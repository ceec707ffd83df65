//! Numbers of sprig.

use crate::convert::{text_of, to_f64, to_int};
use crate::error::Failure;
use crate::function::{Args, Call, Function, fixed, variadic};
use crate::signature::Param::{Any, Float, Int, Str};
use crate::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    fixed("atoi", &[Str], |_, args| Ok(Value::Int(args.text(0).parse().unwrap_or(0)))),
    fixed("int", &[Any], |_, args| Ok(Value::Int(to_int(&args.value(0))))),
    fixed("int64", &[Any], |_, args| Ok(Value::Int64(to_int(&args.value(0))))),
    fixed("float64", &[Any], |_, args| Ok(Value::Float(to_f64(&args.value(0))))),
    fixed("toDecimal", &[Any], |call, args| {
        let text = text_of(&args.value(0), call.budget)?;
        Ok(Value::Int64(i64::from_str_radix(&text, 8).unwrap_or(0)))
    }),
    fixed("add1", &[Any], |_, args| Ok(Value::Int64(to_int(&args.value(0)).wrapping_add(1)))),
    variadic("add", &[Any], |_, args| Ok(fold(0, args, i64::wrapping_add))),
    fixed("sub", &[Any, Any], |_, args| {
        Ok(fold(to_int(&args.value(0)), args.from(1), i64::wrapping_sub))
    }),
    fixed("div", &[Any, Any], |_, args| divide(args, i64::wrapping_div)),
    fixed("mod", &[Any, Any], |_, args| divide(args, i64::wrapping_rem)),
    variadic("mul", &[Any, Any], |_, args| {
        Ok(fold(to_int(&args.value(0)), args.from(1), i64::wrapping_mul))
    }),
    variadic("max", &[Any, Any], |_, args| Ok(extreme(args, i64::max))),
    variadic("biggest", &[Any, Any], |_, args| Ok(extreme(args, i64::max))),
    variadic("min", &[Any, Any], |_, args| Ok(extreme(args, i64::min))),
    variadic("maxf", &[Any, Any], |_, args| Ok(extreme_float(args, f64::max))),
    variadic("minf", &[Any, Any], |_, args| Ok(extreme_float(args, f64::min))),
    fixed("add1f", &[Any], |_, args| {
        Ok(decimals(to_f64(&args.value(0)), &[Value::Int(1)], |a, b| a + b))
    }),
    variadic("addf", &[Any], |_, args| Ok(decimals(0.0, args, |a, b| a + b))),
    variadic("subf", &[Any, Any], |_, args| {
        Ok(decimals(to_f64(&args.value(0)), args.from(1), |a, b| a - b))
    }),
    variadic("divf", &[Any, Any], divf),
    variadic("mulf", &[Any, Any], |_, args| {
        Ok(decimals(to_f64(&args.value(0)), args.from(1), |a, b| a * b))
    }),
    fixed("ceil", &[Any], |_, args| Ok(Value::Float(to_f64(&args.value(0)).ceil()))),
    fixed("floor", &[Any], |_, args| Ok(Value::Float(to_f64(&args.value(0)).floor()))),
    variadic("round", &[Any, Int, Float], |_, args| Ok(round(args))),
    fixed("randInt", &[Int, Int], rand_int),
];

fn fold(start: i64, values: &[Value], op: fn(i64, i64) -> i64) -> Value {
    Value::Int64(values.iter().map(to_int).fold(start, op))
}

fn divide(args: &[Value], op: fn(i64, i64) -> i64) -> Result<Value, Failure> {
    let by = to_int(&args.value(1));
    if by == 0 {
        return Err(Failure::new("runtime error: integer divide by zero"));
    }
    Ok(Value::Int64(op(to_int(&args.value(0)), by)))
}

fn extreme(args: &[Value], pick: fn(i64, i64) -> i64) -> Value {
    Value::Int64(args.iter().map(to_int).reduce(pick).unwrap_or(0))
}

fn extreme_float(args: &[Value], pick: fn(f64, f64) -> f64) -> Value {
    Value::Float(args.iter().map(to_f64).reduce(pick).unwrap_or(0.0))
}

/// The places that keep what a decimal calculation would give.
const PLACES: usize = 15;

/// Sprig calculates with decimals: the result is that of the floats without their last errors.
fn decimals(start: f64, values: &[Value], op: fn(f64, f64) -> f64) -> Value {
    let mut result = start;
    for value in values {
        result = op(result, to_f64(value));
        let clean: f64 = format!("{result:.*e}", PLACES - 1).parse().unwrap_or(result);
        result = clean;
    }
    Value::Float(result)
}

fn divf(_: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    if args.from(1).iter().any(|value| to_f64(value) == 0.0) {
        return Err(Failure::new("decimal division by 0"));
    }
    // Decimals of sprig have 16 places after the point.
    let mut result = to_f64(&args.value(0));
    for value in args.from(1) {
        let by = to_f64(value);
        result = divide_decimals(result, by).unwrap_or(result / by);
    }
    Ok(Value::Float(result))
}

/// The digits of a number as an integer, and the power of ten that they count.
fn decimal(number: f64) -> Option<(i128, i32)> {
    let text = format!("{number:e}");
    let (mantissa, exponent) = text.split_once('e')?;
    let places = mantissa.split_once('.').map_or(0, |(_, part)| part.len());
    let digits: i128 = mantissa.replace('.', "").parse().ok()?;
    let exponent: i32 = exponent.parse().ok()?;
    Some((digits, exponent.checked_sub(i32::try_from(places).ok()?)?))
}

/// A quotient with 16 places, halves away from zero; `None` where 128 bits do not hold it.
fn divide_decimals(a: f64, b: f64) -> Option<f64> {
    let ((a, a_power), (b, b_power)) = (decimal(a)?, decimal(b)?);
    let shift = a_power.checked_sub(b_power)?.checked_add(16)?;
    let power = 10_i128.checked_pow(shift.unsigned_abs())?;
    let (a, b) = if shift < 0 { (a, b.checked_mul(power)?) } else { (a.checked_mul(power)?, b) };
    let (quotient, rest) = (a.checked_div(b)?, a.checked_rem(b)?);
    let up = rest.unsigned_abs().checked_mul(2)? >= b.unsigned_abs();
    let away = if (a < 0) == (b < 0) { 1 } else { -1 };
    let quotient = if up { quotient.checked_add(away)? } else { quotient };
    format!("{quotient}e-16").parse().ok()
}

fn round(args: &[Value]) -> Value {
    let on = args.get(2).map_or(0.5, to_f64);
    let places = i32::try_from(args.int(1)).unwrap_or(i32::MAX);
    let power = 10_f64.powi(places);
    let digit = power * to_f64(&args.value(0));
    let rounded = if digit.fract() >= on { digit.ceil() } else { digit.floor() };
    Value::Float(rounded / power)
}

fn rand_int(_: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let (low, high) = (args.int(0), args.int(1));
    let Ok(span) = u64::try_from(high.wrapping_sub(low)) else {
        return Err(Failure::new("invalid argument to Intn"));
    };
    if span == 0 {
        return Err(Failure::new("invalid argument to Intn"));
    }
    let bytes = crate::random::bytes(8)?;
    let random = bytes.iter().fold(0_u64, |sum, byte| (sum << 8) | u64::from(*byte));
    Ok(Value::Int(low.wrapping_add_unsigned(random % span)))
}
