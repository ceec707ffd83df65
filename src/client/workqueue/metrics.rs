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

pub(super) static WORK_DURATION: Family = Family::histogram(
    "workqueue_work_duration_seconds",
    "[BETA] How long in seconds processing an item from workqueue takes.",
    LABELS,
    &BOUNDS,
);

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

/// Appends the families of the queues in the text format, with gauges of this moment. The gauges
/// belong to one page, so that pages that are rendered at the same time share nothing.
pub fn render(out: &mut String) {
    let depth = Family::gauge("workqueue_depth", "[BETA] Current depth of workqueue", LABELS);
    let longest = Family::gauge(
        "workqueue_longest_running_processor_seconds",
        "[BETA] How many seconds has the longest running processor for workqueue been running.",
        LABELS,
    );
    let unfinished = Family::gauge(
        "workqueue_unfinished_work_seconds",
        "[BETA] How many seconds of work has done that is in progress and hasn't been observed by \
         work_duration. Large values indicate stuck threads. One can deduce the number of stuck \
         threads by observing the rate at which this increases.",
        LABELS,
    );
    let mut queues = QUEUES.lock();
    queues.retain(|(_, queue)| queue.strong_count() > 0);
    let alive: Vec<_> = queues.iter().filter_map(|(n, q)| Some((*n, q.upgrade()?))).collect();
    drop(queues);
    for (name, queue) in alive {
        let (waiting, running) = queue.snapshot();
        let most = running.iter().max().map_or(0.0, Duration::as_secs_f64);
        depth.add(&[name], waiting as f64);
        unfinished.add(&[name], running.iter().sum::<Duration>().as_secs_f64());
        longest.set(&[name], most.max(longest.read(&[name])));
    }
    let all: [&Family; 7] =
        [&ADDS, &depth, &longest, &QUEUE_DURATION, &RETRIES, &unfinished, &WORK_DURATION];
    all.iter().for_each(|family| family.render(out));
}
