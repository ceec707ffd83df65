//! The worker of one pod: a task that observes, reports, plans with [`crate::pods::plan`] and acts.
//! Events and deadlines wake it; a periodic relist is only a safeguard.

mod actions;
mod active;
mod backoff;
mod claims;
mod container_config;
mod error;
pub(crate) mod lifecycle_hook;
mod message;
mod reporter;
mod reset;
mod resize;
mod resource_admission;
#[cfg(test)]
mod simulation;
mod start;
mod stop;

use std::sync::Arc;
use std::time::Duration;

use base::Backoff;
use client::events::EventType;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::context::Node;
use crate::events;
use crate::pods::handle::{DesiredPod, WorkerHandle};
use crate::pods::objects;
use crate::pods::observed::{ObservedPod, ObservedState};
use crate::pods::plan::restart_all::{is_marked, plan_restart_all};
use crate::pods::plan::{Plan, plan};
use crate::pods::pod::Pod;
use crate::status::pod::PodFailure;

use actions::{PlanOutcome, PodActions};
use active::ActiveTime;
use error::SyncError;
use reporter::Reporter;

/// Interval of the periodic relist, in case an event was lost.
const RELIST: Duration = Duration::from_secs(300);
/// One pod's worker.
#[derive(Debug)]
pub(crate) struct Worker {
    node: Arc<Node>,
    desired: watch::Receiver<DesiredPod>,
    wake: Arc<Notify>,
    halted: Arc<watch::Sender<bool>>,
    reporter: Reporter,
    actions: PodActions,
    adopted: bool,
    /// The devices, CPUs and memory of the pod are allocated.
    has_resources: bool,
    backoff: Backoff,
    active: ActiveTime,
}

enum Step {
    /// The pod is removed from this node.
    Done,
    /// Observe and plan again at once.
    Now,
    /// Sync again at this time, or when woken.
    At(Instant),
    /// Nothing is due: sync again when woken, or at the relist.
    Idle,
}

impl Worker {
    /// Creates a worker for a pod, and the handle to it.
    pub(crate) fn new(node: Arc<Node>, desired: DesiredPod) -> (Self, WorkerHandle) {
        let (sender, receiver) = watch::channel(desired);
        let wake = Arc::new(Notify::new());
        let exits = Arc::default();
        let reported = Arc::default();
        let halted = Arc::new(watch::Sender::new(false));
        let progress = Arc::default();
        let handle = WorkerHandle {
            desired: sender,
            wake: Arc::clone(&wake),
            exits: Arc::clone(&exits),
            halted: Arc::clone(&halted),
            reported: Arc::clone(&reported),
        };
        let worker = Self {
            reporter: Reporter::new(
                Arc::clone(&node),
                receiver.clone(),
                Arc::clone(&wake),
                exits,
                reported,
                Arc::clone(&progress),
            ),
            actions: PodActions::new(Arc::clone(&node), receiver.clone(), progress),
            node,
            desired: receiver,
            wake,
            halted,
            adopted: false,
            has_resources: false,
            backoff: Backoff::new(Duration::from_millis(500), Duration::from_secs(60)),
            active: ActiveTime::default(),
        };
        (worker, handle)
    }

    /// Runs until the pod is removed from this node, or until shutdown, after which its containers
    /// keep running.
    pub(crate) async fn run(mut self) -> Result<(), std::convert::Infallible> {
        let shutdown = self.node.tasks.shutdown().clone();
        let mut relisted = None;
        loop {
            let desired = self.desired.borrow_and_update().clone();
            let step = tokio::select! {
                biased;
                () = shutdown.requested() => return Ok(()),
                step = self.sync(&desired) => step,
            };
            if relisted.take().is_some_and(|before| before != self.changes()) {
                tracing::warn!(
                    pod = %desired.pod.key,
                    "the periodic relist changed a pod: an event of the runtime was lost"
                );
                self.reporter.reported.lock().relist_changes += 1;
            }
            let (deadline, idle) = match step {
                Step::Done => {
                    tracing::debug!(pod = %desired.pod.key, uid = %desired.pod.uid, "pod removed");
                    self.node
                        .identity
                        .config
                        .not_ready_pods
                        .remove(&desired.pod.key.to_string(), &desired.pod.uid);
                    return Ok(());
                }
                Step::Now => continue,
                Step::At(deadline) => (deadline, false),
                Step::Idle => (base::clock::now() + RELIST, true),
            };
            tokio::select! {
                biased;
                () = shutdown.requested() => return Ok(()),
                changed = self.desired.changed() => if changed.is_err() { return Ok(()) },
                () = self.wake.notified() => {}
                () = tokio::time::sleep_until(deadline) => {
                    relisted = idle.then(|| self.changes());
                }
            }
        }
    }

    /// Number of changes of the pod and of its status so far.
    fn changes(&self) -> (u64, u64) {
        (self.actions.changes, self.reporter.changes)
    }

    /// Syncs again after the back-off.
    fn retry_later(&mut self) -> Step {
        Step::At(base::clock::now() + self.backoff.next_delay())
    }

    async fn sync(&mut self, desired: &DesiredPod) -> Step {
        let pod = &desired.pod;
        let observed = match self.reporter.observe(pod).await {
            Ok(observed) => observed,
            Err(error) => {
                tracing::debug!(pod = %pod.key, %error, "cannot observe pod");
                // While the runtime is unavailable, no event about the pod is recorded.
                if !error.is_unavailable() {
                    let message = format!("error determining status: {}", error.grpc_text());
                    self.node.api.events.pod_event(
                        pod,
                        EventType::Warning,
                        events::FAILED_SYNC,
                        message,
                    );
                }
                return self.retry_later();
            }
        };
        if !self.adopted {
            self.adopted = true;
            self.adopt(pod, &observed);
        }
        // A deadline ends a running pod; the outcome of an ended pod is final.
        if self.reporter.failure.is_none() && !self.reporter.terminal && !pod.is_api_terminal() {
            let over = self.active_left(pod).is_some_and(|left| left.is_zero());
            self.reporter.failure =
                desired.rejection.clone().or_else(|| over.then(deadline_exceeded));
            let own = self.reporter.failure.as_ref().filter(|_| desired.rejection.is_none());
            if let Some(verdict) = own {
                let (reason, message) = (&verdict.reason, verdict.message.clone());
                self.node.api.events.pod_event(pod, EventType::Normal, reason, message);
            }
        }
        if desired.removed
            || pod.is_deleted()
            || self.reporter.failure.is_some()
            || self.reporter.terminal
            || pod.is_api_terminal()
        {
            self.reporter.terminal = true;
            return self.finish(desired, observed).await;
        }
        if let Some(seconds) = desired.halt_seconds {
            return self.halt(desired, observed, seconds).await;
        }
        match self.advance(desired, observed).await {
            Ok(step) => {
                self.backoff.reset();
                step
            }
            Err(error) => {
                tracing::debug!(pod = %pod.key, %error, "cannot sync pod, retrying");
                self.retry_later()
            }
        }
    }

    /// The rest of `activeDeadlineSeconds`. The start time in the API may be missing, and always is
    /// for a static pod.
    fn active_left(&mut self, pod: &Pod) -> Option<Duration> {
        let start = pod.api_status().and_then(|s| s.start_time.as_ref());
        let start = start.or(self.reporter.previous.start_time.as_ref())?.0.as_second();
        self.active.left(pod, start)
    }

    /// Restores the probe state of containers that an earlier process started: started, and ready
    /// if they were.
    fn adopt(&self, pod: &Pod, observed: &ObservedPod) {
        let previous = &self.reporter.previous;
        let old =
            previous.container_statuses.iter().chain(&previous.init_container_statuses).flatten();
        for status in old.filter(|s| s.started == Some(true)) {
            let running = observed
                .active_container(&status.name)
                .filter(|c| c.state == ObservedState::Running);
            if let Some(container) = running
                && status.container_id.as_deref().is_some_and(|id| id.ends_with(&container.id))
                && pod.container(&status.name).is_some()
            {
                self.reporter.probes.adopt(&container.id, status.ready);
            }
        }
    }

    /// Plans the next actions. The status that was reported for `observed` determines whether all
    /// containers are being restarted.
    fn plan(&self, pod: &Pod, observed: &ObservedPod) -> Plan {
        if is_marked(&self.reporter.previous) {
            return plan_restart_all(pod, observed);
        }
        let health = self.reporter.probes.results();
        plan(pod, observed, |id| health.get(id).copied().unwrap_or_default())
    }

    /// Advances a pod that should run towards its desired state.
    async fn advance(
        &mut self,
        desired: &DesiredPod,
        observed: ObservedPod,
    ) -> Result<Step, SyncError> {
        let pod = &desired.pod;
        self.node.api.objects.set_references(&pod.uid, &self.wake, &objects::references(pod));
        self.node.api.trust_bundles.follow(pod, &self.wake);
        self.node.api.pod_certificates.follow(pod, &self.wake);
        self.node.csi.follow(pod, &self.wake);
        self.node.dynamic_resources.follow(pod, &self.wake);
        self.actions.record_pending_resize(pod, &observed);
        self.actions.pulls.begin_round();
        self.reporter.update(desired, &observed);
        let next = self.plan(pod, &observed);
        if next.kill_pod && next.create_sandbox.is_none() {
            self.reporter.terminal = true;
            return Ok(Step::Now);
        }
        if let Some(step) = self.admit_resources(pod, &next, &observed).await {
            return Ok(step);
        }
        let action = self.actions.apply(pod, &next, &observed);
        let applied = self.reporter.report_while(action).await?;
        let (mut observed, mut next, mut again) = (observed, next, false);
        if applied.changed || next != Plan::default() {
            observed = self.reporter.observe(pod).await?;
            self.reporter.update(desired, &observed);
            // A plan does not include its own effects: once a sidecar runs, the next container may
            // start.
            let planned = self.plan(pod, &observed);
            // The runtime's state may also have changed on its own: a sandbox may have ended
            // between two observations.
            again = planned != Plan::default() && (applied.changed || planned != next);
            next = planned;
        }
        self.actions.remove_dead_containers(pod, &observed).await;
        if let Some(why) = applied.failed {
            return Err(why);
        }
        Ok(if again { Step::Now } else { self.deadline(pod, &next, &applied, &observed) })
    }

    /// Returns when to sync again without being woken.
    fn deadline(
        &mut self,
        pod: &Pod,
        next: &Plan,
        applied: &PlanOutcome,
        observed: &ObservedPod,
    ) -> Step {
        let now = base::clock::now();
        let mut times = Vec::new();
        times.extend(applied.refresh_at);
        times.extend(self.actions.pulls.next_try());
        // The end of a back-off only counts for containers that wait for it: otherwise the worker
        // would loop.
        let crashed: Vec<usize> = {
            let waiting = &self.actions.progress.lock().waiting;
            let waits = |index: &&usize| {
                let why = pod.containers.get(**index).and_then(|m| waiting.get(m.name()));
                why.is_some_and(|why| why.reason == "CrashLoopBackOff")
            };
            next.start.iter().filter(waits).copied().collect()
        };
        times.extend(self.actions.crashes.next_try(pod, observed, &crashed));
        times.extend(self.active_left(pod).map(|left| now + left));
        times.extend(self.reporter.lag_deadline());
        // The longest back-off is as long as the relist interval, and the container is due a
        // millisecond after it: this is still a deadline.
        let relist = now + RELIST + backoff::RETRY_MARGIN;
        times.into_iter().min().filter(|at| *at <= relist).map_or(Step::Idle, Step::At)
    }
}

fn deadline_exceeded() -> PodFailure {
    PodFailure {
        reason: "DeadlineExceeded".to_owned(),
        message: "Pod was active on the node longer than the specified deadline".to_owned(),
        grace: None,
        disruption: false,
    }
}
