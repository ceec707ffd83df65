//! `time.Time`: layouts, parsing and the methods that templates call.

use jiff::tz::{Offset, TimeZone};
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

/// The text does not follow the layout.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ParseTimeError {
    #[error("parsing time {0} as {1}: cannot parse {2} as {3}")]
    Part(String, String, String, String),
    #[error("parsing time {0}: extra text: {1}")]
    Extra(String, String),
    #[error("parsing time {0}: {1} out of range")]
    Range(String, &'static str),
}

/// Numbers read so far.
struct Fields {
    year: i16,
    month: i8,
    day: i8,
    hour: i8,
    minute: i8,
    second: i8,
    nanos: i32,
    afternoon: Option<bool>,
    offset: Option<i32>,
}

fn digits(text: &str, least: usize, most: usize) -> Option<(i16, &str)> {
    let count = text.bytes().take(most).take_while(u8::is_ascii_digit).count();
    if count < least {
        return None;
    }
    let (number, rest) = text.split_at(count);
    Some((number.parse().ok()?, rest))
}

fn name<'t>(text: &'t str, names: &[&str], short: bool) -> Option<(i16, &'t str)> {
    for (at, name) in (0..).zip(names) {
        let name = if short { name.get(..3)? } else { name };
        if text.get(..name.len()).is_some_and(|head| head.eq_ignore_ascii_case(name)) {
            return Some((at, text.get(name.len()..)?));
        }
    }
    None
}

fn zone_offset<'t>(text: &'t str, part: &str) -> Option<(i32, &'t str)> {
    if let Some(rest) = text.strip_prefix('Z').filter(|_| part.starts_with('Z')) {
        return Some((0, rest));
    }
    let sign = match text.bytes().next()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, mut rest) = digits(text.get(1..)?, 2, 2)?;
    let mut seconds = i32::from(hours) * 3600;
    let form = part.get(3..).unwrap_or_default();
    let fields = form.bytes().filter(|byte| *byte == b'0').count() / 2;
    for scale in [60, 1].into_iter().take(fields) {
        if form.contains(':') {
            rest = rest.strip_prefix(':')?;
        }
        let (number, tail) = digits(rest, 2, 2)?;
        seconds += i32::from(number) * scale;
        rest = tail;
    }
    Some((sign * seconds, rest))
}

impl Fields {
    fn read<'t>(&mut self, part: &str, text: &'t str) -> Option<&'t str> {
        let small = |number: i16| i8::try_from(number).ok();
        let (number, rest) = match part {
            "2006" => digits(text, 4, 4)?,
            "06" => digits(text, 2, 2)?,
            "01" | "02" | "04" | "05" | "15" | "03" => {
                digits(text, if part == "15" { 1 } else { 2 }, 2)?
            }
            "1" | "2" | "3" | "4" | "5" => digits(text, 1, 2)?,
            "_2" => digits(text.strip_prefix(' ').unwrap_or(text), 1, 2)?,
            "002" => digits(text, 3, 3)?,
            "January" => name(text, &MONTHS, false)?,
            "Jan" => name(text, &MONTHS, true)?,
            "Monday" => name(text, &DAYS, false)?,
            "Mon" => name(text, &DAYS, true)?,
            "PM" | "pm" => name(text, &["AM", "PM"], false)?,
            "MST" => {
                let count = text.bytes().take_while(u8::is_ascii_uppercase).count();
                let (zone, rest) = text.split_at(count);
                if count < 3 {
                    return None;
                }
                self.offset = Some(self.offset.unwrap_or(0)).filter(|_| !zone.is_empty());
                return Some(rest);
            }
            part => {
                let (seconds, rest) = zone_offset(text, part)?;
                self.offset = Some(seconds);
                return Some(rest);
            }
        };
        match part {
            "2006" => self.year = number,
            "06" => self.year = if number >= 69 { 1900 + number } else { 2000 + number },
            "01" | "1" => self.month = small(number)?,
            "January" | "Jan" => self.month = small(number + 1)?,
            "02" | "2" | "_2" => self.day = small(number)?,
            "15" | "03" | "3" => self.hour = small(number)?,
            "04" | "4" => self.minute = small(number)?,
            "05" | "5" => self.second = small(number)?,
            "PM" | "pm" => self.afternoon = Some(number == 1),
            _ => {}
        }
        Some(rest)
    }

    fn fraction<'t>(&mut self, text: &'t str) -> Option<&'t str> {
        let tail = text.strip_prefix(['.', ','])?;
        let count = tail.bytes().take_while(u8::is_ascii_digit).count();
        if count == 0 {
            return None;
        }
        let (number, rest) = tail.split_at(count);
        let padded = format!("{number:0<9}");
        self.nanos = padded.get(..9)?.parse().ok()?;
        Some(rest)
    }

    fn range_error(&self) -> Option<&'static str> {
        let month = !(1..=12).contains(&self.month);
        let checks = [
            (month, "month"),
            (!(1..=31).contains(&self.day), "day"),
            (!(0..24).contains(&self.hour), "hour"),
            (!(0..60).contains(&self.minute), "minute"),
            (!(0..60).contains(&self.second), "second"),
        ];
        checks.into_iter().find(|(wrong, _)| *wrong).map(|(_, name)| name)
    }
}

/// `time.ParseInLocation` in UTC.
///
/// # Errors
///
/// Go's text when the text does not follow the layout.
pub(crate) fn parse(layout: &str, text: &str) -> Result<Time, ParseTimeError> {
    use crate::go::quote::quote;

    let mut fields = Fields {
        year: 0,
        month: 1,
        day: 1,
        hour: 0,
        minute: 0,
        second: 0,
        nanos: 0,
        afternoon: None,
        offset: None,
    };
    let mut rest = text;
    for piece in pieces(layout) {
        let (next, part) = match &piece {
            Piece::Text(plain) => (rest.strip_prefix(plain), *plain),
            Piece::Fraction(_, _, true) => (fields.fraction(rest), ".000"),
            Piece::Fraction(..) => (Some(fields.fraction(rest).unwrap_or(rest)), ""),
            Piece::Part(part) => {
                let next = fields.read(part, rest);
                // A fraction may follow seconds though the layout has none.
                let next = match next {
                    Some(next) if matches!(*part, "05" | "5") && next.starts_with('.') => {
                        Some(fields.fraction(next).unwrap_or(next))
                    }
                    next => next,
                };
                (next, *part)
            }
        };
        rest = next.ok_or_else(|| {
            ParseTimeError::Part(quote(text), quote(layout), quote(rest), quote(part))
        })?;
    }
    if !rest.is_empty() {
        return Err(ParseTimeError::Extra(quote(text), quote(rest)));
    }
    match fields.afternoon {
        Some(true) if fields.hour < 12 => fields.hour += 12,
        Some(false) if fields.hour == 12 => fields.hour = 0,
        _ => {}
    }
    if let Some(name) = fields.range_error() {
        return Err(ParseTimeError::Range(quote(text), name));
    }
    let zone = match fields.offset {
        Some(seconds) if seconds != 0 => Offset::from_seconds(seconds)
            .map(TimeZone::fixed)
            .map_err(|_| ParseTimeError::Range(quote(text), "time zone offset"))?,
        _ => TimeZone::UTC,
    };
    let (hour, minute, second) = (fields.hour, fields.minute, fields.second);
    jiff::civil::DateTime::new(
        fields.year,
        fields.month,
        fields.day,
        hour,
        minute,
        second,
        fields.nanos,
    )
    .and_then(|date| date.to_zoned(zone))
    .map(Time)
    .map_err(|_| ParseTimeError::Range(quote(text), "day"))
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
