//! Validation of cron schedules: five fields or a descriptor, according to upstream's parser
//! (`github.com/robfig/cron`).

use crate::field::go_quote;

struct Bounds {
    low: i64,
    high: i64,
    names: &'static [&'static str],
}

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
/// Minute, hour, day of the month, month and day of the week. The first name has the value of the
/// lower bound.
const FIELDS: [Bounds; 5] = [
    Bounds { low: 0, high: 59, names: &[] },
    Bounds { low: 0, high: 23, names: &[] },
    Bounds { low: 1, high: 31, names: &[] },
    Bounds { low: 1, high: 12, names: &MONTHS },
    Bounds { low: 0, high: 6, names: &DAYS },
];
const DESCRIPTORS: [&str; 7] =
    ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];

/// The error of an invalid schedule. The texts are those of `github.com/robfig/cron`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ScheduleError {
    #[error("empty spec string")]
    Empty,
    #[error("expected exactly {} fields, found {}: [{}]", FIELDS.len(), .0.len(), .0.join(" "))]
    FieldCount(Vec<String>),
    #[error("unrecognized descriptor: {0}")]
    Descriptor(String),
    #[error(
        "failed to parse duration {descriptor}: time: invalid duration {}",
        go_quote(.period)
    )]
    Period { descriptor: String, period: String },
    #[error("too many hyphens: {0}")]
    Hyphens(String),
    #[error("too many slashes: {0}")]
    Slashes(String),
    #[error("beginning of range ({start}) below minimum ({low}): {range}")]
    BelowMinimum { start: i64, low: i64, range: String },
    #[error("end of range ({end}) above maximum ({high}): {range}")]
    AboveMaximum { end: i64, high: i64, range: String },
    #[error("beginning of range ({start}) beyond end of range ({end}): {range}")]
    Backwards { start: i64, end: i64, range: String },
    #[error("step of range should be a positive number: {0}")]
    ZeroStep(String),
    #[error("negative number ({number}) not allowed: {text}")]
    Negative { number: i64, text: String },
    #[error("failed to parse int from {text}: strconv.Atoi: parsing {}: {reason}", go_quote(.text))]
    NotANumber { text: String, reason: &'static str },
}

/// Validates a schedule. Ignores the time zone.
///
/// # Errors
///
/// Returns the first error of upstream's parser.
pub(super) fn check(schedule: &str) -> Result<(), ScheduleError> {
    if schedule.is_empty() {
        return Err(ScheduleError::Empty);
    }
    let mut schedule = schedule;
    if schedule.starts_with("TZ=") || schedule.starts_with("CRON_TZ=") {
        // The caller reports the time zone; the rest of the schedule is still validated.
        schedule = schedule.split_once(' ').map_or("", |(_, rest)| rest).trim();
    }
    if schedule.starts_with('@') {
        return descriptor(schedule);
    }
    let fields: Vec<&str> = schedule.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        return Err(ScheduleError::FieldCount(fields.into_iter().map(str::to_owned).collect()));
    }
    fields
        .iter()
        .zip(&FIELDS)
        .flat_map(|(field, bounds)| {
            field.split(',').filter(|one| !one.is_empty()).map(move |one| (one, bounds))
        })
        .try_for_each(|(one, bounds)| range(one, bounds))
}

fn descriptor(text: &str) -> Result<(), ScheduleError> {
    if DESCRIPTORS.contains(&text) {
        return Ok(());
    }
    let Some(period) = text.strip_prefix("@every ") else {
        return Err(ScheduleError::Descriptor(text.to_owned()));
    };
    if is_duration(period) {
        return Ok(());
    }
    Err(ScheduleError::Period { descriptor: text.to_owned(), period: period.to_owned() })
}

/// Reports whether the text is a duration of Go: numbers with units, such as `1h30m`.
fn is_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(end);
        let units = ["ns", "us", "µs", "μs", "ms", "s", "m", "h"];
        let end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let digits = number.chars().any(|c| c.is_ascii_digit());
        if !digits || number.matches('.').count() > 1 || !units.contains(&unit) {
            return false;
        }
        rest = after;
    }
    true
}

fn range(text: &str, bounds: &Bounds) -> Result<(), ScheduleError> {
    let range = || text.to_owned();
    let mut parts = text.split('/');
    let span = parts.next().unwrap_or_default();
    let (step, more) = (parts.next(), parts.next().is_some());
    let ends: Vec<&str> = span.split('-').collect();
    let first = ends.first().copied().unwrap_or_default();
    let (start, mut end) = if matches!(first, "*" | "?") {
        (bounds.low, bounds.high)
    } else {
        let start = number_or_name(first, bounds)?;
        match ends.as_slice() {
            [_] => (start, start),
            [_, last] => (start, number_or_name(last, bounds)?),
            _ => return Err(ScheduleError::Hyphens(range())),
        }
    };
    if more {
        return Err(ScheduleError::Slashes(range()));
    }
    let step = match step {
        Some(step) => {
            let step = number(step)?;
            if ends.len() == 1 {
                end = bounds.high;
            }
            step
        }
        None => 1,
    };
    let (low, high) = (bounds.low, bounds.high);
    if start < low {
        return Err(ScheduleError::BelowMinimum { start, low, range: range() });
    }
    if end > high {
        return Err(ScheduleError::AboveMaximum { end, high, range: range() });
    }
    if start > end {
        return Err(ScheduleError::Backwards { start, end, range: range() });
    }
    if step == 0 {
        return Err(ScheduleError::ZeroStep(range()));
    }
    Ok(())
}

fn number_or_name(text: &str, bounds: &Bounds) -> Result<i64, ScheduleError> {
    let name = text.to_lowercase();
    match bounds.names.iter().position(|known| *known == name) {
        Some(index) => Ok(bounds.low + i64::try_from(index).unwrap_or_default()),
        None => number(text),
    }
}

fn number(text: &str) -> Result<i64, ScheduleError> {
    let failed =
        |reason: &'static str| Err(ScheduleError::NotANumber { text: text.to_owned(), reason });
    match text.parse::<i64>() {
        Ok(number) if number < 0 => Err(ScheduleError::Negative { number, text: text.to_owned() }),
        Ok(number) => Ok(number),
        Err(error) => match error.kind() {
            std::num::IntErrorKind::PosOverflow | std::num::IntErrorKind::NegOverflow => {
                failed("value out of range")
            }
            _ => failed("invalid syntax"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_schedules_are_accepted() {
        for good in [
            "*/5 * * * *",
            "0 3 1,15 jan-mar mon",
            "? ? ? ? ?",
            "5/10 * * * 1-5",
            "@daily",
            "@every 1h30m",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn invalid_schedules_have_the_texts_of_the_parser() {
        for (bad, why) in [
            ("Bad_Name!", "expected exactly 5 fields, found 1: [Bad_Name!]"),
            (
                "*/5 * * * *x",
                "failed to parse int from *x: strconv.Atoi: parsing \"*x\": invalid syntax",
            ),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("5-3 * * * *", "beginning of range (5) beyond end of range (3): 5-3"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("1/2/3 * * * *", "too many slashes: 1/2/3"),
            ("@often", "unrecognized descriptor: @often"),
            ("@every x", "failed to parse duration @every x: time: invalid duration \"x\""),
            ("", "empty spec string"),
        ] {
            assert_eq!(check(bad).unwrap_err().to_string(), why, "{bad}");
        }
    }
}
