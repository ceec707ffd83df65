//! Bounds, stabilization and rates, with upstream's figures.

use serde_json::json;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(100_000 + second).unwrap()
}

fn spec(behavior: serde_json::Value) -> HorizontalPodAutoscalerSpec {
    serde_json::from_value(json!({"maxReplicas": 20,
        "scaleTargetRef": {"kind": "Deployment", "name": "d"}, "behavior": behavior}))
    .unwrap()
}

#[test]
fn without_rules_it_at_most_doubles_or_goes_to_four() {
    let spec = spec(json!(null));
    let mut history = History::default();
    assert_eq!(history.decide(&spec, 1, 10, 1, at(0)).replicas, 4);
    let doubled = history.decide(&spec, 5, 18, 1, at(1));
    assert_eq!(
        (doubled.replicas, doubled.limited.0, doubled.limited.1),
        (10, true, "ScaleUpLimit")
    );
    let bound = history.decide(&spec, 15, 30, 1, at(2));
    assert_eq!((bound.replicas, bound.limited.1), (20, "TooManyReplicas"));
}

#[test]
fn the_highest_recommendation_of_five_minutes_holds() {
    let spec = spec(json!(null));
    let mut history = History::default();
    history.begin(5, at(0));
    let held = history.decide(&spec, 5, 2, 1, at(10));
    assert_eq!((held.replicas, held.able.1), (5, "ScaleDownStabilized"));
    let free = history.decide(&spec, 5, 2, 3, at(301));
    assert_eq!(
        (free.replicas, free.able.1, free.limited.1),
        (3, "ReadyForNewScale", "TooFewReplicas")
    );
}

#[test]
fn policies_bound_the_rate() {
    let spec = spec(json!({
        "scaleUp": {"stabilizationWindowSeconds": 0, "selectPolicy": "Max",
            "policies": [{"type": "Pods", "value": 2, "periodSeconds": 60},
            {"type": "Percent", "value": 50, "periodSeconds": 60}]},
        "scaleDown": {"stabilizationWindowSeconds": 0, "selectPolicy": "Min",
            "policies": [{"type": "Pods", "value": 4, "periodSeconds": 60},
            {"type": "Percent", "value": 10, "periodSeconds": 60}]},
    }));
    let mut history = History::default();
    assert_eq!(history.decide(&spec, 10, 20, 1, at(0)).replicas, 15);
    history.scaled(&spec, 10, 15, at(0));
    let again = history.decide(&spec, 15, 20, 1, at(10));
    assert_eq!((again.replicas, again.limited.1), (15, "ScaleUpLimit"));
    assert_eq!(history.decide(&spec, 15, 20, 1, at(61)).replicas, 20);
    let mut history = History::default();
    let down = history.decide(&spec, 20, 1, 1, at(0));
    assert_eq!((down.replicas, down.limited.1), (18, "ScaleDownLimit"));
}

#[test]
fn a_disabled_direction_stays() {
    let spec = spec(json!({
        "scaleUp": {"stabilizationWindowSeconds": 0, "selectPolicy": "Max",
            "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]},
        "scaleDown": {"stabilizationWindowSeconds": 0, "selectPolicy": "Disabled",
            "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]},
    }));
    let mut history = History::default();
    assert_eq!(history.decide(&spec, 6, 1, 1, at(0)).replicas, 6);
    assert_eq!(history.decide(&spec, 6, 9, 1, at(1)).replicas, 9);
}
