//! Deletes pods that no other controller deletes: on deleted nodes, deleted before they had a node,
//! and finished ones above a limit.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::Object;
use api::k8s::api::core::v1::{Node, Pod};
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use api::k8s::jiff::Timestamp;
use base::clock;
use client::{Action, Change, Client, DeleteOptions, Error, Informer, Patch};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use sorting::CompactSort as _;
use tokio::time::Instant;

use crate::framework::context::Context;
use crate::framework::keyed::{Key, Keyed, settled};
use crate::framework::{nodes, pods};
use crate::workloads::metrics;

/// How long a node must be gone (`quarantineTime`).
const QUARANTINE: Duration = Duration::from_secs(40);
/// Pace of counting finished pods (`gcCheckPeriod`).
const COUNT_EVERY: Duration = Duration::from_secs(20);
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

struct Controller {
    client: Client,
    nodes: Informer<Node>,
    pods: Informer<Pod>,
    /// Nodes that pods name and that do not exist, with when we noticed.
    missing: Mutex<HashMap<String, Instant>>,
    /// `--terminated-pod-gc-threshold`.
    terminated: usize,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client("pod-garbage-collector");
    let terminated = context.config.tuning.terminated_pods;
    let (nodes, pods) = (context.informers.of::<Node>(), context.informers.of::<Pod>());
    nodes::index_pods(&pods);
    let mut keyed = Keyed::new();
    let (known, all, queue) = (nodes.clone(), pods.clone(), keyed.queue.clone());
    keyed.watches(&pods, move |change| {
        if all.cache().len() > terminated {
            // No pod: the finished ones are counted.
            queue.add_after((String::new(), String::new()), COUNT_EVERY);
        }
        let object = change.object();
        let gone = matches!(change, Change::Deleted(_));
        let facts = PodFields::of(object);
        let lost = || facts.node().is_some_and(|n| known.cache().get("", n).is_none());
        let deleting = facts.metadata.deletion_timestamp.is_some();
        (!gone && (deleting || lost())).then(|| key(object)).into_iter().collect()
    });
    let on_node = pods.clone();
    keyed.watches(&nodes, move |change| {
        let node = change.object();
        let concerned = match change {
            Change::Deleted(_) => true,
            Change::Added(node) | Change::Updated { new: node, .. } => {
                client::informer::decode::<Node>(node).is_some_and(|n| out_of_service(&n))
            }
        };
        if !concerned {
            return Vec::new();
        }
        on_node.cache().by_index(nodes::BY_NODE, &node.key.name).iter().map(|o| key(o)).collect()
    });
    let controller =
        Arc::new(Controller { client, nodes, pods, missing: Mutex::default(), terminated });
    keyed.run(&context.tasks, "pod-garbage-collector-controller", 2, move |key| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(&key).await }
    });
}

fn key(object: &Object) -> Key {
    (object.key.namespace.to_string(), object.key.name.to_string())
}

/// The few fields that tell whether a pod concerns us.
#[derive(Deserialize, Default)]
#[serde(default)]
struct PodFields {
    metadata: PodFieldsMeta,
    spec: PodFieldsSpec,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct PodFieldsMeta {
    deletion_timestamp: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct PodFieldsSpec {
    node_name: String,
}

impl PodFields {
    fn of(object: &Object) -> Self {
        serde_json::from_slice(object.raw()).unwrap_or_default()
    }

    fn node(&self) -> Option<&str> {
        Some(self.spec.node_name.as_str()).filter(|n| !n.is_empty())
    }
}

fn out_of_service(node: &Node) -> bool {
    nodes::ready(node) != Some("True")
        && nodes::taints(node).iter().any(|t| t.key == OUT_OF_SERVICE)
}

/// What to do with one pod.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Keep,
    /// Its node does not exist; certain only after a while.
    Orphan,
    /// It is being deleted, and no kubelet finishes the deletion.
    Remove,
}

/// `node` is the pod's node, when that exists.
fn verdict(pod: &Pod, node: Option<&Node>) -> Verdict {
    let deleting = pod.metadata.deletion_timestamp.is_some();
    match (pods::is_scheduled(pod), node) {
        // Only finalizers keep it.
        _ if deleting
            && pod.metadata.deletion_grace_period_seconds == Some(0)
            && pods::is_terminal(pod) =>
        {
            Verdict::Keep
        }
        (false, _) if deleting => Verdict::Remove,
        (true, None) => Verdict::Orphan,
        (true, Some(node)) if deleting && out_of_service(node) => Verdict::Remove,
        (false | true, _) => Verdict::Keep,
    }
}

/// The finished pods beyond `max`: evicted ones first, then the oldest.
fn too_many(mut finished: Vec<Pod>, max: usize) -> Vec<Pod> {
    let excess = finished.len().saturating_sub(max);
    finished.compact_sort_by_cached_key(|pod| {
        let status = pod.status.as_ref();
        let evicted = pods::phase(pod) == "Failed"
            && status.and_then(|s| s.reason.as_deref()) == Some("Evicted");
        let created = pod.metadata.creation_timestamp.as_ref().map(|Time(t)| *t);
        (!evicted, created, pod.metadata.name.clone())
    });
    finished.truncate(excess);
    finished
}

impl Controller {
    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        if key.1.is_empty() {
            // Decoded one after the other: all pods as structs at once are ten times as large as
            // their bytes.
            let all = self.pods.cache().list("");
            let decoded = all.iter().filter_map(|pod| client::informer::decode(pod));
            let finished = decoded.filter(pods::is_terminal).collect();
            for pod in too_many(finished, self.terminated) {
                self.remove(&pod, "terminated", None).await?;
            }
            return Ok(Action::Done);
        }
        let Some(pod) = self.pods.get(&key.0, &key.1) else { return Ok(Action::Done) };
        let name = pod.spec.as_ref().and_then(|s| s.node_name.clone()).unwrap_or_default();
        let node = self.nodes.get("", &name);
        if node.is_some() {
            self.missing.lock().remove(&name);
        }
        match verdict(&pod, node.as_ref()) {
            Verdict::Keep => Ok(Action::Done),
            Verdict::Remove => {
                let reason =
                    if pods::is_scheduled(&pod) { "out-of-service" } else { "unscheduled" };
                self.remove(&pod, reason, None).await
            }
            Verdict::Orphan => {
                let now = clock::now();
                let since = {
                    let mut missing = self.missing.lock();
                    // Names that no pod has any more are forgotten.
                    missing.retain(|n, at| *n == name || now - *at < QUARANTINE * 10);
                    *missing.entry(name.clone()).or_insert(now)
                };
                let waited = now.saturating_duration_since(since);
                if waited < QUARANTINE {
                    return Ok(Action::After(QUARANTINE - waited));
                }
                match self.client.get::<Node>("", &name).await {
                    Ok(_) => {
                        self.missing.lock().remove(&name);
                        Ok(Action::Done)
                    }
                    Err(error) if error.is_not_found() => {
                        let why = "PodGC: node no longer exists";
                        self.remove(&pod, "orphaned", Some(why)).await
                    }
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// Ends the pod's life in the API and records it. `reason` is that of the metrics.
    async fn remove(&self, pod: &Pod, reason: &str, why: Option<&str>) -> Result<Action, Error> {
        let outcome = self.fail_and_delete(pod, why).await;
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        metrics::pod_collected(namespace, reason, outcome.is_ok());
        outcome
    }

    /// Fails the pod, unless it finished, then deletes it.
    async fn fail_and_delete(&self, pod: &Pod, why: Option<&str>) -> Result<Action, Error> {
        let meta = &pod.metadata;
        let (namespace, name) = (
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default(),
        );
        if !pods::is_terminal(pod) {
            let mut status = json!({"phase": "Failed", "observedGeneration": meta.generation});
            if let Some(message) = why {
                status["conditions"] = json!([{
                    "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC",
                    "message": message, "lastTransitionTime": Time(Timestamp::now()),
                    "observedGeneration": meta.generation,
                }]);
            }
            let patch = json!({"metadata": {"uid": meta.uid}, "status": status});
            settled(
                self.client
                    .patch::<Pod>(namespace, name, "status", &Patch::Strategic(&patch))
                    .await,
            )?;
        }
        let options = DeleteOptions {
            grace_period_seconds: Some(0),
            uid: meta.uid.clone(),
            ..DeleteOptions::default()
        };
        settled(self.client.delete::<Pod>(namespace, name, &options).await)?;
        Ok(Action::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn pod(name: &str, node: &str, phase: &str, extra: &Value) -> Pod {
        let mut value = json!({"metadata": {"name": name},
            "spec": {"containers": [], "nodeName": node}, "status": {"phase": phase}});
        for (path, field) in extra.as_object().into_iter().flatten() {
            *value.pointer_mut(path.rsplit_once('/').unwrap().0).unwrap() = {
                let (parent, last) = path.rsplit_once('/').unwrap();
                let mut at = value.pointer(parent).unwrap().clone();
                at[last] = field.clone();
                at
            };
        }
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn orphans_and_deleted_pods_without_a_node_go() {
        let deleted = json!({"/metadata/deletionTimestamp": "2026-01-01T00:00:00Z"});
        let only_finalizers = json!({"/metadata/deletionTimestamp": "2026-01-01T00:00:00Z",
            "/metadata/deletionGracePeriodSeconds": 0});
        let sick: Node = serde_json::from_value(json!({"metadata": {"name": "n"},
            "spec": {"taints": [{"key": OUT_OF_SERVICE, "effect": "NoExecute"}]}}))
        .unwrap();
        let well: Node = serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap();
        assert_eq!(verdict(&pod("p", "gone", "Running", &json!({})), None), Verdict::Orphan);
        assert_eq!(verdict(&pod("p", "", "Pending", &json!({})), None), Verdict::Keep);
        assert_eq!(verdict(&pod("p", "", "Pending", &deleted), None), Verdict::Remove);
        assert_eq!(verdict(&pod("p", "", "Failed", &only_finalizers), None), Verdict::Keep);
        assert_eq!(verdict(&pod("p", "n", "Running", &deleted), Some(&well)), Verdict::Keep);
        assert_eq!(verdict(&pod("p", "n", "Running", &deleted), Some(&sick)), Verdict::Remove);
    }

    #[test]
    fn evicted_pods_go_before_older_ones() {
        let old = json!({"/metadata/creationTimestamp": "2026-01-01T00:00:00Z"});
        let new = json!({"/metadata/creationTimestamp": "2026-02-01T00:00:00Z"});
        let evicted = json!({"/metadata/creationTimestamp": "2026-03-01T00:00:00Z",
            "/status/reason": "Evicted"});
        let all = vec![
            pod("new", "n", "Succeeded", &new),
            pod("old", "n", "Failed", &old),
            pod("evicted", "n", "Failed", &evicted),
        ];
        let names: Vec<String> =
            too_many(all, 1).into_iter().filter_map(|p| p.metadata.name).collect();
        assert_eq!(names, ["evicted", "old"]);
    }
}
