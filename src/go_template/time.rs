//! `time.Time`: layouts, parsing and the methods that templates call.

mod read;

pub(crate) use read::parse;

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use crate::error::Failure;
use crate::signature::Param;
use crate::value::Value;

/// A point in time with its zone.
#[derive(Clone, Debug)]
pub struct Time(pub Zoned);

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Parts of a layout, the longest of a common beginning first.
const PARTS: &[&str] = &[
    "January",
    "Jan",
    "Monday",
    "Mon",
    "MST",
    "2006",
    "-07:00:00",
    "-070000",
    "-07:00",
    "-0700",
    "-07",
    "Z07:00:00",
    "Z070000",
    "Z07:00",
    "Z0700",
    "Z07",
    "002",
    "01",
    "02",
    "03",
    "04",
    "05",
    "06",
    "15",
    "PM",
    "pm",
    "__2",
    "_2006",
    "_2",
    "1",
    "2",
    "3",
    "4",
    "5",
];

/// A part of a layout, or plain text.
#[derive(Debug, PartialEq)]
enum Piece<'a> {
    Text(&'a str),
    Part(&'a str),
    /// A fraction of seconds: its separator, the number of digits, and whether zeros stay.
    Fraction(char, usize, bool),
}

fn fraction(rest: &str) -> Option<(usize, Piece<'_>)> {
    let separator = rest.chars().next().filter(|c| matches!(c, '.' | ','))?;
    let digit = rest.chars().nth(1).filter(|c| matches!(c, '0' | '9'))?;
    let tail = rest.get(1..)?;
    let count = tail.chars().take_while(|c| *c == digit).count();
    let next = tail.chars().nth(count);
    if next.is_some_and(|c| c.is_ascii_digit()) {
        return None;
    }
    Some((1 + count, Piece::Fraction(separator, count, digit == '0')))
}

fn pieces(layout: &str) -> Vec<Piece<'_>> {
    let mut out = Vec::new();
    let (mut start, mut at) = (0, 0);
    while let Some(rest) = layout.get(at..).filter(|rest| !rest.is_empty()) {
        let part = PARTS.iter().find(|part| rest.starts_with(**part)).filter(|part| {
            // "Jan" and "Mon" are not parts of longer words in lower case.
            let after = rest.get(part.len()..).and_then(|tail| tail.chars().next());
            let short = matches!(**part, "Jan" | "Mon");
            !(short && after.is_some_and(|c| c.is_ascii_lowercase()))
        });
        let found = match part {
            // "_2006" is an underscore and a year.
            Some(&"_2006") => Some((1, None)),
            Some(part) => Some((part.len(), rest.get(..part.len()).map(Piece::Part))),
            None => fraction(rest).map(|(length, piece)| (length, Some(piece))),
        };
        match found {
            Some((length, Some(piece))) => {
                out.extend(layout.get(start..at).filter(|t| !t.is_empty()).map(Piece::Text));
                out.push(piece);
                at += length;
                start = at;
            }
            Some((length, None)) => at += length,
            None => at += rest.chars().next().map_or(1, char::len_utf8),
        }
    }
    out.extend(layout.get(start..).filter(|t| !t.is_empty()).map(Piece::Text));
    out
}

fn offset(seconds: i32, part: &str) -> String {
    if part.starts_with('Z') && seconds == 0 {
        return "Z".into();
    }
    let sign = if seconds < 0 { '-' } else { '+' };
    let size = seconds.unsigned_abs();
    let (hours, minutes, rest) = (size / 3600, size / 60 % 60, size % 60);
    match part.get(1..).unwrap_or_default() {
        "07:00:00" => format!("{sign}{hours:02}:{minutes:02}:{rest:02}"),
        "070000" => format!("{sign}{hours:02}{minutes:02}{rest:02}"),
        "07:00" => format!("{sign}{hours:02}:{minutes:02}"),
        "0700" => format!("{sign}{hours:02}{minutes:02}"),
        _ => format!("{sign}{hours:02}"),
    }
}

impl Time {
    pub fn now() -> Self {
        Self(Timestamp::now().to_zoned(TimeZone::UTC))
    }

    /// `time.Unix(seconds, 0)` in UTC; the zero time when out of range.
    pub fn unix(seconds: i64) -> Self {
        let timestamp = Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH);
        Self(timestamp.to_zoned(TimeZone::UTC))
    }

    /// Go's zero time.
    pub fn zero() -> Self {
        Self::unix(-62_135_596_800)
    }

    /// The same instant in a zone of the time zone database; UTC when there is none of the name.
    pub fn in_zone(&self, name: &str) -> Self {
        let zone = match name {
            "" | "UTC" | "Local" => TimeZone::UTC,
            name => TimeZone::get(name).unwrap_or(TimeZone::UTC),
        };
        Self(self.0.with_time_zone(zone))
    }

    /// The time `nanos` later.
    pub fn add(&self, nanos: i64) -> Option<Self> {
        self.0.checked_add(jiff::SignedDuration::from_nanos(nanos)).ok().map(Self)
    }

    fn weekday(&self) -> usize {
        usize::try_from(self.0.weekday().to_sunday_zero_offset()).unwrap_or(0)
    }

    fn zone_name(&self) -> String {
        let zone = self.0.time_zone();
        let name = zone.to_offset_info(self.0.timestamp()).abbreviation().to_owned();
        if name.starts_with(['+', '-']) || name.is_empty() { String::new() } else { name }
    }

    fn part(&self, part: &str) -> String {
        let time = &self.0;
        let (hour, minute, second) = (time.hour(), time.minute(), time.second());
        let twelve = if hour % 12 == 0 { 12 } else { hour % 12 };
        let month = usize::try_from(time.month() - 1).unwrap_or(0);
        let month_name = MONTHS.get(month).copied().unwrap_or_default();
        let day_name = DAYS.get(self.weekday()).copied().unwrap_or_default();
        match part {
            "2006" => format!("{:04}", time.year()),
            "06" => format!("{:02}", time.year().rem_euclid(100)),
            "January" => month_name.into(),
            "Jan" => month_name.get(..3).unwrap_or_default().into(),
            "01" => format!("{:02}", time.month()),
            "1" => time.month().to_string(),
            "Monday" => day_name.into(),
            "Mon" => day_name.get(..3).unwrap_or_default().into(),
            "02" => format!("{:02}", time.day()),
            "_2" => format!("{:2}", time.day()),
            "2" => time.day().to_string(),
            "002" => format!("{:03}", time.day_of_year()),
            "__2" => format!("{:3}", time.day_of_year()),
            "15" => format!("{hour:02}"),
            "03" => format!("{twelve:02}"),
            "3" => twelve.to_string(),
            "04" => format!("{minute:02}"),
            "4" => minute.to_string(),
            "05" => format!("{second:02}"),
            "5" => second.to_string(),
            "PM" => if hour >= 12 { "PM" } else { "AM" }.into(),
            "pm" => if hour >= 12 { "pm" } else { "am" }.into(),
            "MST" => {
                let name = self.zone_name();
                if name.is_empty() { offset(time.offset().seconds(), "-0700") } else { name }
            }
            part => offset(time.offset().seconds(), part),
        }
    }

    /// `Time.Format`.
    pub fn format(&self, layout: &str) -> String {
        let mut out = String::new();
        for piece in pieces(layout) {
            match piece {
                Piece::Text(text) => out.push_str(text),
                Piece::Part(part) => out.push_str(&self.part(part)),
                Piece::Fraction(separator, count, zeros) => {
                    let nanos = format!("{:09}", self.0.subsec_nanosecond());
                    let mut digits = nanos.get(..count.min(9)).unwrap_or_default();
                    if !zeros {
                        digits = digits.trim_end_matches('0');
                    }
                    if !digits.is_empty() {
                        out.push(separator);
                        out.push_str(digits);
                    }
                }
            }
        }
        out
    }

    /// `Time.String`.
    pub fn text(&self) -> String {
        self.format("2006-01-02 15:04:05.999999999 -0700 MST")
    }

    /// RFC 3339, as JSON and YAML show it.
    pub fn rfc3339(&self) -> String {
        self.format("2006-01-02T15:04:05.999999999Z07:00")
    }

    pub fn unix_seconds(&self) -> i64 {
        self.0.timestamp().as_second()
    }

    /// The parameters of a method.
    pub fn method(name: &str) -> Option<&'static [Param]> {
        Some(match name {
            "Format" => &[Param::Str],
            "Unix" | "UnixNano" | "UnixMilli" | "Year" | "Day" | "Hour" | "Minute" | "Second"
            | "YearDay" | "Nanosecond" | "String" | "UTC" | "Local" | "Month" | "Weekday"
            | "IsZero" => &[],
            "AddDate" => &[Param::Int, Param::Int, Param::Int],
            "After" | "Before" | "Equal" | "Sub" => &[Param::Time],
            _ => return None,
        })
    }

    /// Runs a method of [`Time::method`].
    ///
    /// # Errors
    ///
    /// The result is out of range.
    pub fn call(&self, name: &str, args: &[Value]) -> Result<Value, Failure> {
        let time = &self.0;
        let other = match args.first() {
            Some(Value::Time(other)) => other.0.timestamp(),
            _ => Timestamp::UNIX_EPOCH,
        };
        let text = |value: &str| Value::from(value);
        Ok(match name {
            "Format" => {
                let layout = args.first().and_then(Value::string_bytes).unwrap_or_default();
                Value::from(self.format(&String::from_utf8_lossy(layout)))
            }
            "Unix" => Value::Int64(self.unix_seconds()),
            "UnixMilli" => Value::Int64(time.timestamp().as_millisecond()),
            "UnixNano" => {
                let nanos = time.timestamp().as_nanosecond();
                Value::Int64(i64::try_from(nanos).unwrap_or(i64::MAX))
            }
            "Year" => Value::Int(time.year().into()),
            "Day" => Value::Int(time.day().into()),
            "Hour" => Value::Int(time.hour().into()),
            "Minute" => Value::Int(time.minute().into()),
            "Second" => Value::Int(time.second().into()),
            "YearDay" => Value::Int(time.day_of_year().into()),
            "Nanosecond" => Value::Int(time.subsec_nanosecond().into()),
            "Month" => text(&self.part("January")),
            "Weekday" => text(&self.part("Monday")),
            "UTC" | "Local" => Value::Time(self.in_zone("UTC")),
            "IsZero" => Value::Bool(self.unix_seconds() == -62_135_596_800),
            "After" => Value::Bool(time.timestamp() > other),
            "Before" => Value::Bool(time.timestamp() < other),
            "Equal" => Value::Bool(time.timestamp() == other),
            "Sub" => {
                let nanos = time.timestamp().as_nanosecond() - other.as_nanosecond();
                Value::Duration(i64::try_from(nanos).unwrap_or(i64::MAX))
            }
            "AddDate" => self.add_date(args)?,
            _ => Value::from(self.text()),
        })
    }

    fn add_date(&self, args: &[Value]) -> Result<Value, Failure> {
        let number = |at: usize| match args.get(at) {
            Some(Value::Int(number)) => *number,
            _ => 0,
        };
        let out_of_range = || Failure::new("time: the date is out of range");
        let zero = jiff::civil::DateTime::ZERO;
        let now = self.0.datetime();
        // Go normalizes: a day beyond the month's end becomes one of the next month.
        let months = i64::from(now.year())
            .saturating_add(number(0))
            .saturating_mul(12)
            .saturating_add(i64::from(now.month()) - 1)
            .saturating_add(number(1));
        let year = i16::try_from(months.div_euclid(12)).map_err(|_| out_of_range())?;
        let month = i8::try_from(months.rem_euclid(12) + 1).map_err(|_| out_of_range())?;
        let days = (i64::from(now.day()) - 1).saturating_add(number(2));
        let span = jiff::Span::new().try_days(days).map_err(|_| out_of_range())?;
        let date = jiff::civil::Date::new(year, month, 1)
            .and_then(|date| date.checked_add(span))
            .map_err(|_| out_of_range())?;
        let date = zero.with().date(date).time(now.time()).build().map_err(|_| out_of_range())?;
        let zoned = date.to_zoned(self.0.time_zone().clone()).map_err(|_| out_of_range())?;
        Ok(Value::Time(Self(zoned)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_format_and_parse_as_in_go() {
        let time = parse("2006-01-02T15:04:05Z07:00", "2023-04-05T06:07:08+02:00").unwrap();
        let table = [
            ("2006-01-02", "2023-04-05"),
            ("Mon Jan _2 15:04:05 2006", "Wed Apr  5 06:07:08 2023"),
            ("02 Jan 06 15:04 -0700", "05 Apr 23 06:07 +0200"),
            ("Monday, January 2 3:04PM", "Wednesday, April 5 6:07AM"),
            ("20060102150405", "20230405060708"),
            ("2006-01-02T15:04:05.000Z", "2023-04-05T06:07:08.000Z"),
            ("002", "095"),
        ];
        for (layout, expected) in table {
            assert_eq!(time.format(layout), expected, "{layout}");
        }
        assert_eq!(time.unix_seconds(), 1_680_667_628);
        assert_eq!(Time::unix(0).text(), "1970-01-01 00:00:00 +0000 UTC");
        assert_eq!(Time::zero().text(), "0001-01-01 00:00:00 +0000 UTC");
        let error = parse("2006-01-02", "x").unwrap_err().to_string();
        let expected = r#"parsing time "x" as "2006-01-02": cannot parse "x" as "2006""#;
        assert_eq!(error, expected);
    }
}
