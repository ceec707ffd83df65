//! `resource.Quantity`: parsed, compared and printed in upstream's canonical form.

use std::fmt;

/// Which suffixes a quantity was written with; its canonical form keeps them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `Ki`, `Mi`, …
    Binary,
    /// `n`, `u`, `m`, `k`, `M`, …
    Decimal,
    /// `e3`
    Exponent,
}

/// An amount in billionths, upstream's smallest unit; finer values were rounded up.
#[derive(Debug, Clone, Copy)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

/// Billionths in one.
const NANO: i128 = 1_000_000_000;
/// Upstream caps at 2^63-1 whole units.
const MAX_NANOS: i128 = (i64::MAX as i128) * NANO;

/// Upstream's text for a quantity that cannot be read.
pub const BAD_FORMAT: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

const BINARY: [(&str, u32); 6] =
    [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];
const DECIMAL: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];

impl Quantity {
    /// Zero, in decimal form.
    pub const ZERO: Self = Self { nanos: 0, format: Format::Decimal };

    /// A whole number.
    pub fn from_int(value: i64) -> Self {
        Self { nanos: i128::from(value) * NANO, format: Format::Decimal }
    }

    /// Reads a quantity.
    ///
    /// # Errors
    /// Upstream's text when it cannot be read.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if text.is_empty() {
            return Err(BAD_FORMAT);
        }
        let (negative, rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(BAD_FORMAT);
        }
        let (format, binary, power) = Self::suffix(suffix)?;
        let mut digits: i128 = 0;
        let mut scale = 0_i32;
        let mut overflow = false;
        for c in whole.bytes() {
            digits = digits
                .checked_mul(10)
                .and_then(|d| d.checked_add(i128::from(c - b'0')))
                .unwrap_or_else(|| {
                    overflow = true;
                    digits
                });
        }
        let mut inexact = false;
        for c in fraction.bytes() {
            if digits < 10_i128.pow(30) {
                digits = digits * 10 + i128::from(c - b'0');
                scale += 1;
            } else {
                inexact |= c != b'0';
            }
        }
        let mut value = if overflow { None } else { digits.checked_mul(1_i128 << binary) };
        let shift = power + 9 - scale;
        if shift >= 0 {
            value = value.and_then(|v| {
                if v == 0 {
                    Some(0)
                } else {
                    10_i128.checked_pow(shift.unsigned_abs()).and_then(|p| v.checked_mul(p))
                }
            });
        } else if let Some(v) = value {
            let divisor = 10_i128.checked_pow(shift.unsigned_abs()).unwrap_or(i128::MAX);
            value = Some(v / divisor + i128::from(v % divisor != 0 || inexact));
        }
        let nanos = value.unwrap_or(MAX_NANOS).min(MAX_NANOS);
        Ok(Self { nanos: if negative { -nanos } else { nanos }, format })
    }

    fn suffix(text: &str) -> Result<(Format, u32, i32), &'static str> {
        if let Some((_, power)) = BINARY.iter().find(|(s, _)| *s == text) {
            return Ok((Format::Binary, *power, 0));
        }
        if let Some((_, power)) = DECIMAL.iter().find(|(s, _)| *s == text) {
            return Ok((Format::Decimal, 0, *power));
        }
        let exponent = text.strip_prefix(['e', 'E']).filter(|e| !e.is_empty()).ok_or(BAD_FORMAT)?;
        let power: i32 = exponent.parse().map_err(|_| BAD_FORMAT)?;
        Ok((Format::Exponent, 0, power.clamp(-100, 100)))
    }

    /// Rounds up to thousandths, the finest unit of resource lists.
    #[must_use]
    pub fn round_up_to_milli(self) -> Self {
        Self { nanos: round_up(self.nanos, NANO / 1000), ..self }
    }

    /// Whole units, rounded up.
    pub fn value(self) -> i64 {
        i64::try_from(round_up(self.nanos, NANO) / NANO).unwrap_or(if self.nanos < 0 {
            i64::MIN
        } else {
            i64::MAX
        })
    }

    /// Thousandths, rounded up.
    pub fn milli_value(self) -> i64 {
        let unit = NANO / 1000;
        i64::try_from(round_up(self.nanos, unit) / unit).unwrap_or(if self.nanos < 0 {
            i64::MIN
        } else {
            i64::MAX
        })
    }

    /// -1, 0 or 1.
    pub fn sign(self) -> i32 {
        self.nanos.signum() as i32
    }

    /// The sum, in the format of `self` (of `other` when `self` is zero).
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let format = if self.nanos == 0 { other.format } else { self.format };
        Self { nanos: self.nanos.saturating_add(other.nanos), format }
    }

    /// The difference, in the format of `self` (of `other` when `self` is zero).
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        let format = if self.nanos == 0 { other.format } else { self.format };
        Self { nanos: self.nanos.saturating_sub(other.nanos), format }
    }
}

fn round_up(value: i128, unit: i128) -> i128 {
    let rest = value % unit;
    match rest {
        0 => value,
        r if r > 0 => value - r + unit,
        r => value - r - unit,
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let small = self.nanos.abs() < 1024 * NANO;
        let format = match self.format {
            Format::Binary if small || self.nanos % NANO != 0 => Format::Decimal,
            other => other,
        };
        if format == Format::Binary {
            let mut value = self.nanos / NANO;
            let mut suffix = "";
            for (name, _) in BINARY {
                if value % 1024 != 0 {
                    break;
                }
                value /= 1024;
                suffix = name;
            }
            return write!(f, "{value}{suffix}");
        }
        let mut value = self.nanos;
        let mut power = -9;
        while value % 1000 == 0 && power < 18 {
            value /= 1000;
            power += 3;
        }
        if format == Format::Exponent {
            return if power == 0 { write!(f, "{value}") } else { write!(f, "{value}e{power}") };
        }
        let suffix = DECIMAL.iter().find(|(_, p)| *p == power).map_or("", |(s, _)| s);
        write!(f, "{value}{suffix}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_forms_are_upstreams() {
        let rows = [
            ("0.5", "500m"),
            ("1024Mi", "1Gi"),
            ("1000m", "1"),
            ("1.5Gi", "1536Mi"),
            ("100000", "100k"),
            ("0", "0"),
            ("-1", "-1"),
            ("1e3", "1e3"),
            ("1E3", "1e3"),
            ("12e6", "12e6"),
            ("0.0000000001", "1n"),
            ("512", "512"),
            ("0.5Ki", "512"),
            ("1Ki", "1Ki"),
            ("1100", "1100"),
            (".5", "500m"),
            ("5.", "5"),
            ("99999999999", "99999999999"),
            ("0Mi", "0"),
            ("1.1Ki", "1126400m"),
        ];
        for (input, output) in rows {
            assert_eq!(Quantity::parse(input).unwrap().to_string(), output, "{input}");
        }
        for bad in ["", "x", "1x", "1 Gi", "--1", "1.2.3", "e3", "1e", "1Kii", "Bad_Name!"] {
            assert_eq!(Quantity::parse(bad), Err(BAD_FORMAT), "{bad}");
        }
    }

    #[test]
    fn compares_and_rounds() {
        assert_eq!(Quantity::parse("1Gi").unwrap(), Quantity::parse("1024Mi").unwrap());
        assert!(Quantity::parse("999m").unwrap() < Quantity::parse("1").unwrap());
        assert_eq!(Quantity::parse("0.1m").unwrap().round_up_to_milli().to_string(), "1m");
        assert_eq!(Quantity::parse("1.2").unwrap().value(), 2);
        assert_eq!(Quantity::parse("-1.2").unwrap().value(), -2);
    }
}
