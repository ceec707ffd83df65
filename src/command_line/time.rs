//! Times as flags take them: Go's durations.

use std::time::Duration;

/// Reads `24h`, `1h30m`, `1.5s` or `0`, as every tool of Kubernetes does.
///
/// # Errors
/// Go's sentence, or that it must not be negative.
pub fn duration(text: &str) -> Result<Duration, String> {
    let nanos = api::codec::time::parse_duration(text)?;
    let nanos = u64::try_from(nanos).map_err(|_| "must not be negative".to_owned())?;
    Ok(Duration::from_nanos(nanos))
}
