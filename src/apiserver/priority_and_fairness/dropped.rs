//! Calculates `Retry-After` of rejected requests: it grows with the number of rejections
//! (upstream's
//! `dropped_requests_tracker.go`).

use std::collections::VecDeque;

/// The maximum of `Retry-After`, in seconds.
const RETRY_AFTER_MAX: i64 = 32;

/// The recent rejections of one priority level.
#[derive(Debug)]
pub(crate) struct Dropped {
    /// Second and number of rejections, for at most [`RETRY_AFTER_MAX`] seconds.
    history: VecDeque<(i64, i64)>,
    second: i64,
    count: i64,
    retry_after: i64,
    raised: i64,
}

impl Default for Dropped {
    fn default() -> Self {
        Self { history: VecDeque::new(), second: 0, count: 0, retry_after: 1, raised: 0 }
    }
}

impl Dropped {
    /// Records a rejection at this Unix time; returns `Retry-After` in seconds.
    pub(crate) fn record(&mut self, second: i64) -> i64 {
        if self.second == second {
            self.count += 1;
            return self.retry_after;
        }
        self.history.push_back((self.second, self.count));
        let kept = (2 * self.retry_after).min(RETRY_AFTER_MAX);
        while self.history.front().is_some_and(|(at, _)| second - at > kept) {
            self.history.pop_front();
        }
        (self.second, self.count) = (second, 1);
        self.adjust_retry_after(second);
        self.retry_after
    }

    /// Adjusts `Retry-After` by the rejections in the last `retry_after` seconds: doubles it from
    /// three per second on, and decrements it below one per second.
    fn adjust_retry_after(&mut self, second: i64) {
        let recent = |(at, _): &&(i64, i64)| second - at <= self.retry_after && *at < second;
        let dropped: i64 = self.history.iter().filter(recent).map(|(_, count)| count).sum();
        if second - self.raised >= self.retry_after && dropped >= 3 * self.retry_after {
            self.retry_after = (self.retry_after * 2).min(RETRY_AFTER_MAX);
            self.raised = second;
        } else if dropped < self.retry_after && self.retry_after > 1 {
            self.retry_after -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The steps of upstream's `TestDroppedRequestsTracker`: second, rejections, `Retry-After`.
    #[test]
    fn the_wait_doubles_under_pressure_and_shrinks_afterwards() {
        let mut dropped = Dropped::default();
        for (second, rejections, expected) in [
            (0, 5, 1),
            (1, 11, 2),
            (2, 1, 2),
            (3, 11, 4),
            (4, 1, 4),
            (7, 1, 8),
            (11, 1, 8),
            (15, 1, 7),
            (17, 1, 6),
            (21, 14, 5),
            (22, 1, 10),
        ] {
            let now = 1_700_000_000 + second;
            let last = (0..rejections).map(|_| dropped.record(now)).last();
            assert_eq!(last, Some(expected), "second {second}");
        }
    }

    #[test]
    fn retry_after_is_at_most_32_seconds() {
        let mut dropped = Dropped::default();
        let last = (0..400).map(|at| (0..100).map(|_| dropped.record(1000 + at)).last()).last();
        assert_eq!(last, Some(Some(32)));
    }
}
