//! The cases of upstream's `inplace/resource_updates_test.go` and `TestIsInfeasibleError`.

use api::status::Cause;
use api::{Status, k8s};
use serde_json::json;

use super::*;
use crate::policy::testing::{pod, recommending, resources};

fn at(text: &str) -> k8s::jiff::Timestamp {
    text.parse().unwrap()
}

/// A pod with two boosted containers that is ready for five minutes.
fn boosted() -> Value {
    let original = r#"{"requests":{"cpu":"100m"}}"#;
    json!({"metadata": {"name": "p", "namespace": "default", "annotations": {
            "vpaCpuStartupBoost/c1": original, "vpaCpuStartupBoost/c2": original}},
        "spec": {"containers": [
            {"name": "c1", "resources": resources(["1m", ""], ["", ""])},
            {"name": "c2", "resources": resources(["1m", ""], ["", ""])}]},
        "status": {"conditions": [{"type": "Ready", "status": "True",
            "lastTransitionTime": "2024-01-01T00:00:00Z"}]}})
}

/// An autoscaler with boosts of these seconds for two containers.
fn autoscaler(mode: &str, seconds: [i32; 2], cpu: &str) -> VerticalPodAutoscaler {
    let [first, second] = seconds
        .map(|seconds| json!({"cpu": {"type": "Factor", "factor": 1, "durationSeconds": seconds}}));
    let spec = json!({"updatePolicy": {"updateMode": mode},
        "resourcePolicy": {"containerPolicies": [
            {"containerName": "c1", "startupBoost": first},
            {"containerName": "c2", "startupBoost": second}]}});
    let targets = match cpu {
        "" => Value::Null,
        cpu => json!([{"containerName": "c1", "target": {"cpu": cpu}},
            {"containerName": "c2", "target": {"cpu": cpu}}]),
    };
    recommending(spec, targets)
}

fn patch(value: &Value, autoscaler: &VerticalPodAutoscaler) -> Option<Value> {
    let now = at("2024-01-01T00:05:00Z");
    resize_patch(&pod(value.clone()), autoscaler, &LimitRanges::default(), now).unwrap()
}

fn cpu(name: &str, cpu: &str) -> Value {
    json!({"name": name, "resources": {"requests": {"cpu": cpu}}})
}

#[test]
fn boosted_containers_keep_their_resources_until_the_boost_expires() {
    let spec = |containers: Value| Some(json!({"spec": {"containers": containers}}));
    let pod = boosted();
    let off = autoscaler("Off", [10, 1000], "");
    assert_eq!(patch(&pod, &off), spec(json!([cpu("c1", "100m")])));
    let mixed = autoscaler("InPlaceOrRecreate", [10, 1000], "200m");
    assert_eq!(patch(&pod, &mixed), spec(json!([cpu("c1", "200m")])));
    let both = autoscaler("InPlaceOrRecreate", [1000, 1000], "200m");
    assert_eq!(patch(&pod, &both), None);

    let mut plain = boosted();
    plain["metadata"]["annotations"] = json!({});
    let regular = autoscaler("InPlaceOrRecreate", [0, 0], "300m");
    let containers = json!([cpu("c1", "300m"), cpu("c2", "300m")]);
    assert_eq!(patch(&plain, &regular), spec(containers));
    assert_eq!(patch(&plain, &autoscaler("Off", [0, 0], "300m")), None);
}

#[test]
fn an_unreadable_annotation_is_reported_with_its_container() {
    let mut pod = boosted();
    pod["metadata"]["annotations"] = json!({"vpaCpuStartupBoost/c1": "x"});
    let now = at("2024-01-01T00:05:00Z");
    let view = crate::policy::testing::pod(pod);
    let off = autoscaler("Off", [10, 10], "");
    let error = resize_patch(&view, &off, &LimitRanges::default(), now).unwrap_err();
    assert!(error.to_string().starts_with("vpaCpuStartupBoost/c1: "), "{error}");
}

#[test]
fn annotations_of_expired_boosts_are_removed() {
    let autoscaler = autoscaler("InPlaceOrRecreate", [10, 1000], "");
    let now = at("2024-01-01T00:05:00Z");
    assert_eq!(
        annotation_patch(&pod(boosted()), &autoscaler, now),
        json!({"metadata": {"annotations": {"vpaInPlaceUpdated": "true",
            "vpaCpuStartupBoost/c1": null}}})
    );
}

#[test]
fn a_lack_of_capacity_is_infeasible() {
    let refused = |reason: &str, cause: Option<&str>| {
        let mut status = Status::failure(403, reason, "no");
        if let Some(cause) = cause {
            let cause = Cause { reason: cause.to_owned(), ..Cause::default() };
            status.details.get_or_insert_default().causes.push(cause);
        }
        UpdateError::Api(status.into())
    };
    assert!(refused("Forbidden", Some("NodeCapacity")).is_infeasible());
    assert!(!refused("Forbidden", Some("SomethingElse")).is_infeasible());
    assert!(!refused("Forbidden", None).is_infeasible());
    assert!(!refused("Conflict", Some("NodeCapacity")).is_infeasible());
    assert!(!UpdateError::NoChange.is_infeasible());
}

#[test]
fn replicas_are_those_of_the_spec_or_of_the_daemon_sets_status() {
    let object = json!({"spec": {"replicas": 3}, "status": {"desiredNumberScheduled": 5}});
    assert_eq!(replicas_of("ReplicaSet", &object), Some(3));
    assert_eq!(replicas_of("DaemonSet", &object), Some(5));
    assert_eq!(replicas_of("StatefulSet", &json!({"spec": {"replicas": 0}})), None);
    assert_eq!(replicas_of("ReplicationController", &json!({})), None);
}
