//! Removes the containers of pods that have ended, for a disk under pressure
//! (`DeleteAllUnusedContainers`). The statuses of the pods stay; their logs are lost.

use std::path::PathBuf;

use crate::config::Config;
use crate::context::RuntimeHandles;
use crate::pods::handle::ReportedPod;
use crate::pods::observed::{ObservedContainer, ObservedState};
use crate::pods::pod::Pod;
use crate::pods::table::PodTable;

/// A container that is removed, with its files.
#[derive(Debug, PartialEq, Eq)]
struct DeadContainer {
    id: String,
    files: Vec<PathBuf>,
}

/// Whether a pod has ended: its worker starts no container again.
fn has_ended(reported: &ReportedPod) -> bool {
    matches!(reported.status.phase.as_deref(), Some("Succeeded" | "Failed"))
        && !reported.observed.any_running()
}

/// The containers of a pod that has ended.
fn dead_containers(config: &Config, pod: &Pod, reported: &ReportedPod) -> Vec<DeadContainer> {
    if !has_ended(reported) {
        return Vec::new();
    }
    let of = |container: &ObservedContainer| {
        let (namespace, name) = (pod.namespace(), pod.name());
        let link = config.container_log_link(namespace, name, &container.name, &container.id);
        let log = PathBuf::from(&container.log_path);
        DeadContainer { id: container.id.clone(), files: vec![link, log] }
    };
    let dead = reported.observed.containers.iter();
    dead.filter(|c| matches!(c.state, ObservedState::Exited | ObservedState::Created))
        .map(of)
        .collect()
}

/// Removes the containers of all pods that have ended.
pub(crate) async fn remove(config: &Config, runtime: &RuntimeHandles, table: &PodTable) {
    let mut files = Vec::new();
    for (pod, handle) in table.all() {
        let dead = dead_containers(config, &pod, &handle.reported.lock().clone());
        for container in dead {
            let id = &container.id;
            match runtime.cri.remove_container(id).await {
                Ok(()) => files.extend(container.files),
                Err(error) => tracing::warn!(id, %error, "cannot remove container"),
            }
        }
    }
    let remove = move || {
        for file in files {
            // A log that is gone already needs no removal.
            let _ = std::fs::remove_file(file);
        }
    };
    if let Err(error) = base::tasks::blocking(remove).await {
        tracing::debug!(%error, "cannot remove logs of containers");
    }
}

/// Whether the images of a pod are in use although it has no container.
pub(super) fn may_start(pod: &Pod, reported: &ReportedPod) -> bool {
    !pod.is_api_terminal() && !has_ended(reported)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::observed::ObservedPod;
    use crate::pods::observed::tests::container;
    use crate::pods::pod::tests::pod;
    use serde_json::json;
    use std::sync::Arc;

    fn reported(phase: &str, state: ObservedState) -> ReportedPod {
        let containers = vec![container("a", state)];
        let observed = Arc::new(ObservedPod { containers, ..ObservedPod::default() });
        let mut out = ReportedPod { observed, ..ReportedPod::default() };
        out.status.phase = Some(phase.to_owned());
        out
    }

    #[test]
    fn only_containers_of_pods_that_have_ended_are_removed() {
        let address = std::net::Ipv4Addr::LOCALHOST.into();
        let config = Config::new("n", address, "/d".into(), "/r".into());
        let pod = pod(json!({"containers": [{"name": "a"}]}));
        let of = |phase, state| {
            let reported = reported(phase, state);
            (dead_containers(&config, &pod, &reported).len(), may_start(&pod, &reported))
        };
        assert_eq!(of("Running", ObservedState::Exited), (0, true), "it may be restarted");
        assert_eq!(of("Failed", ObservedState::Running), (0, true), "it is still ending");
        assert_eq!(of("Failed", ObservedState::Exited), (1, false));
        assert_eq!(of("Succeeded", ObservedState::Created), (1, false));
    }
}
