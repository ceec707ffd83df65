//! When a refused client should come again: longer when many were refused (upstream's
//! `dropped_requests_tracker.go`).

use std::collections::VecDeque;

/// The longest wait that is asked for, in seconds.
const RETRY_AFTER_MAX: i64 = 32;

/// Refusals of one priority level.
#[derive(Debug)]
pub(crate) struct Dropped {
    /// Second and number of refusals, at most [`RETRY_AFTER_MAX`] seconds back.
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
    /// One more at this second since the epoch; what to ask the client for, in seconds.
    pub(crate) fn note(&mut self, second: i64) -> i64 {
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
        self.judge(second);
        self.retry_after
    }

    /// Looks back over as many seconds as clients are asked to wait: doubled for three refusals a
    /// second, one less for less than one.
    fn judge(&mut self, second: i64) {
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

    /// The steps of upstream's `TestDroppedRequestsTracker`: second, refusals within it, what is
    /// asked for then.
    #[test]
    fn the_wait_doubles_under_pressure_and_shrinks_afterwards() {
        let mut dropped = Dropped::default();
        for (second, refusals, expected) in [
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
            let last = (0..refusals).map(|_| dropped.note(now)).last();
            assert_eq!(last, Some(expected), "second {second}");
        }
    }

    #[test]
    fn nobody_is_asked_to_wait_for_more_than_32_seconds() {
        let mut dropped = Dropped::default();
        let last = (0..400).map(|at| (0..100).map(|_| dropped.note(1000 + at)).last()).last();
        assert_eq!(last, Some(Some(32)));
    }
}
