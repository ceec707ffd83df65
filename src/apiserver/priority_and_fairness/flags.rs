//! The API server's flags about how much it answers at once.

/// `--max-requests-inflight`, `--max-mutating-requests-inflight` and
/// `--enable-priority-and-fairness`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Reading requests at once; 0 is no limit of their own.
    pub reads: usize,
    /// Changing requests at once.
    pub writes: usize,
    /// Flow schemas and priority levels decide; without, the two numbers alone.
    pub enabled: bool,
}

impl Default for Settings {
    /// Upstream's.
    fn default() -> Self {
        Self { reads: 400, writes: 200, enabled: true }
    }
}

const READS: &str = "max-requests-inflight";
const WRITES: &str = "max-mutating-requests-inflight";
const ENABLED: &str = "enable-priority-and-fairness";

/// The flag is one of these.
pub fn is_flag(name: &str) -> bool {
    matches!(name, READS | WRITES | ENABLED)
}

impl Settings {
    /// Reads arguments `NAME=VALUE`, all of which [`is_flag`] knows.
    ///
    /// # Errors
    /// A sentence with the flag whose value makes no sense.
    pub fn of(arguments: &[String]) -> Result<Self, String> {
        let mut settings = Self::default();
        for argument in arguments {
            let (name, value) = crate::flags::parts(argument);
            match name {
                READS => settings.reads = number(name, value)?,
                WRITES => settings.writes = number(name, value)?,
                ENABLED => {
                    settings.enabled = match value {
                        None | Some("true") => true,
                        Some("false") => false,
                        Some(other) => {
                            return Err(format!("{ENABLED}={other}: must be true or false"));
                        }
                    };
                }
                _ => {}
            }
        }
        if settings.enabled && settings.reads + settings.writes == 0 {
            // As upstream's `BuildPriorityAndFairness`.
            return Err(format!(
                "invalid configuration: {READS}=0 and {WRITES}=0; they must add up to something positive, or {ENABLED} be false"
            ));
        }
        Ok(settings)
    }
}

fn number(name: &str, value: Option<&str>) -> Result<usize, String> {
    let text = value.unwrap_or_default();
    let number: i32 = text.parse().map_err(|_| format!("{name}={text}: must be a number"))?;
    usize::try_from(number).map_err(|_| format!("--{name} can not be negative value"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Result<Settings, String> {
        Settings::of(&arguments.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn flags_are_read_or_refused() {
        assert_eq!(read(&["audit-log-path=-"]), Ok(Settings::default()));
        let settings = read(&["max-requests-inflight=10", "max-mutating-requests-inflight=5"]);
        assert_eq!(settings, Ok(Settings { reads: 10, writes: 5, enabled: true }));
        assert!(
            !read(&["enable-priority-and-fairness=false", "max-requests-inflight=0"])
                .unwrap()
                .enabled
        );
        assert_eq!(
            read(&["max-requests-inflight=-1"]),
            Err("--max-requests-inflight can not be negative value".into())
        );
        assert!(read(&["max-requests-inflight=0", "max-mutating-requests-inflight=0"]).is_err());
        assert!(read(&["enable-priority-and-fairness=yes"]).is_err());
        assert!(is_flag("max-requests-inflight") && !is_flag("max-requests"));
    }
}
