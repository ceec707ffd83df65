//! Durations of flags, in Go's format.

use std::time::Duration;

/// Why a text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// The message of Go's `time.ParseDuration`.
    #[error("{0}")]
    Malformed(String),
    /// A duration below zero.
    #[error("must not be negative")]
    Negative,
}

/// Parses `24h`, `1h30m`, `1.5s` or `0`, like `time.ParseDuration` of Go.
///
/// # Errors
/// The text is malformed, or the duration is negative.
pub fn duration(text: &str) -> Result<Duration, DurationError> {
    let nanos = api::codec::time::parse_duration(text);
    let nanos = nanos.map_err(|e| DurationError::Malformed(e.to_string()))?;
    let nanos = u64::try_from(nanos).map_err(|_| DurationError::Negative)?;
    Ok(Duration::from_nanos(nanos))
}
