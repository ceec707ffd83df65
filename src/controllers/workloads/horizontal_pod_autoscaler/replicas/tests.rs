//! Cases of upstream's `replica_calculator_test.go`.

use serde_json::json;

use super::*;

const NEAR: Tolerances = Tolerances { down: 0.1, up: 0.1 };

fn now() -> Timestamp {
    Timestamp::from_second(10_000).unwrap()
}

/// A pod that became ready long ago and requests 1 CPU.
fn pod(number: usize) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": format!("p{number}")},
        "spec": {"containers": [{"name": "c1", "resources": {"requests": {"cpu": "500m"}}},
            {"name": "c2", "resources": {"requests": {"cpu": "500m"}}}]},
        "status": {"phase": "Running", "startTime": "1970-01-01T00:00:00Z",
                   "conditions": [{"type": "Ready", "status": "True",
                       "lastTransitionTime": "1970-01-01T00:00:10Z"}]},
    }))
    .unwrap()
}

fn samples(values: &[i64]) -> Samples {
    let sample = |value: &i64| Sample { at: now(), window: 60, value: *value };
    values.iter().enumerate().map(|(n, value)| (format!("p{n}"), sample(value))).collect()
}

fn utilization(
    pods: &[Pod],
    values: &[i64],
    percent: i32,
    current: i32,
) -> Result<Proposal, ReplicaError> {
    let aim = TargetUse::Utilization(percent, requests(pods, None, "cpu").unwrap());
    of_pods(samples(values), pods, Some(Startup::default()), &aim, current, NEAR, now())
}

#[test]
fn usage_above_and_below_the_target_changes_replicas() {
    let pods: Vec<Pod> = (0..3).map(pod).collect();
    let up = utilization(&pods, &[300, 500, 700], 30, 3).unwrap();
    assert_eq!(up, Proposal { replicas: 5, utilization: Some(50), usage: 500 });
    let pods: Vec<Pod> = (0..5).map(pod).collect();
    let down = utilization(&pods, &[100, 300, 500, 250, 250], 50, 5).unwrap();
    assert_eq!(down, Proposal { replicas: 3, utilization: Some(28), usage: 280 });
    let near = utilization(&pods, &[480, 500, 520, 500, 500], 48, 5).unwrap();
    assert_eq!(near.replicas, 5);
}

#[test]
fn starting_pods_slow_a_scale_up() {
    let mut pods: Vec<Pod> = (0..3).map(pod).collect();
    pods[0].status.as_mut().unwrap().phase = Some("Pending".into());
    let up = utilization(&pods, &[300, 500, 700], 30, 3).unwrap();
    assert_eq!(up, Proposal { replicas: 4, utilization: Some(60), usage: 600 });
    // Two of three are starting: their part is nothing, and nothing is left to go up for.
    pods[1].status.as_mut().unwrap().phase = Some("Pending".into());
    let same = utilization(&pods, &[400, 500, 700], 30, 3).unwrap();
    assert_eq!(same.replicas, 3);
}

#[test]
fn cpu_counts_once_a_whole_window_lies_after_readiness() {
    let mut young = pod(0);
    let status = young.status.as_mut().unwrap();
    status.start_time = Some(serde_json::from_value(json!("1970-01-01T02:45:00Z")).unwrap());
    let ready = &mut status.conditions.as_mut().unwrap()[0];
    ready.last_transition_time =
        Some(serde_json::from_value(json!("1970-01-01T02:46:00Z")).unwrap());
    let sample =
        |second| Sample { at: Timestamp::from_second(second).unwrap(), window: 60, value: 1 };
    assert!(
        is_unready(&young, &sample(10_000), Startup::default(), now()),
        "ready since 9,960, measured from 9,940 on"
    );
    assert!(!is_unready(&young, &sample(10_020), Startup::default(), now()));
    // It has been ready before: its use counts although it is not ready now.
    let mut old = pod(0);
    old.status.as_mut().unwrap().conditions.as_mut().unwrap()[0].status = "False".into();
    assert!(
        is_unready(&old, &sample(10_000), Startup::default(), now()),
        "turned unready within 30 s of its start"
    );
    let turned = serde_json::from_value(json!("1970-01-01T00:10:00Z")).unwrap();
    old.status.as_mut().unwrap().conditions.as_mut().unwrap()[0].last_transition_time =
        Some(turned);
    assert!(!is_unready(&old, &sample(10_000), Startup::default(), now()));
}

#[test]
fn pods_without_figures_are_taken_for_what_changes_least() {
    let pods: Vec<Pod> = (0..4).map(pod).collect();
    let down = utilization(&pods, &[100, 300, 250], 50, 4).unwrap();
    assert_eq!(down, Proposal { replicas: 4, utilization: Some(21), usage: 216 });
    let up = utilization(&pods[..2], &[1000], 50, 2).unwrap();
    assert_eq!(up, Proposal { replicas: 2, utilization: Some(100), usage: 1000 });
}

#[test]
fn errors_have_upstreams_texts() {
    let pods = [pod(0)];
    assert_eq!(
        utilization(&[], &[], 50, 1).unwrap_err().to_string(),
        "no pods returned by selector while calculating replica count"
    );
    assert_eq!(
        utilization(&pods, &[], 50, 1).unwrap_err().to_string(),
        "did not receive metrics for targeted pods (pods might be unready)"
    );
    assert_eq!(
        requests(&pods, None, "memory").unwrap_err().to_string(),
        "missing request for memory in container c1 of Pod p0"
    );
    assert_eq!(
        requests(&pods, Some("c3"), "cpu").unwrap_err().to_string(),
        "container c3 not found in Pod p0"
    );
    assert_eq!(requests(&pods, Some("c2"), "cpu").unwrap()["p0"], 500);
    let mut whole = pod(0);
    whole.spec.as_mut().unwrap().resources =
        serde_json::from_value(json!({"requests": {"cpu": "3"}})).unwrap();
    assert_eq!(requests(&[whole], None, "cpu").unwrap()["p0"], 3000);
}

#[test]
fn values_are_for_all_pods_or_a_part_for_each() {
    let pods: Vec<Pod> = (0..3).map(pod).collect();
    assert_eq!(of_value(8600, 4400, 3, &pods, NEAR).unwrap().replicas, 6);
    assert_eq!(of_value(4400, 4400, 3, &pods, NEAR).unwrap().replicas, 3);
    assert_eq!(of_value(2, 1, 0, &[], NEAR).unwrap().replicas, 2);
    assert_eq!(
        of_value_per_pod(8600, 2150, 3, NEAR),
        Proposal { replicas: 4, utilization: None, usage: 2867 }
    );
    assert_eq!(of_value_per_pod(2000, 1000, 0, NEAR).replicas, 2);
    assert_eq!(
        of_value_per_pod(0, 1000, 0, NEAR),
        Proposal { replicas: 0, utilization: None, usage: 0 }
    );
}
