//! The metrics of all controllers: the families of kube-controller-manager, and the gauges that are
//! counted when a page is read.

use base::Shutdown;
use base::metrics::Family;

use crate::framework::collectors::{COLLECTORS, Collectors};

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

static REGISTRY: Registry = Registry { families: &ALL, collectors: &COLLECTORS };

/// Families, and what counts their gauges.
struct Registry {
    families: &'static [&'static [&'static Family]],
    collectors: &'static Collectors,
}

impl Registry {
    fn all(&self) -> impl Iterator<Item = &'static Family> + use<> {
        self.families.iter().copied().flatten().copied()
    }

    fn reset_gauges(&self) {
        self.all().filter(|family| family.is_gauge()).for_each(Family::reset);
    }

    fn begin(&self, shutdown: &Shutdown) {
        self.reset_gauges();
        self.collectors.begin(shutdown);
    }

    fn counted(&self) -> impl Iterator<Item = &'static Family> + use<> {
        if !self.collectors.run() {
            self.reset_gauges();
        }
        self.all()
    }
}

/// Begins with gauges without values: those of controllers that ended in this process are not those
/// of the controllers that start. To be called before these start.
pub(crate) fn begin(shutdown: &Shutdown) {
    REGISTRY.begin(shutdown);
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
