//! Deployments: rolls pods over through ReplicaSets, one per template.

mod annotations;
mod math;
mod rollout;
mod status;

use std::cmp::Ordering;
use std::sync::Arc;

use api::k8s::api::apps::v1::{Deployment, ReplicaSet};
use api::k8s::api::core::v1::Pod;
use api::k8s::jiff::Timestamp;
use client::events::EventType;
use client::{Action, Change, Client, Error, EventRecorder, Informer, controller_of, meta};
use sorting::CompactSort as _;

use crate::framework::adoption;
use crate::framework::adoption::{BY_CONTROLLER, controller_uid};
use crate::framework::context::Context;
use crate::framework::keyed::{Key, Keyed, STATUS_BATCH, own_delay, own_key};
use crate::workloads::revision_history;
use rollout::{Rollout, RolloutError};

/// Service account and event source.
const CONTROLLER: &str = "deployment-controller";
/// Workers (`--concurrent-deployment-syncs`).
const WORKERS: usize = 5;
/// Label that keeps the pods of different templates apart.
const HASH_LABEL: &str = "pod-template-hash";

pub(crate) struct Controller {
    client: Client,
    recorder: EventRecorder,
    deployments: Informer<Deployment>,
    sets: Informer<ReplicaSet>,
    pods: Informer<Pod>,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client(CONTROLLER);
    let controller = Arc::new(Controller {
        recorder: context.recorder(&client, CONTROLLER),
        client,
        deployments: context.informers.of(),
        sets: context.informers.of(),
        pods: context.informers.of(),
    });
    adoption::index(&controller.sets);
    controller.pods.add_index(BY_CONTROLLER, controller_uid);
    let mut keyed = Keyed::new();
    keyed.watches_after(&controller.deployments, own_delay, |change| vec![own_key(change)]);
    let known = controller.deployments.clone();
    keyed.watches_after(
        &controller.sets,
        |_| STATUS_BATCH,
        move |change| {
            adoption::owners_of(change, &known, |d: &Deployment, set| {
                selects(d, set.labels.as_ref())
            })
        },
    );
    let sets = controller.sets.clone();
    keyed.watches(&controller.pods, move |change| deployment_of_gone_pod(change, &sets));
    keyed.run(&context.tasks, CONTROLLER, WORKERS, move |(namespace, name)| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(&namespace, &name).await }
    });
}

/// A pod's end may let a `Recreate` rollout go on.
fn deployment_of_gone_pod(change: &Change, sets: &Informer<ReplicaSet>) -> Vec<Key> {
    let Change::Deleted(object) = change else { return Vec::new() };
    let namespace = &object.key.namespace;
    let set = meta(object)
        .as_deref()
        .and_then(controller_of)
        .filter(|o| o.kind == "ReplicaSet")
        .and_then(|o| sets.cache().get(namespace, &o.name))
        .and_then(|set| meta(&set));
    let owner = set.as_deref().and_then(controller_of).filter(|o| o.kind == "Deployment");
    owner.map(|o| (namespace.to_string(), o.name.clone())).into_iter().collect()
}

/// The Deployment's selector, unless empty, selects these labels.
fn selects(deployment: &Deployment, labels: Option<&client::labels::Labels>) -> bool {
    let spec = &deployment.spec;
    !client::labels::is_empty(&spec.selector) && client::labels::selects(&spec.selector, labels)
}

/// Older first; of the same age by name.
fn by_age(a: &ReplicaSet, b: &ReplicaSet) -> Ordering {
    let (a, b) = (&a.metadata, &b.metadata);
    a.creation_timestamp.cmp(&b.creation_timestamp).then_with(|| a.name.cmp(&b.name))
}

impl Controller {
    async fn reconcile(&self, namespace: &str, name: &str) -> Result<Action, RolloutError> {
        let Some(deployment) = self.deployments.get(namespace, name) else {
            return Ok(Action::Done);
        };
        let spec = &deployment.spec;
        if client::labels::is_empty(&spec.selector) {
            return Ok(self.refuse_empty_selector(deployment).await?);
        }
        let mut sets = adoption::claim_all(
            &self.client,
            &deployment,
            &self.sets,
            |set| client::labels::selects(&spec.selector, set.labels.as_ref()),
            |_| true,
        )
        .await?;
        sets.compact_sort_by(by_age);
        Rollout::new(self, deployment, sets, Timestamp::now()).run().await
    }

    async fn refuse_empty_selector(&self, mut deployment: Deployment) -> Result<Action, Error> {
        let generation = deployment.metadata.generation;
        let status = deployment.status.get_or_insert_default();
        if status.observed_generation < generation {
            status.observed_generation = generation;
            self.recorder.event(
                &deployment,
                EventType::Warning,
                "SelectingAll",
                "This deployment is selecting all pods. A non-empty selector is required.",
            );
            self.client.update_status(&deployment).await?;
        }
        Ok(Action::Done)
    }
}

/// The oldest ReplicaSet whose template is the Deployment's, as an index into `sets` (ordered by
/// age).
fn find_new(deployment: &Deployment, sets: &[ReplicaSet]) -> Option<usize> {
    let template = &deployment.spec.template;
    let wanted = revision_history::comparable(template, HASH_LABEL);
    sets.iter().position(|set| {
        set.spec
            .template
            .as_ref()
            .is_some_and(|t| revision_history::comparable(t, HASH_LABEL) == wanted)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_new_set_is_found_by_its_template_without_the_hash_label() {
        let d: Deployment = serde_json::from_value(json!({"spec": {"selector": {}, "template": {
            "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i",
                "env": []}]}}}}))
        .unwrap();
        let set = |image: &str| -> ReplicaSet {
            serde_json::from_value(json!({"spec": {"selector": {}, "template": {
                "metadata": {"labels": {"a": "b", "pod-template-hash": "x"}},
                "spec": {"containers": [{"name": "c", "image": image}]}}}}))
            .unwrap()
        };
        assert_eq!(find_new(&d, &[set("j"), set("i"), set("i")]), Some(1));
        assert_eq!(find_new(&d, &[set("j")]), None);
    }
}
