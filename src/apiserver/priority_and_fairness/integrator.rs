//! Average and deviation of a value over time (upstream's `fairqueuing/integrator.go`). Callers
//! pass the time.

use std::time::Duration;

/// Integrates a value that changes in steps.
#[derive(Debug, Clone, Default)]
pub(crate) struct Integrator {
    last: Duration,
    x: f64,
    seconds: f64,
    integral: f64,
    squares: f64,
    min: f64,
    max: f64,
}

/// The results of an [`Integrator`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Results {
    /// The duration in seconds.
    pub(crate) seconds: f64,
    /// The average over time; NaN if no time has passed.
    pub(crate) average: f64,
    /// The standard deviation; NaN if no time has passed.
    pub(crate) deviation: f64,
    /// The maximum.
    pub(crate) max: f64,
}

impl Integrator {
    /// Starts at `now` with the value 0.
    pub(crate) fn new(now: Duration) -> Self {
        Self { last: now, ..Self::default() }
    }

    /// Sets the value from `now` on.
    pub(crate) fn set(&mut self, now: Duration, x: f64) {
        self.advance(now);
        self.x = x;
        self.min = self.min.min(x);
        self.max = self.max.max(x);
    }

    fn advance(&mut self, now: Duration) {
        let seconds = now.saturating_sub(self.last).as_secs_f64();
        self.last = self.last.max(now);
        self.seconds += seconds;
        self.integral += seconds * self.x;
        self.squares += seconds * self.x * self.x;
    }

    /// Returns the results until `now`, and restarts with the current value.
    pub(crate) fn reset(&mut self, now: Duration) -> Results {
        self.advance(now);
        let (average, deviation) = if self.seconds <= 0.0 {
            (f64::NAN, f64::NAN)
        } else {
            let average = self.integral / self.seconds;
            let variance = self.squares / self.seconds - average * average;
            (average, if variance >= 0.0 { variance.sqrt() } else { f64::NAN })
        };
        let results = Results { seconds: self.seconds, average, deviation, max: self.max };
        *self = Self { last: self.last, x: self.x, min: self.x, max: self.x, ..Self::default() };
        results
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Upstream's `TestIntegrator`.
    #[test]
    fn averages_and_deviations_are_weighted_by_time() {
        let at = Duration::from_millis;
        let mut integrator = Integrator::new(at(0));
        integrator.set(at(0), 3.0);
        let results = integrator.reset(at(1000));
        let expected = Results { seconds: 1.0, average: 3.0, deviation: 0.0, max: 3.0 };
        assert_eq!(results, expected);
        integrator.set(at(1000), 2.0);
        let results = integrator.clone().reset(at(1000));
        assert!(results.average.is_nan() && results.deviation.is_nan());
        assert_eq!((results.seconds, results.max), (0.0, 3.0));
        integrator.set(at(1001), 1.0);
        let results = integrator.reset(at(1002));
        let expected = Results { seconds: 0.002, average: 1.5, deviation: 0.5, max: 3.0 };
        assert_eq!(results, expected);
    }
}
