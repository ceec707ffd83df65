//! The scheduled times around the present: which of those that have come is due, and how long it
//! is until the next one. The rules are those of `pkg/controller/cronjob/utils.go`.

use api::cron::Schedule;
use jiff::{SignedDuration, Timestamp};

/// More missed times than this cause a warning event.
const MISSED_MAX: i64 = 100;
/// After the scheduled time, so that clocks agree that it has come (`nextScheduleDelta`).
const DELTA: SignedDuration = SignedDuration::from_millis(100);

/// How many times were missed besides the most recent one, by estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MissedTimes {
    None,
    Few,
    Many,
}

/// The past of a schedule.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RecentTimes {
    /// The time after which scheduled times count.
    pub(super) earliest: Timestamp,
    /// The most recent scheduled time that has come since.
    pub(super) latest: Option<Timestamp>,
    pub(super) missed: MissedTimes,
}

/// The schedule has no two times within five years, as 31 February. The text is upstream's.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("time difference between two schedules is less than 1 second")]
pub(super) struct NeverActive;

/// Returns the most recent scheduled time after `since` and, if there is a deadline, after the
/// times that it leaves out (`mostRecentScheduleTime`).
///
/// The number of missed times is estimated from the first two. The search then begins two such
/// intervals before the estimated last time, so that a schedule with irregular intervals may have
/// no most recent time, as upstream.
pub(super) fn most_recent(
    schedule: &Schedule,
    since: Timestamp,
    deadline: Option<i64>,
    now: Timestamp,
) -> Result<RecentTimes, NeverActive> {
    // A deadline before the first time leaves nothing out.
    let limit = deadline.and_then(|d| now.checked_sub(SignedDuration::from_secs(d)).ok());
    let earliest = limit.map_or(since, |limit| since.max(limit));
    let mut recent = RecentTimes { earliest, latest: None, missed: MissedTimes::None };
    let first = schedule.next(earliest).ok_or(NeverActive)?;
    if now < first {
        return Ok(recent);
    }
    let second = schedule.next(first).ok_or(NeverActive)?;
    if now < second {
        recent.latest = Some(first);
        return Ok(recent);
    }
    let interval = second.duration_since(first).as_secs();
    let elapsed = now.duration_since(first).as_secs();
    let missed = elapsed.checked_div(interval).ok_or(NeverActive)?.saturating_add(1);
    recent.missed = if missed > MISSED_MAX { MissedTimes::Many } else { MissedTimes::Few };
    let back = missed.saturating_sub(2).saturating_mul(interval);
    let begin = first.checked_add(SignedDuration::from_secs(back)).map_err(|_| NeverActive)?;
    let mut at = begin;
    while let Some(next) = schedule.next(at).filter(|next| *next <= now && *next > at) {
        recent.latest = Some(next);
        at = next;
    }
    Ok(recent)
}

/// Returns the wait until the next scheduled time (`nextScheduleTimeDuration`). Deadlines do not
/// count. `None` if there is no next time.
pub(super) fn until_next(
    schedule: &Schedule,
    since: Timestamp,
    now: Timestamp,
) -> Option<SignedDuration> {
    let from = match most_recent(schedule, since, None, now) {
        Ok(RecentTimes { latest: Some(latest), .. }) => latest,
        Ok(RecentTimes { missed: MissedTimes::None, earliest, .. }) => earliest,
        Ok(_) | Err(NeverActive) => now,
    };
    schedule.next(from)?.duration_since(now).checked_add(DELTA)
}
