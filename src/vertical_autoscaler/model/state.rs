//! The distributions and pods of all autoscalers (upstream's `ClusterState`).
//!
//! Upstream keeps distributions by the labels of pods, so that each new set of labels (each
//! revision of a Deployment, each run of a CronJob) adds some that exist for eight days, and merges
//! those that the selector of an autoscaler matches. The weights of samples decay independently of
//! each other, so one distribution per container of an autoscaler has the same percentiles.

use std::collections::BTreeMap;

use api::selector::LabelSelector;

use super::aggregate::{Aggregate, MemoryRules};
use super::container::ContainerState;

/// Containers of one autoscaler that are observed: pods of one target have the same few.
const CONTAINERS_MAX: usize = 128;
/// Seconds between two removals of expired distributions (`aggregateContainerStateGCInterval`).
const COLLECT_INTERVAL: i64 = 3600;

/// Namespace and name of an autoscaler.
pub type AutoscalerKey = (String, String);

/// What is observed for one autoscaler.
#[derive(Debug, Default)]
pub struct Observed {
    /// The selector of the target as text; `None` before the target was found.
    selector: Option<String>,
    /// By container.
    aggregates: BTreeMap<String, Aggregate>,
    /// By pod, then by container.
    pods: BTreeMap<String, BTreeMap<String, ContainerState>>,
    /// When checkpoints were written.
    pub checkpoint_written: Option<i64>,
    /// Seconds until they are written again.
    pub checkpoint_interval: i64,
    /// Since when there is no recommendation, or when this was logged.
    pub missing_since: Option<i64>,
}

impl Observed {
    /// Sets the selector of the target. With another selector the pods are other ones, so their
    /// observations are dropped; those of a target that cannot be found at present are kept.
    pub fn set_selector(&mut self, selector: &LabelSelector) {
        if selector.is_nothing() {
            self.pods.clear();
            return;
        }
        let text = selector.to_string();
        if self.selector.as_ref().is_some_and(|known| *known != text) {
            self.aggregates.clear();
            self.pods.clear();
        }
        self.selector = Some(text);
    }

    /// Continues with distributions of a checkpoint.
    pub fn restore(&mut self, container: &str, aggregate: Aggregate) {
        self.aggregates.insert(container.to_owned(), aggregate);
    }

    /// The distributions by container.
    pub fn aggregates(&self) -> &BTreeMap<String, Aggregate> {
        &self.aggregates
    }

    /// Adds a pod with a container, and sets how its memory is aggregated.
    pub fn observe(&mut self, pod: &str, container: &str, rules: MemoryRules, now: i64) {
        let has_room = self.aggregates.len() < CONTAINERS_MAX;
        if !has_room && !self.aggregates.contains_key(container) {
            tracing::debug!(container, "vertical-pod-autoscaler: too many containers");
            return;
        }
        let new = || Aggregate::new(now);
        self.aggregates.entry(container.to_owned()).or_insert_with(new).rules = rules;
        let containers = self.pods.entry(pod.to_owned()).or_default();
        containers.entry(container.to_owned()).or_default();
    }

    /// The container of a pod with its distributions; `None` if it is not observed.
    pub fn container(
        &mut self,
        pod: &str,
        container: &str,
    ) -> Option<(&mut ContainerState, &mut Aggregate)> {
        let state = self.pods.get_mut(pod)?.get_mut(container)?;
        Some((state, self.aggregates.get_mut(container)?))
    }

    /// Whether a pod is observed.
    pub fn has_pod(&self, pod: &str) -> bool {
        self.pods.contains_key(pod)
    }

    /// Removes the pods that `exists` does not confirm.
    pub fn retain_pods(&mut self, exists: impl Fn(&str) -> bool) {
        self.pods.retain(|pod, _| exists(pod));
    }

    /// The distributions of a container as a checkpoint has them: without the memory peaks of
    /// intervals that have not ended, which are observed again after a restart.
    pub fn without_current_peaks(&self, container: &str, now: i64) -> Option<Aggregate> {
        let mut aggregate = self.aggregates.get(container)?.clone();
        for containers in self.pods.values() {
            let peak = containers.get(container).and_then(|state| state.current_peak(now));
            if let Some((bytes, end)) = peak {
                aggregate.memory.subtract(bytes, 1.0, end);
            }
        }
        Some(aggregate)
    }

    /// Removes distributions that are expired, and empty ones of containers that no pod has.
    fn collect(&mut self, now: i64) {
        let pods = &self.pods;
        let is_running = |container: &str| pods.values().any(|pod| pod.contains_key(container));
        self.aggregates.retain(|container, aggregate| {
            !aggregate.is_expired(now) && (!aggregate.is_empty() || is_running(container))
        });
    }
}

/// The observations of all autoscalers.
#[derive(Debug, Default)]
pub struct State {
    /// By autoscaler.
    pub autoscalers: BTreeMap<AutoscalerKey, Observed>,
    collected: Option<i64>,
}

impl State {
    /// Removes expired distributions, once per hour.
    pub fn collect(&mut self, now: i64) {
        if self.collected.is_some_and(|last| now.saturating_sub(last) < COLLECT_INTERVAL) {
            return;
        }
        self.collected = Some(now);
        self.autoscalers.values_mut().for_each(|observed| observed.collect(now));
    }
}

#[cfg(test)]
mod tests;
