//! The grace periods of a shutdown of the machine in files of KubeletConfiguration.

use std::time::Duration;

use node::{PriorityGracePeriod, ShutdownGracePeriod};

use super::flags::SHUTDOWN_MAX;
use crate::command_line::components::Arguments;
use crate::command_line::components::kubelet_config::{
    SHUTDOWN, SHUTDOWN_BY_PRIORITY, SHUTDOWN_CRITICAL,
};
use crate::error_catalogue::CommandError;

/// The grace periods of a file (the kubelet's validation); `None` if no file has any. One that is
/// not set is zero.
///
/// # Errors
/// The first field that is invalid, by name.
pub(super) fn of_files(own: &Arguments) -> Result<Option<ShutdownGracePeriod>, CommandError> {
    let total = own.duration(SHUTDOWN, Duration::ZERO)?;
    let critical = own.duration(SHUTDOWN_CRITICAL, Duration::ZERO)?;
    let is_set = total.is_some() || critical.is_some();
    let (total, critical) = (total.unwrap_or_default(), critical.unwrap_or_default());
    if total > SHUTDOWN_MAX {
        return Err(own.invalid(SHUTDOWN, "must be at most a day"));
    }
    if critical > total {
        return Err(own.invalid(SHUTDOWN_CRITICAL, "must not be longer than shutdownGracePeriod"));
    }
    let Some(text) = own.value(SHUTDOWN_BY_PRIORITY) else {
        return Ok(is_set.then_some(ShutdownGracePeriod::Total { total, critical }));
    };
    if !total.is_zero() {
        let why = "invalid configuration: Cannot specify both shutdownGracePeriodByPodPriority \
                   and shutdownGracePeriod at the same time";
        return Err(own.invalid(SHUTDOWN_BY_PRIORITY, why));
    }
    by_priority(text)
        .map(|periods| Some(ShutdownGracePeriod::ByPriority(periods)))
        .map_err(|error| own.invalid(SHUTDOWN_BY_PRIORITY, error))
}

/// Why periods cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum InvalidPeriods {
    #[error("{0}: must be PRIORITY=SECONDS")]
    Form(String),
    #[error("shutdownGracePeriodSeconds must not be negative")]
    Negative,
    #[error("must be at most a day in all")]
    TooLong,
}

/// `PRIORITY=SECONDS,…`
fn by_priority(text: &str) -> Result<Vec<PriorityGracePeriod>, InvalidPeriods> {
    let period = |part: &str| {
        let parsed = part.split_once('=').and_then(|(priority, seconds)| {
            let (priority, seconds) = (priority.parse().ok()?, seconds.parse().ok()?);
            Some(PriorityGracePeriod { priority, seconds })
        });
        parsed.ok_or_else(|| InvalidPeriods::Form(part.to_owned()))
    };
    let periods: Vec<PriorityGracePeriod> =
        text.split(',').map(period).collect::<Result<_, _>>()?;
    let mut total = Duration::ZERO;
    for period in &periods {
        let seconds = u64::try_from(period.seconds).map_err(|_| InvalidPeriods::Negative)?;
        total = total.saturating_add(Duration::from_secs(seconds));
    }
    if total > SHUTDOWN_MAX { Err(InvalidPeriods::TooLong) } else { Ok(periods) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_line::components::PlacedArgument;
    use crate::command_line::components::kubelet_config::CONFIG_FIELDS;

    fn run(given: &[&str]) -> Result<Option<ShutdownGracePeriod>, String> {
        let given: Vec<PlacedArgument> =
            given.iter().map(|t| PlacedArgument { text: (*t).to_owned(), place: None }).collect();
        let own = CONFIG_FIELDS.parse_given(&given).map_err(|error| error.to_string())?;
        of_files(&own).map_err(|error| error.to_string())
    }

    #[test]
    fn one_period_has_a_part_for_critical_pods() {
        let total = |total, critical| ShutdownGracePeriod::Total {
            total: Duration::from_secs(total),
            critical: Duration::from_secs(critical),
        };
        assert_eq!(run(&[]), Ok(None));
        assert_eq!(run(&["shutdownGracePeriod=20s"]), Ok(Some(total(20, 0))));
        let both = ["shutdownGracePeriod=20s", "shutdownGracePeriodCriticalPods=5s"];
        assert_eq!(run(&both), Ok(Some(total(20, 5))));
    }

    #[test]
    fn each_priority_has_a_period() {
        let period = |(priority, seconds)| PriorityGracePeriod { priority, seconds };
        let periods = [(100_000, 10), (-5, 180), (0, 60)].map(period).to_vec();
        let text = "shutdownGracePeriodByPodPriority=100000=10,-5=180,0=60";
        assert_eq!(run(&[text]), Ok(Some(ShutdownGracePeriod::ByPriority(periods.clone()))));
        // A total of zero is the same as none.
        let zero = run(&[text, "shutdownGracePeriod=0s"]);
        assert_eq!(zero, Ok(Some(ShutdownGracePeriod::ByPriority(periods))));
    }

    #[test]
    fn invalid_periods_are_refused_by_name() {
        for (given, want) in [
            (
                &["shutdownGracePeriodByPodPriority=0=60", "shutdownGracePeriod=20s"][..],
                "shutdownGracePeriodByPodPriority=0=60: invalid configuration: Cannot specify both \
                 shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time",
            ),
            (
                &["shutdownGracePeriodByPodPriority=0=-1"],
                "shutdownGracePeriodSeconds must not be negative",
            ),
            (&["shutdownGracePeriodByPodPriority=0=80000,1=80000"], "must be at most a day in all"),
            (&["shutdownGracePeriodByPodPriority=a=1"], "a=1: must be PRIORITY=SECONDS"),
            (
                &["shutdownGracePeriodCriticalPods=5s"],
                "shutdownGracePeriodCriticalPods=5s: must not be longer than shutdownGracePeriod",
            ),
            (&["shutdownGracePeriod=25h"], "shutdownGracePeriod=25h: must be at most a day"),
        ] {
            let error = run(given).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }
}
