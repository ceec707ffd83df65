//! Applies the least and greatest amounts of container policies to a recommendation (upstream's
//! `ApplyVPAPolicy`).

use std::cmp::Ordering;

use api::Quantity;

use crate::policy::container_policy;
use crate::types::{Recommendation, ResourceList, ResourcePolicy};

/// Caps target and bounds by the policies of the containers; the uncapped target stays.
pub(crate) fn cap(recommendation: &mut Recommendation, policy: Option<&ResourcePolicy>) {
    for container in &mut recommendation.container_recommendations {
        let Some(policy) = container_policy(&container.container_name, policy) else { continue };
        for amounts in
            [&mut container.target, &mut container.lower_bound, &mut container.upper_bound]
        {
            replace_beyond(amounts, &policy.min_allowed, Ordering::Less);
            replace_beyond(amounts, &policy.max_allowed, Ordering::Greater);
        }
    }
}

/// Replaces the amounts that are on the given side of a limit; a limit of zero is none.
fn replace_beyond(amounts: &mut ResourceList, limits: &ResourceList, side: Ordering) {
    for (resource, amount) in amounts {
        let limit = limits.get(resource).and_then(|limit| Quantity::parse(&limit.0).ok());
        let Some(limit) = limit.filter(|limit| !limit.is_zero()) else { continue };
        if Quantity::parse(&amount.0).is_ok_and(|amount| amount.cmp(&limit) == side) {
            amount.0 = limit.to_string();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn policy(policies: serde_json::Value) -> ResourcePolicy {
        serde_json::from_value(json!({"containerPolicies": policies})).unwrap()
    }

    /// Least and greatest amounts, the default policy and none, as in upstream's
    /// `TestApplyVPAPolicy`.
    #[test]
    fn target_and_bounds_are_capped_by_the_policy_of_the_container() {
        let recommendation: Recommendation = serde_json::from_value(json!({
            "containerRecommendations": [{"containerName": "c",
                "target": {"cpu": "30m", "memory": "20"}, "uncappedTarget": {"cpu": "30m"},
                "lowerBound": {"cpu": "2m", "memory": "10"},
                "upperBound": {"cpu": "50", "memory": "100"}}]}))
        .unwrap();
        let limits = json!({"minAllowed": {"cpu": "40m", "memory": "0"},
            "maxAllowed": {"cpu": "45000m", "memory": "50"}});
        let named = |name: &str| {
            let mut policy = limits.clone();
            policy["containerName"] = name.into();
            policy
        };
        let capped = |policies: serde_json::Value| {
            let mut capped = recommendation.clone();
            cap(&mut capped, Some(&policy(policies)));
            serde_json::to_value(&capped.container_recommendations[0]).unwrap()
        };
        let expected = json!({"containerName": "c", "target": {"cpu": "40m", "memory": "20"},
            "uncappedTarget": {"cpu": "30m"}, "lowerBound": {"cpu": "40m", "memory": "10"},
            "upperBound": {"cpu": "45", "memory": "50"}});
        assert_eq!(capped(json!([named("c")])), expected);
        assert_eq!(capped(json!([named("*")])), expected);
        let unchanged = serde_json::to_value(&recommendation.container_recommendations[0]).unwrap();
        assert_eq!(capped(json!([named("d")])), unchanged);
        assert_eq!(capped(json!([named("*"), {"containerName": "c"}])), unchanged);
        let mut without = recommendation.clone();
        cap(&mut without, None);
        assert_eq!(without, recommendation);
    }
}
