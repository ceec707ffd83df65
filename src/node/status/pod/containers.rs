//! Container statuses.

use api::k8s::api::core::v1 as core;
use api::k8s::apimachinery::pkg::api::resource::Quantity;
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;

use super::input::{StatusInput, time};
use crate::pods::observed::{ObservedContainer, ObservedState};
use crate::pods::plan::{ProbeResults, has_initialized, needs_start};
use crate::pods::pod::{ContainerRole, Pod, PodContainer};

fn waiting(reason: &str, message: Option<String>) -> core::ContainerState {
    let waiting = core::ContainerStateWaiting {
        reason: (!reason.is_empty()).then(|| reason.to_owned()),
        message: message.filter(|m| !m.is_empty()),
    };
    core::ContainerState { waiting: Some(waiting), ..core::ContainerState::default() }
}

fn terminated(t: core::ContainerStateTerminated) -> core::ContainerState {
    core::ContainerState { terminated: Some(t), ..core::ContainerState::default() }
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// The reason of the states of a container that was removed because all containers restart.
pub(super) const RESTARTING_ALL: &str = "RestartingAllContainers";

/// Returns the statuses of the members with a role that `wanted` accepts, in the order of the
/// specification. `restarting`: all containers are being restarted.
pub(super) fn statuses(
    pod: &Pod,
    input: &StatusInput<'_>,
    restarting: bool,
    wanted: impl Fn(ContainerRole) -> bool,
) -> Vec<core::ContainerStatus> {
    let members = pod.containers.iter().filter(|m| wanted(m.role));
    members.map(|m| status(pod, m, input, restarting)).collect()
}

fn previous<'a>(
    input: &'a StatusInput<'_>,
    member: &PodContainer,
) -> Option<&'a core::ContainerStatus> {
    let p = input.previous;
    let list = match member.role {
        ContainerRole::Main => &p.container_statuses,
        ContainerRole::Init | ContainerRole::Sidecar => &p.init_container_statuses,
        ContainerRole::Ephemeral => &p.ephemeral_container_statuses,
    };
    list.iter().flatten().find(|s| s.name == member.name())
}

fn status(
    pod: &Pod,
    member: &PodContainer,
    input: &StatusInput<'_>,
    restarting: bool,
) -> core::ContainerStatus {
    let old = previous(input, member);
    let mut instances = input.observed.containers.iter().filter(|c| c.name == member.name());
    let newest = instances.next();
    let mut out = match newest {
        Some(container) => converted(container, input),
        None if restarting => removed(pod, member, old),
        None => absent(pod, member, old),
    };
    if newest.is_some() {
        // A container that was created and never started has no last state.
        out.last_state = match instances.find(|c| c.state == ObservedState::Exited) {
            Some(before) => converted(before, input).state,
            None => last_of(old, out.container_id.as_deref()),
        };
        out.restart_count = out.restart_count.max(old.map_or(0, |o| count_before(o, &out)));
    }
    out.last_state.get_or_insert_default();
    let done = newest.is_some_and(|c| c.state == ObservedState::Exited && c.exit_code == 0);
    let lost_init = newest.is_none()
        && !restarting
        && member.role == ContainerRole::Init
        && has_initialized(pod, input.observed);
    if lost_init && out.state.as_ref().is_some_and(|s| s.waiting.is_some()) {
        out.state = Some(terminated(core::ContainerStateTerminated {
            reason: Some("Completed".to_owned()),
            message: Some(
                "Unable to get init container status from container runtime and pod has \
                been initialized, treat it as exited normally"
                    .to_owned(),
            ),
            ..Default::default()
        }));
    } else if !(input.terminal || member.role == ContainerRole::Init && done)
        && needs_start(pod, member, newest)
        && let Some(why) = input.waiting.get(member.name())
    {
        if out.state.as_ref().is_some_and(|s| s.terminated.is_some()) {
            out.last_state = out.state.take();
        }
        out.state = Some(waiting(why.reason, Some(why.message.clone())));
    }
    out.volume_mounts = volume_mounts(member, input.recursive_read_only);
    if member.role != ContainerRole::Ephemeral {
        let resources = member.container.resources.clone().unwrap_or_default();
        out.allocated_resources = resources.requests.clone();
        out.resources = Some(match newest.filter(|c| c.state == ObservedState::Running) {
            Some(container) => actual_resources(resources, container),
            None => resources,
        });
    }
    readiness(member, newest, input, &mut out);
    out
}

/// Whether a container has ever left the state waiting.
fn has_started(status: &core::ContainerStatus) -> bool {
    let ended_before = status.last_state.as_ref().is_some_and(|s| s.terminated.is_some());
    ended_before || status.state.as_ref().is_none_or(|s| s.waiting.is_none())
}

/// Whether a pod was ever initialized (`hasPodInitialized` of the kubelet's status manager): it has
/// no init containers, a main container has left the state waiting, or the last init container has
/// done its part.
fn was_initialized(
    pod: &Pod,
    main: &[core::ContainerStatus],
    init: &[core::ContainerStatus],
) -> bool {
    if init.is_empty() || main.iter().any(has_started) {
        return true;
    }
    let is_init = |role| matches!(role, ContainerRole::Init | ContainerRole::Sidecar);
    let last = pod.containers.iter().rfind(|member| is_init(member.role));
    let (Some(last), Some(status)) = (last, init.last()) else { return false };
    if last.role == ContainerRole::Sidecar {
        let runs = status.state.as_ref().is_some_and(|s| s.running.is_some());
        return runs && status.started == Some(true);
    }
    let succeeded = |state: &core::ContainerState| {
        state.terminated.as_ref().is_some_and(|ended| ended.exit_code == 0)
    };
    [&status.state, &status.last_state].into_iter().flatten().any(succeeded)
}

/// Gives the containers of an ended pod a terminated state, as `TerminatePod` of the kubelet's
/// status manager: those of an initialized pod, and the init containers up to the last one that has
/// started, or the first.
pub(super) fn complete(
    pod: &Pod,
    main: &mut [core::ContainerStatus],
    init: &mut [core::ContainerStatus],
) {
    let initialized = was_initialized(pod, main, init);
    let count = init.iter().rposition(has_started).map_or(1, |last| last + 1);
    let main = main.iter_mut().filter(|_| initialized);
    for status in main.chain(init.iter_mut().take(count)) {
        if status.state.as_ref().is_some_and(|s| s.terminated.is_some()) {
            continue;
        }
        status.state = Some(terminated(core::ContainerStateTerminated {
            exit_code: 137,
            reason: Some("ContainerStatusUnknown".to_owned()),
            message: Some(
                "The container could not be located when the pod was terminated".to_owned(),
            ),
            ..Default::default()
        }));
    }
}

/// Returns the last termination, which is kept after its container was removed from the runtime.
fn last_of(old: Option<&core::ContainerStatus>, id: Option<&str>) -> Option<core::ContainerState> {
    let old = old?;
    let ended = old.state.as_ref().and_then(|s| s.terminated.as_ref());
    match ended {
        Some(t) if old.container_id.as_deref() != id => Some(terminated(t.clone())),
        _ => old.last_state.clone(),
    }
}

/// Returns the lowest restart count of a container that follows its previous status `old`. A new
/// instance of an ended container counts, also if the runtime has no record of the one before.
fn count_before(old: &core::ContainerStatus, new: &core::ContainerStatus) -> i32 {
    let runs = new.state.as_ref().is_some_and(|s| s.running.is_some());
    let ended = old.state.as_ref().is_some_and(|s| s.terminated.is_some());
    let follows = runs && ended && old.container_id != new.container_id;
    old.restart_count.saturating_add(i32::from(follows))
}

fn converted(container: &ObservedContainer, input: &StatusInput<'_>) -> core::ContainerStatus {
    let id = format!("{}://{}", input.runtime_name, container.id);
    let at = |t| time(t).or(Some(Time(api::k8s::jiff::Timestamp::UNIX_EPOCH)));
    let state = match container.state {
        ObservedState::Running => core::ContainerState {
            running: Some(core::ContainerStateRunning { started_at: time(container.started_at) }),
            ..Default::default()
        },
        ObservedState::Exited => terminated(core::ContainerStateTerminated {
            exit_code: container.exit_code,
            reason: some(&container.reason),
            message: some(&container.message),
            started_at: at(container.started_at),
            finished_at: at(container.finished_at),
            container_id: Some(id.clone()),
            ..Default::default()
        }),
        ObservedState::Created | ObservedState::Unknown => waiting("", None),
    };
    let user = container.user.as_ref().map(|u| core::ContainerUser {
        linux: Some(core::LinuxContainerUser {
            uid: u.uid,
            gid: u.gid,
            supplemental_groups: (!u.supplemental_groups.is_empty())
                .then(|| u.supplemental_groups.clone()),
        }),
    });
    core::ContainerStatus {
        name: container.name.clone(),
        container_id: Some(id),
        image: container.image.clone(),
        image_id: container.image_ref.clone(),
        restart_count: container.restart_count,
        state: Some(state),
        stop_signal: container.stop_signal.clone(),
        user,
        ..Default::default()
    }
}

/// The status of a container that the runtime does not have: not created yet, or lost.
fn absent(
    pod: &Pod,
    member: &PodContainer,
    old: Option<&core::ContainerStatus>,
) -> core::ContainerStatus {
    let mut out = core::ContainerStatus {
        name: member.name().to_owned(),
        image: member.image().to_owned(),
        state: Some(waiting(
            if pod.has_init_containers() { "PodInitializing" } else { "ContainerCreating" },
            None,
        )),
        ..Default::default()
    };
    let Some(old) = old else { return out };
    let state = old.state.clone().unwrap_or_default();
    if state.terminated.is_some() {
        return old.clone();
    }
    out.restart_count = old.restart_count;
    out.last_state = old.last_state.clone();
    let ended_before = old.last_state.as_ref().is_some_and(|s| s.terminated.is_some());
    if state.running.is_some() && !ended_before {
        out.last_state = Some(terminated(core::ContainerStateTerminated {
            exit_code: 137,
            reason: Some("ContainerStatusUnknown".to_owned()),
            message: Some(
                "The container could not be located when the pod was deleted.  The \
                container used to be Running"
                    .to_owned(),
            ),
            ..Default::default()
        }));
        if !pod.is_deleted() {
            out.restart_count += 1;
        }
    }
    out
}

/// The status of a container that the runtime does not have while all containers are being
/// restarted: it was removed, or it had not started.
fn removed(
    pod: &Pod,
    member: &PodContainer,
    old: Option<&core::ContainerStatus>,
) -> core::ContainerStatus {
    let mut out = absent(pod, member, old);
    let has_run =
        |o: &&core::ContainerStatus| o.state.as_ref().is_some_and(|s| s.waiting.is_none());
    let Some(old) = old.filter(|o| has_run(o) && member.role != ContainerRole::Ephemeral) else {
        return out;
    };
    let message = "The container is removed because RestartAllContainers in place".to_owned();
    out.state = Some(waiting(RESTARTING_ALL, Some(message.clone())));
    out.last_state = Some(terminated(core::ContainerStateTerminated {
        exit_code: 137,
        reason: Some(RESTARTING_ALL.to_owned()),
        message: Some(message),
        ..Default::default()
    }));
    out.restart_count = old.restart_count.saturating_add(1);
    out
}

/// Returns the mounts with what recursive read-only mounts came to (`resolveRecursiveReadOnly`).
fn volume_mounts(
    member: &PodContainer,
    supports_recursive: bool,
) -> Option<Vec<core::VolumeMountStatus>> {
    let mounts = member.container.volume_mounts.as_ref()?;
    let recursive = |m: &core::VolumeMount| match m.recursive_read_only.as_deref() {
        Some("Enabled") => "Enabled",
        Some("IfPossible") if supports_recursive => "Enabled",
        _ => "Disabled",
    };
    let status = |m: &core::VolumeMount| core::VolumeMountStatus {
        name: m.name.clone(),
        mount_path: m.mount_path.clone(),
        read_only: m.read_only.filter(|r| *r),
        recursive_read_only: (m.read_only == Some(true)).then(|| recursive(m).to_owned()),
        ..Default::default()
    };
    (!mounts.is_empty()).then(|| mounts.iter().map(status).collect())
}

/// Returns limits and requests of the cgroup, if the runtime reports them.
fn actual_resources(
    mut resources: core::ResourceRequirements,
    container: &ObservedContainer,
) -> core::ResourceRequirements {
    let Some(actual) = &container.resources else { return resources };
    if let Some(limits) = &mut resources.limits {
        if actual.cpu_quota > 0 && actual.cpu_period > 0 && limits.contains_key("cpu") {
            let milli = actual.cpu_quota.saturating_mul(1000) / actual.cpu_period;
            set(limits, "cpu", api::Quantity::millis(milli));
        }
        if actual.memory_limit_in_bytes > 0 && limits.contains_key("memory") {
            set(limits, "memory", api::Quantity::bytes(actual.memory_limit_in_bytes));
        }
    }
    resources
}

/// Replaces a quantity only if it differs, to keep its notation.
fn set(list: &mut std::collections::BTreeMap<String, Quantity>, name: &str, value: api::Quantity) {
    // The kernel's minimum quota is ten thousandths; below it the specified value is shown.
    if let Some(entry) = list.get_mut(name)
        && api::Quantity::parse(&entry.0).ok() != Some(value)
        && (name != "cpu" || value.milli_value() > 10)
    {
        entry.0 = value.to_string();
    }
}

fn readiness(
    member: &PodContainer,
    newest: Option<&ObservedContainer>,
    input: &StatusInput<'_>,
    out: &mut core::ContainerStatus,
) {
    if member.role == ContainerRole::Ephemeral {
        return;
    }
    let running = newest.filter(|c| c.state == ObservedState::Running);
    let health = running.and_then(|c| input.health.get(&c.id)).copied().unwrap_or_default();
    let ProbeResults { startup, readiness, .. } = health;
    let started =
        running.is_some() && (member.container.startup_probe.is_none() || startup == Some(true));
    out.started = Some(started);
    out.ready = match member.role {
        ContainerRole::Init => {
            out.state.as_ref().and_then(|s| s.terminated.as_ref()).is_some_and(|t| t.exit_code == 0)
        }
        _ => started && (member.container.readiness_probe.is_none() || readiness == Some(true)),
    };
}
