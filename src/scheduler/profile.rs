//! A scheduling profile: the plugins that schedule the pods of one scheduler name, with their
//! arguments.

use std::sync::Arc;

use crate::devices::store::Devices;
use crate::event::Event;
use crate::framework::Registration;
use crate::plugin_args::PluginArgs;
use crate::plugins::PLUGINS;
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
}

impl std::fmt::Debug for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Profile").field("scheduler_name", &self.scheduler_name).finish()
    }
}

impl Default for Profile {
    /// Upstream's default profile.
    fn default() -> Self {
        let all: Vec<&'static Registration> = PLUGINS.iter().collect();
        Self {
            scheduler_name: DEFAULT_SCHEDULER.into(),
            percentage_of_nodes_to_score: 0,
            args: PluginArgs::default(),
            pre_enqueue: all.clone(),
            filters: all.clone(),
            scores: all.iter().filter(|p| p.weight > 0).map(|p| (*p, p.weight)).collect(),
            post_filters: all,
        }
    }
}

impl Profile {
    /// Whether every plugin lets the pod into the scheduling queue.
    pub(crate) fn lets_in(&self, pod: &PodInfo, devices: &Devices) -> bool {
        self.pre_enqueue.iter().all(|plugin| (plugin.pre_enqueue)(pod, devices))
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

    /// The profile for the pods with this scheduler name; none if another scheduler is meant.
    pub(crate) fn of(&self, scheduler_name: &str) -> Option<&Arc<Profile>> {
        let name = if scheduler_name.is_empty() { DEFAULT_SCHEDULER } else { scheduler_name };
        self.0.iter().find(|profile| profile.scheduler_name == name)
    }
}

/// Whether the event may make a pod schedulable that the named plugin rejected.
pub(crate) fn queueing_hint(plugin: &str, event: &Event<'_>, pod: &PodInfo) -> bool {
    let plugin = PLUGINS.iter().find(|p| p.name == plugin);
    plugin.is_none_or(|p| (p.queueing_hint)(event, pod))
}
