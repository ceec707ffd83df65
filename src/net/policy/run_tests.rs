//! Tests of the running task against a fake API server: what it watches and when, when pods pass,
//! and which rules are in the kernel.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::{Object, ObjectKey, WatchEvent};
use async_trait::async_trait;
use base::{Kind, Shutdown, Tasks};
use bytes::Bytes;
use client::{Client, Informers, Scope, Transport, WatchStream};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use super::gate::Leases;
use super::{Local, Policies};
use crate::testing::{self, config, in_namespace, privileged, shell};

/// A fake API server: objects by resource and name, and their watchers; a resource that is held
/// back lists no objects.
#[derive(Debug, Default)]
struct Api {
    objects: Mutex<BTreeMap<(String, String), Value>>,
    watchers: Mutex<Vec<(Scope, mpsc::Sender<WatchEvent>)>>,
    held_back: Mutex<Vec<&'static str>>,
    version: Mutex<i64>,
}

impl Api {
    fn next(&self) -> i64 {
        let mut version = self.version.lock();
        *version += 1;
        *version
    }

    fn put(&self, resource: &str, mut object: Value) {
        object["metadata"]["resourceVersion"] = self.next().to_string().into();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        self.objects.lock().insert((resource.into(), name), object.clone());
        self.tell(resource, object, WatchEvent::Added);
    }

    fn delete(&self, resource: &str, name: &str) {
        let object = self.objects.lock().remove(&(resource.into(), name.into())).unwrap();
        self.tell(resource, object, WatchEvent::Deleted);
    }

    fn tell(&self, resource: &str, object: Value, event: fn(Arc<Object>) -> WatchEvent) {
        let object = Arc::new(Object::from_value(object).unwrap());
        for (scope, watcher) in self.watchers.lock().iter() {
            if *scope.gvr.resource == *resource {
                let _ = watcher.try_send(event(Arc::clone(&object)));
            }
        }
    }

    fn list(&self, scope: &Scope, tell: &mpsc::Sender<WatchEvent>) {
        if self.held_back.lock().contains(&&*scope.gvr.resource) {
            return;
        }
        let of = |((resource, _), object): (&(String, String), &Value)| {
            (**resource == *scope.gvr.resource).then(|| object.clone())
        };
        for object in self.objects.lock().iter().filter_map(of) {
            let object = Arc::new(Object::from_value(object).unwrap());
            tell.try_send(WatchEvent::Added(object)).unwrap();
        }
        let revision = self.next();
        tell.try_send(WatchEvent::Bookmark { revision, initial: true }).unwrap();
    }

    fn release(&self) {
        self.held_back.lock().clear();
        for (scope, tell) in self.watchers.lock().iter() {
            if !tell.is_closed() {
                self.list(scope, tell);
            }
        }
    }

    /// Field selectors of the open watches on a resource.
    fn watched(&self, resource: &str) -> Vec<String> {
        let watchers = self.watchers.lock();
        let of = watchers.iter().filter(|(s, w)| *s.gvr.resource == *resource && !w.is_closed());
        of.map(|(s, _)| s.field_selector.clone()).collect()
    }
}

#[async_trait]
impl Transport for Api {
    async fn call(
        &self,
        request: http::Request<Bytes>,
    ) -> Result<http::Response<Bytes>, client::Error> {
        panic!("nothing is asked: {}", request.uri())
    }

    async fn watch(&self, scope: &Scope, _: Option<i64>) -> Result<WatchStream, client::Error> {
        let (tell, stream) = mpsc::channel(1000);
        self.list(scope, &tell);
        self.watchers.lock().push((scope.clone(), tell));
        Ok(stream)
    }
}

async fn eventually(what: &str, holds: impl FnMut() -> bool) {
    testing::eventually(what, "nft list ruleset", holds).await;
}

fn policy() -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"namespace": "n", "name": "p"},
        "spec": {"podSelector": {"matchLabels": {"app": "a"}}, "policyTypes": ["Ingress"]}})
}

fn pod(uid: &str, app: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "n", "name": "a", "uid": uid, "labels": {"app": app}},
        "spec": {"containers": []}, "status": {"phase": "Pending"}})
}

fn lease(generation: u64, uid: &str) -> Leases {
    let addresses = vec!["10.42.0.7".parse().unwrap()];
    Leases {
        generation,
        pods: vec![Local {
            key: ObjectKey::new("n", "a"),
            uid: uid.into(),
            link: "l".into(),
            addresses,
        }],
    }
}

fn begin(api: &Arc<Api>, leases: watch::Receiver<Leases>) -> (Tasks, super::Gate) {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.cluster.cluster_cidrs.truncate(1);
    let tasks = Tasks::new(Shutdown::new());
    let transport: Arc<dyn Transport> = Arc::clone(api) as _;
    let client = Client::new(transport, "test");
    let informers = Informers::new(client.clone(), tasks.clone());
    let parts = (&client, &informers, informers.of());
    let (policies, gate) = Policies::new(&config, parts, leases, &tasks).unwrap();
    tasks.spawn(Kind::Critical, "policies", policies.run(tasks.shutdown().clone()));
    (tasks, gate)
}

fn isolates() -> bool {
    shell("nft list ruleset").contains("10.42.0.7 : 0x")
}

async fn life() {
    let api = Arc::new(Api::default());
    api.put(
        "namespaces",
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}}),
    );
    let (tell, leases) = watch::channel(lease(1, "u1"));
    let key = ObjectKey::new("n", "a");
    let (tasks, gate) = begin(&api, leases.clone());
    // Without a policy pods of other nodes are not watched, and every pod passes.
    gate.pass(1, &key).await.unwrap();
    assert_eq!(api.watched("pods"), Vec::<String>::new());
    assert_eq!(shell("nft list tables"), "");

    // With the first one they are, but those that no policy is about.
    api.held_back.lock().push("pods");
    api.put("pods", pod("u1", "a"));
    api.put("networkpolicies", policy());
    eventually("pods are watched", || !api.watched("pods").is_empty()).await;
    assert_eq!(
        api.watched("pods"),
        ["spec.hostNetwork=false,status.phase!=Failed,status.phase!=Succeeded"]
    );
    tell.send_replace(lease(2, "u1"));
    let waits = tokio::time::timeout(Duration::from_millis(300), gate.pass(2, &key)).await;
    assert!(
        waits.is_err() && !isolates(),
        "no pod starts before the selection of policies is known"
    );
    api.release();
    gate.pass(2, &key).await.unwrap();
    assert!(isolates());

    // A pod in the place of another: until the API tells of it, it is closed.
    tell.send_replace(lease(3, "u2"));
    let unknown = tokio::time::timeout(Duration::from_millis(300), gate.pass(3, &key)).await;
    assert!(unknown.is_err() && isolates());
    api.put("pods", pod("u2", "b"));
    gate.pass(3, &key).await.unwrap();
    eventually("its labels are not the policy's", || shell("nft list tables").is_empty()).await;
    api.put("pods", pod("u2", "a"));
    eventually("now they are", isolates).await;

    // After a restart, the rules in the kernel stay until all objects are known.
    tasks.shutdown().request();
    tasks.drain(Duration::from_secs(5)).await;
    assert!(isolates());
    api.watchers.lock().clear();
    api.held_back.lock().push("networkpolicies");
    let (tasks, gate) = begin(&api, leases);
    let waits = tokio::time::timeout(Duration::from_millis(300), gate.pass(3, &key)).await;
    assert!(waits.is_err() && isolates());
    api.release();
    gate.pass(3, &key).await.unwrap();
    assert!(isolates());

    // The last policy goes, and with it what it needed.
    api.delete("networkpolicies", "p");
    eventually("nothing is filtered", || shell("nft list tables").is_empty()).await;
    eventually("no pods are watched", || api.watched("pods").is_empty()).await;
    tasks.shutdown().request();
}

#[test]
fn pods_wait_for_what_is_known_and_rules_outlive_the_process() {
    if !privileged("pods_wait_for_what_is_known") {
        return;
    }
    in_namespace(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(life());
    });
}
