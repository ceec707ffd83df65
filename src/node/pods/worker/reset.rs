//! Stops and removes containers of a pod that starts them all again.

use std::path::Path;
use std::time::Duration;

use super::actions::PodActions;
use super::stop::kill;
use crate::pods::observed::ObservedPod;
use crate::pods::plan::restart_all::PlannedReset;
use crate::pods::pod::Pod;
use crate::runtime::RuntimeError;
use crate::status;

impl PodActions {
    /// Removes the containers of `resets` in their order. Live ones are stopped before without a
    /// grace period of the pod, so that no preStop hook runs. Returns whether all are removed;
    /// otherwise the whole pod has to end.
    ///
    /// The log of the last instance of each container stays: its name has the restart count from
    /// which the next instance continues.
    ///
    /// # Errors
    ///
    /// A container cannot be stopped or removed. The remaining ones are left for the next attempt.
    pub(super) async fn reset(
        &mut self,
        pod: &Pod,
        resets: &[PlannedReset],
        observed: &ObservedPod,
    ) -> Result<bool, RuntimeError> {
        let ips = status::pod::pod_ips(&self.node.identity.config.node_ips(), pod, observed);
        let ip = ips.first().map(String::as_str).unwrap_or_default();
        let config = &self.node.identity.config;
        let logs = config.pod_log_dir(pod.namespace(), pod.name(), &pod.uid);
        for reset in resets {
            let container = observed.containers.iter().find(|c| c.id == reset.id);
            let Some(container) = container else { continue };
            if reset.is_live {
                let stop = kill(&self.node, pod, container, ip, Duration::ZERO, "killing", None);
                if !self.unless_ending(stop).await? {
                    return Ok(false);
                }
            }
            self.remove_container(pod, container).await?;
            self.changes += 1;
            self.progress.lock().waiting.remove(&container.name);
            if observed.container(&container.name) == Some(container) {
                remove_earlier_logs(&logs.join(&container.name), container.restart_count);
            }
        }
        Ok(true)
    }
}

/// Removes the log files of the instances before `newest`: without this, a pod that restarts its
/// containers again and again would fill the disk. A file that cannot be removed stays until the
/// end of the pod.
fn remove_earlier_logs(folder: &Path, newest: i32) {
    for file in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = file.file_name();
        let number = name.to_str().and_then(|n| n.split('.').next()?.parse::<i32>().ok());
        if number.is_some_and(|number| number < newest) {
            let _ = std::fs::remove_file(file.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_of_the_last_instance_stay() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["0.log", "1.log", "1.log.20260101-000000.gz", "2.log", "2.log.1", "other"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        remove_earlier_logs(folder.path(), 2);
        let left = |name: &str| folder.path().join(name).exists();
        assert!(left("2.log") && left("2.log.1") && left("other"));
        assert!(!left("0.log") && !left("1.log") && !left("1.log.20260101-000000.gz"));
    }
}
