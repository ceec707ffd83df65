//! More CPU while a pod starts: what admission adds, and when the updater takes it away.

use std::time::Duration;

use api::Quantity;
use api::k8s::jiff::Timestamp;
use serde_json::Value;

use crate::policy::amounts::{Amounts, CPU, MEMORY, read, to_json};
use crate::policy::pod::{PodContainer, PodView};
use crate::policy::resources::ContainerResources;
use crate::policy::scaling::proportional_limits;
use crate::policy::{container_policy, controlled_values};
use crate::types::{BoostKind, ControlledValues, CpuBoost, StartupBoost, VerticalPodAutoscaler};

/// Begins the key of the annotation of a boosted container, which ends with its name. The value is
/// the container's resources without the boost.
pub const ANNOTATION_PREFIX: &str = "vpaCpuStartupBoost/";

/// Why a boost cannot be computed. The texts are upstream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BoostError {
    /// The factor is missing.
    #[error("startupBoost.CPU.Factor is required when Type is Factor or not specified")]
    NoFactor,
    /// The factor is less than one.
    #[error("boost factor must be >= 1")]
    SmallFactor,
    /// The quantity is missing.
    #[error("startupBoost.CPU.Quantity is required when Type is Quantity")]
    NoQuantity,
}

/// The boost of a container: that of its policy, else that of the spec.
fn boost_of<'a>(
    container: &str,
    autoscaler: &'a VerticalPodAutoscaler,
) -> Option<&'a StartupBoost> {
    let policy = container_policy(container, autoscaler.spec.resource_policy.as_ref());
    let own = policy.and_then(|policy| policy.startup_boost.as_ref());
    own.or(autoscaler.spec.startup_boost.as_ref())
}

fn boosted(base: Quantity, boost: &CpuBoost) -> Result<Quantity, BoostError> {
    let base = base.milli_value();
    let millis = match boost.kind {
        BoostKind::Factor => {
            let factor = boost.factor.ok_or(BoostError::NoFactor)?;
            if factor < 1 {
                return Err(BoostError::SmallFactor);
            }
            base.saturating_mul(i64::from(factor))
        }
        BoostKind::Quantity => {
            let quantity = boost.quantity.as_ref().and_then(|q| q.0.parse::<Quantity>().ok());
            base.saturating_add(quantity.ok_or(BoostError::NoQuantity)?.milli_value())
        }
    };
    Ok(Quantity::millis(millis))
}

/// Adds the boost of a container to `resources`, and returns the annotation with its original
/// resources; `None` without a boost.
///
/// # Errors
/// The boost is incomplete.
pub(super) fn apply(
    container: &PodContainer,
    autoscaler: &VerticalPodAutoscaler,
    resources: &mut ContainerResources,
) -> Result<Option<(String, String)>, BoostError> {
    let boost = boost_of(&container.name, autoscaler).and_then(|boost| boost.cpu.as_ref());
    let Some(boost) = boost else { return Ok(None) };
    let (requests, limits) = (container.spec.requests.as_ref(), container.spec.limits.as_ref());
    let cpu = |list: Option<&Amounts>| list.and_then(|list| list.get(CPU)).copied();
    let recommended = cpu(Some(&resources.requests)).filter(|q| !q.is_zero());
    let base = recommended.or_else(|| cpu(requests)).unwrap_or_default();
    let mut request = boosted(base, boost)?;
    let policy = autoscaler.spec.resource_policy.as_ref();
    match controlled_values(&container.name, policy) {
        ControlledValues::RequestsOnly => {
            let limit = cpu(limits).filter(|limit| request.milli_value() > limit.milli_value());
            if let Some(limit) = limit {
                // A request below the limit keeps the pod's class of quality of service.
                let milli = Quantity::millis(1);
                request = if limit > milli { limit - milli } else { limit };
            }
        }
        ControlledValues::RequestsAndLimits => {
            let boosted = Amounts::from([(CPU.to_owned(), request)]);
            let limits = proportional_limits(limits, requests, &boosted, None);
            resources.limits.extend(limits.into_iter().flat_map(|(limits, _)| limits));
        }
    }
    resources.requests.insert(CPU.to_owned(), request);
    let original = |list: Option<&Amounts>| {
        let kept = list.into_iter().flatten().filter(|(n, _)| [CPU, MEMORY].contains(&n.as_str()));
        to_json(&kept.map(|(name, q)| (name.clone(), *q)).collect())
    };
    let text = format!(r#"{{"requests":{},"limits":{}}}"#, original(requests), original(limits));
    Ok(Some((format!("{ANNOTATION_PREFIX}{}", container.name), text)))
}

/// The resources without the boost that an annotation names.
///
/// # Errors
/// The annotation is not JSON.
pub(crate) fn original(annotation: &str) -> Result<ContainerResources, serde_json::Error> {
    let value: Value = serde_json::from_str(annotation)?;
    let list = |field| read(&value, field).unwrap_or_default();
    Ok(ContainerResources { requests: list("requests"), limits: list("limits") })
}

/// The boosted containers of a pod.
fn boosted_containers(pod: &PodView) -> impl Iterator<Item = &str> {
    let keys = pod.annotations.iter().flat_map(|annotations| annotations.keys());
    keys.filter_map(|key| key.strip_prefix(ANNOTATION_PREFIX))
}

/// Whether a container of the pod has a boost (`PodHasCPUBoostInProgressAnnotation`).
pub fn is_boosted(pod: &PodView) -> bool {
    boosted_containers(pod).next().is_some()
}

/// How long the boost of a container lasts after the pod is ready.
fn duration_of(container: &str, autoscaler: &VerticalPodAutoscaler) -> Duration {
    let seconds = |boost: &Option<StartupBoost>| boost.as_ref()?.cpu.as_ref()?.duration_seconds;
    let policy = container_policy(container, autoscaler.spec.resource_policy.as_ref());
    let own = policy.and_then(|policy| seconds(&policy.startup_boost));
    let seconds = own.or_else(|| seconds(&autoscaler.spec.startup_boost)).unwrap_or_default();
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

/// The time since when a pod is ready.
fn ready_for(pod: &PodView, now: Timestamp) -> Option<Duration> {
    let ready = pod.condition("Ready").filter(|ready| ready.is_true)?;
    let since = ready.since.unwrap_or(Timestamp::UNIX_EPOCH);
    Some(Duration::try_from(now.duration_since(since)).unwrap_or_default())
}

/// The containers whose boost has lasted its time (`GetExpiredStartupCPUBoostAnnotations`).
pub fn expired<'a>(
    pod: &'a PodView,
    autoscaler: &VerticalPodAutoscaler,
    now: Timestamp,
) -> Vec<&'a str> {
    let Some(ready) = ready_for(pod, now) else { return Vec::new() };
    let is_expired = |container: &&str| {
        let duration = duration_of(container, autoscaler);
        duration.is_zero() || ready > duration
    };
    boosted_containers(pod).filter(is_expired).collect()
}

/// The time until the next boost of a ready pod ends (`GetBoostRemainingDuration`).
pub fn remaining(
    pod: &PodView,
    autoscaler: &VerticalPodAutoscaler,
    now: Timestamp,
) -> Option<Duration> {
    let ready = ready_for(pod, now)?;
    let left = boosted_containers(pod)
        .filter_map(|container| duration_of(container, autoscaler).checked_sub(ready));
    left.filter(|left| !left.is_zero()).min()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::policy::testing::{autoscaler, pod, policies};

    fn ready(keys: &[&str], ready: bool) -> PodView {
        let annotations: serde_json::Map<_, _> =
            keys.iter().map(|key| ((*key).to_owned(), json!("{}"))).collect();
        let status = if ready { "True" } else { "False" };
        pod(json!({"metadata": {"annotations": annotations}, "status": {"conditions": [
            {"type": "Ready", "status": status, "lastTransitionTime": "2024-01-01T00:00:00Z"}]}}))
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    /// The cases of `TestGetExpiredStartupCPUBoostAnnotations`.
    #[test]
    fn a_boost_expires_after_its_duration_of_readiness() {
        let boost = |seconds| json!({"cpu": {"type": "Factor", "durationSeconds": seconds}});
        let spec = json!({"startupBoost": boost(60)});
        let key = "vpaCpuStartupBoost/c1";
        let expires = |pod: &PodView, spec: &Value, now: &str| {
            expired(pod, &autoscaler(spec.clone()), at(now)).len()
        };
        let (early, late) = ("2024-01-01T00:00:30Z", "2024-01-01T00:01:01Z");
        assert_eq!(expires(&ready(&[key], true), &spec, early), 0);
        assert_eq!(expires(&ready(&[key], true), &spec, "2024-01-01T00:01:00Z"), 0);
        assert_eq!(expires(&ready(&[key], true), &spec, late), 1);
        assert_eq!(expires(&ready(&[key], false), &spec, late), 0);
        assert_eq!(expires(&ready(&["other"], true), &spec, late), 0);
        // Without a duration, readiness ends the boost.
        assert_eq!(expires(&ready(&[key], true), &json!({}), "2024-01-01T00:00:00Z"), 1);
        // The duration of the container's policy counts before that of the spec.
        let mut own = policies(json!([{"containerName": "c1", "startupBoost": boost(10)}]));
        own["startupBoost"] = boost(60);
        let both = ready(&[key, "vpaCpuStartupBoost/c2"], true);
        assert_eq!(expired(&both, &autoscaler(own), at(early)), ["c1"]);
    }

    /// The cases of `TestGetBoostRemainingDuration`.
    #[test]
    fn the_shortest_boost_ends_next() {
        let boost = |seconds| json!({"cpu": {"type": "Factor", "durationSeconds": seconds}});
        let mut spec = policies(json!([{"containerName": "c1", "startupBoost": boost(10)}]));
        spec["startupBoost"] = boost(60);
        let spec = autoscaler(spec);
        let both = ready(&["vpaCpuStartupBoost/c1", "vpaCpuStartupBoost/c2"], true);
        let left = |now| remaining(&both, &spec, at(now)).map(|left| left.as_secs());
        assert_eq!(left("2024-01-01T00:00:05Z"), Some(5));
        assert_eq!(left("2024-01-01T00:00:20Z"), Some(40));
        assert_eq!(left("2024-01-01T00:02:00Z"), None);
        let unready = ready(&["vpaCpuStartupBoost/c1"], false);
        assert_eq!(remaining(&unready, &spec, at("2024-01-01T00:00:05Z")), None);
    }

    /// `TestGetOriginalResourcesFromAnnotation`.
    #[test]
    fn the_annotation_has_the_original_resources() {
        let text = r#"{"requests":{"cpu":"1","memory":"1Gi"},"limits":{"cpu":"2"}}"#;
        let found = original(text).unwrap();
        assert_eq!(found.requests[MEMORY].to_string(), "1Gi");
        assert_eq!(found.limits[CPU].to_string(), "2");
        assert!(original("invalid-json").is_err());
    }
}
