//! The status of a pod in the API: a pure function of the pod, the observed state, and the previous
//! status.

mod conditions;
mod containers;
mod input;

pub(crate) use input::{PodFailure, StatusInput, WaitingReason};

use std::net::IpAddr;

use api::k8s::api::core::v1 as core;
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use api::k8s::jiff::Timestamp;

use crate::pods::observed::ObservedPod;
use crate::pods::plan::{has_initialized, restart_all, restarts_after_exit};
use crate::pods::pod::{ContainerRole, Pod, PodContainer, PodOrigin};
use crate::pods::{pod_level, resources};

/// Generates the status.
pub(crate) fn generate(pod: &Pod, input: &StatusInput<'_>) -> core::PodStatus {
    let restarting =
        !input.terminal && restart_all::is_required(pod, input.observed, input.previous);
    let mut main = containers::statuses(pod, input, restarting, |r| r == ContainerRole::Main);
    let mut init = containers::statuses(pod, input, restarting, |r| {
        matches!(r, ContainerRole::Init | ContainerRole::Sidecar)
    });
    let ephemeral = containers::statuses(pod, input, restarting, |r| r == ContainerRole::Ephemeral);
    let all: Vec<core::ContainerStatus> = main.iter().chain(&init).cloned().collect();
    let previous = input.previous;
    let api = pod.api_status();
    let initialized = has_initialized(pod, input.observed);
    let marked = restarting && restart_all::is_marked(previous);
    let mut phase = phase(pod, &all, input.terminal, initialized, marked);
    let over = |p: &str| matches!(p, "Succeeded" | "Failed");
    let restarting = restarting && !over(phase);
    let earlier = [api.and_then(|s| s.phase.as_deref()), previous.phase.as_deref()];
    let [of_api, reported] = earlier;
    match earlier.into_iter().flatten().find(|p| over(p)) {
        // A final phase does not change.
        Some(end) => phase = end,
        // As `mergePodStatus` of the kubelet's status manager: no final phase beside containers
        // that still run.
        None if over(phase) && !input.terminal && input.observed.any_running() => {
            phase = reported.or(of_api).unwrap_or("Pending");
        }
        None => {}
    }
    let (mut reason, mut message) = (None, None);
    if previous.phase.as_deref() == Some(phase) {
        reason = previous.reason.clone().or_else(|| api.and_then(|s| s.reason.clone()));
        message = previous.message.clone().or_else(|| api.and_then(|s| s.message.clone()));
    }
    if let Some(verdict) = input.effective_failure() {
        phase = "Failed";
        reason = Some(verdict.reason.clone());
        message = Some(verdict.message.clone());
    }
    let rejected = is_rejected(pod, input);
    let ips = addresses(pod, input);
    let host_ips: Vec<String> = input.node_ips.iter().map(ToString::to_string).collect();
    let conditions = conditions::conditions(pod, input, &all, phase, restarting);
    if input.terminal {
        containers::complete(pod, &mut main, &mut init);
        if pod.origin == PodOrigin::Api && !over(phase) {
            phase = "Failed";
        }
    }
    let resources = pod_level::actual(pod, phase == "Running", input.group, previous);
    let some = |list: Vec<core::ContainerStatus>| (!rejected && !list.is_empty()).then_some(list);
    core::PodStatus {
        phase: Some(phase.to_owned()),
        reason,
        message,
        conditions: Some(conditions),
        host_ip: host_ips.first().cloned(),
        host_ips: Some(host_ips.into_iter().map(|ip| core::HostIP { ip }).collect()),
        pod_ip: ips.first().cloned(),
        pod_ips: (!ips.is_empty()).then(|| ips.into_iter().map(|ip| core::PodIP { ip }).collect()),
        qos_class: Some(resources::qos(pod).name().to_owned()),
        start_time: api
            .and_then(|s| s.start_time.clone())
            .or_else(|| previous.start_time.clone())
            .or(Some(Time(Timestamp::from_second(input.now.as_second()).unwrap_or(input.now)))),
        observed_generation: pod.object.metadata.generation,
        container_statuses: some(main),
        init_container_statuses: some(init),
        ephemeral_container_statuses: some(ephemeral),
        resources: (!rejected).then_some(resources),
        allocated_resources: (!rejected).then(|| pod_level::allocated_requests(pod)),
        ..core::PodStatus::default()
    }
}

/// Whether the node rejected the pod before it created anything. Like the kubelet (`rejectPod`),
/// the status then has no containers: clients would show the reason of a waiting container instead
/// of the pod's. After a restart, the phase indicates the rejection.
fn is_rejected(pod: &Pod, input: &StatusInput<'_>) -> bool {
    let has_any =
        |list: &Option<Vec<core::ContainerStatus>>| list.iter().flatten().next().is_some();
    let previous = input.previous;
    (input.failure.is_some() || pod.is_api_terminal())
        && input.observed.sandboxes.is_empty()
        && input.observed.containers.is_empty()
        && !has_any(&previous.container_statuses)
        && !has_any(&previous.init_container_statuses)
}

/// Returns the pod's addresses, that of the node's preferred family first; with `hostNetwork` those
/// of the node. They are kept after the end.
fn addresses(pod: &Pod, input: &StatusInput<'_>) -> Vec<String> {
    if pod.host_network() {
        return input.node_ips.iter().map(ToString::to_string).collect();
    }
    let mut ips = input.observed.ready_sandbox().map(|s| s.ips.clone()).unwrap_or_default();
    if ips.is_empty() && (input.terminal || pod.is_deleted()) {
        ips = input.previous.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).collect();
    }
    order_addresses(&mut ips, input.node_ips);
    ips
}

/// Returns the addresses of the pod's sandbox, or of the node with `hostNetwork`.
pub(crate) fn pod_ips(node_ips: &[IpAddr], pod: &Pod, observed: &ObservedPod) -> Vec<String> {
    if pod.host_network() {
        return node_ips.iter().map(ToString::to_string).collect();
    }
    let mut ips = observed.ready_sandbox().map(|s| s.ips.clone()).unwrap_or_default();
    order_addresses(&mut ips, node_ips);
    ips
}

/// Reduces to one address of each family, that of the node's first address first.
fn order_addresses(ips: &mut Vec<String>, node_ips: &[IpAddr]) {
    let v6_first = node_ips.first().is_some_and(IpAddr::is_ipv6);
    let is_v6 = |ip: &String| ip.contains(':');
    let first = ips.iter().find(|ip| is_v6(ip) == v6_first).cloned();
    let second = ips.iter().find(|ip| is_v6(ip) != v6_first).cloned();
    *ips = first.into_iter().chain(second).collect();
}

/// Returns the phase by the rules of the kubelet's `getPhase`. `marked`: the previous status says
/// that all containers are being restarted. Unlike upstream's, it may be generated between the stop
/// of a container and its removal, and the exit of such a container does not end the pod.
fn phase(
    pod: &Pod,
    all: &[core::ContainerStatus],
    terminal: bool,
    initialized: bool,
    marked: bool,
) -> &'static str {
    let restarts = |member: &PodContainer, ended: &core::ContainerStateTerminated| {
        marked
            || ended.reason.as_deref() == Some(containers::RESTARTING_ALL)
            || restarts_after_exit(pod, member, ended.exit_code)
    };
    let (mut pending_init, mut pending_sidecar, mut init_failed) = (0, 0, 0);
    let (mut unknown, mut running, mut waiting) = (0, 0, 0);
    let (mut stopped, mut stopped_for_good, mut succeeded) = (0, 0, 0);
    for member in pod.containers.iter().filter(|m| m.role != ContainerRole::Ephemeral) {
        let status = all.iter().find(|s| s.name == member.name());
        let state = status.and_then(|s| s.state.as_ref());
        let last = status.and_then(|s| s.last_state.as_ref()).and_then(|s| s.terminated.as_ref());
        let is_running = state.is_some_and(|s| s.running.is_some());
        let ended = state.and_then(|s| s.terminated.as_ref());
        let is_waiting = state.is_some_and(|s| s.waiting.is_some());
        let exit = ended.or(if is_waiting { last } else { None });
        match member.role {
            ContainerRole::Init => match exit {
                Some(exit) if exit.exit_code == 0 => {}
                Some(exit) => init_failed += i32::from(!restarts(member, exit)),
                None => pending_init += 1,
            },
            ContainerRole::Sidecar if is_running => {
                running += 1;
                pending_sidecar += i32::from(status.and_then(|s| s.started) != Some(true));
            }
            ContainerRole::Sidecar if ended.is_some() || (is_waiting && last.is_some()) => {}
            ContainerRole::Sidecar => {
                pending_sidecar += 1;
                if is_waiting { waiting += 1 } else { unknown += 1 }
            }
            _ if is_running => running += 1,
            _ => match exit {
                Some(exit) => {
                    stopped += 1;
                    stopped_for_good += i32::from(!restarts(member, exit));
                    succeeded += i32::from(exit.exit_code == 0 && ended.is_some());
                }
                None if is_waiting => waiting += 1,
                None => unknown += 1,
            },
        }
    }
    if init_failed > 0 {
        return "Failed";
    }
    if pending_init > 0 || (pending_sidecar > 0 && !initialized) || waiting > 0 {
        return "Pending";
    }
    if running > 0 && unknown == 0 {
        return "Running";
    }
    if running == 0 && stopped > 0 && unknown == 0 {
        if !terminal && stopped != stopped_for_good {
            return "Running";
        }
        return if stopped == succeeded { "Succeeded" } else { "Failed" };
    }
    "Pending"
}

#[cfg(test)]
mod tests;
