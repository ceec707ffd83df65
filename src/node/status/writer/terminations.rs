//! `kubelet_terminated_containers_total`: terminations of containers, each counted once.

use std::time::Duration;

use api::k8s::api::core::v1::{ContainerStateTerminated, ContainerStatus, PodStatus};
use base::metrics::Family;

/// Maximum number of series, as reasons are arbitrary texts of the runtime.
const SERIES_MAX: usize = 1024;

/// Counts by comparing each status with the previous one, as upstream's status manager does.
#[derive(Debug)]
pub(super) struct Terminations {
    counts: Family,
    /// Start of this process since the epoch.
    started: Duration,
}

impl Default for Terminations {
    fn default() -> Self {
        let counts = Family::counter(
            "kubelet_terminated_containers_total",
            "[ALPHA] Cumulative number of container terminations.",
            &["container_type", "exit_code", "reason"],
        );
        Self { counts, started: base::clock::unix_time() }
    }
}

impl Terminations {
    /// Counts terminations in `new` that are not in `old`. Without an old status (that of a static
    /// pod is not read from the API) a termination counts if it happened during the life of this
    /// process.
    pub(super) fn record(&self, old: Option<&PodStatus>, new: &PodStatus) {
        let none = PodStatus::default();
        let before = old.unwrap_or(&none);
        for (kind, before, after) in [
            ("init_container", &before.init_container_statuses, &new.init_container_statuses),
            ("container", &before.container_statuses, &new.container_statuses),
            (
                "ephemeral_container",
                &before.ephemeral_container_statuses,
                &new.ephemeral_container_statuses,
            ),
        ] {
            let before = before.as_deref().unwrap_or_default();
            for status in after.iter().flatten() {
                let before = before.iter().find(|s| s.name == status.name);
                for ended in terminated(status) {
                    let counted = before.is_some_and(|before| is_known(before, status, ended));
                    if !counted && (old.is_some() || self.is_of_this_process(ended)) {
                        self.count(kind, ended);
                    }
                }
            }
        }
    }

    fn is_of_this_process(&self, ended: &ContainerStateTerminated) -> bool {
        let started = i64::try_from(self.started.as_secs()).unwrap_or(i64::MAX);
        ended.finished_at.as_ref().is_some_and(|at| at.0.as_second() >= started)
    }

    fn count(&self, kind: &'static str, ended: &ContainerStateTerminated) {
        let (code, reason) = (ended.exit_code.to_string(), ended.reason.as_deref());
        let labels = [kind, &code, reason.unwrap_or_default()];
        let mut series = 0;
        self.counts.each(|_, _| series += 1);
        if series >= SERIES_MAX && self.counts.read(&labels) == 0.0 {
            tracing::debug!(?labels, "too many series of terminations");
        } else {
            self.counts.inc(&labels);
        }
    }

    /// Renders the metrics in the Prometheus text format.
    pub(super) fn render(&self) -> String {
        let mut out = String::new();
        self.counts.render(&mut out);
        out
    }
}

/// Returns the terminations in a status. A container that is restarted at once is never shown as
/// terminated, only its last state is.
fn terminated(status: &ContainerStatus) -> impl Iterator<Item = &ContainerStateTerminated> {
    let states = [&status.last_state, &status.state];
    states.into_iter().filter_map(|s| s.as_ref()?.terminated.as_ref())
}

/// Whether the previous status contains this termination.
fn is_known(
    before: &ContainerStatus,
    now: &ContainerStatus,
    ended: &ContainerStateTerminated,
) -> bool {
    if ended.container_id.is_none() {
        // A termination of a container that the runtime lost has no id: then the states are
        // compared.
        let is_state = now.state.as_ref().and_then(|s| s.terminated.as_ref()) == Some(ended);
        let state = before.state.as_ref().and_then(|s| s.terminated.as_ref());
        return if is_state { state.is_some() } else { terminated(before).next().is_some() };
    }
    terminated(before).any(|earlier| earlier.container_id == ended.container_id)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(list: &str, statuses: &Value) -> PodStatus {
        serde_json::from_value(json!({ list: statuses })).unwrap()
    }

    fn ended(id: &str, code: i32, reason: &str, at: &str) -> Value {
        json!({"terminated": {"exitCode": code, "reason": reason, "finishedAt": at,
            "containerID": id}})
    }

    fn container(state: &Value, last: &Value) -> Value {
        json!([{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": state, "lastState": last}])
    }

    fn lines(terminations: &Terminations) -> Vec<String> {
        terminations.render().lines().skip(2).map(str::to_owned).collect()
    }

    const NOW: &str = "2100-01-01T00:00:00Z";

    /// The steps of upstream's `TestTerminatedContainersMetric`: running, terminated, the same
    /// again, another container.
    #[test]
    fn a_termination_is_counted_once() {
        let terminations = Terminations::default();
        let list = "containerStatuses";
        let none = PodStatus::default();
        let running = pod(list, &container(&json!({"running": {}}), &json!({})));
        let one = pod(list, &container(&ended("a", 139, "Error", NOW), &json!({})));
        let again = pod(list, &container(&json!({"running": {}}), &ended("a", 139, "Error", NOW)));
        let quick = pod(list, &container(&json!({"waiting": {}}), &ended("b", 139, "Error", NOW)));
        let mut before = &none;
        for now in [&running, &one, &one, &again, &again, &quick] {
            terminations.record(Some(before), now);
            before = now;
        }
        terminations.record(
            Some(&none),
            &pod("initContainerStatuses", &container(&ended("i", 0, "Completed", NOW), &json!({}))),
        );
        let family = "kubelet_terminated_containers_total";
        assert_eq!(
            lines(&terminations),
            [
                format!(
                    "{family}{{container_type=\"container\",exit_code=\"139\",reason=\"Error\"}} 2"
                ),
                format!(
                    "{family}{{container_type=\"init_container\",exit_code=\"0\",\
                     reason=\"Completed\"}} 1"
                ),
            ]
        );
        let head = terminations.render();
        assert!(head.starts_with(&format!(
            "# HELP {family} [ALPHA] Cumulative number of container terminations.\n\
             # TYPE {family} counter\n"
        )));
    }

    #[test]
    fn a_restart_of_the_agent_counts_no_termination_twice() {
        let terminations = Terminations::default();
        let old = "2020-01-01T00:00:00Z";
        let status =
            |at| pod("containerStatuses", &container(&ended("a", 1, "Error", at), &json!({})));
        terminations.record(Some(&status(old)), &status(old));
        terminations.record(None, &status(old));
        assert!(lines(&terminations).is_empty());
        terminations.record(None, &status(NOW));
        assert_eq!(lines(&terminations).len(), 1);
    }

    #[test]
    fn a_container_that_the_runtime_lost_is_counted_by_its_state() {
        let terminations = Terminations::default();
        let lost = json!({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}});
        let running = pod("containerStatuses", &container(&json!({"running": {}}), &json!({})));
        let lost = pod("containerStatuses", &container(&lost, &json!({})));
        terminations.record(Some(&running), &lost);
        terminations.record(Some(&lost), &lost);
        let all = lines(&terminations);
        assert!(matches!(all.as_slice(), [one] if one.ends_with(" 1")), "{all:?}");
    }
}
