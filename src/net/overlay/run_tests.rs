//! The running overlay against an API of its own: what it writes, and what it does about changes of
//! nodes and links.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use api::{Object, WatchEvent};
use async_trait::async_trait;
use base::{Shutdown, Tasks};
use bytes::Bytes;
use client::{Client, Informers, Scope, Transport, WatchStream};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use crate::overlay;
use crate::testing::{self, Pod, config, in_namespace, privileged, shell};
use settings::Backend;

/// A fake API server: the nodes, their watchers, and the events that were written.
#[derive(Debug, Default)]
struct Api {
    nodes: Mutex<BTreeMap<String, Value>>,
    watchers: Mutex<Vec<mpsc::Sender<WatchEvent>>>,
    events: Mutex<Vec<Value>>,
    version: AtomicI64,
}

impl Api {
    fn tell(&self, mut node: Value, event: fn(Arc<Object>) -> WatchEvent) {
        let version = self.version.fetch_add(1, Ordering::AcqRel) + 1;
        node["metadata"]["resourceVersion"] = version.to_string().into();
        let object = Arc::new(Object::from_value(node).unwrap());
        for watcher in self.watchers.lock().iter() {
            watcher.try_send(event(Arc::clone(&object))).unwrap();
        }
    }

    fn put(&self, name: &str, created: &str, block: &str, address: &str, annotations: Value) {
        let node = json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "uid": name, "creationTimestamp": created, "annotations": annotations},
            "spec": {"podCIDR": block, "podCIDRs": [block]},
            "status": {"addresses": [{"type": "InternalIP", "address": address}]}});
        self.nodes.lock().insert(name.into(), node.clone());
        self.tell(node, WatchEvent::Added);
    }

    fn delete(&self, name: &str) {
        let node = self.nodes.lock().remove(name).unwrap();
        self.tell(node, WatchEvent::Deleted);
    }

    fn annotation(&self, node: &str, name: &str) -> String {
        let value = &self.nodes.lock()[node]["metadata"]["annotations"];
        value[format!("flannel.alpha.coreos.com/{name}")].as_str().unwrap_or_default().to_owned()
    }
}

#[async_trait]
impl Transport for Api {
    async fn call(
        &self,
        request: http::Request<Bytes>,
    ) -> Result<http::Response<Bytes>, client::Error> {
        let body: Value = serde_json::from_slice(request.body()).unwrap();
        let path = request.uri().path();
        let answer = match path.strip_prefix("/api/v1/nodes/") {
            Some(name) => {
                let mut nodes = self.nodes.lock();
                let node = nodes.get_mut(name).unwrap();
                for (key, value) in body["metadata"]["annotations"].as_object().unwrap() {
                    node["metadata"]["annotations"][key] = value.clone();
                    if value.is_null() {
                        node["metadata"]["annotations"].as_object_mut().unwrap().remove(key);
                    }
                }
                let node = node.clone();
                drop(nodes);
                self.tell(node.clone(), WatchEvent::Modified);
                node
            }
            None => {
                assert_eq!(path, "/api/v1/namespaces/default/events");
                self.events.lock().push(body.clone());
                body
            }
        };
        Ok(http::Response::new(serde_json::to_vec(&answer).unwrap().into()))
    }

    async fn watch(&self, _: &Scope, _: Option<i64>) -> Result<WatchStream, client::Error> {
        let (tell, stream) = mpsc::channel(1000);
        for (version, node) in (1..).zip(self.nodes.lock().values()) {
            let mut node = node.clone();
            node["metadata"]["resourceVersion"] = i64::to_string(&version).into();
            let object = Object::from_value(node).unwrap();
            tell.try_send(WatchEvent::Added(Arc::new(object))).unwrap();
        }
        let revision = self.version.fetch_add(100, Ordering::AcqRel) + 100;
        tell.try_send(WatchEvent::Bookmark { revision, initial: true }).unwrap();
        self.watchers.lock().push(tell);
        Ok(stream)
    }
}

async fn eventually(what: &str, holds: impl FnMut() -> bool) {
    testing::eventually(what, "ip addr; ip route; bridge fdb show", holds).await;
}

fn routes() -> String {
    shell("ip route")
}

const OTHER: &str = r#"{"VNI":1,"VtepMAC":"0e:7f:c1:a4:63:2b"}"#;

async fn life() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.cluster.backend = Backend::Auto;
    config.addresses_held = false;
    config.cluster.cluster_cidrs.truncate(1);
    let api = Arc::new(Api::default());
    let flannel = json!({
        "flannel.alpha.coreos.com/backend-type": "vxlan",
        "flannel.alpha.coreos.com/backend-data": OTHER,
        "flannel.alpha.coreos.com/public-ip": "192.0.2.2"});
    api.put("me", "2026-01-01T00:00:00Z", "10.42.0.0/24", "192.0.2.1", json!({"mine": "kept"}));
    api.put("b", "2026-01-01T00:00:01Z", "10.42.1.0/24", "192.0.2.2", flannel.clone());
    let tasks = Tasks::new(Shutdown::new());
    let transport: Arc<dyn Transport> = Arc::clone(&api) as _;
    let client = Client::new(transport, "test");
    let informers = Informers::new(client.clone(), tasks.clone());
    let (_blocks, seen) = watch::channel(vec!["10.42.0.0/24".parse().unwrap()]);
    let addresses = config.addresses.subscribe();
    overlay::start(&config, &informers.of(), client.clone(), client, seen, &tasks).unwrap();

    eventually("annotations", || api.annotation("me", "public-ip") == "192.0.2.1").await;
    assert_eq!(api.annotation("me", "backend-type"), "vxlan");
    assert!(api.annotation("me", "backend-data").contains("DirectRouting"));
    assert_eq!(api.nodes.lock()["me"]["metadata"]["annotations"]["mine"], "kept");
    let there = || routes().contains("10.42.1.0/24 via 10.42.1.0 dev flannel.1");
    eventually("a route to b", there).await;
    assert!(shell("bridge fdb show dev flannel.1").contains("0e:7f:c1:a4:63:2b dst 192.0.2.2"));

    shell("ip link del flannel.1");
    eventually("the link is back", there).await;
    shell("ip route del 10.42.1.0/24");
    eventually("the route is back", there).await;

    api.put("twin", "2026-01-01T00:00:02Z", "10.42.1.0/25", "192.0.2.3", flannel);
    eventually("an event about the duplicate", || {
        let events = api.events.lock();
        events.iter().any(|e| {
            let message = e["message"].as_str().unwrap_or_default();
            e["reason"] == "OverlappingPodCIDR"
                && e["involvedObject"]["name"] == "me"
                && message.contains("node twin claims 10.42.1.0/25")
                && message.contains("10.42.1.0/24 of node b")
        })
    })
    .await;
    assert_eq!(tasks.problems().list().len(), 1);
    assert!(there() && !routes().contains("10.42.1.0/25"));
    api.delete("twin");
    eventually("the problem is gone", || tasks.problems().list().is_empty()).await;

    shell("ip addr del 192.0.2.1/24 dev eth0; ip addr add 192.0.2.9/24 dev eth0");
    eventually("the new address", || api.annotation("me", "public-ip") == "192.0.2.9").await;
    assert_eq!(*addresses.borrow(), ["192.0.2.9".parse::<std::net::IpAddr>().unwrap()]);
    eventually("the tunnel moves", || {
        shell("ip -d link show flannel.1").contains("local 192.0.2.9")
    })
    .await;

    api.delete("b");
    eventually("no route to b", || !routes().contains("10.42.1.0")).await;
    tasks.shutdown().request();
}

#[test]
fn annotations_routes_and_problems_follow_nodes_and_links() {
    if !privileged("annotations_routes_and_problems_follow_nodes_and_links") {
        return;
    }
    in_namespace(|| {
        let other = Pod::new();
        shell(&format!(
            "ip link add eth0 type veth peer name far netns {}; ip link set eth0 up
             ip addr add 192.0.2.1/24 dev eth0",
            other.tid
        ));
        other.run(|| shell("ip link set far up"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(life());
    });
}
