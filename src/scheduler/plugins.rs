//! THE ordered list of scheduler plugins with the weights of their scores (upstream:
//! `getDefaultPlugins`).
//!
//! A plugin implements [`crate::framework::Plugin`] in a file of its own below `plugins/`; its
//! `mod` line and its line in [`PLUGINS`] are all that the rest of the scheduler needs.

mod default_preemption;
mod dynamic_resources;
mod image_locality;
mod inter_pod_affinity;
mod node_affinity;
mod node_declared_features;
mod node_name;
mod node_ports;
mod node_resources_balanced_allocation;
mod node_resources_fit;
mod node_unschedulable;
mod node_volume_limits;
mod pod_topology_spread;
mod resource_scores;
mod scheduling_gates;
mod taint_toleration;
mod volume_binding;
mod volume_restrictions;
mod volume_zone;

use crate::event::Event;
use crate::framework::{Registration, plugin, scored};
use crate::metrics::Evaluations;
use crate::plugin_args::PluginArgs;
use crate::pod_info::PodInfo;
use crate::profile::{DEFAULT_SCHEDULER, Profile};

/// Filters run in this order, and the first rejection decides the message of a node. Upstream's
/// `PrioritySort` is the order of the queue, its `DefaultBinder` is `bind.rs`.
pub(crate) static PLUGINS: &[Registration] = &[
    plugin::<scheduling_gates::SchedulingGates>(),
    plugin::<node_name::NodeName>(),
    plugin::<node_unschedulable::NodeUnschedulable>(),
    scored::<taint_toleration::TaintToleration>(3),
    scored::<node_affinity::NodeAffinity>(2),
    plugin::<node_ports::NodePorts>(),
    scored::<node_resources_fit::NodeResourcesFit>(1),
    plugin::<volume_restrictions::VolumeRestrictions>(),
    plugin::<node_volume_limits::NodeVolumeLimits>(),
    plugin::<volume_binding::VolumeBinding>(),
    plugin::<volume_zone::VolumeZone>(),
    scored::<pod_topology_spread::PodTopologySpread>(2),
    scored::<inter_pod_affinity::InterPodAffinity>(2),
    // Before preemption, which cannot free devices.
    scored::<dynamic_resources::DynamicResources>(2),
    plugin::<default_preemption::DefaultPreemption>(),
    scored::<node_resources_balanced_allocation::NodeResourcesBalancedAllocation>(1),
    scored::<image_locality::ImageLocality>(1),
    plugin::<node_declared_features::NodeDeclaredFeatures>(),
];

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
            evaluations: Evaluations::default(),
        }
    }
}

/// Whether the event may make a pod schedulable that the named plugin rejected.
pub(crate) fn queueing_hint(plugin: &str, event: &Event<'_>, pod: &PodInfo) -> bool {
    let plugin = PLUGINS.iter().find(|p| p.name == plugin);
    plugin.is_none_or(|p| (p.queueing_hint)(event, pod))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_plugin_has_a_name_of_its_own() {
        let names: BTreeSet<&str> = PLUGINS.iter().map(|plugin| plugin.name).collect();
        assert_eq!(names.len(), PLUGINS.len());
    }
}
