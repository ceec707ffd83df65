//! One simulated agent: what it says to the server and hears from it, as the real one does.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use base::{Backoff, Tasks};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::api::{Api, Identity, RETRY};
use super::measure::Measures;

/// Renewal of the lease and report of an unchanged status, as the kubelet has them.
const RENEW: Duration = Duration::from_secs(10);
const STATUS: Duration = Duration::from_secs(300);

/// What all agents share.
pub(crate) struct Fleet {
    pub(crate) count: usize,
    also_watch: Vec<String>,
    pub(crate) measures: Measures,
    /// Agents whose first Ready status the server has.
    pub(crate) ready: watch::Sender<usize>,
    /// Pods whose Running status the server has.
    pub(crate) running: watch::Sender<usize>,
    on_node: Mutex<HashMap<usize, usize>>,
}

impl Fleet {
    pub(crate) fn new(count: usize, also_watch: Vec<String>) -> Self {
        Self {
            count,
            also_watch,
            measures: Measures::default(),
            ready: watch::Sender::new(0),
            running: watch::Sender::new(0),
            on_node: Mutex::default(),
        }
    }

    /// Pods on the node that has most.
    pub(crate) fn most(&self) -> usize {
        self.on_node.lock().values().copied().max().unwrap_or_default()
    }
}

/// Fields that an agent keeps over connections.
#[derive(Default)]
struct Memory {
    ready: bool,
    pods: usize,
}

pub(crate) struct Agent {
    pub(crate) number: usize,
    pub(crate) name: String,
    pub(crate) node: Identity,
    pub(crate) proxy: Identity,
    pub(crate) fleet: Arc<Fleet>,
}

fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

impl Agent {
    /// Until shutdown; a broken session is begun again, as an agent would.
    pub(crate) async fn run(self, tasks: Tasks) -> Result<(), Infallible> {
        let mut backoff = Backoff::new(Duration::from_millis(800), Duration::from_secs(30));
        let mut memory = Memory::default();
        loop {
            let ended = tokio::select! {
                ended = self.session(&mut memory, &tasks) => ended,
                () = tasks.shutdown().requested() => return Ok(()),
            };
            if let Err(error) = ended {
                self.fleet.measures.failed(&error);
            }
            if !backoff.wait(tasks.shutdown()).await {
                return Ok(());
            }
        }
    }

    /// One request, timed; the status codes given are good.
    async fn ask(
        &self,
        api: &Api,
        what: (&str, &str, &str),
        body: &Value,
        good: &[u16],
    ) -> anyhow::Result<(u16, Bytes)> {
        let (method, path, kind) = what;
        let (status, answer) = loop {
            let begin = Instant::now();
            let (status, answer) = api.send(method, path, kind, body).await?;
            self.fleet.measures.took(begin.elapsed());
            if status != 429 {
                break (status, answer);
            }
            // The server asks for patience; client-go waits for what it says, which is a second.
            self.fleet.measures.refused.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(RETRY).await;
        };
        if !good.contains(&status) {
            bail!("{method} {path}: {status} {}", String::from_utf8_lossy(&answer));
        }
        Ok((status, answer))
    }

    async fn session(&self, memory: &mut Memory, tasks: &Tasks) -> anyhow::Result<()> {
        let api = Api::connect(&self.node, tasks).await?;
        let proxy = Api::connect(&self.proxy, tasks).await?;
        let own = format!("metadata.name%3D{}", self.name);
        let mine = format!("spec.nodeName%3D{}", self.name);
        self.register(&api).await?;
        self.status(&api).await?;
        let mut lease = self.first_lease(&api).await?;
        if !std::mem::replace(&mut memory.ready, true) {
            self.fleet.ready.send_modify(|n| *n += 1);
        }
        // What the node watches, then what the network does under its own identity.
        let mut silent = FuturesUnordered::new();
        silent.push(self.count(&api, "/api/v1/services", ""));
        silent.push(self.count(&api, "/api/v1/nodes", &own));
        for path in [
            "/api/v1/services",
            "/apis/discovery.k8s.io/v1/endpointslices",
            "/apis/networking.k8s.io/v1/servicecidrs",
        ] {
            silent.push(self.count(&proxy, path, ""));
        }
        silent.push(self.count(&proxy, "/api/v1/nodes", &own));
        for path in &self.fleet.also_watch {
            silent.push(self.count(&proxy, path, ""));
        }
        let mut pods = api.watch("/api/v1/pods", &mine).await?;
        // Agents do not renew at one moment.
        let share = self.number as f64 / self.fleet.count.max(1) as f64;
        let mut renew_at = tokio::time::Instant::now() + RENEW.mul_f64(share);
        let mut status_at = tokio::time::Instant::now() + STATUS;
        loop {
            tokio::select! {
                ended = silent.next() => ended.unwrap_or(Ok(()))?,
                event = pods.event() => {
                    let Some(event) = event? else { pods = api.watch("/api/v1/pods", &mine).await?; continue };
                    self.pod(&api, memory, &event).await?;
                }
                () = tokio::time::sleep_until(renew_at) => {
                    renew_at += RENEW;
                    lease = self.renew(&api, lease).await?;
                }
                () = tokio::time::sleep_until(status_at) => {
                    status_at += STATUS;
                    self.status(&api).await?;
                }
            }
        }
    }

    /// Follows a watch that only costs: events are counted. Begun again when the server ends it.
    async fn count(&self, api: &Api, path: &str, selector: &str) -> anyhow::Result<()> {
        loop {
            let mut watch = api.watch(path, selector).await?;
            while let Some(bytes) = watch.bytes().await? {
                let lines = bytes.iter().filter(|b| **b == b'\n').count() as u64;
                self.fleet.measures.events.fetch_add(lines, Ordering::Relaxed);
                self.fleet.measures.event_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            }
        }
    }

    async fn register(&self, api: &Api) -> anyhow::Result<()> {
        let body = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name,
            "labels": {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64"},
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}}});
        self.ask(api, ("POST", "/api/v1/nodes", "application/json"), &body, &[201, 409]).await?;
        Ok(())
    }

    async fn status(&self, api: &Api) -> anyhow::Result<()> {
        let now = now();
        let condition = |kind: &str, status: &str, reason: &str| {
            json!({
                "type": kind, "status": status, "reason": reason, "message": reason,
                "lastHeartbeatTime": now, "lastTransitionTime": now,
            })
        };
        let amounts =
            json!({"cpu": "4", "memory": "8Gi", "ephemeral-storage": "100Gi", "pods": "110"});
        let (high, low) = (self.number / 250, self.number % 250 + 1);
        let body = json!({"status": {"capacity": amounts, "allocatable": amounts,
            "conditions": [condition("MemoryPressure", "False", "KubeletHasSufficientMemory"), condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID"), condition("Ready", "True", "KubeletReady")],
            "addresses": [{"type": "InternalIP", "address": format!("198.18.{high}.{low}")}, {"type": "Hostname", "address": self.name}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {"machineID": self.name, "systemUUID": self.name, "bootID": self.name, "kernelVersion": "6.12.0", "osImage": "simulated", "containerRuntimeVersion": "containerd://2.4.0",
                "kubeletVersion": "v1.37.1", "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "amd64"}}});
        let path = format!("/api/v1/nodes/{}/status", self.name);
        let patch = "application/strategic-merge-patch+json";
        self.ask(api, ("PATCH", &path, patch), &body, &[200]).await?;
        Ok(())
    }

    async fn first_lease(&self, api: &Api) -> anyhow::Result<Value> {
        const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
        let own = format!("{PATH}/{}", self.name);
        let get = ("GET", own.as_str(), "application/json");
        let (status, found) = self.ask(api, get, &Value::Null, &[200, 404]).await?;
        if status == 200 {
            return Ok(serde_json::from_slice(&found)?);
        }
        let body = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self.name, "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": self.name, "leaseDurationSeconds": 40, "renewTime": jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()}});
        let (_, made) = self.ask(api, ("POST", PATH, "application/json"), &body, &[201]).await?;
        Ok(serde_json::from_slice(&made)?)
    }

    async fn renew(&self, api: &Api, mut lease: Value) -> anyhow::Result<Value> {
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
        *lease.pointer_mut("/spec/renewTime").context("a lease without renewTime")? = now.into();
        let path =
            format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{}", self.name);
        let (_, lease) = self.ask(api, ("PUT", &path, "application/json"), &lease, &[200]).await?;
        Ok(serde_json::from_slice(&lease)?)
    }

    /// A new pod runs at once; one that is to end has ended.
    async fn pod(&self, api: &Api, memory: &mut Memory, event: &Value) -> anyhow::Result<()> {
        let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str);
        let (Some(namespace), Some(name)) =
            (text("/object/metadata/namespace"), text("/object/metadata/name"))
        else {
            return Ok(());
        };
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        if text("/type") == Some("DELETED") || text("/object/status/phase") != Some("Pending") {
            return Ok(());
        }
        if text("/object/metadata/deletionTimestamp").is_some() {
            let body =
                json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0});
            self.ask(api, ("DELETE", &path, "application/json"), &body, &[200, 404]).await?;
            return Ok(());
        }
        memory.pods += 1;
        let now = now();
        let ip = format!("198.19.{}.{}", self.number % 250, memory.pods % 250 + 1);
        let condition =
            |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now});
        let container = text("/object/spec/containers/0/name").unwrap_or("c");
        let image = text("/object/spec/containers/0/image").unwrap_or_default();
        let body = json!({"metadata": {"uid": text("/object/metadata/uid")}, "status": {"phase": "Running", "startTime": now, "hostIP": "198.18.0.1", "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": [condition("PodReadyToStartContainers"), condition("Initialized"), condition("Ready"), condition("ContainersReady")],
            "containerStatuses": [{"name": container, "image": image, "imageID": image, "containerID": format!("containerd://{name}"), "ready": true, "started": true, "restartCount": 0,
                "state": {"running": {"startedAt": now}}, "lastState": {}}]}});
        let patch = "application/strategic-merge-patch+json";
        self.ask(api, ("PATCH", &format!("{path}/status"), patch), &body, &[200, 404]).await?;
        *self.fleet.on_node.lock().entry(self.number).or_default() += 1;
        self.fleet.running.send_modify(|n| *n += 1);
        Ok(())
    }
}
