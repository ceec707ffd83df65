//! Executes a plan: directories, volumes and sandbox, then stops and starts. It reports no status.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use client::events::EventType;
use tokio::sync::watch;
use tokio::time::Instant;

use super::backoff::CrashBackoff;
use super::error::{KillPodError, SyncError};
use super::reporter::{SharedProgress, observe_pod};
use crate::cgroups::PodGroupLimits;
use crate::context::Node;
use crate::events;
use crate::pods::handle::{DesiredPod, pod_must_end};
use crate::pods::image_pull;
use crate::pods::image_pull::PullState;
use crate::pods::objects;
use crate::pods::objects::OBJECTS_WAIT;
use crate::pods::observed;
use crate::pods::observed::ObservedPod;
use crate::pods::plan::Plan;
use crate::pods::pod::{Pod, PodContainer};
use crate::pods::resources::AllocatedResources;
use crate::runtime::RuntimeError;
use crate::status;
use crate::user_namespaces;
use crate::volumes::{self, PodVolumes};

/// Limit of processes and threads of one pod under the hardened profile: more than services need,
/// and few enough to protect other pods.
const PIDS_MAX: i64 = 4096;

/// The limits of a pod's group that do not follow from the pod.
pub(super) fn group_limits(node: &Node, pod: &Pod) -> PodGroupLimits {
    let config = &node.identity.config;
    PodGroupLimits {
        pids_max: config.pod_pids_max.or(config.hardened.then_some(PIDS_MAX)),
        is_cpu_unlimited: node.resource_managers.has_exclusive_cpus(pod),
    }
}

/// Returns the ids of the containers that a plan stops and starts again.
fn replaced(pod: &Pod, next: &Plan) -> HashSet<String> {
    let names = |index: &usize| pod.containers.get(*index).map(PodContainer::name);
    let started: HashSet<&str> = next.start.iter().filter_map(names).collect();
    let kills = next.kill.iter().filter(|kill| started.contains(kill.name.as_str()));
    kills.map(|kill| kill.id.clone()).collect()
}

/// The part of a pod worker that acts.
#[derive(Debug)]
pub(super) struct PodActions {
    pub(super) node: Arc<Node>,
    pub(super) desired: watch::Receiver<DesiredPod>,
    pub(super) progress: SharedProgress,
    pub(super) pulls: PullState,
    pub(super) crashes: CrashBackoff,
    /// Allocated resources of the containers, by id.
    pub(super) allocated: HashMap<String, AllocatedResources>,
    /// The drivers released the claims of the pod, whose containers have ended.
    pub(super) has_released_claims: bool,
    /// Number of objects created, started, stopped or removed.
    pub(super) changes: u64,
}

/// The outcome of a plan.
#[derive(Debug, Default)]
pub(super) struct PlanOutcome {
    /// When a token or certificate in a volume has to be refreshed.
    pub(super) refresh_at: Option<Instant>,
    /// Something was created, started or stopped, so that the next plan may differ.
    pub(super) changed: bool,
    /// Error of a part that failed and is retried soon.
    pub(super) failed: Option<SyncError>,
}

impl PodActions {
    pub(super) fn new(
        node: Arc<Node>,
        desired: watch::Receiver<DesiredPod>,
        progress: SharedProgress,
    ) -> Self {
        let crashes = CrashBackoff::new(node.identity.config.restart_delay_max);
        Self {
            node,
            desired,
            progress,
            pulls: PullState::default(),
            crashes,
            allocated: HashMap::new(),
            has_released_claims: false,
            changes: 0,
        }
    }

    /// Executes `next`.
    ///
    /// # Errors
    ///
    /// A failure that blocks the whole pod: directories, volumes, its sandbox.
    pub(super) async fn apply(
        &mut self,
        pod: &Arc<Pod>,
        next: &Plan,
        observed: &ObservedPod,
    ) -> Result<PlanOutcome, SyncError> {
        let before = self.changes;
        let resizes = self.pending_resizes(pod, observed);
        let accepted = self.check_memory(pod, &resizes);
        self.prepare(pod, accepted.is_ok())?;
        let resized = match accepted {
            Ok(()) => self.resize(pod, observed, resizes).await,
            Err(error) => Err(self.report_failed_resize(pod, error)),
        };
        let references = objects::references(pod);
        self.node.api.objects.wait_until_read(&references, OBJECTS_WAIT).await;
        let ips = status::pod::pod_ips(&self.node.identity.config.node_ips(), pod, observed);
        let node = Arc::clone(&self.node);
        let set_up = volumes::set_up(&node, pod, &ips, &self.desired);
        let mut created = None;
        let volumes = match next.create_sandbox.filter(|_| !next.kill_pod) {
            // Both take a while and are independent. Volumes that may take long are set up first.
            Some(attempt) if volumes::need_no_wait(&self.node.api.objects, pod) => {
                let (volumes, sandbox) = tokio::join!(set_up, self.create_sandbox(pod, attempt));
                created = Some(sandbox);
                volumes
            }
            _ => set_up.await,
        };
        let volumes = volumes.inspect_err(|error| {
            if let Some(reason) = error.reason() {
                let message = error.to_string();
                self.node.api.events.pod_event(pod, EventType::Warning, reason, message);
            }
        })?;
        let mut outcome = Ok(());
        if *next != Plan::default() {
            let created = created.transpose()?;
            self.progress.lock().replaced = replaced(pod, next);
            outcome = self.execute(pod, next, created, observed, &volumes).await;
            self.progress.lock().replaced.clear();
        }
        Ok(PlanOutcome {
            refresh_at: volumes.refresh_at,
            changed: self.changes != before,
            failed: outcome.and(resized.map_err(SyncError::Resize)).err(),
        })
    }

    /// Creates the directories of a pod. With `raises_limits`, also creates its cgroup or raises
    /// the limits of it.
    fn prepare(&self, pod: &Pod, raises_limits: bool) -> Result<(), SyncError> {
        let dir = self.node.identity.config.pod_dir(&pod.uid);
        let logs = self.node.identity.config.pod_log_dir(pod.namespace(), pod.name(), &pod.uid);
        let make = || -> std::io::Result<()> {
            for folder in [dir.join("volumes"), dir.join("plugins"), logs.clone()] {
                if !folder.is_dir() {
                    std::fs::create_dir_all(&folder)?;
                }
            }
            Ok(())
        };
        let report = |reason: &str, error: SyncError| {
            self.node.api.events.pod_event(pod, EventType::Warning, reason, error.to_string());
            error
        };
        make().map_err(|error| report(events::FAILED, SyncError::Directories(error)))?;
        if !raises_limits {
            return Ok(());
        }
        // The pod's limits are raised before those of the containers and lowered after them.
        let raised = self.node.runtime.cgroups.raise(pod, group_limits(&self.node, pod));
        raised
            .map_err(|error| report(events::FAILED_CREATE_POD_CONTAINER, SyncError::Cgroup(error)))
    }

    /// Executes the steps of a plan after the volumes: stops, the sandbox, kills, removals, starts.
    async fn execute(
        &mut self,
        pod: &Arc<Pod>,
        next: &Plan,
        created: Option<String>,
        observed: &ObservedPod,
        volumes: &PodVolumes,
    ) -> Result<(), SyncError> {
        if next.kill_pod && !self.kill_pod(pod, next, observed).await? {
            return Ok(());
        }
        let mut sandbox = observed.ready_sandbox().map(|s| s.id.clone());
        let mut newest = None;
        if let Some(attempt) = next.create_sandbox {
            let id = match created {
                Some(id) => id,
                None => self.create_sandbox(pod, attempt).await?,
            };
            self.changes += 1;
            newest = Some(self.observe_sandbox(pod, &id, observed).await?);
            sandbox = Some(id);
        }
        if !next.kill.is_empty() {
            self.changes += 1;
            let observed = newest.as_ref().unwrap_or(observed);
            let kills = async {
                for kill in &next.kill {
                    self.kill_planned(pod, observed, kill).await?;
                }
                Ok::<_, RuntimeError>(())
            };
            if !self.unless_ending(kills).await? {
                return Ok(());
            }
            // The killed containers have ended, which starts their back-off.
            newest = Some(observe_pod(&self.node, pod).await?);
        }
        let observed = newest.as_ref().unwrap_or(observed);
        if !self.reset(pod, &next.reset, observed).await? {
            return Ok(());
        }
        let Some(sandbox) = sandbox else { return Ok(()) };
        let started = self.start_containers(pod, &next.start, &sandbox, observed, volumes).await;
        if next.create_sandbox.is_some() {
            self.count_failed_start(pod, &next.start);
        }
        started
    }

    /// Counts the start of a pod with a user namespace if one of the containers at these positions
    /// did not start; the metric counts the sync that creates the sandbox.
    fn count_failed_start(&self, pod: &Pod, indices: &[usize]) {
        let waiting = &self.progress.lock().waiting;
        let mut members = indices.iter().filter_map(|index| pod.containers.get(*index));
        let has_failed = members.any(|member| waiting.contains_key(member.name()));
        if has_failed && user_namespaces::is_of_pod(pod) {
            user_namespaces::metrics::ERRORS.inc(&[]);
        }
    }

    /// Stops all containers and sandboxes. Returns whether the stop completed; otherwise the whole
    /// pod has to end.
    async fn kill_pod(
        &mut self,
        pod: &Arc<Pod>,
        next: &Plan,
        observed: &ObservedPod,
    ) -> Result<bool, KillPodError> {
        if next.create_sandbox.is_some() {
            let message = "Pod sandbox changed, it will be killed and re-created.";
            let reason = events::SANDBOX_CHANGED;
            self.node.api.events.pod_event(pod, EventType::Normal, reason, message);
        }
        self.changes += 1;
        self.unless_ending(self.stop_all(pod, observed, pod.grace_seconds())).await
    }

    /// Returns the observed pod with the sandbox `id` as its newest.
    async fn observe_sandbox(
        &self,
        pod: &Pod,
        id: &str,
        observed: &ObservedPod,
    ) -> Result<ObservedPod, RuntimeError> {
        let fresh = observed::sandbox(&*self.node.runtime.cri, id).await.inspect_err(|error| {
            let message = format!("Unable to get pod sandbox status: {}", error.grpc_text());
            let reason = events::FAILED_POD_SANDBOX_STATUS;
            self.node.api.events.pod_event(pod, EventType::Warning, reason, message);
        });
        let mut newer = observed.clone();
        newer.sandboxes.splice(0..0, fresh?);
        Ok(newer)
    }

    /// Starts the containers at these positions of the pod; a failure of one does not stop the
    /// others. The error is the last one that has no back-off.
    async fn start_containers(
        &mut self,
        pod: &Arc<Pod>,
        indices: &[usize],
        sandbox: &str,
        observed: &ObservedPod,
        volumes: &PodVolumes,
    ) -> Result<(), SyncError> {
        let attempt = observed.sandboxes.first().map_or(0, |s| s.attempt);
        let mut failed = Ok(());
        let mut pull_failed = false;
        for index in indices {
            let Some(member) = pod.containers.get(*index) else { continue };
            match self.start(pod, member, sandbox, attempt, observed, volumes).await {
                Ok(()) => {
                    self.changes += 1;
                    self.progress.lock().waiting.remove(member.name());
                }
                Err(why) => {
                    // Back-offs have their own deadline; other failures are retried soon.
                    if !image_pull::has_back_off(why.reason) {
                        failed = Err(SyncError::StartContainer(why.message.clone()));
                    }
                    pull_failed |= why.reason == "ErrImagePull";
                    self.progress.lock().waiting.insert(member.name().to_owned(), why);
                }
            }
        }
        if pull_failed {
            image_pull::report_missing_secrets(&self.node.api, pod);
        }
        failed
    }

    /// Waits for a stop until the whole pod has to end, as that has its own grace period. Returns
    /// whether the stop completed.
    pub(super) async fn unless_ending<E>(
        &self,
        stop: impl Future<Output = Result<(), E>>,
    ) -> Result<bool, E> {
        let mut desired = self.desired.clone();
        tokio::select! {
            biased;
            outcome = stop => outcome.map(|()| true),
            () = pod_must_end(&mut desired) => Ok(false),
        }
    }
}
