//! Cron schedules: five fields or a descriptor, as the parser that upstream uses takes and refuses
//! them.

use crate::field::go_quote;

struct Bounds {
    low: i64,
    high: i64,
    names: &'static [&'static str],
}

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
/// Minute, hour, day of the month, month, day of the week; names count from the lower bound.
const FIELDS: [Bounds; 5] = [
    Bounds { low: 0, high: 59, names: &[] },
    Bounds { low: 0, high: 23, names: &[] },
    Bounds { low: 1, high: 31, names: &[] },
    Bounds { low: 1, high: 12, names: &MONTHS },
    Bounds { low: 0, high: 6, names: &DAYS },
];
const DESCRIPTORS: [&str; 7] =
    ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];

/// Judges a schedule without time zone.
///
/// # Errors
/// What is wrong, in upstream's words.
pub(super) fn check(schedule: &str) -> Result<(), String> {
    if schedule.is_empty() {
        return Err("empty spec string".into());
    }
    let mut schedule = schedule;
    if schedule.starts_with("TZ=") || schedule.starts_with("CRON_TZ=") {
        // That there is a zone is refused by name; what follows it is judged all the same.
        schedule = schedule.split_once(' ').map_or("", |(_, rest)| rest).trim();
    }
    if schedule.starts_with('@') {
        return descriptor(schedule);
    }
    let fields: Vec<&str> = schedule.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        return Err(format!(
            "expected exactly {} fields, found {}: [{}]",
            FIELDS.len(),
            fields.len(),
            fields.join(" ")
        ));
    }
    fields
        .iter()
        .zip(&FIELDS)
        .flat_map(|(field, bounds)| {
            field.split(',').filter(|one| !one.is_empty()).map(move |one| (one, bounds))
        })
        .try_for_each(|(one, bounds)| range(one, bounds))
}

fn descriptor(text: &str) -> Result<(), String> {
    if DESCRIPTORS.contains(&text) {
        return Ok(());
    }
    let Some(period) = text.strip_prefix("@every ") else {
        return Err(format!("unrecognized descriptor: {text}"));
    };
    if is_duration(period) {
        return Ok(());
    }
    Err(format!("failed to parse duration {text}: time: invalid duration {}", go_quote(period)))
}

/// Go's durations: numbers with units, such as `1h30m`.
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

fn range(text: &str, bounds: &Bounds) -> Result<(), String> {
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
            _ => return Err(format!("too many hyphens: {text}")),
        }
    };
    if more {
        return Err(format!("too many slashes: {text}"));
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
        return Err(format!("beginning of range ({start}) below minimum ({low}): {text}"));
    }
    if end > high {
        return Err(format!("end of range ({end}) above maximum ({high}): {text}"));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {text}"));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {text}"));
    }
    Ok(())
}

fn number_or_name(text: &str, bounds: &Bounds) -> Result<i64, String> {
    let name = text.to_lowercase();
    match bounds.names.iter().position(|known| *known == name) {
        Some(index) => Ok(bounds.low + i64::try_from(index).unwrap_or_default()),
        None => number(text),
    }
}

fn number(text: &str) -> Result<i64, String> {
    let failed = |why: &str| {
        Err(format!(
            "failed to parse int from {text}: strconv.Atoi: parsing {}: {why}",
            go_quote(text)
        ))
    };
    match text.parse::<i64>() {
        Ok(number) if number < 0 => Err(format!("negative number ({number}) not allowed: {text}")),
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
    fn what_the_parser_takes() {
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
    fn what_it_refuses() {
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
            assert_eq!(check(bad), Err(why.to_owned()), "{bad}");
        }
    }
}
