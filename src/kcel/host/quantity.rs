//! Quantities such as `1.5Gi`: the part of upstream's `resource.Quantity` that is visible to
//! expressions.

const FORMAT: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
const NUMERIC: &str = "unable to parse numeric part of quantity";
const SUFFIX: &str = "unable to parse quantity's suffix";
/// Number of digits of upstream's fast representation.
const DIGITS_MAX: i64 = 18;

/// A quantity. Upstream represents small ones as an integer with a power of ten, and all others as
/// a decimal, which is never an integer for expressions.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Quantity {
    /// An integer times ten to the power of a scale.
    Small(i64, i32),
    /// Billionths.
    Decimal(i128),
}

fn power(scale: u32) -> i128 {
    10i128.checked_pow(scale).unwrap_or(i128::MAX)
}

impl Quantity {
    pub(crate) fn parse(text: &str) -> Result<Quantity, &'static str> {
        if text.is_empty() {
            return Err(FORMAT);
        }
        let (negative, rest) = match text.as_bytes() {
            [b'-', ..] => (true, text.get(1..).unwrap_or_default()),
            [b'+', ..] => (false, text.get(1..).unwrap_or_default()),
            _ => (false, text),
        };
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let rest = rest.trim_start_matches('0');
        let (whole, rest) = rest.split_at(digits(rest));
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(after) => after.split_at(digits(after)),
            None => ("", rest),
        };
        let letters = suffix.bytes().take_while(|c| b"eEinumkKMGTP".contains(c)).count();
        let tail = suffix.get(letters..).unwrap_or_default();
        let tail = tail.strip_prefix(['-', '+']).unwrap_or(tail);
        if !tail.bytes().all(|c| c.is_ascii_digit()) {
            return Err(FORMAT);
        }
        let (binary, exponent) = exponent(suffix).ok_or(SUFFIX)?;
        // A sign or a dot alone is invalid; stripped zeros are valid.
        if whole.is_empty() && fraction.is_empty() && !text.contains('0') {
            return Err(if text.bytes().any(|c| c.is_ascii_digit()) { FORMAT } else { NUMERIC });
        }
        let whole = if whole.is_empty() { "0" } else { whole };
        build(negative, whole, fraction, binary, exponent)
    }

    /// Returns the value in billionths, saturated.
    pub(crate) fn nanos(&self) -> i128 {
        match self {
            Quantity::Small(value, scale) => {
                let shift = u32::try_from(scale + 9).unwrap_or(0);
                i128::from(*value).saturating_mul(power(shift))
            }
            Quantity::Decimal(nanos) => *nanos,
        }
    }

    /// Returns the value as an integer, if upstream's representation holds one.
    pub(crate) fn integer(&self) -> Option<i64> {
        match self {
            Quantity::Small(value, 0) => Some(*value),
            Quantity::Small(value, scale) => {
                let by = i64::try_from(power(u32::try_from(*scale).ok()?)).ok()?;
                value.checked_mul(by)
            }
            Quantity::Decimal(_) => None,
        }
    }

    pub(crate) fn approximate(&self) -> f64 {
        match self {
            Quantity::Small(value, 0) => *value as f64,
            Quantity::Small(value, scale) => *value as f64 * 10f64.powi(*scale),
            Quantity::Decimal(nanos) => *nanos as f64 * 1e-9,
        }
    }

    /// Returns the sum, or with `minus` the difference.
    pub(crate) fn plus(self, other: Quantity, minus: bool) -> Quantity {
        let decimal = |a: Quantity, b: Quantity| {
            let b = if minus { -b.nanos() } else { b.nanos() };
            Quantity::Decimal(a.nanos().saturating_add(b))
        };
        let (Quantity::Small(a, scale), Quantity::Small(b, other_scale)) = (self, other) else {
            return decimal(self, other);
        };
        let Some(b) = (if minus { b.checked_neg() } else { Some(b) }) else {
            return decimal(self, other);
        };
        if b == 0 {
            return self;
        }
        if a == 0 {
            return Quantity::Small(b, other_scale);
        }
        let low = scale.min(other_scale);
        let shifted = |value: i64, scale: i32| {
            let by = power(u32::try_from(scale - low).ok()?);
            i64::try_from(i128::from(value).checked_mul(by)?).ok()
        };
        match shifted(a, scale).zip(shifted(b, other_scale)).and_then(|(a, b)| a.checked_add(b)) {
            Some(sum) => Quantity::Small(sum, low),
            None => decimal(self, other),
        }
    }
}

/// Returns whether a suffix is a power of two, and the exponent.
fn exponent(suffix: &str) -> Option<(bool, i32)> {
    Some(match suffix {
        "" => (false, 0),
        "n" => (false, -9),
        "u" => (false, -6),
        "m" => (false, -3),
        "k" => (false, 3),
        "M" => (false, 6),
        "G" => (false, 9),
        "T" => (false, 12),
        "P" => (false, 15),
        "E" => (false, 18),
        "Ki" => (true, 10),
        "Mi" => (true, 20),
        "Gi" => (true, 30),
        "Ti" => (true, 40),
        "Pi" => (true, 50),
        "Ei" => (true, 60),
        other => {
            let number = other.strip_prefix(['e', 'E'])?;
            let exponent: i32 = number.parse().ok()?;
            // Larger exponents yield zero or the largest quantity anyway.
            (false, exponent.clamp(-40, 40))
        }
    })
}

fn build(
    negative: bool,
    whole: &str,
    fraction: &str,
    binary: bool,
    exponent: i32,
) -> Result<Quantity, &'static str> {
    let count = |text: &str| i64::try_from(text.len()).unwrap_or(i64::MAX);
    let signed = |value: i64| if negative { -value } else { value };
    if binary && fraction.is_empty() {
        let precision = 15 - count(whole) - i64::from(exponent) * 3 / 10 - 1;
        let value = whole.parse::<i64>().ok();
        let value = value.and_then(|value| value.checked_mul(1i64 << exponent));
        if let (true, Some(value)) = (precision >= 0, value) {
            return Ok(Quantity::Small(signed(value), 0));
        }
    }
    if !binary {
        let places = i32::try_from(fraction.len()).unwrap_or(i32::MAX);
        let scale = exponent.saturating_sub(places);
        if count(whole) + count(fraction) <= DIGITS_MAX && scale >= -9 {
            let value = format!("{whole}{fraction}").parse::<i64>().map_err(|_| NUMERIC)?;
            return Ok(Quantity::Small(signed(value), scale));
        }
    }
    let nanos = decimal(whole, fraction, binary, exponent);
    // Binary amounts stop at the largest int64.
    let nanos = if binary { nanos.min(i128::from(i64::MAX) * power(9)) } else { nanos };
    Ok(Quantity::Decimal(if negative { -nanos } else { nanos }))
}

/// Parses a decimal number to billionths, rounded up.
fn decimal(whole: &str, fraction: &str, binary: bool, exponent: i32) -> i128 {
    let digits = || whole.bytes().chain(fraction.bytes()).map(|c| i128::from(c - b'0'));
    let unscaled =
        digits().try_fold(0i128, |sum, d| sum.checked_mul(10)?.checked_add(d)).unwrap_or(i128::MAX);
    let mut shift = 9 - i32::try_from(fraction.len()).unwrap_or(i32::MAX);
    let mut value = unscaled;
    if binary {
        value = value.saturating_mul(1i128 << exponent);
    } else {
        shift = shift.saturating_add(exponent);
    }
    match u32::try_from(shift) {
        Ok(shift) => value.saturating_mul(power(shift)),
        Err(_) => {
            let by = power(shift.unsigned_abs());
            value / by + i128::from(value % by != 0)
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::tests::{check_errors, check_true, check_values};

    /// Rows of `pkg/cel/library/quantity_test.go` in k8s.io/apiserver.
    #[test]
    fn quantities_have_one_decimal_or_binary_suffix() {
        check_values(&[
            ("isQuantity('20')", "true"),
            ("isQuantity('20M')", "true"),
            ("isQuantity('20Mi')", "true"),
            ("isQuantity('20Mo')", "false"),
            ("isQuantity('10Mm')", "false"),
        ]);
        check_errors(&[
            ("quantity('10Mo')", "quantities must match the regular expression"),
            ("quantity('10Mm')", "unable to parse quantity's suffix"),
            ("isQuantity([1, 2, 3])", "found no matching overload for 'isQuantity' applied to"),
        ]);
    }

    /// Rows of `pkg/cel/library/quantity_test.go` in k8s.io/apiserver.
    #[test]
    fn quantities_are_compared_and_added_by_value() {
        check_true(&[
            "quantity('200M') == quantity('0.2G') && quantity('0.2G') == quantity('200M')",
            "quantity('2000k') == quantity('2M') && quantity('0.002G') == quantity('2000k')",
            "quantity('200M') != quantity('0.3G')",
            "quantity('50M').isLessThan(quantity('50Mi'))",
            "quantity('150Mi').isGreaterThan(quantity('100Mi'))",
            "quantity('200M').compareTo(quantity('0.2G')) == 0",
            "quantity('50Mi').compareTo(quantity('50M')) == 1",
            "quantity('50k').add(quantity('20')) == quantity('50.02k')",
            "quantity('50k').sub(20) == quantity('49980')",
        ]);
    }

    /// Rows of `pkg/cel/library/quantity_test.go` in k8s.io/apiserver.
    #[test]
    fn only_quantities_that_fit_are_integers() {
        check_values(&[
            ("quantity('50k').add(20).sub(quantity('100k')).asInteger()", "-49980"),
            ("quantity('50k').asInteger()", "50000"),
            ("quantity('9999999999999999999999999999999999999G').isInteger()", "false"),
            ("quantity('50').isInteger()", "true"),
            ("quantity('50.703k').asApproximateFloat() == 50703.0", "true"),
        ]);
        check_errors(&[(
            "quantity('9999999999999999999999999999999999999G').asInteger()",
            "cannot convert value to integer",
        )]);
    }
}
