//! Samples of how many pods are scheduled per second, as upstream's `throughputCollector` takes
//! them.

use std::time::Duration;

/// How often the scheduled pods are counted; upstream's `throughputSampleInterval`.
pub(crate) const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// The samples of one measurement.
#[derive(Default)]
pub(crate) struct Samples {
    last: Option<(Duration, u64)>,
    skipped: usize,
    rates: Vec<f64>,
}

/// What upstream reports of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) average: f64,
    pub(crate) perc50: f64,
    pub(crate) perc90: f64,
    pub(crate) perc95: f64,
    pub(crate) perc99: f64,
    pub(crate) samples: usize,
}

impl Samples {
    /// Takes a sample at the time `now` since the begin, when `scheduled` pods have been scheduled.
    ///
    /// The first sample with a scheduled pod is only the start: creating pods and sampling begin
    /// independently. Intervals without a scheduled pod are joined with the one that follows, which
    /// then counts as often.
    pub(crate) fn tick(&mut self, now: Duration, scheduled: u64) {
        if scheduled == 0 {
            return;
        }
        let Some((last_time, last_scheduled)) = self.last else {
            self.last = Some((now, scheduled));
            return;
        };
        let new = scheduled.saturating_sub(last_scheduled);
        if new == 0 {
            self.skipped += 1;
            return;
        }
        let seconds = now.saturating_sub(last_time).as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        let rate = new as f64 / seconds;
        self.rates.extend(std::iter::repeat_n(rate, self.skipped + 1));
        self.last = Some((now, scheduled));
        self.skipped = 0;
    }

    /// The summary; `None` if scheduling took too short for a sample.
    pub(crate) fn summary(&self) -> Option<Summary> {
        let mut sorted = self.rates.clone();
        sorted.sort_by(f64::total_cmp);
        if sorted.is_empty() {
            return None;
        }
        Some(Summary {
            average: sorted.iter().sum::<f64>() / sorted.len() as f64,
            perc50: percentile(&sorted, 50)?,
            perc90: percentile(&sorted, 90)?,
            perc95: percentile(&sorted, 95)?,
            perc99: percentile(&sorted, 99)?,
            samples: sorted.len(),
        })
    }
}

/// The element of a sorted list at a percentile by upstream's rule: number ⌈n·p/100⌉, counted from
/// one.
pub(crate) fn percentile<T: Copy>(sorted: &[T], percent: usize) -> Option<T> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(ticks: &[(u64, u64)]) -> Samples {
        let mut samples = Samples::default();
        for (millis, scheduled) in ticks {
            samples.tick(Duration::from_millis(*millis), *scheduled);
        }
        samples
    }

    #[test]
    fn nothing_is_sampled_until_the_second_tick_with_a_scheduled_pod() {
        assert_eq!(samples(&[(1000, 0), (2000, 0)]).summary(), None);
        assert_eq!(samples(&[(1000, 0), (2000, 500)]).summary(), None);
        let summary = samples(&[(1000, 0), (2000, 500), (3000, 800)]).summary().unwrap();
        assert_eq!((summary.average, summary.samples), (300.0, 1));
    }

    #[test]
    fn intervals_without_a_pod_count_with_the_rate_of_the_next() {
        let samples = samples(&[(1000, 10), (2000, 10), (3000, 10), (4000, 40), (5000, 50)]);
        assert_eq!(samples.rates, [10.0, 10.0, 10.0, 10.0]);
        assert_eq!(samples.summary().unwrap().average, 10.0);
    }

    #[test]
    fn intervals_without_a_pod_at_the_end_do_not_count() {
        let samples = samples(&[(1000, 10), (2000, 60), (3000, 60), (4000, 60)]);
        assert_eq!(samples.rates, [50.0]);
    }

    #[test]
    fn rate_is_that_of_the_measured_time() {
        let samples = samples(&[(1000, 10), (2250, 60)]);
        assert_eq!(samples.rates, [40.0]);
    }

    #[test]
    fn percentiles_are_the_ranks_of_upstream() {
        let sorted: Vec<u64> = (1..=10).collect();
        assert_eq!(percentile(&sorted, 50), Some(5));
        assert_eq!(percentile(&sorted, 90), Some(9));
        assert_eq!(percentile(&sorted, 95), Some(10));
        assert_eq!(percentile(&sorted, 99), Some(10));
        assert_eq!(percentile(&[7], 50), Some(7));
        assert_eq!(percentile::<u64>(&[], 50), None);
        let ticks: Vec<(u64, u64)> =
            (1..=5).zip([1, 2, 4, 7, 11]).map(|(at, pods)| (at * 1000, pods)).collect();
        let summary = samples(&ticks).summary().unwrap();
        assert_eq!((summary.average, summary.perc50, summary.perc90), (2.5, 2.0, 4.0));
    }
}
