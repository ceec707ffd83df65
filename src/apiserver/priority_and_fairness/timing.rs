//! Histograms over time: how long a ratio was in each bucket, in nanoseconds (upstream's
//! `TimingRatioHistogram`). Callers pass the time.

use std::time::Duration;

use parking_lot::Mutex;

use super::queues::{Shape, Totals};

/// The bounds for waiting or executing requests of a level, as a share of the maximum.
pub(crate) const REQUESTS: [f64; 10] = [0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 1.0];
/// The bounds for the seats in use of a level.
pub(crate) const SEATS: [f64; 13] =
    [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0];
/// The bounds for the seat demand of a level.
pub(crate) const DEMAND: [f64; 12] = [0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.7, 2.0, 2.8, 4.0, 6.0];
/// The bounds for reading and mutating requests.
pub(crate) const KINDS: [f64; 15] =
    [0.0, 0.001, 0.01, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0];

/// How long a ratio was in each bucket.
#[derive(Debug, Clone)]
pub(crate) struct Timing {
    bounds: &'static [f64],
    nanos: Box<[u64]>,
    all: u64,
    sum: f64,
    last: Duration,
    numerator: f64,
    denominator: f64,
}

impl Timing {
    /// Starts at `now` with the ratio 0/1.
    pub(crate) fn new(bounds: &'static [f64], now: Duration) -> Self {
        let nanos = vec![0; bounds.len()].into();
        Self { bounds, nanos, all: 0, sum: 0.0, last: now, numerator: 0.0, denominator: 1.0 }
    }

    /// Sets the numerator from `now` on.
    pub(crate) fn set(&mut self, now: Duration, numerator: f64) {
        if numerator != self.numerator {
            self.advance(now);
            self.numerator = numerator;
        }
    }

    /// Sets the denominator from `now` on.
    pub(crate) fn set_denominator(&mut self, now: Duration, denominator: f64) {
        self.advance(now);
        self.denominator = denominator;
    }

    /// Counts the time until `now`.
    pub(crate) fn advance(&mut self, now: Duration) {
        let nanos = u64::try_from(now.saturating_sub(self.last).as_nanos()).unwrap_or(u64::MAX);
        self.last = self.last.max(now);
        let ratio = self.numerator / self.denominator;
        let at = self.bounds.iter().position(|bound| ratio <= *bound);
        if let Some(bucket) = at.and_then(|at| self.nanos.get_mut(at)) {
            *bucket += nanos;
        }
        self.all += nanos;
        self.sum += ratio * nanos as f64;
    }

    /// Appends the histogram to `out`.
    pub(crate) fn render(&self, out: &mut String, name: &str, labels: &str) {
        let rows = self.bounds.iter().copied().zip(self.nanos.iter().copied());
        base::metrics::histogram(out, name, labels, rows, self.sum, self.all);
    }
}

/// The utilization histograms of one level.
#[derive(Debug)]
pub(crate) struct Timings {
    pub(crate) waiting: Timing,
    pub(crate) executing: Timing,
    pub(crate) seats: Timing,
    pub(crate) demand: Timing,
}

impl Timings {
    pub(crate) fn new(now: Duration) -> Self {
        Self {
            waiting: Timing::new(&REQUESTS, now),
            executing: Timing::new(&REQUESTS, now),
            seats: Timing::new(&SEATS, now),
            demand: Timing::new(&DEMAND, now),
        }
    }

    /// Sets the denominators: the capacity of the queues, and `seats`.
    pub(crate) fn set_denominator(&mut self, now: Duration, shape: Shape, seats: u64) {
        let capacity = match shape {
            Shape::Queue { queues, length, .. } => f64::from(length.max(1)) * f64::from(queues),
            Shape::Exempt | Shape::Reject => 1.0,
        };
        self.waiting.set_denominator(now, capacity);
        for timing in [&mut self.executing, &mut self.seats, &mut self.demand] {
            timing.set_denominator(now, seats as f64);
        }
    }

    /// Sets the numerators from the totals of the level.
    pub(crate) fn update(&mut self, now: Duration, totals: &Totals) {
        self.waiting.set(now, totals.waiting as f64);
        self.executing.set(now, totals.executing as f64);
        self.seats.set(now, totals.seats_in_use as f64);
        self.demand.set(now, (totals.seats_in_use + totals.seats_waiting) as f64);
    }

    /// Counts the time until `now`.
    pub(crate) fn advance(&mut self, now: Duration) {
        let Self { waiting, executing, seats, demand } = self;
        for timing in [waiting, executing, seats, demand] {
            timing.advance(now);
        }
    }
}

/// The reading and mutating requests of one phase, `waiting` or `executing`.
#[derive(Debug)]
pub(crate) struct Phase([Mutex<Requests>; 2]);

#[derive(Debug)]
struct Requests {
    now: i64,
    /// The current second since the server started.
    second: u64,
    /// The maximum of this second.
    maximum: i64,
    /// The maximum of the previous second.
    previous_maximum: i64,
    timing: Timing,
}

impl Requests {
    fn roll_over(&mut self, now: Duration) {
        let second = now.as_secs();
        if second > self.second {
            self.previous_maximum = if second == self.second + 1 { self.maximum } else { 0 };
            self.maximum = 0;
            self.second = second;
        }
    }
}

impl Phase {
    /// Creates a phase without requests.
    pub(crate) fn new() -> Self {
        let none = || {
            let timing = Timing::new(&KINDS, Duration::ZERO);
            Mutex::new(Requests { now: 0, second: 0, maximum: 0, previous_maximum: 0, timing })
        };
        Self([none(), none()])
    }

    fn of(&self, is_read: bool) -> &Mutex<Requests> {
        let [read, change] = &self.0;
        if is_read { read } else { change }
    }

    /// Changes the number of requests.
    pub(crate) fn add(&self, now: Duration, is_read: bool, by: i64) {
        let mut requests = self.of(is_read).lock();
        requests.roll_over(now);
        requests.now += by;
        requests.maximum = requests.maximum.max(requests.now);
        let numerator = requests.now as f64;
        requests.timing.set(now, numerator);
    }

    /// Sets the maximum number of requests, for both kinds.
    pub(crate) fn set_denominator(&self, now: Duration, denominator: f64) {
        for requests in &self.0 {
            requests.lock().timing.set_denominator(now, denominator);
        }
    }

    /// The current numbers of reading and mutating requests.
    #[cfg(test)]
    pub(crate) fn now(&self) -> (i64, i64) {
        let [reads, writes] = &self.0;
        (reads.lock().now, writes.lock().now)
    }

    /// The maximum numbers of reading and mutating requests in the last whole second, updated only
    /// when a request starts or ends, as in upstream.
    pub(crate) fn maximum(&self, now: Duration) -> (i64, i64) {
        let maximum = |requests: &Mutex<Requests>| {
            let mut requests = requests.lock();
            requests.roll_over(now);
            requests.previous_maximum
        };
        let [reads, writes] = &self.0;
        (maximum(reads), maximum(writes))
    }

    /// Appends the metric `read_vs_write_current_requests` to `out`.
    pub(crate) fn render(&self, out: &mut String, name: &str, phase: &str, now: Duration) {
        for (requests, kind) in self.0.iter().zip(["readOnly", "mutating"]) {
            let mut requests = requests.lock();
            requests.timing.advance(now);
            let labels = format!("phase=\"{phase}\",request_kind=\"{kind}\"");
            requests.timing.render(out, name, &labels);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in upstream's `TestTimingRatioHistogram`.
    #[test]
    fn time_is_counted_in_the_bucket_of_the_ratio() {
        let at = Duration::from_nanos;
        let mut timing = Timing::new(&SEATS, at(0));
        timing.set_denominator(at(0), 4.0);
        timing.set(at(10), 1.0);
        timing.set(at(30), 4.0);
        timing.set_denominator(at(35), 2.0);
        timing.advance(at(36));
        let mut out = String::new();
        timing.render(&mut out, "x", "l=\"1\"");
        let buckets: Vec<&str> = out.lines().collect();
        // Ten at 0, twenty at a quarter, five at 1, one at 2.
        let expected = [
            "x_bucket{l=\"1\",le=\"0\"} 10",
            "x_bucket{l=\"1\",le=\"0.1\"} 10",
            "x_bucket{l=\"1\",le=\"0.2\"} 10",
            "x_bucket{l=\"1\",le=\"0.3\"} 30",
        ];
        assert_eq!(buckets.get(..4), Some(expected.as_slice()));
        let last = [
            "x_bucket{l=\"1\",le=\"1\"} 35",
            "x_bucket{l=\"1\",le=\"+Inf\"} 36",
            "x_sum{l=\"1\"} 12",
            "x_count{l=\"1\"} 36",
        ];
        assert_eq!(buckets.get(12..), Some(last.as_slice()));
    }

    /// Upstream's gauge is the high-water mark of the last whole second.
    #[test]
    fn the_maximum_is_that_of_the_last_second() {
        let at = Duration::from_millis;
        let phase = Phase::new();
        for (ms, by) in [(100, 1), (200, 1), (300, -1), (400, -1)] {
            phase.add(at(ms), true, by);
        }
        assert_eq!((phase.now(), phase.maximum(at(500))), ((0, 0), (0, 0)));
        assert_eq!(phase.maximum(at(1000)), (2, 0));
        phase.add(at(1100), false, 1);
        assert_eq!(phase.maximum(at(1999)), (2, 0));
        assert_eq!(phase.maximum(at(2000)), (0, 1));
        assert_eq!(phase.maximum(at(3000)), (0, 0));
    }
}
