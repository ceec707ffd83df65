//! The cases of upstream's `cluster_feeder_test.go`.

use super::*;
use crate::target::ScaleError;
use resource_metrics::Usage;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;

/// 2017-04-18 17:35:05.
const NOW: i64 = 1_492_536_905;

/// The scale of every kind, and the owner that the target has.
struct FakeControllers {
    scale: Result<Value, ScaleError>,
    owner: Option<Value>,
}

impl Controllers for FakeControllers {
    fn is_well_known(&self, kind: &str) -> bool {
        kind == "Deployment"
    }

    fn get(&self, key: &ControllerKey) -> Option<Arc<Object>> {
        let object = json!({"kind": "Deployment", "metadata": {"name": key.name,
                "ownerReferences": self.owner.iter().collect::<Vec<_>>()},
            "spec": {"selector": {"matchLabels": {"app": "test"}}}});
        (key.name != "missing").then(|| Arc::new(Object::from_value(object).unwrap()))
    }

    async fn scale(&self, _: &ControllerKey) -> Result<Value, ScaleError> {
        self.scale.clone()
    }
}

fn autoscaler(spec: Value) -> VerticalPodAutoscaler {
    let metadata = json!({"namespace": "n", "name": "v"});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
}

fn targeting(kind: &str, name: &str) -> VerticalPodAutoscaler {
    autoscaler(json!({"targetRef": {"apiVersion": "apps/v1", "kind": kind, "name": name}}))
}

#[tokio::test]
async fn the_target_must_exist_and_be_top_most() {
    let owner = |kind: &str, name: &str| {
        Some(json!({"apiVersion": "foo/v1", "kind": kind, "name": name, "uid": "1",
            "controller": true}))
    };
    let scalable = || Ok(json!({"status": {"selector": "app=test"}}));
    let not_served =
        || Err(ScaleError::NoMatch { kind: "Foo".to_owned(), group: "apps".to_owned() });
    for (object, owner, scale, expected) in [
        (targeting("Deployment", "d"), None, scalable(), None),
        (targeting("Foo", "f"), None, scalable(), None),
        (
            autoscaler(json!({})),
            None,
            scalable(),
            Some(
                "Cannot read targetRef. Reason: targetRef not defined. If this is a v1beta1 \
                 object, switch to v1",
            ),
        ),
        (
            targeting("Deployment", "missing"),
            None,
            scalable(),
            Some("Cannot read targetRef. Reason: Deployment n/missing does not exist"),
        ),
        (
            targeting("Foo", "f"),
            None,
            not_served(),
            Some(
                "Cannot read targetRef. Reason: unhandled targetRef apps/v1 / Foo / f, last \
                 error no matches for kind \"Foo\" in group \"apps\"",
            ),
        ),
        (
            targeting("Deployment", "d"),
            owner("Foo", "f"),
            scalable(),
            Some(
                "The target apps/v1.Deployment/d has a parent controller but it should point to a \
                 topmost well-known or scalable controller",
            ),
        ),
        (
            targeting("Deployment", "d"),
            owner("Deployment", "missing"),
            scalable(),
            Some(
                "Error checking if target apps/v1.Deployment/d is a topmost well-known or \
                 scalable controller: Deployment n/missing does not exist",
            ),
        ),
    ] {
        let (selector, target) = resolve(&FakeControllers { scale, owner }, &object).await;
        match expected {
            None => {
                assert_eq!(target, TargetCondition::Supported);
                assert_eq!(selector.to_string(), "app=test");
            }
            Some(message) => {
                assert_eq!(target, TargetCondition::Unsupported(message.to_owned()));
                assert!(selector.is_nothing());
            }
        }
    }
}

#[test]
fn autoscalers_of_other_recommenders_are_left_alone() {
    for (recommenders, expected) in [
        (json!([]), true),
        (json!([{"name": "default"}]), true),
        (json!([{"name": "other"}]), false),
        (json!([{"name": "other"}, {"name": "default"}]), true),
    ] {
        let object = autoscaler(json!({"recommenders": recommenders}));
        assert_eq!(is_responsible(&object), expected, "{recommenders}");
    }
}

fn pod(labels: Value, phase: &str) -> Object {
    let object = json!({"metadata": {"namespace": "n", "name": "p", "labels": labels},
        "spec": {"nodeName": "node", "containers": [{"name": "a"}, {"name": "b"}],
            "initContainers": [{"name": "init"}]},
        "status": {"phase": phase}});
    let mut object = object;
    object["kind"] = "Pod".into();
    Object::from_value(object).unwrap()
}

#[test]
fn started_pods_of_the_target_are_observed_without_init_containers() {
    let selector = LabelSelector::parse("app=test").unwrap();
    let expected = ObservedPod {
        name: "p".to_owned(),
        node: "node".to_owned(),
        containers: vec!["a".to_owned(), "b".to_owned()],
    };
    for (labels, phase, is_observed) in [
        (json!({"app": "test", "more": "1"}), "Running", true),
        (json!({"app": "test"}), "Succeeded", true),
        (json!({"app": "test"}), "Failed", true),
        (json!({"app": "test"}), "Pending", false),
        (json!({"app": "other"}), "Running", false),
        (json!({}), "Running", false),
    ] {
        let found = observed_pod(&pod(labels, phase), &selector);
        assert_eq!(found, is_observed.then(|| expected.clone()), "{phase}");
    }
    assert_eq!(
        observed_pod(&pod(json!({"app": "test"}), "Running"), &LabelSelector::nothing()),
        None
    );
}

/// Usages by pod.
#[derive(Default)]
struct FakeUsage(HashMap<String, PodUsage>);

impl FakeUsage {
    fn set(&mut self, pod: &str, at: i64, containers: &[(&str, u64, u64)]) {
        let at = at * NANOS + 5;
        let usage = |cpu, memory| Usage { at, window: 15 * NANOS, cpu, memory };
        let containers =
            containers.iter().map(|(name, cpu, memory)| ((*name).to_owned(), usage(*cpu, *memory)));
        let usage = PodUsage { at, window: 15 * NANOS, containers: containers.collect() };
        self.0.insert(pod.to_owned(), usage);
    }
}

impl UsageSource for FakeUsage {
    fn pod(&self, node: &str, pod: &PodKey) -> Option<PodUsage> {
        assert_eq!((node, pod.namespace.as_str()), ("node", "n"));
        self.0.get(&pod.name).cloned()
    }
}

/// One autoscaler with these pods.
fn round(name: &str, spec: Value, pods: &[&str]) -> RoundAutoscaler {
    let pods = pods.iter().map(|name| ObservedPod {
        name: (*name).to_owned(),
        node: "node".to_owned(),
        containers: vec!["a".to_owned(), "b".to_owned()],
    });
    RoundAutoscaler {
        key: ("n".to_owned(), name.to_owned()),
        object: autoscaler(spec),
        selector: LabelSelector::parse("app=test").unwrap(),
        target: TargetCondition::Supported,
        pods: pods.collect(),
    }
}

fn kill(pod: &str, memory: i64) -> OomKill {
    OomKill {
        namespace: "n".to_owned(),
        pod: pod.to_owned(),
        container: "a".to_owned(),
        at: NOW,
        memory,
    }
}

fn samples(state: &State, name: &str) -> Vec<(String, i64)> {
    let observed = &state.autoscalers[&("n".to_owned(), name.to_owned())];
    observed.aggregates().iter().map(|(name, one)| (name.clone(), one.samples)).collect()
}

#[test]
fn each_usage_counts_once_for_its_container() {
    let mut state = State::default();
    let mut usage = FakeUsage::default();
    let all = [round("v", json!({}), &["p", "q"])];
    usage.set("p", NOW, &[("a", 500_000_001, 3 << 20), ("init", 1, 1)]);
    usage.set("other", NOW, &[("a", 1, 1)]);
    observe(&mut state, &all, &[], &usage, NOW);
    observe(&mut state, &all, &[], &usage, NOW + 60);
    assert_eq!(samples(&state, "v"), [("a".to_owned(), 1), ("b".to_owned(), 0)]);
    let key = all[0].key.clone();
    let mut expected = crate::model::aggregate::Aggregate::new(NOW);
    expected.add_cpu(0.501, NOW);
    assert_eq!(state.autoscalers[&key].aggregates()["a"].cpu, expected.cpu, "rounded up");
    usage.set("p", NOW + 60, &[("a", 1, 1), ("b", 1, 1)]);
    usage.set("q", NOW + 60, &[("a", 1, 1)]);
    observe(&mut state, &all, &[], &usage, NOW + 120);
    assert_eq!(samples(&state, "v"), [("a".to_owned(), 3), ("b".to_owned(), 1)]);
}

#[test]
fn kills_count_for_pods_that_were_deleted_since_the_last_round() {
    let mut state = State::default();
    let usage = FakeUsage::default();
    observe(&mut state, &[round("v", json!({}), &["p"])], &[], &usage, NOW);
    let none = [round("v", json!({}), &[])];
    observe(&mut state, &none, &[kill("p", 1000 << 20), kill("unknown", 1)], &usage, NOW + 60);
    let observed = &state.autoscalers[&none[0].key];
    let peak = observed.aggregates()["a"].memory.percentile(1.0);
    assert!((1.0..1.06).contains(&(peak / f64::from(1200 << 20))), "{peak}");
    assert!(!observed.has_pod("p"), "removed after the kill counted");
}

#[test]
fn the_policy_of_a_container_sets_how_memory_is_aggregated() {
    let mut state = State::default();
    let spec = json!({"resourcePolicy": {"containerPolicies": [
        {"containerName": "a", "oomBumpUpRatio": "2", "memoryAggregationIntervalSeconds": 3600}]}});
    let all = [round("v", spec, &["p"])];
    observe(&mut state, &all, &[kill("p", 1000 << 20)], &FakeUsage::default(), NOW);
    let aggregates = state.autoscalers[&all[0].key].aggregates();
    assert_eq!((aggregates["a"].rules.interval, aggregates["b"].rules.interval), (3600, 86_400));
    let peak = aggregates["a"].memory.percentile(1.0);
    assert!((1.0..1.06).contains(&(peak / f64::from(2000 << 20))), "{peak}");
}

#[test]
fn a_deleted_autoscaler_is_forgotten() {
    let mut state = State::default();
    let usage = FakeUsage::default();
    let both = [round("v", json!({}), &["p"]), round("w", json!({}), &["p"])];
    observe(&mut state, &both, &[], &usage, NOW);
    observe(&mut state, &both[..1], &[], &usage, NOW);
    let left: Vec<_> = state.autoscalers.keys().map(|(_, name)| name.as_str()).collect();
    assert_eq!(left, ["v"]);
}
