//! Gauges that controllers count when a page of metrics is read, and bounds that their histograms
//! share.

use std::sync::{Arc, Weak};

use base::Shutdown;
use base::metrics::exponential;
use parking_lot::Mutex;

/// Upper bounds in seconds from 1 ms to 16 s, which upstream uses for the durations of syncs.
pub(crate) static SYNC_BOUNDS: [f64; 15] = exponential(0.001, 2.0);

/// Upper bounds of numbers of endpoints per sync, from 2 to 32768.
pub(crate) static ENDPOINT_BOUNDS: [f64; 15] = exponential(2.0, 2.0);

/// Upper bounds in seconds of the time from the effect of a taint to the deletion of a pod.
pub(crate) static DELETION_BOUNDS: [f64; 12] =
    [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0];

/// The collectors of the running controllers.
pub(crate) static COLLECTORS: Collectors = Collectors::new();

/// Counts objects into gauges.
type Collector = Box<dyn Fn() + Send + Sync>;

/// What the running controllers count when a page is read.
struct Running {
    /// The end of the controllers; `None` if none ever ran.
    shutdown: Option<Shutdown>,
    collectors: Vec<Collector>,
}

/// Collectors, until the controllers end.
pub(crate) struct Collectors(Mutex<Running>);

impl Collectors {
    /// No controller runs.
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Running { shutdown: None, collectors: Vec::new() }))
    }

    /// Controllers start that end with `shutdown`.
    pub(crate) fn begin(&self, shutdown: &Shutdown) {
        *self.0.lock() = Running { shutdown: Some(shutdown.clone()), collectors: Vec::new() };
    }

    /// Calls `count` whenever a page is read, as long as the controller exists.
    pub(crate) fn add<T: Send + Sync + 'static>(&self, controller: &Arc<T>, count: fn(&T)) {
        let controller: Weak<T> = Arc::downgrade(controller);
        let collector = move || {
            if let Some(controller) = controller.upgrade() {
                count(&controller);
            }
        };
        self.0.lock().collectors.push(Box::new(collector));
    }

    /// Calls all collectors. Returns false, and calls none, after the end of the controllers.
    pub(crate) fn run(&self) -> bool {
        let mut running = self.0.lock();
        if running.shutdown.as_ref().is_some_and(Shutdown::is_requested) {
            running.collectors.clear();
            return false;
        }
        running.collectors.iter().for_each(|collector| collector());
        true
    }
}

/// Calls `count` whenever a page is read, as long as the controller exists.
pub(crate) fn collect<T: Send + Sync + 'static>(controller: &Arc<T>, count: fn(&T)) {
    COLLECTORS.add(controller, count);
}
