//! Histograms with a bucket per power of two, which openraft uses for batch statistics.
//!
//! Replaces the crate of this name (`[patch.crates-io]`), which computes tables for sixteen
//! precisions when the first histogram is created: 26 MB and tens of milliseconds at every start,
//! for statistics that are not used here.

use std::fmt;
use std::marker::PhantomData;

/// One bucket for 0 and one for each number of bits of a value.
const BUCKETS: usize = 65;

/// Counts of values by magnitude. `T` is the label type of the replaced crate's time slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram<T = ()> {
    counts: Box<[u64; BUCKETS]>,
    label: PhantomData<T>,
}

impl<T> Default for Histogram<T> {
    fn default() -> Self {
        Self { counts: Box::new([0; BUCKETS]), label: PhantomData }
    }
}

impl<T> Histogram<T> {
    /// Creates an empty histogram.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts one value.
    pub fn record(&mut self, value: u64) {
        self.record_n(value, 1);
    }

    /// Counts a value this many times.
    pub fn record_n(&mut self, value: u64, times: u64) {
        let bucket = (u64::BITS - value.leading_zeros()) as usize;
        if let Some(count) = self.counts.get_mut(bucket) {
            *count = count.saturating_add(times);
        }
    }

    /// The number of counted values.
    pub fn total(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The upper bound of the bucket with this quantile, in thousandths; 0 without values.
    fn at(&self, per_mille: u64) -> u64 {
        let wanted = u128::from(self.total()) * u128::from(per_mille);
        let mut seen = 0;
        for (bits, count) in self.counts.iter().enumerate() {
            seen += u128::from(*count) * 1000;
            if *count > 0 && seen >= wanted {
                return u32::try_from(bits)
                    .map_or(0, |bits| u64::MAX.checked_shr(64 - bits).unwrap_or(0));
            }
        }
        0
    }

    /// The usual percentiles, rounded up to the upper bounds of their buckets.
    pub fn percentile_stats(&self) -> PercentileStats {
        PercentileStats {
            samples: self.total(),
            p0_1: self.at(1),
            p1: self.at(10),
            p5: self.at(50),
            p10: self.at(100),
            p50: self.at(500),
            p90: self.at(900),
            p99: self.at(990),
            p99_9: self.at(999),
        }
    }
}

/// Percentiles of a histogram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say which percentile")]
pub struct PercentileStats {
    /// The number of counted values.
    pub samples: u64,
    pub p0_1: u64,
    pub p1: u64,
    pub p5: u64,
    pub p10: u64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p99_9: u64,
}

impl fmt::Display for PercentileStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { samples, p0_1, p1, p5, p10, p50, p90, p99, p99_9 } = self;
        write!(
            f,
            "{samples} samples, P0.1 {p0_1}, P1 {p1}, P5 {p5}, P10 {p10}, P50 {p50}, P90 {p90}, P99 {p99}, P99.9 {p99_9}"
        )
    }
}

/// A table of several histograms, one per line.
#[derive(Debug, Clone, Default)]
pub struct AsciiChart(Vec<(String, PercentileStats)>);

impl AsciiChart {
    /// Creates an empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a line.
    #[must_use]
    pub fn add<T>(mut self, name: impl Into<String>, histogram: Histogram<T>) -> Self {
        self.0.push((name.into(), histogram.percentile_stats()));
        self
    }
}

impl fmt::Display for AsciiChart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(name, stats)| writeln!(f, "{name}: {stats}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_the_upper_ends_of_their_buckets() {
        let mut histogram = Histogram::<()>::new();
        assert_eq!(histogram.percentile_stats().p99, 0);
        histogram.record(0);
        histogram.record_n(5, 98);
        histogram.record(u64::MAX);
        let stats = histogram.percentile_stats();
        assert_eq!((stats.samples, stats.p1, stats.p50, stats.p99), (100, 0, 7, 7));
        assert_eq!(stats.p99_9, u64::MAX);
    }
}
