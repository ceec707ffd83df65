//! The state of one pod as observed from the runtime, in the form that decisions use.

use std::collections::HashMap;

use futures::future::try_join_all;
use proto::runtime::v1 as cri;
use sorting::CompactSort as _;

use crate::runtime::{Runtime, RuntimeError};

/// Names of the labels and annotations of sandboxes and containers. They are the kubelet's, for
/// tools that read them.
pub(crate) mod label {
    pub(crate) const POD_NAME: &str = "io.kubernetes.pod.name";
    pub(crate) const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
    pub(crate) const POD_UID: &str = "io.kubernetes.pod.uid";
    pub(crate) const CONTAINER_NAME: &str = "io.kubernetes.container.name";
    pub(crate) const HASH: &str = "io.kubernetes.container.hash";
    pub(crate) const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
    pub(crate) const MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
    pub(crate) const MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
    pub(crate) const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
    /// Specific to kube-lite: the resources with which the container was started.
    pub(crate) const RESOURCES: &str = "kube-lite.io/resources";
    pub(crate) const PORTS: &str = "io.kubernetes.container.ports";
    pub(crate) const DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";
    pub(crate) const TERMINATION_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
}

/// A sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedSandbox {
    pub(crate) id: String,
    pub(crate) attempt: u32,
    pub(crate) created_at: i64,
    pub(crate) ready: bool,
    pub(crate) host_network: bool,
    /// Empty in the host network.
    pub(crate) ips: Vec<String>,
}

/// State of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ObservedState {
    Created,
    Running,
    Exited,
    Unknown,
}

/// A container.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ObservedContainer {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) sandbox: String,
    pub(crate) state: ObservedState,
    /// Nanoseconds since the epoch; zero before the event.
    pub(crate) created_at: i64,
    pub(crate) started_at: i64,
    pub(crate) finished_at: i64,
    pub(crate) exit_code: i32,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) restart_count: i32,
    pub(crate) image: String,
    pub(crate) image_ref: String,
    pub(crate) hash: String,
    pub(crate) log_path: String,
    pub(crate) annotations: HashMap<String, String>,
    /// Paths in the container and on the host.
    pub(crate) mounts: Vec<(String, String)>,
    pub(crate) resources: Option<cri::LinuxContainerResources>,
    pub(crate) user: Option<cri::LinuxContainerUser>,
    pub(crate) stop_signal: Option<String>,
}

/// The sandboxes and containers of one pod, newest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ObservedPod {
    pub(crate) sandboxes: Vec<ObservedSandbox>,
    pub(crate) containers: Vec<ObservedContainer>,
}

impl ObservedPod {
    /// The newest container of this name.
    pub(crate) fn container(&self, name: &str) -> Option<&ObservedContainer> {
        self.containers.iter().find(|c| c.name == name)
    }

    /// The newest container of this name in the current sandbox.
    pub(crate) fn active_container(&self, name: &str) -> Option<&ObservedContainer> {
        let sandbox = self.sandboxes.first().filter(|s| s.ready)?;
        self.containers.iter().find(|c| c.name == name && c.sandbox == sandbox.id)
    }

    pub(crate) fn ready_sandbox(&self) -> Option<&ObservedSandbox> {
        self.sandboxes.first().filter(|s| s.ready)
    }

    /// Whether the runtime does not list the end of this container or sandbox yet. A container that
    /// ends while it is being started is listed as created, then as running, and only then as
    /// exited.
    pub(crate) fn is_exit_missing(&self, id: &str) -> bool {
        self.containers.iter().any(|c| c.id == id && c.state != ObservedState::Exited)
            || self.sandboxes.iter().any(|s| s.id == id && s.ready)
    }

    /// Sorts the newest first, by number: a clock may have been set back between two of them.
    fn sort(&mut self) {
        self.sandboxes.compact_sort_by_key(|s| std::cmp::Reverse((s.attempt, s.created_at)));
        self.containers.compact_sort_by_key(|c| std::cmp::Reverse((c.restart_count, c.created_at)));
    }

    pub(crate) fn any_running(&self) -> bool {
        self.containers.iter().any(|c| c.state == ObservedState::Running)
    }
}

/// Queries the runtime for the sandboxes and containers of the pod `uid`.
///
/// # Errors
///
/// The runtime does not answer. Objects that vanish between two calls are left out.
pub(crate) async fn observe(runtime: &dyn Runtime, uid: &str) -> Result<ObservedPod, RuntimeError> {
    let (sandboxes, containers) =
        futures::try_join!(runtime.sandboxes(Some(uid)), runtime.containers(Some(uid)))?;
    let sandboxes = sandboxes.iter().map(|s| sandbox(runtime, &s.id));
    let containers = containers.into_iter().map(|c| container(runtime, c));
    let (sandboxes, containers) =
        futures::try_join!(try_join_all(sandboxes), try_join_all(containers))?;
    let mut observed = ObservedPod {
        sandboxes: sandboxes.into_iter().flatten().collect(),
        containers: containers.into_iter().flatten().collect(),
    };
    observed.sort();
    Ok(observed)
}

/// Queries a sandbox; `None` if it does not exist.
///
/// # Errors
///
/// The runtime does not answer.
pub(crate) async fn sandbox(
    runtime: &dyn Runtime,
    id: &str,
) -> Result<Option<ObservedSandbox>, RuntimeError> {
    match runtime.sandbox_status(id).await {
        Ok(status) => Ok(Some(sandbox_of(status))),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

async fn container(
    runtime: &dyn Runtime,
    listed: cri::Container,
) -> Result<Option<ObservedContainer>, RuntimeError> {
    match runtime.container_status(&listed.id).await {
        Ok(status) => Ok(Some(container_of(status, listed.pod_sandbox_id))),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

fn sandbox_of(status: cri::PodSandboxStatus) -> ObservedSandbox {
    let ready = status.state() == cri::PodSandboxState::SandboxReady;
    let network_mode = status
        .linux
        .and_then(|l| l.namespaces)
        .and_then(|n| n.options)
        .map_or(cri::NamespaceMode::Pod, |o| o.network());
    let ips = status.network.map_or_else(Vec::new, |n| {
        let more = n.additional_ips.into_iter().map(|ip| ip.ip);
        std::iter::once(n.ip)
            .chain(more)
            .filter(|ip| ip.parse::<std::net::IpAddr>().is_ok())
            .collect()
    });
    ObservedSandbox {
        id: status.id,
        attempt: status.metadata.map_or(0, |m| m.attempt),
        created_at: status.created_at,
        ready,
        host_network: network_mode == cri::NamespaceMode::Node,
        ips,
    }
}

fn container_of(status: cri::ContainerStatus, sandbox: String) -> ObservedContainer {
    let state = match status.state() {
        cri::ContainerState::ContainerCreated => ObservedState::Created,
        cri::ContainerState::ContainerRunning => ObservedState::Running,
        cri::ContainerState::ContainerExited => ObservedState::Exited,
        cri::ContainerState::ContainerUnknown => ObservedState::Unknown,
    };
    let stop_signal = status.stop_signal();
    let stop_signal = (stop_signal != cri::Signal::RuntimeDefault)
        .then(|| stop_signal.as_str_name().trim_start_matches("SIGNAL_").to_owned());
    let annotation = |key: &str| status.annotations.get(key).cloned().unwrap_or_default();
    ObservedContainer {
        name: status.labels.get(label::CONTAINER_NAME).cloned().unwrap_or_default(),
        hash: annotation(label::HASH),
        restart_count: annotation(label::RESTART_COUNT).parse().unwrap_or_default(),
        id: status.id,
        sandbox,
        state,
        created_at: status.created_at,
        started_at: status.started_at,
        finished_at: status.finished_at,
        exit_code: status.exit_code,
        reason: status.reason,
        message: status.message,
        image: status.image.map(|i| i.image).unwrap_or_default(),
        image_ref: status.image_ref,
        log_path: status.log_path,
        annotations: status.annotations,
        mounts: status.mounts.into_iter().map(|m| (m.container_path, m.host_path)).collect(),
        resources: status.resources.and_then(|r| r.linux),
        user: status.user.and_then(|u| u.linux),
        stop_signal,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A container of the sandbox `s`.
    pub(crate) fn container(name: &str, state: ObservedState) -> ObservedContainer {
        ObservedContainer {
            id: format!("id-{name}"),
            name: name.into(),
            sandbox: "s".into(),
            state,
            created_at: 1,
            started_at: 1,
            finished_at: 2,
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            restart_count: 0,
            image: String::new(),
            image_ref: String::new(),
            hash: String::new(),
            log_path: String::new(),
            annotations: HashMap::new(),
            mounts: Vec::new(),
            resources: None,
            user: None,
            stop_signal: None,
        }
    }

    #[test]
    fn an_announced_exit_is_missing_until_it_is_listed() {
        for (state, lacks) in [
            // The exit came during the start.
            (ObservedState::Created, true),
            (ObservedState::Running, true),
            (ObservedState::Exited, false),
        ] {
            let observed =
                ObservedPod { containers: vec![container("a", state)], ..ObservedPod::default() };
            assert_eq!(observed.is_exit_missing("id-a"), lacks, "{state:?}");
            assert!(!observed.is_exit_missing("id-b"));
        }
    }
}
