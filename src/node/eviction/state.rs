//! Decides which thresholds cause evictions: pure functions over observations (upstream's
//! `synchronize` and its helpers).

use std::collections::BTreeMap;

use api::Quantity;
use tokio::time::Instant;

use crate::config::thresholds::{EvictionThreshold, ScarceResource, Signal};
use crate::eviction::pressure::PressureConditions;

/// What is available of a resource.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Observation {
    /// Bytes in binary format; inodes and processes in decimal format.
    pub(super) available: Quantity,
    pub(super) capacity: i64,
    /// When it was measured.
    pub(super) at: Instant,
}

/// What is available, by signal. A signal that could not be measured is not there.
pub(super) type Observations = BTreeMap<Signal, Observation>;

/// The thresholds that are met (`thresholdsMet`); with `min_reclaim`, also those whose amount to
/// reclaim is not available yet.
fn met(
    thresholds: &[EvictionThreshold],
    observations: &Observations,
    min_reclaim: bool,
) -> Vec<EvictionThreshold> {
    let is_met = |threshold: &&EvictionThreshold| {
        let Some(observed) = observations.get(&threshold.signal) else { return false };
        let reclaim = threshold.min_reclaim.filter(|_| min_reclaim);
        let reclaim = reclaim.map_or(Quantity::ZERO, |value| value.of(observed.capacity));
        threshold.value.of(observed.capacity).plus(reclaim) > observed.available
    };
    thresholds.iter().filter(is_met).copied().collect()
}

/// The value of a threshold and what is available, for messages: those of the first threshold of
/// the resource (`getThresholdMetInfo`).
pub(super) fn threshold_met(
    resource: ScarceResource,
    thresholds: &[EvictionThreshold],
    observations: &Observations,
) -> Option<(Quantity, Quantity)> {
    let mut of_resource = thresholds.iter().filter(|t| t.signal.resource() == resource);
    of_resource.find_map(|threshold| {
        let observed = observations.get(&threshold.signal)?;
        Some((threshold.value.of(observed.capacity), observed.available))
    })
}

/// The result of one evaluation.
#[derive(Debug, PartialEq)]
pub(super) struct Evaluation {
    /// The conditions of all thresholds that are met, also of those whose grace period lasts.
    pub(super) conditions: PressureConditions,
    /// The thresholds that cause evictions; the first one is to be reclaimed.
    pub(super) due: Vec<EvictionThreshold>,
}

/// The thresholds and their state.
#[derive(Debug, Default)]
pub(super) struct EvictionState {
    configured: Vec<EvictionThreshold>,
    /// Those that were due at the previous evaluation.
    due: Vec<EvictionThreshold>,
    /// Those that are met, each with the time since when.
    first_met: Vec<(EvictionThreshold, Instant)>,
}

impl EvictionState {
    /// Replaces the configured thresholds. State of others is kept until the next evaluation.
    pub(super) fn configure(&mut self, thresholds: Vec<EvictionThreshold>) {
        self.configured = thresholds;
    }

    /// Evaluates the thresholds. Every observation is newer than those of the evaluation before,
    /// so none is skipped as upstream does with statistics that it has already acted on.
    pub(super) fn evaluate(&mut self, observations: &Observations, now: Instant) -> Evaluation {
        let mut all_met = met(&self.configured, observations, false);
        for unresolved in met(&self.due, observations, true) {
            if !all_met.contains(&unresolved) {
                all_met.push(unresolved);
            }
        }
        let since = |threshold: &EvictionThreshold| {
            let known = self.first_met.iter().find(|(known, _)| known == threshold);
            known.map_or(now, |(_, at)| *at)
        };
        self.first_met = all_met.iter().map(|t| (*t, since(t))).collect();
        let is_over = |(threshold, at): &&(EvictionThreshold, Instant)| {
            now.saturating_duration_since(*at) >= threshold.grace
        };
        let due = self.first_met.iter().filter(is_over).map(|(threshold, _)| *threshold);
        // Memory is reclaimed first.
        let (mut due, others): (Vec<_>, Vec<_>) =
            due.partition(|t| t.signal.resource() == ScarceResource::Memory);
        due.extend(others);
        self.due.clone_from(&due);
        Evaluation { conditions: PressureConditions::of(&all_met), due }
    }

    /// Whether no configured threshold is met any more, with its amount to reclaim and whatever its
    /// grace period is (`reclaimNodeLevelResources`).
    pub(super) fn is_reclaimed(&self, observations: &Observations) -> bool {
        met(&self.configured, observations, true).is_empty()
    }
}

#[cfg(test)]
mod tests;
