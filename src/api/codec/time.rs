//! RFC 3339 times and Go durations, parsed and formatted by Go's rules and with Go's error
//! messages.

use std::fmt::Write as _;

/// A point in time in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// Seconds since 1970-01-01T00:00:00Z.
    pub seconds: i64,
    /// Nanoseconds within the second.
    pub nanos: u32,
}

/// The seconds of Go's zero time, 0001-01-01T00:00:00Z, which JSON encodes as `null`.
pub const ZERO_SECONDS: i64 = -62_135_596_800;

/// The precision with which a time is parsed and formatted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// `metav1.Time`, with whole seconds.
    Seconds,
    /// `metav1.MicroTime`, with microseconds.
    Micros,
    /// `metav1.Time` as Go keeps it in memory, with the fraction of the second.
    Exact,
}

impl Precision {
    fn layout(self) -> &'static str {
        match self {
            Self::Seconds | Self::Exact => "2006-01-02T15:04:05Z07:00",
            Self::Micros => "2006-01-02T15:04:05.000000Z07:00",
        }
    }
}

impl Moment {
    /// Returns whether this is Go's zero time.
    pub fn is_zero(self) -> bool {
        self.seconds == ZERO_SECONDS && self.nanos == 0
    }

    /// Formats the time in UTC.
    pub fn text(self, precision: Precision) -> String {
        let days = self.seconds.div_euclid(86_400);
        let of_day = self.seconds.rem_euclid(86_400);
        let (year, month, day) = civil(days);
        let mut out = format!(
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}",
            of_day / 3600,
            of_day / 60 % 60,
            of_day % 60
        );
        match precision {
            Precision::Seconds => {}
            Precision::Micros => {
                let _ = write!(out, ".{:06}", self.nanos / 1000);
            }
            Precision::Exact if self.nanos == 0 => {}
            Precision::Exact => {
                let digits = format!("{:09}", self.nanos);
                let _ = write!(out, ".{}", digits.trim_end_matches('0'));
            }
        }
        out.push('Z');
        out
    }
}

/// Converts a day number since 1970 to year, month and day (proleptic Gregorian).
fn civil(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (yoe + era * 400 + i64::from(month <= 2), month, doy - (153 * mp + 2) / 5 + 1)
}

/// Converts a date to its day number since 1970.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let y = if month <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let yoe = y.rem_euclid(400);
    let mp = (month + 9) % 12;
    let doy = (153 * mp + 2) / 5 + day - 1;
    era * 146_097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719_468
}

fn month_length(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// A text that Go's `time.Parse` rejects, with its error text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    /// `rest` of the text does not begin with `element` of the layout.
    #[error(
        "parsing time {} as {layout:?}: cannot parse {} as {element:?}",
        quoted(.text),
        quoted(.rest)
    )]
    Mismatch {
        /// The whole text.
        text: String,
        /// Go's layout.
        layout: &'static str,
        /// The text from the mismatch to the end.
        rest: String,
        /// The element of the layout.
        element: &'static str,
    },
    /// A component, such as the month, is out of range.
    #[error("parsing time {}: {part} out of range", quoted(.text))]
    OutOfRange {
        /// The whole text.
        text: String,
        /// The component of the time.
        part: &'static str,
    },
    /// The text continues after the time.
    #[error("parsing time {}: extra text: {}", quoted(.text), quoted(.rest))]
    ExtraText {
        /// The whole text.
        text: String,
        /// The text after the time.
        rest: String,
    },
}

/// A text that Go's `time.ParseDuration` rejects, with its error text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// The text is not a duration, or the duration is too long.
    #[error("time: invalid duration {}", quoted(.0))]
    Invalid(String),
    /// A number lacks a unit.
    #[error("time: missing unit in duration {}", quoted(.0))]
    MissingUnit(String),
    /// Go does not have the unit.
    #[error("time: unknown unit {} in duration {}", quoted(.unit), quoted(.text))]
    UnknownUnit {
        /// The unit.
        unit: String,
        /// The whole text.
        text: String,
    },
}

struct Parser<'a> {
    whole: &'a str,
    rest: &'a str,
    layout: &'static str,
}

impl<'a> Parser<'a> {
    fn mismatch(&self, element: &'static str) -> TimeError {
        TimeError::Mismatch {
            text: self.whole.to_owned(),
            layout: self.layout,
            rest: self.rest.to_owned(),
            element,
        }
    }

    fn out_of_range(&self, part: &'static str) -> TimeError {
        TimeError::OutOfRange { text: self.whole.to_owned(), part }
    }

    fn digits(&mut self, count: usize, element: &'static str) -> Result<i64, TimeError> {
        let head = self.rest.get(..count).filter(|h| h.bytes().all(|b| b.is_ascii_digit()));
        let value = head.and_then(|h| h.parse().ok()).ok_or_else(|| self.mismatch(element))?;
        self.rest = self.rest.get(count..).unwrap_or_default();
        Ok(value)
    }

    fn literal(&mut self, text: &'static str) -> Result<(), TimeError> {
        self.rest = self.rest.strip_prefix(text).ok_or_else(|| self.mismatch(text))?;
        Ok(())
    }

    /// Reads the digits after the point as nanoseconds and ignores digits beyond the ninth.
    fn fraction(&mut self) -> u32 {
        let Some(rest) = self.rest.strip_prefix(['.', ',']) else { return 0 };
        let count = rest.bytes().take_while(u8::is_ascii_digit).count();
        if count == 0 {
            return 0;
        }
        let nanos = rest
            .bytes()
            .take(count)
            .chain(std::iter::repeat(b'0'))
            .take(9)
            .fold(0, |n, b| n * 10 + u32::from(b - b'0'));
        self.rest = rest.get(count..).unwrap_or_default();
        nanos
    }

    fn zone(&mut self) -> Result<i64, TimeError> {
        if let Some(rest) = self.rest.strip_prefix('Z') {
            self.rest = rest;
            return Ok(0);
        }
        let head = self.rest.get(..6).filter(|h| h.as_bytes().get(3) == Some(&b':'));
        let head = head.ok_or_else(|| self.mismatch("Z07:00"))?;
        let sign = match head.as_bytes().first() {
            Some(b'+') => 1,
            Some(b'-') => -1,
            _ => return Err(self.mismatch("Z07:00")),
        };
        let number = |text: Option<&str>| {
            text.filter(|t| t.bytes().all(|b| b.is_ascii_digit()))
                .and_then(|t| t.parse::<i64>().ok())
        };
        let (hours, minutes) = number(head.get(1..3))
            .zip(number(head.get(4..6)))
            .ok_or_else(|| self.mismatch("Z07:00"))?;
        if hours > 24 {
            return Err(self.out_of_range("time zone offset hour"));
        }
        if minutes > 60 {
            return Err(self.out_of_range("time zone offset minute"));
        }
        self.rest = self.rest.get(6..).unwrap_or_default();
        Ok(sign * (hours * 3600 + minutes * 60))
    }
}

/// Parses an RFC 3339 time.
///
/// # Errors
///
/// Returns the error of Go's `time.Parse`.
pub fn parse_time(text: &str, precision: Precision) -> Result<Moment, TimeError> {
    let mut p = Parser { whole: text, rest: text, layout: precision.layout() };
    let year = p.digits(4, "2006")?;
    p.literal("-")?;
    let month = p.digits(2, "01")?;
    if !(1..=12).contains(&month) {
        return Err(p.out_of_range("month"));
    }
    p.literal("-")?;
    let day = p.digits(2, "02")?;
    p.literal("T")?;
    let hour = p.digits(2, "15")?;
    if hour > 23 {
        return Err(p.out_of_range("hour"));
    }
    p.literal(":")?;
    let minute = p.digits(2, "04")?;
    if minute > 59 {
        return Err(p.out_of_range("minute"));
    }
    p.literal(":")?;
    let second = p.digits(2, "05")?;
    if second > 59 {
        return Err(p.out_of_range("second"));
    }
    let nanos = match precision {
        Precision::Seconds | Precision::Exact => p.fraction(),
        Precision::Micros => {
            let exact = p.rest.len() >= 7
                && p.rest.starts_with(['.', ','])
                && p.rest.bytes().skip(1).take(6).all(|b| b.is_ascii_digit());
            if !exact {
                return Err(p.mismatch(".000000"));
            }
            let nanos =
                p.rest.bytes().skip(1).take(6).fold(0, |n, b| n * 10 + u32::from(b - b'0')) * 1000;
            p.rest = p.rest.get(7..).unwrap_or_default();
            nanos
        }
    };
    let offset = p.zone()?;
    if !p.rest.is_empty() {
        return Err(TimeError::ExtraText { text: text.to_owned(), rest: p.rest.to_owned() });
    }
    if !(1..=month_length(year, month)).contains(&day) {
        return Err(p.out_of_range("day"));
    }
    let seconds = days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset;
    Ok(Moment { seconds, nanos })
}

/// Parses a Go duration such as `1h30m` or `-1.5h` into nanoseconds.
///
/// # Errors
///
/// Returns the error of Go's `time.ParseDuration`.
pub fn parse_duration(text: &str) -> Result<i64, DurationError> {
    let invalid = || DurationError::Invalid(text.to_owned());
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (whole, after) = digits(rest);
        let (fraction, after) = after.strip_prefix('.').map_or(("", after), digits);
        let number = whole_number(whole).ok_or_else(invalid)?;
        if whole.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        let unit_end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_end);
        let size: u64 = match unit {
            "" => return Err(DurationError::MissingUnit(text.to_owned())),
            "ns" => 1,
            "us" | "µs" | "μs" => 1000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => {
                let (unit, text) = (unit.to_owned(), text.to_owned());
                return Err(DurationError::UnknownUnit { unit, text });
            }
        };
        let part = number.checked_mul(size).and_then(|n| n.checked_add(part_of(fraction, size)));
        total = part
            .and_then(|n| total.checked_add(n))
            .filter(|n| *n <= DURATION_MAX)
            .ok_or_else(invalid)?;
        rest = next;
    }
    let signed = i128::from(total) * if text.starts_with('-') { -1 } else { 1 };
    i64::try_from(signed).map_err(|_| invalid())
}

/// The largest absolute sum that Go accepts, 2^63 ns; only a negative duration reaches it.
const DURATION_MAX: u64 = 1 << 63;

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// Parses a whole number; returns `None` if it exceeds every duration.
fn whole_number(digits: &str) -> Option<u64> {
    if digits.is_empty() { Some(0) } else { digits.parse().ok().filter(|n| *n <= DURATION_MAX) }
}

/// Returns the nanoseconds of a fraction of a unit. Go computes them in floating point from the
/// digits that fit, so the result is rounded in the same way.
fn part_of(fraction: &str, size: u64) -> u64 {
    let (mut value, mut scale) = (0_u64, 1.0);
    for digit in fraction.bytes() {
        let next = value.checked_mul(10).and_then(|v| v.checked_add(u64::from(digit - b'0')));
        let Some(next) = next.filter(|n| *n <= DURATION_MAX) else { break };
        (value, scale) = (next, scale * 10.0);
    }
    #[allow(clippy::cast_possible_truncation, reason = "a fraction of at most an hour in ns")]
    let nanos = (value as f64 * (size as f64 / scale)) as u64;
    nanos
}

/// Quotes a text as Go's package `time` does, with bytes outside of printable ASCII as `\xNN`.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            ' '..='\u{7f}' => out.push(c),
            _ => c.encode_utf8(&mut [0; 4]).bytes().for_each(|b| {
                let _ = write!(out, "\\x{b:02x}");
            }),
        }
    }
    out + "\""
}

/// Formats nanoseconds as Go does: `1h30m0s`, `1.5s`, `0s`.
pub fn duration_text(nanos: i64) -> String {
    if nanos == 0 {
        return "0s".into();
    }
    let sign = if nanos < 0 { "-" } else { "" };
    let total = nanos.unsigned_abs();
    if total < 1_000_000_000 {
        let (unit, size) = match total {
            0..1_000 => ("ns", 1),
            1_000..1_000_000 => ("µs", 1_000),
            _ => ("ms", 1_000_000),
        };
        return format!("{sign}{}{unit}", decimal(total / size, total % size, size));
    }
    let seconds = total / 1_000_000_000;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let mut out = sign.to_owned();
    if hours > 0 {
        let _ = write!(out, "{hours}h");
    }
    if hours > 0 || minutes > 0 {
        let _ = write!(out, "{minutes}m");
    }
    let _ = write!(out, "{}s", decimal(seconds % 60, total % 1_000_000_000, 1_000_000_000));
    out
}

fn decimal(whole: u64, part: u64, of: u64) -> String {
    if part == 0 {
        return whole.to_string();
    }
    let width = of.ilog10() as usize;
    let digits = format!("{part:0width$}");
    format!("{whole}.{}", digits.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalises_times_to_utc() {
        let text = |t: &str| parse_time(t, Precision::Seconds).map(|m| m.text(Precision::Seconds));
        assert_eq!(text("2024-02-29T12:30:00+02:00").unwrap(), "2024-02-29T10:30:00Z");
        assert_eq!(text("1969-12-31T23:59:59.9Z").unwrap(), "1969-12-31T23:59:59Z");
        assert!(parse_time("0001-01-01T00:00:00Z", Precision::Seconds).unwrap().is_zero());
        let exact = parse_time("2026-01-01T02:00:05.250+02:00", Precision::Exact).unwrap();
        assert_eq!(exact.text(Precision::Exact), "2026-01-01T00:00:05.25Z");
        let micro = parse_time("2026-01-01T00:00:05.000120Z", Precision::Micros).unwrap();
        assert_eq!(micro.text(Precision::Micros), "2026-01-01T00:00:05.000120Z");
        assert_eq!(micro.seconds, 1_767_225_605);
    }

    #[test]
    fn rejects_times_with_the_messages_of_go() {
        let fail = |t: &str, p| parse_time(t, p).unwrap_err().to_string();
        assert_eq!(
            fail("Bad_Name!", Precision::Seconds),
            r#"parsing time "Bad_Name!" as "2006-01-02T15:04:05Z07:00": cannot parse "Bad_Name!" as "2006""#
        );
        assert_eq!(
            fail("2026-01-01T00:00:00.000000Zx", Precision::Micros),
            r#"parsing time "2026-01-01T00:00:00.000000Zx": extra text: "x""#
        );
        assert_eq!(
            fail("2026-01-01T00:00:00Z", Precision::Micros),
            r#"parsing time "2026-01-01T00:00:00Z" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "Z" as ".000000""#
        );
        assert_eq!(
            fail("2026-02-30T00:00:00Z", Precision::Seconds),
            r#"parsing time "2026-02-30T00:00:00Z": day out of range"#
        );
        assert_eq!(
            fail("2026-13-01T00:00:00Z", Precision::Seconds),
            r#"parsing time "2026-13-01T00:00:00Z": month out of range"#
        );
    }

    /// The texts are recorded answers of kube-apiserver 1.37.1.
    #[test]
    fn quotes_invalid_times_as_go_does() {
        let fail = |t: &str| parse_time(t, Precision::Seconds).unwrap_err().to_string();
        assert_eq!(
            fail("a\nb"),
            r#"parsing time "a\x0ab" as "2006-01-02T15:04:05Z07:00": cannot parse "a\x0ab" as "2006""#
        );
        assert_eq!(
            fail("é\"\\"),
            r#"parsing time "\xc3\xa9\"\\" as "2006-01-02T15:04:05Z07:00": cannot parse "\xc3\xa9\"\\" as "2006""#
        );
    }

    #[test]
    fn reads_and_writes_durations() {
        for (text, canonical) in [
            ("90m", "1h30m0s"),
            ("1.5s", "1.5s"),
            ("100ms", "100ms"),
            ("0", "0s"),
            ("-1h", "-1h0m0s"),
            ("1us", "1µs"),
            ("300s", "5m0s"),
        ] {
            assert_eq!(duration_text(parse_duration(text).unwrap()), canonical, "{text}");
        }
        // The cases are those of Go's tests of `ParseDuration`.
        for (text, nanos) in [
            ("+5s", 5_000_000_000),
            ("-0", 0),
            ("5.s", 5_000_000_000),
            (".5s", 500_000_000),
            ("1.004s", 1_004_000_000),
            ("1.00100s", 1_001_000_000),
            ("12µs", 12_000),
            ("12μs", 12_000),
            ("10.5s4m", 250_500_000_000),
            ("52763797000ns", 52_763_797_000),
            ("0.3333333333333333333h", 20 * 60_000_000_000),
            ("0.9223372036854775807s", 922_337_203),
            ("0.830103483285477580700h", 49 * 60_000_000_000 + 48_372_539_827),
            ("0.100000000000000000000h", 6 * 60_000_000_000),
            ("9007199254740993ns", (1 << 53) + 1),
            ("9223372036.854775807s", i64::MAX),
            ("-9223372036854775808ns", i64::MIN),
            ("000000000000000000000001s", 1_000_000_000),
        ] {
            assert_eq!(parse_duration(text), Ok(nanos), "{text}");
        }
        for text in [
            "",
            "-",
            ".",
            "-.",
            ".s",
            "+.s",
            "\u{85}\u{85}",
            "9223372036854775808ns",
            "9223372036854775.808us",
            "-9223372036854775809ns",
            "3000000h",
            "99999999999999999999x",
        ] {
            let got = parse_duration(text).unwrap_err().to_string();
            assert!(got.starts_with("time: invalid duration \""), "{text}: {got}");
        }
        assert_eq!(
            parse_duration("1..5s").unwrap_err().to_string(),
            r#"time: missing unit in duration "1..5s""#
        );
        assert_eq!(
            parse_duration("hello \u{FFFD} \"x").unwrap_err().to_string(),
            r#"time: invalid duration "hello \xef\xbf\xbd \"x""#
        );
        assert_eq!(
            parse_duration("5").unwrap_err().to_string(),
            r#"time: missing unit in duration "5""#
        );
        assert_eq!(parse_duration("x").unwrap_err().to_string(), r#"time: invalid duration "x""#);
        assert_eq!(
            parse_duration("5d").unwrap_err().to_string(),
            r#"time: unknown unit "d" in duration "5d""#
        );
    }
}
