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

use crate::framework::{Registration, plugin, scored};

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
