//! Histograms over time: how long a ratio was in each bucket, in nanoseconds (upstream's
//! `TimingRatioHistogram`). The clock is handed in.

use std::time::Duration;

use parking_lot::Mutex;

use super::queues::{Shape, Totals};

/// Bounds of requests that wait or execute at a level, as a share of what may.
pub(crate) const REQUESTS: [f64; 10] = [0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 1.0];
/// Bounds of the seats in use at a level.
pub(crate) const SEATS: [f64; 13] =
    [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0];
/// Bounds of the seats that a level could use.
pub(crate) const DEMAND: [f64; 12] = [0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.7, 2.0, 2.8, 4.0, 6.0];
/// Bounds of requests that read and that change.
pub(crate) const KINDS: [f64; 15] =
    [0.0, 0.001, 0.01, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0];

/// How long a figure, divided by another, was in each bucket.
#[derive(Debug, Clone)]
pub(crate) struct Timing {
    bounds: &'static [f64],
    nanos: Box<[u64]>,
    all: u64,
    sum: f64,
    last: Duration,
    figure: f64,
    of: f64,
}

impl Timing {
    /// Begins at `now` with zero of one.
    pub(crate) fn new(bounds: &'static [f64], now: Duration) -> Self {
        let nanos = vec![0; bounds.len()].into();
        Self { bounds, nanos, all: 0, sum: 0.0, last: now, figure: 0.0, of: 1.0 }
    }

    /// The figure from `now` on.
    pub(crate) fn set(&mut self, now: Duration, figure: f64) {
        if figure != self.figure {
            self.advance(now);
            self.figure = figure;
        }
    }

    /// What it is divided by from `now` on.
    pub(crate) fn divide(&mut self, now: Duration, of: f64) {
        self.advance(now);
        self.of = of;
    }

    /// Brings it to `now`.
    pub(crate) fn advance(&mut self, now: Duration) {
        let nanos = u64::try_from(now.saturating_sub(self.last).as_nanos()).unwrap_or(u64::MAX);
        self.last = self.last.max(now);
        let ratio = self.figure / self.of;
        let at = self.bounds.iter().position(|bound| ratio <= *bound);
        if let Some(bucket) = at.and_then(|at| self.nanos.get_mut(at)) {
            *bucket += nanos;
        }
        self.all += nanos;
        self.sum += ratio * nanos as f64;
    }

    /// Appends its lines.
    pub(crate) fn render(&self, out: &mut String, name: &str, labels: &str) {
        let rows = self.bounds.iter().copied().zip(self.nanos.iter().copied());
        base::metrics::histogram(out, name, labels, rows, self.sum, self.all);
    }
}

/// The figures of one level over time.
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

    /// What the figures are divided by: the places in queues, and the seats of the level, or of a
    /// level without seats a tenth of the server's, as upstream.
    pub(crate) fn divide(&mut self, now: Duration, shape: Shape, seats: u64) {
        let places = match shape {
            Shape::Queue { queues, length, .. } => f64::from(length.max(1)) * f64::from(queues),
            Shape::Exempt | Shape::Reject => 1.0,
        };
        self.waiting.divide(now, places);
        for timing in [&mut self.executing, &mut self.seats, &mut self.demand] {
            timing.divide(now, seats as f64);
        }
    }

    pub(crate) fn note(&mut self, now: Duration, totals: &Totals) {
        self.waiting.set(now, totals.waiting as f64);
        self.executing.set(now, totals.executing as f64);
        self.seats.set(now, totals.seats_in_use as f64);
        self.demand.set(now, (totals.seats_in_use + totals.seats_waiting) as f64);
    }

    /// Brings them to `now`.
    pub(crate) fn advance(&mut self, now: Duration) {
        let Self { waiting, executing, seats, demand } = self;
        for timing in [waiting, executing, seats, demand] {
            timing.advance(now);
        }
    }
}

/// Requests of one phase, those that read and those that change.
#[derive(Debug)]
pub(crate) struct Phase([Mutex<Requests>; 2]);

#[derive(Debug)]
struct Requests {
    now: i64,
    /// The most of this second and of the one before.
    second: u64,
    most: i64,
    before: i64,
    timing: Timing,
}

impl Requests {
    fn turn(&mut self, now: Duration) {
        let second = now.as_secs();
        if second > self.second {
            self.before = if second == self.second + 1 { self.most } else { 0 };
            self.most = 0;
            self.second = second;
        }
    }
}

impl Phase {
    /// None at time zero.
    pub(crate) fn new() -> Self {
        let none = || {
            let timing = Timing::new(&KINDS, Duration::ZERO);
            Mutex::new(Requests { now: 0, second: 0, most: 0, before: 0, timing })
        };
        Self([none(), none()])
    }

    fn of(&self, reads: bool) -> &Mutex<Requests> {
        let [read, change] = &self.0;
        if reads { read } else { change }
    }

    /// More, or fewer.
    pub(crate) fn add(&self, now: Duration, reads: bool, by: i64) {
        let mut requests = self.of(reads).lock();
        requests.turn(now);
        requests.now += by;
        requests.most = requests.most.max(requests.now);
        let figure = requests.now as f64;
        requests.timing.set(now, figure);
    }

    /// How many there may be of both.
    pub(crate) fn divide(&self, now: Duration, of: f64) {
        for requests in &self.0 {
            requests.lock().timing.divide(now, of);
        }
    }

    /// How many there are now: those that read, and the others.
    #[cfg(test)]
    pub(crate) fn now(&self) -> (i64, i64) {
        let [reads, writes] = &self.0;
        (reads.lock().now, writes.lock().now)
    }

    /// The most there were at once in the last whole second, counted where one came or went, as
    /// upstream does.
    pub(crate) fn most(&self, now: Duration) -> (i64, i64) {
        let most = |requests: &Mutex<Requests>| {
            let mut requests = requests.lock();
            requests.turn(now);
            requests.before
        };
        let [reads, writes] = &self.0;
        (most(reads), most(writes))
    }

    /// Appends the lines of `read_vs_write_current_requests`.
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

    /// The rules of upstream's `TestTimingRatioHistogram`: time goes to the bucket of the ratio
    /// that held while it passed.
    #[test]
    fn time_is_counted_in_the_bucket_of_the_ratio() {
        let at = Duration::from_nanos;
        let mut timing = Timing::new(&SEATS, at(0));
        timing.divide(at(0), 4.0);
        timing.set(at(10), 1.0);
        timing.set(at(30), 4.0);
        timing.divide(at(35), 2.0);
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

    /// Upstream's gauge is the high water mark of a second, which begins anew.
    #[test]
    fn the_most_of_the_last_second_is_told() {
        let at = Duration::from_millis;
        let phase = Phase::new();
        for (ms, by) in [(100, 1), (200, 1), (300, -1), (400, -1)] {
            phase.add(at(ms), true, by);
        }
        assert_eq!((phase.now(), phase.most(at(500))), ((0, 0), (0, 0)));
        assert_eq!(phase.most(at(1000)), (2, 0));
        phase.add(at(1100), false, 1);
        assert_eq!(phase.most(at(1999)), (2, 0));
        assert_eq!(phase.most(at(2000)), (0, 1));
        assert_eq!(phase.most(at(3000)), (0, 0));
    }
}
