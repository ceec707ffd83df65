//! The metrics of the scheduler, with kube-scheduler's names.
//!
//! An extension point takes two looks at the clock per cycle. The loops over nodes record nothing:
//! evaluations of plugins are derived from the results of a search, and the times of plugins are
//! taken in one of ten cycles (`pluginMetricsSamplePercent`), of `Filter` for one node. Gauges are
//! computed when the page is read ([`MetricsSnapshot`]).

mod families;
mod snapshot;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use base::clock;
use tokio::time::Instant;

pub(crate) use families::{
    ALGORITHM, BINDING_CONDITIONS_ALLOCATIONS, BINDING_CONDITIONS_WAITS, PREEMPTION_ATTEMPTS,
    PREEMPTION_VICTIMS, PREEMPTIONS, VOLUME_ERRORS,
};
use families::{
    ATTEMPT_DURATIONS, ATTEMPTS, EVENT_HANDLING, EXTENSION_POINTS, INCOMING_PODS, PLUGINS,
    POD_ATTEMPTS, SCHEDULED_AFTER_FLUSH, SLI,
};
pub use snapshot::render;
pub(crate) use snapshot::{MetricsSnapshot, report_with};

/// Values of the label `extension_point`.
pub(crate) mod point {
    pub(crate) const PRE_ENQUEUE: &str = "PreEnqueue";
    pub(crate) const PRE_FILTER: &str = "PreFilter";
    pub(crate) const FILTER: &str = "Filter";
    pub(crate) const POST_FILTER: &str = "PostFilter";
    pub(crate) const PRE_SCORE: &str = "PreScore";
    pub(crate) const SCORE: &str = "Score";
    pub(crate) const RESERVE: &str = "Reserve";
    pub(crate) const UNRESERVE: &str = "Unreserve";
    pub(crate) const PRE_BIND: &str = "PreBind";
    pub(crate) const BIND: &str = "Bind";
}

/// Values of the label `status`: the codes of upstream's `Status`.
pub(crate) mod status {
    pub(crate) const SUCCESS: &str = "Success";
    pub(crate) const ERROR: &str = "Error";
    pub(crate) const UNSCHEDULABLE: &str = "Unschedulable";
    pub(crate) const UNRESOLVABLE: &str = "UnschedulableAndUnresolvable";
    pub(crate) const SKIP: &str = "Skip";

    /// The status of a result whose error is a failure.
    pub(crate) fn of<T, E>(result: &Result<T, E>) -> &'static str {
        if result.is_ok() { SUCCESS } else { ERROR }
    }
}

/// Whether the times of plugins are taken in the cycle that begins: in about one of ten.
pub(crate) fn is_sampled() -> bool {
    static CYCLES: AtomicU32 = AtomicU32::new(0);
    // Mixed, so that the choice does not follow a pattern of the pods.
    let cycle = CYCLES.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9);
    (cycle >> 16).is_multiple_of(10)
}

/// Records the time that all plugins took at an extension point.
pub(crate) fn extension_point(point: &str, status: &str, profile: &str, start: Instant) {
    EXTENSION_POINTS.took(&[point, profile, status], clock::now() - start);
}

/// Records the time that a plugin took at an extension point, for one node if it runs per node.
pub(crate) fn plugin(point: &str, plugin: &str, status: &str, start: Instant, nodes: usize) {
    let seconds = (clock::now() - start).as_secs_f64() / nodes.max(1) as f64;
    PLUGINS.observe(&[point, plugin, status], seconds);
}

/// Records how long a change of an object was handled.
pub(crate) fn event_handled(event: &str, start: Instant) {
    EVENT_HANDLING.took(&[event], clock::now() - start);
}

/// Counts a pod that an event moves to a queue.
pub(crate) fn incoming_pod(event: &str, queue: &str) {
    INCOMING_PODS.inc(&[event, queue]);
}

/// An attempt to schedule a pod.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    /// The first attempt is 1.
    pub(crate) number: u32,
    pub(crate) started: Instant,
    /// When the pod became active for the first time.
    pub(crate) queued: Instant,
    /// The pod was unschedulable and became active without an event.
    pub(crate) after_flush: bool,
}

impl Attempt {
    /// The pod was bound.
    pub(crate) fn scheduled(&self, profile: &str) {
        self.end(profile, "scheduled");
        POD_ATTEMPTS.observe(&[], f64::from(self.number));
        let number = if self.number >= 15 { "15+".to_owned() } else { self.number.to_string() };
        SLI.took(&[&number], clock::now() - self.queued);
        if self.after_flush {
            SCHEDULED_AFTER_FLUSH.inc(&[]);
        }
    }

    /// No node fits the pod.
    pub(crate) fn unschedulable(&self, profile: &str) {
        self.end(profile, "unschedulable");
    }

    /// The cycle or the binding failed.
    pub(crate) fn failed(&self, profile: &str) {
        self.end(profile, "error");
    }

    fn end(&self, profile: &str, result: &str) {
        ATTEMPTS.inc(&[profile, result]);
        ATTEMPT_DURATIONS.took(&[profile, result], clock::now() - self.started);
    }
}

/// How often the plugins of a profile ran: by their place in the profile.
#[derive(Debug, Default)]
pub(crate) struct Evaluations {
    pub(crate) pre_filter: Counts,
    pub(crate) filter: Counts,
    pub(crate) pre_score: Counts,
    pub(crate) score: Counts,
}

/// A number for each plugin.
#[derive(Debug, Default)]
pub(crate) struct Counts([AtomicU64; 32]);

impl Counts {
    /// Counts runs of the plugin at this place.
    pub(crate) fn add(&self, place: usize, by: usize) {
        if let Some(count) = self.0.get(place) {
            count.fetch_add(by as u64, Ordering::Relaxed);
        }
    }

    /// The plugins that ran, out of these, with the numbers of their runs.
    pub(crate) fn of<'a>(
        &self,
        plugins: impl Iterator<Item = &'a str>,
    ) -> impl Iterator<Item = (&'a str, u64)> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        plugins.zip(counts).filter(|(_, count)| *count > 0)
    }
}

/// The numbers of pods in the queues and the sizes of the cache.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) active: usize,
    pub(crate) backoff: usize,
    pub(crate) unschedulable: usize,
    pub(crate) gated: usize,
    pub(crate) nodes: usize,
    pub(crate) pods: usize,
    pub(crate) assumed_pods: usize,
}

/// Counts an error of the plugin if it is VolumeBinding.
pub(crate) fn volume_error(plugin: &str, operation: &str) {
    if plugin == "VolumeBinding" {
        VOLUME_ERRORS.inc(&[operation]);
    }
}
