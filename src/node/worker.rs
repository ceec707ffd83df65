//! One task per pod: observes, reports, decides with [`crate::plan`], acts; woken by events, never by a clock alone.

mod active;
mod backoff;
mod message;
mod resize;
mod start;
mod stop;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1 as core;
use base::Backoff;
use client::events::EventType;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::images::{self, PullState};
use crate::node::Node;
use crate::observed::{self, Observed, State, observe};
use crate::plan::{Plan, plan};
use crate::pod::{Origin, Pod, Role};
use crate::probes::Probes;
use crate::resize::Deferred;
use crate::resources::Given;
use crate::runtime::{RuntimeError, netns};
use crate::status::{self, Input, Verdict, Waiting, order_addresses};
use crate::volumes::{self, Volumes};

use active::Active;
use backoff::CrashBackoff;

/// A look without an event, in case one was lost.
const RELIST: Duration = Duration::from_secs(300);
/// How long an end that was announced may be missing from what the runtime lists.
const EXIT_LAG_MAX: Duration = Duration::from_secs(5);
/// Processes and threads of one pod under the hardened profile: more than any service has, less than harms its neighbours.
const PIDS_MAX: i64 = 4096;
/// Waiting for ConfigMaps and Secrets to be read for the first time.
pub(crate) const OBJECTS_WAIT: Duration = Duration::from_secs(2);

/// What the pod manager wants of a worker.
#[derive(Debug, Clone)]
pub(crate) struct Desired {
    pub(crate) pod: Arc<Pod>,
    /// The API has it no more: end it, there is nothing to report to.
    pub(crate) removed: bool,
    /// Uid in the API, where a status can be written; a static pod without mirror has none.
    pub(crate) api_uid: Option<String>,
    /// The pod may not run here, or no longer.
    pub(crate) refused: Option<Verdict>,
    /// New resources that the node does not have; `pod` has those it was given.
    pub(crate) resize: Option<Deferred>,
    /// The machine is switched off: containers end within so many seconds, and nothing is started.
    pub(crate) halt: Option<i64>,
}

/// The manager's end of a worker.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) desired: watch::Sender<Desired>,
    pub(crate) wake: Arc<Notify>,
    pub(crate) exits: Arc<Mutex<HashSet<String>>>,
    /// Whether the containers have ended, as [`Desired::halt`] asks.
    pub(crate) halted: Arc<watch::Sender<bool>>,
    /// The newest status and observation, for the node's own API.
    pub(crate) shown: Arc<Mutex<Shown>>,
}

/// What others may look at.
#[derive(Debug, Default, Clone)]
pub(crate) struct Shown {
    pub(crate) status: core::PodStatus,
    pub(crate) observed: Arc<Observed>,
}

/// One pod's worker.
#[derive(Debug)]
pub(crate) struct Worker {
    node: Arc<Node>,
    desired: watch::Receiver<Desired>,
    wake: Arc<Notify>,
    exits: Arc<Mutex<HashSet<String>>>,
    halted: Arc<watch::Sender<bool>>,
    shown: Arc<Mutex<Shown>>,
    probes: Probes,
    waiting: HashMap<String, Waiting>,
    pulls: PullState,
    crashes: CrashBackoff,
    previous: core::PodStatus,
    /// The node decided that the pod failed.
    decided: Option<Verdict>,
    /// Nothing is started any more.
    terminal: bool,
    /// Containers and sandboxes are stopped.
    stopped: bool,
    adopted: bool,
    trouble: Backoff,
    /// Ends that were announced and are not yet seen, since when.
    missing: HashMap<String, Instant>,
    /// What containers were given, by id.
    given: HashMap<String, Given>,
    /// Why new resources are not in force yet.
    resizing: Option<String>,
    active: Active,
}

enum Step {
    /// The pod is gone from this node.
    Done,
    /// Look again by then, or when woken.
    At(Instant),
}

/// The pod's addresses: its sandbox's, or the node's.
pub(crate) fn pod_ips(node: &Node, pod: &Pod, observed: &Observed) -> Vec<String> {
    if pod.host_network() {
        return node.config.node_ips().iter().map(ToString::to_string).collect();
    }
    let mut ips = observed.ready_sandbox().map(|s| s.ips.clone()).unwrap_or_default();
    order_addresses(&mut ips, &node.config.node_ips());
    ips
}

impl Worker {
    /// A worker for a pod, and the handle to it.
    pub(crate) fn new(node: Arc<Node>, desired: Desired) -> (Self, Handle) {
        let previous = desired.pod.api_status().cloned().unwrap_or_default();
        let (sender, receiver) = watch::channel(desired);
        let wake = Arc::new(Notify::new());
        let exits = Arc::default();
        let shown = Arc::default();
        let halted = Arc::new(watch::Sender::new(false));
        let handle = Handle {
            desired: sender,
            wake: Arc::clone(&wake),
            exits: Arc::clone(&exits),
            halted: Arc::clone(&halted),
            shown: Arc::clone(&shown),
        };
        let worker = Self {
            probes: Probes::new(Arc::clone(&wake)),
            node,
            desired: receiver,
            wake,
            exits,
            halted,
            shown,
            waiting: HashMap::new(),
            pulls: PullState::default(),
            crashes: CrashBackoff::default(),
            previous,
            decided: None,
            terminal: false,
            stopped: false,
            adopted: false,
            trouble: Backoff::new(Duration::from_millis(500), Duration::from_secs(60)),
            missing: HashMap::new(),
            given: HashMap::new(),
            resizing: None,
            active: Active::default(),
        };
        (worker, handle)
    }

    /// Runs until the pod is gone from this node, or shutdown: then its containers go on.
    pub(crate) async fn run(mut self) -> Result<(), std::convert::Infallible> {
        let shutdown = self.node.tasks.shutdown().clone();
        loop {
            let desired = self.desired.borrow_and_update().clone();
            let step = tokio::select! {
                step = self.sync(&desired) => step,
                () = shutdown.requested() => return Ok(()),
            };
            let Step::At(deadline) = step else {
                tracing::debug!(pod = %desired.pod.key, uid = %desired.pod.uid, "pod is gone");
                self.node.config.unready.gone(&desired.pod.key.to_string(), &desired.pod.uid);
                return Ok(());
            };
            tokio::select! {
                changed = self.desired.changed() => if changed.is_err() { return Ok(()) },
                () = self.wake.notified() => {}
                () = tokio::time::sleep_until(deadline) => {}
                () = shutdown.requested() => return Ok(()),
            }
        }
    }

    async fn observe(&mut self, pod: &Pod) -> Result<Observed, RuntimeError> {
        let runtime = &*self.node.runtime;
        // The status of a sandbox whose namespace is hidden is an error, too.
        let mut observed = netns::retry(|| observe(runtime, &pod.uid)).await?;
        for id in observed
            .sandboxes
            .iter()
            .map(|s| &s.id)
            .chain(observed.containers.iter().map(|c| &c.id))
        {
            self.node.own(id, &pod.uid);
        }
        message::fill(&mut observed, &self.node.config.pod_logs_dir);
        let now = base::clock::now();
        for id in std::mem::take(&mut *self.exits.lock()) {
            self.missing.entry(id).or_insert(now);
        }
        self.missing.retain(|id, since| observed.is_running(id) && since.elapsed() < EXIT_LAG_MAX);
        Ok(observed)
    }

    async fn sync(&mut self, desired: &Desired) -> Step {
        let pod = &desired.pod;
        let observed = match self.observe(pod).await {
            Ok(observed) => observed,
            Err(error) => {
                tracing::debug!(pod = %pod.key, %error, "cannot look at the pod");
                // A runtime that is away says nothing of this pod.
                if !error.is_unavailable() {
                    let message = format!("error determining status: {}", error.grpc_text());
                    self.node.pod_event(pod, EventType::Warning, "FailedSync", message);
                }
                return Step::At(base::clock::now() + self.trouble.next_delay());
            }
        };
        if !self.adopted {
            self.adopted = true;
            self.adopt(pod, &observed);
        }
        if self.decided.is_none() {
            let over = self.active.left(pod).is_some_and(|left| left.is_zero());
            self.decided = desired.refused.clone().or_else(|| over.then(deadline_exceeded));
            if let Some(verdict) = self.decided.as_ref().filter(|_| desired.refused.is_none()) {
                let (reason, message) = (&verdict.reason, verdict.message.clone());
                self.node.pod_event(pod, EventType::Normal, reason, message);
            }
        }
        if desired.removed
            || pod.is_deleted()
            || self.decided.is_some()
            || self.terminal
            || pod.is_api_terminal()
        {
            self.terminal = true;
            return self.finish(desired, observed).await;
        }
        if let Some(seconds) = desired.halt {
            return self.halt(desired, observed, seconds).await;
        }
        match self.advance(desired, observed).await {
            Ok(deadline) => {
                self.trouble.reset();
                Step::At(deadline)
            }
            Err(error) => {
                tracing::debug!(pod = %pod.key, %error, "pod not in its wanted state yet");
                Step::At(base::clock::now() + self.trouble.next_delay())
            }
        }
    }

    /// What ran before we did was started, and ready if it was.
    fn adopt(&self, pod: &Pod, observed: &Observed) {
        let old = self
            .previous
            .container_statuses
            .iter()
            .chain(&self.previous.init_container_statuses)
            .flatten();
        for status in old.filter(|s| s.started == Some(true)) {
            let running = observed.active(&status.name).filter(|c| c.state == State::Running);
            if let Some(container) = running
                && status.container_id.as_deref().is_some_and(|id| id.ends_with(&container.id))
                && pod.member(&status.name).is_some()
            {
                self.probes.adopt(&container.id, status.ready);
            }
        }
    }

    /// Brings a pod that should run closer to what is wanted.
    async fn advance(&mut self, desired: &Desired, observed: Observed) -> Result<Instant, String> {
        let pod = &desired.pod;
        self.probes.sync(&self.node, pod, &observed);
        let references = volumes::references(pod);
        self.node.objects.use_all(&pod.uid, &self.wake, &references);
        self.node.trust_bundles.follow(pod, &self.wake);
        self.node.pod_certificates.follow(pod, &self.wake);
        self.forget_old_reasons(pod, &observed);
        self.pulls.begin_round();
        self.publish(desired, &observed);
        let health = self.probes.results();
        let next = plan(pod, &observed, |id| health.get(id).copied().unwrap_or_default());
        if next.kill_pod && next.create_sandbox.is_none() {
            self.terminal = true;
            self.wake.notify_one();
            return Ok(base::clock::now() + RELIST);
        }
        self.prepare(pod)?;
        let resized = self.resize(pod, &observed).await;
        self.node.objects.known(&references, OBJECTS_WAIT).await;
        let ips = pod_ips(&self.node, pod, &observed);
        let set_up = volumes::set_up(&self.node, pod, &ips);
        let mut made = None;
        let volumes = match next.create_sandbox.filter(|_| !next.kill_pod) {
            // Both take a while, and neither needs the other; only where the volumes may be long in coming they come first.
            Some(attempt) if volumes::are_near(&self.node, pod) => {
                let (volumes, sandbox) = tokio::join!(set_up, self.create_sandbox(pod, attempt));
                made = Some(sandbox);
                volumes
            }
            _ => set_up.await,
        };
        let volumes = match volumes {
            Ok(volumes) => volumes,
            Err(error) => {
                self.node.pod_event(pod, EventType::Warning, "FailedMount", error.to_string());
                return Err(error.to_string());
            }
        };
        let acted = next != Plan::default();
        let mut outcome = Ok(());
        let mut observed = observed;
        if acted {
            let made = made.transpose()?;
            outcome = self.execute(pod, &next, made, &observed, &volumes).await;
            observed = self.observe(pod).await.map_err(|e| e.to_string())?;
            self.probes.sync(&self.node, pod, &observed);
            self.publish(desired, &observed);
        }
        self.collect(pod, &observed).await;
        outcome?;
        resized?;
        Ok(self.deadline(pod, &volumes, &observed))
    }

    fn forget_old_reasons(&mut self, pod: &Pod, observed: &Observed) {
        self.waiting.retain(|name, _| {
            pod.member(name).is_some()
                && observed.active(name).is_none_or(|c| c.state != State::Running)
        });
    }

    /// Folders and cgroup of a pod.
    fn prepare(&self, pod: &Pod) -> Result<(), String> {
        let dir = self.node.config.pod_dir(&pod.uid);
        let logs = self.node.config.pod_log_dir(pod.namespace(), pod.name(), &pod.uid);
        let make = || -> std::io::Result<()> {
            for folder in [dir.join("volumes"), dir.join("plugins"), logs.clone()] {
                if !folder.is_dir() {
                    std::fs::create_dir_all(&folder)?;
                }
            }
            self.node.cgroups.apply(pod, self.node.config.hardened.then_some(PIDS_MAX))
        };
        make().map_err(|error| {
            let message = format!("error making pod data directories: {error}");
            self.node.pod_event(pod, EventType::Warning, "Failed", message.clone());
            message
        })
    }

    async fn execute(
        &mut self,
        pod: &Arc<Pod>,
        next: &Plan,
        made: Option<String>,
        observed: &Observed,
        volumes: &Volumes,
    ) -> Result<(), String> {
        if next.kill_pod {
            if next.create_sandbox.is_some() {
                let message = "Pod sandbox changed, it will be killed and re-created.";
                self.node.pod_event(pod, EventType::Normal, "SandboxChanged", message);
            }
            self.stop_all(pod, observed, pod.grace_seconds()).await?;
        }
        let mut sandbox = observed.ready_sandbox().map(|s| s.id.clone());
        let mut seen = None;
        if let Some(attempt) = next.create_sandbox {
            let id = match made {
                Some(id) => id,
                None => self.create_sandbox(pod, attempt).await?,
            };
            let fresh = observed::sandbox(&*self.node.runtime, &id).await.inspect_err(|error| {
                let message = format!("Unable to get pod sandbox status: {}", error.grpc_text());
                self.node.pod_event(pod, EventType::Warning, "FailedPodSandBoxStatus", message);
            });
            let mut newer = observed.clone();
            newer.sandboxes.splice(0..0, fresh.map_err(|e| e.to_string())?);
            seen = Some(newer);
            sandbox = Some(id);
        }
        for kill in &next.kill {
            self.kill_planned(pod, seen.as_ref().unwrap_or(observed), kill).await?;
        }
        if !next.kill.is_empty() {
            // What was killed has ended by now, and its end begins the back-off.
            seen = Some(self.observe(pod).await.map_err(|e| e.to_string())?);
        }
        let observed = seen.as_ref().unwrap_or(observed);
        let Some(sandbox) = sandbox else { return Ok(()) };
        let attempt = observed.sandboxes.first().map_or(0, |s| s.attempt);
        let mut failed = Ok(());
        let mut pull_failed = false;
        for index in &next.start {
            let Some(member) = pod.members.get(*index) else { continue };
            match self.start(pod, member, &sandbox, attempt, observed, volumes).await {
                Ok(()) => {
                    self.waiting.remove(member.name());
                }
                Err(why) => {
                    // Back-offs have a deadline of their own, everything else is tried again soon.
                    if !images::has_back_off(why.reason) {
                        failed = Err(why.message.clone());
                    }
                    pull_failed |= why.reason == "ErrImagePull";
                    self.waiting.insert(member.name().to_owned(), why);
                }
            }
        }
        if pull_failed {
            images::report_missing_secrets(&self.node, pod);
        }
        failed
    }

    /// Tells the API and others how the pod is.
    fn publish(&mut self, desired: &Desired, observed: &Observed) {
        let health = self.probes.results();
        let status = status::generate(
            &desired.pod,
            &Input {
                observed,
                health: &health,
                waiting: &self.waiting,
                previous: &self.previous,
                node_ips: &self.node.config.node_ips(),
                terminal: self.terminal && self.stopped,
                decided: self.decided.as_ref(),
                deferred: desired.resize.as_ref(),
                resizing: self.resizing.as_deref(),
                runtime_name: &self.node.version.name,
                now: jiff::Timestamp::from_second(
                    i64::try_from(base::clock::unix_time().as_secs()).unwrap_or_default(),
                )
                .unwrap_or_default(),
            },
        );
        self.node.config.unready.told(&desired.pod.key.to_string(), &desired.pod.uid, &status);
        *self.shown.lock() = Shown { status: status.clone(), observed: Arc::new(observed.clone()) };
        if let (Some(uid), false) = (&desired.api_uid, desired.removed) {
            let known =
                (desired.pod.origin == Origin::Api).then(|| desired.pod.api_status()).flatten();
            self.node.status.set(&desired.pod.uid, &desired.pod.key, uid, known, status.clone());
        }
        self.previous = status;
    }

    /// When to look again without being woken.
    fn deadline(&mut self, pod: &Pod, volumes: &Volumes, observed: &Observed) -> Instant {
        let now = base::clock::now();
        let mut times = vec![now + RELIST];
        times.extend(volumes.refresh_at);
        times.extend(self.pulls.next_try());
        times.extend(self.crashes.next_try(pod, observed));
        times.extend(self.active.left(pod).map(|left| now + left));
        // An announced end that the runtime does not list yet.
        times.extend(
            self.missing.values().map(|since| now + since.elapsed().max(Duration::from_millis(5))),
        );
        times.into_iter().min().unwrap_or(now + RELIST)
    }
}

fn deadline_exceeded() -> Verdict {
    Verdict {
        reason: "DeadlineExceeded".to_owned(),
        message: "Pod was active on the node longer than the specified deadline".to_owned(),
        grace: None,
        disruption: false,
    }
}

/// Sidecars end last, the later before the earlier.
fn sidecars_last(pod: &Pod) -> Vec<&str> {
    let mut names: Vec<&str> = pod.of_role(Role::Sidecar).map(crate::pod::Member::name).collect();
    names.reverse();
    names
}
