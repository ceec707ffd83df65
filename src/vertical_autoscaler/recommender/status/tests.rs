//! The cases of upstream's `vpa_test.go`.

use super::*;
use crate::model::aggregate::MemoryRules;
use crate::model::checkpoint::to_time;
use serde_json::{Value, json};

/// 2017-04-18 17:35:05.
const NOW: i64 = 1_492_536_905;

fn autoscaler(status: Value) -> VerticalPodAutoscaler {
    let metadata = json!({"namespace": "n", "name": "v", "generation": 3});
    serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap()
}

fn with_container(names: &[&str]) -> Observed {
    let mut observed = Observed::default();
    for name in names {
        observed.observe("pod", name, MemoryRules::default(), NOW);
    }
    observed
}

/// Type, status, reason and message of the conditions.
fn shown(status: &AutoscalerStatus) -> Vec<[&str; 4]> {
    let all = status.conditions.iter();
    all.map(|c| [&*c.kind, &*c.status, &*c.reason, &*c.message]).collect()
}

fn supported(object: &VerticalPodAutoscaler, observed: &Observed, pods: bool) -> AutoscalerStatus {
    status(object, &TargetCondition::Supported, observed, pods, to_time(NOW))
}

const NO_PODS: [&str; 4] =
    ["NoPodsMatched", "True", "NoPodsMatched", "No pods match this VPA object"];

#[test]
fn conditions_tell_whether_pods_match_and_a_recommendation_exists() {
    let object = autoscaler(json!({}));
    let provided = ["RecommendationProvided", "True", "", ""];
    for (has_pods, containers, expected) in [
        (true, &["c"][..], vec![provided]),
        (false, &["c"], vec![NO_PODS, provided]),
        (true, &[], vec![["RecommendationProvided", "False", "", ""]]),
        (
            false,
            &[],
            vec![
                NO_PODS,
                [
                    "RecommendationProvided",
                    "False",
                    "NoPodsMatched",
                    "No pods match this VPA object",
                ],
            ],
        ),
    ] {
        let status = supported(&object, &with_container(containers), has_pods);
        assert_eq!(shown(&status), expected);
        assert_eq!(status.observed_generation, Some(3));
    }
}

#[test]
fn a_status_without_a_change_equals_the_old_one() {
    let observed = with_container(&["c"]);
    let first = supported(&autoscaler(json!({})), &observed, true);
    let stored = serde_json::to_value(&first).unwrap();
    assert_eq!(stored["conditions"][0]["lastTransitionTime"], "2017-04-18T17:35:05Z");
    let object = autoscaler(stored);
    let later = to_time(NOW + 3600);
    let second = status(&object, &TargetCondition::Supported, &observed, true, later.clone());
    assert_eq!(second, object.status);
    let third = status(&object, &TargetCondition::Supported, &Observed::default(), true, later);
    let since = third.conditions[0].last_transition_time.clone().unwrap();
    assert_eq!((since, third.conditions[0].status.as_str()), (to_time(NOW + 3600), "False"));
    let empty = autoscaler(serde_json::to_value(&third).unwrap());
    assert_eq!(supported(&empty, &Observed::default(), true), third, "an empty recommendation");
}

#[test]
fn an_unsupported_target_has_no_recommendation() {
    let object = autoscaler(json!({"conditions": [
        {"type": "ConfigDeprecated", "status": "True"}, {"type": "Other", "status": "True"}]}));
    let target = TargetCondition::Unsupported("Cannot read targetRef".to_owned());
    let status = status(&object, &target, &with_container(&["c"]), false, to_time(NOW));
    assert_eq!(status.recommendation, Some(Recommendation::default()));
    let unsupported = ["ConfigUnsupported", "True", "", "Cannot read targetRef"];
    let [no_pods, provided] =
        [NO_PODS, ["RecommendationProvided", "False", NO_PODS[2], NO_PODS[3]]];
    let other = ["Other", "True", "", ""];
    assert_eq!(shown(&status), [unsupported, no_pods, other, provided]);
    let object = autoscaler(serde_json::to_value(&status).unwrap());
    let status = supported(&object, &with_container(&["c"]), true);
    assert_eq!(shown(&status), [other, ["RecommendationProvided", "True", "", ""]]);
}

#[test]
fn containers_with_the_mode_off_have_no_recommendation() {
    let names = |policies: Value| {
        let mut object = autoscaler(json!({}));
        let policy = json!({"containerPolicies": policies});
        object.spec.resource_policy = Some(serde_json::from_value(policy).unwrap());
        let status = supported(&object, &with_container(&["a", "b"]), true);
        let all = status.recommendation.unwrap().container_recommendations;
        let least = all.first().map(|one| one.target["cpu"].0.clone()).unwrap_or_default();
        let names: Vec<_> = all.into_iter().map(|one| one.container_name).collect();
        (names.join(" "), least)
    };
    let off = |name: &str| json!({"containerName": name, "mode": "Off"});
    let auto = |name: &str| json!({"containerName": name, "mode": "Auto"});
    for (policies, expected, least) in [
        (json!([]), "a b", "12m"),
        (json!([off("b")]), "a", "25m"),
        (json!([off("*")]), "", ""),
        (json!([auto("*"), off("b")]), "a", "25m"),
        (json!([off("*"), auto("b")]), "b", "25m"),
    ] {
        let shown = format!("{policies}");
        assert_eq!(names(policies), (expected.to_owned(), least.to_owned()), "{shown}");
    }
}

#[test]
fn the_recommendation_is_within_the_policy() {
    let mut object = autoscaler(json!({}));
    let policy = json!({"containerPolicies": [{"containerName": "*", "minAllowed": {"cpu": 1}}]});
    object.spec.resource_policy = Some(serde_json::from_value(policy).unwrap());
    let status = supported(&object, &with_container(&["c"]), true);
    let one = &status.recommendation.unwrap().container_recommendations[0];
    assert_eq!((&*one.target["cpu"].0, &*one.uncapped_target["cpu"].0), ("1", "25m"));
}
