//! Which pods are updated, and in which order (`pkg/updater/priority`).

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use api::k8s::jiff::Timestamp;
use sorting::CompactSort as _;

use super::resizing::ResizeMemory;
use crate::admission::{LIST_SEPARATOR, OBSERVED_ANNOTATION};
use crate::policy::amounts::{Amounts, CPU, MEMORY, amount};
use crate::policy::capping::{Capped, cap};
use crate::policy::limit_range::LimitRanges;
use crate::policy::pod::PodView;
use crate::policy::{Features, is_scaling_off, update_mode};
use crate::types::{ChangeRequirement, EvictionRequirement, UpdateMode, VerticalPodAutoscaler};

/// A smaller difference between requests and recommendation does not cause an update
/// (`--pod-update-threshold`).
const CHANGE_MIN: f64 = 0.1;
/// A pod whose requests are within the recommended range is updated after this time
/// (`--in-recommendation-bounds-eviction-lifetime-threshold`).
const LIFETIME_MIN: Duration = Duration::from_secs(12 * 60 * 60);
/// A pod whose container was killed for memory within this time after its start, and within this
/// time ago, is updated (`--evict-after-oom-threshold`).
const OOM_WITHIN: Duration = Duration::from_secs(10 * 60);

/// How urgent an update is.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct UpdatePriority {
    /// Whether a request is outside of the recommended range.
    is_outside: bool,
    /// Whether a request grows.
    scales_up: bool,
    /// The sum over the resources of the relative difference between requests and targets.
    difference: f64,
}

impl UpdatePriority {
    /// A pod that grows precedes, and then the one with the larger difference.
    fn compare(&self, other: &Self) -> Ordering {
        let growth = other.scales_up.cmp(&self.scales_up);
        growth.then(other.difference.total_cmp(&self.difference))
    }
}

/// Whether a text is a label as in DNS, as names of containers are.
fn is_dns_label(text: &str) -> bool {
    let is_inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&text.len())
        && text.bytes().all(is_inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// The containers that the pod had at admission, if a valid annotation lists them.
fn observed_containers(pod: &PodView) -> Option<Vec<&str>> {
    let text = pod.annotation(OBSERVED_ANNOTATION)?;
    let names: Vec<&str> =
        if text.is_empty() { Vec::new() } else { text.split(LIST_SEPARATOR).collect() };
    names.iter().all(|name| is_dns_label(name)).then_some(names)
}

/// The priority of a pod with this recommendation (`GetUpdatePriority`).
pub(super) fn priority(pod: &PodView, recommendation: Option<&Capped>) -> UpdatePriority {
    let mut priority = UpdatePriority::default();
    // Requests and targets in thousandths, by resource.
    let mut totals: BTreeMap<&str, (i64, i64)> = BTreeMap::new();
    let observed = observed_containers(pod);
    for container in &pod.containers {
        if observed.as_ref().is_some_and(|names| !names.contains(&&*container.name)) {
            continue;
        }
        let Some(own) = recommendation.and_then(|all| all.container(&container.name)) else {
            continue;
        };
        let requests = container.current().requests.as_ref();
        for (name, target) in &own.target {
            let (requested, recommended) = totals.entry(name).or_default();
            *recommended = recommended.saturating_add(target.milli_value());
            let Some(request) = requests.and_then(|requests| requests.get(name)) else {
                // Upstream ignores the default request of the namespace.
                priority.scales_up = true;
                priority.is_outside = true;
                continue;
            };
            *requested = requested.saturating_add(request.milli_value());
            priority.scales_up |= target.milli_value() > request.milli_value();
            priority.is_outside |= own.lower.get(name).is_some_and(|lower| request < lower)
                || own.upper.get(name).is_some_and(|upper| request > upper);
        }
    }
    for (requested, recommended) in totals.into_values() {
        priority.difference += relative_difference(requested, recommended);
    }
    priority
}

#[allow(clippy::cast_precision_loss, reason = "a ratio")]
fn relative_difference(requested: i64, recommended: i64) -> f64 {
    let requested = f64::max(requested as f64, 1.0);
    (requested - recommended as f64).abs() / requested
}

/// Whether a scaled container was killed for memory soon after its start, a short time ago.
fn has_quick_oom(
    pod: &PodView,
    autoscaler: &VerticalPodAutoscaler,
    features: Features,
    now: Timestamp,
) -> bool {
    let policy = autoscaler.spec.update_policy.as_ref().filter(|_| features.per_vpa_config);
    let seconds = policy.and_then(|policy| policy.evict_after_oom_seconds);
    let within = seconds.map_or(OOM_WITHIN, |seconds| {
        Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
    });
    let resource_policy = autoscaler.spec.resource_policy.as_ref();
    let observed = observed_containers(pod);
    pod.containers.iter().any(|container| {
        let is_observed = observed.as_ref().is_none_or(|names| names.contains(&&*container.name));
        let is_within = |from: Timestamp, to: Timestamp| {
            Duration::try_from(to.duration_since(from)).unwrap_or_default() < within
        };
        is_observed
            && !is_scaling_off(&container.name, resource_policy)
            && container.oom_killed.is_some_and(|(started, finished)| {
                is_within(started, finished) && is_within(finished, now)
            })
    })
}

/// Whether the eviction requirements admit the update (`PodEvictionAdmission`): all hold for one
/// container with a recommendation.
fn is_admitted(
    pod: &PodView,
    autoscaler: &VerticalPodAutoscaler,
    recommendation: Option<&Capped>,
) -> bool {
    let Some(policy) = &autoscaler.spec.update_policy else { return true };
    pod.containers.iter().any(|container| {
        let own = recommendation.and_then(|all| all.container(&container.name));
        own.is_some_and(|own| {
            let requests = container.current().requests.as_ref();
            let has = |name: &str| requests.is_some_and(|requests| requests.contains_key(name));
            let mut requirements = policy.eviction_requirements.iter();
            !has(CPU)
                || !has(MEMORY)
                || requirements.all(|one| is_fulfilled(one, requests, &own.target))
        })
    })
}

fn is_fulfilled(
    requirement: &EvictionRequirement,
    requests: Option<&Amounts>,
    target: &Amounts,
) -> bool {
    requirement.resources.iter().any(|name| {
        let request = amount(requests, name).milli_value();
        let target = amount(Some(target), name).milli_value();
        match requirement.change_requirement {
            ChangeRequirement::TargetHigherThanRequests => target > request,
            ChangeRequirement::TargetLowerThanRequests => target < request,
        }
    })
}

/// The priority of a pod, or `None` if it is not updated now (`AddPod`).
fn update_priority(
    pod: &PodView,
    autoscaler: &VerticalPodAutoscaler,
    recommendation: Option<&Capped>,
    (features, now): (Features, Timestamp),
) -> Option<UpdatePriority> {
    let priority = priority(pod, recommendation);
    let has_quick_oom = has_quick_oom(pod, autoscaler, features, now);
    if !priority.is_outside && !has_quick_oom {
        let lifetime = now.duration_since(pod.started?);
        if Duration::try_from(lifetime).unwrap_or_default() < LIFETIME_MIN
            || priority.difference < CHANGE_MIN
        {
            return None;
        }
    }
    (!has_quick_oom || priority.difference != 0.0).then_some(priority)
}

/// The pods that are updated, the most urgent one first (`getPodsUpdateOrder`).
pub(super) fn update_order<'a>(
    pods: impl Iterator<Item = &'a PodView>,
    autoscaler: &VerticalPodAutoscaler,
    ranges: &LimitRanges,
    memory: &ResizeMemory,
    at: (Features, Timestamp),
) -> Vec<&'a PodView> {
    let is_in_place = update_mode(autoscaler) == UpdateMode::InPlace;
    let mut updates: Vec<(UpdatePriority, &PodView)> = pods
        .filter_map(|pod| {
            let recommendation = cap(autoscaler, pod, ranges);
            let recommendation = recommendation.as_ref();
            let containers = recommendation.map(|all| &*all.containers).unwrap_or_default();
            let is_infeasible = is_in_place && memory.is_still_infeasible(pod, containers);
            let priority = update_priority(pod, autoscaler, recommendation, at)?;
            let is_updated = !is_infeasible && is_admitted(pod, autoscaler, recommendation);
            is_updated.then_some((priority, pod))
        })
        .collect();
    updates.compact_sort_by(|(a, _), (b, _)| a.compare(b));
    updates.into_iter().map(|(_, pod)| pod).collect()
}

#[cfg(test)]
mod tests;
