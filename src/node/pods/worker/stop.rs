//! Stops pods: hooks, stop signals, kills, then the sandboxes. Removes what is left of them.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1 as core;
use client::events::EventType;
use futures::future::join_all;
use tokio::sync::watch;

use super::actions::PodActions;
use super::error::{KillPodError, RemoveError};
use super::{Step, Worker};
use crate::context::Node;
use crate::events;
use crate::pods::handle::DesiredPod;
use crate::pods::observed::{ObservedContainer, ObservedPod, ObservedState, label};
use crate::pods::plan::{KillReason, PlannedKill};
use crate::pods::pod::{ContainerRole, Pod};
use crate::pods::worker::lifecycle_hook;
use crate::probes::handler::HandlerTarget;
use crate::runtime::{RuntimeError, netns};
use crate::status;
use crate::volumes;

/// Minimum time between the stop signal and the kill (`minimumGracePeriodInSeconds`).
const GRACE_MIN: Duration = Duration::from_secs(2);
/// How long a preStop hook may go on after the grace period: longer than a container lives then.
const HOOK_MORE: Duration = Duration::from_secs(10);

fn seconds(value: i64) -> Duration {
    Duration::from_secs(u64::try_from(value).unwrap_or_default())
}

/// Returns the names of the containers that end before the container `name` gets its stop signal:
/// sidecars end last, in reverse order of their start.
fn ends_before<'a>(pod: &'a Pod, name: &str) -> Vec<&'a str> {
    let position =
        pod.containers.iter().position(|m| m.name() == name && m.role == ContainerRole::Sidecar);
    let Some(position) = position else { return Vec::new() };
    let earlier = |(index, m): &(usize, &crate::pods::pod::PodContainer)| {
        m.role != ContainerRole::Sidecar || *index > position
    };
    pod.containers.iter().enumerate().filter(earlier).map(|(_, m)| m.name()).collect()
}

/// Delays the stop signal of a container until other containers have ended.
pub(super) struct StopTurn<'a> {
    waits_for: Vec<&'a str>,
    ended: watch::Receiver<HashSet<String>>,
}

impl StopTurn<'_> {
    async fn wait(mut self) {
        let all = |ended: &HashSet<String>| self.waits_for.iter().all(|n| ended.contains(*n));
        // The sender lives until all containers are stopped.
        let _ = self.ended.wait_for(all).await;
    }
}

/// Runs the preStop hook and stops one container within `grace`, but not before its `turn` while
/// time is left. As with upstream, the hook does not wait for the turn.
pub(super) async fn kill(
    node: &Node,
    pod: &Pod,
    container: &ObservedContainer,
    ip: &str,
    grace: Duration,
    message: &str,
    turn: Option<StopTurn<'_>>,
) -> Result<(), RuntimeError> {
    let begun = base::clock::now();
    // The hook at the time of the container's start: the pod may have changed or be unknown by now.
    let hook = container.annotations.get(label::PRE_STOP).filter(|_| !grace.is_zero());
    let hook = hook.and_then(|json| serde_json::from_str::<core::LifecycleHandler>(json).ok());
    let mut unfinished = None;
    if let Some(member) = pod.container(&container.name) {
        let text = if message.is_empty() {
            format!("Stopping container {}", container.name)
        } else {
            message.to_owned()
        };
        node.api.events.container_event(pod, member, EventType::Normal, events::KILLING, text);
        if let Some(hook) = &hook {
            let target = HandlerTarget {
                runtime: &*node.runtime.cri,
                container_id: &container.id,
                container: &member.container,
                pod_ip: ip,
                user_agent: "kube-lifecycle/1.37",
            };
            let limit = grace.saturating_add(HOOK_MORE);
            let run = lifecycle_hook::run(&node.api.events, pod, target, hook, limit);
            let mut run = Box::pin(run);
            let outcome = tokio::time::timeout(grace, &mut run).await;
            if !matches!(outcome, Ok(Ok(()))) {
                node.api.events.container_event(
                    pod,
                    member,
                    EventType::Warning,
                    events::FAILED_PRE_STOP_HOOK,
                    "PreStopHook failed",
                );
            }
            unfinished = outcome.is_err().then_some(run);
        }
    }
    if let Some(turn) = turn {
        let left = grace.saturating_sub(begun.elapsed());
        let _ = tokio::time::timeout(left, turn.wait()).await;
    }
    let left = grace.saturating_sub(begun.elapsed()).max(GRACE_MIN);
    let mut stop = pin!(node.runtime.cri.stop_container(&container.id, left));
    let Some(hook) = unfinished else { return stop.await };
    // As with upstream, such a hook goes on until the container is killed.
    tokio::select! {
        biased;
        outcome = &mut stop => outcome,
        _ = hook => stop.await,
    }
}

/// How long the runtime may take to stop a pod that the node decided to stop, as upstream's
/// `killPodNow`.
fn kill_timeout(grace: i64) -> Duration {
    seconds(grace.saturating_add(grace / 2).max(10))
}

/// Failures of the steps that stop a pod.
#[derive(Debug, Default)]
struct KillFailures(Vec<String>);

impl KillFailures {
    /// Adds the outcome of a step if it failed. `action` and `target` are those of the kubelet's
    /// `SyncResult`.
    fn record(&mut self, action: &str, target: &str, outcome: Result<(), RuntimeError>) {
        if let Err(error) = outcome {
            let why = error.grpc_text();
            self.0.push(format!("failed to {action:?} for {target:?} with {action}Error: {why:?}"));
        }
    }

    /// Returns the failures as one error, if any.
    fn error(self) -> Option<KillPodError> {
        (!self.0.is_empty()).then_some(KillPodError(self.0))
    }
}

impl PodActions {
    /// Stops a container of the plan.
    pub(super) async fn kill_planned(
        &self,
        pod: &Pod,
        observed: &ObservedPod,
        wanted: &PlannedKill,
    ) -> Result<(), RuntimeError> {
        let Some(container) = observed.containers.iter().find(|c| c.id == wanted.id) else {
            return Ok(());
        };
        let own = pod.container(&wanted.name).map(|m| &m.container);
        let of_probe = match wanted.reason {
            KillReason::LivenessProbe => own.and_then(|c| c.liveness_probe.as_ref()),
            KillReason::StartupProbe => own.and_then(|c| c.startup_probe.as_ref()),
            KillReason::Other => None,
        };
        let grace = of_probe
            .and_then(|p| p.termination_grace_period_seconds)
            .unwrap_or(pod.grace_seconds());
        let ips = status::pod::pod_ips(&self.node.identity.config.node_ips(), pod, observed);
        let ip = ips.first().map(String::as_str).unwrap_or_default();
        let message = wanted.message.as_str();
        kill(&self.node, pod, container, ip, seconds(grace), message, None).await
    }

    /// Stops all containers, sidecars after the others and in reverse order, then the sandboxes.
    pub(super) async fn stop_all(
        &self,
        pod: &Pod,
        observed: &ObservedPod,
        grace: i64,
    ) -> Result<(), KillPodError> {
        let grace = seconds(grace);
        let ips = status::pod::pod_ips(&self.node.identity.config.node_ips(), pod, observed);
        let ip = ips.first().map(String::as_str).unwrap_or_default();
        let live: Vec<&ObservedContainer> = observed
            .containers
            .iter()
            .filter(|c| {
                matches!(
                    c.state,
                    ObservedState::Running | ObservedState::Unknown | ObservedState::Created
                )
            })
            .collect();
        let ended = watch::Sender::new(HashSet::new());
        let stops = live.iter().map(|container| {
            let is_live = |name: &&str| live.iter().any(|c| c.name == *name);
            let waits_for = ends_before(pod, &container.name).into_iter().filter(is_live).collect();
            let turn = StopTurn { waits_for, ended: ended.subscribe() };
            let ended = &ended;
            async move {
                let outcome = kill(&self.node, pod, container, ip, grace, "", Some(turn)).await;
                if outcome.is_ok() {
                    ended.send_if_modified(|ended| ended.insert(container.name.clone()));
                }
                (*container, outcome)
            }
        });
        let mut failures = KillFailures::default();
        for (container, outcome) in join_all(stops).await {
            failures.record("KillContainer", &container.name, outcome);
        }
        // The end of a sandbox also ends containers that could not be stopped.
        for sandbox in &observed.sandboxes {
            let outcome = netns::retry(|| self.node.runtime.cri.stop_sandbox(&sandbox.id)).await;
            failures.record("KillPodSandbox", &pod.uid, outcome);
        }
        self.report_kill(pod, failures)
    }

    /// Reports the failures of a stop as an event of the pod and in the log.
    fn report_kill(&self, pod: &Pod, failures: KillFailures) -> Result<(), KillPodError> {
        let Some(error) = failures.error() else { return Ok(()) };
        let (key, uid) = (&pod.key, &pod.uid);
        tracing::warn!(pod = %key, %uid, %error, "cannot stop pod, retrying");
        let reason = events::FAILED_KILL_POD;
        self.node.api.events.pod_event(pod, EventType::Warning, reason, error.to_string());
        Err(error)
    }

    /// Stops the pod within `most` seconds; a deletion with a shorter grace period takes effect at
    /// once.
    async fn stop_within_grace(
        &self,
        desired: &DesiredPod,
        observed: &ObservedPod,
        most: Option<i64>,
    ) -> Result<(), KillPodError> {
        let mut receiver = self.desired.clone();
        let mut pod = Arc::clone(&desired.pod);
        let mut late = most.map(|most| base::clock::now() + kill_timeout(most));
        loop {
            let grace = most.unwrap_or(i64::MAX).min(pod.grace_seconds());
            let shorter = async {
                loop {
                    if receiver.changed().await.is_err() {
                        std::future::pending::<()>().await;
                    }
                    let newer = Arc::clone(&receiver.borrow_and_update().pod);
                    if newer.grace_seconds() < grace {
                        return newer;
                    }
                }
            };
            let newer = {
                let mut stop = pin!(self.stop_all(&pod, observed, grace));
                let mut shorter = pin!(shorter);
                loop {
                    tokio::select! {
                        biased;
                        outcome = &mut stop => return outcome,
                        newer = &mut shorter => break newer,
                        () = super::reporter::sleep_until_deadline(late) => {
                            late = None;
                            let message =
                                "Container runtime did not kill the pod within specified grace \
                                 period.";
                            let kind = EventType::Warning;
                            let reason = events::EXCEEDED_GRACE_PERIOD;
                            self.node.api.events.pod_event(&pod, kind, reason, message);
                        }
                    }
                }
            };
            pod = newer;
        }
    }

    /// Removes the remains of a stopped pod.
    async fn remove_remains(&self, pod: &Pod, observed: &ObservedPod) -> Result<(), RemoveError> {
        let mut failures = KillFailures::default();
        for container in &observed.containers {
            let outcome = self.remove_container(pod, container).await;
            failures.record("RemoveContainer", &container.name, outcome);
        }
        for sandbox in &observed.sandboxes {
            let outcome = netns::retry(|| self.node.runtime.cri.remove_sandbox(&sandbox.id)).await;
            failures.record("RemovePodSandbox", &pod.uid, outcome);
        }
        self.report_kill(pod, failures)?;
        volumes::tear_down(&self.node, &pod.uid).await?;
        self.node.runtime.cgroups.remove(&pod.uid);
        let logs = self.node.identity.config.pod_log_dir(pod.namespace(), pod.name(), &pod.uid);
        let _ = std::fs::remove_dir_all(logs);
        self.node.api.tokens.forget(&pod.uid);
        self.node.caches.container_owners.remove_pod(&pod.uid);
        Ok(())
    }

    /// Removes a container from the runtime, and the link to its log.
    pub(super) async fn remove_container(
        &self,
        pod: &Pod,
        container: &ObservedContainer,
    ) -> Result<(), RuntimeError> {
        self.node.runtime.cri.remove_container(&container.id).await?;
        let link = self.node.identity.config.container_log_link(
            pod.namespace(),
            pod.name(),
            &container.name,
            &container.id,
        );
        let _ = std::fs::remove_file(link);
        Ok(())
    }

    /// Removes dead containers except for the newest exited one of each name, and unused sandboxes.
    pub(super) async fn remove_dead_containers(&mut self, pod: &Pod, observed: &ObservedPod) {
        let (mut ended, mut removed) = (HashSet::new(), HashSet::new());
        for container in &observed.containers {
            let over = container.state == ObservedState::Exited
                || container.state == ObservedState::Created
                    && observed.container(&container.name) != Some(container);
            if over && !ended.insert(container.name.as_str()) {
                if self.remove_container(pod, container).await.is_ok() {
                    self.changes += 1;
                    removed.insert(container.id.as_str());
                }
                let _ = std::fs::remove_file(&container.log_path);
            }
        }
        for sandbox in observed.sandboxes.iter().skip(1).filter(|s| !s.ready) {
            // The removal of the last container of a sandbox causes no event, so its sandbox is
            // removed with it.
            let mut left = observed.containers.iter().filter(|c| !removed.contains(c.id.as_str()));
            if !left.any(|c| c.sandbox == sandbox.id) {
                let removed = self.node.runtime.cri.remove_sandbox(&sandbox.id).await;
                self.changes += u64::from(removed.is_ok());
            }
        }
    }
}

impl Worker {
    /// Stops a pod that is deleted, finished, or rejected.
    pub(super) async fn finish(&mut self, desired: &DesiredPod, observed: ObservedPod) -> Step {
        let pod = &desired.pod;
        self.node.devices.begin_release(&pod.uid);
        self.reporter.update(desired, &observed);
        let running = observed
            .containers
            .iter()
            // A container that was created and not started is kept once the pod is stopped.
            .any(|c| matches!(c.state, ObservedState::Running | ObservedState::Unknown));
        if running || observed.sandboxes.iter().any(|s| s.ready) || !self.reporter.stopped {
            let most = self.reporter.failure.as_ref().and_then(|v| v.grace);
            let stop = self.actions.stop_within_grace(desired, &observed, most);
            if let Err(error) = self.reporter.report_while(stop).await {
                tracing::debug!(pod = %pod.key, %error, "cannot stop pod yet");
                return self.retry_later();
            }
            self.actions.changes += 1;
            self.reporter.stopped = true;
        }
        let observed = match self.reporter.observe(pod).await {
            Ok(observed) if !observed.any_running() => observed,
            _ => return self.retry_later(),
        };
        self.halted.send_replace(true);
        if !self.release_claims(pod).await {
            return self.retry_later();
        }
        // Before the final phase is reported, after which the scheduler uses the resources again.
        self.node.resource_managers.release(&pod.uid).await;
        self.reporter.update(desired, &observed);
        self.node.api.objects.set_references(
            &pod.uid,
            &self.wake,
            &std::collections::BTreeSet::new(),
        );
        self.node.devices.release(&pod.uid).await;
        self.node.api.trust_bundles.forget(pod);
        self.node.api.pod_certificates.forget(pod);
        // Drivers may have to register first.
        self.node.csi.wait(&pod.uid, Some(&self.wake));
        // The manifest may have been written again meanwhile.
        let is_replaced = self.desired.borrow().is_replaced;
        if is_replaced || !desired.removed && !pod.is_deleted() {
            self.actions.remove_dead_containers(pod, &observed).await;
            if let Err(error) = volumes::tear_down_ended(&self.node, &pod.uid).await {
                tracing::debug!(pod = %pod.key, %error, "cannot tear down volumes yet");
                return self.retry_later();
            }
            self.node.csi.forget(pod);
            self.node.user_namespaces.release(&pod.uid).await;
            if !is_replaced {
                return Step::Idle;
            }
            self.node.api.status.forget(&pod.uid);
            return Step::Done;
        }
        if let Err(error) = self.actions.remove_remains(pod, &observed).await {
            tracing::debug!(pod = %pod.key, %error, "cannot remove pod yet");
            return self.retry_later();
        }
        self.node.csi.forget(pod);
        self.node.user_namespaces.release(&pod.uid).await;
        match (&desired.api_uid, desired.removed) {
            (Some(uid), false) => self.node.api.status.finish(&pod.uid, &pod.key, uid),
            _ => self.node.api.status.forget(&pod.uid),
        }
        Step::Done
    }

    /// Stops the containers because the machine is switched off; the pod stays bound to the node.
    pub(super) async fn halt(
        &mut self,
        desired: &DesiredPod,
        observed: ObservedPod,
        grace: i64,
    ) -> Step {
        let pod = &desired.pod;
        self.reporter.update(desired, &observed);
        if observed.any_running() {
            self.actions.changes += 1;
            let stop = self.actions.stop_all(pod, &observed, grace);
            if let Err(error) = self.reporter.report_while(stop).await {
                tracing::debug!(pod = %pod.key, %error, "cannot stop pod yet");
                return self.retry_later();
            }
        }
        match self.reporter.observe(pod).await {
            Ok(observed) if !observed.any_running() => {
                self.reporter.update(desired, &observed);
                // What is on the disk of the machine stays, as the pod starts again.
                if let Err(error) = volumes::release(&self.node, &pod.uid).await {
                    tracing::debug!(pod = %pod.key, %error, "cannot release volumes yet");
                    return self.retry_later();
                }
                self.halted.send_replace(true);
                Step::Idle
            }
            _ => self.retry_later(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_a_stop_have_the_messages_of_the_kubelet() {
        let mut failures = KillFailures::default();
        failures.record("KillContainer", "a", Ok(()));
        assert_eq!(failures.0, Vec::<String>::new());
        let error = RuntimeError {
            operation: "stop_pod_sandbox",
            code: tonic::Code::Unknown,
            message: "remove netns: unlinkat /run/netns/cni-1: device or resource busy".to_owned(),
        };
        failures.record("KillPodSandbox", "u1", Err(error.clone()));
        let sandbox = "failed to \"KillPodSandbox\" for \"u1\" with KillPodSandboxError: \"rpc \
            error: code = Unknown desc = remove netns: unlinkat /run/netns/cni-1: device or \
            resource busy\"";
        let one = KillPodError(failures.0.clone());
        assert_eq!(one.to_string(), format!("error killing pod: {sandbox}"));
        failures.record(
            "KillContainer",
            "b",
            Err(RuntimeError { message: "x".to_owned(), ..error }),
        );
        let container = "failed to \"KillContainer\" for \"b\" with KillContainerError: \"rpc \
            error: code = Unknown desc = x\"";
        assert_eq!(
            failures.error().unwrap().to_string(),
            format!("error killing pod: [{sandbox}, {container}]")
        );
    }

    #[test]
    fn the_kill_timeout_is_one_and_a_half_times_the_grace_period() {
        assert_eq!(kill_timeout(crate::eviction::ranking::GRACE), Duration::from_secs(10));
        assert_eq!(kill_timeout(60), Duration::from_secs(90));
    }
}
