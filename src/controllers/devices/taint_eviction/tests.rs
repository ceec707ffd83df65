//! The whole controller against an API that stores objects: deletions, events and the status of
//! rules over time.

use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::fake_api::Cluster;

/// The wall-clock time at which each test starts, in seconds.
const START: u64 = 1_800_000_000;

fn start(objects: &[Value]) -> Cluster {
    clock::simulate_wall_clock(Some(Duration::from_secs(START)));
    let cluster = Cluster::new(objects);
    let (client, recorder) = (cluster.client.clone(), cluster.recorder.clone());
    Controller::new(client, recorder, &cluster.informers).run(&cluster.tasks);
    cluster
}

async fn after(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

fn slice(taints: &Value) -> Value {
    let device = |name: &str| json!({"name": name, "taints": taints});
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {"name": "slice", "uid": "s"},
        "spec": {"driver": "d", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
            "nodeName": "n", "devices": [device("dev"), device("dev2"), device("dev3")]}})
}

fn taint() -> Value {
    json!({"key": "a", "effect": "NoExecute", "timeAdded": "2027-01-15T08:00:00Z"})
}

fn rule(effect: &str) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule",
        "metadata": {"name": "rule", "uid": "r", "generation": 1},
        "spec": {"deviceSelector": {"driver": "d"},
            "taint": {"key": "a", "effect": effect, "timeAdded": "2027-01-15T08:00:00Z"}}})
}

fn claim(namespace: &str, pod: &str, seconds: Option<i64>) -> Value {
    let toleration = |seconds| {
        json!([{"key": "a", "operator": "Exists", "effect": "NoExecute",
            "tolerationSeconds": seconds}])
    };
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": namespace, "uid": format!("c-{namespace}")},
        "status": {"allocation": {"devices": {"results": [{"driver": "d", "pool": "p",
            "device": "dev", "request": "r", "tolerations": seconds.map(toleration)}]}},
            "reservedFor": [{"resource": "pods", "name": pod,
                "uid": format!("{namespace}-{pod}")}]}})
}

fn pod(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "uid": format!("{namespace}-{name}")},
        "spec": {"nodeName": "n", "containers": [],
            "resourceClaims": [{"name": "r", "resourceClaimName": "c"}]}, "status": {}})
}

/// `<status> <reason> <message>` of the condition.
fn condition(cluster: &Cluster) -> String {
    let rule = cluster.get("devicetaintrules", "/rule").unwrap();
    let found = &rule["status"]["conditions"][0];
    let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    format!("{} {} {}", text("status"), text("reason"), text("message"))
}

const EVICTED: [&str; 3] = ["GET pods", "PATCH pods/status", "DELETE pods"];
const STATUS: &str = "PATCH devicetaintrules/status";
const MARKED: &str = "DeviceTaintManagerEviction Marking for deletion";
const CANCELLED: &str = "DeviceTaintManagerEviction Cancelling deletion";

#[test]
fn tests_start_at_the_time_of_their_taints() {
    let seconds = i64::try_from(START).unwrap();
    assert_eq!(Timestamp::from_second(seconds).unwrap().to_string(), "2027-01-15T08:00:00Z");
}

#[tokio::test(start_paused = true)]
async fn an_idle_cluster_causes_no_requests() {
    let cluster = start(&[]);
    after(3600).await;
    assert!(cluster.requests().await.is_empty());
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_marked_and_deleted_once() {
    let cluster = start(&[claim("ns", "pod", None), pod("ns", "pod")]);
    assert!(cluster.requests().await.is_empty());
    // The answer of the deletion removes the pod; before that, its condition is written.
    cluster.fail("DELETE pods", 500);
    cluster.put(&slice(&json!([taint()])));
    after(1).await;
    let requests = cluster.requests().await;
    assert_eq!(requests[..3], EVICTED);
    // The condition is there already when the deletion is tried again.
    assert_eq!(requests[3..], ["GET pods", "DELETE pods"]);
    // The second event counts the first one up.
    assert_eq!(cluster.events(), [MARKED]);
    assert_eq!(cluster.get("pods", "ns/pod"), None);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_condition_says_why_the_pod_is_deleted() {
    let mut held = pod("ns", "pod");
    held["metadata"]["finalizers"] = json!(["example.com/held"]);
    let cluster = start(&[slice(&json!([taint()])), claim("ns", "pod", None), held]);
    assert_eq!(cluster.requests().await, EVICTED);
    let pod = cluster.get("pods", "ns/pod").unwrap();
    assert_eq!(
        pod["status"]["conditions"],
        json!([{"type": "DisruptionTarget", "status": "True",
            "reason": "DeletionByDeviceTaintManager",
            "message": "Device Taint manager: deleting due to NoExecute taint",
            "lastTransitionTime": "2027-01-15T08:00:00Z"}])
    );
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_rule_reports_pods_before_and_after_their_eviction() {
    let cluster = start(&[rule("NoExecute")]);
    assert_eq!(cluster.requests().await, [STATUS]);
    assert_eq!(condition(&cluster), "False NotStarted ");
    after(20).await;
    cluster.put(&claim("ns", "pod", Some(3600)));
    cluster.put(&pod("ns", "pod"));
    after(20).await;
    assert_eq!(cluster.requests().await, [STATUS]);
    let pending = "True PodsPendingEviction 1 pod needs to be evicted in 1 namespace.";
    assert_eq!(condition(&cluster), pending);
    after(3500).await;
    assert!(cluster.requests().await.is_empty());
    after(100).await;
    let mut requests = cluster.requests().await;
    assert_eq!(requests.split_off(3), [STATUS]);
    assert_eq!(requests, EVICTED);
    let done = "False Completed 1 pod evicted since starting the controller.";
    assert_eq!(condition(&cluster), done);
    assert_eq!(cluster.events(), [MARKED]);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn namespaces_of_pods_are_counted() {
    let both = |second: &str| {
        let mut other = claim(second, "b", Some(60));
        other["metadata"]["name"] = "d".into();
        let mut b = pod(second, "b");
        b["spec"]["resourceClaims"][0]["resourceClaimName"] = "d".into();
        [claim("a", "a", Some(60)), other, pod("a", "a"), b, rule("NoExecute")]
    };
    let cluster = start(&both("b"));
    after(15).await;
    let pending = "True PodsPendingEviction 2 pods need to be evicted in ";
    assert_eq!(condition(&cluster), format!("{pending}2 different namespaces."));
    after(60).await;
    let done = "False Completed 2 pods evicted since starting the controller.";
    assert_eq!(condition(&cluster), done);
    cluster.stop().await;
    let cluster = start(&both("a"));
    after(15).await;
    assert_eq!(condition(&cluster), format!("{pending}1 namespace."));
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_rule_without_effect_reports_what_it_would_do() {
    let objects = [slice(&json!([])), claim("ns", "pod", None), pod("ns", "pod"), rule("None")];
    let cluster = start(&objects);
    assert_eq!(cluster.requests().await, [STATUS]);
    let text = "False NoEffect 3 published devices selected. 1 allocated device selected. 1 pod \
                would be evicted in 1 namespace if the effect was NoExecute. This information \
                will not be updated again. Recreate the DeviceTaintRule to trigger an update.";
    assert_eq!(condition(&cluster), text);
    // Its effect changes: the pod is evicted at once, and the rule counts it.
    after(20).await;
    cluster.edit("devicetaintrules", "/rule", |rule| {
        rule["metadata"]["generation"] = 2.into();
        rule["spec"]["taint"]["effect"] = "NoExecute".into();
        rule["spec"]["taint"]["timeAdded"] = "2027-01-15T08:00:20Z".into();
    });
    let requests = cluster.requests().await;
    assert!(EVICTED.iter().all(|request| requests.iter().any(|r| r == request)), "{requests:?}");
    after(21).await;
    let done = "False Completed 1 pod evicted since starting the controller.";
    assert_eq!(condition(&cluster), done);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_eviction_that_is_cancelled_writes_nothing() {
    let objects = [slice(&json!([taint()])), claim("ns", "pod", Some(60)), pod("ns", "pod")];
    let cluster = start(&[]);
    for object in &objects {
        cluster.put(object);
    }
    after(10).await;
    cluster.remove("resourceslices", "/slice");
    after(100).await;
    assert!(cluster.requests().await.is_empty());
    assert_eq!(cluster.events(), [CANCELLED]);
    // The pod goes by itself.
    let mut later = taint();
    later["timeAdded"] = now().to_string().into();
    cluster.put(&slice(&json!([later])));
    after(10).await;
    cluster.remove("pods", "ns/pod");
    after(100).await;
    assert!(cluster.requests().await.is_empty());
    assert!(cluster.events().is_empty());
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_gone_or_replaced_is_not_deleted() {
    let cluster = start(&[claim("ns", "pod", None), pod("ns", "pod")]);
    cluster.requests().await;
    let mut other = pod("ns", "pod");
    other["metadata"]["uid"] = "other".into();
    cluster.put_unseen(&other);
    cluster.put(&slice(&json!([taint()])));
    assert_eq!(cluster.requests().await, ["GET pods"]);
    assert!(cluster.events().is_empty());
    cluster.stop().await;
    // A pod that is being deleted already needs no event.
    let cluster = start(&[claim("ns", "pod", None), pod("ns", "pod")]);
    cluster.requests().await;
    let mut deleted = pod("ns", "pod");
    deleted["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z".into();
    cluster.put(&deleted);
    cluster.put(&slice(&json!([taint()])));
    assert_eq!(cluster.requests().await, ["GET pods"]);
    assert!(cluster.events().is_empty());
    cluster.stop().await;
    // The first request fails.
    let cluster = start(&[claim("ns", "pod", None), pod("ns", "pod")]);
    cluster.requests().await;
    cluster.fail("GET pods", 500);
    cluster.put(&slice(&json!([taint()])));
    let requests = cluster.requests().await;
    assert_eq!(requests, ["GET pods", "GET pods", "PATCH pods/status", "DELETE pods"]);
    cluster.stop().await;
}
