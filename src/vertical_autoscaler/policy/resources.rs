//! The requests and limits that the containers of a pod shall have
//! (`pkg/admission-controller/resource/pod/recommendation`).

use super::amounts::Amounts;
use super::capping::{Capped, Notes, cap};
use super::limit_range::LimitRanges;
use super::pod::PodView;
use super::scaling::proportional_limits;
use super::{controlled_values, update_mode};
use crate::types::{ControlledValues, UpdateMode, VerticalPodAutoscaler};

/// Requests and limits of a container that differ from its own ones or confirm them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerResources {
    /// The requests.
    pub requests: Amounts,
    /// The limits.
    pub limits: Amounts,
}

/// The resources for each container of `pod`, in the pod's order, with annotation texts; empty for
/// a container without a recommendation (`GetContainersResourcesForPod`).
pub fn pod_resources(
    pod: &PodView,
    autoscaler: &VerticalPodAutoscaler,
    ranges: &LimitRanges,
) -> (Vec<ContainerResources>, Notes) {
    let recommendation = autoscaler.status.recommendation.as_ref();
    let capped = recommendation.and_then(|_| cap(autoscaler, pod, ranges));
    let Capped { containers, mut notes } = capped.unwrap_or_default();
    let policy = autoscaler.spec.resource_policy.as_ref();
    let policy = policy.filter(|_| update_mode(autoscaler) != UpdateMode::Off);
    let mut all = Vec::with_capacity(pod.containers.len());
    for container in &pod.containers {
        let mut resources = ContainerResources::default();
        if let Some(own) = containers.iter().find(|one| one.container == container.name) {
            resources.requests.clone_from(&own.target);
            let current = container.current();
            let defaults = ranges.container.as_ref().and_then(|range| range.default.as_ref());
            let limits = proportional_limits(
                current.limits.as_ref(),
                current.requests.as_ref(),
                &own.target,
                defaults,
            );
            let scales =
                controlled_values(&container.name, policy) == ControlledValues::RequestsAndLimits;
            if let Some((limits, texts)) = limits.filter(|_| scales) {
                resources.limits = limits;
                if !texts.is_empty() {
                    notes.entry(container.name.clone()).or_default().extend(texts);
                }
            }
        }
        // Upstream purges a resource without a name.
        resources.requests.remove("");
        all.push(resources);
    }
    (all, notes)
}

#[cfg(test)]
mod tests;
