//! StatefulSets: pods with names, order, and volumes of their own.

mod identity;
mod plan;

use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::apps::v1::{ControllerRevision, StatefulSet};
use api::k8s::api::core::v1::{PersistentVolumeClaim, Pod, PodTemplateSpec};
use api::k8s::jiff::Timestamp;
use client::events::EventType;
use client::informer::decode;
use client::{Action, Change, Client, DeleteOptions, Error, EventRecorder, Informer, Patch};

use crate::framework::adoption;
use crate::framework::context::Context;
use crate::framework::keyed::{Key, Keyed, settled};
use crate::workloads::metrics;
use crate::workloads::revision_history;
use crate::workloads::revision_history::{History, Snapshot};
use plan::{Step, View};

/// Service account and event source.
const CONTROLLER: &str = "statefulset-controller";
/// Workers (`--concurrent-statefulset-syncs`).
const WORKERS: usize = 5;
/// Label of revisions with their hash (`history.ControllerRevisionHashLabel`).
const HASH_LABEL: &str = "controller.kubernetes.io/hash";

struct Controller {
    client: Client,
    recorder: EventRecorder,
    sets: Informer<StatefulSet>,
    pods: Informer<Pod>,
    claims: Informer<PersistentVolumeClaim>,
    revisions: Informer<ControllerRevision>,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client(CONTROLLER);
    let recorder = context.recorder(&client, CONTROLLER);
    let controller = Arc::new(Controller {
        client,
        recorder,
        sets: context.informers.of(),
        pods: context.informers.of(),
        claims: context.informers.of(),
        revisions: context.informers.of(),
    });
    adoption::index(&controller.pods);
    adoption::index(&controller.revisions);
    let mut keyed = Keyed::new();
    keyed.watches_self(&controller.sets);
    keyed.waits_for_sync(&controller.revisions);
    let known = controller.sets.clone();
    keyed.watches(&controller.pods, move |change| {
        adoption::owners_of(change, &known, |set: &StatefulSet, pod| {
            identity::is_member(set, pod)
                && client::labels::selects(&set.spec.selector, pod.labels.as_ref())
        })
    });
    let known = controller.sets.clone();
    keyed.watches(&controller.claims, move |change| set_of_gone_claim(change, &known));
    crate::framework::collectors::collect(&controller, Controller::count);
    keyed.run(&context.tasks, CONTROLLER, WORKERS, move |(namespace, name)| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(&namespace, &name).await }
    });
}

/// A pod may wait for its old claim to be gone.
fn set_of_gone_claim(change: &Change, sets: &Informer<StatefulSet>) -> Vec<Key> {
    let Change::Deleted(object) = change else { return Vec::new() };
    let Some((parent, _)) = identity::parent_and_ordinal(&object.key.name) else {
        return Vec::new();
    };
    let namespace = object.key.namespace.to_string();
    let names = sets.list(&namespace).into_iter().filter_map(|set| {
        let templates = set.spec.volume_claim_templates.as_deref().unwrap_or_default();
        let name = set.metadata.name?;
        templates.iter().any(|t| identity::claim_name(t, &name) == parent).then_some(name)
    });
    names.map(|name| (namespace.clone(), name)).collect()
}

/// The labels of a StatefulSet in the metrics.
fn labels(set: &StatefulSet) -> [&str; 3] {
    let meta = &set.metadata;
    [
        set.spec.pod_management_policy.as_deref().unwrap_or("OrderedReady"),
        meta.name.as_deref().unwrap_or_default(),
        meta.namespace.as_deref().unwrap_or_default(),
    ]
}

impl Controller {
    /// Counts the unavailable pods of each StatefulSet. As upstream, one that is updated on
    /// deletion has no such number.
    fn count(&self) {
        let (limits, unavailable) =
            (metrics::MAX_UNAVAILABLE.empty(), metrics::UNAVAILABLE_REPLICAS.empty());
        let now = Timestamp::now();
        for set in self.sets.cache().list("") {
            let Some(set) = decode::<StatefulSet>(&set) else { continue };
            limits.set(&labels(&set), plan::max_unavailable(&set) as f64);
            if plan::is_rolling(&set) {
                let uid = set.metadata.uid.as_deref().unwrap_or_default();
                let pods = self.pods.by_index(adoption::BY_CONTROLLER, uid);
                let number = View::new(&set, "", "", pods, now).unavailable();
                unavailable.set(&labels(&set), number as f64);
            }
        }
        metrics::MAX_UNAVAILABLE.replace(limits);
        metrics::UNAVAILABLE_REPLICAS.replace(unavailable);
    }

    async fn reconcile(&self, namespace: &str, name: &str) -> Result<Action, Error> {
        let Some(set) = self.sets.get(namespace, name) else { return Ok(Action::Done) };
        let spec = &set.spec;
        if client::labels::is_empty(&spec.selector) {
            return Ok(Action::Done);
        }
        let before = set.status.clone().unwrap_or_default();
        let snapshot = Snapshot {
            selector: &spec.selector,
            template: &spec.template,
            collisions: before.collision_count,
            hash_label: HASH_LABEL,
        };
        let history =
            revision_history::construct(&self.client, &self.revisions, &set, &snapshot).await?;
        let pods = adoption::claim_all(
            &self.client,
            &set,
            &self.pods,
            |m| {
                client::labels::selects(&spec.selector, m.labels.as_ref())
                    && identity::is_member(&set, m)
            },
            |_| true,
        )
        .await?;
        let update = revision_history::name_of(&history.current);
        let current = history
            .old
            .iter()
            .find(|r| Some(revision_history::name_of(r)) == before.current_revision.as_deref());
        let current = current.unwrap_or(&history.current);
        let current_template = revision_history::template_of(current);
        let live: Vec<String> = pods.iter().map(|p| identity::revision_of(p).to_owned()).collect();
        let view =
            View::new(&set, revision_history::name_of(current), update, pods, Timestamp::now());
        let (mut created, mut updating, mut outcome) = (Vec::new(), 0, Ok(()));
        for step in view.steps() {
            outcome = self
                .take(&view, current_template.as_ref(), step, &mut created, &mut updating)
                .await;
            if outcome.is_err() {
                break;
            }
        }
        let status = view.status(&created, updating, history.collisions);
        let waits = status.ready_replicas.unwrap_or(0) != status.available_replicas.unwrap_or(0);
        if status != before {
            let changed = StatefulSet { status: Some(status), ..set.clone() };
            settled(self.client.update_status(&changed).await)?;
        }
        outcome?;
        self.truncate(&set, &history, current, &live).await?;
        let min_ready = u64::try_from(spec.min_ready_seconds.unwrap_or(0)).unwrap_or(0);
        if min_ready > 0 && waits {
            return Ok(Action::After(Duration::from_secs(min_ready)));
        }
        Ok(Action::Done)
    }

    async fn truncate(
        &self,
        set: &StatefulSet,
        history: &History,
        current: &ControllerRevision,
        live: &[String],
    ) -> Result<(), Error> {
        let is_live = |revision: &ControllerRevision| {
            let name = revision_history::name_of(revision);
            name == revision_history::name_of(current) || live.iter().any(|l| l == name)
        };
        // Live revisions do not count against the limit.
        let (_, idle): (Vec<_>, Vec<_>) = history.old.iter().cloned().partition(is_live);
        let limit = set.spec.revision_history_limit.unwrap_or(10);
        revision_history::truncate(&self.client, &idle, limit, |_| false).await
    }

    async fn take(
        &self,
        view: &View<'_>,
        current: Option<&PodTemplateSpec>,
        step: Step,
        created: &mut Vec<Pod>,
        updating: &mut i32,
    ) -> Result<(), Error> {
        match step {
            Step::Create(ordinal) => {
                let set = view.set;
                let (template, revision) = match current {
                    Some(template) if !view.is_updated(ordinal) => (template, view.current),
                    _ => (&set.spec.template, view.update),
                };
                let pod = identity::new_pod(set, template, revision, ordinal);
                if self.make_claims(set, &pod).await? {
                    created.push(self.create(set, &pod).await?);
                }
                Ok(())
            }
            Step::Claims(pod) => self.make_claims(view.set, &pod).await.map(drop),
            Step::Repair(pod) => self.repair(view.set, &pod).await,
            Step::Delete(pod) => self.delete(view.set, &pod).await,
            Step::Update(pod) => {
                self.delete(view.set, &pod).await?;
                *updating += i32::from(identity::revision_of(&pod) == view.current);
                Ok(())
            }
        }
    }

    async fn create(&self, set: &StatefulSet, pod: &Pod) -> Result<Pod, Error> {
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        match self.client.create(namespace, pod).await {
            Ok(created) => {
                self.tell(set, "Create", pod, None);
                // The claims' owners may name the pod, which has its uid only now.
                self.mend_claims(set, &created).await?;
                Ok(created)
            }
            Err(error) if error.is_already_exists() || error.is_namespace_terminating() => {
                Err(error)
            }
            Err(error) => {
                self.tell(set, "Create", pod, Some(&error));
                Err(error)
            }
        }
    }

    async fn delete(&self, set: &StatefulSet, pod: &Pod) -> Result<(), Error> {
        let meta = &pod.metadata;
        let (namespace, name) = (
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default(),
        );
        let options = DeleteOptions::with_uid(meta.uid.as_deref().unwrap_or_default());
        match self.client.delete::<Pod>(namespace, name, &options).await {
            Ok(()) => self.tell(set, "Delete", pod, None),
            Err(error) if error.is_not_found() || error.is_conflict() => {}
            Err(error) => {
                self.tell(set, "Delete", pod, Some(&error));
                return Err(error);
            }
        }
        Ok(())
    }

    fn tell(&self, set: &StatefulSet, verb: &str, pod: &Pod, error: Option<&Error>) {
        let pod = pod.metadata.name.as_deref().unwrap_or_default();
        let name = set.metadata.name.as_deref().unwrap_or_default();
        let subject = format!("{verb} Pod {pod} in StatefulSet {name}");
        self.tell_outcome(set, verb, &subject, "successful", error);
    }

    fn tell_outcome(
        &self,
        set: &StatefulSet,
        verb: &str,
        subject: &str,
        good: &str,
        error: Option<&Error>,
    ) {
        match error {
            None => self.recorder.event(
                set,
                EventType::Normal,
                &format!("Successful{verb}"),
                format!("{subject} {good}"),
            ),
            Some(error) => self.recorder.event(
                set,
                EventType::Warning,
                &format!("Failed{verb}"),
                format!("{subject} failed error: {error}"),
            ),
        }
    }

    /// Makes the claims that are missing; false while one of before is being deleted (its end wakes
    /// the set).
    async fn make_claims(&self, set: &StatefulSet, pod: &Pod) -> Result<bool, Error> {
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let set_name = set.metadata.name.as_deref().unwrap_or_default();
        let mut ready = true;
        for claim in identity::claims(set, name) {
            let claim_name = claim.metadata.name.as_deref().unwrap_or_default();
            if let Some(found) = self.claims.get(namespace, claim_name) {
                ready &= found.metadata.deletion_timestamp.is_none();
                continue;
            }
            let outcome = self.client.create(namespace, &claim).await;
            match outcome {
                Err(error) if error.is_already_exists() => {}
                outcome => {
                    let subject =
                        format!("Create Claim {claim_name} Pod {name} in StatefulSet {set_name}");
                    self.tell_outcome(set, "Create", &subject, "success", outcome.as_ref().err());
                    outcome?;
                }
            }
        }
        Ok(ready)
    }

    async fn repair(&self, set: &StatefulSet, pod: &Pod) -> Result<(), Error> {
        if let Some(patch) = identity::missing_labels(pod) {
            let meta = &pod.metadata;
            let (namespace, name) = (
                meta.namespace.as_deref().unwrap_or_default(),
                meta.name.as_deref().unwrap_or_default(),
            );
            let patched =
                self.client.patch::<Pod>(namespace, name, "", &Patch::Merge(&patch)).await;
            settled(patched)?;
        }
        self.mend_claims(set, pod).await
    }

    /// Gives the pod's claims the owners that the retention policy wants.
    async fn mend_claims(&self, set: &StatefulSet, pod: &Pod) -> Result<(), Error> {
        let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        for template in set.spec.volume_claim_templates.iter().flatten() {
            let claim_name = identity::claim_name(template, name);
            let Some(mut claim) = self.claims.get(namespace, &claim_name) else { continue };
            if let Some(owners) = identity::claim_owners(&claim, set, pod) {
                claim.metadata.owner_references = Some(owners);
                settled(self.client.update(&claim).await)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_api::Cluster;
    use serde_json::{Value, json};

    fn set(name: &str, strategy: &str) -> Value {
        json!({"apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": {"name": name, "namespace": "n", "uid": name},
            "spec": {"replicas": 4, "selector": {"matchLabels": {"app": "a"}}, "template": {},
                "podManagementPolicy": "Parallel",
                "updateStrategy": {"type": strategy,
                    "rollingUpdate": {"maxUnavailable": "50%", "partition": 0}}}})
    }

    fn pod(name: &str, is_deleted: bool) -> Value {
        let deleted = if is_deleted { json!("2026-01-01T00:00:00Z") } else { Value::Null };
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "n", "uid": name,
                "deletionTimestamp": deleted,
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s",
                    "uid": "s", "controller": true}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}})
    }

    #[tokio::test]
    async fn metrics_show_the_unavailable_pods_of_each_set() {
        let pods = [pod("s-0", false), pod("s-1", true), pod("s-2", false), pod("s-7", true)];
        let sets = [set("s", "RollingUpdate"), set("t", "OnDelete")];
        let cluster = Cluster::new(&[sets.to_vec(), pods.to_vec()].concat());
        let controller = Controller {
            client: cluster.client.clone(),
            recorder: cluster.recorder.clone(),
            sets: cluster.informers.of(),
            pods: cluster.informers.of(),
            claims: cluster.informers.of(),
            revisions: cluster.informers.of(),
        };
        adoption::index(&controller.pods);
        controller.sets.synced().await;
        controller.pods.synced().await;
        let values = |set: &str| {
            let families = [&metrics::MAX_UNAVAILABLE, &metrics::UNAVAILABLE_REPLICAS];
            families.map(|family| family.read(&["Parallel", set, "n"]))
        };
        controller.count();
        // One terminates and one is missing; a pod beyond the replicas does not count.
        assert_eq!((values("s"), values("t")), ([2.0, 2.0], [2.0, 0.0]));
        cluster.remove("statefulsets", "n/s");
        cluster.requests().await;
        controller.count();
        assert_eq!((values("s"), values("t")), ([0.0, 0.0], [2.0, 0.0]));
        cluster.stop().await;
    }
}
