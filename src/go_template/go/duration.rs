//! `time.Duration`: text, parsing and rounding.

pub(crate) const SECOND: i64 = 1_000_000_000;
const UNITS: [(&str, i64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", SECOND),
    ("m", 60 * SECOND),
    ("h", 3600 * SECOND),
];

fn fraction(value: u64, digits: usize) -> String {
    let text = format!("{value:0digits$}");
    let text = text.trim_end_matches('0');
    if text.is_empty() { String::new() } else { format!(".{text}") }
}

/// `Duration.String`.
pub(crate) fn text(nanos: i64) -> String {
    if nanos == 0 {
        return "0s".into();
    }
    let sign = if nanos < 0 { "-" } else { "" };
    let size = nanos.unsigned_abs();
    if size < 1_000_000_000 {
        let (unit, scale, digits) = match size {
            0..1_000 => ("ns", 1, 0),
            1_000..1_000_000 => ("µs", 1_000, 3),
            _ => ("ms", 1_000_000, 6),
        };
        let rest = if digits == 0 { String::new() } else { fraction(size % scale, digits) };
        return format!("{sign}{}{rest}{unit}", size / scale);
    }
    let seconds = size / 1_000_000_000;
    let mut out = String::from(sign);
    if seconds >= 3600 {
        out.push_str(&format!("{}h", seconds / 3600));
    }
    if seconds >= 60 {
        out.push_str(&format!("{}m", seconds / 60 % 60));
    }
    out.push_str(&format!("{}{}s", seconds % 60, fraction(size % 1_000_000_000, 9)));
    out
}

/// The text is not a duration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ParseError {
    #[error("time: invalid duration {0}")]
    Invalid(String),
    #[error("time: missing unit in duration {0}")]
    MissingUnit(String),
    #[error("time: unknown unit {1} in duration {0}")]
    UnknownUnit(String, String),
}

/// `time.ParseDuration`, in nanoseconds.
///
/// # Errors
///
/// Go's text about what is wrong.
pub(crate) fn parse(text: &str) -> Result<i64, ParseError> {
    let quoted = || super::quote::quote(text);
    let invalid = || ParseError::Invalid(quoted());
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(end);
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && part.is_empty()) || part.contains('.') {
            return Err(invalid());
        }
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, next) = tail.split_at(end);
        if unit.is_empty() {
            return Err(ParseError::MissingUnit(quoted()));
        }
        let Some((_, scale)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(ParseError::UnknownUnit(quoted(), super::quote::quote(unit)));
        };
        let whole: i128 =
            if whole.is_empty() { 0 } else { whole.parse().map_err(|_| invalid())? };
        let mut value = whole.checked_mul(i128::from(*scale)).ok_or_else(invalid)?;
        let mut unit = i128::from(*scale);
        for digit in part.bytes() {
            unit /= 10;
            value += unit * i128::from(digit - b'0');
        }
        total = total.checked_add(value).ok_or_else(invalid)?;
        rest = next;
    }
    let total = if negative { -total } else { total };
    i64::try_from(total).map_err(|_| invalid())
}

/// `Duration.Round`: halves away from zero.
pub(crate) fn round(value: i64, multiple: i64) -> i64 {
    if multiple <= 0 {
        return value;
    }
    let rest = value % multiple;
    let down = value - rest;
    if rest.unsigned_abs().saturating_mul(2) < multiple.unsigned_abs() {
        down
    } else if value < 0 {
        down.saturating_sub(multiple)
    } else {
        down.saturating_add(multiple)
    }
}

/// `Duration.Truncate`.
pub(crate) fn truncate(value: i64, multiple: i64) -> i64 {
    if multiple <= 0 { value } else { value - value % multiple }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_and_print() {
        let table = [
            ("1h2m3s", "1h2m3s"),
            ("90s", "1m30s"),
            ("1.5h", "1h30m0s"),
            ("1500ms", "1.5s"),
            ("2us", "2µs"),
            ("0", "0s"),
            ("-1m", "-1m0s"),
            ("1ms500us", "1.5ms"),
        ];
        for (input, output) in table {
            assert_eq!(text(parse(input).unwrap()), output, "{input}");
        }
        let missing = "time: missing unit in duration \"5\"";
        assert_eq!(parse("5").unwrap_err().to_string(), missing);
        let unknown = "time: unknown unit \"d\" in duration \"5d\"";
        assert_eq!(parse("5d").unwrap_err().to_string(), unknown);
        assert_eq!(parse("").unwrap_err().to_string(), "time: invalid duration \"\"");
        assert_eq!(round(1_500, 1_000), 2_000);
        assert_eq!(round(-1_500, 1_000), -2_000);
        assert_eq!(truncate(1_999, 1_000), 1_000);
    }
}
