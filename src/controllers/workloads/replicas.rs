//! Keeps a number of pods for an owner: the engine of ReplicaSets and ReplicationControllers.

mod decoded_pods;
mod pod_parts;

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use api::k8s::api::core::v1::{Pod, PodTemplateSpec};
use api::k8s::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, Time};
use api::k8s::jiff::Timestamp;
use client::labels::Labels;
use client::{
    Action, Change, Error, Expectations, Informer, Kind, Queue, controller_of, meta,
    owner_reference, run_workers,
};
use sorting::CompactSort as _;

use crate::framework::adoption;
use crate::framework::context::Context;
use crate::framework::keyed::{STATUS_BATCH, own_delay, own_key};
use crate::framework::pod_control::{PodControl, pod_from_template};
use crate::framework::pods;
use crate::workloads::metrics;
use decoded_pods::DecodedPods;

/// Pods created or deleted in one sync (`replicaset.BurstReplicas`).
const BURST_MAX: usize = 500;
/// First batch of creations; each success doubles it (`controller.SlowStartInitialBatchSize`).
const SLOW_START: usize = 1;
/// Workers per controller (`--concurrent-replicaset-syncs`).
const WORKERS: usize = 5;

/// What the engine needs to know of an owner's spec.
#[derive(Debug, Clone)]
pub(crate) struct ReplicaSpec {
    pub(crate) replicas: i32,
    pub(crate) selector: LabelSelector,
    pub(crate) template: PodTemplateSpec,
    pub(crate) min_ready_seconds: i32,
}

/// What the engine found, for the owner's status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ReplicaCounts {
    pub(crate) replicas: i32,
    pub(crate) fully_labeled: i32,
    pub(crate) ready: i32,
    pub(crate) available: i32,
    pub(crate) terminating: i32,
}

/// A kind that keeps replicas.
pub(crate) trait ReplicaOwner: Kind {
    /// Name of the controller's service account and event source.
    const CONTROLLER: &'static str;
    /// The spec; `None` when it selects nothing.
    fn replica_spec(&self) -> Option<ReplicaSpec>;
    /// The object with the status after this sync, or `None` when nothing changed. `failure` is
    /// reason and text of a creation or deletion that failed.
    fn with_status(
        &self,
        counts: &ReplicaCounts,
        failure: Option<&ReplicaFailure>,
        now: Timestamp,
    ) -> Option<Self>;
}

/// A failed sync, as in the condition `ReplicaFailure`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReplicaFailure {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

struct Engine<K> {
    owners: Informer<K>,
    pods: Informer<Pod>,
    control: PodControl,
    expectations: Arc<Expectations>,
    decoded: DecodedPods,
}

/// Registers listeners and starts workers for owners of kind `K`.
pub(crate) fn start<K: ReplicaOwner>(context: &Context) {
    let client = context.client(K::CONTROLLER);
    let recorder = context.recorder(&client, K::CONTROLLER);
    let (owners, pods) = (context.informers.of::<K>(), context.informers.of::<Pod>());
    adoption::index(&pods);
    owners.add_index(adoption::BY_CONTROLLER, adoption::controller_uid);
    let queue: Queue<(String, String)> = Queue::new();
    let expectations = Arc::new(Expectations::new());

    let q = queue.clone();
    owners.on_change(move |change| q.add_after(own_key(change), own_delay(change)));
    let (q, expected, known) = (queue.clone(), Arc::clone(&expectations), owners.clone());
    pods.on_change(move |change| pod_changed::<K>(change, &known, &q, &expected));

    let control = PodControl { client, recorder };
    let decoded = DecodedPods::default();
    let engine = Arc::new(Engine { owners, pods, control, expectations, decoded });
    let informers = (engine.owners.clone(), engine.pods.clone());
    queue.set_name(crate::framework::queue_names::of(K::CONTROLLER));
    run_workers(&context.tasks, K::CONTROLLER, WORKERS, &queue, move |key: (String, String)| {
        let (engine, informers) = (Arc::clone(&engine), informers.clone());
        async move {
            informers.0.synced().await;
            informers.1.synced().await;
            engine.reconcile(&key.0, &key.1).await
        }
    });
}

/// Wakes the owners that a pod's change concerns.
fn pod_changed<K: ReplicaOwner>(
    change: &Change,
    owners: &Informer<K>,
    queue: &Queue<(String, String)>,
    expectations: &Expectations,
) {
    let object = change.object();
    let Some(pod) = meta(object) else { return };
    let namespace = object.key.namespace.to_string();
    if let Some(owner) = controller_of(&pod) {
        if owner.kind == K::KIND && owner.api_version == K::API_VERSION {
            let key = format!("{namespace}/{}", owner.name);
            pods::observed(change, &pod, &key, expectations);
            queue.add_after((namespace.clone(), owner.name.clone()), STATUS_BATCH);
        }
    } else if !matches!(change, Change::Deleted(_)) {
        wake_matching(owners, queue, &namespace, pod.labels.as_ref());
    }
    // A pod that was released or changed hands concerns its owner of before, too.
    if let Change::Updated { old, .. } = change {
        let before = meta(old);
        let before = before.as_deref().and_then(controller_of).filter(|o| o.kind == K::KIND);
        if let Some(before) =
            before.filter(|o| controller_of(&pod).is_none_or(|now| now.uid != o.uid))
        {
            queue.add_after((namespace, before.name.clone()), STATUS_BATCH);
        }
    }
}

fn wake_matching<K: ReplicaOwner>(
    owners: &Informer<K>,
    queue: &Queue<(String, String)>,
    namespace: &str,
    labels: Option<&Labels>,
) {
    for owner in owners.list(namespace) {
        if owner.replica_spec().is_some_and(|w| client::labels::selects(&w.selector, labels)) {
            queue.add((namespace.to_owned(), owner.metadata().name.clone().unwrap_or_default()));
        }
    }
}

impl<K: ReplicaOwner> Engine<K> {
    async fn reconcile(&self, namespace: &str, name: &str) -> Result<Action, Error> {
        let key = format!("{namespace}/{name}");
        let Some(owner) = self.owners.get(namespace, name) else {
            self.expectations.forget(&key);
            self.decoded.forget(&key);
            return Ok(Action::Done);
        };
        let Some(wanted) = owner.replica_spec() else { return Ok(Action::Done) };
        let satisfied = self.expectations.satisfied(&key);
        let pods = self.claim(&key, &owner, &wanted).await?;
        let (active, others): (Vec<_>, Vec<_>) = pods.into_iter().partition(|p| pods::is_active(p));
        let mut failure = None;
        let mut outcome = Ok(());
        if satisfied && owner.metadata().deletion_timestamp.is_none() {
            (outcome, failure) = self.scale(&key, &owner, &wanted, &active).await;
        }
        let now = Timestamp::now();
        let terminating = others
            .iter()
            .filter(|p| !pods::is_terminal(p) && p.metadata.deletion_timestamp.is_some())
            .count();
        let counts = count(&active, terminating, &wanted, now);
        let changed = owner.with_status(&counts, failure.as_ref(), now);
        if changed.is_none() && terminating == 0 && counts.replicas == wanted.replicas {
            self.decoded.forget(&key);
        }
        if let Some(changed) = changed {
            match self.control.client.update_status(&changed).await {
                // The owner was changed or deleted: its event reconciles the key again.
                Err(error) if error.is_conflict() || error.is_not_found() => {}
                other => drop(other?),
            }
        }
        outcome?;
        if wanted.min_ready_seconds > 0
            && counts.ready == wanted.replicas
            && counts.available != wanted.replicas
        {
            return Ok(Action::After(std::time::Duration::from_secs(
                u64::try_from(wanted.min_ready_seconds).unwrap_or(0),
            )));
        }
        Ok(Action::Done)
    }

    /// The owner's pods, after adopting matching orphans and releasing pods that match no longer.
    async fn claim(
        &self,
        key: &str,
        owner: &K,
        wanted: &ReplicaSpec,
    ) -> Result<Vec<Arc<Pod>>, Error> {
        let matches =
            |pod: &ObjectMeta| client::labels::selects(&wanted.selector, pod.labels.as_ref());
        let candidates = adoption::candidates(&self.pods, owner.metadata());
        let candidates = self.decoded.update(key, &candidates);
        adoption::claim(&self.control.client, owner, candidates, matches, pods::is_active).await
    }

    /// Creates or deletes the difference.
    async fn scale(
        &self,
        key: &str,
        owner: &K,
        wanted: &ReplicaSpec,
        active: &[Arc<Pod>],
    ) -> (Result<(), Error>, Option<ReplicaFailure>) {
        let target = usize::try_from(wanted.replicas).unwrap_or(0);
        let (outcome, reason) = match active.len().cmp(&target) {
            Ordering::Less => (
                self.create(key, owner, wanted, (target - active.len()).min(BURST_MAX)).await,
                "FailedCreate",
            ),
            Ordering::Greater => (
                self.delete(key, owner, active, (active.len() - target).min(BURST_MAX)).await,
                "FailedDelete",
            ),
            Ordering::Equal => return (Ok(()), None),
        };
        let failure =
            outcome.as_ref().err().map(|e| ReplicaFailure { reason, message: e.to_string() });
        (outcome, failure)
    }

    /// Creates in batches of 1, 2, 4 …, so that a quota refusal costs few requests.
    async fn create(
        &self,
        key: &str,
        owner: &K,
        wanted: &ReplicaSpec,
        count: usize,
    ) -> Result<(), Error> {
        let owner_meta = owner.metadata();
        let namespace = owner_meta.namespace.as_deref().unwrap_or_default();
        let name = owner_meta.name.as_deref().unwrap_or_default();
        let pod = pod_from_template(&wanted.template, name, namespace, owner_reference(owner));
        self.expectations.expect_creations(key, count);
        let (mut left, mut batch) = (count, SLOW_START);
        while left > 0 {
            let size = batch.min(left);
            let results =
                futures::future::join_all((0..size).map(|_| self.control.create(owner, &pod)))
                    .await;
            left -= size;
            batch *= 2;
            let errors: Vec<Error> = results.into_iter().filter_map(Result::err).collect();
            for _ in &errors {
                self.expectations.creation_observed(key);
            }
            if let Some(error) = errors.into_iter().next() {
                for _ in 0..left {
                    self.expectations.creation_observed(key);
                }
                return if error.is_namespace_terminating() { Ok(()) } else { Err(error) };
            }
        }
        Ok(())
    }

    /// The pods of the other owners that have the controller of this one, such as the ReplicaSets
    /// of a Deployment; `None` if it has no controller.
    fn sibling_pods(&self, owner: &K) -> Option<Vec<Arc<Pod>>> {
        let (controller, uid) = (controller_of(owner.metadata())?, &owner.metadata().uid);
        let owners = self.owners.cache().by_index(adoption::BY_CONTROLLER, &controller.uid);
        let others = owners.iter().filter(|other| Some(&*other.uid) != uid.as_deref());
        let pods = self.pods.cache();
        let pods_of = |other: &Arc<api::Object>| {
            let key = other.key.to_string();
            self.decoded.get(&key, &pods.by_index(adoption::BY_CONTROLLER, &other.uid))
        };
        Some(others.flat_map(pods_of).collect())
    }

    async fn delete(
        &self,
        key: &str,
        owner: &K,
        active: &[Arc<Pod>],
        count: usize,
    ) -> Result<(), Error> {
        let active: Vec<&Pod> = active.iter().map(|pod| &**pod).collect();
        let mut ranked = active.clone();
        let now = Timestamp::now();
        if count < active.len() {
            // Without a controller above the owner, pods have no rank (`getIndirectlyRelatedPods`).
            let siblings = self.sibling_pods(owner);
            let others = siblings.iter().flatten().map(|pod| &**pod);
            let related = siblings.is_some().then(|| active.iter().copied().chain(others));
            let related = by_node(related.into_iter().flatten());
            let crowd = |pod: &Pod| related.get(node_of(pod)).copied().unwrap_or(0);
            ranked.compact_sort_by(|a, b| deletion_order(a, b, crowd(a), crowd(b), now));
            ranked.truncate(count);
            metrics::scaled_down(&active, &ranked, now);
        }
        self.expectations
            .expect_deletions(key, ranked.iter().filter_map(|p| p.metadata.uid.clone()));
        let results =
            futures::future::join_all(ranked.iter().map(|pod| self.control.delete(owner, pod)))
                .await;
        let mut first = Ok(());
        for (result, pod) in results.into_iter().zip(&ranked) {
            if let Err(error) = result {
                self.expectations
                    .deletion_observed(key, pod.metadata.uid.as_deref().unwrap_or_default());
                first = first.and(Err(error));
            }
        }
        first
    }
}

/// The number of active pods by node.
fn by_node<'a>(pods: impl Iterator<Item = &'a Pod>) -> HashMap<&'a str, usize> {
    let mut counts = HashMap::new();
    for pod in pods.filter(|pod| pods::is_active(pod)) {
        *counts.entry(node_of(pod)).or_default() += 1;
    }
    counts
}

fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or_default()
}

/// Which of two pods goes first (`controller.ActivePodsWithRanks`): unassigned, pending, not ready,
/// cheaper, on the more crowded node, ready for a shorter time (in powers of two), restarted more
/// often, younger.
pub(crate) fn deletion_order(
    a: &Pod,
    b: &Pod,
    crowd_a: usize,
    crowd_b: usize,
    now: Timestamp,
) -> Ordering {
    let phase = |p: &Pod| match pods::phase(p) {
        "Pending" => 0,
        "Running" => 2,
        _ => 1,
    };
    let ready_rank =
        |p: &Pod| pods::ready_since(p).map_or(0, |t| magnitude(now.as_second() - t.as_second()));
    let age_rank = |p: &Pod| {
        p.metadata
            .creation_timestamp
            .as_ref()
            .map_or(0, |Time(t)| magnitude(now.as_second() - t.as_second()))
    };
    pods::is_scheduled(a)
        .cmp(&pods::is_scheduled(b))
        .then(phase(a).cmp(&phase(b)))
        .then(pods::is_ready(a).cmp(&pods::is_ready(b)))
        .then(pods::deletion_cost(a).cmp(&pods::deletion_cost(b)))
        .then(crowd_b.cmp(&crowd_a))
        .then(ready_rank(a).cmp(&ready_rank(b)))
        .then(pods::restarts(b).cmp(&pods::restarts(a)))
        .then(age_rank(a).cmp(&age_rank(b)))
        .then(a.metadata.uid.cmp(&b.metadata.uid))
}

/// Powers of two of seconds: pods of about the same age are equal (`LogarithmicScaleDown`).
fn magnitude(seconds: i64) -> u32 {
    u64::try_from(seconds).unwrap_or(0).checked_ilog2().map_or(0, |log| log + 1)
}

fn count(
    active: &[Arc<Pod>],
    terminating: usize,
    wanted: &ReplicaSpec,
    now: Timestamp,
) -> ReplicaCounts {
    let labels = pods::template_labels(Some(&wanted.template));
    let number = |test: &dyn Fn(&Pod) -> bool| {
        i32::try_from(active.iter().filter(|p| test(p)).count()).unwrap_or(i32::MAX)
    };
    ReplicaCounts {
        replicas: number(&|_| true),
        fully_labeled: number(&|p| client::labels::contains(&labels, p.metadata.labels.as_ref())),
        ready: number(&|p| pods::is_ready(p)),
        available: number(&|p| pods::is_available(p, wanted.min_ready_seconds, now)),
        terminating: i32::try_from(terminating).unwrap_or(i32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, node: &str, phase: &str, ready: bool) -> Pod {
        let status = if ready { "True" } else { "False" };
        serde_json::from_value(json!({
            "metadata": {"name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"nodeName": node, "containers": []},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": status,
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]}
        }))
        .unwrap()
    }

    #[test]
    fn unassigned_then_pending_then_unready_pods_go_first() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let pods = [
            pod("d", "n", "Running", true),
            pod("c", "n", "Running", false),
            pod("b", "n", "Pending", false),
            pod("a", "", "Pending", false),
        ];
        let mut order: Vec<&Pod> = pods.iter().collect();
        order.sort_by(|a, b| deletion_order(a, b, 1, 1, now));
        let names: Vec<_> = order.iter().map(|p| p.metadata.name.as_deref().unwrap()).collect();
        assert_eq!(names, ["a", "b", "c", "d"]);
    }

    #[test]
    fn active_pods_count_on_their_nodes() {
        let mut deleted = pod("c", "n", "Running", true);
        deleted.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        let pods = [
            pod("a", "n", "Running", true),
            pod("b", "n", "Pending", false),
            pod("d", "n", "Failed", false),
            pod("e", "m", "Running", true),
            deleted,
        ];
        assert_eq!(by_node(pods.iter()), [("n", 2), ("m", 1)].into());
    }

    #[test]
    fn of_equal_pods_the_one_on_the_crowded_node_goes_first() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let (a, b) = (pod("a", "n", "Running", true), pod("b", "m", "Running", true));
        assert_eq!(deletion_order(&a, &b, 3, 1, now), Ordering::Less);
        assert_eq!(deletion_order(&a, &b, 1, 3, now), Ordering::Greater);
    }
}
