//! Preemption with extenders, beside upstream's `extender_test.go` and `callExtenders`.

use serde_json::json;

use super::super::protocol::{MetaVictims, preemption_answer};
use super::*;

/// A cluster in which the pod fits neither node, with a victim on each.
fn full(list: Value, answers: impl Fn(&str, &Value) -> Answer + 'static) -> World {
    let mut world = World::new(list, &["a", "b"], answers);
    world.assign("low", "a", 1);
    world.assign("mid", "b", 5);
    world
}

fn victim(outcome: &PostFilterOutcome) -> Option<(&str, Vec<&str>)> {
    let nomination = outcome.nomination.as_ref()?;
    let victims = nomination.victims.iter().map(|victim| victim.name.as_str()).collect();
    Some((&nomination.node, victims))
}

/// `TestConvertToMetaVictims` and `TestConvertToVictims`.
#[test]
fn an_extender_chooses_among_the_candidates_of_a_preemption() {
    for capable in [true, false] {
        let list =
            json!([{"urlPrefix": "http://e", "preemptVerb": "v", "nodeCacheCapable": capable}]);
        let world = full(list, |_, _| {
            Ok(json!({"NodeNameToMetaVictims":
                {"b": {"Pods": [{"UID": "uid-mid"}], "NumPDBViolations": 0}}}))
        });
        let (_, outcome) = world.preempt();
        assert_eq!(victim(&outcome), Some(("b", vec!["mid"])), "without it, low leaves");
        let body = &world.calls("e/v")[0];
        assert_eq!(body["Pod"], pod("p", 100));
        let (pods, other) = match capable {
            true => ("NodeNameToMetaVictims", "NodeNameToVictims"),
            false => ("NodeNameToVictims", "NodeNameToMetaVictims"),
        };
        assert_eq!(body[other], Value::Null);
        let low = if capable { json!({"UID": "uid-low"}) } else { pod("low", 1) };
        let mid = if capable { json!({"UID": "uid-mid"}) } else { pod("mid", 5) };
        assert_eq!(
            body[pods],
            json!({"a": {"Pods": [low], "NumPDBViolations": 0},
                "b": {"Pods": [mid], "NumPDBViolations": 0}})
        );
    }
}

#[test]
fn failures_of_preemption_are_errors_unless_the_extender_may_be_ignored() {
    let run = |ignorable: bool, answer: Answer| {
        let list = json!([{"urlPrefix": "http://e", "preemptVerb": "v", "ignorable": ignorable}]);
        let (_, outcome) = full(list, move |_, _| answer.clone()).preempt();
        let node = victim(&outcome).map(|(node, _)| node.to_owned());
        (node, outcome.reasons.join(", "), outcome.failed, outcome.clears_nomination)
    };
    let failed = |text: &str| (None, format!("preemption: {text}"), true, false);
    assert_eq!(run(false, Err(500)), failed("failed v with extender at URL http://e/v, code 500"));
    assert_eq!(run(true, Err(500)).0.as_deref(), Some("a"));
    let victims = |node: &str, pods: Value| Ok(json!({"NodeNameToMetaVictims": {node: pods}}));
    let gone = json!({"Pods": [{"UID": "x"}]});
    assert_eq!(
        run(false, victims("a", gone)),
        failed(
            "extender: http://e claims to preempt pod (UID: &{x}) on node: a, but the pod is not \
             found on that node"
        )
    );
    assert_eq!(
        run(false, victims("x", json!({"Pods": []}))),
        failed("nodeinfo not found for node name \"x\"")
    );
    assert_eq!(
        run(false, victims("a", json!({"Pods": []}))),
        failed("expected at least one victim pod on node \"a\"")
    );
    let no_candidate =
        (None, "preemption: no candidate node for preemption".to_owned(), false, false);
    assert_eq!(run(true, victims("a", json!(null))), no_candidate);
    assert_eq!(run(false, Ok(json!({}))), no_candidate);
}

#[test]
fn extenders_are_not_asked_when_preemption_helps_nowhere() {
    let list = json!([{"urlPrefix": "http://e", "preemptVerb": "v"}]);
    let mut world = World::new(list, &["a"], no_answer);
    world.assign("high", "a", 200);
    let (_, outcome) = world.preempt();
    assert!(outcome.reasons[0].contains("No preemption victims found"), "{outcome:?}");
}

#[test]
fn nodes_that_an_extender_rejects_for_good_are_no_candidates() {
    let list = json!([{"urlPrefix": "http://e", "filterVerb": "f", "nodeCacheCapable": true}]);
    let mut world = World::new(list, &["a", "b", "c"], |_, _| {
        Ok(json!({"NodeNames": [], "FailedNodes": {"b": "later"},
            "FailedAndUnresolvableNodes": {"c": "never"}}))
    });
    world.assign("low", "a", 1);
    let (fit, outcome) = world.preempt();
    assert_eq!(fit.message(), "0/3 nodes are available: 1 Insufficient cpu, 1 later, 1 never.");
    assert_eq!(victim(&outcome), Some(("a", vec!["low"])));
}

#[test]
fn meta_victims_may_be_null() {
    let all = extenders(json!([{"urlPrefix": "http://e", "preemptVerb": "v"}]));
    let answer = br#"{"nodenametometavictims": {"a": null, "b": {"pods": null}}} rest"#;
    let read = preemption_answer(&all.0[0], answer).unwrap();
    let none = |node: &str| MetaVictims { node: node.into(), uids: Vec::new(), violations: 0 };
    assert_eq!(read, [none("a"), none("b")]);
}
