//! Parses the flags of upstream's API server for the number of concurrent requests.

/// `--max-requests-inflight`, `--max-mutating-requests-inflight` and
/// `--enable-priority-and-fairness`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowFlags {
    /// The maximum number of concurrent reading requests; 0 is no limit.
    pub reads: usize,
    /// The maximum number of concurrent mutating requests; 0 is no limit.
    pub writes: usize,
    /// Whether flow schemas and priority levels apply; the sum of both limits is the number of
    /// seats then.
    pub enabled: bool,
}

impl Default for FlowFlags {
    /// Upstream's defaults.
    fn default() -> Self {
        Self { reads: 400, writes: 200, enabled: true }
    }
}

const READS: &str = "max-requests-inflight";
const WRITES: &str = "max-mutating-requests-inflight";
const ENABLED: &str = "enable-priority-and-fairness";

/// A flag is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// The value is not a boolean.
    #[error("{ENABLED}={0}: must be true or false")]
    NotABoolean(String),
    /// The value is not a number.
    #[error("{flag}={value}: must be a number")]
    NotANumber {
        /// The flag.
        flag: String,
        /// The value.
        value: String,
    },
    /// The value is negative.
    #[error("--{0} can not be negative value")]
    Negative(String),
    /// There are no seats (upstream's `BuildPriorityAndFairness`).
    #[error(
        "invalid configuration: {READS}=0 and {WRITES}=0; they must add up to something positive, or {ENABLED} be false"
    )]
    NoSeats,
}

/// Whether this is one of these flags.
pub fn is_flag(name: &str) -> bool {
    matches!(name, READS | WRITES | ENABLED)
}

impl FlowFlags {
    /// Parses `NAME=VALUE` arguments; others than those of [`is_flag`] are ignored.
    ///
    /// # Errors
    /// If a value is invalid.
    pub fn parse(arguments: &[String]) -> Result<Self, FlagError> {
        let mut flags = Self::default();
        for argument in arguments {
            let (name, value) = component_config::flags::parts(argument);
            match name {
                READS => flags.reads = number(name, value)?,
                WRITES => flags.writes = number(name, value)?,
                ENABLED => {
                    flags.enabled = match value {
                        None | Some("true") => true,
                        Some("false") => false,
                        Some(other) => {
                            return Err(FlagError::NotABoolean(other.to_owned()));
                        }
                    };
                }
                _ => {}
            }
        }
        if flags.enabled && flags.reads + flags.writes == 0 {
            return Err(FlagError::NoSeats);
        }
        Ok(flags)
    }
}

fn number(flag: &str, value: Option<&str>) -> Result<usize, FlagError> {
    let text = value.unwrap_or_default();
    let number: i32 = text
        .parse()
        .map_err(|_| FlagError::NotANumber { flag: flag.to_owned(), value: text.to_owned() })?;
    usize::try_from(number).map_err(|_| FlagError::Negative(flag.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Result<FlowFlags, FlagError> {
        FlowFlags::parse(&arguments.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn flags_are_parsed_or_rejected() {
        assert_eq!(read(&["audit-log-path=-"]), Ok(FlowFlags::default()));
        let flags = read(&["max-requests-inflight=10", "max-mutating-requests-inflight=5"]);
        assert_eq!(flags, Ok(FlowFlags { reads: 10, writes: 5, enabled: true }));
        assert!(
            !read(&["enable-priority-and-fairness=false", "max-requests-inflight=0"])
                .unwrap()
                .enabled
        );
        assert_eq!(
            read(&["max-requests-inflight=-1"]).unwrap_err().to_string(),
            "--max-requests-inflight can not be negative value"
        );
        assert!(read(&["max-requests-inflight=0", "max-mutating-requests-inflight=0"]).is_err());
        assert!(read(&["enable-priority-and-fairness=yes"]).is_err());
        assert!(is_flag("max-requests-inflight") && !is_flag("max-requests"));
    }
}
