//! Lifetimes as Go writes them, and ends of lifetimes.

use std::time::Duration;

/// Reads `24h`, `1h30m`, `90s` or `0`.
///
/// # Errors
/// The form that is wanted.
pub(super) fn parse(text: &str) -> Result<Duration, &'static str> {
    let form = "must be such as 24h, 90m or 0";
    let mut rest = text.trim();
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    let mut seconds = 0_u64;
    if rest.is_empty() {
        return Err(form);
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or(form)?;
        let (number, tail) = rest.split_at(digits);
        let number: u64 = number.parse().map_err(|_| form)?;
        let mut characters = tail.chars();
        let unit = match characters.next() {
            Some('h') => 3600,
            Some('m') => 60,
            Some('s') => 1,
            _ => return Err(form),
        };
        seconds = number.checked_mul(unit).and_then(|n| seconds.checked_add(n)).ok_or(form)?;
        rest = characters.as_str();
    }
    Ok(Duration::from_secs(seconds))
}

/// `2026-11-22T18:00:00Z`: without fractions, as upstream's tokens have it.
pub(super) fn rfc3339(at: jiff::Timestamp) -> String {
    jiff::Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

/// Time left until an end: `23h`, `59m`, `12s`; `<forever>` without one.
pub(super) fn left(end: &str, now: jiff::Timestamp) -> String {
    if end.is_empty() {
        return "<forever>".into();
    }
    let Ok(end) = end.parse::<jiff::Timestamp>() else { return "<invalid>".into() };
    match end.as_second().saturating_sub(now.as_second()) {
        ..=0 => "<expired>".into(),
        seconds @ 7200.. => format!("{}h", seconds / 3600),
        seconds @ 120.. => format!("{}m", seconds / 60),
        seconds => format!("{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_are_read_as_go_writes_them() {
        for (text, seconds) in [
            ("24h", 86_400),
            ("1h30m", 5400),
            ("24h0m0s", 86_400),
            ("90s", 90),
            ("0", 0),
            ("0s", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for bad in
            ["", "h", "24", "1d", "-1h", "1.5h", "99999999999999999999h", "9999999999999999h"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_left_is_told_in_its_largest_unit() {
        let now: jiff::Timestamp = "2026-06-01T00:00:00Z".parse().unwrap();
        for (end, want) in [
            ("", "<forever>"),
            ("soon", "<invalid>"),
            ("2026-05-31T00:00:00Z", "<expired>"),
            ("2026-06-01T00:00:30Z", "30s"),
            ("2026-06-01T00:59:30Z", "59m"),
            ("2026-06-02T00:00:00Z", "24h"),
        ] {
            assert_eq!(left(end, now), want, "{end}");
        }
        assert_eq!(rfc3339("2026-06-01T00:00:00.123Z".parse().unwrap()), "2026-06-01T00:00:00Z");
    }
}
