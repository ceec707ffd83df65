//! Observes a pod and reports its status, also during long actions on its containers.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1 as core;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::message;
use crate::context::Node;
use crate::pods::handle::{DesiredPod, ReportedPod};
use crate::pods::observed::{ObservedContainer, ObservedPod, ObservedState, observe};
use crate::pods::pod::{Pod, PodOrigin};
use crate::probes::Probes;
use crate::runtime::{RuntimeError, netns};
use crate::status::pod;
use crate::status::pod::{PodFailure, StatusInput, WaitingReason};

/// How long an announced exit may be missing from the runtime's listing: containerd lists an exit
/// once it has deleted the task, which takes many seconds if a hundred containers end at a time.
/// The delays between looks grow, so that a long wait costs few of them.
const EXIT_LAG_MAX: Duration = super::RELIST;
/// Initial delay before an announced exit is looked up again; it grows with the time waited.
const EXIT_LAG_LOOK: Duration = Duration::from_millis(5);

/// State of running actions that the pod's status shows.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Why containers wait, by name.
    pub(super) waiting: HashMap<String, WaitingReason>,
    /// Ids of containers whose postStart hook is running: they are not shown as running before it
    /// ends.
    pub(super) starting: HashSet<String>,
    /// Ids of containers that are stopped to be started again: they are shown as running until
    /// then. Upstream's kubelet reports nothing in between, and the API server rejects a status in
    /// which a container runs again although its exit code and restart policy rule that out.
    pub(super) replaced: HashSet<String>,
    /// A resize is in progress; the text is the last error, or empty.
    pub(super) resizing: Option<String>,
}

/// Progress, written by the actions and read by the reporter.
pub(super) type SharedProgress = Arc<Mutex<Progress>>;

/// The part of a pod worker that reports.
#[derive(Debug)]
pub(super) struct Reporter {
    pub(super) node: Arc<Node>,
    pub(super) desired: watch::Receiver<DesiredPod>,
    pub(super) wake: Arc<Notify>,
    pub(super) exits: Arc<Mutex<HashSet<String>>>,
    pub(super) reported: Arc<Mutex<ReportedPod>>,
    pub(super) probes: Probes,
    pub(super) progress: SharedProgress,
    pub(super) previous: core::PodStatus,
    /// The node's decision to fail the pod.
    pub(super) failure: Option<PodFailure>,
    /// No container is started any longer.
    pub(super) terminal: bool,
    /// Containers and sandboxes are stopped.
    pub(super) stopped: bool,
    /// Announced exits that are not listed yet, with the time of their announcement.
    missing: HashMap<String, Instant>,
    /// Number of statuses that differed from the previous one.
    pub(super) changes: u64,
}

impl Reporter {
    pub(super) fn new(
        node: Arc<Node>,
        desired: watch::Receiver<DesiredPod>,
        wake: Arc<Notify>,
        exits: Arc<Mutex<HashSet<String>>>,
        reported: Arc<Mutex<ReportedPod>>,
        progress: SharedProgress,
    ) -> Self {
        let previous = desired.borrow().pod.api_status().cloned().unwrap_or_default();
        Self {
            probes: Probes::new(Arc::clone(&wake)),
            node,
            desired,
            wake,
            exits,
            reported,
            progress,
            previous,
            failure: None,
            terminal: false,
            stopped: false,
            missing: HashMap::new(),
            changes: 0,
        }
    }

    /// Queries the state of the pod from the runtime.
    ///
    /// # Errors
    ///
    /// The runtime does not answer.
    pub(super) async fn observe(&mut self, pod: &Pod) -> Result<ObservedPod, RuntimeError> {
        let announced = std::mem::take(&mut *self.exits.lock());
        let now = base::clock::now();
        for id in announced {
            self.missing.entry(id).or_insert(now);
        }
        let observed = observe_pod(&self.node, pod).await?;
        self.missing
            .retain(|id, since| observed.is_exit_missing(id) && since.elapsed() < EXIT_LAG_MAX);
        Ok(observed)
    }

    /// Returns when to look again for an announced exit that the runtime does not list yet.
    pub(super) fn lag_deadline(&self) -> Option<Instant> {
        let now = base::clock::now();
        self.missing.values().map(|since| now + since.elapsed().max(EXIT_LAG_LOOK)).min()
    }

    /// Updates the probes to the running containers, and publishes the status.
    pub(super) fn update(&mut self, desired: &DesiredPod, observed: &ObservedPod) {
        let hidden;
        let mut observed = observed;
        let starting = self.progress.lock().starting.clone();
        if observed.containers.iter().any(|c| starting.contains(&c.id)) {
            let mut copy = observed.clone();
            copy.containers.retain(|c| !starting.contains(&c.id));
            hidden = copy;
            observed = &hidden;
        }
        let pod = &desired.pod;
        let terminating = self.terminal || pod.is_deleted() || desired.halt_seconds.is_some();
        self.probes.sync(&self.node, pod, observed, terminating);
        self.progress.lock().waiting.retain(|name, _| {
            pod.container(name).is_some()
                && observed.active_container(name).is_none_or(|c| c.state != ObservedState::Running)
        });
        self.publish(desired, observed);
    }

    /// Publishes the status to the API server and to other parts of the node.
    fn publish(&mut self, desired: &DesiredPod, observed: &ObservedPod) {
        let health = self.probes.results();
        let mut status = {
            let progress = self.progress.lock();
            pod::generate(
                &desired.pod,
                &StatusInput {
                    observed: &with_replaced_running(observed, &progress.replaced),
                    group: self.node.runtime.cgroups.pod_config(&desired.pod),
                    health: &health,
                    waiting: &progress.waiting,
                    previous: &self.previous,
                    node_ips: &self.node.identity.config.node_ips(),
                    terminal: self.terminal && self.stopped,
                    failure: self.failure.as_ref(),
                    deferred: desired.resize.as_ref(),
                    resizing: progress.resizing.as_deref(),
                    recursive_read_only: self.node.identity.features.runtime.recursive_read_only,
                    runtime_name: &self.node.runtime.version.name,
                    now: jiff::Timestamp::from_second(
                        i64::try_from(base::clock::unix_time().as_secs()).unwrap_or_default(),
                    )
                    .unwrap_or_default(),
                },
            )
        };
        self.node.devices.add_resource_health(&desired.pod.uid, &mut status);
        let dynamic_resources = &self.node.dynamic_resources;
        dynamic_resources.add_resource_health(&desired.pod, &mut status);
        dynamic_resources.hold_end_back(&desired.pod, &mut status, &self.previous);
        self.node.identity.config.not_ready_pods.update(
            &desired.pod.key.to_string(),
            &desired.pod.uid,
            &status,
        );
        {
            let mut reported = self.reported.lock();
            reported.status = status.clone();
            reported.observed = Arc::new(observed.clone());
        }
        if let (Some(uid), false) = (&desired.api_uid, desired.removed) {
            let known =
                (desired.pod.origin == PodOrigin::Api).then(|| desired.pod.api_status()).flatten();
            self.node.api.status.set(
                &desired.pod.uid,
                &desired.pod.key,
                uid,
                known,
                status.clone(),
            );
        }
        self.changes += u64::from(status != self.previous);
        self.previous = status;
    }

    /// Runs `action` to completion and meanwhile reports what runtime and probes announce: a hook,
    /// a pull or a grace period of one container must not hide changes of the others.
    pub(super) async fn report_while<T>(&mut self, action: impl Future<Output = T>) -> T {
        let mut action = pin!(action);
        let wake = Arc::clone(&self.wake);
        let mut woken = false;
        let outcome = loop {
            let lag = self.lag_deadline();
            tokio::select! {
                biased;
                outcome = &mut action => break outcome,
                () = wake.notified() => woken = true,
                () = sleep_until_deadline(lag) => {}
            }
            tokio::select! {
                biased;
                outcome = &mut action => break outcome,
                () = self.report() => {}
            }
        };
        if woken {
            // The plan has not considered the announcements yet.
            wake.notify_one();
        }
        outcome
    }

    async fn report(&mut self) {
        let desired = self.desired.borrow().clone();
        match self.observe(&desired.pod).await {
            Ok(observed) => self.update(&desired, &observed),
            Err(error) => tracing::debug!(pod = %desired.pod.key, %error, "cannot observe pod"),
        }
    }
}

/// Returns the pod as it is reported while `replaced` containers are started again.
fn with_replaced_running<'a>(
    observed: &'a ObservedPod,
    replaced: &HashSet<String>,
) -> Cow<'a, ObservedPod> {
    let has_ended = |c: &ObservedContainer| {
        c.state == ObservedState::Exited && replaced.contains(c.id.as_str())
    };
    if !observed.containers.iter().any(has_ended) {
        return Cow::Borrowed(observed);
    }
    let mut shown = observed.clone();
    for container in shown.containers.iter_mut().filter(|c| has_ended(c)) {
        container.state = ObservedState::Running;
        container.finished_at = 0;
    }
    Cow::Owned(shown)
}

/// Resolves at a deadline; never without one.
pub(super) async fn sleep_until_deadline(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Queries sandboxes and containers of a pod from the runtime and records their owner.
///
/// # Errors
///
/// The runtime does not answer.
pub(super) async fn observe_pod(node: &Node, pod: &Pod) -> Result<ObservedPod, RuntimeError> {
    // The runtime also returns an error for a sandbox whose namespace is hidden.
    let mut observed = netns::retry(|| observe(&*node.runtime.cri, &pod.uid)).await?;
    let sandboxes = observed.sandboxes.iter().map(|s| &s.id);
    for id in sandboxes.chain(observed.containers.iter().map(|c| &c.id)) {
        node.caches.container_owners.insert(id, &pod.uid);
    }
    message::fill_termination_messages(&mut observed, &node.identity.config.pod_logs_dir);
    Ok(observed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::observed::tests::container;

    #[test]
    fn a_container_that_is_started_again_is_reported_as_running() {
        let mut ended = container("a", ObservedState::Exited);
        ended.finished_at = 5;
        let observed = ObservedPod { containers: vec![ended], ..ObservedPod::default() };
        let id = observed.containers[0].id.clone();
        let shown = with_replaced_running(&observed, &HashSet::from([id]));
        assert_eq!(shown.containers[0].state, ObservedState::Running);
        assert_eq!(shown.containers[0].finished_at, 0);
        assert_eq!(*with_replaced_running(&observed, &HashSet::new()), observed);
    }
}
