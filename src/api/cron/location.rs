//! Time zones by name, as Go's `time.LoadLocation` finds them.

use jiff::tz::{TimeZone, TimeZoneDatabase};

/// Why there is no such time zone. The texts are those of Go's package `time`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LocationError {
    /// No name of the database, or one in other letters: names are case-sensitive.
    #[error("unknown time zone {0}")]
    Unknown(String),
    /// A path that could leave the database.
    #[error("time: invalid location name")]
    InvalidName,
}

/// Returns the time zone of a name: UTC without a name, `Local` the one of the machine, otherwise
/// one of the machine's database or, if that lacks it, of the database in the program.
///
/// # Errors
///
/// Returns the error of Go's `time.LoadLocation`.
pub fn load_location(name: &str) -> Result<TimeZone, LocationError> {
    match name {
        "" | "UTC" => return Ok(TimeZone::UTC),
        "Local" => return Ok(TimeZone::system()),
        _ => {}
    }
    if name.contains("..") || name.starts_with(['/', '\\']) {
        return Err(LocationError::InvalidName);
    }
    let exact = |zone: &TimeZone| zone.iana_name() == Some(name);
    let found = TimeZone::get(name).ok().filter(exact);
    found
        .or_else(|| TimeZoneDatabase::bundled().get(name).ok().filter(exact))
        .ok_or_else(|| LocationError::Unknown(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_exact_and_do_not_leave_the_database() {
        for (name, text) in [
            ("europe/berlin", "unknown time zone europe/berlin"),
            ("local", "unknown time zone local"),
            ("Mars/Base", "unknown time zone Mars/Base"),
            ("../etc/localtime", "time: invalid location name"),
            ("/etc/localtime", "time: invalid location name"),
        ] {
            assert_eq!(load_location(name).unwrap_err().to_string(), text, "{name}");
        }
        for name in ["", "UTC", "Local", "Europe/Berlin", "US/Eastern", "Etc/GMT+5"] {
            assert!(load_location(name).is_ok(), "{name}");
        }
    }
}
