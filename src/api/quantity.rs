//! `resource.Quantity`: fixed-point amounts with the suffixes of Kubernetes (`100m`, `1.5Gi`,
//! `1e3`).

use std::cmp::Ordering;
use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};

use serde_json::Value;

/// The number of decimal places of an amount (nano).
const NANO: u32 = 9;
const NANO_ONE: i128 = 1_000_000_000;
/// The largest amount, which leaves room for sums of many `int64` values.
const NANO_MAX: i128 = 100_000_000_000_000_000_000_000_000_000 * NANO_ONE / 1000;

/// The suffixes of the canonical text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// `k`, `M`, `G`, … and `m`, `u`, `n`.
    #[default]
    DecimalSi,
    /// `Ki`, `Mi`, `Gi`, ….
    BinarySi,
    /// `e3`, `e6`, ….
    DecimalExponent,
}

/// An amount, exact to nano. Equality and order ignore the format.
#[derive(Debug, Clone, Copy, Default)]
pub struct Quantity {
    nano: i128,
    format: Format,
}

/// The reason why a text is not a quantity. The texts are upstream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadQuantity {
    /// The text is not a number with a suffix.
    #[error(
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    )]
    Format,
    /// The number is out of range.
    #[error("unable to parse numeric part of quantity")]
    Numeric,
    /// The suffix is unknown.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

impl Quantity {
    /// Zero.
    pub const ZERO: Self = Self { nano: 0, format: Format::DecimalSi };

    /// Creates a whole number of units with decimal suffixes.
    pub fn units(value: i64) -> Self {
        Self { nano: i128::from(value) * NANO_ONE, format: Format::DecimalSi }
    }

    /// Creates a whole number of thousandths with decimal suffixes.
    pub fn millis(value: i64) -> Self {
        Self { nano: i128::from(value) * (NANO_ONE / 1000), format: Format::DecimalSi }
    }

    /// Creates a whole number of units with binary suffixes where these are exact.
    pub fn bytes(value: i64) -> Self {
        Self { nano: i128::from(value) * NANO_ONE, format: Format::BinarySi }
    }

    /// Parses the text of a quantity.
    ///
    /// # Errors
    /// Returns upstream's error if the number or the suffix is malformed.
    pub fn parse(text: &str) -> Result<Self, BadQuantity> {
        if text.is_empty() {
            return Err(BadQuantity::Format);
        }
        let (negative, rest) = match text.as_bytes().first() {
            Some(b'-') => (true, text.get(1..).unwrap_or_default()),
            Some(b'+') => (false, text.get(1..).unwrap_or_default()),
            _ => (false, text),
        };
        let whole_end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (whole, rest) = rest.split_at(whole_end);
        let (fraction, suffix) = match rest.strip_prefix('.') {
            None => ("", rest),
            Some(rest) => {
                rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()))
            }
        };
        check_suffix(suffix)?;
        let (scale, format) = interpret(suffix)?;
        let mut nano = scaled(whole, fraction, scale);
        let mut format = format;
        if format == Format::BinarySi {
            nano = nano.min(i128::from(i64::MAX) * NANO_ONE);
            if nano > 0 && nano < NANO_ONE {
                format = Format::DecimalSi;
            }
        }
        Ok(Self { nano: if negative { -nano } else { nano }, format })
    }

    /// Converts a JSON value: a string, or a number by its text.
    ///
    /// # Errors
    /// Returns the errors of [`Quantity::parse`].
    pub fn from_value(value: &Value) -> Result<Self, BadQuantity> {
        match value {
            Value::String(text) => Self::parse(text.trim()),
            Value::Number(number) => Self::parse(&number.to_string()),
            Value::Null => Ok(Self::ZERO),
            _ => Err(BadQuantity::Format),
        }
    }

    /// Returns the units, rounded away from zero and saturated at the bounds of `i64`.
    pub fn value(&self) -> i64 {
        self.scaled_up(NANO_ONE)
    }

    /// Returns the thousandths, rounded away from zero and saturated at the bounds of `i64`.
    pub fn milli_value(&self) -> i64 {
        self.scaled_up(NANO_ONE / 1000)
    }

    /// Creates a whole number of units with decimal suffixes.
    pub fn from_int(value: i64) -> Self {
        Self::units(value)
    }

    /// Rounds up to thousandths, the finest unit of resource lists.
    #[must_use]
    pub fn round_up_to_milli(self) -> Self {
        let unit = NANO_ONE / 1000;
        let up = i128::from(self.nano % unit != 0) * self.nano.signum();
        Self { nano: (self.nano / unit + up) * unit, ..self }
    }

    /// Returns the sum in the format of `self`, or in that of `other` if `self` is zero.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self + other
    }

    /// Returns the difference in the format of `self`, or in that of `other` if `self` is zero.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        self - other
    }

    /// Returns the amount as a floating-point number of units.
    #[allow(clippy::cast_precision_loss, reason = "an approximation by contract")]
    pub fn as_f64(&self) -> f64 {
        self.nano as f64 / NANO_ONE as f64
    }

    /// Returns whether the amount is zero.
    pub fn is_zero(&self) -> bool {
        self.nano == 0
    }

    /// Returns the sign: -1, 0 or 1.
    pub fn sign(&self) -> i32 {
        match self.nano.cmp(&0) {
            Ordering::Less => -1,
            Ordering::Equal => 0,
            Ordering::Greater => 1,
        }
    }

    /// Returns the format of the canonical text.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The same amount with another format of its canonical text.
    #[must_use]
    pub fn with_format(self, format: Format) -> Self {
        Self { format, ..self }
    }

    fn scaled_up(self, unit: i128) -> i64 {
        let up = i128::from(self.nano % unit != 0) * self.nano.signum();
        let value = self.nano / unit + up;
        i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
    }

    fn combined(self, other: Self, nano: i128) -> Self {
        let format = if self.nano == 0 { other.format } else { self.format };
        Self { nano: nano.clamp(-NANO_MAX, NANO_MAX), format }
    }
}

/// Checks the form of a suffix.
fn check_suffix(suffix: &str) -> Result<(), BadQuantity> {
    let letters = suffix.find(|c: char| !"eEinumkKMGTP".contains(c)).unwrap_or(suffix.len());
    let rest = suffix.get(letters..).unwrap_or_default();
    let digits = rest.strip_prefix(['-', '+']).unwrap_or(rest);
    if digits.bytes().all(|b| b.is_ascii_digit()) { Ok(()) } else { Err(BadQuantity::Format) }
}

/// The factor of a suffix, as a power of ten or of two.
enum Scale {
    Ten(i32),
    Two(u32),
}

fn interpret(suffix: &str) -> Result<(Scale, Format), BadQuantity> {
    let decimal = |exponent| Ok((Scale::Ten(exponent), Format::DecimalSi));
    let binary = |exponent| Ok((Scale::Two(exponent), Format::BinarySi));
    match suffix {
        "" => decimal(0),
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let exponent = suffix
                .strip_prefix(['e', 'E'])
                .filter(|e| !e.is_empty())
                .ok_or(BadQuantity::Suffix)?;
            let exponent: i64 = exponent.parse().map_err(|_| BadQuantity::Suffix)?;
            let exponent = exponent.clamp(-1000, 1000);
            Ok((
                Scale::Ten(i32::try_from(exponent).map_err(|_| BadQuantity::Suffix)?),
                Format::DecimalExponent,
            ))
        }
    }
}

/// Returns `whole.fraction` times the scale, in nano, rounded up and saturated at [`NANO_MAX`].
fn scaled(whole: &str, fraction: &str, scale: Scale) -> i128 {
    let mut digits: i128 = 0;
    let mut dropped = false;
    let mut exponent = i32::try_from(NANO).unwrap_or(9);
    let whole_length = whole.len();
    for (i, digit) in
        whole.bytes().chain(fraction.bytes()).map(|b| i128::from(b - b'0')).enumerate()
    {
        if i < whole_length {
            if digits > NANO_MAX {
                return NANO_MAX;
            }
            digits = digits * 10 + digit;
        } else if digits < NANO_MAX && exponent > -40 {
            digits = digits * 10 + digit;
            exponent -= 1;
        } else {
            dropped |= digit != 0;
        }
    }
    if digits == 0 && !dropped {
        return 0;
    }
    let factor = match scale {
        Scale::Ten(more) => {
            exponent += more;
            1
        }
        Scale::Two(bits) => 1_i128 << bits,
    };
    // Factors of ten are removed first, so that a binary suffix on a fraction does not overflow.
    while exponent < 0 && digits % 10 == 0 && digits != 0 {
        digits /= 10;
        exponent += 1;
    }
    let Some(mut product) = digits.checked_mul(factor) else { return NANO_MAX };
    for _ in 0..exponent.max(0) {
        product = product.saturating_mul(10);
        if product > NANO_MAX {
            return NANO_MAX;
        }
    }
    for _ in exponent.min(0)..0 {
        dropped |= product % 10 != 0;
        product /= 10;
        if product == 0 {
            break;
        }
    }
    (product + i128::from(dropped)).min(NANO_MAX)
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nano == 0 {
            return f.write_str("0");
        }
        let mut format = self.format;
        if format == Format::BinarySi
            && (self.nano.abs() < 1024 * NANO_ONE || self.nano % NANO_ONE != 0)
        {
            format = Format::DecimalSi;
        }
        if format == Format::BinarySi {
            let mut value = self.nano / NANO_ONE;
            let mut power = 0;
            while value % 1024 == 0 && power < 6 {
                value /= 1024;
                power += 1;
            }
            let suffix =
                ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].get(power).copied().unwrap_or_default();
            return write!(f, "{value}{suffix}");
        }
        let mut value = self.nano;
        let mut exponent: i32 = -9;
        while value % 1000 == 0 && (exponent < 18 || format == Format::DecimalExponent) {
            value /= 1000;
            exponent += 3;
        }
        match (format, exponent) {
            (_, 0) => write!(f, "{value}"),
            (Format::DecimalExponent, _) => write!(f, "{value}e{exponent}"),
            (_, -9) => write!(f, "{value}n"),
            (_, -6) => write!(f, "{value}u"),
            (_, -3) => write!(f, "{value}m"),
            (_, 3) => write!(f, "{value}k"),
            (_, 6) => write!(f, "{value}M"),
            (_, 9) => write!(f, "{value}G"),
            (_, 12) => write!(f, "{value}T"),
            (_, 15) => write!(f, "{value}P"),
            _ => write!(f, "{value}E"),
        }
    }
}

impl std::str::FromStr for Quantity {
    type Err = BadQuantity;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nano == other.nano
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nano.cmp(&other.nano)
    }
}

impl Add for Quantity {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.combined(other, self.nano + other.nano)
    }
}

impl Sub for Quantity {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.combined(other, self.nano - other.nano)
    }
}

impl AddAssign for Quantity {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl SubAssign for Quantity {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl std::iter::Sum for Quantity {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_the_canonical_form() {
        for (text, canonical) in [
            ("0", "0"),
            ("0Ki", "0"),
            ("-0m", "0"),
            ("100m", "100m"),
            ("0.1", "100m"),
            ("1.5", "1500m"),
            ("1000m", "1"),
            ("1500", "1500"),
            ("1000", "1k"),
            ("1024Ki", "1Mi"),
            ("1.5Gi", "1536Mi"),
            ("0.5Mi", "512Ki"),
            ("0.5Ki", "512"),
            ("1100Mi", "1100Mi"),
            ("100Ki", "100Ki"),
            ("1.1Ki", "1126400m"),
            ("1e3", "1e3"),
            ("1E3", "1e3"),
            ("1200e0", "1200"),
            ("12e-3", "12e-3"),
            ("1n", "1n"),
            ("0.1n", "1n"),
            ("-1.5", "-1500m"),
            ("+2", "2"),
            ("1Ei", "1Ei"),
            ("8Ei", "9223372036854775807"),
            ("00012", "12"),
            ("5.", "5"),
            (".5", "500m"),
            ("1E", "1E"),
            ("123456789012345678901", "123456789012345678901"),
        ] {
            assert_eq!(
                Quantity::parse(text).map(|q| q.to_string()),
                Ok(canonical.to_owned()),
                "{text}"
            );
        }
    }

    #[test]
    fn refuses_what_upstream_refuses() {
        for text in ["", "abc", "1 Gi", "1.2.3", "Bad_Name!", "1Gi0x", "١"] {
            assert_eq!(Quantity::parse(text), Err(BadQuantity::Format), "{text}");
        }
        for text in ["1Kb", "1mi", "1KiB", "1ee", "1iK", "1GiGi"] {
            assert!(Quantity::parse(text).is_err(), "{text}");
        }
        assert_eq!(Quantity::parse("1Gii"), Err(BadQuantity::Suffix));
        assert_eq!(Quantity::parse("1e99999999999999999999"), Err(BadQuantity::Suffix));
    }

    #[test]
    fn counts_and_compares() {
        let q = |t: &str| Quantity::parse(t).unwrap();
        assert_eq!(q("1.5Gi").value(), 1_610_612_736);
        assert_eq!(q("100m").value(), 1);
        assert_eq!(q("-100m").value(), -1);
        assert_eq!(q("1500m").milli_value(), 1500);
        assert_eq!(q("1u").milli_value(), 1);
        assert_eq!(q("1Ei").milli_value(), i64::MAX);
        assert!(q("1Gi") > q("1G") && q("1000m") == q("1"));
        assert_eq!((q("500m") + q("1")).to_string(), "1500m");
        assert_eq!((q("1Gi") - q("512Mi")).to_string(), "512Mi");
        assert_eq!((Quantity::ZERO + q("1Gi")).to_string(), "1Gi");
        assert_eq!(q("1e1000").sign(), 1);
        assert_eq!(q("1e-1000").to_string(), "1e-9");
    }
}
