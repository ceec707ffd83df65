//! Events and conditions against upstream's, written to a server in memory.

use std::time::Duration;

use api::{Object, Status, WatchEvent};
use async_trait::async_trait;
use base::Tasks;
use bytes::Bytes;
use client::{Client, Informers, Scope, Transport, WatchStream};
use http::{Method, Request, Response, StatusCode};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Notify, mpsc};

use super::*;
use crate::bind::claims::ClaimWriter;
use crate::extender::{ExtenderClients, Extenders};
use crate::profile::Profiles;

const PODS: &str = "/api/v1/namespaces/n/pods";

/// Serves pods; answers all writes but those to missing paths, and keeps them.
#[derive(Debug, Default)]
struct FakeApi {
    pods: Vec<Value>,
    missing: Vec<String>,
    writes: Mutex<Vec<(Method, String, Value)>>,
    written: Notify,
}

#[async_trait]
impl Transport for FakeApi {
    async fn call(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Error> {
        let path = request.uri().path().to_owned();
        let body = serde_json::from_slice::<Value>(request.body()).unwrap_or_default();
        let mut answer = Response::new(json!({"metadata": {}}).to_string().into());
        if self.missing.contains(&path) {
            let status = Status::not_found("", "pods", "p");
            answer = Response::new(serde_json::to_vec(&status).unwrap().into());
            *answer.status_mut() = StatusCode::NOT_FOUND;
        }
        self.writes.lock().push((request.method().clone(), path, body));
        self.written.notify_one();
        Ok(answer)
    }

    async fn watch(&self, scope: &Scope, _: Option<i64>) -> Result<WatchStream, Error> {
        let (sender, stream) = mpsc::channel(100);
        for pod in self.pods.iter().filter(|_| &*scope.gvr.resource == "pods") {
            let object = Object::from_value(pod.clone()).unwrap();
            sender.try_send(WatchEvent::Added(Arc::new(object))).unwrap();
        }
        sender.try_send(WatchEvent::Bookmark { revision: 9, initial: true }).unwrap();
        // The watch stays open until the test ends.
        std::mem::forget(sender);
        Ok(stream)
    }
}

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "n",
        "uid": format!("u-{name}"), "resourceVersion": "1", "generation": 3},
        "spec": {"schedulerName": "other-scheduler", "containers": [{"name": "c"}]}})
}

fn info(pod: &Value) -> PodInfo {
    PodInfo::new(&serde_json::from_value(pod.clone()).unwrap())
}

/// A writer whose cache has the pods `p` and `victim`.
async fn writer(missing: &[&str]) -> (Arc<FakeApi>, Writer) {
    writer_of(vec![pod("p"), pod("victim")], missing).await
}

/// A writer whose cache has these pods.
async fn writer_of(pods: Vec<Value>, missing: &[&str]) -> (Arc<FakeApi>, Writer) {
    writer_with(pods, missing, &Extenders::default()).await
}

/// A writer with these extenders.
async fn writer_with(
    pods: Vec<Value>,
    missing: &[&str],
    extenders: &Extenders,
) -> (Arc<FakeApi>, Writer) {
    let missing = missing.iter().map(|path| (*path).to_owned()).collect();
    let api = Arc::new(FakeApi { pods, missing, ..FakeApi::default() });
    let transport: Arc<dyn Transport> = Arc::clone(&api) as _;
    let (client, tasks) = (Client::new(transport, "test"), Tasks::new(base::Shutdown::new()));
    let informers = Informers::new(client.clone(), tasks.clone());
    let recorder = EventRecorder::new(client.clone(), "default-scheduler", "", &tasks);
    let writer = Writer {
        resource_claims: ClaimWriter {
            client: client.clone(),
            recorder: recorder.clone(),
            devices: Arc::default(),
            on_change: Arc::new(|_, _| {}),
        },
        client,
        recorder,
        extenders: ExtenderClients::new(extenders, &tasks),
        pods: informers.of(),
        claims: informers.of(),
        volumes: informers.of(),
        volumes_changed: tokio::sync::watch::channel(0).1,
        profiles: Profiles::default(),
    };
    writer.pods.synced().await;
    (api, writer)
}

impl FakeApi {
    fn written(&self, method: &Method, path: &str) -> Option<Value> {
        let writes = self.writes.lock();
        let found = writes.iter().find(|(m, p, _)| m == method && p == path);
        found.map(|(_, _, body)| body.clone())
    }

    /// The events, once there are so many: reason, type, action, message, reporter, related pod.
    async fn events(&self, count: usize) -> Vec<[String; 6]> {
        let of = |event: &Value| {
            ["/reason", "/type", "/action", "/message", "/reportingComponent", "/related/uid"]
                .map(|field| event.pointer(field).and_then(Value::as_str).unwrap_or("").to_owned())
        };
        let events = || -> Vec<[String; 6]> {
            let writes = self.writes.lock();
            writes.iter().filter(|(_, p, _)| p.ends_with("/events")).map(|(.., e)| of(e)).collect()
        };
        let all = async {
            while events().len() < count {
                self.written.notified().await;
            }
        };
        // Without them the caller compares what has come.
        let _ = tokio::time::timeout(Duration::from_secs(5), all).await;
        events()
    }
}

#[tokio::test]
async fn a_bound_pod_has_the_event_scheduled() {
    let (api, writer) = writer(&[]).await;
    writer.bind(&info(&pod("p")), "node", &[]).await.unwrap();
    assert!(api.written(&Method::POST, &format!("{PODS}/p/binding")).is_some());
    let text = "Successfully assigned n/p to node";
    let event = ["Scheduled", "Normal", "Binding", text, "other-scheduler", ""];
    assert_eq!(api.events(1).await, [event]);
}

#[tokio::test]
async fn a_rejected_binding_is_an_error_of_the_scheduler() {
    let (_, writer) = writer(&[&format!("{PODS}/p/binding")]).await;
    let error = writer.bind(&info(&pod("p")), "node", &[]).await.unwrap_err();
    let text = "running Bind plugin \"DefaultBinder\": pods \"p\" not found";
    assert_eq!(error.message(), text);
}

/// `TestSchedulerBinding`: whether the API server or an extender binds, and the error.
#[tokio::test]
async fn the_first_extender_that_binds_takes_the_place_of_the_api_server() {
    let hook = webhook::testing::hook(|path, body| {
        assert_eq!((path, &body["PodName"]), ("/bind", &json!("p")));
        webhook::testing::body(200, "application/json", "{}")
    })
    .await;
    let bind = async |list: Value| {
        let file = json!({"apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration", "extenders": list});
        let configuration = crate::config::parse(file.to_string().as_bytes()).unwrap();
        let (api, writer) = writer_with(vec![pod("p")], &[], &configuration.extenders).await;
        let bound = writer.bind(&info(&pod("p")), "node", &[]).await;
        let by_api = api.written(&Method::POST, &format!("{PODS}/p/binding")).is_some();
        let events = if bound.is_ok() { api.events(1).await.len() } else { 0 };
        (by_api, bound.map(|()| events).map_err(|error| error.message()))
    };
    let url = format!("https://{}", hook.address);
    let binder = json!({"urlPrefix": url, "enableHTTPS": true, "bindVerb": "bind"});
    assert_eq!(
        bind(json!([{"urlPrefix": "http://127.0.0.1:1", "filterVerb": "f"}])).await,
        (true, Ok(1))
    );
    assert_eq!(bind(json!([binder.clone()])).await, (false, Ok(1)));
    let mut uninterested = binder;
    uninterested["managedResources"] = json!([{"name": "example.com/gpu"}]);
    assert_eq!(bind(json!([uninterested])).await, (true, Ok(1)));
    let away = |ignorable: bool| json!([{"urlPrefix": "http://127.0.0.1:1", "bindVerb": "bind", "ignorable": ignorable}]);
    assert_eq!(bind(away(true)).await, (true, Ok(1)));
    let error =
        "Post \"http://127.0.0.1:1/bind\": dial tcp 127.0.0.1:1: connect: connection refused";
    assert_eq!(bind(away(false)).await, (false, Err(error.to_owned())));
}

#[tokio::test]
async fn a_pod_without_a_node_has_a_condition_and_an_event() {
    let (api, writer) = writer(&[]).await;
    let long = "x".repeat(1100);
    writer.failed(&info(&pod("p")), &long).await.unwrap();
    let patch = api.written(&Method::PATCH, &format!("{PODS}/p/status")).unwrap();
    let condition = &patch["status"]["conditions"][0];
    assert_eq!(condition["type"], "PodScheduled");
    assert_eq!(condition["reason"], "SchedulerError");
    assert_eq!(condition["message"], long);
    assert_eq!(condition["observedGeneration"], 3);
    let text = format!("{} ...", "x".repeat(1020));
    let event = ["FailedScheduling", "Warning", "Scheduling", text.as_str(), "other-scheduler", ""];
    assert_eq!(api.events(1).await, [event]);
}

/// `TestUpdatePod` and the callers of `handleSchedulingFailure`: an error clears the nomination, a
/// pod that waits for its victims keeps it.
#[tokio::test]
async fn the_nomination_is_kept_cleared_or_replaced() {
    const MESSAGE: &str = "0/1 nodes are available.";
    let written = async |old: &str, nomination: NominationChange<'_>| {
        let mut nominated = pod("p");
        nominated["status"] = json!({"nominatedNodeName": old, "conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": MESSAGE, "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
        let (api, writer) = writer_of(vec![nominated.clone()], &[]).await;
        let pod = info(&nominated);
        writer.not_scheduled(&pod, "Unschedulable", MESSAGE, nomination).await.unwrap();
        api.written(&Method::PATCH, &format!("{PODS}/p/status"))
            .map(|patch| patch["status"].get("nominatedNodeName").cloned())
    };
    use NominationChange::{Clear, Keep, Set};
    assert_eq!(written("a", Keep).await, None, "nothing changes");
    assert_eq!(written("a", Clear).await, Some(Some(Value::Null)));
    assert_eq!(written("", Clear).await, None, "there is none to clear");
    assert_eq!(written("a", Set("b")).await, Some(Some("b".into())));
    assert_eq!(written("b", Set("b")).await, None);
}

#[tokio::test]
async fn an_error_clears_the_nomination() {
    let mut nominated = pod("p");
    nominated["status"] = json!({"nominatedNodeName": "a"});
    let (api, writer) = writer_of(vec![nominated.clone()], &[]).await;
    writer.failed(&info(&nominated), "an error").await.unwrap();
    let patch = api.written(&Method::PATCH, &format!("{PODS}/p/status")).unwrap();
    assert_eq!(patch["status"].get("nominatedNodeName"), Some(&Value::Null));
}

fn preemption() -> Unschedulable {
    let leaving = PodInfo { deleting: true, ..info(&pod("leaving")) };
    let victims = vec![Arc::new(info(&pod("victim"))), Arc::new(leaving)];
    Unschedulable {
        message: "0/1 nodes are available.".into(),
        reasons: Vec::new(),
        nomination: Some(Nomination { node: "node".into(), victims }),
        clears_nomination: false,
        release: None,
    }
}

#[tokio::test]
async fn victims_are_evicted_counted_and_named_in_events() {
    let (api, writer) = writer(&[]).await;
    let (victims, runs) = (PREEMPTION_VICTIMS.read(&[]), PREEMPTIONS.read(&["success"]));
    writer.unschedulable(&info(&pod("p")), &preemption()).await.unwrap();
    assert!(PREEMPTION_VICTIMS.read(&[]) > victims);
    assert!(PREEMPTIONS.read(&["success"]) > runs);
    let condition = api.written(&Method::PATCH, &format!("{PODS}/victim/status")).unwrap();
    let condition = &condition["status"]["conditions"][0];
    assert_eq!(condition["reason"], "PreemptionByScheduler");
    assert_eq!(
        condition["message"],
        "other-scheduler: preempting to accommodate a higher priority pod"
    );
    assert_eq!(condition["observedGeneration"], 3);
    assert!(api.written(&Method::DELETE, &format!("{PODS}/victim")).is_some());
    assert!(api.written(&Method::DELETE, &format!("{PODS}/leaving")).is_none());
    let text = "Preempted by pod u-p on node node";
    let preempted = ["Preempted", "Normal", "Preempting", text, "other-scheduler", "u-p"];
    let failed = [
        "FailedScheduling",
        "Warning",
        "Scheduling",
        "0/1 nodes are available.",
        "other-scheduler",
        "",
    ];
    assert_eq!(api.events(2).await, [preempted, failed]);
    let nominated = api.written(&Method::PATCH, &format!("{PODS}/p/status")).unwrap();
    assert_eq!(nominated["status"]["nominatedNodeName"], "node");
}

#[tokio::test]
async fn a_victim_that_has_left_is_not_preempted() {
    let (api, writer) = writer(&[&format!("{PODS}/victim/status")]).await;
    writer.unschedulable(&info(&pod("p")), &preemption()).await.unwrap();
    let events = api.events(1).await;
    assert_eq!(
        events.iter().map(|event| event[0].as_str()).collect::<Vec<_>>(),
        ["FailedScheduling"]
    );
}
