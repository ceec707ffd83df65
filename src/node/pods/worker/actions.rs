//! Carries out a plan: folders, volumes and sandbox, then stops and starts; it reports nothing by
//! itself.

use std::collections::HashMap;
use std::sync::Arc;

use client::events::EventType;
use tokio::sync::watch;
use tokio::time::Instant;

use super::backoff::CrashBackoff;
use super::reporter::{SharedProgress, observe_pod};
use crate::context::Node;
use crate::events;
use crate::pods::handle::Desired;
use crate::pods::image_pull;
use crate::pods::image_pull::PullState;
use crate::pods::objects;
use crate::pods::objects::OBJECTS_WAIT;
use crate::pods::observed;
use crate::pods::observed::Observed;
use crate::pods::plan::Plan;
use crate::pods::pod::Pod;
use crate::pods::resources::Given;
use crate::status;
use crate::volumes::{self, Volumes};

/// Processes and threads of one pod under the hardened profile: more than any service has, less than harms its neighbours.
pub(super) const PIDS_MAX: i64 = 4096;

/// The acting half of a pod worker.
#[derive(Debug)]
pub(super) struct Actions {
    pub(super) node: Arc<Node>,
    pub(super) desired: watch::Receiver<Desired>,
    pub(super) progress: SharedProgress,
    pub(super) pulls: PullState,
    pub(super) crashes: CrashBackoff,
    /// What containers were given, by id.
    pub(super) given: HashMap<String, Given>,
    /// Counts what was made, started, stopped or removed.
    pub(super) changes: u64,
}

/// What carrying out a plan came to.
#[derive(Debug, Default)]
pub(super) struct Applied {
    /// When a token or certificate in a volume is due.
    pub(super) refresh_at: Option<Instant>,
    /// Something was made, started or stopped: the plan that follows may be another one.
    pub(super) changed: bool,
    /// Why a part of it failed; that part is tried again soon.
    pub(super) failed: Option<String>,
}

impl Actions {
    pub(super) fn new(
        node: Arc<Node>,
        desired: watch::Receiver<Desired>,
        progress: SharedProgress,
    ) -> Self {
        Self {
            node,
            desired,
            progress,
            pulls: PullState::default(),
            crashes: CrashBackoff::default(),
            given: HashMap::new(),
            changes: 0,
        }
    }

    /// Carries out `next`.
    ///
    /// # Errors
    /// What keeps the whole pod from going on: folders, volumes, its sandbox.
    pub(super) async fn apply(
        &mut self,
        pod: &Arc<Pod>,
        next: &Plan,
        observed: &Observed,
    ) -> Result<Applied, String> {
        let before = self.changes;
        self.prepare(pod)?;
        let resized = self.resize(pod, observed).await;
        let references = objects::references(pod);
        self.node.api.objects.known(&references, OBJECTS_WAIT).await;
        let ips = status::pod::pod_ips(&self.node.identity.config.node_ips(), pod, observed);
        let node = Arc::clone(&self.node);
        let set_up = volumes::set_up(&node, pod, &ips);
        let mut made = None;
        let volumes = match next.create_sandbox.filter(|_| !next.kill_pod) {
            // Both take a while, and neither needs the other; only where the volumes may be long in
            // coming they come first.
            Some(attempt) if volumes::are_near(&self.node, pod) => {
                let (volumes, sandbox) = tokio::join!(set_up, self.create_sandbox(pod, attempt));
                made = Some(sandbox);
                volumes
            }
            _ => set_up.await,
        };
        let volumes = volumes.map_err(|error| {
            self.node.api.events.pod_event(
                pod,
                EventType::Warning,
                events::FAILED_MOUNT,
                error.to_string(),
            );
            error.to_string()
        })?;
        let mut outcome = Ok(());
        if *next != Plan::default() {
            let made = made.transpose()?;
            outcome = self.execute(pod, next, made, observed, &volumes).await;
        }
        Ok(Applied {
            refresh_at: volumes.refresh_at,
            changed: self.changes != before,
            failed: outcome.and(resized).err(),
        })
    }

    /// Folders and cgroup of a pod.
    fn prepare(&self, pod: &Pod) -> Result<(), String> {
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
        let failed = |reason: &str, message: String| {
            self.node.api.events.pod_event(pod, EventType::Warning, reason, message.clone());
            message
        };
        make().map_err(|error| {
            failed(events::FAILED, format!("error making pod data directories: {error}"))
        })?;
        // Limits go up before those of the containers and down after them.
        let raised = self
            .node
            .runtime
            .cgroups
            .raise(pod, self.node.identity.config.hardened.then_some(PIDS_MAX));
        raised.map_err(|error| {
            let message = format!("unable to ensure pod container exists: {error}");
            failed(events::FAILED_CREATE_POD_CONTAINER, message)
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
                self.node.api.events.pod_event(
                    pod,
                    EventType::Normal,
                    events::SANDBOX_CHANGED,
                    message,
                );
            }
            self.changes += 1;
            if !self.unless_ending(self.stop_all(pod, observed, pod.grace_seconds())).await? {
                return Ok(());
            }
        }
        let mut sandbox = observed.ready_sandbox().map(|s| s.id.clone());
        let mut newest = None;
        if let Some(attempt) = next.create_sandbox {
            let id = match made {
                Some(id) => id,
                None => self.create_sandbox(pod, attempt).await?,
            };
            self.changes += 1;
            let fresh =
                observed::sandbox(&*self.node.runtime.cri, &id).await.inspect_err(|error| {
                    let message =
                        format!("Unable to get pod sandbox status: {}", error.grpc_text());
                    self.node.api.events.pod_event(
                        pod,
                        EventType::Warning,
                        events::FAILED_POD_SANDBOX_STATUS,
                        message,
                    );
                });
            let mut newer = observed.clone();
            newer.sandboxes.splice(0..0, fresh.map_err(|e| e.to_string())?);
            newest = Some(newer);
            sandbox = Some(id);
        }
        if !next.kill.is_empty() {
            self.changes += 1;
            let observed = newest.as_ref().unwrap_or(observed);
            let kills = async {
                for kill in &next.kill {
                    self.kill_planned(pod, observed, kill).await?;
                }
                Ok(())
            };
            if !self.unless_ending(kills).await? {
                return Ok(());
            }
            // What was killed has ended by now, and its end begins the back-off.
            newest = Some(observe_pod(&self.node, pod).await.map_err(|e| e.to_string())?);
        }
        let observed = newest.as_ref().unwrap_or(observed);
        let Some(sandbox) = sandbox else { return Ok(()) };
        let attempt = observed.sandboxes.first().map_or(0, |s| s.attempt);
        let mut failed = Ok(());
        let mut pull_failed = false;
        for index in &next.start {
            let Some(member) = pod.members.get(*index) else { continue };
            match self.start(pod, member, &sandbox, attempt, observed, volumes).await {
                Ok(()) => {
                    self.changes += 1;
                    self.progress.lock().waiting.remove(member.name());
                }
                Err(why) => {
                    // Back-offs have a deadline of their own, everything else is tried again soon.
                    if !image_pull::has_back_off(why.reason) {
                        failed = Err(why.message.clone());
                    }
                    pull_failed |= why.reason == "ErrImagePull";
                    self.progress.lock().waiting.insert(member.name().to_owned(), why);
                }
            }
        }
        if pull_failed {
            image_pull::report_missing_secrets(&self.node, pod);
        }
        failed
    }

    /// Waits for a stop, but not beyond the moment from which the whole pod is to end: that end has
    /// a grace period of its
    /// own. Whether the stop came to its end.
    pub(super) async fn unless_ending(
        &self,
        stop: impl Future<Output = Result<(), String>>,
    ) -> Result<bool, String> {
        let mut news = self.desired.clone();
        tokio::select! {
            biased;
            outcome = stop => outcome.map(|()| true),
            () = ends(&mut news) => Ok(false),
        }
    }
}

/// Resolves once the pod is to end.
pub(super) async fn ends(news: &mut watch::Receiver<Desired>) {
    let ends =
        |d: &Desired| d.removed || d.refused.is_some() || d.halt.is_some() || d.pod.is_deleted();
    if news.wait_for(ends).await.is_err() {
        std::future::pending::<()>().await;
    }
}
