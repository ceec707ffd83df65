//! `activeDeadlineSeconds`, counted so that a clock that is set meanwhile neither ends pods nor lets them run on.

use std::time::Duration;

use tokio::time::Instant;

use crate::pods::pod::Pod;

/// How long one pod has been active. The wall clock is read once, when its start is first known; from then on the monotonic one counts.
#[derive(Debug, Default)]
pub(super) struct Active {
    /// When that was, and how long the pod had been active then.
    seen: Option<(Instant, Duration)>,
}

impl Active {
    /// What is left of the deadline of a pod that started at `start` (seconds since the epoch), if it has one.
    pub(super) fn left(&mut self, pod: &Pod, start: i64) -> Option<Duration> {
        let limit = u64::try_from(pod.spec().active_deadline_seconds?).ok()?;
        Some(self.left_of(
            Duration::from_secs(limit),
            start,
            base::clock::unix_time(),
            base::clock::now(),
        ))
    }

    /// `start` is in seconds since the epoch. A clock that says less is behind: without one of its own a machine starts in the past.
    fn left_of(&mut self, limit: Duration, start: i64, wall: Duration, now: Instant) -> Duration {
        let (since, before) = *self.seen.get_or_insert_with(|| {
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
    fn a_clock_that_is_set_does_not_change_what_is_left() {
        let (mut active, now) = (Active::default(), base::clock::now());
        let wall = seconds(1_800_000_010);
        assert_eq!(active.left_of(seconds(60), START, wall, now), seconds(50));
        let ahead = wall + seconds(2 * 365 * 86_400);
        assert_eq!(active.left_of(seconds(60), START, ahead, now + seconds(20)), seconds(30));
        assert_eq!(active.left_of(seconds(60), START, seconds(0), now + seconds(49)), seconds(1));
        assert_eq!(active.left_of(seconds(60), START, wall, now + seconds(50)), seconds(0));
        // The deadline may be changed while it runs.
        assert_eq!(active.left_of(seconds(30), START, wall, now + seconds(10)), seconds(10));
    }

    #[test]
    fn a_machine_that_starts_in_1970_gives_a_pod_its_time_and_no_more() {
        let (mut active, now) = (Active::default(), base::clock::now());
        assert_eq!(active.left_of(seconds(60), START, seconds(7), now), seconds(60));
        assert_eq!(
            active.left_of(seconds(60), START, seconds(1_800_009_000), now + seconds(60)),
            seconds(0)
        );
    }
}
