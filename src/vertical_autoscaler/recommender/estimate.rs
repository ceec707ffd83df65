//! From distributions of usage to recommended amounts (upstream's `recommender/logic`).

use api::k8s::apimachinery::pkg::api::resource::Quantity;

use crate::model::aggregate::Aggregate;
use crate::model::container::{amount, number};
use crate::types::{ContainerPolicy, ContainerRecommendation, Recommendation, ResourceList};

/// The part that is added to usage (`--recommendation-margin-fraction`).
const MARGIN: f64 = 0.15;
/// The least recommendation of a pod in thousandths of a core
/// (`--pod-recommendation-min-cpu-millicores`).
const POD_CPU_MIN: f64 = 25.0;
/// The least recommendation of a pod in bytes (`--pod-recommendation-min-memory-mb`).
const POD_MEMORY_MIN: f64 = 250.0 * 1024.0 * 1024.0;
/// Minutes of history with full confidence (`--confidence-interval-cpu` and
/// `--confidence-interval-memory`).
const CONFIDENCE_MINUTES: f64 = 24.0 * 60.0;

/// An estimator: a percentile, and how its result depends on the length of the history, which is
/// multiplied by `(1 + multiplier / confidence) ^ exponent`.
struct Estimator {
    percentile: f64,
    multiplier: f64,
    exponent: f64,
}

/// The recommended requests (`--target-cpu-percentile` and `--target-memory-percentile`).
const TARGET: Estimator = Estimator { percentile: 0.9, multiplier: 0.0, exponent: 1.0 };
/// Pods with less are updated. Without history it is zero, after an hour 0.9 of the percentile.
const LOWER: Estimator = Estimator { percentile: 0.5, multiplier: 0.001, exponent: -2.0 };
/// Pods with more are updated. Without history it has no end, after a day it is twice the
/// percentile.
const UPPER: Estimator = Estimator { percentile: 0.95, multiplier: 1.0, exponent: 1.0 };

/// The least amounts of one container.
#[derive(Clone, Copy)]
struct Minimum {
    cpu: i64,
    memory: i64,
}

/// The history in days of one sample per minute (`getConfidence`).
fn confidence(aggregate: &Aggregate) -> f64 {
    let first = aggregate.first_sample.unwrap_or_default();
    let span = aggregate.last_sample.unwrap_or_default().saturating_sub(first);
    let lifespan = number(span) / (CONFIDENCE_MINUTES * 60.0);
    lifespan.min(number(aggregate.samples) / CONFIDENCE_MINUTES)
}

/// An amount with the safety margin.
fn with_margin(base: i64) -> i64 {
    base.saturating_add(amount(number(base) * MARGIN))
}

impl Estimator {
    /// An amount scaled by the confidence.
    fn with_confidence(&self, base: i64, confidence: f64) -> i64 {
        if self.multiplier == 0.0 {
            return base;
        }
        amount(number(base) * (1.0 + self.multiplier / confidence).powf(self.exponent))
    }

    /// The amounts of the controlled resources.
    fn amounts(
        &self,
        aggregate: &Aggregate,
        policy: Option<&ContainerPolicy>,
        minimum: Minimum,
    ) -> ResourceList {
        let confidence = confidence(aggregate);
        let cpu = amount(aggregate.cpu.percentile(self.percentile) * 1000.0);
        let cpu = self.with_confidence(with_margin(cpu), confidence).max(minimum.cpu);
        let memory = amount(aggregate.memory.percentile(self.percentile));
        let memory = self.with_confidence(with_margin(memory), confidence).max(minimum.memory);
        let mut amounts = ResourceList::new();
        for (resource, quantity) in
            [("cpu", api::Quantity::millis(cpu)), ("memory", api::Quantity::bytes(memory))]
        {
            if is_controlled(policy, resource) {
                amounts.insert(resource.to_owned(), Quantity(quantity.to_string()));
            }
        }
        amounts
    }
}

/// Whether the policy recommends amounts of a resource.
fn is_controlled(policy: Option<&ContainerPolicy>, resource: &str) -> bool {
    let listed = policy.and_then(|policy| policy.controlled_resources.as_ref());
    listed.is_none_or(|listed| listed.iter().any(|name| name == resource))
}

/// The recommendation for containers, which are sorted by name. The least amounts of a pod are
/// divided between its containers.
pub(crate) fn recommend(
    containers: &[(&str, &Aggregate, Option<&ContainerPolicy>)],
) -> Recommendation {
    let part = 1.0 / number(i64::try_from(containers.len()).unwrap_or(i64::MAX));
    let minimum = Minimum {
        cpu: amount(number(amount(POD_CPU_MIN)) * part),
        memory: amount(number(amount(POD_MEMORY_MIN)) * part),
    };
    let recommendations = containers.iter().map(|(name, aggregate, policy)| {
        let amounts = |estimator: &Estimator| estimator.amounts(aggregate, *policy, minimum);
        let target = amounts(&TARGET);
        ContainerRecommendation {
            container_name: (*name).to_owned(),
            lower_bound: amounts(&LOWER),
            upper_bound: amounts(&UPPER),
            uncapped_target: target.clone(),
            target,
        }
    });
    Recommendation { container_recommendations: recommendations.collect() }
}

#[cfg(test)]
mod tests;
