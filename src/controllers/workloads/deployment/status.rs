//! The status of a Deployment: counts, conditions, and when to look for lack of progress again.

use std::time::Duration;

use api::k8s::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet};
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use api::k8s::jiff::Timestamp;

use super::math::{available, desired, max_unavailable, size};

pub(super) const PROGRESSING: &str = "Progressing";
const AVAILABLE: &str = "Available";
const REPLICA_FAILURE: &str = "ReplicaFailure";
const NEW_RS_AVAILABLE: &str = "NewReplicaSetAvailable";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const PAUSED: &str = "DeploymentPaused";

/// The condition of this type.
pub(super) fn get<'a>(status: &'a DeploymentStatus, kind: &str) -> Option<&'a DeploymentCondition> {
    status.conditions.as_ref()?.iter().find(|c| c.type_.as_deref() == Some(kind))
}

fn remove(status: &mut DeploymentStatus, kind: &str) {
    if let Some(conditions) = &mut status.conditions {
        conditions.retain(|c| c.type_.as_deref() != Some(kind));
        if conditions.is_empty() {
            status.conditions = None;
        }
    }
}

/// A condition as of `now`.
pub(super) fn condition(
    kind: &str,
    status: &str,
    reason: &str,
    message: String,
    now: Timestamp,
) -> DeploymentCondition {
    DeploymentCondition {
        type_: Some(kind.to_owned()),
        status: Some(status.to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_update_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    }
}

/// Sets a condition unless status and reason stay; a status that stays keeps its transition time.
pub(super) fn set(status: &mut DeploymentStatus, mut new: DeploymentCondition) {
    let kind = new.type_.clone().unwrap_or_default();
    if let Some(old) = get(status, &kind).filter(|old| old.status == new.status) {
        if old.reason == new.reason {
            return;
        }
        new.last_transition_time.clone_from(&old.last_transition_time);
    }
    remove(status, &kind);
    status.conditions.get_or_insert_default().push(new);
}

/// Seconds without progress before the condition changes; never for `i32::MAX` or an absent
/// deadline.
pub(super) fn deadline(deployment: &Deployment) -> Option<i32> {
    deployment.spec.progress_deadline_seconds.filter(|s| *s != i32::MAX)
}

/// Updates the condition when the rollout is paused or resumed, so that a paused rollout does not
/// time out.
pub(super) fn note_pause(deployment: &Deployment, status: &mut DeploymentStatus, now: Timestamp) {
    if deadline(deployment).is_none() {
        return;
    }
    let reason = get(status, PROGRESSING).and_then(|c| c.reason.clone());
    let paused = deployment.spec.paused.unwrap_or(false);
    let told = reason.as_deref() == Some(PAUSED);
    let (reason, message) = match (reason.as_deref(), paused, told) {
        (Some(TIMED_OUT), ..) => return,
        (_, true, false) => (PAUSED, "Deployment is paused"),
        (_, false, true) => ("DeploymentResumed", "Deployment is resumed"),
        _ => return,
    };
    set(status, condition(PROGRESSING, "Unknown", reason, message.to_owned(), now));
}

/// Counts and the condition `Available`; other conditions as in `deployment.status`.
pub(super) fn calculate(
    deployment: &Deployment,
    old: &[ReplicaSet],
    new: Option<&ReplicaSet>,
    now: Timestamp,
) -> DeploymentStatus {
    let all = || old.iter().chain(new);
    let total: i32 = all().map(size).sum();
    let ready_now: i32 = all().map(available).sum();
    let actual = |s: &ReplicaSet| s.status.as_ref().map_or(0, |s| s.replicas);
    let before = deployment.status.clone().unwrap_or_default();
    // Zero is written as absent, as upstream's encoding does.
    let some = |n: i32| (n != 0).then_some(n);
    let mut status = DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: some(all().map(actual).sum()),
        updated_replicas: some(new.map_or(0, actual)),
        ready_replicas: some(
            all().filter_map(|s| s.status.as_ref().and_then(|s| s.ready_replicas)).sum(),
        ),
        available_replicas: some(ready_now),
        unavailable_replicas: some((total - ready_now).max(0)),
        terminating_replicas: terminating(all()),
        collision_count: before.collision_count,
        conditions: before.conditions,
    };
    let (value, reason, message) = if ready_now >= desired(deployment) - max_unavailable(deployment)
    {
        ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    } else {
        ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    };
    set(&mut status, condition(AVAILABLE, value, reason, message.to_owned(), now));
    status
}

/// Pods being deleted; `None` while a ReplicaSet that was synced does not tell its number.
fn terminating<'a>(sets: impl Iterator<Item = &'a ReplicaSet>) -> Option<i32> {
    let mut sum = 0;
    for set in sets {
        let status = set.status.as_ref();
        match status.and_then(|s| s.terminating_replicas) {
            Some(count) => sum += count,
            None if status.and_then(|s| s.observed_generation).unwrap_or(0) == 0 => {}
            None => return None,
        }
    }
    Some(sum)
}

/// All desired pods are new and available, and no old ones are left.
pub(super) fn is_complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let want = desired(deployment);
    status.updated_replicas.unwrap_or(0) == want
        && status.replicas.unwrap_or(0) == want
        && status.available_replicas.unwrap_or(0) == want
        && status.observed_generation.unwrap_or(0) >= deployment.metadata.generation.unwrap_or(0)
}

/// Something moved forward since the last status.
fn is_progressing(old: &DeploymentStatus, new: &DeploymentStatus) -> bool {
    let n = |value: Option<i32>| value.unwrap_or(0);
    let rest = |s: &DeploymentStatus| n(s.replicas) - n(s.updated_replicas);
    n(new.updated_replicas) > n(old.updated_replicas)
        || rest(new) < rest(old)
        || n(new.ready_replicas) > n(old.ready_replicas)
        || n(new.available_replicas) > n(old.available_replicas)
}

fn is_timed_out(deadline: i32, status: &DeploymentStatus, now: Timestamp) -> bool {
    let Some(condition) = get(status, PROGRESSING) else { return false };
    match condition.reason.as_deref() {
        Some(NEW_RS_AVAILABLE) => false,
        Some(TIMED_OUT) => true,
        _ => condition
            .last_update_time
            .as_ref()
            .is_some_and(|Time(t)| t.as_second() + i64::from(deadline) < now.as_second()),
    }
}

/// [`calculate`] and, for a rollout, the condition `Progressing` and failures of ReplicaSets.
pub(super) fn of_rollout(
    deployment: &Deployment,
    old: &[ReplicaSet],
    new: Option<&ReplicaSet>,
    now: Timestamp,
) -> DeploymentStatus {
    let mut status = calculate(deployment, old, new, now);
    let before = deployment.status.clone().unwrap_or_default();
    let current = get(&before, PROGRESSING);
    let settled = status.replicas == status.updated_replicas
        && current.is_some_and(|c| c.reason.as_deref() == Some(NEW_RS_AVAILABLE));
    let subject = match new.and_then(|s| s.metadata.name.as_deref()) {
        Some(name) => format!("ReplicaSet \"{name}\""),
        None => {
            format!("Deployment \"{}\"", deployment.metadata.name.as_deref().unwrap_or_default())
        }
    };
    match deadline(deployment) {
        None => remove(&mut status, PROGRESSING),
        Some(_) if settled => {}
        Some(_) if is_complete(deployment, &status) => {
            let message = format!("{subject} has successfully progressed.");
            set(&mut status, condition(PROGRESSING, "True", NEW_RS_AVAILABLE, message, now));
        }
        Some(_) if is_progressing(&before, &status) => {
            let message = format!("{subject} is progressing.");
            let mut new = condition(PROGRESSING, "True", "ReplicaSetUpdated", message, now);
            if let Some(current) = current {
                if current.status.as_deref() == Some("True") {
                    new.last_transition_time.clone_from(&current.last_transition_time);
                }
                // The condition is written again even when the reason stays: the deadline counts
                // from its last update.
                remove(&mut status, PROGRESSING);
            }
            set(&mut status, new);
        }
        Some(seconds) if is_timed_out(seconds, &status, now) => {
            let message = format!("{subject} has timed out progressing.");
            set(&mut status, condition(PROGRESSING, "False", TIMED_OUT, message, now));
        }
        Some(_) => {}
    }
    match replica_failure(old, new) {
        Some(failure) => set(&mut status, failure),
        None => remove(&mut status, REPLICA_FAILURE),
    }
    status
}

/// The failure of the new ReplicaSet, else that of any.
fn replica_failure(old: &[ReplicaSet], new: Option<&ReplicaSet>) -> Option<DeploymentCondition> {
    new.into_iter().chain(old).find_map(|set| {
        let conditions = set.status.as_ref()?.conditions.as_ref()?;
        let failure = conditions.iter().find(|c| c.type_.as_deref() == Some(REPLICA_FAILURE))?;
        Some(DeploymentCondition {
            type_: failure.type_.clone(),
            status: failure.status.clone(),
            reason: failure.reason.clone(),
            message: failure.message.clone(),
            last_update_time: failure.last_transition_time.clone(),
            last_transition_time: failure.last_transition_time.clone(),
        })
    })
}

/// When to look again whether the deadline passed; `None` when nothing is pending.
pub(super) fn check_after(
    deployment: &Deployment,
    status: &DeploymentStatus,
    now: Timestamp,
) -> Option<Duration> {
    let seconds = deadline(deployment)?;
    let current = get(status, PROGRESSING)?;
    if is_complete(deployment, status)
        || matches!(current.reason.as_deref(), Some(TIMED_OUT | NEW_RS_AVAILABLE))
    {
        return None;
    }
    let Time(updated) = current.last_update_time.as_ref()?;
    let left = updated.as_second() + i64::from(seconds) - now.as_second();
    // One second more: times in the status are whole seconds.
    Some(Duration::from_secs(u64::try_from(left).unwrap_or(0) + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn deployment(status: Value) -> Deployment {
        serde_json::from_value(json!({"metadata": {"name": "d", "generation": 3},
            "spec": {"replicas": 2, "progressDeadlineSeconds": 600,
                "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
                "selector": {}, "template": {}}, "status": status}))
        .unwrap()
    }

    fn set_of(replicas: i32, available: i32) -> ReplicaSet {
        serde_json::from_value(
            json!({"metadata": {"name": "d-1"}, "spec": {"replicas": 2, "selector": {}},
            "status": {"replicas": replicas, "readyReplicas": available,
                "availableReplicas": available, "terminatingReplicas": 1,
                "observedGeneration": 1}}),
        )
        .unwrap()
    }

    fn reason(status: &DeploymentStatus, kind: &str) -> String {
        get(status, kind).and_then(|c| c.reason.clone()).unwrap_or_default()
    }

    #[test]
    fn a_rollout_progresses_and_completes() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let first = of_rollout(&deployment(json!({})), &[], Some(&set_of(2, 1)), now);
        assert_eq!(reason(&first, "Progressing"), "ReplicaSetUpdated");
        assert_eq!(reason(&first, "Available"), "MinimumReplicasUnavailable");
        assert_eq!((first.unavailable_replicas, first.terminating_replicas), (Some(1), Some(1)));
        assert_eq!(
            check_after(&deployment(json!({})), &first, now),
            Some(Duration::from_secs(601))
        );
        let mut d = deployment(json!({}));
        d.status = Some(first);
        let done = of_rollout(&d, &[], Some(&set_of(2, 2)), now);
        assert_eq!(reason(&done, "Progressing"), "NewReplicaSetAvailable");
        assert_eq!(reason(&done, "Available"), "MinimumReplicasAvailable");
        assert_eq!(done.unavailable_replicas, None);
        assert_eq!(check_after(&d, &done, now), None);
        d.status = Some(done.clone());
        assert_eq!(of_rollout(&d, &[], Some(&set_of(2, 2)), now), done);
    }

    #[test]
    fn lack_of_progress_is_told_after_the_deadline_but_not_while_paused() {
        let start = "2026-01-01T00:00:00Z";
        let stuck = json!({"replicas": 2, "updatedReplicas": 2,
            "conditions": [{"type": "Progressing", "status": "True",
            "reason": "ReplicaSetUpdated", "lastUpdateTime": start, "lastTransitionTime": start}]});
        let d = deployment(stuck);
        let at = |seconds: i64| {
            Timestamp::from_second(start.parse::<Timestamp>().unwrap().as_second() + seconds)
                .unwrap()
        };
        let early = of_rollout(&d, &[], Some(&set_of(2, 0)), at(600));
        assert_eq!(reason(&early, "Progressing"), "ReplicaSetUpdated");
        let late = of_rollout(&d, &[], Some(&set_of(2, 0)), at(601));
        assert_eq!(reason(&late, "Progressing"), "ProgressDeadlineExceeded");
        assert_eq!(
            get(&late, "Progressing").unwrap().message.as_deref(),
            Some("ReplicaSet \"d-1\" has timed out progressing.")
        );
        let mut paused = d.clone();
        paused.spec.paused = Some(true);
        let mut status = d.status.clone().unwrap();
        note_pause(&paused, &mut status, at(900));
        assert_eq!(reason(&status, "Progressing"), "DeploymentPaused");
        note_pause(&d, &mut status, at(901));
        assert_eq!(reason(&status, "Progressing"), "DeploymentResumed");
    }
}
