//! The cases of upstream's `priority_processor_test.go`, `update_priority_calculator_test.go` and
//! `scaling_direction_pod_eviction_admission_test.go`.

use serde_json::{Value, json};

use super::*;
use crate::policy::testing::{container, pod, recommending, resources};

const NAME: &str = "container1";
const SECOND: &str = "test-container-2";

/// A recommendation for a container: target, lower and upper bound.
fn recommendation(name: &str, target: [&str; 2], lower: [&str; 2], upper: [&str; 2]) -> Value {
    let list = |amounts| resources(amounts, ["", ""])["requests"].clone();
    let mut all = json!({"containerName": name});
    for (field, amounts) in [("target", target), ("lowerBound", lower), ("upperBound", upper)] {
        if let Value::Object(list) = list(amounts) {
            all[field] = Value::Object(list);
        }
    }
    all
}

fn target(name: &str, cpu: &str, memory: &str) -> Value {
    recommendation(name, [cpu, memory], ["", ""], ["", ""])
}

fn requests(name: &str, cpu: &str, memory: &str) -> Value {
    container(name, [cpu, memory], ["", ""])
}

fn of_containers(containers: &[Value]) -> PodView {
    pod(json!({"spec": {"containers": containers}}))
}

fn priority_of(pod: &PodView, containers: Value) -> UpdatePriority {
    let autoscaler = recommending(json!({}), containers);
    priority(pod, cap(&autoscaler, pod, &LimitRanges::default()).as_ref())
}

/// `TestGetUpdatePriority`.
#[test]
fn priorities_are_relative_differences() {
    let one = |cpu: &str| vec![requests(NAME, cpu, "")];
    let both = |cpu: &str, memory: &str| vec![requests(NAME, cpu, memory)];
    let two = |a: &str, b: &str| vec![requests(NAME, a, ""), requests(SECOND, b, "")];
    let bounds =
        |cpu, lower, upper| json!([recommendation(NAME, [cpu, ""], [lower, ""], [upper, ""])]);
    let cases = [
        (one("2"), json!([target(NAME, "10", "")]), (false, 4.0, true)),
        (one("4"), json!([target(NAME, "2", "")]), (false, 0.5, false)),
        (one("2"), json!([target(NAME, "2", "")]), (false, 0.0, false)),
        (one("10m"), json!([target(NAME, "900m", "")]), (false, 89.0, true)),
        (one("4"), bounds("10", "6", "14"), (true, 1.5, true)),
        (one("8"), bounds("2", "1", "3"), (true, 0.75, false)),
        (both("3", "10M"), json!([target(NAME, "6", "20M")]), (false, 2.0, true)),
        (both("4", "10M"), json!([target(NAME, "2", "20M")]), (false, 1.5, true)),
        (both("4", "20M"), json!([target(NAME, "2", "10M")]), (false, 1.0, false)),
        (
            both("4", "20M"),
            json!([recommendation(NAME, ["2", "10M"], ["1", "5M"], ["3", "30M"])]),
            (true, 1.0, false),
        ),
        (
            two("1", "2"),
            json!([target(NAME, "4", ""), target(SECOND, "8", "")]),
            (false, 3.0, true),
        ),
        (
            two("3", "7"),
            json!([target(NAME, "1", ""), target(SECOND, "2", "")]),
            (false, 0.7, false),
        ),
        (
            two("1", "2"),
            json!([
                recommendation(NAME, ["4", ""], ["1", ""], ["", ""]),
                recommendation(SECOND, ["8", ""], ["3", ""], ["10", ""])
            ]),
            (true, 3.0, true),
        ),
        (
            vec![requests(NAME, "6", "10M"), requests(SECOND, "4", "30M")],
            json!([target(NAME, "8", "20M"), target(SECOND, "7", "30M")]),
            (false, 0.75, true),
        ),
        // A container without a request counts as outside of the range.
        (vec![json!({"name": NAME})], json!([target(NAME, "1", "")]), (true, 999.0, true)),
    ];
    for (containers, recommendations, (is_outside, difference, scales_up)) in cases {
        let found = priority_of(&of_containers(&containers), recommendations);
        let expected = UpdatePriority { is_outside, scales_up, difference };
        assert_eq!(found, expected, "{containers:?}");
    }
    let status = json!([{"name": NAME, "resources": resources(["2", ""], ["", ""])}]);
    let resized = pod(json!({"spec": {"containers": one("10000")},
        "status": {"containerStatuses": status}}));
    assert_eq!(priority_of(&resized, json!([target(NAME, "10", "")])).difference, 4.0);
    let none = priority(&of_containers(&both("5", "10")), None);
    assert_eq!(none, UpdatePriority::default());
}

/// `TestGetUpdatePriority_VpaObservedContainers`, `TestParseVpaObservedContainersValue`.
#[test]
fn containers_that_admission_did_not_observe_do_not_count() {
    let difference = |observed: Option<&str>| {
        let mut metadata = json!({});
        if let Some(observed) = observed {
            metadata["annotations"] = json!({"vpaObservedContainers": observed});
        }
        let pod = pod(json!({"metadata": metadata,
            "spec": {"containers": [requests(NAME, "1", "")]}}));
        priority_of(&pod, json!([target(NAME, "10", "")])).difference
    };
    assert_eq!(difference(None), 9.0);
    assert_eq!(difference(Some(NAME)), 9.0);
    assert_eq!(difference(Some("other, container1")), 9.0);
    assert_eq!(difference(Some("")), 0.0);
    assert_eq!(difference(Some("abcd;';")), 9.0);
}

/// A pod that started at the epoch.
fn started(name: &str, cpu: &str, memory: &str) -> Value {
    json!({"metadata": {"name": name, "uid": name},
        "spec": {"containers": [requests(NAME, cpu, memory)]},
        "status": {"startTime": "1970-01-01T00:00:00Z"}})
}

fn at_hour(hours: i64) -> Timestamp {
    Timestamp::from_second(hours * 3600).unwrap()
}

fn order(pods: &[Value], spec: Value, recommendation: Value, hours: i64) -> Vec<String> {
    let pods: Vec<PodView> = pods.iter().map(PodView::read).collect();
    let autoscaler = recommending(spec, json!([recommendation]));
    let order = update_order(
        pods.iter(),
        &autoscaler,
        &LimitRanges::default(),
        &ResizeMemory::default(),
        (Features::ALL, at_hour(hours)),
    );
    order.into_iter().map(|pod| pod.name.clone()).collect()
}

/// `TestSortPriority`, `TestSortPriorityResourcesDecrease`, `TestLessPodPriority`.
#[test]
fn growing_pods_and_large_differences_precede() {
    let of = |cpus: &[&str]| {
        let pods = cpus.iter().enumerate();
        pods.map(|(i, cpu)| started(&format!("POD{}", i + 1), cpu, "")).collect::<Vec<_>>()
    };
    let all = of(&["2", "4", "1", "3"]);
    let sorted = order(&all, json!({}), target(NAME, "10", ""), 24);
    assert_eq!(sorted, ["POD3", "POD1", "POD4", "POD2"]);
    let all = of(&["4", "8", "10"]);
    let sorted = order(&all, json!({}), target(NAME, "5", ""), 24);
    assert_eq!(sorted, ["POD1", "POD3", "POD2"]);
    let of = |scales_up, difference| UpdatePriority { scales_up, difference, is_outside: false };
    let precedes = |a: UpdatePriority, b: UpdatePriority| a.compare(&b) == Ordering::Less;
    assert!(precedes(of(false, 0.1), UpdatePriority::default()));
    assert!(precedes(of(true, 0.1), UpdatePriority::default()));
    assert!(precedes(of(true, 1.0), of(true, 0.1)));
    assert!(precedes(of(false, 0.9), of(false, 0.1)));
}

/// `TestUpdateNotRequired`, `TestUpdateLonglivedPods`, `TestUpdateShortlivedPods`.
#[test]
fn pods_within_the_range_are_updated_after_twelve_hours_for_a_significant_change() {
    let bounded = || recommendation(NAME, ["5", ""], ["1", ""], ["6", ""]);
    let one = |cpu: &str, hours| order(&[started("p", cpu, "")], json!({}), bounded(), hours).len();
    assert_eq!(one("5", 24), 0);
    // A change of 10 % is significant.
    assert_eq!(one("4.6", 13), 0);
    assert_eq!(one("4.5", 13), 1);
    assert_eq!(one("4", 12), 1);
    assert_eq!(one("4", 11), 0);
    // Outside of the range, the age does not matter.
    assert_eq!(one("8", 1), 1);
    let mut unknown = started("p", "4", "");
    unknown["status"] = json!({});
    assert_eq!(order(&[unknown], json!({}), bounded(), 24).len(), 0);
}

/// A pod whose container was killed; the minutes before hour 11 of its start and end.
fn killed(started_ago: i64, ended_ago: i64, cpu: &str) -> Value {
    let at = |minutes: i64| Timestamp::from_second(11 * 3600 - minutes * 60).unwrap().to_string();
    let mut pod = started("p", cpu, "8Gi");
    pod["status"]["containerStatuses"] = json!([{"name": NAME, "lastState": {"terminated": {
        "reason": "OOMKilled", "startedAt": at(started_ago), "finishedAt": at(ended_ago)}}}]);
    pod
}

/// `TestUpdatePodWithQuickOOM` and its neighbours.
#[test]
fn a_pod_that_was_killed_for_memory_soon_after_its_start_is_updated() {
    let bounded = || recommendation(NAME, ["5", "8Gi"], ["1", "5Gi"], ["6", "10Gi"]);
    let updates = |pod: Value, spec: Value| order(&[pod], spec, bounded(), 11).len() == 1;
    assert!(updates(killed(5, 3, "4"), json!({})));
    // The resources would not change.
    assert!(!updates(killed(5, 3, "5"), json!({})));
    // It ran for long, or the kill is long ago.
    assert!(!updates(killed(60, 3, "4"), json!({})));
    assert!(!updates(killed(600, 599, "4"), json!({})));
    let mut other = killed(5, 3, "4");
    other["status"]["containerStatuses"][0]["lastState"]["terminated"]["reason"] = "Error".into();
    assert!(!updates(other, json!({})));

    let observed = |names: &str| {
        let mut pod = killed(5, 3, "4");
        pod["metadata"]["annotations"] = json!({"vpaObservedContainers": names});
        pod
    };
    assert!(updates(observed(NAME), json!({})));
    assert!(!updates(observed(""), json!({})));

    let policy = |name: &str, mode: &str| json!({"resourcePolicy": {"containerPolicies": [{"containerName": name, "mode": mode}]}});
    assert!(updates(killed(5, 3, "4"), policy(NAME, "Auto")));
    assert!(!updates(killed(5, 3, "4"), policy(NAME, "Off")));
    assert!(updates(killed(5, 3, "4"), policy("*", "Auto")));
    assert!(!updates(killed(5, 3, "4"), policy("*", "Off")));

    // The autoscaler's own threshold.
    let own = |seconds| json!({"updatePolicy": {"evictAfterOOMSeconds": seconds}});
    assert!(!updates(killed(5, 3, "4"), own(60)));
    assert!(updates(killed(60, 3, "4"), own(3600)));
}

/// `TestAddPodWithInfeasibleAttempts`.
#[test]
fn mode_in_place_waits_for_less_than_what_was_infeasible() {
    let updates = |mode: &str, last: Option<Value>, new: Value| {
        let pod = PodView::read(&started("p", "100m", "128Mi"));
        let spec = json!({"updatePolicy": {"updateMode": mode}});
        let mut memory = ResizeMemory::default();
        if let Some(last) = last {
            memory.record_infeasible(&pod, &recommending(spec.clone(), json!([last])));
        }
        let autoscaler = recommending(spec, json!([new]));
        let ranges = LimitRanges::default();
        let at = (Features::ALL, at_hour(24));
        update_order([&pod].into_iter(), &autoscaler, &ranges, &memory, at).len() == 1
    };
    let of = |cpu, memory| target(NAME, cpu, memory);
    let last = || Some(of("200m", "512Mi"));
    assert!(updates("InPlace", None, of("200m", "512Mi")));
    assert!(!updates("InPlace", last(), of("200m", "512Mi")));
    assert!(!updates("InPlace", last(), of("300m", "1Gi")));
    assert!(updates("InPlace", last(), of("100m", "512Mi")));
    assert!(updates("InPlace", last(), of("200m", "256Mi")));
    assert!(updates("InPlace", last(), of("100m", "1Gi")));
    assert!(updates("Recreate", last(), of("200m", "512Mi")));
    assert!(updates("Auto", last(), of("200m", "512Mi")));
}

/// `TestAdmitForSingleContainer`, `TestAdmitForMultipleContainer`.
#[test]
fn eviction_requirements_admit_a_direction_of_change() {
    let (cpu, memory): (&[&str], &[&str]) = (&["cpu"], &["memory"]);
    let both: &[&str] = &["cpu", "memory"];
    let (up, down) = ("TargetHigherThanRequests", "TargetLowerThanRequests");
    let admits = |pod: &PodView, requirements: &[(&[&str], &str)], targets: Value| {
        let requirements: Vec<Value> = requirements
            .iter()
            .map(|(names, change)| json!({"resources": names, "changeRequirement": change}))
            .collect();
        let spec = json!({"updatePolicy": {"updateMode": "Recreate",
            "evictionRequirements": requirements}});
        let autoscaler = recommending(spec, targets);
        let capped = cap(&autoscaler, pod, &LimitRanges::default());
        is_admitted(pod, &autoscaler, capped.as_ref())
    };
    let single = of_containers(&[requests("a", "500m", "10Gi")]);
    let of = |cpu: &str, memory: &str| json!([target("a", cpu, memory)]);
    for (requirements, targets, expected) in [
        (&[][..], of("600m", "10Gi"), true),
        (&[(cpu, up)], of("600m", "10Gi"), true),
        (&[(cpu, down)], of("400m", "10Gi"), true),
        (&[(both, up)], of("500m", "10Gi"), false),
        (&[(both, up)], of("500m", "11Gi"), true),
        (&[(memory, up)], of("500m", "11Gi"), true),
        (&[(memory, down)], of("500m", "9Gi"), true),
        (&[(both, up)], of("500m", "9Gi"), false),
        (&[(cpu, up), (memory, down)], of("600m", "9Gi"), true),
        (&[(cpu, down)], of("1000m", "9Gi"), false),
        (&[(cpu, up), (memory, up)], of("600m", "9Gi"), false),
    ] {
        assert_eq!(admits(&single, requirements, targets.clone()), expected, "{targets}");
    }
    let without = of_containers(&[json!({"name": "a"})]);
    assert!(admits(&without, &[(cpu, up)], of("600m", "10Gi")));
    let status = json!([{"name": "a", "resources": resources(["100m", "1Gi"], ["", ""])}]);
    let resized = pod(json!({"spec": {"containers": [requests("a", "500m", "10Gi")]},
        "status": {"containerStatuses": status}}));
    assert!(admits(&resized, &[(both, up)], of("400m", "4Gi")));

    let pair = of_containers(&[requests("a", "500m", "10Gi"), requests("b", "500m", "10Gi")]);
    let two = |a: &str, b: &str| json!([target("a", a, "10Gi"), target("b", b, "10Gi")]);
    assert!(admits(&pair, &[(cpu, up)], two("600m", "700m")));
    assert!(admits(&pair, &[(cpu, up)], two("200m", "700m")));
    assert!(!admits(&pair, &[(cpu, up)], two("200m", "300m")));
    assert!(!admits(&pair, &[(cpu, up)], json!([target("b", "300m", "10Gi")])));
    // Without an update policy, there are no requirements.
    let plain = recommending(json!({}), json!([]));
    assert!(is_admitted(&single, &plain, None));
}
