//! The cases of upstream's `recommendation_provider_test.go`.

use serde_json::{Value, json};

use super::super::limit_range::LimitItem;
use super::super::testing::*;
use super::*;

/// Allowed amounts of `container1` and a target, as spec and recommendations.
fn vpa(target: [&str; 2], min: [&str; 2], max: [&str; 2], values: &str) -> VerticalPodAutoscaler {
    let list = |amounts| match field(&resources(amounts, ["", ""]), "requests") {
        Value::Null => json!({}),
        list => list,
    };
    let mut policy = json!({"containerName": "container1", "minAllowed": list(min),
        "maxAllowed": list(max)});
    if !values.is_empty() {
        policy["controlledValues"] = values.into();
    }
    let mut target = list(target);
    // A resource without a name, which is purged.
    target[""] = "666".into();
    let recommendation = json!([{"containerName": "container1", "target": target}]);
    recommending(policies(json!([policy])), recommendation)
}

/// One case of `TestUpdateResourceRequests`.
struct Case {
    pod: Value,
    vpa: VerticalPodAutoscaler,
    requests: [&'static str; 2],
    limits: [&'static str; 2],
    notes: &'static [&'static str],
}

fn check(case: Case, ranges: &LimitRanges) {
    let (found, notes) = pod_resources(&pod_of(json!([case.pod]), json!([])), &case.vpa, ranges);
    let [found] = &found[..] else { panic!("{found:?}") };
    assert!(!found.requests.contains_key(""));
    assert_eq!(texts(&found.requests), case.requests, "{:?}", case.pod);
    assert_eq!(texts(&found.limits), case.limits, "{:?}", case.pod);
    assert_eq!(notes.into_values().flatten().collect::<Vec<_>>(), case.notes);
}

#[test]
fn requests_are_the_capped_target_and_limits_keep_their_proportion() {
    let none = || container("container1", ["", ""], ["", ""]);
    let initialized = || container("container1", ["2", "100Mi"], ["", ""]);
    let equal = || container("container1", ["2", "200Mi"], ["2", "200Mi"]);
    let limits = || container("container1", ["", ""], ["2", "200Mi"]);
    let double = || container("container1", ["1", "100Mi"], ["2", "200Mi"]);
    let tenfold = || container("container1", ["1", "100Mi"], ["10", "1000Mi"]);
    let (min, max) = (["1", "100Mi"], ["3", "1Gi"]);
    let plain = || vpa(["2", "200Mi"], min, max, "");
    let high = || vpa(["2", "1000Mi"], ["", ""], ["3", "3Gi"], "");
    let raised = vpa(["3", "150Mi"], ["4", "300Mi"], ["5", "1Gi"], "");
    let lowered = vpa(["7", "2Gi"], ["4", "300Mi"], ["5", "1Gi"], "");
    let only = |target, max| vpa(target, ["", ""], max, "RequestsOnly");
    let exa = vpa(["1Ei", "1Ei"], ["", ""], ["1Ei", "1Ei"], "");
    let (target, no) = (["2", "200Mi"], ["", ""]);
    let mut empty = plain();
    empty.status.recommendation = Some(Default::default());
    let mut unset = plain();
    unset.status.recommendation = None;
    let cases = [
        (none(), plain(), target, no, &[][..]),
        (
            none(),
            raised,
            ["4", "300Mi"],
            no,
            &["cpu capped to minAllowed", "memory capped to minAllowed"],
        ),
        (
            none(),
            lowered,
            ["5", "1Gi"],
            no,
            &["cpu capped to maxAllowed", "memory capped to maxAllowed"],
        ),
        (initialized(), plain(), target, no, &[]),
        (initialized(), high(), ["2", "1000Mi"], no, &[]),
        (initialized(), empty, no, no, &[]),
        (initialized(), unset, no, no, &[]),
        (equal(), plain(), target, target, &[]),
        (limits(), plain(), target, target, &[]),
        (double(), plain(), target, ["4", "400Mi"], &[]),
        (double(), vpa(target, no, max, "RequestsAndLimits"), target, ["4", "400Mi"], &[]),
        (double(), only(target, max), target, no, &[]),
        (
            double(),
            only(["3", "500Mi"], ["5", "1Gi"]),
            target,
            no,
            &["cpu capped to container limit", "memory capped to container limit"],
        ),
        (
            tenfold(),
            exa,
            ["1Ei", "1Ei"],
            // The greatest `int64` of thousandths and of units.
            ["9223372036854775807m", "9223372036854775807"],
            &[
                "cpu: failed to keep limit to request ratio; capping limit to int64",
                "memory: failed to keep limit to request ratio; capping limit to int64",
            ],
        ),
    ];
    for (pod, vpa, requests, limits, notes) in cases {
        check(Case { pod, vpa, requests, limits, notes }, &LimitRanges::default());
    }
    let default = Some(amounts(json!({"cpu": "2", "memory": "100Mi"})));
    let item = LimitItem { default, ..LimitItem::default() };
    let ranges = LimitRanges { container: Some(item), pod: None };
    let case =
        Case { pod: initialized(), vpa: plain(), requests: target, limits: target, notes: &[] };
    check(case, &ranges);
}

/// `TestGetContainersResources`, without the option that no caller of upstream uses.
#[test]
fn only_recommended_resources_are_changed() {
    let check = |pod: &PodView, target: Value, requests: [&str; 2], limits: [&str; 2]| {
        let recommendation = json!([{"containerName": "container", "target": target}]);
        let vpa = recommending(json!({}), recommendation);
        let (found, _) = pod_resources(pod, &vpa, &LimitRanges::default());
        assert_eq!(
            (texts(&found[0].requests), texts(&found[0].limits)),
            (requests.map(str::to_owned), limits.map(str::to_owned))
        );
    };
    let of =
        |requests, limits| pod_of(json!([container("container", requests, limits)]), json!([]));
    let both = of(["1", "1M"], ["10", "10M"]);
    let requests = of(["1", "1M"], ["", ""]);
    check(&both, json!({"cpu": "2", "memory": "2M"}), ["2", "2M"], ["20", "20M"]);
    check(&requests, json!({"cpu": "2", "memory": "2M"}), ["2", "2M"], ["", ""]);
    check(&both, json!({"cpu": "2"}), ["2", ""], ["20", ""]);
    check(&both, json!({"memory": "2M"}), ["", "2M"], ["", "20M"]);
    let status = json!([{"name": "container",
        "resources": resources(["1", "1M"], ["10", "3M"])}]);
    let resized = pod_of(json!([{"name": "container"}]), status);
    check(&resized, json!({"cpu": "3", "memory": "2M"}), ["3", "2M"], ["30", "6M"]);
}
