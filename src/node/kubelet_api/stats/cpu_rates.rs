//! CPU use in nanocores, computed from the samples of two requests; there is no sampling in
//! between.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Samples closer together than this are too imprecise: the previous rate is returned.
const WINDOW_MIN: i64 = 1_000_000_000;
/// A sample that is unused for this long is dropped, as upstream's `defaultCachePeriod`.
const KEPT_FOR: i64 = 600_000_000_000;

#[derive(Debug, Clone, Copy)]
struct CpuSample {
    /// Nanoseconds since the epoch.
    at: i64,
    cpu_ns: u64,
    rate: Option<u64>,
}

/// The last sample of each pod, container and system container.
#[derive(Debug, Default)]
pub(super) struct CpuRates(Mutex<HashMap<String, CpuSample>>);

impl CpuRates {
    /// Returns the nanocores used since the last sample of `key`; `None` for the first sample and
    /// after a restart.
    pub(super) fn rate(&self, key: &str, at: i64, cpu_ns: u64) -> Option<u64> {
        let mut samples = self.0.lock();
        let Some(last) = samples.get(key).copied() else {
            samples.insert(key.to_owned(), CpuSample { at, cpu_ns, rate: None });
            return None;
        };
        let window = at.saturating_sub(last.at);
        if (0..WINDOW_MIN).contains(&window) && cpu_ns >= last.cpu_ns {
            return last.rate;
        }
        let rate = u128::from(cpu_ns)
            .checked_sub(u128::from(last.cpu_ns))
            .and_then(|used| used.checked_mul(1_000_000_000))
            .zip(u128::try_from(window).ok().filter(|window| *window > 0))
            .and_then(|(used, window)| u64::try_from(used / window).ok());
        samples.insert(key.to_owned(), CpuSample { at, cpu_ns, rate });
        rate
    }

    /// Drops samples that were not used for a while before `now`.
    pub(super) fn prune(&self, now: i64) {
        self.0.lock().retain(|_, sample| now.saturating_sub(sample.at) <= KEPT_FOR);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    #[test]
    fn a_rate_is_computed_between_two_samples() {
        let rates = CpuRates::default();
        assert_eq!(rates.rate("a", 10 * SECOND, 500), None);
        // Half a core over ten seconds.
        assert_eq!(rates.rate("a", 20 * SECOND, 500 + 5_000_000_000), Some(500_000_000));
        // Too close: the rate is repeated, and the sample is kept.
        assert_eq!(rates.rate("a", 20 * SECOND + 5, 6_000_000_500), Some(500_000_000));
        assert_eq!(rates.rate("a", 22 * SECOND, 500 + 9_000_000_000), Some(2_000_000_000));
        // A restarted container starts at zero.
        assert_eq!(rates.rate("a", 30 * SECOND, 7), None);
        assert_eq!(rates.rate("b", 30 * SECOND, 7), None);
        // A clock that was set back.
        assert_eq!(rates.rate("a", 10 * SECOND, 9), None);
        rates.prune(10 * SECOND + KEPT_FOR + 1);
        assert_eq!(rates.0.lock().keys().collect::<Vec<_>>(), ["b"]);
    }
}
