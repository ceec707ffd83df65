//! Carries out decisions: requests to the API server and events.

use std::collections::VecDeque;

use api::k8s::api::core::v1::Node;
use api::k8s::api::storage::v1::VolumeAttachment;
use base::clock;
use client::{Action, DeleteOptions, Error, Patch, gvr_of};
use serde_json::Value;

use super::detach::ForcedReason;
use super::metrics::{self, VolumeCount};
use super::names::{NodeName, VolumeName};
use super::volume_attachment::{DetachError, volume_attachment};
use super::volume_state::{Deletion, Plan, Step, VolumeView};
use super::{Controller, WorkItem};

impl Controller {
    /// Reconciles a volume or the list of a node.
    ///
    /// # Errors
    /// A cached object cannot be read, or the list of a node cannot be written. What fails about a
    /// volume has its own delay and is no error here.
    pub(super) async fn reconcile(&self, item: WorkItem) -> Result<Action, Error> {
        match item {
            WorkItem::Volume(name) => self.reconcile_volume(&name).await,
            WorkItem::Node(name) => self.reconcile_node(&name).await,
        }
    }

    async fn reconcile_volume(&self, name: &VolumeName) -> Result<Action, Error> {
        let (users, nodes) = {
            let states = self.states.lock();
            let state = states.get(name);
            state.map(|state| (state.users.clone(), state.nodes())).unwrap_or_default()
        };
        let view = self.view(name, users, nodes)?;
        let Plan { steps, recheck } = {
            let mut states = self.states.lock();
            let state = states.entry(name.clone()).or_default();
            state.count.replace(name, count(&view));
            state.plan(&view, self.forces_on_timeout, clock::now())
        };
        self.carry_out(&view, steps).await;
        let now = clock::now();
        let mut states = self.states.lock();
        let due = states.get(name).and_then(|state| state.next_due(now));
        if states.get(name).is_some_and(|state| state.is_empty()) {
            states.remove(name);
        }
        let next = due.into_iter().chain(recheck).min();
        Ok(next.map_or(Action::Done, |at| Action::After(at.saturating_duration_since(now))))
    }

    async fn carry_out(&self, view: &VolumeView, steps: Vec<Step>) {
        let name = &view.name;
        let mut steps = VecDeque::from(steps);
        while let Some(step) = steps.pop_front() {
            match step {
                Step::Event { pod, kind, reason, message } => {
                    self.recorder.event_for(pod, kind, reason, message);
                }
                Step::List { node, is_listed, is_awaited } => {
                    if self.reports.lock().decide(&node, name, is_listed, is_awaited) {
                        self.queue.add(WorkItem::Node(node));
                    }
                }
                Step::Forget { node } => self.reports.lock().forget(&node, name),
                Step::Completed { operation, took, error } => {
                    let (what, node) = (operation.kind.as_str(), &operation.node);
                    let volume = (name, view.is_migrated);
                    metrics::operation(volume, what, error.is_none(), took);
                    match error {
                        None => tracing::debug!(volume = %name, %node, what, "operation succeeded"),
                        Some((error, true)) => {
                            tracing::warn!(volume = %name, %node, what, error, "operation failed");
                        }
                        Some((error, false)) => {
                            tracing::debug!(volume = %name, %node, what, error, "operation failed");
                        }
                    }
                }
                Step::Attach { node, source } => {
                    if name.is_disk() {
                        self.disks.attach(name, &node);
                        // The next look finds it attached.
                        self.queue.add(WorkItem::Volume(name.clone()));
                        continue;
                    }
                    let object = volume_attachment(name, source, &node);
                    let result = self.client.create("", &object).await.map(drop);
                    let mut states = self.states.lock();
                    let Some(state) = states.get_mut(name) else { continue };
                    steps.extend(state.attach_requested(view, &node, result, clock::now()));
                }
                Step::Detach { node, forced } => {
                    let result = self.detach(name, &node, forced).await;
                    let mut states = self.states.lock();
                    let Some(state) = states.get_mut(name) else { continue };
                    steps.extend(state.detach_requested(view, &node, result, clock::now()));
                }
            }
        }
    }

    /// Deletes the VolumeAttachment, or detaches a disk, after a check that the kubelet does not
    /// use the volume.
    async fn detach(
        &self,
        name: &VolumeName,
        node: &NodeName,
        forced: Option<ForcedReason>,
    ) -> Result<Deletion, DetachError> {
        match forced {
            None => self.check_unused(name, node).await?,
            Some(reason) => {
                let reason = reason.as_str();
                metrics::FORCED_DETACHES.inc(&[reason]);
                tracing::warn!(
                    volume = %name, %node, reason,
                    "detaching without a check that the node does not use the volume"
                );
            }
        }
        if name.is_disk() {
            self.disks.detach(name, node);
            // The next look finds it detached.
            self.queue.add(WorkItem::Volume(name.clone()));
            return Ok(Deletion::Accepted);
        }
        let attachment = name.attachment(node);
        let options = DeleteOptions::default();
        match self.client.delete::<VolumeAttachment>("", &attachment, &options).await {
            Ok(()) => Ok(Deletion::Accepted),
            Err(error) if error.is_not_found() => Ok(Deletion::NotFound),
            Err(source) => Err(DetachError::Delete { name: attachment, source }),
        }
    }

    /// Reads the node from the server: the kubelet writes `status.volumesInUse` before it reads
    /// `status.volumesAttached` and mounts. The volume has left the latter, so that it is not
    /// mounted after this check.
    async fn check_unused(&self, name: &VolumeName, node: &NodeName) -> Result<(), DetachError> {
        let node: Node = match self.client.get("", node).await {
            Ok(node) => node,
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(DetachError::Node(error)),
        };
        let in_use = node.status.and_then(|status| status.volumes_in_use).unwrap_or_default();
        if in_use.iter().any(|volume| volume == name.as_str()) {
            return Err(DetachError::InUse);
        }
        Ok(())
    }

    /// Writes `status.volumesAttached`, if it differs or volumes wait for it.
    async fn reconcile_node(&self, name: &NodeName) -> Result<Action, Error> {
        let Some(node) = self.node(name)? else {
            let awaited = self.reports.lock().take_awaited(name);
            awaited.into_iter().for_each(|volume| self.queue.add(WorkItem::Volume(volume)));
            return Ok(Action::Done);
        };
        let Some(list) = self.reports.lock().list_to_write(name, &node) else {
            return Ok(Action::Done);
        };
        let patch = list.patch();
        // The list is written as a whole: the cached node may be older than the last list.
        let patch = Patch::Merge(&patch);
        match self.client.patch_value(&gvr_of::<Node>(), "", name, "status", &patch).await {
            Ok(node) => {
                let awaited = self.reports.lock().written(name, list, version(&node));
                awaited.into_iter().for_each(|volume| self.queue.add(WorkItem::Volume(volume)));
                Ok(Action::Done)
            }
            Err(error) => {
                self.reports.lock().not_written(name, list);
                // The event of a deletion wakes the volumes of the node.
                if error.is_not_found() { Ok(Action::Done) } else { Err(error) }
            }
        }
    }
}

fn version(object: &Value) -> i64 {
    let version = object.pointer("/metadata/resourceVersion").and_then(Value::as_str);
    version.and_then(|version| version.parse().ok()).unwrap_or_default()
}

fn count(view: &VolumeView) -> VolumeCount {
    let is_needed = |node: &&NodeName| view.users.iter().any(|user| user.node == **node);
    VolumeCount {
        desired: view.nodes.keys().filter(is_needed).count(),
        actual: view.nodes.values().filter(|on| on.attachment.is_some()).count(),
    }
}
