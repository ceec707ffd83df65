//! The cases of upstream's `pods_inplace_restriction_test.go` and `TestGetResizeStatus`.

use serde_json::{Value, json};

use super::super::budget::testing::{budget, replica};
use super::*;
use crate::policy::testing::recommending;

fn pending(reason: &str) -> Value {
    json!([{"type": "PodResizePending", "status": "True", "reason": reason}])
}

fn in_progress(reason: &str, message: &str) -> Value {
    json!([{"type": "PodResizeInProgress", "status": "True", "reason": reason,
        "message": message}])
}

#[test]
fn conditions_say_what_happens_to_a_resize() {
    let both = |a: Value, b: Value| Value::Array([a, b].map(|list| list[0].clone()).into());
    for (conditions, expected) in [
        (json!([]), ResizeStatus::None),
        (pending("Deferred"), ResizeStatus::Deferred),
        (pending("Infeasible"), ResizeStatus::Infeasible),
        (pending("SomeOtherReason"), ResizeStatus::Unknown),
        (pending(""), ResizeStatus::Unknown),
        (in_progress("", ""), ResizeStatus::InProgress),
        (in_progress("Error", "x"), ResizeStatus::Error),
        (in_progress("SomeOtherReason", ""), ResizeStatus::Unknown),
        (in_progress("", "x"), ResizeStatus::Unknown),
        (json!([{"type": "Ready", "status": "True"}]), ResizeStatus::None),
        (both(pending("Deferred"), in_progress("", "")), ResizeStatus::Deferred),
        (both(in_progress("Error", "x"), pending("Infeasible")), ResizeStatus::Infeasible),
        (
            json!([{"type": "PodResizePending", "status": "False", "reason": "Deferred"}]),
            ResizeStatus::None,
        ),
    ] {
        let pod = replica("p", "Running", conditions.clone());
        assert_eq!(resize_status(&pod), expected, "{conditions}");
    }
}

fn autoscaler(mode: &str, target: Value) -> VerticalPodAutoscaler {
    let spec = match mode {
        "" => json!({}),
        mode => json!({"updatePolicy": {"updateMode": mode}}),
    };
    let containers = match target {
        Value::Null => Value::Null,
        target => json!([{"containerName": "test-container", "target": target}]),
    };
    recommending(spec, containers)
}

fn low() -> Value {
    json!({"cpu": "1000m", "memory": "1Gi"})
}

/// A pod with these conditions among `live` replicas of `configured`, the minutes since its resize
/// was observed, and the decision.
fn decision(
    mode: &str,
    conditions: Value,
    (live, configured, tolerance): (usize, usize, f64),
    minutes: i64,
) -> InPlaceDecision {
    let mut pods = vec![replica("test-0", "Running", conditions)];
    pods.extend((1..live).map(|i| replica(&format!("test-{i}"), "Running", json!([]))));
    let autoscaler = autoscaler(mode, low());
    let budget = budget(&pods, &autoscaler, (configured, tolerance, 2));
    let now = Timestamp::from_second(minutes * 60).unwrap();
    let mut memory = ResizeMemory::default();
    memory.observed.insert("test-0".to_owned(), Timestamp::UNIX_EPOCH);
    decide(&pods[0], &autoscaler, &budget, &mut memory, (Features::ALL, now))
}

#[test]
fn a_resize_waits_for_the_budget_and_falls_back_to_eviction() {
    use InPlaceDecision::{Approved, Deferred, Evict, Infeasible};
    const BOTH: &str = "InPlaceOrRecreate";
    let all = (3, 3, 0.5);
    for (mode, conditions, replicas, minutes, expected) in [
        (BOTH, json!([]), all, 0, Approved),
        (BOTH, json!([]), (1, 1, 0.5), 0, Deferred),
        ("InPlace", json!([]), (1, 1, 0.5), 0, Deferred),
        (BOTH, json!([]), (2, 3, 0.5), 0, Deferred),
        (BOTH, json!([]), (3, 3, 0.1), 0, Approved),
        (BOTH, json!([]), (5, 5, 0.8), 0, Approved),
        (BOTH, pending("Deferred"), all, 0, Deferred),
        (BOTH, pending("Deferred"), all, 5, Deferred),
        (BOTH, pending("Deferred"), all, 6, Evict),
        // The budget of a smaller set admits no eviction.
        (BOTH, pending("Deferred"), (2, 3, 0.5), 6, Deferred),
        (BOTH, in_progress("", ""), all, 60, Deferred),
        (BOTH, in_progress("", ""), all, 61, Evict),
        (BOTH, in_progress("Error", "x"), all, 0, Evict),
        (BOTH, in_progress("", "x"), all, 0, Evict),
        (BOTH, pending("Infeasible"), all, 0, Evict),
        (BOTH, pending("x"), all, 0, Evict),
        // Without a policy, the mode is Recreate.
        ("", in_progress("", ""), all, 61, Evict),
        ("InPlace", json!([]), all, 0, Approved),
        ("InPlace", in_progress("", ""), all, 120, Deferred),
        ("InPlace", in_progress("Error", "x"), all, 60, Deferred),
        ("InPlace", pending("Deferred"), all, 60, Deferred),
        ("InPlace", pending("x"), all, 60, Deferred),
        ("InPlace", pending("Infeasible"), all, 60, Infeasible),
    ] {
        let found = decision(mode, conditions.clone(), replicas, minutes);
        assert_eq!(found, expected, "{mode} {conditions} {replicas:?} {minutes}");
    }
}

/// The cases `InfeasibleCaching`.
#[test]
fn an_infeasible_resize_waits_for_a_lower_recommendation() {
    let (high, mixed) =
        (json!({"cpu": "2000m", "memory": "2Gi"}), json!({"cpu": "1000m", "memory": "2Gi"}));
    let pod = replica("p", "Running", json!([]));
    let decide = |mode: &str, last: Option<Value>, new: Value| {
        let mut memory = ResizeMemory::default();
        if let Some(last) = last {
            memory.record_infeasible(&pod, &autoscaler(mode, last));
        }
        let autoscaler = autoscaler(mode, new);
        let budget = budget(std::slice::from_ref(&pod), &autoscaler, (1, 0.5, 1));
        let at = (Features::ALL, Timestamp::UNIX_EPOCH);
        decide(&pod, &autoscaler, &budget, &mut memory, at)
    };
    let (approved, cached) = (InPlaceDecision::Approved, InPlaceDecision::InfeasibleCached);
    assert_eq!(decide("InPlace", Some(low()), low()), cached);
    assert_eq!(decide("InPlace", Some(high.clone()), mixed), approved);
    assert_eq!(decide("InPlace", Some(low()), high), cached);
    assert_eq!(decide("InPlace", None, low()), approved);
    assert_eq!(decide("InPlaceOrRecreate", Some(low()), low()), approved);
    assert_eq!(decide("InPlace", None, Value::Null), InPlaceDecision::Deferred);
}

/// `TestInPlaceModeDisabledFeatureGate`.
#[test]
fn mode_in_place_needs_its_feature() {
    let pods: Vec<PodView> =
        (0..3).map(|i| replica(&format!("p{i}"), "Running", json!([]))).collect();
    let autoscaler = autoscaler("InPlace", low());
    let budget = budget(&pods, &autoscaler, (3, 0.5, 2));
    let at = (Features::default(), Timestamp::UNIX_EPOCH);
    let found = decide(&pods[0], &autoscaler, &budget, &mut ResizeMemory::default(), at);
    assert_eq!(found, InPlaceDecision::Deferred);
}

/// The cases of `TestDisruptReplicatedByController` with pending and resizing pods.
#[test]
fn pending_pods_are_evicted_and_resizing_pods_only_after_their_resize_failed() {
    let autoscaler = autoscaler("Recreate", low());
    let can = |pods: &[PodView], numbers| {
        let budget = budget(pods, &autoscaler, numbers);
        let mut memory = ResizeMemory::default();
        let all =
            pods.iter().map(|pod| can_evict(pod, &budget, &mut memory, Timestamp::UNIX_EPOCH));
        all.collect::<Vec<_>>()
    };
    let of = |phases: &[&str]| {
        let pods = phases.iter().enumerate();
        pods.map(|(i, phase)| replica(&format!("p{i}"), phase, json!([]))).collect::<Vec<_>>()
    };
    let pods = of(&["Running", "Pending", "Running"]);
    assert_eq!(can(&pods, (3, 0.5, 2)), [false, true, false]);
    let pods = of(&["Running", "Pending", "Pending", "Pending"]);
    assert_eq!(can(&pods, (4, 0.5, 2)), [false, true, true, true]);
    assert_eq!(can(&of(&["Pending"]), (1, 0.5, 2)), [false]);

    let stuck = |name| replica(name, "Running", pending("Infeasible"));
    let running = |name| replica(name, "Running", json!([]));
    let mixed = [running("a"), stuck("b"), stuck("c")];
    assert_eq!(can(&mixed, (3, 0.5, 2)), [true; 3]);
    let mixed = [running("a"), stuck("b"), running("c")];
    assert_eq!(can(&mixed, (4, 0.1, 2)), [false; 3]);
    assert_eq!(can(&mixed, (3, 1.0, 2)), [true; 3]);
    let mixed = [running("a"), replica("b", "Running", pending("Deferred")), running("c")];
    assert_eq!(can(&mixed, (3, 0.5, 2)), [true, false, true]);
}

#[test]
fn memory_keeps_live_pods_and_resizes_that_go_on() {
    let resizing = replica("a", "Running", in_progress("", ""));
    let ended = replica("b", "Running", json!([]));
    let mut memory = ResizeMemory::default();
    for uid in ["a", "b", "gone"] {
        memory.observed.insert(uid.to_owned(), Timestamp::UNIX_EPOCH);
        memory.infeasible.insert(uid.to_owned(), Vec::new());
    }
    memory.retain(|uid| [&resizing, &ended].into_iter().find(|pod| pod.uid == uid));
    assert!(memory.observed.keys().eq(["a"]));
    let mut infeasible: Vec<_> = memory.infeasible.keys().collect();
    infeasible.sort();
    assert_eq!(infeasible, ["a", "b"]);
}

#[test]
fn a_boost_ends_when_its_time_is_over_and_the_budget_admits_it() {
    let ready = json!([{"type": "Ready", "status": "True",
        "lastTransitionTime": "1970-01-01T00:00:00Z"}]);
    let boosted = |phase: &str, more: Value| {
        let mut conditions = ready.clone();
        conditions.as_array_mut().unwrap().extend(more.as_array().unwrap().iter().cloned());
        let mut pod = replica("p", phase, conditions);
        let key = "vpaCpuStartupBoost/c".to_owned();
        pod.annotations = Some([(key, "{}".to_owned())].into());
        pod
    };
    let spec = json!({"startupBoost": {"cpu": {"type": "Factor", "durationSeconds": 60}}});
    let autoscaler = recommending(spec, Value::Null);
    let can = |pod: PodView, seconds: i64, replicas: usize| {
        let budget = budget(std::slice::from_ref(&pod), &autoscaler, (replicas, 0.5, 2));
        can_unboost(&pod, &autoscaler, &budget, Timestamp::from_second(seconds).unwrap())
    };
    assert!(can(boosted("Running", json!([])), 61, 1));
    assert!(!can(boosted("Running", json!([])), 60, 1));
    assert!(!can(boosted("Pending", json!([])), 61, 1));
    assert!(!can(boosted("Running", in_progress("", "")), 61, 1));
    assert!(!can(boosted("Running", json!([])), 61, 2));
}
