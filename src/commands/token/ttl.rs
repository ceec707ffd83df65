//! Formats the expiration of tokens.

/// `2026-11-22T18:00:00Z`, without fractions, as in upstream's tokens.
pub(super) fn rfc3339(at: jiff::Timestamp) -> String {
    jiff::Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

/// Remaining time until `end`: `23h`, `59m`, `12s`; `<forever>` without one.
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
    fn remaining_time_is_shown_in_its_largest_unit() {
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
