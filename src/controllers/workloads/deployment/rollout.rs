//! One sync of a Deployment: the ReplicaSet of the current template, scaling, rolling, recreating,
//! cleaning up.

use std::time::Duration;

use api::k8s::api::apps::v1::{Deployment, DeploymentStatus, ReplicaSet, ReplicaSetSpec};
use api::k8s::api::core::v1::Pod;
use api::k8s::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use api::k8s::jiff::Timestamp;
use client::events::EventType;
use client::{Action, DeleteOptions, Error, Patch, owner_reference};
use serde_json::json;
use sorting::CompactSort as _;

use super::math::{self, desired, size};
use super::{Controller, HASH_LABEL, annotations, by_age, find_new, status};
use crate::framework::adoption::BY_CONTROLLER;
use crate::framework::pods;
use crate::workloads::revision_history;
use crate::workloads::template_hash;

/// Longest name of a ReplicaSet (a DNS subdomain).
const NAME_MAX: usize = 253;

/// Why a rollout cannot be advanced.
#[derive(Debug, thiserror::Error)]
pub(super) enum RolloutError {
    /// `spec.strategy.type` is neither `RollingUpdate` nor `Recreate`.
    #[error("unexpected deployment strategy type: {0}")]
    UnexpectedStrategy(String),
    /// A request to the API server failed.
    #[error(transparent)]
    Client(#[from] Error),
}

/// What a sync works on. `deployment.status` and the revision annotation change in memory and are
/// written once.
pub(super) struct Rollout<'a> {
    controller: &'a Controller,
    deployment: Deployment,
    seen: (Option<DeploymentStatus>, Option<String>),
    /// ReplicaSets of other templates, by age.
    old: Vec<ReplicaSet>,
    new: Option<ReplicaSet>,
    now: Timestamp,
}

impl<'a> Rollout<'a> {
    /// `sets` are the Deployment's own, by age.
    pub(super) fn new(
        controller: &'a Controller,
        deployment: Deployment,
        mut sets: Vec<ReplicaSet>,
        now: Timestamp,
    ) -> Self {
        let new = find_new(&deployment, &sets).map(|index| sets.remove(index));
        let seen = (deployment.status.clone(), revision_of(&deployment));
        Self { controller, deployment, seen, old: sets, new, now }
    }

    /// Brings the Deployment one step on.
    pub(super) async fn run(mut self) -> Result<Action, RolloutError> {
        if self.deployment.metadata.deletion_timestamp.is_some() {
            return Ok(self.write_plain_status().await?);
        }
        let mut current = self.deployment.status.take().unwrap_or_default();
        status::note_pause(&self.deployment, &mut current, self.now);
        self.deployment.status = Some(current);
        self.adopt_revision().await?;
        let paused = self.deployment.spec.paused.unwrap_or(false);
        if paused || self.was_scaled() {
            self.scale().await?;
            if paused {
                self.clean_up().await?;
            }
            return Ok(self.write_plain_status().await?);
        }
        let kind = self.deployment.spec.strategy.as_ref();
        let kind = kind.and_then(|s| s.type_.clone()).unwrap_or_else(|| "RollingUpdate".into());
        match kind.as_str() {
            "RollingUpdate" => Ok(self.roll().await?),
            "Recreate" => Ok(self.recreate().await?),
            _ => Err(RolloutError::UnexpectedStrategy(kind)),
        }
    }

    fn namespace(&self) -> &str {
        self.deployment.metadata.namespace.as_deref().unwrap_or_default()
    }

    fn total(&self) -> i32 {
        self.old.iter().chain(&self.new).map(size).sum()
    }

    /// An active ReplicaSet remembers another size of the Deployment.
    fn was_scaled(&self) -> bool {
        let want = desired(&self.deployment);
        self.old.iter().chain(&self.new).filter(|s| size(s) > 0).any(|set| {
            annotations::number(set, annotations::DESIRED_REPLICAS).is_some_and(|n| n != want)
        })
    }

    /// Gives the existing new ReplicaSet its revision and annotations, and the Deployment that
    /// revision.
    async fn adopt_revision(&mut self) -> Result<(), Error> {
        let next = self.next_revision();
        let Some(set) = &self.new else { return Ok(()) };
        let wanted =
            annotations::of_new_set(&self.deployment, set.metadata.annotations.as_ref(), next);
        let min_ready = self.deployment.spec.min_ready_seconds.unwrap_or(0);
        let current = set.metadata.annotations.clone().unwrap_or_default();
        if wanted != current || set.spec.min_ready_seconds.unwrap_or(0) != min_ready {
            let patch = json!({"metadata": {"annotations": wanted},
                "spec": {"minReadySeconds": min_ready}});
            self.new = Some(self.patch_set(set, patch).await?);
        }
        let Some(set) = &self.new else { return Ok(()) };
        let (revision, name) = (annotations::revision(set), set.metadata.name.clone());
        self.note_revision(revision);
        self.note_progress(
            "FoundNewReplicaSet",
            format!("Found new replica set {name:?}", name = name.unwrap_or_default()),
            false,
        );
        Ok(())
    }

    fn next_revision(&self) -> i64 {
        self.old.iter().map(annotations::revision).max().unwrap_or(0).max(0) + 1
    }

    fn note_revision(&mut self, revision: i64) {
        let all = self.deployment.metadata.annotations.get_or_insert_default();
        all.insert(annotations::REVISION.into(), revision.to_string());
    }

    /// Starts the progress deadline; unless `restart`, only when there is no condition yet.
    fn note_progress(&mut self, reason: &str, message: String, restart: bool) {
        if status::deadline(&self.deployment).is_none() {
            return;
        }
        let current = self.deployment.status.get_or_insert_default();
        if restart || status::get(current, status::PROGRESSING).is_none() {
            status::set(
                current,
                status::condition(status::PROGRESSING, "True", reason, message, self.now),
            );
        }
    }

    /// Merges into a ReplicaSet as last seen: a newer one is a conflict, and the sync starts again.
    async fn patch_set(
        &self,
        set: &ReplicaSet,
        mut patch: serde_json::Value,
    ) -> Result<ReplicaSet, Error> {
        patch["metadata"]["resourceVersion"] = json!(set.metadata.resource_version);
        let name = set.metadata.name.as_deref().unwrap_or_default();
        self.controller.client.patch(self.namespace(), name, "", &Patch::Merge(&patch)).await
    }

    /// Sets a ReplicaSet's size and the annotations about it; true when the size changed. Without
    /// `forced`, stale annotations alone are no reason to write.
    async fn resize(
        &self,
        set: &ReplicaSet,
        to: i32,
        forced: bool,
    ) -> Result<Option<ReplicaSet>, Error> {
        let from = size(set);
        let sizes = annotations::sizes(&self.deployment);
        let current = set.metadata.annotations.as_ref();
        let stale = sizes.iter().any(|(k, v)| current.and_then(|a| a.get(*k)) != Some(v));
        if from == to && !(forced && stale) {
            return Ok(None);
        }
        let [(desired_key, desired), (max_key, max)] = sizes;
        let patch = json!({"metadata": {"annotations": {desired_key: desired, max_key: max}},
            "spec": {"replicas": to}});
        let changed = self.patch_set(set, patch).await?;
        if from != to {
            let direction = if from < to { "up" } else { "down" };
            let name = set.metadata.name.as_deref().unwrap_or_default();
            self.scaled_event(format!("Scaled {direction} replica set {name} from {from} to {to}"));
        }
        Ok(Some(changed))
    }

    fn scaled_event(&self, message: String) {
        let recorder = &self.controller.recorder;
        recorder.event(&self.deployment, EventType::Normal, "ScalingReplicaSet", message);
    }

    /// Follows a change of `spec.replicas` (or any change while paused).
    async fn scale(&mut self) -> Result<(), Error> {
        let want = desired(&self.deployment);
        let active: Vec<&ReplicaSet> =
            self.old.iter().chain(&self.new).filter(|s| size(s) > 0).collect();
        if active.len() <= 1 {
            // The only active one, else the newest.
            let newest = active.first().copied().or(self.new.as_ref()).or(self.old.last());
            if let Some(set) = newest.cloned() {
                self.resize_own(&set, want, false).await?;
            }
            return Ok(());
        }
        let plan = if self.new.as_ref().is_some_and(|new| self.is_saturated(new)) {
            let names = self.old.iter().filter(|s| size(s) > 0);
            names.map(|s| (s.metadata.name.clone().unwrap_or_default(), 0)).collect()
        } else if math::is_rolling(&self.deployment) {
            math::proportional(&self.deployment, &active)
        } else {
            Vec::new()
        };
        for (name, to) in plan {
            let set =
                self.old.iter().chain(&self.new).find(|s| s.metadata.name.as_ref() == Some(&name));
            if let Some(set) = set.cloned() {
                self.resize_own(&set, to, true).await?;
            }
        }
        Ok(())
    }

    /// [`Self::resize`], keeping the answer.
    async fn resize_own(&mut self, set: &ReplicaSet, to: i32, forced: bool) -> Result<bool, Error> {
        let Some(changed) = self.resize(set, to, forced).await? else { return Ok(false) };
        if let Some(kept) = self
            .old
            .iter_mut()
            .chain(&mut self.new)
            .find(|s| s.metadata.uid == changed.metadata.uid)
        {
            *kept = changed;
        }
        Ok(true)
    }

    fn is_saturated(&self, new: &ReplicaSet) -> bool {
        let want = desired(&self.deployment);
        size(new) == want
            && annotations::number(new, annotations::DESIRED_REPLICAS) == Some(want)
            && math::available(new) == want
    }

    async fn roll(mut self) -> Result<Action, Error> {
        self.ensure_new().await?;
        let Some(new) = self.new.clone() else { return Ok(Action::Done) };
        let want = desired(&self.deployment);
        let target = if size(&new) > want {
            want
        } else {
            math::new_size(&self.deployment, self.total(), size(&new))
        };
        if self.resize_own(&new, target, false).await? {
            return self.write_status().await;
        }
        let active: Vec<ReplicaSet> = self.old.iter().filter(|s| size(s) > 0).cloned().collect();
        if !active.is_empty() {
            let mut scaled = false;
            for (index, to) in math::shrink_old(&self.deployment, &new, &active) {
                if let Some(set) = active.get(index) {
                    scaled |= self.resize_own(set, to, false).await?;
                }
            }
            if scaled {
                return self.write_status().await;
            }
        }
        self.finish().await
    }

    async fn recreate(mut self) -> Result<Action, Error> {
        let mut scaled = false;
        for set in self.old.clone() {
            scaled |= self.resize_own(&set, 0, false).await?;
        }
        if scaled || self.old_pods_run() {
            return self.write_status().await;
        }
        self.ensure_new().await?;
        if let Some(new) = self.new.clone() {
            self.resize_own(&new, desired(&self.deployment), false).await?;
        }
        self.finish().await
    }

    fn old_pods_run(&self) -> bool {
        self.old.iter().any(|set| {
            let uid = set.metadata.uid.as_deref().unwrap_or_default();
            set.status.as_ref().is_some_and(|s| s.replicas > 0)
                || self
                    .controller
                    .pods
                    .by_index(BY_CONTROLLER, uid)
                    .iter()
                    .any(|pod: &Pod| !pods::is_terminal(pod))
        })
    }

    async fn finish(mut self) -> Result<Action, Error> {
        let current = self.deployment.status.clone().unwrap_or_default();
        if status::is_complete(&self.deployment, &current) {
            self.clean_up().await?;
        }
        self.write_status().await
    }

    /// Creates the ReplicaSet of the current template.
    async fn ensure_new(&mut self) -> Result<(), Error> {
        if self.new.is_some() {
            return Ok(());
        }
        let wanted = self.new_set();
        let name = wanted.metadata.name.clone().unwrap_or_default();
        match self.controller.client.create(self.namespace(), &wanted).await {
            Ok(created) => {
                let count = size(&created);
                if count > 0 {
                    self.scaled_event(format!("Scaled up replica set {name} from 0 to {count}"));
                }
                self.note_revision(self.next_revision());
                self.note_progress(
                    "NewReplicaSetCreated",
                    format!("Created new replica set {name:?}"),
                    true,
                );
                self.new = Some(created);
                Ok(())
            }
            Err(error) if error.is_already_exists() => self.taken(&name, error).await,
            Err(error) if error.is_namespace_terminating() => Err(error),
            Err(error) => {
                let message = format!("Failed to create new replica set {name:?}: {error}");
                let recorder = &self.controller.recorder;
                recorder.event(
                    &self.deployment,
                    EventType::Warning,
                    "ReplicaSetCreateError",
                    message.clone(),
                );
                if status::deadline(&self.deployment).is_some() {
                    let failed = status::condition(
                        status::PROGRESSING,
                        "False",
                        "ReplicaSetCreateError",
                        message,
                        self.now,
                    );
                    status::set(self.deployment.status.get_or_insert_default(), failed);
                    self.write_changes().await?;
                }
                Err(error)
            }
        }
    }

    /// The name of the new ReplicaSet is taken: the cache is late, or two templates have the same
    /// hash.
    async fn taken(&mut self, name: &str, error: Error) -> Result<(), Error> {
        let found: ReplicaSet = self.controller.client.get(self.namespace(), name).await?;
        let uid = self.deployment.metadata.uid.as_deref().unwrap_or_default();
        if client::is_controlled_by(&found.metadata, uid)
            && find_new(&self.deployment, std::slice::from_ref(&found)).is_some()
        {
            self.note_revision(annotations::revision(&found));
            self.new = Some(found);
            return Ok(());
        }
        let current = self.deployment.status.get_or_insert_default();
        current.collision_count = Some(current.collision_count.unwrap_or(0).saturating_add(1));
        self.write_changes().await?;
        Err(error)
    }

    fn new_set(&self) -> ReplicaSet {
        let spec = &self.deployment.spec;
        let collisions = self.deployment.status.as_ref().and_then(|s| s.collision_count);
        // Of the comparable form: what does not make another template must not make another hash.
        let hash = template_hash::hash(
            &revision_history::comparable(&spec.template, HASH_LABEL),
            collisions,
        );
        let mut template = spec.template.clone();
        let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
        labels.insert(HASH_LABEL.into(), hash.clone());
        let labels = labels.clone();
        let mut selector = spec.selector.clone();
        selector.match_labels.get_or_insert_default().insert(HASH_LABEL.into(), hash.clone());
        let mut all = annotations::of_new_set(&self.deployment, None, self.next_revision());
        all.extend(annotations::sizes(&self.deployment).map(|(k, v)| (k.to_owned(), v)));
        let mut name = self.deployment.metadata.name.clone().unwrap_or_default();
        name.truncate(NAME_MAX.saturating_sub(hash.len() + 1));
        ReplicaSet {
            metadata: ObjectMeta {
                name: Some(format!("{name}-{hash}")),
                namespace: self.deployment.metadata.namespace.clone(),
                labels: Some(labels),
                annotations: Some(all),
                owner_references: Some(vec![owner_reference(&self.deployment)]),
                ..ObjectMeta::default()
            },
            spec: ReplicaSetSpec {
                replicas: Some(math::new_size(&self.deployment, self.total(), 0)),
                min_ready_seconds: spec.min_ready_seconds,
                selector,
                template: Some(template),
            },
            status: None,
        }
    }

    /// Deletes the oldest revisions above the limit, unless they still have pods.
    async fn clean_up(&mut self) -> Result<(), Error> {
        let limit = self.deployment.spec.revision_history_limit;
        let Some(limit) = limit.filter(|l| *l != i32::MAX) else { return Ok(()) };
        let alive = self.old.iter().filter(|s| s.metadata.deletion_timestamp.is_none());
        let mut sets: Vec<&ReplicaSet> = alive.collect();
        let surplus = sets.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
        sets.compact_sort_by(|a, b| {
            annotations::revision(a).cmp(&annotations::revision(b)).then_with(|| by_age(a, b))
        });
        for set in sets.into_iter().take(surplus) {
            let seen = set.status.as_ref();
            let observed = seen.and_then(|s| s.observed_generation).unwrap_or(0);
            if size(set) != 0
                || seen.is_some_and(|s| s.replicas != 0)
                || set.metadata.generation.unwrap_or(0) > observed
            {
                continue;
            }
            let name = set.metadata.name.as_deref().unwrap_or_default();
            let options = DeleteOptions::with_uid(set.metadata.uid.as_deref().unwrap_or_default());
            let gone =
                self.controller.client.delete::<ReplicaSet>(self.namespace(), name, &options);
            crate::framework::keyed::settled(gone.await)?;
        }
        Ok(())
    }

    async fn write_plain_status(mut self) -> Result<Action, Error> {
        let new = status::calculate(&self.deployment, &self.old, self.new.as_ref(), self.now);
        self.deployment.status = Some(new);
        self.write_changes().await?;
        Ok(Action::Done)
    }

    async fn write_status(mut self) -> Result<Action, Error> {
        let new = status::of_rollout(&self.deployment, &self.old, self.new.as_ref(), self.now);
        let check: Option<Duration> = status::check_after(&self.deployment, &new, self.now);
        self.deployment.status = Some(new);
        self.write_changes().await?;
        Ok(check.map_or(Action::Done, Action::After))
    }

    /// Writes status and revision when they differ from what the cache had.
    async fn write_changes(&mut self) -> Result<(), Error> {
        let now = (self.deployment.status.clone(), revision_of(&self.deployment));
        if now != self.seen {
            self.deployment = self.controller.client.update_status(&self.deployment).await?;
            self.seen = now;
        }
        Ok(())
    }
}

fn revision_of(deployment: &Deployment) -> Option<String> {
    deployment.metadata.annotations.as_ref()?.get(annotations::REVISION).cloned()
}
