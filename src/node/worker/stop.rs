//! Ends pods: hooks, the stop signal, the kill, sandboxes last; then everything that is left of them.

use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1 as core;
use client::events::EventType;
use futures::future::join_all;

use super::start::log_link;
use super::{Desired, RELIST, Step, Worker, pod_ips, sidecars_last};
use crate::handler::{Target, hook};
use crate::node::Node;
use crate::observed::{Container, Observed, State, label};
use crate::plan::{Kill, KillReason};
use crate::pod::Pod;
use crate::runtime::{RuntimeError, netns};
use crate::volumes;

/// A container always gets this long between the signal and the kill (`minimumGracePeriodInSeconds`).
const GRACE_MIN: Duration = Duration::from_secs(2);

fn seconds(value: i64) -> Duration {
    Duration::from_secs(u64::try_from(value).unwrap_or_default())
}

/// Runs the hook and stops one container within `grace`.
pub(super) async fn kill(
    node: &Node,
    pod: &Pod,
    container: &Container,
    ip: &str,
    grace: Duration,
    message: &str,
) -> Result<(), RuntimeError> {
    let begun = base::clock::now();
    if let Some(member) = pod.member(&container.name) {
        let text = if message.is_empty() {
            format!("Stopping container {}", container.name)
        } else {
            message.to_owned()
        };
        node.container_event(pod, member, EventType::Normal, "Killing", text);
        // The hook the container was started with: the pod may have changed or be unknown by now.
        let hook = container
            .annotations
            .get(label::PRE_STOP)
            .and_then(|json| serde_json::from_str::<core::LifecycleHandler>(json).ok());
        if let (Some(hook), false) = (hook, grace.is_zero()) {
            let target = Target {
                runtime: &*node.runtime,
                container_id: &container.id,
                container: &member.container,
                pod_ip: ip,
                user_agent: "kube-lifecycle/1.37",
            };
            let run = hook::run(node, pod, target, &hook, grace);
            let outcome = tokio::time::timeout(grace, run).await;
            if !matches!(outcome, Ok(Ok(()))) {
                node.container_event(
                    pod,
                    member,
                    EventType::Warning,
                    "FailedPreStopHook",
                    "PreStopHook failed",
                );
            }
        }
    }
    let left = grace.saturating_sub(begun.elapsed()).max(GRACE_MIN);
    node.runtime.stop_container(&container.id, left).await
}

/// What of a pod could not be ended.
#[derive(Debug, Default)]
struct KillFailures(Vec<String>);

impl KillFailures {
    /// Adds a failed step. `action` and `target` are those of the kubelet's `SyncResult`.
    fn note(&mut self, action: &str, target: &str, outcome: Result<(), RuntimeError>) {
        if let Err(error) = outcome {
            let why = error.grpc_text();
            self.0.push(format!("failed to {action:?} for {target:?} with {action}Error: {why:?}"));
        }
    }

    /// The message of the event; `None` when nothing failed.
    fn message(&self) -> Option<String> {
        match self.0.as_slice() {
            [] => None,
            [one] => Some(format!("error killing pod: {one}")),
            all => Some(format!("error killing pod: [{}]", all.join(", "))),
        }
    }
}

impl Worker {
    /// Stops a container that the plan names.
    pub(super) async fn kill_planned(
        &self,
        pod: &Pod,
        observed: &Observed,
        wanted: &Kill,
    ) -> Result<(), String> {
        let Some(container) = observed.containers.iter().find(|c| c.id == wanted.id) else {
            return Ok(());
        };
        let own = pod.member(&wanted.name).map(|m| &m.container);
        let of_probe = match wanted.reason {
            KillReason::LivenessProbe => own.and_then(|c| c.liveness_probe.as_ref()),
            KillReason::StartupProbe => own.and_then(|c| c.startup_probe.as_ref()),
            KillReason::Other => None,
        };
        let grace = of_probe
            .and_then(|p| p.termination_grace_period_seconds)
            .unwrap_or(pod.grace_seconds());
        let ips = pod_ips(&self.node, pod, observed);
        let ip = ips.first().map(String::as_str).unwrap_or_default();
        let outcome = kill(&self.node, pod, container, ip, seconds(grace), &wanted.message).await;
        outcome.map_err(|e| e.to_string())
    }

    /// Stops all containers, sidecars after the others in reverse order, then the sandboxes.
    pub(super) async fn stop_all(
        &self,
        pod: &Pod,
        observed: &Observed,
        grace: i64,
    ) -> Result<(), String> {
        let begun = base::clock::now();
        let grace = seconds(grace);
        let ips = pod_ips(&self.node, pod, observed);
        let ip = ips.first().map(String::as_str).unwrap_or_default();
        let late = sidecars_last(pod);
        let live =
            |c: &&Container| matches!(c.state, State::Running | State::Unknown | State::Created);
        let first =
            observed.containers.iter().filter(live).filter(|c| !late.contains(&c.name.as_str()));
        let mut failures = KillFailures::default();
        let node = &*self.node;
        let kills = first.map(|c| async move { (c, kill(node, pod, c, ip, grace, "").await) });
        for (container, outcome) in join_all(kills).await {
            failures.note("KillContainer", &container.name, outcome);
        }
        for name in late {
            for container in observed.containers.iter().filter(live).filter(|c| c.name == name) {
                let left = grace.saturating_sub(begun.elapsed());
                let outcome = kill(node, pod, container, ip, left, "").await;
                failures.note("KillContainer", &container.name, outcome);
            }
        }
        // The end of a sandbox ends its containers, too: one that could not be stopped does not keep it.
        for sandbox in &observed.sandboxes {
            let outcome = netns::retry(|| self.node.runtime.stop_sandbox(&sandbox.id)).await;
            failures.note("KillPodSandbox", &pod.uid, outcome);
        }
        self.report_kill(pod, failures)
    }

    /// Makes the failures of a pod's end visible: an event on the pod, and a line in the log.
    fn report_kill(&self, pod: &Pod, failures: KillFailures) -> Result<(), String> {
        let Some(message) = failures.message() else { return Ok(()) };
        tracing::warn!(pod = %pod.key, uid = %pod.uid, error = message, "cannot end the pod yet");
        self.node.pod_event(pod, EventType::Warning, "FailedKillPod", message.clone());
        Err(message)
    }

    /// Ends a pod that is deleted, over, or refused.
    pub(super) async fn finish(&mut self, desired: &Desired, observed: Observed) -> Step {
        let pod = &desired.pod;
        self.probes.sync(&self.node, pod, &observed);
        self.publish(desired, &observed);
        let running = observed
            .containers
            .iter()
            .any(|c| matches!(c.state, State::Running | State::Unknown | State::Created));
        if running || observed.sandboxes.iter().any(|s| s.ready) || !self.stopped {
            if let Err(why) = self.stop_within_grace(desired, &observed).await {
                tracing::debug!(pod = %pod.key, why, "pod not stopped yet");
                return Step::At(base::clock::now() + self.trouble.next_delay());
            }
            self.stopped = true;
        }
        let Ok(observed) = self.observe(pod).await else {
            return Step::At(base::clock::now() + self.trouble.next_delay());
        };
        if observed.any_running() {
            return Step::At(base::clock::now() + self.trouble.next_delay());
        }
        self.publish(desired, &observed);
        self.node.objects.use_all(&pod.uid, &self.wake, &std::collections::BTreeSet::new());
        self.node.trust_bundles.forget(pod);
        self.node.pod_certificates.forget(pod);
        if !desired.removed && !pod.is_deleted() {
            self.collect(pod, &observed).await;
            return Step::At(base::clock::now() + RELIST);
        }
        if let Err(why) = self.clear(pod, &observed).await {
            tracing::debug!(pod = %pod.key, why, "pod not cleared yet");
            return Step::At(base::clock::now() + self.trouble.next_delay());
        }
        match (&desired.api_uid, desired.removed) {
            (Some(uid), false) => self.node.status.finish(&pod.uid, &pod.key, uid),
            _ => self.node.status.forget(&pod.uid),
        }
        Step::Done
    }

    /// Ends the containers because the machine is switched off; the pod stays the node's.
    pub(super) async fn halt(&mut self, desired: &Desired, observed: Observed, grace: i64) -> Step {
        let pod = &desired.pod;
        self.probes.sync(&self.node, pod, &observed);
        if observed.any_running()
            && let Err(why) = self.stop_all(pod, &observed, grace).await
        {
            tracing::debug!(pod = %pod.key, why, "pod not stopped yet");
            return Step::At(base::clock::now() + self.trouble.next_delay());
        }
        match self.observe(pod).await {
            Ok(observed) if !observed.any_running() => {
                self.publish(desired, &observed);
                self.halted.send_replace(true);
                Step::At(base::clock::now() + RELIST)
            }
            _ => Step::At(base::clock::now() + self.trouble.next_delay()),
        }
    }

    /// Stops the pod; a deletion with a shorter grace period takes effect at once.
    async fn stop_within_grace(
        &mut self,
        desired: &Desired,
        observed: &Observed,
    ) -> Result<(), String> {
        let mut receiver = self.desired.clone();
        let mut pod = Arc::clone(&desired.pod);
        loop {
            let own = self.decided.as_ref().and_then(|v| v.grace);
            let grace = own.unwrap_or(i64::MAX).min(pod.grace_seconds());
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
            tokio::select! {
                outcome = self.stop_all(&pod, observed, grace) => return outcome,
                newer = shorter => pod = newer,
            }
        }
    }

    /// Removes what is left of a stopped pod.
    async fn clear(&self, pod: &Pod, observed: &Observed) -> Result<(), String> {
        let mut failures = KillFailures::default();
        for container in &observed.containers {
            let outcome = self.remove_container(pod, container).await;
            failures.note("RemoveContainer", &container.name, outcome);
        }
        for sandbox in &observed.sandboxes {
            let outcome = netns::retry(|| self.node.runtime.remove_sandbox(&sandbox.id)).await;
            failures.note("RemovePodSandbox", &pod.uid, outcome);
        }
        self.report_kill(pod, failures)?;
        let dir = self.node.config.pod_dir(&pod.uid);
        base::tasks::blocking(move || volumes::tear_down(&dir))
            .await
            .map_err(|e| e.to_string())?
            .map_err(|e| e.to_string())?;
        self.node.cgroups.remove(&pod.uid);
        let logs = self.node.config.pod_log_dir(pod.namespace(), pod.name(), &pod.uid);
        let _ = std::fs::remove_dir_all(logs);
        self.node.tokens.forget(&pod.uid);
        self.node.disown(&pod.uid);
        Ok(())
    }

    async fn remove_container(&self, pod: &Pod, container: &Container) -> Result<(), RuntimeError> {
        self.node.runtime.remove_container(&container.id).await?;
        let _ = std::fs::remove_file(log_link(&self.node, pod, &container.name, &container.id));
        Ok(())
    }

    /// Removes dead containers but the newest ended one of each name, and sandboxes that nothing needs.
    pub(super) async fn collect(&self, pod: &Pod, observed: &Observed) {
        let mut ended = std::collections::HashSet::new();
        for container in &observed.containers {
            let over = container.state == State::Exited
                || container.state == State::Created
                    && observed.container(&container.name) != Some(container);
            if over && !ended.insert(container.name.as_str()) {
                let _ = self.remove_container(pod, container).await;
                let _ = std::fs::remove_file(&container.log_path);
            }
        }
        for sandbox in observed.sandboxes.iter().skip(1).filter(|s| !s.ready) {
            if !observed.containers.iter().any(|c| c.sandbox == sandbox.id) {
                let _ = self.node.runtime.remove_sandbox(&sandbox.id).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_steps_of_a_pods_end_are_told_as_the_kubelet_tells_them() {
        let mut failures = KillFailures::default();
        failures.note("KillContainer", "a", Ok(()));
        assert_eq!(failures.message(), None);
        let error = RuntimeError {
            operation: "stop_pod_sandbox",
            code: tonic::Code::Unknown,
            message: "remove netns: unlinkat /run/netns/cni-1: device or resource busy".to_owned(),
        };
        failures.note("KillPodSandbox", "u1", Err(error.clone()));
        let sandbox = "failed to \"KillPodSandbox\" for \"u1\" with KillPodSandboxError: \"rpc error: code = Unknown desc = remove netns: unlinkat /run/netns/cni-1: device or resource busy\"";
        assert_eq!(failures.message().unwrap(), format!("error killing pod: {sandbox}"));
        failures.note("KillContainer", "b", Err(RuntimeError { message: "x".to_owned(), ..error }));
        let container = "failed to \"KillContainer\" for \"b\" with KillContainerError: \"rpc error: code = Unknown desc = x\"";
        assert_eq!(
            failures.message().unwrap(),
            format!("error killing pod: [{sandbox}, {container}]")
        );
    }
}
