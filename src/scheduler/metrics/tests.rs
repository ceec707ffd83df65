//! The families against upstream's, and what moves them.

use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1::Node;
use base::metrics::Family;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::config::Configuration;
use crate::devices::store::Devices;
use crate::event::label;
use crate::listers::NoObjects;
use crate::pod_info::PodInfo;
use crate::state::{CycleResult, NextCycle, State};

/// All families of kube-scheduler 1.37 that begin with `scheduler_`, as its registry describes
/// them: HELP and TYPE, then the names of the labels and the bounds of the buckets.
const UPSTREAM: &str = include_str!("../testdata/metrics.txt");

/// Describes the family in the form of [`UPSTREAM`].
fn described(family: &Family, labels: usize) -> String {
    family.add(&vec!["described"; labels], 0.0);
    let mut page = String::new();
    family.render(&mut page);
    let head: Vec<&str> = page.lines().take_while(|line| line.starts_with('#')).collect();
    let name = head[0].split(' ').nth(2).unwrap();
    let mut series = page
        .lines()
        .filter(|line| line.starts_with(name) && (labels == 0 || line.contains("\"described\"")));
    let first = series.clone().next().unwrap();
    let pairs = first.split_once('{').map_or("", |(_, rest)| rest.split_once('}').unwrap().0);
    let names: Vec<&str> = pairs
        .split(',')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, _)| name)
        .filter(|name| *name != "le")
        .collect();
    let bound = |line: &str| {
        let (_, rest) = line.strip_prefix(name)?.strip_prefix("_bucket")?.rsplit_once("le=\"")?;
        Some(rest.split_once('"')?.0.to_owned()).filter(|bound| bound != "+Inf")
    };
    let bounds: Vec<String> = series.by_ref().filter_map(bound).collect();
    let line = format!("{name}{{{}}} {}", names.join(","), bounds.join(" "));
    format!("{}\n{}\n", head.join("\n"), line.trim_end())
}

/// The families that upstream has and this scheduler lacks are in the documentation, with reasons.
#[test]
fn families_are_those_of_kube_scheduler_or_documented_as_missing() {
    let docs = include_str!("../../../docs/operating/metrics.md");
    let upstream: Vec<&str> = UPSTREAM.lines().collect();
    let snapshot = MetricsSnapshot::new();
    let mut names = Vec::new();
    for family in upstream.chunks(3) {
        let [_, _, series] = family else { panic!("{family:?}") };
        let (name, rest) = series.split_once('{').unwrap();
        names.push(name);
        let (labels, _) = rest.split_once('}').unwrap();
        let labels = labels.split(',').filter(|label| !label.is_empty()).count();
        match snapshot
            .families()
            .iter()
            .find(|ours| format!("{ours:?}") == format!("Family({name})"))
        {
            Some(ours) => assert_eq!(described(ours, labels), family.join("\n") + "\n"),
            None => assert!(docs.contains(&format!("`{name}`")), "{name} is not documented"),
        }
    }
    for family in snapshot.families() {
        let is_upstream =
            names.iter().any(|name| format!("Family({name})") == format!("{family:?}"));
        assert!(is_upstream, "{family:?}");
    }
}

#[test]
fn one_of_ten_cycles_is_sampled() {
    let sampled = (0..10_000).filter(|_| is_sampled()).count();
    assert!((800..1200).contains(&sampled), "{sampled}");
}

/// A scheduler with a profile of its own, so that no other test adds to its series.
struct World {
    state: State,
    profile: &'static str,
    now: Instant,
}

impl World {
    fn new(profile: &'static str) -> Self {
        let document = json!({"apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration", "profiles": [{"schedulerName": profile}]});
        let configuration: Configuration =
            crate::config::parse(document.to_string().as_bytes()).unwrap();
        let state = State::new(&configuration, Arc::<Devices>::default());
        Self { state, profile, now: clock::now() }
    }

    fn node(&mut self, name: &str, cpu: &str) -> Option<&'static str> {
        let node = json!({"metadata": {"name": name},
            "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"}}});
        let node: Node = serde_json::from_value(node).unwrap();
        self.state.set_node(&node, self.now)
    }

    fn pod(&mut self, name: &str, cpu: &str, spec: &Value) -> &'static str {
        let mut pod = json!({"metadata": {"name": name, "namespace": "n", "uid": name},
            "spec": {"schedulerName": self.profile, "containers": [{"name": "c",
                "resources": {"requests": {"cpu": cpu}}}]}});
        for (key, value) in spec.as_object().unwrap() {
            pod["spec"][key] = value.clone();
        }
        let pod = PodInfo::new(&serde_json::from_value(pod).unwrap());
        self.state.set_pod(pod, false, self.now)
    }

    fn cycle(&mut self) -> CycleResult {
        match self.state.next_cycle(&NoObjects, self.now, &|_| 0) {
            NextCycle::Done(result) => result,
            NextCycle::Detached(_) => panic!("no pod has claims"),
        }
    }

    fn snapshot(&self) -> MetricsSnapshot {
        let snapshot = MetricsSnapshot::new();
        self.state.report(&snapshot);
        snapshot
    }

    fn evaluations(&self, point: &str, plugin: &str) -> f64 {
        self.snapshot().evaluations.read(&[point, plugin, self.profile])
    }

    fn points(&self, point: &str, status: &str) -> f64 {
        EXTENSION_POINTS.read(&[point, self.profile, status])
    }
}

#[tokio::test(start_paused = true)]
async fn results_of_cycles_and_the_queue_move_the_metrics() {
    let mut world = World::new("metrics-cycles");
    let profile = world.profile;
    assert_eq!(world.node("a", "1"), Some("NodeAdd"));
    assert_eq!(world.node("b", "1"), Some("NodeAdd"));
    assert_eq!(world.node("b", "1"), None);
    assert_eq!(world.pod("fits", "500m", &json!({})), label::UNSCHEDULED_POD_ADD);
    let algorithm = ALGORITHM.read(&[]);

    let CycleResult::Bind(attempt, ..) = world.cycle() else { panic!("it fits") };
    assert!(ALGORITHM.read(&[]) > algorithm);
    tokio::time::advance(Duration::from_secs(2)).await;
    attempt.scheduled(profile);
    assert_eq!(ATTEMPTS.read(&[profile, "scheduled"]), 1.0);
    assert_eq!(ATTEMPT_DURATIONS.read(&[profile, "scheduled"]), 1.0);
    assert_eq!((POD_ATTEMPTS.read(&[]), SLI.read(&["1"])), (1.0, 1.0));
    assert_eq!(SCHEDULED_AFTER_FLUSH.read(&[]), 0.0);
    let success = ["PreEnqueue", "PreFilter", "Filter", "PreScore", "Score", "Reserve"];
    for point in success {
        assert_eq!(world.points(point, "Success"), 1.0, "{point}");
    }
    assert_eq!(world.points("PostFilter", "Unschedulable"), 0.0);

    world.pod("large", "4", &json!({}));
    world.pod("gated", "1m", &json!({"schedulingGates": [{"name": "g"}]}));
    let preemptions = PREEMPTION_ATTEMPTS.read(&[]);
    let CycleResult::Unschedulable(attempt, ..) = world.cycle() else { panic!("it is too large") };
    attempt.unschedulable(profile);
    assert!(PREEMPTION_ATTEMPTS.read(&[]) > preemptions);
    assert_eq!(ATTEMPTS.read(&[profile, "unschedulable"]), 1.0);
    assert_eq!(world.points("Filter", "Success"), 2.0, "that no node fits is no error");
    assert_eq!(world.points("PostFilter", "Unschedulable"), 1.0);
    assert_eq!(world.points("Score", "Success"), 1.0);
    let at = world.snapshot();
    assert_eq!(at.unschedulable_pods.read(&["NodeResourcesFit", profile]), 1.0);
    assert_eq!(at.unschedulable_pods.read(&["SchedulingGates", profile]), 1.0);
    for (queue, pods) in [("active", 0.0), ("backoff", 0.0), ("unschedulable", 1.0), ("gated", 1.0)]
    {
        assert_eq!(at.pending_pods.read(&[queue]), pods, "{queue}");
    }
    for (what, size) in [("nodes", 2.0), ("pods", 1.0), ("assumed_pods", 1.0)] {
        assert_eq!(at.cache_size.read(&[what]), size, "{what}");
    }
    assert_eq!(world.evaluations("PreFilter", "NodeResourcesFit"), 2.0);
    assert_eq!(world.evaluations("Filter", "NodeResourcesFit"), 4.0);
    assert_eq!(world.evaluations("PreScore", "NodeResourcesFit"), 1.0);
    assert_eq!(world.evaluations("Score", "NodeResourcesFit"), 2.0);
    assert_eq!(world.evaluations("PreScore", "ImageLocality"), 0.0, "it prepares nothing");

    // The update of a node moves the pod to the back-off.
    let (moved, complete) =
        (["NodeUpdateNodeAllocatable", "backoff"], ["BackoffComplete", "active"]);
    let before = (INCOMING_PODS.read(&moved), INCOMING_PODS.read(&complete));
    assert_eq!(world.node("a", "8"), Some("NodeUpdateNodeAllocatable"));
    assert_eq!(INCOMING_PODS.read(&moved), before.0 + 1.0);
    world.now += Duration::from_secs(1);
    let CycleResult::Bind(attempt, ..) = world.cycle() else { panic!("it fits now") };
    assert!(INCOMING_PODS.read(&complete) > before.1);
    attempt.scheduled(profile);
    assert_eq!((POD_ATTEMPTS.read(&[]), SLI.read(&["2"])), (2.0, 1.0));
    attempt.failed(profile);
    assert_eq!(ATTEMPTS.read(&[profile, "error"]), 1.0);
    Attempt { number: 15, after_flush: true, ..attempt }.scheduled(profile);
    assert_eq!((SLI.read(&["15+"]), SCHEDULED_AFTER_FLUSH.read(&[])), (1.0, 1.0));

    let at = world.snapshot();
    assert_eq!(at.unschedulable_pods.read(&["NodeResourcesFit", profile]), 0.0);
    assert_eq!(at.pending_pods.read(&["unschedulable"]), 0.0);
}

#[tokio::test(start_paused = true)]
async fn plugins_do_not_run_on_nodes_that_an_earlier_one_rejects() {
    let mut world = World::new("metrics-filters");
    for name in ["a", "b", "c"] {
        world.node(name, "1");
    }
    let cordoned = json!({"metadata": {"name": "c"}, "spec": {"unschedulable": true},
        "status": {"allocatable": {"cpu": "1", "memory": "8Gi", "pods": "110"}}});
    world.state.set_node(&serde_json::from_value(cordoned).unwrap(), world.now);
    world.pod("p", "1m", &json!({}));
    assert!(matches!(world.cycle(), CycleResult::Bind(..)));
    assert_eq!(world.evaluations("Filter", "NodeUnschedulable"), 3.0);
    assert_eq!(world.evaluations("Filter", "NodeResourcesFit"), 2.0);
}

#[tokio::test(start_paused = true)]
async fn times_of_plugins_are_taken_in_sampled_cycles() {
    let mut world = World::new("metrics-sampled");
    for name in ["a", "b"] {
        world.node(name, "1000");
    }
    for at in 0..200 {
        world.pod(&format!("p{at}"), "1m", &json!({}));
        assert!(matches!(world.cycle(), CycleResult::Bind(..)));
    }
    for (point, plugin, status) in [
        ("PreFilter", "NodeResourcesFit", "Success"),
        ("PreFilter", "NodePorts", "Skip"),
        ("Filter", "NodeResourcesFit", "Success"),
        ("PreScore", "NodeResourcesFit", "Success"),
        ("Score", "NodeResourcesFit", "Success"),
    ] {
        assert!(PLUGINS.read(&[point, plugin, status]) > 0.0, "{point} {plugin} {status}");
    }
    assert_eq!(PLUGINS.read(&["PreFilter", "ImageLocality", "Skip"]), 0.0, "upstream's has none");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_flushed_is_scheduled_after_a_flush() {
    let mut world = World::new("metrics-flush");
    world.node("a", "1");
    world.pod("p", "4", &json!({}));
    let CycleResult::Unschedulable(first, ..) = world.cycle() else { panic!("it is too large") };
    assert!(!first.after_flush);
    let flushed = ["UnschedulableTimeout", "active"];
    let before = INCOMING_PODS.read(&flushed);
    world.now += Duration::from_secs(300);
    let CycleResult::Unschedulable(second, ..) = world.cycle() else { panic!("it is too large") };
    assert!(INCOMING_PODS.read(&flushed) > before);
    assert!(second.after_flush);
    assert_eq!((second.number, second.queued), (2, first.queued));
}

#[test]
fn durations_of_events_have_their_name() {
    event_handled("metrics-test", clock::now());
    assert_eq!(EVENT_HANDLING.read(&["metrics-test"]), 1.0);
}

#[test]
fn errors_of_volumes_are_those_of_volume_binding() {
    volume_error("NodeResourcesFit", "metrics-test");
    assert_eq!(VOLUME_ERRORS.read(&["metrics-test"]), 0.0);
    volume_error("VolumeBinding", "metrics-test");
    assert_eq!(VOLUME_ERRORS.read(&["metrics-test"]), 1.0);
}

#[test]
fn changes_of_a_node_for_extenders_have_upstreams_names() {
    let node = |annotation: &str, status: &str, heartbeat: &str| -> Node {
        let condition = json!({"type": "Ready", "status": status, "reason": "r", "message": "m",
            "lastHeartbeatTime": heartbeat});
        let node = json!({"metadata": {"name": "a", "annotations": {"a": annotation}},
            "status": {"conditions": [condition]}});
        serde_json::from_value(node).unwrap()
    };
    let old = node("1", "True", "2026-01-01T00:00:00Z");
    let changed = |new: Node| crate::event::node_event_for_extenders(&old, &new);
    assert_eq!(changed(node("1", "True", "2026-01-01T00:00:10Z")), None);
    assert_eq!(
        changed(node("2", "True", "2026-01-01T00:00:00Z")),
        Some("NodeUpdateNodeAnnotation")
    );
    let failed = node("2", "False", "2026-01-01T00:00:00Z");
    assert_eq!(changed(failed), Some("NodeUpdateNodeCondition"));
}

#[tokio::test(start_paused = true)]
async fn changes_of_a_pod_have_upstreams_names() {
    let mut world = World::new("metrics-names");
    world.node("a", "1");
    world.pod("p", "4", &json!({}));
    assert_eq!(world.pod("p", "4", &json!({})), label::UNSCHEDULED_POD_UPDATE);
    assert_eq!(world.pod("q", "1m", &json!({"nodeName": "a"})), label::ASSIGNED_POD_ADD);
    assert_eq!(world.pod("q", "1m", &json!({"nodeName": "a"})), label::ASSIGNED_POD_UPDATE);
    let mut remove = |name: &str| world.state.remove_pod(&("n".into(), name.into()), world.now);
    assert_eq!(remove("q"), label::ASSIGNED_POD_DELETE);
    assert_eq!(remove("p"), label::UNSCHEDULED_POD_DELETE);
    let pod = |cpu: &str, spec: Value| {
        let pod = json!({"metadata": {"labels": spec["labels"]}, "spec": {
            "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
            "schedulingGates": spec["gates"], "tolerations": spec["tolerations"]}});
        PodInfo::new(&serde_json::from_value(pod).unwrap())
    };
    let old = pod("2", json!({}));
    for (new, event) in [
        (pod("1", json!({})), "TargetPodUpdatePodScaleDown"),
        (pod("3", json!({})), "TargetPodUpdatePodScaleUp"),
        (pod("2", json!({"labels": {"a": "b"}})), "TargetPodUpdatePodLabel"),
        (pod("2", json!({"tolerations": [{"key": "k"}]})), "TargetPodUpdatePodToleration"),
        (pod("2", json!({})), "TargetPodUpdate"),
    ] {
        assert_eq!(crate::event::target_pod_event(&old, &new), event);
    }
    let gated = pod("2", json!({"gates": [{"name": "g"}]}));
    let event = "TargetPodUpdatePodSchedulingGatesEliminated";
    assert_eq!(crate::event::target_pod_event(&gated, &old), event);
}

/// A page is neither empty nor has it the values of another one that is rendered meanwhile.
#[tokio::test(start_paused = true)]
async fn pages_that_are_rendered_at_the_same_time_have_the_same_gauges() {
    let mut world = World::new("metrics-pages");
    for name in ["a", "b", "c"] {
        world.pod(name, "1", &json!({"schedulingGates": [{"name": "g"}]}));
    }
    let state = Mutex::new(world.state);
    report_with(move |snapshot| state.lock().report(snapshot));
    let gauges = || {
        let mut page = String::new();
        render(&mut page);
        let of_page = |line: &&str| {
            line.starts_with("scheduler_pending_pods{")
                || line.starts_with("scheduler_unschedulable_pods{")
        };
        page.lines().filter(of_page).map(str::to_owned).collect::<Vec<_>>()
    };
    let want = [
        "scheduler_pending_pods{queue=\"active\"} 0",
        "scheduler_pending_pods{queue=\"backoff\"} 0",
        "scheduler_pending_pods{queue=\"gated\"} 3",
        "scheduler_pending_pods{queue=\"unschedulable\"} 0",
        "scheduler_unschedulable_pods{plugin=\"SchedulingGates\",profile=\"metrics-pages\"} 3",
    ];
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..500).for_each(|_| assert_eq!(gauges(), want)));
        }
    });
}
