//! Plans the next actions for a running pod: a pure function of the desired and the observed state.

pub(crate) mod restart_all;

use api::k8s::api::core::v1 as core;

use crate::pods::observed::{ObservedContainer, ObservedPod, ObservedState};
use crate::pods::pod::{ContainerRole, Pod, PodContainer};
use restart_all::PlannedReset;

/// The probe results of one container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ProbeResults {
    /// `None` before the first result, or without a probe.
    pub(crate) startup: Option<bool>,
    pub(crate) liveness: Option<bool>,
    pub(crate) readiness: Option<bool>,
}

/// Why a container is stopped; determines its grace period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KillReason {
    LivenessProbe,
    StartupProbe,
    Other,
}

/// A container to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlannedKill {
    pub(crate) id: String,
    pub(crate) name: String,
    /// The message of the `Killing` event.
    pub(crate) message: String,
    pub(crate) reason: KillReason,
}

/// The next actions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Stop all containers and the sandboxes first.
    pub(crate) kill_pod: bool,
    /// Create a sandbox with this attempt number.
    pub(crate) create_sandbox: Option<u32>,
    /// Stop these containers.
    pub(crate) kill: Vec<PlannedKill>,
    /// Stop and remove these containers one after the other, because all of them start again.
    pub(crate) reset: Vec<PlannedReset>,
    /// Start these members, in order.
    pub(crate) start: Vec<usize>,
}

/// Returns why the current sandbox cannot be used, if so. The texts are those of the condition
/// `PodReadyToStartContainers`.
pub(crate) fn sandbox_problem(pod: &Pod, observed: &ObservedPod) -> Option<&'static str> {
    let Some(newest) = observed.sandboxes.first() else {
        return Some("No pod sandbox found");
    };
    if observed.sandboxes.iter().filter(|s| s.ready).count() > 1 {
        return Some("Multiple pod sandboxes found for the pod");
    }
    if !newest.ready {
        return Some("Pod sandbox is not ready");
    }
    if newest.host_network != pod.host_network() {
        return Some("Pod network namespace mode is changed");
    }
    if !newest.host_network && newest.ips.is_empty() {
        return Some("Pod sandbox has no IP address");
    }
    None
}

/// Returns the first restart rule of a container that matches an exit code.
fn restart_rule(member: &PodContainer, exit_code: i32) -> Option<&core::ContainerRestartRule> {
    member.container.restart_policy_rules.iter().flatten().find(|rule| {
        rule.exit_codes.as_ref().is_some_and(|codes| {
            let listed = codes.values.iter().flatten().any(|v| *v == exit_code);
            listed == (codes.operator == "In")
        })
    })
}

/// Whether a container that exited with `exit_code` is restarted, alone or with all containers, by
/// its restart rules, its own policy, or the pod's (`ContainerShouldRestart`).
pub(crate) fn restarts_after_exit(pod: &Pod, member: &PodContainer, exit_code: i32) -> bool {
    if member.role == ContainerRole::Ephemeral {
        return false;
    }
    let rule = restart_rule(member, exit_code);
    if rule.is_some_and(|rule| ["Restart", restart_all::ACTION].contains(&rule.action.as_str())) {
        return true;
    }
    let policy = member.container.restart_policy.as_deref().unwrap_or(pod.restart_policy());
    match (member.role, policy) {
        // An init container restarts only after a failure; `Always` means `OnFailure`.
        (ContainerRole::Init, "Always" | "OnFailure") | (_, "OnFailure") => exit_code != 0,
        (_, "Never") => false,
        _ => true,
    }
}

/// Whether the newest container of this name has to be started.
pub(crate) fn needs_start(
    pod: &Pod,
    member: &PodContainer,
    container: Option<&ObservedContainer>,
) -> bool {
    if pod.is_deleted() {
        return false;
    }
    match container {
        None => true,
        Some(c) => match c.state {
            ObservedState::Running => false,
            // Created but not started, or lost: start again.
            ObservedState::Created | ObservedState::Unknown => {
                member.role != ContainerRole::Ephemeral
            }
            ObservedState::Exited => restarts_after_exit(pod, member, c.exit_code),
        },
    }
}

/// Whether the pod is initialized: a main container has run in this sandbox.
pub(crate) fn has_initialized(pod: &Pod, observed: &ObservedPod) -> bool {
    pod.with_role(ContainerRole::Main).any(|m| {
        observed
            .active_container(m.name())
            .is_some_and(|c| matches!(c.state, ObservedState::Running | ObservedState::Exited))
    })
}

/// Plans the next actions. `health` returns the probe results by container id.
pub(crate) fn plan(
    pod: &Pod,
    observed: &ObservedPod,
    health: impl Fn(&str) -> ProbeResults,
) -> Plan {
    if sandbox_problem(pod, observed).is_some() {
        return plan_new_sandbox(pod, observed);
    }
    let mut plan = Plan::default();
    for (index, member) in pod.containers.iter().enumerate() {
        if member.role == ContainerRole::Ephemeral && observed.container(member.name()).is_none() {
            plan.start.push(index);
        }
    }
    if !plan_init(pod, observed, &health, &mut plan) {
        return plan;
    }
    let mut kept = 0;
    let mut started = 0;
    for (index, member) in
        pod.containers.iter().enumerate().filter(|(_, m)| m.role == ContainerRole::Main)
    {
        let container = observed.container(member.name());
        let Some(running) = container.filter(|c| c.state == ObservedState::Running) else {
            if needs_start(pod, member, container) {
                if let Some(c) = container.filter(|c| c.state == ObservedState::Unknown) {
                    let message =
                        "Container is in \"unknown\" state, try killing it before restart";
                    plan.kill.push(kill(c, message.to_owned(), KillReason::Other));
                }
                plan.start.push(index);
                started += 1;
            }
            continue;
        };
        let Some((message, reason)) = kill_reason(member, running, health(&running.id)) else {
            kept += 1;
            continue;
        };
        let restart = reason == KillReason::Other || restarts_after_probe(pod, member);
        let message = if restart { format!("{message}, will be restarted") } else { message };
        plan.kill.push(kill(running, message, reason));
        if restart {
            plan.start.push(index);
            started += 1;
        }
    }
    if kept == 0 && started == 0 {
        plan.kill_pod = true;
        // Sidecars end with the pod.
        plan.start.retain(|i| pod.containers[*i].role != ContainerRole::Sidecar);
    }
    plan
}

fn kill(container: &ObservedContainer, message: String, reason: KillReason) -> PlannedKill {
    PlannedKill { id: container.id.clone(), name: container.name.clone(), message, reason }
}

fn restarts_after_probe(pod: &Pod, member: &PodContainer) -> bool {
    member.container.restart_policy.as_deref().unwrap_or(pod.restart_policy()) != "Never"
}

/// Returns why a running container has to be stopped, if so.
fn kill_reason(
    member: &PodContainer,
    running: &ObservedContainer,
    health: ProbeResults,
) -> Option<(String, KillReason)> {
    let name = member.name();
    if running.hash != member.hash() {
        return Some((format!("Container {name} definition changed"), KillReason::Other));
    }
    if health.liveness == Some(false) {
        return Some((
            format!("Container {name} failed liveness probe"),
            KillReason::LivenessProbe,
        ));
    }
    if health.startup == Some(false) {
        return Some((format!("Container {name} failed startup probe"), KillReason::StartupProbe));
    }
    None
}

fn plan_new_sandbox(pod: &Pod, observed: &ObservedPod) -> Plan {
    let attempt = observed.sandboxes.first().map_or(0, |s| s.attempt.saturating_add(1));
    let mut plan = Plan { kill_pod: !observed.sandboxes.is_empty(), ..Plan::default() };
    // A pod with restartPolicy Never that has run is not started again.
    if pod.restart_policy() == "Never" && attempt != 0 && !observed.containers.is_empty() {
        plan.kill_pod = true;
        return plan;
    }
    let wanted: Vec<usize> = (0..pod.containers.len())
        .filter(|i| pod.containers[*i].role == ContainerRole::Main)
        .filter(|i| {
            let member = &pod.containers[*i];
            let policy = member.container.restart_policy.as_deref().unwrap_or(pod.restart_policy());
            let succeeded = observed
                .container(member.name())
                .is_some_and(|c| c.state == ObservedState::Exited && c.exit_code == 0);
            !(policy == "OnFailure" && succeeded)
        })
        .collect();
    let ran = pod.with_role(ContainerRole::Main).any(|m| observed.container(m.name()).is_some());
    if wanted.is_empty() && ran {
        plan.kill_pod = true;
        return plan;
    }
    plan.create_sandbox = Some(attempt);
    plan.start = if pod.has_init_containers() { vec![0] } else { wanted };
    plan
}

/// Plans init containers and sidecars; returns whether the main containers may run.
fn plan_init(
    pod: &Pod,
    observed: &ObservedPod,
    health: &impl Fn(&str) -> ProbeResults,
    plan: &mut Plan,
) -> bool {
    let initial: Vec<usize> = (0..pod.containers.len())
        .filter(|i| matches!(pod.containers[*i].role, ContainerRole::Init | ContainerRole::Sidecar))
        .collect();
    let initialized = has_initialized(pod, observed);
    for index in initial {
        let member = &pod.containers[index];
        let container = observed.active_container(member.name());
        if member.role == ContainerRole::Sidecar {
            let up = plan_sidecar(member, index, container, health, plan);
            if !up && !initialized {
                return false;
            }
            continue;
        }
        if initialized {
            continue;
        }
        match container {
            Some(c) if c.state == ObservedState::Exited && c.exit_code == 0 => {}
            Some(c) if c.state == ObservedState::Running => return false,
            Some(c)
                if c.state == ObservedState::Exited
                    && !restarts_after_exit(pod, member, c.exit_code) =>
            {
                plan.kill_pod = true;
                plan.start.clear();
                return false;
            }
            Some(_) | None => {
                plan.start.push(index);
                return false;
            }
        }
    }
    true
}

/// Plans a sidecar; returns whether the containers after it may start.
fn plan_sidecar(
    member: &PodContainer,
    index: usize,
    container: Option<&ObservedContainer>,
    health: &impl Fn(&str) -> ProbeResults,
    plan: &mut Plan,
) -> bool {
    let Some(running) = container.filter(|c| c.state == ObservedState::Running) else {
        plan.start.push(index);
        return false;
    };
    let found = health(&running.id);
    if let Some((message, reason)) = kill_reason(member, running, found) {
        plan.kill.push(kill(running, format!("Init c{}", &message[1..]), reason));
        plan.start.push(index);
        return false;
    }
    member.container.startup_probe.is_none() || found.startup == Some(true)
}

#[cfg(test)]
mod tests;
