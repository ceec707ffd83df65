//! What one round observes: the pods of each autoscaler, their usage, and kills for memory
//! (upstream's `input.ClusterStateFeeder`).

use std::collections::HashSet;

use api::Object;
use api::selector::LabelSelector;
use resource_metrics::{PodKey, PodUsage, Store};
use serde::Deserialize;

use super::oom::OomKill;
use super::status::TargetCondition;
use crate::model::aggregate::MemoryRules;
use crate::model::state::{AutoscalerKey, State};
use crate::policy::container_policy;
use crate::target::{self, ControllerKey, Controllers, TargetError};
use crate::types::{DEFAULT_RECOMMENDER, VerticalPodAutoscaler};

const NANOS: i64 = 1_000_000_000;
const NANOCORES_PER_MILLI: u64 = 1_000_000;

/// Where the usage of pods is read.
pub trait UsageSource: Send + Sync {
    /// The usage of a pod in the last window; `None` unless there is one for each container.
    fn pod(&self, node: &str, pod: &PodKey) -> Option<PodUsage>;
}

impl UsageSource for Store {
    fn pod(&self, node: &str, pod: &PodKey) -> Option<PodUsage> {
        Self::pod(self, node, pod)
    }
}

/// A pod of an autoscaler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedPod {
    pub(crate) name: String,
    pub(crate) node: String,
    pub(crate) containers: Vec<String>,
}

/// An autoscaler in this round.
#[derive(Debug)]
pub(crate) struct RoundAutoscaler {
    pub(crate) key: AutoscalerKey,
    pub(crate) object: VerticalPodAutoscaler,
    pub(crate) selector: LabelSelector,
    pub(crate) target: TargetCondition,
    pub(crate) pods: Vec<ObservedPod>,
}

/// Whether this recommender is responsible for the autoscaler.
pub(crate) fn is_responsible(autoscaler: &VerticalPodAutoscaler) -> bool {
    let recommenders = &autoscaler.spec.recommenders;
    recommenders.is_empty() || recommenders.iter().any(|one| one.name == DEFAULT_RECOMMENDER)
}

/// The selector of the target of an autoscaler; without a usable target, one that matches nothing
/// and the message of the condition `ConfigUnsupported` (`getSelector`).
pub(crate) async fn resolve(
    controllers: &impl Controllers,
    autoscaler: &VerticalPodAutoscaler,
) -> (LabelSelector, TargetCondition) {
    let unsupported =
        |message: String| (LabelSelector::nothing(), TargetCondition::Unsupported(message));
    let cannot_read =
        |error: TargetError| unsupported(format!("Cannot read targetRef. Reason: {error}"));
    let Some(reference) = &autoscaler.spec.target_ref else {
        return cannot_read(TargetError::NotDefined);
    };
    let namespace = autoscaler.metadata.namespace.as_deref().unwrap_or_default();
    let key = ControllerKey::of_target(namespace, reference);
    let selector = match target::selector(controllers, &key).await {
        Ok(selector) => selector,
        Err(error) => return cannot_read(error),
    };
    let name = format!("{}.{}/{}", key.api_version, key.kind, key.name);
    match target::topmost(controllers, &key).await {
        Ok(Some(top)) if top == key => (selector, TargetCondition::Supported),
        Ok(Some(_)) => unsupported(format!(
            "The target {name} has a parent controller but it should point to a topmost \
             well-known or scalable controller"
        )),
        Ok(None) => unsupported(format!(
            "Unknown error during checking if target {name} is a topmost well-known or scalable \
             controller"
        )),
        Err(error) => unsupported(format!(
            "Error checking if target {name} is a topmost well-known or scalable controller: \
             {error}"
        )),
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Pod {
    spec: PodSpec,
    status: PodStatus,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec {
    node_name: String,
    containers: Vec<Container>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Container {
    name: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PodStatus {
    phase: String,
}

/// The pod, if it matches the selector and has been started. Init containers are not observed.
pub(crate) fn observed_pod(pod: &Object, selector: &LabelSelector) -> Option<ObservedPod> {
    if !selector.matches(pod) {
        return None;
    }
    let Pod { spec, status } = serde_json::from_slice(pod.raw()).ok()?;
    (status.phase != "Pending").then(|| ObservedPod {
        name: pod.key.name.to_string(),
        node: spec.node_name,
        containers: spec.containers.into_iter().map(|container| container.name).collect(),
    })
}

/// Adds what this round observes to the distributions.
pub(crate) fn observe(
    state: &mut State,
    autoscalers: &[RoundAutoscaler],
    kills: &[OomKill],
    usage: &dyn UsageSource,
    now: i64,
) {
    let keys: HashSet<&AutoscalerKey> = autoscalers.iter().map(|one| &one.key).collect();
    state.autoscalers.retain(|key, _| keys.contains(key));
    for one in autoscalers {
        let (namespace, _) = &one.key;
        let observed = state.autoscalers.entry(one.key.clone()).or_default();
        observed.set_selector(&one.selector);
        let policies = one.object.spec.resource_policy.as_ref();
        for pod in &one.pods {
            for container in &pod.containers {
                let rules = MemoryRules::of(container_policy(container, policies));
                observed.observe(&pod.name, container, rules, now);
            }
            let key = PodKey { namespace: namespace.clone(), name: pod.name.clone() };
            let Some(usage) = usage.pod(&pod.node, &key) else { continue };
            let at = usage.at.div_euclid(NANOS);
            for (container, usage) in &usage.containers {
                let Some((state, aggregate)) = observed.container(&pod.name, container) else {
                    continue;
                };
                let millis = usage.cpu.div_ceil(NANOCORES_PER_MILLI);
                state.add_cpu(i64::try_from(millis).unwrap_or(i64::MAX), at, aggregate);
                let bytes = i64::try_from(usage.memory).unwrap_or(i64::MAX);
                state.add_memory(bytes, at, aggregate);
            }
        }
        // Pods that were deleted since the last round may have been killed before.
        for kill in kills.iter().filter(|kill| kill.namespace == *namespace) {
            let Some((state, aggregate)) = observed.container(&kill.pod, &kill.container) else {
                continue;
            };
            if let Err(error) = state.record_oom(kill.memory, kill.at, aggregate) {
                tracing::debug!(namespace, pod = kill.pod, container = kill.container, %error,
                    "vertical-pod-autoscaler: a kill for memory does not count");
            }
        }
        let pods: HashSet<&str> = one.pods.iter().map(|pod| pod.name.as_str()).collect();
        observed.retain_pods(|pod| pods.contains(pod));
    }
}

#[cfg(test)]
mod tests;
