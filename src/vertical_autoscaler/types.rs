//! The kinds of the group `autoscaling.k8s.io/v1`, as far as the components use them (upstream's
//! `pkg/apis/autoscaling.k8s.io/v1`). Their schema and defaults are in the
//! CustomResourceDefinitions.

use std::collections::BTreeMap;

use api::Gvr;
use api::k8s::api::autoscaling::v1::CrossVersionObjectReference;
use api::k8s::apimachinery::pkg::api::resource::Quantity;
use api::k8s::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;

/// The group of the kinds.
pub const GROUP: &str = "autoscaling.k8s.io";
/// The version that the components read and write.
pub const VERSION: &str = "v1";
/// The recommender of a VerticalPodAutoscaler that names none (upstream's
/// `recommender.DefaultRecommenderName`).
pub const DEFAULT_RECOMMENDER: &str = "default";
/// The container policy for containers without a policy of their own.
pub const DEFAULT_CONTAINER_POLICY: &str = "*";

/// The resource of VerticalPodAutoscalers.
pub fn autoscalers() -> Gvr {
    Gvr::new(GROUP, VERSION, "verticalpodautoscalers")
}

/// The resource of VerticalPodAutoscalerCheckpoints.
pub fn checkpoints() -> Gvr {
    Gvr::new(GROUP, VERSION, "verticalpodautoscalercheckpoints")
}

/// Amounts by resource name.
pub type ResourceList = BTreeMap<String, Quantity>;

/// A quantity as the schema allows it: a string or a number.
fn text_or_number(value: Value) -> Option<Quantity> {
    match value {
        Value::String(text) => Some(Quantity(text)),
        Value::Number(number) => Some(Quantity(number.to_string())),
        _ => None,
    }
}

fn quantities<'de, D: Deserializer<'de>>(from: D) -> Result<ResourceList, D::Error> {
    let mut list = ResourceList::new();
    for (resource, value) in BTreeMap::<String, Value>::deserialize(from)? {
        let quantity = text_or_number(value).ok_or_else(|| D::Error::custom("no quantity"))?;
        list.insert(resource, quantity);
    }
    Ok(list)
}

fn optional_quantity<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Quantity>, D::Error> {
    Ok(text_or_number(Value::deserialize(from)?))
}

/// A VerticalPodAutoscaler.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VerticalPodAutoscaler {
    /// Name, namespace, generation.
    pub metadata: ObjectMeta,
    /// The wanted behaviour.
    pub spec: AutoscalerSpec,
    /// The recommendation and its conditions.
    pub status: AutoscalerStatus,
}

/// `VerticalPodAutoscalerSpec`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AutoscalerSpec {
    /// The controller of the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<CrossVersionObjectReference>,
    /// When pods are changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_policy: Option<UpdatePolicy>,
    /// Limits of the recommendation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_policy: Option<ResourcePolicy>,
    /// Recommenders that are responsible; none means the default one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recommenders: Vec<RecommenderSelector>,
    /// More CPU while a pod starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub startup_boost: Option<StartupBoost>,
}

/// `VerticalPodAutoscalerRecommenderSelector`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct RecommenderSelector {
    /// Name of the recommender.
    pub name: String,
}

/// `PodUpdatePolicy`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdatePolicy {
    /// `None` is [`UpdateMode::Recreate`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_mode: Option<UpdateMode>,
    /// Live replicas that are required before pods are evicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_replicas: Option<i32>,
    /// All must hold before a pod is evicted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub eviction_requirements: Vec<EvictionRequirement>,
    /// A pod whose container was killed for memory within this time after its start is evicted.
    #[serde(rename = "evictAfterOOMSeconds", skip_serializing_if = "Option::is_none")]
    pub evict_after_oom_seconds: Option<i32>,
}

/// When pods are changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
pub enum UpdateMode {
    /// Never.
    Off,
    /// At their creation.
    Initial,
    /// At their creation, and by eviction.
    Recreate,
    /// As [`UpdateMode::Recreate`]; deprecated.
    Auto,
    /// At their creation, in place, or else by eviction.
    InPlaceOrRecreate,
    /// At their creation and in place.
    InPlace,
}

/// `EvictionRequirement`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EvictionRequirement {
    /// Names of resources; one that fulfils the requirement suffices.
    pub resources: Vec<String>,
    /// The direction of the change.
    pub change_requirement: ChangeRequirement,
}

/// `EvictionChangeRequirement`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
pub enum ChangeRequirement {
    /// The target is higher than the request.
    TargetHigherThanRequests,
    /// The target is lower than the request.
    TargetLowerThanRequests,
}

/// `PodResourcePolicy`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourcePolicy {
    /// Policies by container name.
    pub container_policies: Vec<ContainerPolicy>,
}

/// `ContainerResourcePolicy`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPolicy {
    /// A container, or [`DEFAULT_CONTAINER_POLICY`].
    pub container_name: String,
    /// `None` is [`ScalingMode::Auto`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<ScalingMode>,
    /// The least amounts.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "quantities")]
    pub min_allowed: ResourceList,
    /// The greatest amounts.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "quantities")]
    pub max_allowed: ResourceList,
    /// `None` is CPU and memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controlled_resources: Option<Vec<String>>,
    /// `None` is [`ControlledValues::RequestsAndLimits`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controlled_values: Option<ControlledValues>,
    /// Factor of memory after the container was killed for memory.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "optional_quantity")]
    pub oom_bump_up_ratio: Option<Quantity>,
    /// Least increase of memory after the container was killed for memory.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "optional_quantity")]
    pub oom_min_bump_up: Option<Quantity>,
    /// Length of an interval of which the memory peak counts, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_aggregation_interval_seconds: Option<i32>,
    /// Number of intervals that count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_aggregation_interval_count: Option<i64>,
    /// More CPU while this container starts, instead of the boost of the whole spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub startup_boost: Option<StartupBoost>,
}

/// `ContainerScalingMode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
pub enum ScalingMode {
    /// The container is scaled.
    Auto,
    /// The container is left alone.
    Off,
}

/// `ContainerControlledValues`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
pub enum ControlledValues {
    /// Requests, and limits in proportion.
    RequestsAndLimits,
    /// Requests alone.
    RequestsOnly,
}

/// `StartupBoost`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct StartupBoost {
    /// The boost of CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuBoost>,
}

/// `GenericStartupBoost`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuBoost {
    /// How the boost is computed.
    #[serde(rename = "type")]
    pub kind: BoostKind,
    /// The request times this factor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factor: Option<i32>,
    /// The request plus this amount.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "optional_quantity"
    )]
    pub quantity: Option<Quantity>,
    /// How long the boost lasts after the pod is ready, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_seconds: Option<i32>,
}

/// `StartupBoostType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
pub enum BoostKind {
    /// A factor.
    Factor,
    /// A sum.
    Quantity,
}

/// `VerticalPodAutoscalerStatus`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AutoscalerStatus {
    /// The newest recommendation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recommendation: Option<Recommendation>,
    /// By type.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Generation of the spec that the recommender read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// `RecommendedPodResources`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Recommendation {
    /// By container.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub container_recommendations: Vec<ContainerRecommendation>,
}

/// `RecommendedContainerResources`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerRecommendation {
    /// The container.
    pub container_name: String,
    /// The recommended requests.
    #[serde(deserialize_with = "quantities")]
    pub target: ResourceList,
    /// Pods with less are updated.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "quantities")]
    pub lower_bound: ResourceList,
    /// Pods with more are updated.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "quantities")]
    pub upper_bound: ResourceList,
    /// The target before the container's policy was applied.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "quantities")]
    pub uncapped_target: ResourceList,
}

/// `VerticalPodAutoscalerCondition`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Such as `RecommendationProvided`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// When the status changed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// In one word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Generation of the spec for which the condition holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn quantities_are_texts_or_numbers() {
        let policy = json!({"minAllowed": {"cpu": 1, "memory": "1Gi"}, "maxAllowed": {"cpu": 1.5},
            "oomBumpUpRatio": 2, "oomMinBumpUp": "1Mi"});
        let policy: ContainerPolicy = serde_json::from_value(policy).unwrap();
        let text = |list: &ResourceList, name: &str| list[name].0.clone();
        assert_eq!(text(&policy.min_allowed, "cpu"), "1");
        assert_eq!(text(&policy.min_allowed, "memory"), "1Gi");
        assert_eq!(text(&policy.max_allowed, "cpu"), "1.5");
        assert_eq!(policy.oom_bump_up_ratio, Some(Quantity("2".to_owned())));
        assert_eq!(policy.oom_min_bump_up, Some(Quantity("1Mi".to_owned())));
        let bad = json!({"minAllowed": {"cpu": true}});
        assert!(serde_json::from_value::<ContainerPolicy>(bad).is_err());
    }
}
