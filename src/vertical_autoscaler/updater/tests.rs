//! Whole loops against an API that records what is written; the cases of upstream's
//! `updater_test.go`.

use api::{Status, WatchEvent};
use async_trait::async_trait;
use base::Shutdown;
use bytes::Bytes;
use client::{Error, Scope, Transport, WatchStream};
use http::{Method, Request, Response};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use super::*;
use crate::admission::matching::testing::Direct;

const NAME: &str = "container1";
/// A day after the start of all pods.
const NOW: i64 = 24 * 3600;

/// The objects, what was written, and which writes are refused.
#[derive(Debug, Default)]
struct Api {
    objects: Vec<Value>,
    written: Mutex<Vec<(String, Value)>>,
    /// The number of events that were written.
    events: watch::Sender<usize>,
    refused: &'static str,
}

#[async_trait]
impl Transport for Api {
    async fn call(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Error> {
        let path = request.uri().path().to_owned();
        if request.method() == Method::GET {
            let body = json!({"spec": {"replicas": 5}}).to_string();
            return Ok(Response::new(body.into()));
        }
        let body: Value = serde_json::from_slice(request.body()).unwrap();
        let is_event = path.ends_with("/events");
        self.written.lock().push((path.clone(), body));
        self.events.send_modify(|count| *count += usize::from(is_event));
        if !self.refused.is_empty() && path.ends_with(self.refused) {
            let mut status = Status::failure(403, "Forbidden", "no");
            let cause =
                api::status::Cause { reason: "NodeCapacity".to_owned(), ..Default::default() };
            status.details.get_or_insert_default().causes.push(cause);
            return Err(status.into());
        }
        Ok(Response::new(request.into_body()))
    }

    async fn watch(&self, scope: &Scope, _: Option<i64>) -> Result<WatchStream, Error> {
        let (sender, stream) = mpsc::channel(100);
        for object in &self.objects {
            let resource = format!("{}s", object["kind"].as_str().unwrap().to_lowercase());
            if *scope.gvr.resource == *resource {
                let object = Object::from_value(object.clone()).unwrap();
                sender.try_send(WatchEvent::Added(Arc::new(object))).unwrap();
            }
        }
        sender.try_send(WatchEvent::Bookmark { revision: 9, initial: true }).unwrap();
        // The watch stays open until the test ends.
        std::mem::forget(sender);
        Ok(stream)
    }
}

fn pod(index: usize, boosted: bool) -> Value {
    let owner = json!([{"apiVersion": "v1", "kind": "ReplicationController", "name": "rc",
        "uid": "rc", "controller": true}]);
    let mut metadata = json!({"name": format!("test-{index}"), "namespace": "default",
        "uid": format!("test-{index}"), "resourceVersion": "1", "labels": {"app": "testingApp"},
        "ownerReferences": owner});
    if boosted {
        metadata["annotations"] = json!({"vpaCpuStartupBoost/container1":
            r#"{"requests":{"cpu":"1"},"limits":{}}"#});
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": {"nodeName": "n", "containers": [{"name": NAME, "resources": {
            "requests": {"cpu": "1", "memory": "100M"}}}]},
        "status": {"phase": "Running", "startTime": "1970-01-01T00:00:00Z", "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:00Z"}]}})
}

fn autoscaler(mode: &str) -> Value {
    json!({"apiVersion": "autoscaling.k8s.io/v1", "kind": "VerticalPodAutoscaler",
        "metadata": {"name": "vpa", "namespace": "default", "uid": "vpa", "resourceVersion": "2"},
        "spec": {"targetRef": {"apiVersion": "v1", "kind": "ReplicationController", "name": "rc"},
            "updatePolicy": {"updateMode": mode}},
        "status": {"recommendation": {"containerRecommendations": [
            {"containerName": NAME, "target": {"cpu": "2", "memory": "200M"}}]}}})
}

fn updater(api: &Arc<Api>, features: Features) -> (Arc<Updater>, Tasks) {
    let tasks = Tasks::new(Shutdown::new());
    let transport: Arc<dyn Transport> = Arc::clone(api) as _;
    let client = Client::new(transport, AGENT);
    let informers = Informers::new(client.clone(), tasks.clone());
    let targets = Arc::new(Direct("app = testingApp"));
    (Updater::new(client, &informers, targets, features, &tasks), tasks)
}

/// The pods that one loop resizes and evicts.
async fn run(api: Api, features: Features) -> (Vec<String>, Vec<String>) {
    let api = Arc::new(api);
    let (updater, _tasks) = updater(&api, features);
    updater.run_once(Timestamp::from_second(NOW).unwrap()).await;
    (writes(&api, "/resize"), writes(&api, "/eviction"))
}

fn writes(api: &Api, subresource: &str) -> Vec<String> {
    let written = api.written.lock();
    let paths = written.iter().filter_map(|(path, _)| path.strip_suffix(subresource));
    paths.map(|path| path.rsplit('/').next().unwrap().to_owned()).collect()
}

fn world(mode: &str, boosted: bool) -> Api {
    let mut objects: Vec<Value> = (0..5).map(|index| pod(index, boosted)).collect();
    objects.push(autoscaler(mode));
    Api { objects, ..Api::default() }
}

/// `TestRunOnce_Mode`. The budget of five replicas is two disruptions.
#[tokio::test]
async fn the_mode_decides_between_eviction_and_resize() {
    for (mode, resizes, evictions) in [
        ("Auto", 0, 2),
        ("Recreate", 0, 2),
        ("Initial", 0, 0),
        ("Off", 0, 0),
        ("InPlaceOrRecreate", 2, 0),
        // As upstream, the mode resizes pods whatever defers them.
        ("InPlace", 5, 0),
    ] {
        let (resized, evicted) = run(world(mode, false), Features::ALL).await;
        assert_eq!((resized.len(), evicted.len()), (resizes, evictions), "{mode}");
        // Boosted pods are left to the end of their boost.
        let mut boosted = world(mode, true);
        let boost = json!({"cpu": {"type": "Factor", "factor": 2, "durationSeconds": 60}});
        boosted.objects[5]["spec"]["startupBoost"] = boost;
        assert_eq!(run(boosted, Features::ALL).await, (vec![], vec![]), "{mode}");
    }
    assert_eq!(run(world("InPlace", false), Features::default()).await, (vec![], vec![]));
}

#[tokio::test]
async fn a_failed_resize_falls_back_to_eviction_in_mode_in_place_or_recreate() {
    let failing = |mode| Api { refused: "/resize", ..world(mode, false) };
    let (resized, evicted) = run(failing("InPlaceOrRecreate"), Features::ALL).await;
    assert_eq!((resized.len(), evicted.len()), (5, 2));
    let (resized, evicted) = run(failing("InPlace"), Features::ALL).await;
    assert_eq!((resized.len(), evicted.len()), (5, 0));
}

/// An infeasible resize is not tried again until the recommendation is lower.
#[tokio::test]
async fn an_infeasible_resize_is_remembered() {
    let api = Arc::new(Api { refused: "/resize", ..world("InPlace", false) });
    let (updater, _tasks) = updater(&api, Features::ALL);
    let now = Timestamp::from_second(NOW).unwrap();
    updater.run_once(now).await;
    assert_eq!(updater.memory.lock().infeasible.len(), 5);
    updater.run_once(now).await;
    assert_eq!(writes(&api, "/resize").len(), 5);
}

#[tokio::test]
async fn a_refused_eviction_does_not_use_up_the_budget() {
    let api = Api { refused: "test-0/eviction", ..world("Recreate", false) };
    let (_, evicted) = run(api, Features::ALL).await;
    assert_eq!(evicted.len(), 3);
}

/// `TestRunOnceIgnoreNamespaceMatchingPods` and others: pods that are not live or not controlled.
#[tokio::test]
async fn only_live_pods_of_the_target_are_updated() {
    let mut api = world("Recreate", false);
    api.objects[0]["spec"].as_object_mut().unwrap().remove("nodeName");
    api.objects[1]["status"]["phase"] = "Succeeded".into();
    api.objects[2]["metadata"]["deletionTimestamp"] = "1970-01-01T00:00:00Z".into();
    api.objects[3]["metadata"]["labels"] = json!({});
    // One live pod is less than the minimum of replicas.
    assert_eq!(run(api, Features::ALL).await, (vec![], vec![]));
    let mut other = world("Recreate", false);
    other.objects[5]["spec"]["targetRef"]["name"] = "other".into();
    assert_eq!(run(other, Features::ALL).await, (vec![], vec![]));
}

#[tokio::test]
async fn writes_and_events_are_upstreams() {
    let api = Arc::new(world("InPlaceOrRecreate", false));
    let (updater, _tasks) = updater(&api, Features::ALL);
    updater.run_once(Timestamp::from_second(NOW).unwrap()).await;
    let evicted = PodView::read(&api.objects[4]);
    let autoscaler = serde_json::from_value(api.objects[5].clone()).unwrap();
    updater.actions.evict(&evicted, &autoscaler).await.unwrap();
    updater.actions.report_skipped(&evicted);
    // Two resizes, two events of the eviction, and the skipped resize.
    api.events.subscribe().wait_for(|count| *count >= 5).await.unwrap();
    let written = api.written.lock();
    let bodies = |end: &str| -> Vec<Value> {
        let found = written.iter().filter(|(path, _)| path.ends_with(end));
        found.map(|(_, body)| body.clone()).collect()
    };
    let resources = json!({"requests": {"cpu": "2", "memory": "200M"}});
    let resize = json!({"spec": {"containers": [{"name": NAME, "resources": resources}]}});
    assert_eq!(bodies("/test-0/resize"), [resize]);
    let annotated = json!({"metadata": {"annotations": {"vpaInPlaceUpdated": "true"}}});
    assert_eq!(bodies("/pods/test-0"), [annotated]);
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"namespace": "default", "name": "test-4"}});
    assert_eq!(bodies("/pods/test-4/eviction"), [eviction]);
    let events: Vec<String> = bodies("/events")
        .iter()
        .map(|event| {
            let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
            let kind = event["involvedObject"]["kind"].as_str().unwrap_or_default();
            format!("{kind} {} {} {}", text("type"), text("reason"), text("message"))
        })
        .collect();
    for expected in [
        "Pod Normal InPlaceResizedByVPA Pod was resized in place by VPA Updater.",
        "Pod Normal EvictedByVPA Pod was evicted by VPA Updater to apply resource recommendation.",
        "VerticalPodAutoscaler Normal EvictedPod VPA Updater evicted Pod test-4 to apply resource \
         recommendation.",
        "Pod Normal InPlaceResizeSkipped Previously recorded in-place update was infeasible, \
         current recommendation is not lower than previous, skipping resize",
    ] {
        assert!(events.iter().any(|event| event == expected), "{expected}: {events:?}");
    }
}

#[test]
fn decisions_lead_to_steps_by_mode() {
    use InPlaceDecision::{Approved, Deferred, Evict, Infeasible, InfeasibleCached};
    for (decision, in_place, or_recreate) in [
        (Approved, Step::Resize, Step::Resize),
        (Deferred, Step::Resize, Step::Wait),
        (Infeasible, Step::Resize, Step::Wait),
        (Evict, Step::Wait, Step::Evict),
        (InfeasibleCached, Step::Wait, Step::Wait),
    ] {
        assert_eq!(step(decision, UpdateMode::InPlace), in_place, "{decision:?}");
        assert_eq!(step(decision, UpdateMode::InPlaceOrRecreate), or_recreate, "{decision:?}");
    }
}

/// `TestRunOnce_AutoUnboostThenInPlace`: the pods are ready since 1970, so that their boosts have
/// expired.
#[tokio::test]
async fn an_expired_boost_ends_with_a_resize_and_without_its_annotation() {
    let mut api = world("Recreate", true);
    api.objects[1]["status"]["conditions"] = json!([]);
    let api = Arc::new(api);
    let (updater, _tasks) = updater(&api, Features::ALL);
    updater.synced().await;
    updater.follow_boosted_pods();
    // The pod that is not ready waits for its next change.
    assert_eq!(updater.boosted.len(), 4);
    let key = |index: usize| ("default".to_owned(), format!("test-{index}"));
    assert_eq!(updater.unboost(key(0)).await.unwrap(), client::Action::Done);
    let error = updater.unboost(key(1)).await.unwrap_err();
    assert_eq!(error.to_string(), "the pod is not ready in the cache");
    let gone = ("default".to_owned(), "gone".to_owned());
    assert_eq!(updater.unboost(gone).await.unwrap(), client::Action::Done);
    let annotations = json!({"vpaInPlaceUpdated": "true", "vpaCpuStartupBoost/container1": null});
    let resources = json!({"requests": {"cpu": "2", "memory": "200M"}});
    let pod = "/api/v1/namespaces/default/pods/test-0";
    assert_eq!(
        *api.written.lock(),
        [
            (
                format!("{pod}/resize"),
                json!({"spec": {"containers": [{"name": NAME, "resources": resources}]}})
            ),
            (pod.to_owned(), json!({"metadata": {"annotations": annotations}})),
        ]
    );
}

/// A boost that lasts is looked at again when it ends, and one whose pod cannot be disrupted now
/// later.
#[tokio::test]
async fn a_boost_lasts_for_its_duration() {
    let mut api = world("Recreate", true);
    let boost = json!({"cpu": {"type": "Factor", "factor": 2, "durationSeconds": i32::MAX}});
    api.objects[5]["spec"]["startupBoost"] = boost;
    let (updater, _tasks) = updater(&Arc::new(api), Features::ALL);
    let key = ("default".to_owned(), "test-0".to_owned());
    let found = updater.unboost(key.clone()).await.unwrap();
    assert!(matches!(found, client::Action::After(delay) if delay > Duration::from_secs(60)));

    let mut resizing = world("Recreate", true);
    resizing.objects[0]["status"]["conditions"]
        .as_array_mut()
        .unwrap()
        .push(json!({"type": "PodResizeInProgress", "status": "True"}));
    let (updater, _tasks) = self::updater(&Arc::new(resizing), Features::ALL);
    let error = updater.unboost(key).await.unwrap_err();
    assert_eq!(error.to_string(), "the pod cannot be resized yet");
}

/// `TestProcessNextBoostItem_RetryExhaustion_ThenResync`.
#[tokio::test]
async fn the_search_for_the_autoscaler_of_a_boosted_pod_pauses() {
    let mut api = world("Recreate", true);
    api.objects.pop();
    let (updater, _tasks) = updater(&Arc::new(api), Features::ALL);
    let key = ("default".to_owned(), "test-0".to_owned());
    for _ in 0..=6 {
        if let Err(error) = updater.unboost(key.clone()).await {
            assert_eq!(error.to_string(), "no autoscaler controls the pod");
            updater.boosted.add_rate_limited(key.clone());
        }
    }
    let pause = client::Action::After(Duration::from_secs(600));
    assert_eq!(updater.unboost(key.clone()).await.unwrap(), pause);
    assert_eq!(updater.boosted.failures(&key), 6);
}
