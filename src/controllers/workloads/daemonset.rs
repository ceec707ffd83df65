//! DaemonSets: one pod on each node that fits.

mod nodes;
mod plan;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::apps::v1::{ControllerRevision, DaemonSet};
use api::k8s::api::core::v1::{Node, Pod};
use api::k8s::jiff::Timestamp;
use client::events::EventType;
use client::{Action, Change, Error, Expectations, Informer, controller_of, meta, owner_reference};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::framework::adoption;
use crate::framework::context::Context;
use crate::framework::keyed::{Key, Keyed, settled};
use crate::framework::pod_control::{PodControl, pod_from_template};
use crate::framework::pods;
use crate::workloads::revision_history;
use crate::workloads::revision_history::{History, Snapshot};
use plan::{GENERATION_ANNOTATION, GENERATION_LABEL, HASH_LABEL, Plan, View};

/// Service account.
const CONTROLLER: &str = "daemon-set-controller";
/// Event source.
const COMPONENT: &str = "daemonset-controller";
/// Workers (`--concurrent-daemonset-syncs`).
const WORKERS: usize = 2;
/// Pods created or deleted in one sync (`daemon.BurstReplicas`).
const BURST_MAX: usize = 250;
/// Back-off of replacing failed pods on one node: the first, and the longest.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(15 * 60));

/// When a failed pod of a node was last replaced, and how long the next one waits: by DaemonSet,
/// then generation and node.
type BackOffs = HashMap<String, HashMap<(i64, String), (Instant, Duration)>>;

struct Controller {
    control: PodControl,
    sets: Informer<DaemonSet>,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    revisions: Informer<ControllerRevision>,
    expectations: Arc<Expectations>,
    back_offs: Mutex<BackOffs>,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client(CONTROLLER);
    let recorder = context.recorder(&client, COMPONENT);
    let controller = Arc::new(Controller {
        control: PodControl { client, recorder },
        sets: context.informers.of(),
        pods: context.informers.of(),
        nodes: context.informers.of(),
        revisions: context.informers.of(),
        expectations: Arc::new(Expectations::new()),
        back_offs: Mutex::new(HashMap::new()),
    });
    adoption::index(&controller.pods);
    adoption::index(&controller.revisions);
    let mut keyed = Keyed::new();
    keyed.watches_self(&controller.sets);
    keyed.waits_for_sync(&controller.revisions);
    let (known, expected) = (controller.sets.clone(), Arc::clone(&controller.expectations));
    keyed.watches(&controller.pods, move |change| {
        observe(change, &expected);
        adoption::owners_of(change, &known, |set: &DaemonSet, pod| {
            client::labels::selects(&set.spec.selector, pod.labels.as_ref())
        })
    });
    let known = controller.sets.clone();
    keyed.watches(&controller.nodes, move |change| {
        if node_matters(change) { all_keys(&known) } else { Vec::new() }
    });
    keyed.run(&context.tasks, CONTROLLER, WORKERS, move |(namespace, name)| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(&namespace, &name).await }
    });
}

/// Reports the change of a pod to the expectations of its DaemonSet.
fn observe(change: &Change, expectations: &Expectations) {
    let object = change.object();
    let Some(pod) = meta(object) else { return };
    let Some(owner) = controller_of(&pod).filter(|o| o.kind == "DaemonSet") else { return };
    let key = format!("{}/{}", object.key.namespace, owner.name);
    pods::observed(change, &pod, &key, expectations);
}

/// Nodes come and go, and their labels and taints change; everything else is a heartbeat.
fn node_matters(change: &Change) -> bool {
    let Change::Updated { old, new } = change else { return true };
    let facts = |object| {
        let node: Option<Node> = client::informer::decode(object);
        node.map(|n| (n.metadata.labels, n.spec.and_then(|s| s.taints)))
    };
    facts(old) != facts(new)
}

fn all_keys(sets: &Informer<DaemonSet>) -> Vec<Key> {
    let objects = sets.cache().list("");
    objects.iter().map(|o| (o.key.namespace.to_string(), o.key.name.to_string())).collect()
}

impl Controller {
    async fn reconcile(&self, namespace: &str, name: &str) -> Result<Action, Error> {
        let key = format!("{namespace}/{name}");
        let Some(set) = self.sets.get(namespace, name) else {
            self.expectations.forget(&key);
            self.back_offs.lock().remove(&key);
            return Ok(Action::Done);
        };
        if client::labels::is_empty(&set.spec.selector) {
            let message =
                "This daemon set is selecting all pods. A non-empty selector is required.";
            self.control.recorder.event(&set, EventType::Warning, "SelectingAll", message);
            return Ok(Action::Done);
        }
        if set.metadata.deletion_timestamp.is_some() {
            return Ok(Action::Done);
        }
        let snapshot = Snapshot {
            selector: &set.spec.selector,
            template: &set.spec.template,
            collisions: set.status.as_ref().and_then(|s| s.collision_count),
            hash_label: HASH_LABEL,
        };
        let history =
            revision_history::construct(&self.control.client, &self.revisions, &set, &snapshot)
                .await?;
        let hash = revision_history::hash_of(&history.current, HASH_LABEL).to_owned();
        let satisfied = self.expectations.satisfied(&key);
        let selects = |m: &api::k8s::apimachinery::pkg::apis::meta::v1::ObjectMeta| {
            client::labels::selects(&set.spec.selector, m.labels.as_ref())
        };
        let pods =
            adoption::claim_all(&self.control.client, &set, &self.pods, selects, |_| true).await?;
        let view = View::new(&set, &hash, self.nodes.list(""), &pods, Timestamp::now());
        let mut again = None;
        let mut outcome = Ok(());
        if satisfied {
            outcome = self.act(&key, &view, &history, &pods, &mut again).await;
        }
        self.write_status(&view, satisfied, history.collisions).await?;
        outcome?;
        let status = view.status(satisfied, None);
        let min_ready = set.spec.min_ready_seconds.unwrap_or(0);
        if min_ready > 0 && status.number_ready != status.number_available.unwrap_or(0) {
            let wait = Duration::from_secs(u64::try_from(min_ready).unwrap_or(0));
            again = Some(again.map_or(wait, |a: Duration| a.min(wait)));
        }
        Ok(again.map_or(Action::Done, Action::After))
    }

    async fn act(
        &self,
        key: &str,
        view: &View<'_>,
        history: &History,
        pods: &[Pod],
        again: &mut Option<Duration>,
    ) -> Result<(), Error> {
        let mut plan = view.manage();
        self.replace_failed(key, view.set, &mut plan, again);
        self.apply(key, view, plan).await?;
        let strategy = view.set.spec.update_strategy.as_ref().and_then(|s| s.type_.as_deref());
        if self.expectations.satisfied(key) && strategy != Some("OnDelete") {
            self.apply(key, view, view.roll()).await?;
        }
        let live = |revision: &ControllerRevision| {
            let hash = revision_history::hash_of(revision, HASH_LABEL);
            pods.iter().any(|p| {
                p.metadata
                    .labels
                    .as_ref()
                    .and_then(|l| l.get(HASH_LABEL))
                    .is_some_and(|h| h == hash)
            })
        };
        let limit = view.set.spec.revision_history_limit.unwrap_or(10);
        revision_history::truncate(&self.control.client, &history.old, limit, live).await
    }

    /// Moves finished pods to those deleted; failed ones wait out their node's back-off, since a
    /// node that refuses a pod refuses the next one, too.
    fn replace_failed(
        &self,
        key: &str,
        set: &DaemonSet,
        plan: &mut Plan,
        again: &mut Option<Duration>,
    ) {
        let recorder = &self.control.recorder;
        let full = |pod: &Pod| {
            let meta = &pod.metadata;
            let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
            format!("{}/{}", namespace.unwrap_or_default(), name.unwrap_or_default())
        };
        for pod in std::mem::take(&mut plan.succeeded) {
            let node = nodes::target(&pod).unwrap_or_default();
            let message = format!(
                "Found succeeded daemon pod {} on node {node}, will try to delete it",
                full(&pod)
            );
            recorder.event(set, EventType::Normal, "SucceededDaemonPod", message);
            plan.delete.push(pod);
        }
        let generation = set.status.as_ref().and_then(|s| s.observed_generation).unwrap_or(0);
        for (node, pod) in std::mem::take(&mut plan.failed) {
            let wait = self.back_off(key, generation, &node);
            if let Some(wait) = wait {
                *again = Some(again.map_or(wait, |a: Duration| a.min(wait)));
                continue;
            }
            let message = format!(
                "Found failed daemon pod {} on node {node}, will try to kill it",
                full(&pod)
            );
            recorder.event(set, EventType::Warning, "FailedDaemonPod", message);
            plan.delete.push(pod);
        }
    }

    /// How long a failed pod of this node still waits; `None` lets it go and doubles the next wait.
    fn back_off(&self, key: &str, generation: i64, node: &str) -> Option<Duration> {
        let now = base::clock::now();
        let mut all = self.back_offs.lock();
        let entries = all.entry(key.to_owned()).or_default();
        entries.retain(|_, (since, _)| now.duration_since(*since) <= 2 * BACK_OFF.1);
        match entries.get_mut(&(generation, node.to_owned())) {
            Some((since, wait)) => {
                let passed = now.duration_since(*since);
                if passed < *wait {
                    return Some(*wait - passed);
                }
                *since = now;
                *wait = (*wait * 2).min(BACK_OFF.1);
            }
            None => {
                entries.insert((generation, node.to_owned()), (now, BACK_OFF.0));
            }
        }
        None
    }

    /// Creates in batches of 1, 2, 4 … and deletes, at most [`BURST_MAX`] of each.
    async fn apply(&self, key: &str, view: &View<'_>, plan: Plan) -> Result<(), Error> {
        let (mut create, mut delete) = (plan.create, plan.delete);
        create.truncate(BURST_MAX);
        delete.truncate(BURST_MAX);
        if create.is_empty() && delete.is_empty() {
            return Ok(());
        }
        self.expectations.expect_creations(key, create.len());
        self.expectations
            .expect_deletions(key, delete.iter().filter_map(|p| p.metadata.uid.clone()));
        let mut outcome = Ok(());
        let mut done = 0;
        let mut batch = 1;
        while done < create.len() && outcome.is_ok() {
            let nodes = create.iter().skip(done).take(batch);
            let tries = nodes.map(|node| self.create(view, node));
            for result in futures::future::join_all(tries).await {
                done += 1;
                if let Err(error) = result {
                    self.expectations.creation_observed(key);
                    if !error.is_namespace_terminating() {
                        outcome = Err(error);
                    }
                }
            }
            batch *= 2;
        }
        for _ in done..create.len() {
            self.expectations.creation_observed(key);
        }
        let tries = delete.iter().map(|pod| self.control.delete(view.set, pod));
        for (result, pod) in futures::future::join_all(tries).await.into_iter().zip(&delete) {
            if let Err(error) = result {
                let uid = pod.metadata.uid.as_deref().unwrap_or_default();
                self.expectations.deletion_observed(key, uid);
                outcome = outcome.and(Err(error));
            }
        }
        outcome
    }

    async fn create(&self, view: &View<'_>, node: &str) -> Result<(), Error> {
        let set = view.set;
        let meta = &set.metadata;
        let mut pod = pod_from_template(
            &set.spec.template,
            meta.name.as_deref().unwrap_or_default(),
            meta.namespace.as_deref().unwrap_or_default(),
            owner_reference(set),
        );
        let labels = pod.metadata.labels.get_or_insert_default();
        labels.insert(HASH_LABEL.into(), view.hash.to_owned());
        let generation = meta.annotations.as_ref().and_then(|a| a.get(GENERATION_ANNOTATION));
        if let Some(generation) = generation.filter(|g| g.parse::<i64>().is_ok()) {
            labels.insert(GENERATION_LABEL.into(), generation.clone());
        }
        let spec = pod.spec.get_or_insert_default();
        nodes::add_tolerations(spec);
        nodes::pin(spec, node);
        self.control.create(set, &pod).await.map(drop)
    }

    async fn write_status(
        &self,
        view: &View<'_>,
        acted: bool,
        collisions: Option<i32>,
    ) -> Result<(), Error> {
        let status = view.status(acted, collisions);
        if view.set.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let changed = DaemonSet { status: Some(status), ..view.set.clone() };
        settled(self.control.client.update_status(&changed).await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(condition: &str, taint: &str) -> Arc<api::Object> {
        let node = json!({"metadata": {"name": "n", "resourceVersion": "1"},
            "spec": {"taints": [{"key": taint, "effect": "NoSchedule"}]},
            "status": {"conditions": [{"type": "Ready", "status": condition}]}});
        Arc::new(api::Object::from_value(node).unwrap())
    }

    #[test]
    fn heartbeats_of_nodes_wake_nobody() {
        let change = |old, new| Change::Updated { old, new };
        assert!(!node_matters(&change(node("True", "a"), node("False", "a"))));
        assert!(node_matters(&change(node("True", "a"), node("True", "b"))));
    }
}
