//! The next activation of a schedule of the calendar. Each rule is that of `SpecSchedule.Next` in
//! `spec.go` of `github.com/robfig/cron/v3`, and of Go's package `time`, on which it builds.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;

/// The bit of a field that was `*` or `?`, without a step above one.
pub(super) const STAR: u64 = 1 << 63;

const MINUTE: i64 = 60;
const HOUR: i64 = 3600;
/// A search ends after this many years.
const YEARS_MAX: i16 = 5;

/// Fields of a schedule as sets of bits, and the time zone that they are meant in.
#[derive(Debug, Clone)]
pub struct Spec {
    pub(super) minute: u64,
    pub(super) hour: u64,
    pub(super) day: u64,
    pub(super) month: u64,
    pub(super) weekday: u64,
    pub(super) zone: TimeZone,
}

/// A second since 1970 with what a clock on the wall shows then.
#[derive(Clone, Copy)]
struct Moment {
    second: i64,
    wall: DateTime,
}

fn has(bits: u64, value: i8) -> bool {
    u32::try_from(value).ok().and_then(|value| bits.checked_shr(value)).is_some_and(|b| b & 1 == 1)
}

impl Spec {
    /// Returns the first activation after a second.
    ///
    /// The search raises the month, then the day, the hour and the minute until they match, and
    /// starts over when one of them wraps around. The first raise sets all lower fields to zero.
    pub(super) fn next(&self, after: i64) -> Option<i64> {
        // A field without a bit (a lone comma) never matches. Upstream searches five years.
        if self.minute == 0 || self.hour == 0 {
            return None;
        }
        let mut at = self.moment(after.checked_add(1)?)?;
        let year_limit = at.wall.year().checked_add(YEARS_MAX)?;
        let mut raised = false;
        'wrapped: while at.wall.year() <= year_limit {
            while !has(self.month, at.wall.month()) {
                if !raised {
                    raised = true;
                    at = self.date(at.wall.date().first_of_month().at(0, 0, 0, 0))?;
                }
                at = self.next_month(at)?;
                if at.wall.month() == 1 {
                    continue 'wrapped;
                }
            }
            while !self.day_matches(at.wall.date()) {
                if !raised {
                    raised = true;
                    at = self.date(at.wall.date().at(0, 0, 0, 0))?;
                }
                at = self.next_day(at)?;
                if at.wall.day() == 1 {
                    continue 'wrapped;
                }
            }
            while !has(self.hour, at.wall.hour()) {
                if !raised {
                    raised = true;
                    at = self.date(at.wall.date().at(at.wall.hour(), 0, 0, 0))?;
                }
                at = self.moment(at.second.checked_add(HOUR)?)?;
                if at.wall.hour() == 0 {
                    continue 'wrapped;
                }
            }
            while !has(self.minute, at.wall.minute()) {
                let mut second = at.second;
                if !raised {
                    raised = true;
                    // Minutes of UTC, whatever the clock on the wall shows.
                    second = second.checked_sub(second.rem_euclid(MINUTE))?;
                }
                at = self.moment(second.checked_add(MINUTE)?)?;
                if at.wall.minute() == 0 {
                    continue 'wrapped;
                }
            }
            let past = i64::from(at.wall.second());
            if past == 0 {
                return Some(at.second);
            }
            raised = true;
            at = self.moment(at.second.checked_add(MINUTE.checked_sub(past)?)?)?;
        }
        None
    }

    /// What the clocks of the time zone show at a second.
    fn moment(&self, second: i64) -> Option<Moment> {
        let wall = self.zone.to_datetime(Timestamp::from_second(second).ok()?);
        Some(Moment { second, wall })
    }

    /// The moment at which clocks show `wall` (Go's `time.Date`). A time that clocks skip or show
    /// twice is taken in the offset of one side of the change, as Go takes it: the offset that
    /// holds at the second that would be this time if the one read as UTC told the offset.
    fn date(&self, wall: DateTime) -> Option<Moment> {
        let utc = TimeZone::UTC.to_timestamp(wall).ok()?.as_second();
        let guess = self.offset(utc)?;
        let offset = if guess == 0 { 0 } else { self.offset(utc.checked_sub(guess)?)? };
        self.moment(utc.checked_sub(offset)?)
    }

    /// Seconds east of UTC.
    fn offset(&self, second: i64) -> Option<i64> {
        let offset = self.zone.to_offset(Timestamp::from_second(second).ok()?);
        Some(i64::from(offset.seconds()))
    }

    /// The same day and time one month later (Go's `AddDate`): what exceeds the month counts on.
    fn next_month(&self, at: Moment) -> Option<Moment> {
        let (year, month) = (at.wall.year(), at.wall.month());
        let first = match month {
            12 => Date::new(year.checked_add(1)?, 1, 1).ok()?,
            _ => Date::new(year, month.checked_add(1)?, 1).ok()?,
        };
        let mut day = first;
        for _ in 1..at.wall.day() {
            day = day.tomorrow().ok()?;
        }
        self.date(day.to_datetime(at.wall.time()))
    }

    /// The same time one day later. If clocks skip midnight, hours are added or taken until the
    /// hour is zero on one side of the change. Where clocks skip a whole day, as in Apia on
    /// 2011-12-30, upstream's search stays on the day before for ever; this one leaves it.
    fn next_day(&self, from: Moment) -> Option<Moment> {
        let mut at = self.date(from.wall.tomorrow().ok()?)?;
        if at.second <= from.second {
            at = self.moment(from.second.checked_add(24_i64.checked_mul(HOUR)?)?)?;
        }
        let hour = i64::from(at.wall.hour());
        let hours = match hour {
            0 => return Some(at),
            13.. => 24_i64.checked_sub(hour)?,
            _ => hour.checked_neg()?,
        };
        self.moment(at.second.checked_add(hours.checked_mul(HOUR)?)?)
    }

    /// With a star in one of the two fields of days, a day must match both, otherwise one of them
    /// (`dayMatches`).
    fn day_matches(&self, date: Date) -> bool {
        let by_day = has(self.day, date.day());
        let by_weekday = has(self.weekday, date.weekday().to_sunday_zero_offset());
        if (self.day | self.weekday) & STAR != 0 {
            by_day && by_weekday
        } else {
            by_day || by_weekday
        }
    }
}
