//! What an autoscaler's policies make of its recommendation: which mode and container policy
//! apply, and which requests and limits the containers of a pod shall have.

pub mod amounts;
pub mod capping;
pub mod limit_range;
pub mod pod;
mod pod_range;
pub mod resources;
pub(crate) mod scaling;
#[cfg(test)]
pub(crate) mod testing;

use crate::types::{
    ContainerPolicy, ControlledValues, DEFAULT_CONTAINER_POLICY, ResourcePolicy, ScalingMode,
    UpdateMode, VerticalPodAutoscaler,
};

/// Upstream's alpha feature gates (`pkg/features`), which upstream's programs have off by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// `CPUStartupBoost`: more CPU while a pod starts.
    pub cpu_startup_boost: bool,
    /// `InPlace`: the update mode of this name.
    pub in_place: bool,
    /// `PerVPAConfig`: values of flags per object.
    pub per_vpa_config: bool,
}

impl Features {
    /// All features on. The components have them, because there is no option for single features
    /// and an object that uses none behaves as with upstream's defaults.
    pub const ALL: Self = Self { cpu_startup_boost: true, in_place: true, per_vpa_config: true };
}

/// The update mode, which is `Recreate` if the object names none (`GetUpdateMode`).
pub fn update_mode(autoscaler: &VerticalPodAutoscaler) -> UpdateMode {
    let policy = autoscaler.spec.update_policy.as_ref();
    policy.and_then(|policy| policy.update_mode).unwrap_or(UpdateMode::Recreate)
}

/// Whether the object or one of its container policies has a startup boost (`HasStartupBoost`).
pub fn has_startup_boost(autoscaler: &VerticalPodAutoscaler) -> bool {
    let policies = autoscaler.spec.resource_policy.iter().flat_map(|p| &p.container_policies);
    autoscaler.spec.startup_boost.is_some()
        || policies.into_iter().any(|policy| policy.startup_boost.is_some())
}

/// The policy of a container: that of its name, else that of `*`
/// (`GetContainerResourcePolicy`).
pub fn container_policy<'a>(
    container: &str,
    policy: Option<&'a ResourcePolicy>,
) -> Option<&'a ContainerPolicy> {
    let policies = &policy?.container_policies;
    let named = |name: &str| policies.iter().find(|policy| policy.container_name == name);
    // Of several policies for `*`, upstream takes the last one.
    let default = || policies.iter().rfind(|p| p.container_name == DEFAULT_CONTAINER_POLICY);
    named(container).or_else(default)
}

/// Whether a container's policy turns scaling off.
pub fn is_scaling_off(container: &str, policy: Option<&ResourcePolicy>) -> bool {
    container_policy(container, policy).is_some_and(|p| p.mode == Some(ScalingMode::Off))
}

/// Whether limits of a container are changed too (`GetContainerControlledValues`).
pub fn controlled_values(container: &str, policy: Option<&ResourcePolicy>) -> ControlledValues {
    let values = container_policy(container, policy).and_then(|policy| policy.controlled_values);
    values.unwrap_or(ControlledValues::RequestsAndLimits)
}

/// Whether `a` controls a pod that both match: the older one, or that of the lower name
/// (`Stronger`).
pub fn is_stronger(a: &VerticalPodAutoscaler, b: &VerticalPodAutoscaler) -> bool {
    let key = |autoscaler: &VerticalPodAutoscaler| {
        let meta = &autoscaler.metadata;
        (meta.creation_timestamp.as_ref().map(|time| time.0), meta.name.clone())
    };
    key(a) < key(b)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::testing::autoscaler;
    use super::*;

    #[test]
    fn recreate_is_the_mode_without_a_policy() {
        assert_eq!(update_mode(&autoscaler(json!({}))), UpdateMode::Recreate);
        assert_eq!(update_mode(&autoscaler(json!({"updatePolicy": {}}))), UpdateMode::Recreate);
        let named = autoscaler(json!({"updatePolicy": {"updateMode": "Initial"}}));
        assert_eq!(update_mode(&named), UpdateMode::Initial);
    }

    #[test]
    fn a_startup_boost_may_be_in_the_spec_or_in_a_container_policy() {
        let boost = json!({"cpu": {"type": "Factor", "factor": 2}});
        let has = |spec| has_startup_boost(&autoscaler(spec));
        assert!(!has(json!({"resourcePolicy": {"containerPolicies": [{"containerName": "a"}]}})));
        assert!(has(json!({"startupBoost": boost})));
        assert!(has(json!({"resourcePolicy": {"containerPolicies": [
            {"containerName": "a", "startupBoost": boost}]}})));
    }

    /// `TestGetContainerResourcePolicy`.
    #[test]
    fn the_policy_of_the_name_counts_before_the_default_policy() {
        let name = |container: &str, names: &[&str]| {
            let policies: Vec<_> = names.iter().map(|n| json!({"containerName": n})).collect();
            let spec = json!({"resourcePolicy": {"containerPolicies": policies}});
            let spec = autoscaler(spec).spec;
            container_policy(container, spec.resource_policy.as_ref())
                .map(|policy| policy.container_name.clone())
        };
        let with_default = ["container1", "container2", "*"];
        assert_eq!(name("container1", &with_default).unwrap(), "container1");
        assert_eq!(name("container2", &with_default).unwrap(), "container2");
        assert_eq!(name("container3", &with_default).unwrap(), "*");
        assert_eq!(name("container1", &["container1"]).unwrap(), "container1");
        assert_eq!(name("container2", &["container1"]), None);
        assert_eq!(name("container1", &["*", "container1"]).unwrap(), "container1");
        assert!(container_policy("container1", None).is_none());
    }

    /// `TestGetContainerControlledResources`.
    #[test]
    fn requests_and_limits_are_controlled_by_default() {
        let of = |policy| {
            let spec = json!({"resourcePolicy": {"containerPolicies": policy}});
            controlled_values("any", autoscaler(spec).spec.resource_policy.as_ref())
        };
        assert_eq!(controlled_values("any", None), ControlledValues::RequestsAndLimits);
        assert_eq!(of(json!([])), ControlledValues::RequestsAndLimits);
        let unset = json!([{"containerName": "*"}]);
        assert_eq!(of(unset), ControlledValues::RequestsAndLimits);
        let both = json!([{"containerName": "*", "controlledValues": "RequestsAndLimits"}]);
        assert_eq!(of(both), ControlledValues::RequestsAndLimits);
        let requests = json!([{"containerName": "*", "controlledValues": "RequestsOnly"}]);
        assert_eq!(of(requests), ControlledValues::RequestsOnly);
    }

    #[test]
    fn the_older_autoscaler_is_stronger_and_then_the_lower_name() {
        let of = |name: &str, created: &str| {
            let mut autoscaler = autoscaler(json!({}));
            autoscaler.metadata.name = Some(name.to_owned());
            autoscaler.metadata.creation_timestamp =
                Some(serde_json::from_value(json!(created)).unwrap());
            autoscaler
        };
        let old = of("z", "2024-01-01T00:00:00Z");
        let new = of("a", "2024-01-02T00:00:00Z");
        assert!(is_stronger(&old, &new) && !is_stronger(&new, &old));
        let twin = of("y", "2024-01-01T00:00:00Z");
        assert!(is_stronger(&twin, &old) && !is_stronger(&old, &twin));
    }
}
