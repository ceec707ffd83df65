//! Nominations and failed bindings beside upstream's nominator and failure handler.

use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::listers::NoObjects;

/// A cluster with the node `a` of one CPU.
struct World {
    state: State,
    now: Instant,
}

impl World {
    fn new(profile: &Value) -> Self {
        let document = json!({"apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration", "profiles": [profile]});
        let configuration = crate::config::parse(document.to_string().as_bytes()).unwrap();
        let mut world =
            Self { state: State::new(&configuration, Arc::default()), now: clock::now() };
        world.node("a");
        world
    }

    fn node(&mut self, name: &str) {
        let node = json!({"metadata": {"name": name},
            "status": {"allocatable": {"cpu": "1", "memory": "8Gi", "pods": "110"}}});
        self.state.set_node(&serde_json::from_value(node).unwrap(), self.now);
    }

    /// Adds or changes a pod; `more` are fields of the spec.
    fn pod(&mut self, name: &str, nominated: &str, more: &Value) {
        let mut pod = json!({"metadata": {"name": name, "namespace": "n", "uid": name},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "600m"}}}]},
            "status": {"nominatedNodeName": nominated}});
        for (key, value) in more.as_object().unwrap() {
            pod["spec"][key] = value.clone();
        }
        let pod = PodInfo::new(&serde_json::from_value(pod).unwrap());
        self.state.set_pod(pod, false, self.now);
    }

    fn cycle(&mut self) -> CycleResult {
        match self.state.next_cycle(&NoObjects, self.now, &|_| 0) {
            NextCycle::Done(result) => result,
            NextCycle::Detached(_) => panic!("no pod has claims"),
        }
    }

    fn unschedulable(&mut self) -> Unschedulable {
        match self.cycle() {
            CycleResult::Unschedulable(_, _, why) => why,
            other => panic!("{other:?}"),
        }
    }

    fn nominated(&self, name: &str) -> Option<&str> {
        let key = ("n".to_owned(), name.to_owned());
        self.state.nominated.get(&key).map(|pod| pod.nominated.as_str())
    }
}

const FULL: &str = r#"{"nodeName": "a", "priority": 5}"#;

fn full() -> Value {
    serde_json::from_str(FULL).unwrap()
}

/// Case `UpdateNominatedPod` of `TestPriorityQueue_UpdateNominatedPodForNode`.
#[tokio::test(start_paused = true)]
async fn a_nomination_that_is_not_written_yet_outlives_other_changes_of_the_pod() {
    let mut world = World::new(&json!({}));
    world.pod("victim", "", &full());
    world.pod("p", "", &json!({"priority": 9}));
    let why = world.unschedulable();
    assert_eq!(why.nomination_change(), NominationChange::Set("a"));
    assert_eq!(world.nominated("p"), Some("a"));
    world.pod("p", "", &json!({"priority": 9}));
    assert_eq!(world.nominated("p"), Some("a"), "the nomination is not written yet");
    world.pod("p", "a", &json!({"priority": 9}));
    assert_eq!(world.nominated("p"), Some("a"));
    world.pod("p", "", &json!({"priority": 9}));
    assert_eq!(world.nominated("p"), None, "the nomination was removed");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_preemption_does_not_help_loses_its_nomination() {
    let mut world = World::new(&json!({}));
    world.pod("other", "", &full());
    world.pod("p", "a", &json!({}));
    assert_eq!(world.nominated("p"), Some("a"));
    let why = world.unschedulable();
    assert_eq!(why.nomination_change(), NominationChange::Clear);
    assert_eq!(world.nominated("p"), None);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_may_not_preempt_keeps_its_nomination() {
    let mut world = World::new(&json!({}));
    world.pod("other", "", &full());
    world.pod("p", "a", &json!({"preemptionPolicy": "Never"}));
    assert_eq!(world.unschedulable().nomination_change(), NominationChange::Keep);
    assert_eq!(world.nominated("p"), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn without_post_filter_plugins_and_without_nodes_the_nomination_is_cleared() {
    let disabled = json!({"plugins": {"postFilter": {"disabled": [{"name": "*"}]}}});
    let mut world = World::new(&disabled);
    world.pod("other", "", &full());
    world.pod("p", "a", &json!({}));
    assert_eq!(world.unschedulable().nomination_change(), NominationChange::Clear);

    let mut world = World::new(&json!({}));
    world.state.remove_node("a");
    world.pod("p", "a", &json!({}));
    let why = world.unschedulable();
    assert_eq!(why.message, "no nodes available to schedule pods");
    assert_eq!(why.nomination_change(), NominationChange::Clear);
    assert_eq!(world.nominated("p"), None);
}

/// The answer to a binding may be lost although the pod is bound (`handleSchedulingFailure`).
#[tokio::test(start_paused = true)]
async fn a_pod_that_is_bound_in_spite_of_an_error_is_not_tried_again() {
    let mut world = World::new(&json!({}));
    world.pod("p", "", &json!({}));
    let CycleResult::Bind(_, pod, node, _) = world.cycle() else { panic!("it fits") };
    world.pod("p", "", &json!({"nodeName": node}));
    world.state.forget(&pod, world.now);
    assert_eq!(world.state.nodes.find("a").unwrap().pods.len(), 1);
    assert!(matches!(world.cycle(), CycleResult::Idle(None)));

    world.node("b");
    world.pod("q", "", &json!({}));
    let CycleResult::Bind(_, pod, node, _) = world.cycle() else { panic!("it fits") };
    world.state.forget(&pod, world.now);
    assert!(world.state.nodes.find(&node).unwrap().pods.is_empty());
    world.now += Duration::from_secs(1);
    assert!(matches!(world.cycle(), CycleResult::Bind(..)));
}
