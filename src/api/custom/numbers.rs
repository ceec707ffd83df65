//! Limits of numbers as kube-openapi checks them: integers are compared as integers when the limit
//! is an integer as well, all other numbers as floats.

use serde_json::Number;

use super::formats::What;
use super::node::{Checks, Type};
use crate::field::go_float;

/// The error of a number: kube-openapi's text without its path. The variants differ in whether the
/// error shows the value.
pub(super) enum Wrong {
    /// `{path} in body {text}`, about the value.
    Value(String),
    /// The value or a limit does not fit the type; the text lacks only the path at its end.
    Range(String),
    /// `factor MultipleOf declared for {path} must be positive: {factor}`, about the factor.
    Factor(String, Number),
}

/// A JSON number in Go's representation.
#[derive(Clone, Copy)]
pub(super) enum Num {
    Int(i64),
    Float(f64),
}

impl Num {
    pub(super) fn of(number: &Number) -> Self {
        match number.as_i64() {
            Some(int) => Self::Int(int),
            None => Self::Float(number.as_f64().unwrap_or(f64::NAN)),
        }
    }

    fn float(self) -> f64 {
        match self {
            Self::Int(int) => int as f64,
            Self::Float(float) => float,
        }
    }
}

/// Whether a float is an integer that JSON can represent, within rounding, as in
/// `swag.IsFloat64AJSONInteger`.
pub(super) fn is_integer(float: f64) -> bool {
    const MOST: f64 = 9_007_199_254_740_991.0;
    if !float.is_finite() || float.abs() > MOST {
        return false;
    }
    if float.fract() == 0.0 {
        return true;
    }
    // Go compares the float with its conversion to an unsigned integer.
    let (whole, rest) = (float.trunc(), float.fract().abs());
    float > 0.0 && whole > 0.0 && rest / (float + whole) < 1e-9
}

/// The `int64` that is equal to a float, if there is one.
fn as_int(float: f64) -> Option<i64> {
    let fits = float.fract() == 0.0
        && (-9.223_372_036_854_776e18..9.223_372_036_854_776e18).contains(&float);
    #[allow(clippy::cast_possible_truncation, reason = "whole and within bounds")]
    fits.then_some(float as i64)
}

/// The start of the error text for a value or limit that does not fit the type and format; `None`
/// when it fits.
fn misfit(num: Num, kind: Option<Type>, format: Option<What>) -> Option<String> {
    let bad = match kind {
        Some(Type::Integer) => {
            let int = match num {
                Num::Int(int) => Some(int),
                Num::Float(float) => as_int(float),
            };
            match format {
                Some(What::Int32) => int.is_none_or(|int| i32::try_from(int).is_err()),
                _ => int.is_none(),
            }
        }
        _ => matches!(format, Some(What::Float)) && num.float().abs() >= 3.402_823_567_797_336_6e38,
    };
    let name = kind.map_or("", Type::name);
    bad.then(|| match format {
        Some(What::Int32) => format!("value must be of type {name} with format int32 in "),
        Some(What::Int64) => format!("value must be of type {name} with format int64 in "),
        Some(What::Float) => format!("value must be of type {name} with format float in "),
        Some(What::Double) => format!("value must be of type {name} with format double in "),
        _ => format!("value must be of type {name} (default format) in "),
    })
}

/// A value and a limit as they are compared: as integers when both are integers and the limit fits
/// the type, otherwise as floats.
enum Bound {
    Ints(i64, i64),
    Floats(f64, f64),
}

fn bound(num: Num, limit: f64, fits: bool) -> Bound {
    match num {
        // Go truncates the fraction; a limit outside the range of int64 becomes the nearest int64.
        #[allow(clippy::cast_possible_truncation, reason = "Go cuts the bound in the same way")]
        Num::Int(int) if fits => Bound::Ints(int, limit as i64),
        num => Bound::Floats(num.float(), limit),
    }
}

/// All errors of a number, in upstream's order: range, multiple, minimum, maximum.
pub(super) fn check(num: Num, kind: Option<Type>, checks: &Checks, found: &mut Vec<Wrong>) {
    let format = checks.format.as_ref().map(|format| format.what);
    let kind = kind.filter(|kind| matches!(kind, Type::Integer | Type::Number));
    found.extend(misfit(num, kind, format).map(|text| Wrong::Range(format!("Checked {text}"))));
    let fit = |limit: f64, name: &str, found: &mut Vec<Wrong>| {
        let text = misfit(Num::Float(limit), kind, format);
        let fits = text.is_none();
        found.extend(text.map(|text| Wrong::Range(format!("{name} {text}"))));
        fits
    };
    if let Some(factor) = checks.multiple_of {
        let fits = fit(factor, "MultipleOf", found);
        found.extend(multiple(num, factor, fits));
    }
    if let Some(limit) = checks.minimum {
        let fits = fit(limit, "Minimum boundary", found);
        let exclusive = checks.exclusive_minimum;
        let (low, shown) = match bound(num, limit, fits) {
            Bound::Ints(a, b) => (if exclusive { a <= b } else { a < b }, b.to_string()),
            Bound::Floats(a, b) => (if exclusive { a <= b } else { a < b }, go_float(b)),
        };
        let than = if exclusive { "greater than" } else { "greater than or equal to" };
        found.extend(low.then(|| Wrong::Value(format!("should be {than} {shown}"))));
    }
    if let Some(limit) = checks.maximum {
        let fits = fit(limit, "Maximum boundary", found);
        let exclusive = checks.exclusive_maximum;
        let (high, shown) = match bound(num, limit, fits) {
            Bound::Ints(a, b) => (if exclusive { a >= b } else { a > b }, b.to_string()),
            Bound::Floats(a, b) => (if exclusive { a >= b } else { a > b }, go_float(b)),
        };
        let than = if exclusive { "less than" } else { "less than or equal to" };
        found.extend(high.then(|| Wrong::Value(format!("should be {than} {shown}"))));
    }
}

fn multiple(num: Num, factor: f64, fits: bool) -> Option<Wrong> {
    let not = |shown: &str| Wrong::Value(format!("should be a multiple of {shown}"));
    match bound(num, factor, fits) {
        Bound::Ints(_, factor) if factor <= 0 => {
            Some(Wrong::Factor(factor.to_string(), Number::from(factor)))
        }
        Bound::Ints(value, factor) => {
            (value.checked_rem(factor) != Some(0)).then(|| not(&factor.to_string()))
        }
        Bound::Floats(_, factor) if factor <= 0.0 => {
            Some(Wrong::Factor(go_float(factor), Number::from_f64(factor)?))
        }
        Bound::Floats(value, factor) => {
            let times = if factor < 1.0 { 1.0 / factor * value } else { value / factor };
            (!is_integer(times)).then(|| not(&go_float(factor)))
        }
    }
}
