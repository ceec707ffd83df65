//! `time.Parse`.

use jiff::tz::{Offset, TimeZone};

use super::{DAYS, MONTHS, Piece, Time, pieces};

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
