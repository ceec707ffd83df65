//! What to do about one volume: a decision from what the caches have and from what this process
//! has begun.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use api::k8s::api::core::v1::ObjectReference;
use client::events::EventType;
use sorting::CollectOrdered as _;
use tokio::time::Instant;

use super::desired::{AttachSource, VolumeUser};
use super::detach::{DetachVerdict, ForcedReason, NodeCondition, detach_verdict};
use super::metrics::VolumeCount;
use super::multi_attach::waiting_message;
use super::names::{NodeName, VolumeName};
use super::operations::{OperationKind, Operations, RunningOperation};
use super::volume_attachment::{
    AttachError, Attachment, DetachError, Progress, attach_progress, detach_progress,
};

/// A node that has the volume, or for whose pods it is attached.
#[derive(Debug, Clone)]
pub(super) struct VolumeOnNode {
    /// The VolumeAttachment.
    pub(super) attachment: Option<Attachment>,
    /// `status.volumesAttached` of the node has the volume.
    pub(super) is_listed: bool,
    /// The kubelet cannot begin to mount the volume: a list without it was written, or the node
    /// does not exist.
    pub(super) is_removed: bool,
    /// The node.
    pub(super) condition: NodeCondition,
}

impl VolumeOnNode {
    fn is_confirmed(&self) -> bool {
        self.attachment.as_ref().is_some_and(Attachment::is_confirmed)
    }

    fn is_held(&self) -> bool {
        self.attachment.is_some() || self.is_listed
    }
}

/// What the caches say about a volume.
#[derive(Debug, Clone)]
pub(super) struct VolumeView {
    /// The volume.
    pub(super) name: VolumeName,
    /// It is one of an in-tree plugin that the driver replaces.
    pub(super) is_migrated: bool,
    /// It may be attached to one node at a time.
    pub(super) is_exclusive: bool,
    /// The pods that use it, by namespace and name.
    pub(super) users: Vec<VolumeUser>,
    /// The nodes of these pods, and those that have or may have the volume.
    pub(super) nodes: BTreeMap<NodeName, VolumeOnNode>,
}

impl VolumeView {
    fn users_on<'a>(&'a self, node: &'a NodeName) -> impl Iterator<Item = &'a VolumeUser> {
        self.users.iter().filter(move |user| user.node == *node)
    }

    fn is_needed_on(&self, node: &NodeName) -> bool {
        self.users_on(node).next().is_some()
    }
}

/// A thing to do.
#[derive(Debug)]
pub(super) enum Step {
    /// Record an event of a pod.
    Event {
        /// The pod.
        pod: ObjectReference,
        /// Severity.
        kind: EventType,
        /// Reason.
        reason: &'static str,
        /// Message.
        message: String,
    },
    /// Create a VolumeAttachment.
    Attach {
        /// The node.
        node: NodeName,
        /// What it names.
        source: AttachSource,
    },
    /// Delete a VolumeAttachment.
    Detach {
        /// The node.
        node: NodeName,
        /// Why without a check of `status.volumesInUse`.
        forced: Option<ForcedReason>,
    },
    /// Decide about `status.volumesAttached` of a node.
    List {
        /// The node.
        node: NodeName,
        /// The volume is listed.
        is_listed: bool,
        /// The volume is detached once a list without it is written.
        is_awaited: bool,
    },
    /// The node has nothing to do with the volume any more.
    Forget {
        /// The node.
        node: NodeName,
    },
    /// An operation has ended.
    Completed {
        /// The operation.
        operation: RunningOperation,
        /// How long it took.
        took: Duration,
        /// Its error, and whether it differs from that of the attempt before.
        error: Option<(String, bool)>,
    },
}

/// What to do, and when to look again.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// In this order.
    pub(super) steps: Vec<Step>,
    /// When time alone changes the decision.
    pub(super) recheck: Option<Instant>,
}

/// What this process remembers about a volume on a node; nothing of it is needed after a restart.
#[derive(Debug, Default)]
struct NodeMemory {
    /// Since when no pod needs the volume there.
    unneeded_since: Option<Instant>,
    /// The volume is kept out of `status.volumesAttached` because it is to be detached.
    is_withheld: bool,
    /// A detachment waits for a list without the volume.
    awaits_removal: bool,
    /// Pods have the event that another node holds the volume.
    is_conflict_reported: bool,
    /// Pods have the event that the volume is attached.
    is_success_reported: bool,
}

/// The outcome of the request to delete a VolumeAttachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deletion {
    /// The object is gone once the driver has detached the volume.
    Accepted,
    /// There is no such object.
    NotFound,
}

/// The memory of one volume.
#[derive(Debug, Default)]
pub(super) struct VolumeState {
    /// The pods that use it. A pod stays until it ends, whatever becomes of its claim: its kubelet
    /// may still use the volume.
    pub(super) users: Vec<VolumeUser>,
    /// What the metrics contain of it.
    pub(super) count: VolumeCount,
    nodes: BTreeMap<NodeName, NodeMemory>,
    operations: Operations,
}

impl VolumeState {
    /// Decides. `forces_on_timeout` is false with `--disable-force-detach-on-timeout`.
    pub(super) fn plan(
        &mut self,
        view: &VolumeView,
        forces_on_timeout: bool,
        now: Instant,
    ) -> Plan {
        let mut plan = Plan::default();
        self.users.clone_from(&view.users);
        self.settle(view, now, &mut plan.steps);
        // Detachments come first, so that a volume leaves its old node before the new one.
        self.detach_unneeded(view, forces_on_timeout, now, &mut plan);
        self.attach_needed(view, now, &mut plan.steps);
        self.list(view, &mut plan.steps);
        plan
    }

    /// When an operation ends or may be retried, after `now`.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        self.operations.next_due(now)
    }

    /// There is nothing to remember.
    pub(super) fn is_empty(&self) -> bool {
        let is_counted = self.count != VolumeCount::default();
        self.users.is_empty() && self.nodes.is_empty() && self.operations.is_idle() && !is_counted
    }

    /// The nodes about which something is remembered.
    pub(super) fn nodes(&self) -> BTreeSet<NodeName> {
        let running = self.operations.running().map(|o| &o.node);
        self.nodes.keys().chain(running).cloned().collect_set()
    }

    /// Ends operations that external-attacher has answered, or not in time.
    fn settle(&mut self, view: &VolumeView, now: Instant, steps: &mut Vec<Step>) {
        let running: Vec<RunningOperation> = self.operations.running().cloned().collect();
        for operation in running {
            let node = &operation.node;
            let attachment = view.nodes.get(node).and_then(|on| on.attachment.as_ref());
            let progress = match operation.kind {
                OperationKind::Attach => attach_progress(attachment),
                OperationKind::Detach => detach_progress(attachment),
            };
            let is_late = now >= operation.deadline();
            match (operation.kind, progress) {
                (_, Progress::Waiting) if !is_late => {}
                (OperationKind::Attach, progress) => {
                    let name = &view.name;
                    let late = || AttachError::TimedOut {
                        driver: name.driver().to_owned(),
                        handle: name.handle().to_owned(),
                    };
                    let result = outcome(progress, AttachError::Attacher, late);
                    steps.extend(self.end_attach(view, node, result, now));
                }
                (OperationKind::Detach, progress) => {
                    let late = || DetachError::TimedOut(view.name.handle().to_owned());
                    let result = outcome(progress, DetachError::Attacher, late);
                    steps.extend(self.end_detach(node, result, now));
                }
            }
        }
    }

    /// Ends the attach operation on a node, with the events of its pods.
    fn end_attach(
        &mut self,
        view: &VolumeView,
        node: &NodeName,
        result: Result<(), AttachError>,
        now: Instant,
    ) -> Vec<Step> {
        let mut steps = Vec::new();
        let error = match result {
            Ok(()) => {
                steps.extend(self.report_success(view, node));
                None
            }
            Err(error) => {
                let text = error.to_string();
                let message = |user: &VolumeUser| {
                    let volume = user.source.name();
                    format!("AttachVolume.Attach failed for volume \"{volume}\" : {text}")
                };
                let users = view.users_on(node);
                steps.extend(users.map(|user| warning(user, message(user))));
                Some(text)
            }
        };
        steps.extend(self.end(node, error, now));
        steps
    }

    /// Ends the detach operation on a node; there are no events about it.
    fn end_detach(
        &mut self,
        node: &NodeName,
        result: Result<(), DetachError>,
        now: Instant,
    ) -> Option<Step> {
        if result.is_ok() {
            self.nodes.remove(node);
        }
        self.end(node, result.err().map(|error| error.to_string()), now)
    }

    fn end(&mut self, node: &NodeName, error: Option<String>, now: Instant) -> Option<Step> {
        let (operation, error) = match error {
            None => (self.operations.succeed(node)?, None),
            Some(text) => {
                let (operation, is_new) = self.operations.fail(node, text.clone(), now)?;
                (operation, Some((text, is_new)))
            }
        };
        let took = now.saturating_duration_since(operation.since);
        Some(Step::Completed { operation, took, error })
    }

    /// The events that a volume is attached, once.
    fn report_success(&mut self, view: &VolumeView, node: &NodeName) -> Vec<Step> {
        let memory = self.nodes.entry(NodeName::clone(node)).or_default();
        if std::mem::replace(&mut memory.is_success_reported, true) {
            return Vec::new();
        }
        let event = |user: &VolumeUser| Step::Event {
            pod: user.pod.clone(),
            kind: EventType::Normal,
            reason: "SuccessfulAttachVolume",
            // Upstream's text ends with a space.
            message: format!(
                "AttachVolume.Attach succeeded for volume \"{}\" ",
                user.source.name()
            ),
        };
        view.users_on(node).map(event).collect()
    }

    fn detach_unneeded(
        &mut self,
        view: &VolumeView,
        forces_on_timeout: bool,
        now: Instant,
        plan: &mut Plan,
    ) {
        for (node, on) in &view.nodes {
            if view.is_needed_on(node) || !on.is_held() {
                continue;
            }
            let kind = OperationKind::Detach;
            if !self.operations.may_start(kind, view.is_exclusive, node, now) {
                continue;
            }
            let memory = self.nodes.entry(NodeName::clone(node)).or_default();
            memory.is_conflict_reported = false;
            let since = *memory.unneeded_since.get_or_insert(now);
            let elapsed = now.saturating_duration_since(since);
            match detach_verdict(on.condition, elapsed, forces_on_timeout) {
                DetachVerdict::Wait { recheck } => {
                    memory.awaits_removal = false;
                    let at = recheck.map(|wait| now + wait);
                    plan.recheck = plan.recheck.into_iter().chain(at).min();
                }
                DetachVerdict::Detach { forced } => {
                    memory.is_withheld = true;
                    memory.awaits_removal = !on.is_removed;
                    if on.is_removed {
                        self.operations.start(kind, view.is_exclusive, node, now);
                        plan.steps.push(Step::Detach { node: NodeName::clone(node), forced });
                    }
                }
            }
        }
    }

    fn attach_needed(&mut self, view: &VolumeView, now: Instant, steps: &mut Vec<Step>) {
        let needed: BTreeSet<&NodeName> = view.users.iter().map(|user| &user.node).collect_set();
        // Its detachment begins once the node's list is written, and comes first.
        let mut others = self.nodes.iter().filter(|(node, _)| !needed.contains(node));
        let is_leaving = view.is_exclusive && others.any(|(_, memory)| memory.awaits_removal);
        for node in self.operations.in_turn(needed.into_iter()) {
            if self.operations.is_running(view.is_exclusive, &node) {
                continue;
            }
            let memory = self.nodes.entry(NodeName::clone(&node)).or_default();
            memory.awaits_removal = false;
            let on = view.nodes.get(&node);
            if on.is_some_and(VolumeOnNode::is_confirmed) {
                memory.unneeded_since = None;
                memory.is_withheld = false;
                // A node that lists the volume was served by an earlier process.
                memory.is_success_reported |= on.is_some_and(|on| on.is_listed);
                self.operations.forget_failed_attach(view.is_exclusive, &node);
                steps.extend(self.report_success(view, &node));
                continue;
            }
            memory.is_success_reported = false;
            if is_leaving {
                continue;
            }
            let holders =
                view.nodes.iter().filter(|(name, on)| **name != node && on.is_confirmed());
            let holders: BTreeSet<&NodeName> = holders.map(|(name, _)| name).collect_set();
            if view.is_exclusive && !holders.is_empty() {
                if !std::mem::replace(&mut memory.is_conflict_reported, true) {
                    steps.extend(conflict_events(view, &node, &holders));
                }
                continue;
            }
            let kind = OperationKind::Attach;
            if !self.operations.may_start(kind, view.is_exclusive, &node, now) {
                continue;
            }
            self.operations.start(kind, view.is_exclusive, &node, now);
            match on.and_then(|on| on.attachment.as_ref()) {
                None => {
                    let user = view.users_on(&node).next();
                    let source = user.map(|user| user.source.clone());
                    let unnamed = || AttachSource::PersistentVolume(String::new());
                    let source = source.unwrap_or_else(unnamed);
                    steps.push(Step::Attach { node, source });
                }
                attachment @ Some(_) => {
                    if let Progress::Failed(message) = attach_progress(attachment) {
                        let result = Err(AttachError::Attacher(message));
                        steps.extend(self.end_attach(view, &node, result, now));
                    }
                }
            }
        }
    }

    /// Decides for each node whether it lists the volume; forgets nodes without it.
    fn list(&mut self, view: &VolumeView, steps: &mut Vec<Step>) {
        let mut nodes = self.nodes();
        nodes.extend(view.nodes.keys().cloned());
        for node in nodes {
            let on = view.nodes.get(&node);
            let is_needed = view.is_needed_on(&node);
            let is_running = self.operations.running().any(|o| o.node == node);
            if !is_needed && !is_running && !on.is_some_and(VolumeOnNode::is_held) {
                self.nodes.remove(&node);
                steps.push(Step::Forget { node });
                continue;
            }
            let memory = self.nodes.get(&node);
            let is_withheld = memory.is_some_and(|memory| memory.is_withheld);
            let is_listed = on
                .is_some_and(|on| on.is_confirmed() && !is_withheld && (is_needed || on.is_listed));
            let is_awaited = memory.is_some_and(|memory| memory.awaits_removal);
            steps.push(Step::List { node, is_listed, is_awaited });
        }
    }

    /// Continues after the request to create a VolumeAttachment.
    pub(super) fn attach_requested(
        &mut self,
        view: &VolumeView,
        node: &NodeName,
        result: Result<(), client::Error>,
        now: Instant,
    ) -> Vec<Step> {
        match result {
            // external-attacher's answer ends the operation.
            Ok(()) => Vec::new(),
            Err(error) if error.is_already_exists() => Vec::new(),
            Err(error) => self.end_attach(view, node, Err(error.into()), now),
        }
    }

    /// Continues after the request to delete a VolumeAttachment.
    pub(super) fn detach_requested(
        &mut self,
        view: &VolumeView,
        node: &NodeName,
        result: Result<Deletion, DetachError>,
        now: Instant,
    ) -> Option<Step> {
        let is_cached = view.nodes.get(node).is_some_and(|on| on.attachment.is_some());
        match result {
            // What the cache still has goes with its event.
            Ok(Deletion::NotFound) if !is_cached => self.end_detach(node, Ok(()), now),
            Ok(_) => None,
            Err(error) => self.end_detach(node, Err(error), now),
        }
    }
}

/// The result of an operation that has an answer or is late.
fn outcome<E>(
    progress: Progress,
    failed: impl FnOnce(String) -> E,
    late: impl FnOnce() -> E,
) -> Result<(), E> {
    match progress {
        Progress::Done => Ok(()),
        Progress::Failed(message) => Err(failed(message)),
        Progress::Waiting => Err(late()),
    }
}

fn warning(user: &VolumeUser, message: String) -> Step {
    let pod = user.pod.clone();
    Step::Event { pod, kind: EventType::Warning, reason: "FailedAttachVolume", message }
}

/// The events of pods whose volume is attached to `holders`.
fn conflict_events(view: &VolumeView, node: &NodeName, holders: &BTreeSet<&NodeName>) -> Vec<Step> {
    let others: Vec<&VolumeUser> =
        view.users.iter().filter(|user| holders.contains(&user.node)).collect();
    let message = |user: &VolumeUser| waiting_message(user.source.name(), &user.pod, &others);
    view.users_on(node).map(|user| warning(user, message(user))).collect()
}
