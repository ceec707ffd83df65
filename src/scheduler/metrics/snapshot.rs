//! The page of the scheduler: the families that are counted all the time, and those whose values
//! are computed for each page.

use std::sync::Arc;

use base::metrics::Family;
use parking_lot::Mutex;

use super::families::{
    self, ALGORITHM, ATTEMPT_DURATIONS, ATTEMPTS, BINDING_CONDITIONS_ALLOCATIONS,
    BINDING_CONDITIONS_WAITS, EVENT_HANDLING, EXTENSION_POINTS, INCOMING_PODS, PLUGINS,
    POD_ATTEMPTS, PREEMPTION_ATTEMPTS, PREEMPTION_VICTIMS, PREEMPTIONS, SCHEDULED_AFTER_FLUSH, SLI,
    VOLUME_ERRORS,
};
use super::{Counts, Sizes};

/// The gauges and the counters of evaluations at one moment. Each page has its own, so that pages
/// that are rendered at the same time share nothing.
#[derive(Debug)]
pub(crate) struct MetricsSnapshot {
    pub(super) cache_size: Family,
    pub(super) pending_pods: Family,
    pub(super) evaluations: Family,
    pub(super) unschedulable_pods: Family,
}

impl MetricsSnapshot {
    /// A snapshot without values.
    pub(super) fn new() -> Self {
        Self {
            cache_size: families::cache_size(),
            pending_pods: families::pending_pods(),
            evaluations: families::evaluations(),
            unschedulable_pods: families::unschedulable_pods(),
        }
    }

    /// Sets the sizes of the queues and of the cache.
    pub(crate) fn set_sizes(&self, sizes: &Sizes) {
        for (queue, size) in [
            ("active", sizes.active),
            ("backoff", sizes.backoff),
            ("unschedulable", sizes.unschedulable),
            ("gated", sizes.gated),
        ] {
            self.pending_pods.set(&[queue], size as f64);
        }
        for (what, size) in
            [("nodes", sizes.nodes), ("pods", sizes.pods), ("assumed_pods", sizes.assumed_pods)]
        {
            self.cache_size.set(&[what], size as f64);
        }
    }

    /// Adds a pod that a plugin rejected.
    pub(crate) fn add_rejected_pod(&self, plugin: &str, profile: &str) {
        self.unschedulable_pods.inc(&[plugin, profile]);
    }

    /// Sets the runs of these plugins of a profile at an extension point.
    pub(crate) fn set_evaluations<'a>(
        &self,
        point: &str,
        profile: &str,
        plugins: impl Iterator<Item = &'a str>,
        counts: &Counts,
    ) {
        for (plugin, count) in counts.of(plugins) {
            self.evaluations.set(&[point, plugin, profile], count as f64);
        }
    }

    /// All families, in the order in which they are rendered.
    pub(super) fn families(&self) -> [&Family; 20] {
        [
            &self.cache_size,
            &BINDING_CONDITIONS_ALLOCATIONS,
            &BINDING_CONDITIONS_WAITS,
            &EVENT_HANDLING,
            &EXTENSION_POINTS,
            &self.pending_pods,
            &self.evaluations,
            &PLUGINS,
            &SCHEDULED_AFTER_FLUSH,
            &POD_ATTEMPTS,
            &SLI,
            &PREEMPTION_ATTEMPTS,
            &PREEMPTIONS,
            &PREEMPTION_VICTIMS,
            &INCOMING_PODS,
            &ATTEMPTS,
            &ALGORITHM,
            &ATTEMPT_DURATIONS,
            &self.unschedulable_pods,
            &VOLUME_ERRORS,
        ]
    }
}

type Report = Arc<dyn Fn(&MetricsSnapshot) + Send + Sync>;

/// Fills a snapshot; empty while this process does not schedule.
static REPORT: Mutex<Option<Report>> = Mutex::new(None);

/// Calls `report` for each page.
pub(crate) fn report_with(report: impl Fn(&MetricsSnapshot) + Send + Sync + 'static) {
    *REPORT.lock() = Some(Arc::new(report));
}

/// Appends the families of the scheduler in the text format, with gauges of this moment.
pub fn render(out: &mut String) {
    let snapshot = MetricsSnapshot::new();
    let report = REPORT.lock().clone();
    if let Some(report) = report {
        report(&snapshot);
    }
    snapshot.families().iter().for_each(|family| family.render(out));
}
