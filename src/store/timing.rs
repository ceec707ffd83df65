//! Collects durations into a histogram.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::contract::{BOUNDS, Histogram};

/// Collects a [`Histogram`].
#[derive(Debug, Default)]
pub(crate) struct Timing {
    within: [AtomicU64; BOUNDS.len()],
    count: AtomicU64,
    nanos: AtomicU64,
}

impl Timing {
    /// Adds a duration.
    pub(crate) fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        if let Some(within) =
            BOUNDS.iter().position(|bound| seconds <= *bound).and_then(|i| self.within.get(i))
        {
            within.fetch_add(1, Relaxed);
        }
        self.count.fetch_add(1, Relaxed);
        self.nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// The histogram of all durations so far.
    pub(crate) fn histogram(&self) -> Histogram {
        let mut histogram = Histogram {
            count: self.count.load(Relaxed),
            sum: Duration::from_nanos(self.nanos.load(Relaxed)),
            ..Histogram::default()
        };
        for (shown, within) in histogram.within.iter_mut().zip(&self.within) {
            *shown = within.load(Relaxed);
        }
        histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_stand_under_the_first_bound_they_do_not_exceed() {
        let timing = Timing::default();
        for millis in [1, 3, 9_000] {
            timing.observe(Duration::from_millis(millis));
        }
        let histogram = timing.histogram();
        assert_eq!((histogram.count, histogram.sum), (3, Duration::from_millis(9_004)));
        assert_eq!((histogram.within[0], histogram.within[1], histogram.within[2]), (1, 0, 1));
        assert_eq!(histogram.within.iter().sum::<u64>(), 2);
    }
}
