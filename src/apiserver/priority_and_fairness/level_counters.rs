//! The lock-free counters of one flow schema at one priority level.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The bounds for waiting and execution times, in seconds.
pub(crate) const SECONDS: [f64; 13] =
    [0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];
/// The bounds for queue lengths.
pub(crate) const LENGTHS: [f64; 8] = [0.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0];
/// The bounds for numbers of watchers.
pub(crate) const WATCHERS: [f64; 6] = [0.0, 1.0, 10.0, 100.0, 1000.0, 10000.0];
/// The bounds for seats.
pub(crate) const SEATS: [f64; 8] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 100.0];

/// The reason for a rejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The level has no queues, and no free seat.
    ConcurrencyLimit,
    /// The queue is full.
    QueueFull,
    /// The request has waited too long, or the client has disconnected.
    TimeOut,
}

impl Reason {
    /// All reasons with the value of the label `reason`.
    pub(crate) const ALL: [(Self, &'static str); 3] = [
        (Self::ConcurrencyLimit, "concurrency-limit"),
        (Self::QueueFull, "queue-full"),
        (Self::TimeOut, "time-out"),
    ];
}

/// A histogram with `N` bounds.
#[derive(Debug)]
pub(crate) struct Histogram<const N: usize> {
    bounds: &'static [f64; N],
    buckets: [AtomicU64; N],
    /// The number of values above all bounds.
    beyond: AtomicU64,
    /// The sum in units of 1e-9.
    sum: AtomicU64,
}

impl<const N: usize> Histogram<N> {
    fn new(bounds: &'static [f64; N]) -> Self {
        Self {
            bounds,
            buckets: [const { AtomicU64::new(0) }; N],
            beyond: AtomicU64::new(0),
            sum: AtomicU64::new(0),
        }
    }

    fn add(&self, value: f64, billionths: u64) {
        let at = self.bounds.iter().position(|bound| value <= *bound);
        let bucket = at.and_then(|at| self.buckets.get(at)).unwrap_or(&self.beyond);
        bucket.fetch_add(1, Relaxed);
        self.sum.fetch_add(billionths, Relaxed);
    }

    /// Adds a time in seconds.
    pub(crate) fn time(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.add(time.as_secs_f64(), nanos);
    }

    /// Adds a number.
    pub(crate) fn number(&self, number: u64) {
        self.add(number as f64, number.saturating_mul(1_000_000_000));
    }

    /// The current values; `None` if the histogram is empty.
    pub(crate) fn read(&self) -> Option<Read> {
        let mut count = 0;
        let mut rows = Vec::with_capacity(N);
        for (bound, bucket) in self.bounds.iter().zip(&self.buckets) {
            count += bucket.load(Relaxed);
            rows.push((*bound, count));
        }
        count += self.beyond.load(Relaxed);
        (count > 0).then(|| (rows, self.sum.load(Relaxed) as f64 / 1e9, count))
    }
}

/// The cumulative count of each bound, the sum, and the total count.
pub(crate) type Read = (Vec<(f64, u64)>, f64, u64);

/// A gauge.
#[derive(Debug, Default)]
pub(crate) struct Gauge(AtomicI64);

impl Gauge {
    pub(crate) fn add(&self, by: i64) {
        self.0.fetch_add(by, Relaxed);
    }

    pub(crate) fn get(&self) -> i64 {
        self.0.load(Relaxed)
    }
}

/// A counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The counters of one flow schema at one level.
#[derive(Debug)]
pub(crate) struct Flow {
    /// The flow schema.
    pub(crate) name: Box<str>,
    /// The priority level.
    pub(crate) level: Box<str>,
    pub(crate) dispatched: Counter,
    pub(crate) no_accommodation: Counter,
    rejected: [Counter; 3],
    pub(crate) waiting: Gauge,
    pub(crate) waiting_seats: Gauge,
    pub(crate) executing: Gauge,
    pub(crate) executing_seats: Gauge,
    pub(crate) queue_length: Histogram<8>,
    pub(crate) waited: Histogram<13>,
    pub(crate) rejected_wait: Histogram<13>,
    pub(crate) regular: Histogram<13>,
    pub(crate) watches: Histogram<13>,
    pub(crate) watchers: Histogram<6>,
    pub(crate) seats: Histogram<8>,
}

impl Flow {
    /// Creates counters at zero.
    pub(crate) fn new(name: &str, level: &str) -> Self {
        Self {
            name: name.into(),
            level: level.into(),
            dispatched: Counter::default(),
            no_accommodation: Counter::default(),
            rejected: Default::default(),
            waiting: Gauge::default(),
            waiting_seats: Gauge::default(),
            executing: Gauge::default(),
            executing_seats: Gauge::default(),
            queue_length: Histogram::new(&LENGTHS),
            waited: Histogram::new(&SECONDS),
            rejected_wait: Histogram::new(&SECONDS),
            regular: Histogram::new(&SECONDS),
            watches: Histogram::new(&SECONDS),
            watchers: Histogram::new(&WATCHERS),
            seats: Histogram::new(&SEATS),
        }
    }

    /// The counter of rejections for this reason.
    pub(crate) fn rejected(&self, reason: Reason) -> &Counter {
        let [limit, full, late] = &self.rejected;
        match reason {
            Reason::ConcurrencyLimit => limit,
            Reason::QueueFull => full,
            Reason::TimeOut => late,
        }
    }
}
