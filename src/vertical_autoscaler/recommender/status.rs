//! The status of an autoscaler: its recommendation and conditions (upstream's `model.Vpa`).

use std::collections::BTreeMap;

use api::k8s::apimachinery::pkg::apis::meta::v1::Time;

use super::bounds::cap;
use super::estimate::recommend;
use crate::model::state::Observed;
use crate::policy::container_policy;
use crate::types::{
    AutoscalerStatus, Condition, Recommendation, ScalingMode, VerticalPodAutoscaler,
};

/// There is a recommendation.
const RECOMMENDATION_PROVIDED: &str = "RecommendationProvided";
/// No pod matches the selector of the target; also the reason.
const NO_PODS_MATCHED: &str = "NoPodsMatched";
/// The target cannot be autoscaled.
const CONFIG_UNSUPPORTED: &str = "ConfigUnsupported";
/// Upstream removes it from objects.
const CONFIG_DEPRECATED: &str = "ConfigDeprecated";

/// Whether the target of an autoscaler was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TargetCondition {
    /// It was found and has a selector.
    Supported,
    /// The message of the condition `ConfigUnsupported`.
    Unsupported(String),
}

/// The conditions by type.
struct Conditions {
    by_type: BTreeMap<String, Condition>,
    now: Time,
}

impl Conditions {
    /// Sets a condition; its time changes with its status.
    fn set(&mut self, kind: &str, is_true: bool, reason: &str, message: &str) {
        let status = if is_true { "True" } else { "False" };
        let old = self.by_type.get(kind).filter(|old| old.status == status);
        let since = match old {
            Some(old) => old.last_transition_time.clone(),
            None => Some(self.now.clone()),
        };
        let condition = Condition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            last_transition_time: since,
            reason: reason.to_owned(),
            message: message.to_owned(),
            observed_generation: None,
        };
        self.by_type.insert(kind.to_owned(), condition);
    }
}

/// The recommendation from what was observed, within the limits of the policies. Containers with
/// the mode `Off` have none.
fn recommendation(autoscaler: &VerticalPodAutoscaler, observed: &Observed) -> Recommendation {
    let policies = autoscaler.spec.resource_policy.as_ref();
    let containers = observed.aggregates().iter().filter_map(|(name, aggregate)| {
        let policy = container_policy(name, policies);
        let is_off = policy.and_then(|policy| policy.mode) == Some(ScalingMode::Off);
        (!is_off).then_some((name.as_str(), aggregate, policy))
    });
    let mut recommendation = recommend(&containers.collect::<Vec<_>>());
    cap(&mut recommendation, policies);
    recommendation
}

/// The new status of an autoscaler. It equals the old one unless something changed.
pub(crate) fn status(
    autoscaler: &VerticalPodAutoscaler,
    target: &TargetCondition,
    observed: &Observed,
    has_pods: bool,
    now: Time,
) -> AutoscalerStatus {
    let mut by_type = BTreeMap::new();
    for condition in &autoscaler.status.conditions {
        by_type.insert(condition.kind.clone(), condition.clone());
    }
    let mut conditions = Conditions { by_type, now };
    conditions.by_type.remove(CONFIG_DEPRECATED);
    let recommendation = match target {
        TargetCondition::Supported => {
            conditions.by_type.remove(CONFIG_UNSUPPORTED);
            recommendation(autoscaler, observed)
        }
        TargetCondition::Unsupported(message) => {
            conditions.set(CONFIG_UNSUPPORTED, true, "", message);
            Recommendation::default()
        }
    };
    let (mut reason, mut message) = ("", "");
    if has_pods {
        conditions.by_type.remove(NO_PODS_MATCHED);
    } else {
        (reason, message) = (NO_PODS_MATCHED, "No pods match this VPA object");
        conditions.set(NO_PODS_MATCHED, true, reason, message);
    }
    match recommendation.container_recommendations.is_empty() {
        false => conditions.set(RECOMMENDATION_PROVIDED, true, "", ""),
        true => conditions.set(RECOMMENDATION_PROVIDED, false, reason, message),
    }
    AutoscalerStatus {
        recommendation: Some(recommendation),
        conditions: conditions.by_type.into_values().collect(),
        observed_generation: Some(autoscaler.metadata.generation.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests;
