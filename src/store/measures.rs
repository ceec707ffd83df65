//! What the store counts and times, for whoever shows it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of a [`Histogram`] in seconds, as etcd's of its disk: 1 ms, doubled up to 8.192 s.
pub const BOUNDS: [f64; 14] = [
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096,
    8.192,
];

/// How long something took, each time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Histogram {
    /// How often it took at most [`BOUNDS`], but longer than the bound before; longer times are in `count` alone.
    pub within: [u64; BOUNDS.len()],
    /// How often.
    pub count: u64,
    /// Sum of the times.
    pub sum: Duration,
}

/// Collects a [`Histogram`].
#[derive(Debug, Default)]
pub(crate) struct Timing {
    within: [AtomicU64; BOUNDS.len()],
    count: AtomicU64,
    nanos: AtomicU64,
}

impl Timing {
    /// Adds one.
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

    /// What was collected.
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

/// What was counted since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Measures {
    /// Changes of the leader that were seen here.
    pub leader_changes: u64,
    /// Commands that wait for their entry.
    pub pending: usize,
    /// Commands that nobody took.
    pub failed: u64,
    /// Index of the newest entry known to be committed.
    pub committed: u64,
    /// Syncs of the log.
    pub syncs: Histogram,
    /// Bytes written to the log.
    pub log_bytes: u64,
    /// What the key space counted.
    pub keys: KeyMeasures,
    /// Watches that run.
    pub watchers: usize,
    /// Leases.
    pub leases: LeaseMeasures,
}

/// What the key space counted since the start, restarts replay what is not in a checkpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyMeasures {
    /// Puts.
    pub puts: u64,
    /// Deletions, each of a range.
    pub deletes: u64,
    /// Transactions of several steps.
    pub txns: u64,
    /// Reads, those in transactions too.
    pub ranges: u64,
    /// Changes told to watches, before anybody is asked whether they want them.
    pub events: u64,
    /// Versions that compaction dropped.
    pub compacted: u64,
}

/// What happened to leases since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeaseMeasures {
    /// Granted.
    pub granted: u64,
    /// Ended, by request or because they ran out.
    pub revoked: u64,
    /// Renewed here.
    pub renewed: u64,
    /// Ended by this member because they ran out.
    pub expired: u64,
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
