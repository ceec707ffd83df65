//! The metrics of all controllers: the families of kube-controller-manager, and the gauges that are
//! counted when a page is read.

use std::sync::{Arc, Weak};

use base::Shutdown;
use base::metrics::{Family, exponential};
use parking_lot::Mutex;

/// Upper bounds in seconds from 1 ms to 16 s, which upstream uses for the durations of syncs.
pub(crate) static SYNC_BOUNDS: [f64; 15] = exponential(0.001, 2.0);

/// Upper bounds of numbers of endpoints per sync, from 2 to 32768.
pub(crate) static ENDPOINT_BOUNDS: [f64; 15] = exponential(2.0, 2.0);

/// Upper bounds in seconds of the time from the effect of a taint to the deletion of a pod.
pub(crate) static DELETION_BOUNDS: [f64; 12] =
    [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0];

/// The families, by controller, in the order in which they are rendered.
static ALL: [&[&Family]; 12] = [
    &crate::storage::attach_detach::metrics::ALL,
    &crate::devices::metrics::ALL,
    &crate::network::endpointslice::metrics::ALL,
    &crate::network::endpointslice_mirroring::metrics::ALL,
    &crate::workloads::job::metrics::ALL,
    &crate::workloads::metrics::ALL,
    &crate::workloads::horizontal_pod_autoscaler::monitor::ALL,
    &crate::nodes::node_lifecycle::metrics::ALL,
    &crate::nodes::metrics::ALL,
    &crate::storage::metrics::ALL,
    &crate::auth::metrics::ALL,
    &crate::objects::garbage_collector::METRICS,
];

static REGISTRY: Registry = Registry::new(&ALL);

/// Counts objects into gauges.
type Collector = Box<dyn Fn() + Send + Sync>;

/// What the running controllers count when a page is read.
struct Running {
    /// The end of the controllers; `None` if none ever ran.
    shutdown: Option<Shutdown>,
    collectors: Vec<Collector>,
}

/// Families, and what counts them.
struct Registry {
    families: &'static [&'static [&'static Family]],
    running: Mutex<Running>,
}

impl Registry {
    const fn new(families: &'static [&'static [&'static Family]]) -> Self {
        let running = Running { shutdown: None, collectors: Vec::new() };
        Self { families, running: Mutex::new(running) }
    }

    fn all(&self) -> impl Iterator<Item = &'static Family> + use<> {
        self.families.iter().copied().flatten().copied()
    }

    fn reset_gauges(&self) {
        self.all().filter(|family| family.is_gauge()).for_each(Family::reset);
    }

    fn begin(&self, shutdown: &Shutdown) {
        let mut running = self.running.lock();
        self.reset_gauges();
        *running = Running { shutdown: Some(shutdown.clone()), collectors: Vec::new() };
    }

    fn collect<T: Send + Sync + 'static>(&self, controller: &Arc<T>, count: fn(&T)) {
        let controller: Weak<T> = Arc::downgrade(controller);
        let collector = move || {
            if let Some(controller) = controller.upgrade() {
                count(&controller);
            }
        };
        self.running.lock().collectors.push(Box::new(collector));
    }

    fn counted(&self) -> impl Iterator<Item = &'static Family> + use<> {
        let mut running = self.running.lock();
        if running.shutdown.as_ref().is_some_and(Shutdown::is_requested) {
            self.reset_gauges();
            running.collectors.clear();
        }
        for collector in &running.collectors {
            collector();
        }
        self.all()
    }
}

/// Begins with gauges without values: those of controllers that ended in this process are not those
/// of the controllers that start. To be called before these start.
pub(crate) fn begin(shutdown: &Shutdown) {
    REGISTRY.begin(shutdown);
}

/// Calls `count` whenever a page is read, as long as the controller exists.
pub(crate) fn collect<T: Send + Sync + 'static>(controller: &Arc<T>, count: fn(&T)) {
    REGISTRY.collect(controller, count);
}

/// The families of the controllers, with gauges of this moment, in the order in which they are
/// rendered. Counts the objects of the caches, which may take a tenth of a second in a large
/// cluster. After the end of the controllers there are no gauges: another server has them.
pub fn families() -> impl Iterator<Item = &'static Family> {
    REGISTRY.counted()
}

/// The value of the family of this name, or the number of its observations, for tests.
#[cfg(test)]
pub(crate) fn read(name: &str, labels: &[&str]) -> f64 {
    let family = REGISTRY.all().find(|family| format!("{family:?}") == format!("Family({name})"));
    family.unwrap_or_else(|| panic!("no family {name}")).read(labels)
}

#[cfg(test)]
mod actions;
#[cfg(test)]
mod tests;
