//! The pods of this node for `kube-lite status`: which are not ready and why, and which of them do
//! not start or do not end.

use std::time::Duration;

use api::k8s::api::core::v1::{ContainerStatus, Pod};
use client::{Client, ListOptions};
use serde::{Deserialize, Serialize};
use sorting::CompactSort as _;

use super::{Problem, ago};

/// Pods that do not start or do not end, each listed as a separate problem; the rest is counted.
const PROBLEMS_MAX: usize = 20;
/// Seconds after the end of its grace period after which a pod that still runs is a problem.
const END_DELAY_MAX: i64 = 60;
/// Seconds after which a pod without a sandbox or volumes is a problem.
const START_DELAY_MAX: i64 = 120;
/// Timeout of the request for the pods.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Reasons of a waiting container that lie with the node or with the pod's specification. A
/// container that runs and crashes is the application's matter.
const START_ERRORS: [&str; 10] = [
    "ContainerCannotRun",
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
    "RegistryUnavailable",
    "RunContainerError",
];

/// A pod that is not ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodLine {
    /// `namespace/name`.
    pub name: String,
    /// `Terminating`, the reason of its waiting container, or its phase.
    pub reason: String,
    /// Seconds in this state, if known.
    #[serde(default)]
    pub since_seconds: Option<u64>,
}

/// The pods that are not ready, and what is wrong with some of them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) not_ready: Vec<PodLine>,
    pub(crate) problems: Vec<Problem>,
}

/// Requests the pods of `node` as the node itself; `None` if the API does not answer.
pub(crate) async fn of_node(client: &Client, node: &str) -> Option<Summary> {
    let fields = format!("spec.nodeName={node}");
    let options = ListOptions { fields: &fields, ..ListOptions::default() };
    let pods = tokio::time::timeout(TIMEOUT, client.list::<Pod>("", &options)).await;
    let now = i64::try_from(base::clock::unix_time().as_secs()).unwrap_or(i64::MAX);
    Some(summarize(&pods.ok()?.ok()?, now))
}

/// Summarizes pods at a time in seconds since the epoch.
fn summarize(pods: &[Pod], now: i64) -> Summary {
    let mut summary = Summary::default();
    let mut problems = Vec::new();
    for pod in pods {
        let Some((line, problem)) = check_pod(pod, now) else { continue };
        summary.not_ready.push(line);
        problems.extend(problem);
    }
    summary.not_ready.compact_sort_by(|a, b| a.name.cmp(&b.name));
    problems.compact_sort_by(|a: &Problem, b| a.what.cmp(&b.what));
    let rest = problems.len().saturating_sub(PROBLEMS_MAX);
    problems.truncate(PROBLEMS_MAX);
    if rest > 0 {
        problems.push(Problem::new(
            format!("{rest} more pods do not start or do not end"),
            "kubectl get pods -A -o wide",
        ));
    }
    summary.problems = problems;
    summary
}

/// The line of a pod that is not ready, and its problem if it does not start or end.
fn check_pod(pod: &Pod, now: i64) -> Option<(PodLine, Option<Problem>)> {
    let meta = &pod.metadata;
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let name = format!("{namespace}/{}", meta.name.as_deref().unwrap_or_default());
    let status = pod.status.clone().unwrap_or_default();
    let phase = status.phase.as_deref().unwrap_or("Pending");
    let fix =
        format!("kubectl describe pod -n {namespace} {}", meta.name.as_deref().unwrap_or_default());
    let line = |reason: &str, since: Option<i64>| {
        let since_seconds = since.and_then(|since| u64::try_from(now.saturating_sub(since)).ok());
        PodLine { name: name.clone(), reason: reason.to_owned(), since_seconds }
    };
    if let Some(end) = meta.deletion_timestamp.as_ref().map(|time| time.0.as_second()) {
        let line = line("Terminating", Some(end - meta.deletion_grace_period_seconds.unwrap_or(0)));
        let past = now.saturating_sub(end);
        let held = match meta.finalizers.as_deref() {
            None | Some([]) => String::new(),
            Some(finalizers) => format!(", held by the finalizers {}", finalizers.join(", ")),
        };
        let problem = (past > END_DELAY_MAX).then(|| {
            let past = ago(past.unsigned_abs());
            let what = format!("pod {name} does not end: {past} past its grace time{held}");
            Problem::new(what, fix)
        });
        return Some((line, problem));
    }
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let is =
        |kind: &str, value: &str| conditions.iter().any(|c| c.type_ == kind && c.status == value);
    if is("Ready", "True") || matches!(phase, "Succeeded" | "Failed") {
        return None;
    }
    let started = status.start_time.as_ref().or(meta.creation_timestamp.as_ref());
    let started = started.map(|time| time.0.as_second());
    let containers = status.init_container_statuses.iter().chain(&status.container_statuses);
    let waiting = containers.flatten().find_map(waiting);
    if let Some((container, reason, message)) =
        waiting.filter(|(_, reason, _)| cannot_start(reason))
    {
        let message = if message.is_empty() { String::new() } else { format!(": {message}") };
        let what = format!("pod {name} cannot start: container {container}: {reason}{message}");
        return Some((line(reason, started), Some(Problem::new(what, fix))));
    }
    let age = started.map_or(0, |started| now.saturating_sub(started));
    let problem =
        (phase == "Pending" && is("PodReadyToStartContainers", "False") && age > START_DELAY_MAX)
            .then(|| {
                let age = ago(age.unsigned_abs());
                Problem::new(format!("pod {name} has no sandbox or no volumes after {age}"), fix)
            });
    let reason = waiting.map_or(if phase == "Running" { "not ready" } else { phase }, |w| w.1);
    Some((line(reason, started), problem))
}

fn cannot_start(reason: &str) -> bool {
    START_ERRORS.contains(&reason)
}

/// Name, reason and message of a waiting container.
fn waiting(status: &ContainerStatus) -> Option<(&str, &str, &str)> {
    let waiting = status.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref()?;
    Some((&status.name, reason, waiting.message.as_deref().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(metadata: Value, status: Value) -> Pod {
        let mut metadata = metadata;
        metadata["namespace"] = "n".into();
        metadata["creationTimestamp"] = "1970-01-01T00:00:00Z".into();
        serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap()
    }

    fn condition(kind: &str, status: &str) -> Value {
        json!([{"type": kind, "status": status}])
    }

    #[test]
    fn a_pod_past_its_grace_time_is_a_problem_and_one_within_it_is_not() {
        let gone = json!({"name": "a", "deletionTimestamp": "1970-01-01T00:01:30Z", "deletionGracePeriodSeconds": 30});
        let at = |now| summarize(&[pod(gone.clone(), json!({"phase": "Running"}))], now);
        let line = |seconds| PodLine {
            name: "n/a".into(),
            reason: "Terminating".into(),
            since_seconds: Some(seconds),
        };
        assert_eq!(at(150), Summary { not_ready: vec![line(90)], problems: Vec::new() });
        let late = at(90 + 40 * 60);
        assert_eq!(late.not_ready, [line(30 + 40 * 60)]);
        assert_eq!(late.problems[0].what, "pod n/a does not end: 40 min past its grace time");
        assert_eq!(late.problems[0].fix, "kubectl describe pod -n n a");
    }

    #[test]
    fn a_pod_that_cannot_start_is_a_problem_with_its_reason() {
        let waits = |reason: &str| {
            let state = json!({"waiting": {"reason": reason, "message": "no such image"}});
            let container = json!([{"name": "c", "ready": false, "restartCount": 0, "image": "i", "imageID": "", "state": state}]);
            let status = json!({"phase": "Pending", "containerStatuses": container, "conditions": condition("Ready", "False")});
            summarize(&[pod(json!({"name": "a"}), status)], 10)
        };
        let what = "pod n/a cannot start: container c: ErrImagePull: no such image";
        assert_eq!(waits("ErrImagePull").problems[0].what, what);
        let creating = waits("ContainerCreating");
        assert_eq!(creating.problems, []);
        assert_eq!(creating.not_ready[0].reason, "ContainerCreating");
        assert_eq!(waits("CrashLoopBackOff").problems, [], "a problem of the application");
    }

    #[test]
    fn a_pod_without_a_sandbox_is_a_problem_after_two_minutes() {
        let status = json!({"phase": "Pending", "conditions": condition("PodReadyToStartContainers", "False")});
        let at = |now| summarize(&[pod(json!({"name": "a"}), status.clone())], now).problems;
        assert_eq!(at(120), []);
        assert_eq!(at(240)[0].what, "pod n/a has no sandbox or no volumes after 4 min");
    }

    #[test]
    fn ready_and_completed_pods_are_not_listed_and_many_problems_are_counted() {
        let ready = pod(
            json!({"name": "a"}),
            json!({"phase": "Running", "conditions": condition("Ready", "True")}),
        );
        let over = pod(
            json!({"name": "b"}),
            json!({"phase": "Succeeded", "conditions": condition("Ready", "False")}),
        );
        assert_eq!(summarize(&[ready, over], 1000), Summary::default());
        let gone =
            |n| json!({"name": format!("p{n}"), "deletionTimestamp": "1970-01-01T00:00:00Z"});
        let many: Vec<Pod> = (0..30).map(|n| pod(gone(n), json!({}))).collect();
        let summary = summarize(&many, 1000);
        assert_eq!((summary.not_ready.len(), summary.problems.len()), (30, 21));
        assert_eq!(summary.problems[20].what, "10 more pods do not start or do not end");
    }
}
