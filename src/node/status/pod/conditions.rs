//! The conditions of the node: PodReadyToStartContainers, Initialized, Ready, ContainersReady,
//! PodScheduled, AllContainersRestarting.

use api::k8s::api::core::v1 as core;
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;

use super::input::StatusInput;
use crate::pods::condition_types;
use crate::pods::plan::{restart_all, sandbox_problem};
use crate::pods::pod::{ContainerRole, Pod};

struct ConditionValue {
    status: bool,
    reason: Option<&'static str>,
    message: String,
}

impl ConditionValue {
    fn yes() -> Self {
        Self { status: true, reason: None, message: String::new() }
    }

    fn no(reason: &'static str, message: String) -> Self {
        Self { status: false, reason: Some(reason), message }
    }
}

/// Formats names as Go formats a slice: `[a b]`.
fn list(names: &[&str]) -> String {
    format!("[{}]", names.join(" "))
}

/// Returns the conditions of the node after those of other writers. `restarting`: all containers
/// are being restarted.
pub(super) fn conditions(
    pod: &Pod,
    input: &StatusInput<'_>,
    all: &[core::ContainerStatus],
    phase: &str,
    restarting: bool,
) -> Vec<core::PodCondition> {
    let foreign = pod.api_status().and_then(|s| s.conditions.as_ref()).into_iter().flatten();
    let mut out: Vec<core::PodCondition> =
        foreign.filter(|c| !condition_types::is_node_owned(&c.type_)).cloned().collect();
    let kept = input.previous.conditions.iter().flatten().find(|c| c.type_ == "DisruptionTarget");
    if let Some(kept) = kept
        && !out.iter().any(|c| c.type_ == kept.type_)
    {
        out.push(kept.clone());
    }
    if let Some(verdict) = input.effective_failure().filter(|v| v.disruption)
        && !out.iter().any(|c| c.type_ == "DisruptionTarget")
    {
        let value = ConditionValue {
            status: true,
            reason: Some("TerminationByKubelet"),
            message: verdict.message.clone(),
        };
        out.push(condition(pod, input, "DisruptionTarget", value));
    }
    let [pending, in_progress] = condition_types::RESIZE;
    if let Some(deferred) = input.deferred {
        let message = deferred.message.clone();
        let reason = Some(deferred.condition_reason());
        let value = ConditionValue { status: true, reason, message };
        out.push(condition(pod, input, pending, value));
    }
    if let Some(why) = input.resizing {
        let reason = (!why.is_empty()).then_some("Error");
        let value = ConditionValue { status: true, reason, message: why.to_owned() };
        out.push(condition(pod, input, in_progress, value));
    }
    let sandbox = match sandbox_problem(pod, input.observed) {
        None => ConditionValue::yes(),
        Some(problem) => ConditionValue::no("PodSandboxNotReady", problem.to_owned()),
    };
    let ready_containers = containers_ready(pod, all, phase);
    let ready =
        if ready_containers.status { gates(pod, &out) } else { containers_ready(pod, all, phase) };
    let verdicts = [
        sandbox,
        initialized(pod, input, all, phase),
        ready,
        ready_containers,
        ConditionValue::yes(),
    ];
    for (type_, verdict) in condition_types::NODE_OWNED.into_iter().zip(verdicts) {
        out.push(condition(pod, input, type_, verdict));
    }
    if restart_all::has_rule(pod) {
        let value = all_restarting(pod, input, phase, restarting);
        out.push(condition(pod, input, condition_types::ALL_CONTAINERS_RESTARTING, value));
    }
    out
}

/// The condition of a pod with a rule that restarts all containers: true from the exit that matches
/// until all containers are removed (`GenerateAllContainersRestartingCondition`).
fn all_restarting(
    pod: &Pod,
    input: &StatusInput<'_>,
    phase: &str,
    restarting: bool,
) -> ConditionValue {
    if let Some(end) = end(phase) {
        return end;
    }
    if !restarting || restart_all::is_cleaned_up(pod, input.observed) {
        return ConditionValue { status: false, reason: None, message: String::new() };
    }
    ConditionValue {
        status: true,
        reason: Some("RestartAllContainersStarted"),
        message: "container exited with restart policy rule".to_owned(),
    }
}

fn condition(
    pod: &Pod,
    input: &StatusInput<'_>,
    type_: &str,
    verdict: ConditionValue,
) -> core::PodCondition {
    let status = if verdict.status { "True" } else { "False" };
    let of_api = pod.api_status().and_then(|s| s.conditions.as_ref());
    let before = input
        .previous
        .conditions
        .as_ref()
        .or(of_api)
        .and_then(|c| c.iter().find(|c| c.type_ == type_ && c.status == status));
    let now =
        Time(api::k8s::jiff::Timestamp::from_second(input.now.as_second()).unwrap_or(input.now));
    core::PodCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: verdict.reason.map(str::to_owned),
        message: (!verdict.message.is_empty()).then_some(verdict.message),
        last_transition_time: before.and_then(|c| c.last_transition_time.clone()).or(Some(now)),
        observed_generation: pod.object.metadata.generation,
        ..core::PodCondition::default()
    }
}

fn end(phase: &str) -> Option<ConditionValue> {
    match phase {
        "Failed" => Some(ConditionValue::no("PodFailed", String::new())),
        "Succeeded" => Some(ConditionValue::no("PodCompleted", String::new())),
        _ => None,
    }
}

fn containers_ready(pod: &Pod, all: &[core::ContainerStatus], phase: &str) -> ConditionValue {
    let (mut unknown, mut unready) = (Vec::new(), Vec::new());
    for member in pod
        .containers
        .iter()
        .filter(|m| matches!(m.role, ContainerRole::Sidecar | ContainerRole::Main))
    {
        match all.iter().find(|s| s.name == member.name()) {
            None => unknown.push(member.name()),
            Some(s) if !s.ready => unready.push(member.name()),
            Some(_) => {}
        }
    }
    if let Some(end) = end(phase) {
        return end;
    }
    let mut messages = Vec::new();
    if !unknown.is_empty() {
        messages.push(format!("containers with unknown status: {}", list(&unknown)));
    }
    if !unready.is_empty() {
        messages.push(format!("containers with unready status: {}", list(&unready)));
    }
    if messages.is_empty() {
        ConditionValue::yes()
    } else {
        ConditionValue::no("ContainersNotReady", messages.join(", "))
    }
}

fn gates(pod: &Pod, conditions: &[core::PodCondition]) -> ConditionValue {
    let mut messages = Vec::new();
    for gate in pod.spec().readiness_gates.iter().flatten() {
        let name = &gate.condition_type;
        match conditions.iter().find(|c| c.type_ == *name) {
            None => messages.push(format!(
                "corresponding condition of pod readiness gate {name:?} does not exist."
            )),
            Some(c) if c.status != "True" => messages.push(format!(
                "the status of pod readiness gate {name:?} is not \"True\", but {}",
                c.status
            )),
            Some(_) => {}
        }
    }
    if messages.is_empty() {
        ConditionValue::yes()
    } else {
        ConditionValue::no("ReadinessGatesNotReady", messages.join(", "))
    }
}

fn initialized(
    pod: &Pod,
    input: &StatusInput<'_>,
    all: &[core::ContainerStatus],
    phase: &str,
) -> ConditionValue {
    let (mut unknown, mut incomplete) = (Vec::new(), Vec::new());
    for member in pod
        .containers
        .iter()
        .filter(|m| matches!(m.role, ContainerRole::Init | ContainerRole::Sidecar))
    {
        match all.iter().find(|s| s.name == member.name()) {
            None => unknown.push(member.name()),
            Some(s) if member.role == ContainerRole::Sidecar && s.started != Some(true) => {
                incomplete.push(member.name())
            }
            Some(s) if member.role == ContainerRole::Init && !s.ready => {
                incomplete.push(member.name())
            }
            Some(_) => {}
        }
    }
    if phase == "Succeeded" && unknown.is_empty() {
        return ConditionValue {
            status: true,
            reason: Some("PodCompleted"),
            message: String::new(),
        };
    }
    // A pod stays initialized, whatever its sidecars do and when its init containers run again.
    let mut before = input.previous.conditions.iter().flatten();
    let was = before.any(|c| c.type_ == "Initialized" && c.status == "True");
    let ran = pod.with_role(ContainerRole::Main).any(|m| {
        all.iter().any(|s| {
            s.name == m.name()
                && (s.state.as_ref().is_some_and(|s| s.running.is_some() || s.terminated.is_some())
                    || s.last_state.as_ref().is_some_and(|s| s.terminated.is_some()))
        })
    });
    if was || ran {
        return ConditionValue::yes();
    }
    let mut messages = Vec::new();
    if !unknown.is_empty() {
        messages.push(format!("containers with unknown status: {}", list(&unknown)));
    }
    if !incomplete.is_empty() {
        messages.push(format!("containers with incomplete status: {}", list(&incomplete)));
    }
    if messages.is_empty() {
        ConditionValue::yes()
    } else {
        ConditionValue::no("ContainersNotInitialized", messages.join(", "))
    }
}
