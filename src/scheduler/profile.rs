//! A scheduling profile: the plugins that schedule the pods of one scheduler name, with their
//! arguments.

use std::sync::Arc;

use base::clock;

use crate::devices::store::Devices;
use crate::framework::Registration;
use crate::metrics::{self, Evaluations, MetricsSnapshot, point, status};
use crate::plugin_args::PluginArgs;
use crate::pod_info::PodInfo;

/// The scheduler name of the default profile.
pub(crate) const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// The plugins for the pods with one `schedulerName`.
pub(crate) struct Profile {
    pub(crate) scheduler_name: String,
    /// Share of nodes in percent that are enough to choose from; 0 adapts to their number.
    pub(crate) percentage_of_nodes_to_score: usize,
    pub(crate) args: PluginArgs,
    /// The plugins that let pods into the queue.
    pub(crate) pre_enqueue: Vec<&'static Registration>,
    /// The plugins that filter nodes and reserve what the pod needs there. The first rejection
    /// decides the message of a node.
    pub(crate) filters: Vec<&'static Registration>,
    /// The plugins that make room for a pod that fits no node.
    pub(crate) post_filters: Vec<&'static Registration>,
    /// The plugins that score nodes, with weights.
    pub(crate) scores: Vec<(&'static Registration, i64)>,
    /// How often the plugins ran.
    pub(crate) evaluations: Evaluations,
}

impl std::fmt::Debug for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Profile").field("scheduler_name", &self.scheduler_name).finish()
    }
}

impl Profile {
    /// The plugin that does not let the pod into the scheduling queue, if there is one.
    pub(crate) fn gated_by(&self, pod: &PodInfo, devices: &Devices) -> Option<&'static str> {
        let start = clock::now();
        let mut plugins = self.pre_enqueue.iter();
        let gating = plugins.find(|plugin| !(plugin.pre_enqueue)(pod, devices));
        // As upstream, also when a plugin rejects the pod.
        metrics::extension_point(point::PRE_ENQUEUE, status::SUCCESS, &self.scheduler_name, start);
        gating.map(|plugin| plugin.name)
    }

    /// Adds the counters of evaluations to the metrics.
    pub(crate) fn report(&self, metrics: &MetricsSnapshot) {
        let (name, counts) = (self.scheduler_name.as_str(), &self.evaluations);
        let filters = || self.filters.iter().map(|plugin| plugin.name);
        metrics.set_evaluations(point::PRE_FILTER, name, filters(), &counts.pre_filter);
        metrics.set_evaluations(point::FILTER, name, filters(), &counts.filter);
        let scores = || self.scores.iter().map(|(plugin, _)| plugin.name);
        metrics.set_evaluations(point::PRE_SCORE, name, scores(), &counts.pre_score);
        metrics.set_evaluations(point::SCORE, name, scores(), &counts.score);
    }
}

/// The profiles of the scheduler.
#[derive(Debug, Clone)]
pub(crate) struct Profiles(Vec<Arc<Profile>>);

impl Default for Profiles {
    fn default() -> Self {
        Self(vec![Arc::default()])
    }
}

impl Profiles {
    /// Profiles with distinct scheduler names.
    pub(crate) fn new(profiles: Vec<Profile>) -> Self {
        Self(profiles.into_iter().map(Arc::new).collect())
    }

    /// All profiles.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Profile>> {
        self.0.iter()
    }

    /// The profile for the pods with this scheduler name; none if another scheduler is meant.
    pub(crate) fn of(&self, scheduler_name: &str) -> Option<&Arc<Profile>> {
        let name = if scheduler_name.is_empty() { DEFAULT_SCHEDULER } else { scheduler_name };
        self.0.iter().find(|profile| profile.scheduler_name == name)
    }
}

/// The name of the scheduler that schedules the pod.
pub(crate) fn scheduler_name(pod: &PodInfo) -> &str {
    if pod.scheduler.is_empty() { DEFAULT_SCHEDULER } else { &pod.scheduler }
}
