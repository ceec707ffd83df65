//! The cases of upstream's `resource_updates_test.go` and `observed_containers_test.go`.

use serde_json::{Value, json};

use super::*;
use crate::policy::testing::{container, policies, recommending};

const OFF: Features = Features { cpu_startup_boost: false, in_place: false, per_vpa_config: false };

fn patched(pod: &Value, spec: Value, targets: Value, features: Features) -> Value {
    let mut pod = pod.clone();
    let autoscaler = recommending(spec, targets);
    patch_pod(&mut pod, &autoscaler, &LimitRanges::default(), features).unwrap();
    pod
}

fn pod(containers: Value) -> Value {
    json!({"metadata": {"generateName": "p-"}, "spec": {"containers": containers}})
}

/// The resources of the containers, and the annotation with the changes.
fn changes(pod: &Value) -> (Vec<Value>, &str) {
    let containers = pod["spec"]["containers"].as_array().unwrap().iter();
    let resources = containers.map(|container| container["resources"].clone()).collect();
    (resources, pod["metadata"]["annotations"]["vpaUpdates"].as_str().unwrap_or_default())
}

#[test]
fn requests_and_limits_are_written_with_their_annotation() {
    let target = |name: &str, cpu: &str| json!({"containerName": name, "target": {"cpu": cpu}});
    let text = |what: &str| format!("Pod resources updated by vpa: {what}");
    for (containers, targets, expected, update) in [
        (
            json!([{"name": "a"}]),
            json!([target("a", "1")]),
            json!([{"requests": {"cpu": "1"}}]),
            "container 0: cpu request",
        ),
        (
            json!([container("a", ["0", ""], ["", ""])]),
            json!([target("a", "1")]),
            json!([{"requests": {"cpu": "1"}}]),
            "container 0: cpu request",
        ),
        (
            json!([container("a", ["0", ""], ["", ""]), {"name": "b"}]),
            json!([target("a", "1"), target("b", "2")]),
            json!([{"requests": {"cpu": "1"}}, {"requests": {"cpu": "2"}}]),
            "container 0: cpu request; container 1: cpu request",
        ),
        (
            json!([container("a", ["1", "1M"], ["2", "2M"])]),
            json!([{"containerName": "a", "target": {"cpu": "2", "memory": "3M"}}]),
            json!([{"requests": {"cpu": "2", "memory": "3M"},
                "limits": {"cpu": "4", "memory": "6M"}}]),
            "container 0: cpu request, memory request, cpu limit, memory limit",
        ),
        (
            json!([container("a", ["0", ""], ["", ""])]),
            json!([{"containerName": "a", "target": {"cpu": "1", "unobtanium": "2"}}]),
            json!([{"requests": {"cpu": "1", "unobtanium": "2"}}]),
            "container 0: cpu request, unobtanium request",
        ),
    ] {
        let found = patched(&pod(containers), json!({}), targets, OFF);
        let expected = expected.as_array().unwrap().clone();
        assert_eq!(changes(&found), (expected, &*text(update)));
    }
}

#[test]
fn a_pod_without_recommendation_receives_the_observed_containers_alone() {
    let plain = pod(json!([container("a", ["", ""], ["1", ""]), {"name": "b", "resources": {
        "requests": {}}}]));
    let found = patched(&plain, json!({}), json!([]), OFF);
    assert_eq!(found["spec"], plain["spec"]);
    assert_eq!(found["metadata"]["annotations"], json!({"vpaObservedContainers": "a, b"}));
}

#[test]
fn init_containers_and_other_fields_of_resources_stay() {
    let mut plain = pod(json!([{"name": "a", "resources": {"claims": [{"name": "gpu"}]}}]));
    plain["spec"]["initContainers"] = json!([{"name": "i", "restartPolicy": "Always"}]);
    plain["metadata"]["annotations"] = json!({"own": "1"});
    let targets = json!([{"containerName": "a", "target": {"cpu": "1"}},
        {"containerName": "i", "target": {"cpu": "1"}}]);
    let found = patched(&plain, json!({}), targets, OFF);
    assert_eq!(found["spec"]["initContainers"], plain["spec"]["initContainers"]);
    let resources = json!({"claims": [{"name": "gpu"}], "requests": {"cpu": "1"}});
    assert_eq!(found["spec"]["containers"][0]["resources"], resources);
    assert_eq!(found["metadata"]["annotations"]["own"], "1");
}

#[test]
fn capping_is_noted_before_the_changes() {
    let spec = policies(json!([{"containerName": "*", "maxAllowed": {"cpu": "1"}}]));
    let targets = json!([{"containerName": "a", "target": {"cpu": "2"}}]);
    let found = patched(&pod(json!([{"name": "a"}])), spec, targets, OFF);
    let text = "Pod resources updated by vpa: container 0: cpu capped to maxAllowed, cpu request";
    assert_eq!(changes(&found).1, text);
}

#[test]
fn mode_off_applies_the_startup_boost_alone() {
    let boost = json!({"cpu": {"type": "Factor", "factor": 2}});
    let spec = json!({"updatePolicy": {"updateMode": "Off"}, "startupBoost": boost});
    let targets = json!([{"containerName": "a", "target": {"cpu": "5", "memory": "1G"}}]);
    let plain = pod(json!([container("a", ["1", ""], ["", ""])]));
    let found = patched(&plain, spec, targets, Features::ALL);
    assert_eq!(changes(&found).0, [json!({"requests": {"cpu": "2"}})]);
}

/// One case of `TestCalculatePatches_StartupBoost`: requests and limits of CPU, policy, boost,
/// target, and the expected requests and limits of CPU.
type Boost<'a> = (&'a str, &'a str, Value, Value, &'a str, &'a str, &'a str);

#[test]
fn the_startup_boost_raises_the_request_and_keeps_the_original_in_an_annotation() {
    let factor = |factor: i32| json!({"cpu": {"type": "Factor", "factor": factor}});
    let sum = |sum: &str| json!({"cpu": {"type": "Quantity", "quantity": sum}});
    let values = |values: &str| json!({"controlledValues": values});
    let none = || json!({});
    let only = || values("RequestsOnly");
    let both = || values("RequestsAndLimits");
    let own = json!({"startupBoost": factor(3)});
    let cases: [Boost<'_>; 10] = [
        ("1m", "1m", none(), factor(2), "100m", "200m", "200m"),
        ("1m", "1m", none(), sum("500m"), "100m", "600m", "600m"),
        ("400m", "400m", none(), sum("200m"), "500m", "700m", "700m"),
        ("100m", "100m", none(), factor(2), "", "200m", "200m"),
        ("100m", "300m", only(), factor(2), "100m", "200m", "300m"),
        ("100m", "150m", only(), factor(2), "100m", "149m", "150m"),
        ("100m", "300m", both(), factor(2), "150m", "300m", "900m"),
        ("100m", "", both(), factor(2), "150m", "300m", ""),
        ("1m", "1m", own, factor(2), "100m", "300m", "300m"),
        // A boost without CPU is none.
        ("100m", "", none(), none(), "150m", "150m", ""),
    ];
    for (request, limit, mut policy, boost, target, new_request, new_limit) in cases {
        policy["containerName"] = "container1".into();
        let mut spec = policies(json!([policy]));
        spec["startupBoost"] = boost.clone();
        let targets = match target {
            "" => json!([]),
            target => json!([{"containerName": "container1", "target": {"cpu": target}}]),
        };
        let plain = pod(json!([container("container1", [request, ""], [limit, ""])]));
        let found = patched(&plain, spec, targets, Features::ALL);
        let expected = container("container1", [new_request, ""], [new_limit, ""]);
        assert_eq!(found["spec"]["containers"][0], expected, "{request} {limit} {target}");
        let original = found["metadata"]["annotations"]["vpaCpuStartupBoost/container1"].as_str();
        let limits =
            if limit.is_empty() { "{}".to_owned() } else { format!(r#"{{"cpu":"{limit}"}}"#) };
        let text = format!(r#"{{"requests":{{"cpu":"{request}"}},"limits":{limits}}}"#);
        assert_eq!(original, (boost != json!({})).then_some(text.as_str()));
    }
}

#[test]
fn a_container_that_is_not_scaled_has_no_boost() {
    let plain = pod(json!([container("container1", ["100m", ""], ["", ""])]));
    let mut spec = policies(json!([{"containerName": "container1", "mode": "Off"}]));
    spec["startupBoost"] = json!({"cpu": {"type": "Factor", "factor": 2}});
    let targets = json!([{"containerName": "container1", "target": {"cpu": "1"}}]);
    let found = patched(&plain, spec.clone(), targets.clone(), Features::ALL);
    assert_eq!(found["spec"], plain["spec"]);
    // Without the feature, the boost is ignored.
    spec["resourcePolicy"] = Value::Null;
    let found = patched(&plain, spec, targets, OFF);
    assert_eq!(changes(&found).0, [json!({"requests": {"cpu": "1"}})]);
    let annotations = found["metadata"]["annotations"].as_object().unwrap();
    assert!(annotations.keys().eq(["vpaObservedContainers", "vpaUpdates"]));
}

#[test]
fn an_incomplete_boost_leaves_the_pod_unchanged() {
    let plain = pod(json!([{"name": "a"}]));
    for (boost, error) in [
        (json!({"type": "Factor", "factor": 0}), "boost factor must be >= 1"),
        (
            json!({"type": "Factor"}),
            "startupBoost.CPU.Factor is required when Type is Factor or not specified",
        ),
        (
            json!({"type": "Quantity"}),
            "startupBoost.CPU.Quantity is required when Type is Quantity",
        ),
    ] {
        let autoscaler = recommending(json!({"startupBoost": {"cpu": boost}}), json!([]));
        let mut pod = plain.clone();
        let found = patch_pod(&mut pod, &autoscaler, &LimitRanges::default(), Features::ALL);
        assert_eq!(found.unwrap_err().to_string(), error);
        assert_eq!(pod, plain);
    }
}

#[test]
fn recreate_is_the_default_of_an_absent_update_policy() {
    let defaulted = |spec: Value| {
        let mut object = json!({"spec": spec});
        set_defaults(&mut object);
        object["spec"]["updatePolicy"].clone()
    };
    assert_eq!(defaulted(json!({})), json!({"updateMode": "Recreate"}));
    assert_eq!(defaulted(json!({"updatePolicy": null})), json!({"updateMode": "Recreate"}));
    let off = json!({"updateMode": "Off"});
    assert_eq!(defaulted(json!({"updatePolicy": off})), off);
}
