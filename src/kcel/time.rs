//! Timestamps and durations: Go's text format, parts in a time zone, and arithmetic.

use crate::value::{Error, Timestamp};

const MINUTE: i64 = 60;
const HOUR: i64 = 3600;
const DAY: i64 = 86400;
pub(crate) const SECOND_NANOS: i64 = 1_000_000_000;
/// Years 1 to 9999.
const SECONDS_MIN: i64 = -62_135_596_800;
const SECONDS_MAX: i64 = 253_402_300_799;

pub(crate) fn in_range(seconds: i64) -> bool {
    (SECONDS_MIN..=SECONDS_MAX).contains(&seconds)
}

/// Converts a date to days since 1970.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March, so that the leap day is the last day.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Converts days since 1970 to year, month and day.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let years = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * years + years / 4 - years / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (years + era * 400 + i64::from(month <= 2), month, day)
}

fn month_days(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// A parser of fixed-width numbers and separators.
struct Reader<'t>(&'t [u8]);

impl Reader<'_> {
    fn number(&mut self, width: usize) -> Option<i64> {
        let (digits, rest) = self.0.split_at_checked(width)?;
        self.0 = rest;
        digits
            .iter()
            .try_fold(0, |sum, d| d.is_ascii_digit().then(|| sum * 10 + i64::from(d - b'0')))
    }

    fn mark(&mut self, mark: u8) -> Option<()> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        (*first == mark).then_some(())
    }

    fn date(&mut self) -> Option<i64> {
        let year = self.number(4)?;
        self.mark(b'-')?;
        let month = self.number(2)?;
        self.mark(b'-')?;
        let day = self.number(2)?;
        let valid = (1..=12).contains(&month) && (1..=month_days(year, month)).contains(&day);
        valid.then(|| days(year, month, day) * DAY)
    }

    /// Parses hours, minutes, seconds and a fraction to seconds of the day and nanoseconds.
    fn clock(&mut self) -> Option<(i64, u32)> {
        let hour = self.number(2)?;
        self.mark(b':')?;
        let minute = self.number(2)?;
        self.mark(b':')?;
        let second = self.number(2)?;
        if hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        let mut nanos = 0u32;
        if let Some((b'.' | b',', rest)) = self.0.split_first() {
            let count = rest.iter().take_while(|d| d.is_ascii_digit()).count();
            if count == 0 {
                return None;
            }
            let mut scale = 100_000_000;
            for digit in rest.iter().take(count) {
                nanos += u32::from(digit - b'0') * scale;
                scale /= 10;
            }
            self.0 = rest.get(count..)?;
        }
        Some((hour * HOUR + minute * MINUTE + second, nanos))
    }

    fn zone(&mut self) -> Option<i32> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        let sign = match first {
            b'Z' => return Some(0),
            b'+' => 1,
            b'-' => -1,
            _ => return None,
        };
        let hours = self.number(2)?;
        self.mark(b':')?;
        let minutes = self.number(2)?;
        if hours > 24 || minutes > 59 {
            return None;
        }
        i32::try_from(sign * (hours * HOUR + minutes * MINUTE)).ok()
    }

    fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// Parses RFC 3339 as Go's `time.Parse`.
pub(crate) fn parse_rfc3339(text: &str) -> Option<Timestamp> {
    let mut reader = Reader(text.as_bytes());
    let day = reader.date()?;
    reader.mark(b'T')?;
    let (clock, nanos) = reader.clock()?;
    let offset = reader.zone()?;
    reader.end()?;
    Some(Timestamp { seconds: day + clock - i64::from(offset), nanos, offset })
}

/// Parses a time without zone, which OpenAPI's format `date-time` allows, too.
pub(crate) fn parse_lenient_datetime(text: &str) -> Option<Timestamp> {
    parse_rfc3339(text).or_else(|| {
        let mut reader = Reader(text.as_bytes());
        let day = reader.date()?;
        reader.mark(b'T')?;
        let (clock, nanos) = reader.clock()?;
        reader.end()?;
        Some(Timestamp { seconds: day + clock, nanos, offset: 0 })
    })
}

/// Parses a date, which means midnight UTC.
pub(crate) fn parse_date(text: &str) -> Option<Timestamp> {
    let mut reader = Reader(text.as_bytes());
    let seconds = reader.date()?;
    reader.end()?;
    Some(Timestamp { seconds, nanos: 0, offset: 0 })
}

/// Parses a duration to nanoseconds as Go's `time.ParseDuration`.
pub(crate) fn parse_duration(text: &str) -> Option<i64> {
    duration(text, &[])
}

/// Parses a duration with days and weeks, which OpenAPI's format `duration` allows, too.
pub(crate) fn parse_lenient_duration(text: &str) -> Option<i64> {
    parse_duration(text).or_else(|| {
        duration(
            &text.replace(' ', ""),
            &[("d", DAY * SECOND_NANOS), ("w", 7 * DAY * SECOND_NANOS)],
        )
    })
}

fn duration(text: &str, more: &[(&str, i64)]) -> Option<i64> {
    const UNITS: &[(&str, i64)] = &[
        ("ns", 1),
        ("us", 1000),
        ("\u{b5}s", 1000),
        ("\u{3bc}s", 1000),
        ("ms", 1_000_000),
        ("s", SECOND_NANOS),
        ("m", MINUTE * SECOND_NANOS),
        ("h", HOUR * SECOND_NANOS),
    ];
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let count = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let whole = count(rest);
        let whole_text = rest.get(..whole)?;
        rest = rest.get(whole..)?;
        let mut fraction = "";
        if let Some(after) = rest.strip_prefix('.') {
            let digits = count(after);
            fraction = after.get(..digits)?;
            rest = after.get(digits..)?;
        }
        if whole_text.is_empty() && fraction.is_empty() {
            return None;
        }
        let end = rest.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(rest.len());
        let name = rest.get(..end)?;
        rest = rest.get(end..)?;
        let unit = i128::from(UNITS.iter().chain(more).find(|(unit, _)| *unit == name)?.1);
        let amount: i128 = if whole_text.is_empty() { 0 } else { whole_text.parse().ok()? };
        total = total.checked_add(amount.checked_mul(unit)?)?;
        let (mut scaled, mut scale) = (0i128, 1i128);
        for digit in fraction.bytes().take(18) {
            scaled = scaled * 10 + i128::from(digit - b'0');
            scale *= 10;
        }
        total = total.checked_add(scaled * unit / scale)?;
    }
    i64::try_from(if negative { -total } else { total }).ok()
}

/// Formats RFC 3339 with all significant digits of the fraction, in the zone of the timestamp.
pub(crate) fn shown(at: &Timestamp) -> String {
    let local = at.seconds + i64::from(at.offset);
    let (year, month, day) = date(local.div_euclid(DAY));
    let clock = local.rem_euclid(DAY);
    let mut out = format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}",
        clock / HOUR,
        clock % HOUR / MINUTE,
        clock % MINUTE
    );
    if at.nanos > 0 {
        let fraction = format!(".{:09}", at.nanos);
        out.push_str(fraction.trim_end_matches('0'));
    }
    if at.offset == 0 {
        out.push('Z');
    } else {
        let sign = if at.offset < 0 { '-' } else { '+' };
        let minutes = at.offset.abs() / 60;
        out.push_str(&format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60));
    }
    out
}

/// Formats a duration in seconds: `1.5s`.
pub(crate) fn seconds_shown(nanos: i64) -> String {
    // As in Go, whole seconds and the fraction are added as doubles.
    let seconds = (nanos / SECOND_NANOS) as f64 + (nanos % SECOND_NANOS) as f64 / 1e9;
    format!("{seconds}s")
}

/// Formats a duration as Go: `1h30m0.5s`.
pub(crate) fn go_duration(nanos: i64) -> String {
    let magnitude = nanos.unsigned_abs();
    let sign = if nanos < 0 { "-" } else { "" };
    if magnitude == 0 {
        return "0s".into();
    }
    if magnitude < 1_000_000_000 {
        let (value, unit) = match magnitude {
            0..1000 => (magnitude as f64, "ns"),
            1000..1_000_000 => (magnitude as f64 / 1e3, "\u{b5}s"),
            _ => (magnitude as f64 / 1e6, "ms"),
        };
        return format!("{sign}{value}{unit}");
    }
    let seconds = magnitude / 1_000_000_000;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let mut out = sign.to_owned();
    if hours > 0 {
        out.push_str(&format!("{hours}h"));
    }
    if hours > 0 || minutes > 0 {
        out.push_str(&format!("{minutes}m"));
    }
    let fraction = format!("{:09}", magnitude % 1_000_000_000);
    let fraction = fraction.trim_end_matches('0');
    let dot = if fraction.is_empty() { "" } else { "." };
    out.push_str(&format!("{}{dot}{fraction}s", seconds % 60));
    out
}

/// Returns a part of a timestamp at an offset from UTC; `name` is the name of the CEL function.
pub(crate) fn part(function: &str, at: &Timestamp, offset: i64) -> Option<i64> {
    let local = at.seconds.saturating_add(offset);
    let day = local.div_euclid(DAY);
    let clock = local.rem_euclid(DAY);
    let (year, month, of_month) = date(day);
    Some(match function {
        "getFullYear" => year,
        "getMonth" => month - 1,
        "getDate" => of_month,
        "getDayOfMonth" => of_month - 1,
        "getDayOfYear" => day - days(year, 1, 1),
        "getDayOfWeek" => (day + 4).rem_euclid(7),
        "getHours" => clock / HOUR,
        "getMinutes" => clock % HOUR / MINUTE,
        "getSeconds" => clock % MINUTE,
        "getMilliseconds" => i64::from(at.nanos / 1_000_000),
        _ => return None,
    })
}

/// Returns the offset of a time zone in seconds at a timestamp: a name of the time zone database,
/// or `[-]hh:mm`.
pub(crate) fn zone_offset(zone: &str, at: &Timestamp) -> Result<i64, Error> {
    let Some((hours, minutes)) = zone.split_once(':') else {
        if matches!(zone, "" | "UTC") {
            return Ok(0);
        }
        let unknown = || Error::new(format!("unknown time zone {zone}"));
        let zone = jiff::tz::TimeZone::get(zone).map_err(|_| unknown())?;
        let moment = jiff::Timestamp::from_second(at.seconds).map_err(|_| unknown())?;
        return Ok(i64::from(zone.to_offset(moment).seconds()));
    };
    let number = |text: &str| {
        text.parse::<i64>()
            .map_err(|_| Error::new(format!("strconv.Atoi: parsing {text:?}: invalid syntax")))
    };
    let (hour, minute) = (number(hours)?, number(minutes)?);
    let minutes = minute.saturating_mul(MINUTE);
    let signed = if zone.starts_with('-') { minutes.saturating_neg() } else { minutes };
    Ok(hour.saturating_mul(HOUR).saturating_add(signed))
}

/// Adds a duration to a timestamp.
pub(crate) fn add(at: &Timestamp, nanos: i64) -> Result<Timestamp, Error> {
    let sum = i128::from(at.nanos) + i128::from(nanos);
    let second = i128::from(SECOND_NANOS);
    let seconds = i128::from(at.seconds) + sum.div_euclid(second);
    let nanos = u32::try_from(sum.rem_euclid(second)).unwrap_or(0);
    match i64::try_from(seconds) {
        Ok(seconds) if in_range(seconds) => Ok(Timestamp { seconds, nanos, offset: at.offset }),
        _ => Err(Error::new("timestamp overflow")),
    }
}

/// Returns the duration between two timestamps.
pub(crate) fn between(at: &Timestamp, before: &Timestamp) -> Result<i64, Error> {
    let seconds = i128::from(at.seconds) - i128::from(before.seconds);
    let nanos =
        seconds * i128::from(SECOND_NANOS) + i128::from(at.nanos) - i128::from(before.nanos);
    i64::try_from(nanos).map_err(|_| Error::new("integer overflow"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{check_errors, check_values};

    /// Rows of `parseDurationTests` in Go's `time/time_test.go`.
    #[test]
    fn durations_are_sums_of_decimal_numbers_with_units() {
        for (text, expected) in [
            ("0", 0),
            ("-5s", -5_000_000_000),
            ("+5s", 5_000_000_000),
            ("5.s", 5_000_000_000),
            (".5s", 500_000_000),
            ("10.5s4m", 250_500_000_000),
            ("-2m3.4s", -123_400_000_000),
            ("1h2m3s4ms5us6ns", 3_723_004_005_006),
            ("12\u{b5}s", 12_000),
            ("12\u{3bc}s", 12_000),
            ("9007199254740993ns", 9_007_199_254_740_993),
            ("9223372036854775807ns", i64::MAX),
            ("-9223372036854775808ns", i64::MIN),
        ] {
            assert_eq!(parse_duration(text), Some(expected), "{text}");
        }
        for text in
            ["", "3", "-", "s", ".", "-.", ".s", "+.s", "1d", "9223372036854775808ns", "3000000h"]
        {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    /// Rows of `durationTests` in Go's `time/time_test.go`.
    #[test]
    fn durations_are_shown_with_the_largest_units() {
        for (nanos, expected) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1\u{b5}s"),
            (2_200_000, "2.2ms"),
            (3_300_000_000, "3.3s"),
            (245_001_000_000, "4m5.001s"),
            (18_367_001_000_000, "5h6m7.001s"),
            (480_000_000_001, "8m0.000000001s"),
            (i64::MAX, "2562047h47m16.854775807s"),
            (i64::MIN, "-2562047h47m16.854775808s"),
        ] {
            assert_eq!(go_duration(nanos), expected);
        }
    }

    /// Rows of CEL's conformance tests, `tests/simple/testdata/timestamps.textproto`.
    #[test]
    fn parts_of_timestamps_depend_on_the_zone() {
        let at = "timestamp('2009-02-13T23:31:30Z')";
        let rows = [
            ("getDate()", "13"),
            ("getDayOfMonth()", "12"),
            ("getDayOfWeek()", "5"),
            ("getDayOfYear()", "43"),
            ("getMonth()", "1"),
            ("getDate('Australia/Sydney')", "14"),
            ("getDayOfMonth('US/Central')", "12"),
            ("getDayOfMonth('+11:00')", "13"),
            ("getFullYear('-09:30')", "2009"),
            ("getHours('02:00')", "1"),
            ("getMinutes('Asia/Kathmandu')", "16"),
            ("getSeconds('-00:00')", "30"),
        ];
        let rows = rows.map(|(part, expected)| (format!("{at}.{part}"), expected));
        let rows: Vec<_> = rows.iter().map(|(expr, expected)| (expr.as_str(), *expected)).collect();
        check_values(&rows);
        check_values(&[
            ("timestamp('2009-02-13T02:00:00Z').getDayOfMonth('-02:30')", "11"),
            ("timestamp('2009-02-13T02:00:00Z').getDayOfMonth('America/St_Johns')", "11"),
            ("timestamp('2009-02-13T23:31:20.123456789Z').getMilliseconds()", "123"),
        ]);
    }

    /// Rows of CEL's conformance tests, `tests/simple/testdata/timestamps.textproto`, with the
    /// errors of cel-go's `common/types/err.go`.
    #[test]
    fn timestamps_and_durations_outside_of_their_range_are_errors() {
        check_errors(&[
            ("timestamp('0001-01-01T00:00:00Z') + duration('-1s')", "timestamp overflow"),
            ("timestamp('9999-12-31T23:59:59Z') + duration('1s')", "timestamp overflow"),
            ("timestamp('9999-12-31T23:59:59.999999999Z') + duration('1ns')", "timestamp overflow"),
            (
                "timestamp('9999-12-31T23:59:59Z') - timestamp('0001-01-01T00:00:00Z')",
                "integer overflow",
            ),
            ("duration('9000000000s') + duration('9000000000s')", "integer overflow"),
        ]);
        for text in ["0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z"] {
            let fits = parse_rfc3339(text).is_some_and(|at| in_range(at.seconds));
            assert!(!fits, "{text}");
        }
    }

    /// `time.Parse` with `time.RFC3339` of Go's `time/format_rfc3339.go`, and the formats
    /// `date-time` and `date` of `k8s.io/kube-openapi/pkg/validation/strfmt`.
    #[test]
    fn timestamps_have_a_zone_and_valid_parts() {
        for (text, expected) in [
            ("2009-02-13T23:31:30Z", Some("2009-02-13T23:31:30Z")),
            ("9999-12-31T23:59:59.999999999Z", Some("9999-12-31T23:59:59.999999999Z")),
            ("2009-02-13T23:31:30.500+01:00", Some("2009-02-13T23:31:30.5+01:00")),
            ("2024-02-29T00:00:00Z", Some("2024-02-29T00:00:00Z")),
            ("2023-02-29T00:00:00Z", None),
            ("2023-02-28T00:00:00", None),
            ("2023-02-28 00:00:00Z", None),
            ("2023-13-01T00:00:00Z", None),
            ("2023-01-01T00:00:00ZZ", None),
        ] {
            assert_eq!(parse_rfc3339(text).as_ref().map(shown).as_deref(), expected, "{text}");
        }
        assert!(parse_lenient_datetime("2023-02-28T00:00:00").is_some());
        assert_eq!(parse_date("1970-01-02").map(|at| at.seconds), Some(86400));
        assert!(parse_date("1970-1-2").is_none() && parse_date("1970-01-02T").is_none());
    }
}
