//! A histogram of durations to which several tasks add without a lock.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::contract::{BOUNDS, Histogram};

/// Counters from which a [`Histogram`] is read. The counters are read one by one, so a duration
/// that is added meanwhile may be in some of them only.
#[derive(Debug, Default)]
pub(crate) struct Timing {
    /// As [`Histogram::within`].
    within: [AtomicU64; BOUNDS.len()],
    /// Number of durations.
    count: AtomicU64,
    /// Sum of the durations in nanoseconds.
    nanos: AtomicU64,
}

impl Timing {
    /// Adds a duration.
    pub(crate) fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        if let Some(bucket) =
            BOUNDS.iter().position(|bound| seconds <= *bound).and_then(|i| self.within.get(i))
        {
            bucket.fetch_add(1, Relaxed);
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
        for (copy, bucket) in histogram.within.iter_mut().zip(&self.within) {
            *copy = bucket.load(Relaxed);
        }
        histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_counts_in_the_bucket_of_the_first_bound_that_it_does_not_exceed() {
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
