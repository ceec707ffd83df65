//! Schedules of CronJobs: upstream's parser (`github.com/robfig/cron/v3`, `ParseStandard`) and the
//! times at which a schedule activates, to the second as upstream's, over changes of clocks too.

mod location;
mod parse;
mod spec;
#[cfg(test)]
mod upstream_test;

use jiff::Timestamp;
use jiff::tz::TimeZone;

pub use location::{LocationError, load_location};
pub use parse::ScheduleError;
pub use spec::Spec;

/// A parsed schedule.
#[derive(Debug, Clone)]
pub enum Schedule {
    /// Times of the calendar.
    Calendar(Spec),
    /// `@every`: this many seconds after the time before (`ConstantDelaySchedule`).
    Every(i64),
}

impl Schedule {
    /// Parses five fields or a descriptor such as `@daily`, optionally after `TZ=` or `CRON_TZ=`
    /// with a time zone. Without one the schedule follows `local`.
    ///
    /// # Errors
    ///
    /// Returns the error of upstream's parser.
    pub fn parse(text: &str, local: &TimeZone) -> Result<Self, ScheduleError> {
        parse::parse(text, local)
    }

    /// Returns the first activation after `at`, in whole seconds. `None` if there is none within
    /// five years, as for 31 February.
    pub fn next(&self, at: Timestamp) -> Option<Timestamp> {
        // Floor, also before 1970.
        let second = at.as_nanosecond().div_euclid(1_000_000_000);
        let second = i64::try_from(second).ok()?;
        let next = match self {
            Self::Calendar(spec) => spec.next(second)?,
            Self::Every(seconds) => second.checked_add(*seconds)?,
        };
        Timestamp::from_second(next).ok()
    }
}
