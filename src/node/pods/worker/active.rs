//! `activeDeadlineSeconds`, independent of changes of the wall clock.

use std::time::Duration;

use tokio::time::Instant;

use crate::pods::pod::Pod;

/// The active time of one pod. The wall clock is read once, when the start time is first known;
/// after that the monotonic clock counts.
#[derive(Debug, Default)]
pub(super) struct ActiveTime {
    /// The time of that reading, and the active time of the pod until then.
    first_reading: Option<(Instant, Duration)>,
}

impl ActiveTime {
    /// Returns the rest of the deadline of a pod that started at `start` (seconds since the epoch),
    /// if it has one.
    pub(super) fn left(&mut self, pod: &Pod, start: i64) -> Option<Duration> {
        let limit = u64::try_from(pod.spec().active_deadline_seconds?).ok()?;
        Some(self.left_of(
            Duration::from_secs(limit),
            start,
            base::clock::unix_time(),
            base::clock::now(),
        ))
    }

    /// `start` is in seconds since the epoch. The wall clock may lie before it: a machine without a
    /// real-time clock boots in the past.
    fn left_of(&mut self, limit: Duration, start: i64, wall: Duration, now: Instant) -> Duration {
        let (since, before) = *self.first_reading.get_or_insert_with(|| {
            let start = Duration::from_secs(u64::try_from(start).unwrap_or_default());
            (now, wall.saturating_sub(start))
        });
        limit.saturating_sub(before).saturating_sub(now.saturating_duration_since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: i64 = 1_800_000_000;

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_changed_clock_does_not_change_the_deadline() {
        let (mut active, now) = (ActiveTime::default(), base::clock::now());
        let wall = seconds(1_800_000_010);
        assert_eq!(active.left_of(seconds(60), START, wall, now), seconds(50));
        let ahead = wall + seconds(2 * 365 * 86_400);
        assert_eq!(active.left_of(seconds(60), START, ahead, now + seconds(20)), seconds(30));
        assert_eq!(active.left_of(seconds(60), START, seconds(0), now + seconds(49)), seconds(1));
        assert_eq!(active.left_of(seconds(60), START, wall, now + seconds(50)), seconds(0));
        // The deadline may change while the pod runs.
        assert_eq!(active.left_of(seconds(30), START, wall, now + seconds(10)), seconds(10));
    }

    #[test]
    fn the_deadline_is_kept_on_a_machine_that_boots_in_1970() {
        let (mut active, now) = (ActiveTime::default(), base::clock::now());
        assert_eq!(active.left_of(seconds(60), START, seconds(7), now), seconds(60));
        assert_eq!(
            active.left_of(seconds(60), START, seconds(1_800_009_000), now + seconds(60)),
            seconds(0)
        );
    }
}
