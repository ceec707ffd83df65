//! The metrics of the queues, with client-go's names, labels and texts.

use std::sync::{Arc, Weak};
use std::time::Duration;

use base::metrics::{Family, exponential};
use parking_lot::Mutex;

/// Upper bounds in seconds: 10 ns to 10 s.
const BOUNDS: [f64; 10] = exponential(10e-9, 10.0);

const LABELS: &[&str] = &["name"];

pub(super) static ADDS: Family = Family::counter(
    "workqueue_adds_total",
    "[BETA] Total number of adds handled by workqueue",
    LABELS,
);

static DEPTH: Family =
    Family::gauge("workqueue_depth", "[BETA] Current depth of workqueue", LABELS);

static LONGEST: Family = Family::gauge(
    "workqueue_longest_running_processor_seconds",
    "[BETA] How many seconds has the longest running processor for workqueue been running.",
    LABELS,
);

pub(super) static QUEUE_DURATION: Family = Family::histogram(
    "workqueue_queue_duration_seconds",
    "[BETA] How long in seconds an item stays in workqueue before being requested.",
    LABELS,
    &BOUNDS,
);

pub(super) static RETRIES: Family = Family::counter(
    "workqueue_retries_total",
    "[BETA] Total number of retries handled by workqueue",
    LABELS,
);

static UNFINISHED: Family = Family::gauge(
    "workqueue_unfinished_work_seconds",
    "[BETA] How many seconds of work has done that is in progress and hasn't been observed by \
     work_duration. Large values indicate stuck threads. One can deduce the number of stuck \
     threads by observing the rate at which this increases.",
    LABELS,
);

pub(super) static WORK_DURATION: Family = Family::histogram(
    "workqueue_work_duration_seconds",
    "[BETA] How long in seconds processing an item from workqueue takes.",
    LABELS,
    &BOUNDS,
);

static ALL: [&Family; 7] =
    [&ADDS, &DEPTH, &LONGEST, &QUEUE_DURATION, &RETRIES, &UNFINISHED, &WORK_DURATION];

/// The queues with a name, in the order of their creation.
static QUEUES: Mutex<Vec<(&'static str, Weak<dyn Snapshot>)>> = Mutex::new(Vec::new());

/// The present state of a queue.
pub(super) trait Snapshot: Send + Sync {
    /// The number of waiting keys, and how long each key has been processed.
    fn snapshot(&self) -> (usize, Vec<Duration>);
}

/// Adds a queue to the gauges.
pub(super) fn register(name: &'static str, queue: Arc<dyn Snapshot>) {
    QUEUES.lock().push((name, Arc::downgrade(&queue)));
}

/// The families of the queues, with gauges of this moment, in the order in which they are rendered.
pub fn families() -> &'static [&'static Family] {
    for gauge in [&DEPTH, &LONGEST, &UNFINISHED] {
        gauge.reset();
    }
    let mut queues = QUEUES.lock();
    queues.retain(|(_, queue)| queue.strong_count() > 0);
    let alive: Vec<_> = queues.iter().filter_map(|(n, q)| Some((*n, q.upgrade()?))).collect();
    drop(queues);
    for (name, queue) in alive {
        let (waiting, running) = queue.snapshot();
        let longest = running.iter().max().map_or(0.0, Duration::as_secs_f64);
        DEPTH.add(&[name], waiting as f64);
        UNFINISHED.add(&[name], running.iter().sum::<Duration>().as_secs_f64());
        LONGEST.set(&[name], longest.max(LONGEST.read(&[name])));
    }
    &ALL
}
