//! What a scheduling cycle records in the metrics.

use base::clock;
use tokio::time::Instant;

use super::{CycleState, PostFilterOutcome, PostFilterResult, Registration};
use crate::metrics::{self, point, status};
use crate::node_info::NodeInfo;
use crate::rejection::Rejection;

impl PostFilterResult {
    pub(super) fn status(&self) -> &'static str {
        match self {
            Self::Nominated(_) => status::SUCCESS,
            Self::Release(_) | Self::Unschedulable(_) | Self::Hopeless(_) => status::UNSCHEDULABLE,
            Self::Failed(_) => status::ERROR,
        }
    }
}

impl PostFilterOutcome {
    pub(super) fn status(&self) -> &'static str {
        match &self.nomination {
            Some(_) => status::SUCCESS,
            None if self.failed => status::ERROR,
            None => status::UNSCHEDULABLE,
        }
    }
}

impl Registration {
    /// Whether upstream's plugin filters nodes.
    pub(super) fn has_filter(&self) -> bool {
        !matches!(
            self.name,
            "SchedulingGates"
                | "DefaultPreemption"
                | "NodeResourcesBalancedAllocation"
                | "ImageLocality"
        )
    }

    /// Whether upstream's plugin prepares its scores.
    pub(super) fn has_pre_score(&self) -> bool {
        !matches!(self.name, "DynamicResources" | "ImageLocality")
    }
}

impl CycleState<'_> {
    /// When a plugin starts, if its time is taken.
    pub(super) fn plugin_start(&self) -> Option<Instant> {
        self.sampled.then(clock::now)
    }

    /// Records the time of an extension point.
    pub(super) fn observe(&self, point: &str, status: &str, start: Instant) {
        metrics::extension_point(point, status, &self.profile.scheduler_name, start);
    }

    /// Records the times of `filter` for a node, if the cycle is sampled.
    pub(crate) fn sample_filters(&self, node: Option<&NodeInfo>) {
        let Some(node) = node.filter(|_| self.sampled) else { return };
        for plugin in &self.filters {
            let start = clock::now();
            let result = plugin.filter(&self.snapshot, node);
            let code = Rejection::status_of(&result);
            metrics::plugin(point::FILTER, plugin.name(), code, start, 1);
            if result.is_err() {
                break;
            }
        }
    }

    /// Counts the runs of `filter` on so many nodes with these rejections: a plugin does not run
    /// on a node that an earlier one rejected.
    pub(crate) fn count_filters(&self, nodes: usize, rejections: &[(usize, Rejection)]) {
        self.count_rejected(nodes, rejections.iter().map(|(_, rejection)| rejection.plugin));
    }

    /// Counts the runs of `filter` on one more node.
    pub(crate) fn count_filter(&self, result: &Result<(), Rejection>) {
        self.count_rejected(1, result.as_ref().err().map(|rejection| rejection.plugin).into_iter());
    }

    fn count_rejected(&self, nodes: usize, rejecting: impl Iterator<Item = &'static str>) {
        let mut rejected = [0_usize; 32];
        let place = |name: &str| self.filters.iter().position(|plugin| plugin.name() == name);
        let mut last = ("", None);
        for plugin in rejecting {
            if plugin != last.0 {
                last = (plugin, place(plugin));
            }
            if let Some(count) = last.1.and_then(|place| rejected.get_mut(place)) {
                *count += 1;
            }
        }
        let mut places = self.profile.filters.iter().enumerate();
        let mut left = nodes;
        for (plugin, rejected) in self.filters.iter().zip(rejected) {
            let Some((place, _)) = places.find(|(_, r)| r.name == plugin.name()) else { break };
            self.profile.evaluations.filter.add(place, left);
            left = left.saturating_sub(rejected);
        }
    }
}
