//! Arguments of the plugins (`pluginConfig` of a KubeSchedulerConfiguration), with upstream's
//! defaults.

use std::collections::BTreeSet;
use std::time::Duration;

use api::k8s::api::core::v1::{NodeSelectorTerm, TopologySpreadConstraint};

/// A resource of a score.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ScoredResource {
    Cpu,
    Memory,
    EphemeralStorage,
    /// Huge pages or an extended resource.
    Other(String),
}

impl ScoredResource {
    /// The resource with this name.
    pub(crate) fn new(name: &str) -> Self {
        match name {
            "cpu" => Self::Cpu,
            "memory" => Self::Memory,
            "ephemeral-storage" => Self::EphemeralStorage,
            other => Self::Other(other.to_owned()),
        }
    }

    /// The name of the resource.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::EphemeralStorage => "ephemeral-storage",
            Self::Other(name) => name,
        }
    }
}

/// A resource with its weight in a score.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResourceWeight {
    pub(crate) resource: ScoredResource,
    /// 1 to 100.
    pub(crate) weight: i64,
}

/// A point of the function that turns the utilization of a resource into a score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UtilizationPoint {
    /// In percent.
    pub(crate) utilization: i64,
    /// 0 to 100.
    pub(crate) score: i64,
}

/// How NodeResourcesFit scores a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ScoringStrategy {
    LeastAllocated,
    MostAllocated,
    RequestedToCapacityRatio(Vec<UtilizationPoint>),
}

/// Constraints of pods without constraints of their own.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum DefaultConstraints {
    /// Upstream's two: nodes with a skew of 3 and zones with a skew of 5, for scores only.
    System,
    /// The configured ones.
    List(Vec<TopologySpreadConstraint>),
}

/// Arguments of all plugins of a profile.
#[derive(Debug, Clone)]
pub(crate) struct PluginArgs {
    /// Extended resources that NodeResourcesFit does not filter by.
    pub(crate) ignored_resources: BTreeSet<String>,
    /// The same for all resources with one of these prefixes before the slash.
    pub(crate) ignored_resource_groups: BTreeSet<String>,
    pub(crate) scoring_strategy: ScoringStrategy,
    /// The resources of the strategy.
    pub(crate) fit_resources: Vec<ResourceWeight>,
    /// The resources of NodeResourcesBalancedAllocation.
    pub(crate) balanced_resources: Vec<ResourceWeight>,
    /// Weight of a required affinity term of an existing pod, for the incoming one.
    pub(crate) hard_pod_affinity_weight: i64,
    /// InterPodAffinity does not score pods without preferred terms of their own.
    pub(crate) ignore_preferred_terms_of_existing_pods: bool,
    pub(crate) default_constraints: DefaultConstraints,
    /// Node selector terms that every pod needs in addition to its own; one must match.
    pub(crate) added_required_nodes: Option<Vec<NodeSelectorTerm>>,
    /// Preferred terms with weights that every pod has in addition to its own.
    pub(crate) added_preferred_nodes: Vec<(i64, NodeSelectorTerm)>,
    /// How long VolumeBinding waits for volumes.
    pub(crate) bind_timeout: Duration,
    /// Share of nodes in percent on which DefaultPreemption tries evictions.
    pub(crate) min_candidate_nodes_percentage: usize,
    /// Least number of such nodes.
    pub(crate) min_candidate_nodes_absolute: usize,
}

fn cpu_and_memory() -> Vec<ResourceWeight> {
    [ScoredResource::Cpu, ScoredResource::Memory]
        .map(|resource| ResourceWeight { resource, weight: 1 })
        .into()
}

impl Default for PluginArgs {
    fn default() -> Self {
        Self {
            ignored_resources: BTreeSet::new(),
            ignored_resource_groups: BTreeSet::new(),
            scoring_strategy: ScoringStrategy::LeastAllocated,
            fit_resources: cpu_and_memory(),
            balanced_resources: cpu_and_memory(),
            hard_pod_affinity_weight: 1,
            ignore_preferred_terms_of_existing_pods: false,
            default_constraints: DefaultConstraints::System,
            added_required_nodes: None,
            added_preferred_nodes: Vec::new(),
            bind_timeout: Duration::from_secs(600),
            min_candidate_nodes_percentage: 10,
            min_candidate_nodes_absolute: 100,
        }
    }
}
