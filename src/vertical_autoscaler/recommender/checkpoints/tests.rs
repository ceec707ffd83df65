//! The cases of upstream's `checkpoint_writer_test.go`, and which requests are sent.

use super::*;
use crate::model::aggregate::MemoryRules;
use api::Status;
use async_trait::async_trait;
use bytes::Bytes;
use client::transport::WatchStream;
use client::{Scope, Transport};
use http::{Request, Response};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// 2017-04-18 17:35:05.
const NOW: i64 = 1_492_536_905;
const ROOT: &str = "/apis/autoscaling.k8s.io/v1";

/// A server with checkpoints by name.
#[derive(Debug, Default)]
struct FakeServer {
    objects: Mutex<BTreeMap<String, Value>>,
    requests: Mutex<Vec<String>>,
    has_failed: Mutex<bool>,
}

impl FakeServer {
    fn answer(&self, method: &str, path: &str, body: &[u8]) -> Result<Value, Status> {
        if std::mem::take(&mut *self.has_failed.lock()) {
            return Err(Status::failure(503, "ServiceUnavailable", "not now".to_owned()));
        }
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        let not_found = || Status::failure(404, "NotFound", format!("{name} not found"));
        let body = serde_json::from_slice::<Value>(body).unwrap_or_default();
        let mut objects = self.objects.lock();
        match method {
            "GET" => Ok(json!({"items": objects.values().collect::<Vec<_>>()})),
            "POST" => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                objects.insert(name, body.clone());
                Ok(body)
            }
            "PATCH" => {
                let object = objects.get_mut(&name).ok_or_else(not_found)?;
                assert_eq!(body[0]["path"], "/status");
                object["status"] = body[0]["value"].clone();
                Ok(object.clone())
            }
            _ => objects.remove(&name).ok_or_else(not_found),
        }
    }
}

#[async_trait]
impl Transport for FakeServer {
    async fn call(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Error> {
        let (method, path) = (request.method().as_str(), request.uri().path());
        self.requests.lock().push(format!("{method} {}", path.trim_start_matches(ROOT)));
        let (code, body) = match self.answer(method, path, request.body()) {
            Ok(value) => (200, value),
            Err(status) => (status.code, serde_json::to_value(&status).unwrap()),
        };
        let body = serde_json::to_vec(&body).unwrap();
        Ok(Response::builder().status(code).body(body.into()).unwrap())
    }

    async fn watch(&self, _: &Scope, _: Option<i64>) -> Result<WatchStream, Error> {
        Err(Error::Transport("no watch".to_owned()))
    }
}

fn key(name: &str) -> AutoscalerKey {
    ("n".to_owned(), name.to_owned())
}

/// Autoscalers with one pod of two containers each.
fn state(names: &[&str]) -> State {
    let mut state = State::default();
    for name in names {
        let observed = state.autoscalers.entry(key(name)).or_default();
        for container in ["a", "b"] {
            observed.observe("pod", container, MemoryRules::default(), NOW);
            let (container, aggregate) = observed.container("pod", container).unwrap();
            container.add_cpu(1000, NOW, aggregate);
        }
    }
    state
}

#[test]
fn the_longest_due_checkpoints_are_written_first() {
    let mut all = state(&["a", "b", "c", "d"]);
    let mut written = |name: &str, at| {
        let observed = all.autoscalers.get_mut(&key(name)).unwrap();
        (observed.checkpoint_written, observed.checkpoint_interval) = (Some(at), 600);
    };
    written("a", NOW - 600);
    written("b", NOW - 1200);
    written("c", NOW - 599);
    assert_eq!(due(&all, NOW), [key("d"), key("b"), key("a")]);
}

#[tokio::test]
async fn checkpoints_are_created_then_replaced_and_continue_after_a_restart() {
    let server = Arc::new(FakeServer::default());
    let client = Client::new(Arc::clone(&server) as Arc<dyn Transport>, "test");
    let mut first = state(&["v"]);
    write(&client, &mut first, NOW).await;
    let path = "/namespaces/n/verticalpodautoscalercheckpoints";
    let expected = ["a", "b"].map(|c| [format!("PATCH {path}/v-{c}"), format!("POST {path}")]);
    assert_eq!(std::mem::take(&mut *server.requests.lock()), expected.concat());
    let written = server.objects.lock()["v-a"].clone();
    assert_eq!(written["spec"], json!({"vpaObjectName": "v", "containerName": "a"}));
    assert_eq!(written["status"]["totalSamplesCount"], 1);
    // Rounds of an hour in which they are replaced.
    let mut rounds = Vec::new();
    for minute in 1..60 {
        write(&client, &mut first, NOW + minute * 60).await;
        if std::mem::take(&mut *server.requests.lock()).len() == 2 {
            rounds.push(minute);
        }
    }
    assert_eq!(rounds, [1, 3, 7, 15, 25, 35, 45, 55]);
    let mut second = State::default();
    second.autoscalers.entry(key("v")).or_default();
    *server.has_failed.lock() = true;
    assert!(load(&client, &mut second, NOW).await.is_err());
    load(&client, &mut second, NOW + 3600).await.unwrap();
    let aggregates = |state: &State| state.autoscalers[&key("v")].aggregates().clone();
    let (before, after) = (aggregates(&first), aggregates(&second));
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    assert_eq!(after["a"].cpu.percentile(0.9), before["a"].cpu.percentile(0.9));
    assert_eq!((after["a"].samples, after["a"].last_sample), (1, Some(NOW)));
}

#[tokio::test]
async fn unusable_checkpoints_and_those_of_other_autoscalers_are_skipped() {
    let server = Arc::new(FakeServer::default());
    let client = Client::new(Arc::clone(&server) as Arc<dyn Transport>, "test");
    let checkpoint = |name: &str, autoscaler: &str, status: Value| {
        let object = json!({"metadata": {"namespace": "n", "name": name},
            "spec": {"vpaObjectName": autoscaler, "containerName": name}, "status": status});
        server.objects.lock().insert(name.to_owned(), object);
    };
    checkpoint("good", "v", json!({"version": "v3", "totalSamplesCount": 7}));
    checkpoint("version", "v", json!({"version": "v2"}));
    checkpoint("type", "v", json!({"version": "v3", "cpuHistogram": {"bucketWeights": {"x": 1}}}));
    let bucket = json!({"bucketWeights": {"500": 1}, "totalWeight": 1.0});
    checkpoint("bucket", "v", json!({"version": "v3", "memoryHistogram": bucket}));
    checkpoint("other", "w", json!({"version": "v3"}));
    let mut state = State::default();
    state.autoscalers.entry(key("v")).or_default();
    load(&client, &mut state, NOW).await.unwrap();
    let observed = &state.autoscalers[&key("v")];
    assert_eq!(observed.aggregates().keys().collect::<Vec<_>>(), ["good"]);
    assert_eq!((observed.aggregates()["good"].samples, state.autoscalers.len()), (7, 1));
}

#[tokio::test]
async fn checkpoints_without_an_autoscaler_are_deleted() {
    let server = Arc::new(FakeServer::default());
    let client = Client::new(Arc::clone(&server) as Arc<dyn Transport>, "test");
    write(&client, &mut state(&["kept", "gone"]), NOW).await;
    collect(&client, |namespace, name| (namespace, name) == ("n", "kept")).await;
    let left: Vec<_> = server.objects.lock().keys().cloned().collect();
    assert_eq!(left, ["kept-a", "kept-b"]);
}
