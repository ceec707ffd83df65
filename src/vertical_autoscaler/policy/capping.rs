//! A recommendation within an autoscaler's policy, the LimitRanges and the limits of the
//! containers (`pkg/utils/vpa/capping.go`).

use std::collections::BTreeMap;

use api::Quantity;

use super::amounts::{Amounts, CPU, MEMORY, amount, parse};
use super::limit_range::{LimitItem, LimitRanges};
use super::pod::{PodView, Resources};
use super::scaling::boundary_request;
use super::{container_policy, controlled_values, pod_range};
use crate::types::{ContainerPolicy, ControlledValues, Recommendation, VerticalPodAutoscaler};

/// The recommendation for one container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recommended {
    /// The container.
    pub container: String,
    /// The recommended requests.
    pub target: Amounts,
    /// Pods with less are updated.
    pub lower: Amounts,
    /// Pods with more are updated.
    pub upper: Amounts,
}

/// Annotation texts by container.
pub type Notes = BTreeMap<String, Vec<String>>;

/// A capped recommendation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capped {
    /// By container of the pod.
    pub containers: Vec<Recommended>,
    /// Why the targets differ from those of the recommendation.
    pub notes: Notes,
}

impl Capped {
    /// The recommendation for a container.
    pub fn container(&self, name: &str) -> Option<&Recommended> {
        self.containers.iter().find(|one| one.container == name)
    }
}

/// The amounts of a recommendation.
pub fn recommended(recommendation: &Recommendation) -> Vec<Recommended> {
    let containers = recommendation.container_recommendations.iter();
    let recommended = containers.map(|container| Recommended {
        container: container.container_name.clone(),
        target: parse(&container.target),
        lower: parse(&container.lower_bound),
        upper: parse(&container.upper_bound),
    });
    recommended.collect()
}

/// Whether some target in `new` is lower than in `last` for a container of both
/// (`RecommendationHasLowerResource`).
pub fn has_lower_target(last: &[Recommended], new: &[Recommended]) -> bool {
    new.iter().any(|new| {
        let last = last.iter().find(|last| last.container == new.container);
        last.is_some_and(|last| {
            new.target.iter().any(|(name, q)| last.target.get(name).is_some_and(|last| q < last))
        })
    })
}

/// The recommendation for `pod` within policy and limits; `None` if there is neither a
/// recommendation nor a policy.
pub fn cap(
    autoscaler: &VerticalPodAutoscaler,
    pod: &PodView,
    ranges: &LimitRanges,
) -> Option<Capped> {
    let policy = autoscaler.spec.resource_policy.as_ref();
    let recommendation = autoscaler.status.recommendation.as_ref();
    if policy.is_none() && recommendation.is_none() {
        return None;
    }
    let mut all = recommendation.map(recommended).unwrap_or_default();
    if let Some(range) = &ranges.pod {
        pod_range::apply(&mut all, pod, range);
    }
    let mut capped = Capped::default();
    for mut one in all {
        let Some(container) = pod.container(&one.container) else { continue };
        let current = container.current();
        let of_container = container_policy(&one.container, policy);
        let limits = (controlled_values(&one.container, policy) == ControlledValues::RequestsOnly)
            .then_some(current.limits.as_ref())
            .flatten();
        let mut notes = Vec::new();
        let cap = |amounts: &mut Amounts, notes: &mut Vec<String>| {
            if let Some(range) = &ranges.container {
                cap_to_limit_range(amounts, current, range, notes);
            }
            if let Some(policy) = of_container {
                cap_to_policy(amounts, policy, notes);
            }
            if let Some(limits) = limits {
                cap_to_limits(amounts, limits, notes);
            }
        };
        cap(&mut one.target, &mut notes);
        cap(&mut one.lower, &mut Vec::new());
        cap(&mut one.upper, &mut Vec::new());
        if !notes.is_empty() {
            capped.notes.insert(one.container.clone(), notes);
        }
        capped.containers.push(one);
    }
    Some(capped)
}

/// Raises each amount to `min` and lowers it to `max`, where these are not zero.
fn cap_between(
    amounts: &mut Amounts,
    (min, min_note): (&Amounts, &str),
    (max, max_note): (&Amounts, &str),
    notes: &mut Vec<String>,
) {
    let bound = |bounds: &Amounts, name: &str| bounds.get(name).copied().filter(|q| !q.is_zero());
    for (name, own) in amounts {
        if let Some(min) = bound(min, name).filter(|min| *own < *min) {
            *own = min;
            notes.push(format!("{name} capped to {min_note}"));
        }
        if let Some(max) = bound(max, name).filter(|max| *own > *max) {
            *own = max;
            notes.push(format!("{name} capped to {max_note}"));
        }
    }
}

fn cap_to_policy(amounts: &mut Amounts, policy: &ContainerPolicy, notes: &mut Vec<String>) {
    let (min, max) = (parse(&policy.min_allowed), parse(&policy.max_allowed));
    cap_between(amounts, (&min, "minAllowed"), (&max, "maxAllowed"), notes);
}

/// A container without a limit has an infinite one.
fn cap_to_limits(amounts: &mut Amounts, limits: &Amounts, notes: &mut Vec<String>) {
    for (name, limit) in limits {
        let own = amounts.get_mut(name).filter(|own| own.milli_value() > limit.milli_value());
        if let Some(own) = own {
            *own = *limit;
            notes.push(format!("{name} capped to container limit"));
        }
    }
}

fn cap_to_limit_range(
    amounts: &mut Amounts,
    current: &Resources,
    range: &LimitItem,
    notes: &mut Vec<String>,
) {
    let boundary = |bounds: &Option<Amounts>| {
        let mut requests = Amounts::new();
        for name in [CPU, MEMORY].into_iter().filter(|_| bounds.is_some()) {
            let request = boundary_request(
                name,
                amount(current.requests.as_ref(), name),
                amount(current.limits.as_ref(), name),
                amount(bounds.as_ref(), name),
                amount(range.default.as_ref(), name),
            );
            requests.insert(name.to_owned(), request);
        }
        requests
    };
    let max = boundary(&range.max);
    let mut min = boundary(&range.min);
    // The request itself must not be lower than the minimum either.
    for (name, own) in &mut min {
        *own = Quantity::max(*own, amount(range.min.as_ref(), name));
    }
    let item = "container LimitRange";
    let (min_note, max_note) = (format!("fit Min in {item}"), format!("fit Max in {item}"));
    cap_between(amounts, (&min, &min_note), (&max, &max_note), notes);
}

#[cfg(test)]
mod tests;
