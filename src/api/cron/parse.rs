//! The parser of schedules. Each rule is that of `parser.go` in `github.com/robfig/cron/v3`.

use jiff::tz::TimeZone;

use super::Schedule;
use super::location::{LocationError, load_location};
use super::spec::{STAR, Spec};
use crate::codec::time::{DurationError, parse_duration};
use crate::field::go_quote;

struct Bounds {
    low: u64,
    high: u64,
    names: &'static [&'static str],
}

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const MINUTES: Bounds = Bounds { low: 0, high: 59, names: &[] };
const HOURS: Bounds = Bounds { low: 0, high: 23, names: &[] };
const DAYS_OF_MONTH: Bounds = Bounds { low: 1, high: 31, names: &[] };
/// The first name has the value of the lower bound.
const MONTHS_OF_YEAR: Bounds = Bounds { low: 1, high: 12, names: &MONTHS };
const DAYS_OF_WEEK: Bounds = Bounds { low: 0, high: 6, names: &DAYS };
const SECOND: i64 = 1_000_000_000;

/// Why a text is not a schedule. The texts are those of `github.com/robfig/cron/v3`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// There is no text.
    #[error("empty spec string")]
    Empty,
    /// A time zone without a schedule after it. Upstream reports the panic of its parser
    /// (`ParseCronScheduleWithPanicRecovery`).
    #[error("invalid schedule format: runtime error: slice bounds out of range [:-1]")]
    NoSchedule,
    /// The time zone is unknown.
    #[error("provided bad location {0}: {1}")]
    Location(String, LocationError),
    /// There are not five fields.
    #[error("expected exactly 5 fields, found {}: [{}]", .0.len(), .0.join(" "))]
    FieldCount(Vec<String>),
    /// `@` with another word.
    #[error("unrecognized descriptor: {0}")]
    Descriptor(String),
    /// `@every` with an invalid duration.
    #[error("failed to parse duration {0}: {1}")]
    Duration(String, DurationError),
    /// A range of three parts.
    #[error("too many hyphens: {0}")]
    Hyphens(String),
    /// A range with two steps.
    #[error("too many slashes: {0}")]
    Slashes(String),
    /// A value below the least of the field.
    #[error("beginning of range ({start}) below minimum ({low}): {range}")]
    BelowMinimum {
        /// The first value of the range.
        start: u64,
        /// The least value of the field.
        low: u64,
        /// The range.
        range: String,
    },
    /// A value above the greatest of the field.
    #[error("end of range ({end}) above maximum ({high}): {range}")]
    AboveMaximum {
        /// The last value of the range.
        end: u64,
        /// The greatest value of the field.
        high: u64,
        /// The range.
        range: String,
    },
    /// A range that ends before it begins.
    #[error("beginning of range ({start}) beyond end of range ({end}): {range}")]
    Backwards {
        /// The first value of the range.
        start: u64,
        /// The last value of the range.
        end: u64,
        /// The range.
        range: String,
    },
    /// A step of zero.
    #[error("step of range should be a positive number: {0}")]
    ZeroStep(String),
    /// A negative step.
    #[error("negative number ({number}) not allowed: {text}")]
    Negative {
        /// The number.
        number: i64,
        /// The text of it.
        text: String,
    },
    /// Neither a number nor a name of the field.
    #[error("failed to parse int from {text}: strconv.Atoi: parsing {}: {reason}", go_quote(.text))]
    NotANumber {
        /// The text.
        text: String,
        /// The reason in the words of Go's package `strconv`.
        reason: &'static str,
    },
}

/// Parses a schedule; see [`Schedule::parse`].
pub(super) fn parse(text: &str, local: &TimeZone) -> Result<Schedule, ScheduleError> {
    if text.is_empty() {
        return Err(ScheduleError::Empty);
    }
    let (mut text, mut zone) = (text, None);
    if let Some(rest) = text.strip_prefix("TZ=").or_else(|| text.strip_prefix("CRON_TZ=")) {
        let (name, rest) = rest.split_once(' ').ok_or(ScheduleError::NoSchedule)?;
        let found = load_location(name).map_err(|e| ScheduleError::Location(name.to_owned(), e))?;
        // Go's `Local` in the schedule is the same as no time zone.
        zone = (name != "Local").then_some(found);
        text = rest.trim();
    }
    let zone = || zone.clone().unwrap_or_else(|| local.clone());
    if text.starts_with('@') {
        return descriptor(text, zone());
    }
    let fields: Vec<&str> = text.split_whitespace().collect();
    let [minute, hour, day, month, weekday] = fields.as_slice() else {
        return Err(ScheduleError::FieldCount(fields.into_iter().map(str::to_owned).collect()));
    };
    Ok(Schedule::Calendar(Spec {
        minute: field(minute, &MINUTES)?,
        hour: field(hour, &HOURS)?,
        day: field(day, &DAYS_OF_MONTH)?,
        month: field(month, &MONTHS_OF_YEAR)?,
        weekday: field(weekday, &DAYS_OF_WEEK)?,
        zone: zone(),
    }))
}

/// A descriptor (`parseDescriptor`): each is five fields in another form.
fn descriptor(text: &str, zone: TimeZone) -> Result<Schedule, ScheduleError> {
    let fields = match text {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        _ => "",
    };
    if !fields.is_empty() {
        return parse(fields, &zone);
    }
    let Some(delay) = text.strip_prefix("@every ") else {
        return Err(ScheduleError::Descriptor(text.to_owned()));
    };
    let nanos = parse_duration(delay).map_err(|e| ScheduleError::Duration(text.to_owned(), e))?;
    // Whole seconds, at least one (`Every`).
    Ok(Schedule::Every((nanos / SECOND).max(1)))
}

/// The bits of a field, a list of ranges (`getField`). Empty elements of the list count nothing, so
/// that a lone comma is a field that no time matches.
fn field(text: &str, bounds: &Bounds) -> Result<u64, ScheduleError> {
    let elements = text.split(',').filter(|element| !element.is_empty());
    elements.map(|element| range(element, bounds)).try_fold(0, |all, bits| Ok(all | bits?))
}

/// The bits of a range: `*`, `?`, a value or two with a hyphen, and optionally a step (`getRange`).
fn range(text: &str, bounds: &Bounds) -> Result<u64, ScheduleError> {
    let range = || text.to_owned();
    let (low, high) = (bounds.low, bounds.high);
    let mut parts = text.split('/');
    let span = parts.next().unwrap_or_default();
    let (step, more) = (parts.next(), parts.next().is_some());
    let mut ends = span.split('-');
    let (first, last) = (ends.next().unwrap_or_default(), ends.next());
    let mut star = 0;
    let (start, mut end) = if matches!(first, "*" | "?") {
        // What follows a hyphen after a star is not read.
        star = STAR;
        (low, high)
    } else {
        let start = number_or_name(first, bounds)?;
        match last {
            None => (start, start),
            Some(_) if ends.next().is_some() => return Err(ScheduleError::Hyphens(range())),
            Some(last) => (start, number_or_name(last, bounds)?),
        }
    };
    if more {
        return Err(ScheduleError::Slashes(range()));
    }
    let mut stride = 1;
    if let Some(step) = step {
        stride = number(step)?;
        // A value with a step reaches to the end of the field.
        if last.is_none() {
            end = high;
        }
        if stride > 1 {
            star = 0;
        }
    }
    if start < low {
        return Err(ScheduleError::BelowMinimum { start, low, range: range() });
    }
    if end > high {
        return Err(ScheduleError::AboveMaximum { end, high, range: range() });
    }
    if start > end {
        return Err(ScheduleError::Backwards { start, end, range: range() });
    }
    if stride == 0 {
        return Err(ScheduleError::ZeroStep(range()));
    }
    let matches = |value: &u64| (value - start).is_multiple_of(stride);
    Ok((start..=end).filter(matches).fold(star, |bits, value| bits | 1 << value))
}

/// The value of a name or a number (`parseIntOrName`).
fn number_or_name(text: &str, bounds: &Bounds) -> Result<u64, ScheduleError> {
    // Go lowers each character to one character.
    let name: String = text.chars().filter_map(|c| c.to_lowercase().next()).collect();
    let found = (bounds.low..).zip(bounds.names).find(|(_, known)| **known == name);
    found.map_or_else(|| number(text), |(value, _)| Ok(value))
}

/// A number that is not negative (`mustParseInt`, `strconv.Atoi`).
fn number(text: &str) -> Result<u64, ScheduleError> {
    let failed =
        |reason: &'static str| Err(ScheduleError::NotANumber { text: text.to_owned(), reason });
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.starts_with('+') {
        return failed("invalid syntax");
    }
    let negative = text.starts_with('-');
    // Go reads 64 bits without a sign before it looks at the range of its type.
    match digits.parse::<u64>() {
        Ok(number) if negative && number > 0 => match 0_i64.checked_sub_unsigned(number) {
            Some(number) => Err(ScheduleError::Negative { number, text: text.to_owned() }),
            None => failed("value out of range"),
        },
        Ok(number) if i64::try_from(number).is_ok() => Ok(number),
        Err(error) if *error.kind() != std::num::IntErrorKind::PosOverflow => {
            failed("invalid syntax")
        }
        _ => failed("value out of range"),
    }
}
