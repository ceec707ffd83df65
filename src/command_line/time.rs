//! Durations of flags, in Go's format.

use std::time::Duration;

/// Parses `24h`, `1h30m`, `1.5s` or `0`, like `time.ParseDuration` of Go.
///
/// # Errors
/// The message of `time.ParseDuration`, or that the duration is negative.
pub fn duration(text: &str) -> Result<Duration, String> {
    let nanos = api::codec::time::parse_duration(text)?;
    let nanos = u64::try_from(nanos).map_err(|_| "must not be negative".to_owned())?;
    Ok(Duration::from_nanos(nanos))
}
