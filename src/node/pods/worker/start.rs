//! Creates sandboxes and starts containers.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use client::events::EventType;
use proto::runtime::v1 as cri;

use super::actions::PodActions;
use super::container_config::ContainerImages;
use super::error::{SandboxError, SyncError};
use super::reporter::SharedProgress;
use super::stop::kill;
use crate::config::Config;
use crate::events;
use crate::pods::cri_config;
use crate::pods::cri_config::InvalidPodSpec;
use crate::pods::cri_config::dns;
use crate::pods::handle::pod_must_end;
use crate::pods::image_pull;
use crate::pods::image_pull::RequiredImage;
use crate::pods::observed::{ObservedContainer, ObservedPod, ObservedState};
use crate::pods::pod::{Pod, PodContainer};
use crate::pods::worker::lifecycle_hook;
use crate::probes::handler::HandlerTarget;
use crate::status;
use crate::status::pod::WaitingReason;
use crate::user_namespaces::{self, UserNamespaceError};
use crate::volumes::PodVolumes;
use client::Client;

/// Returns the waiting state of a container whose configuration is invalid.
fn config_error(error: impl ToString) -> WaitingReason {
    WaitingReason { reason: "CreateContainerConfigError", message: error.to_string() }
}

/// Returns the restart count of a container that the runtime has no record of: the greatest number
/// in the names of its log files, `<restart count>.log`, plus one.
fn restart_count_from_logs(folder: &Path) -> i32 {
    let numbers = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.split('.').next()?.parse::<i32>().ok());
    numbers.max().map_or(0, |n| n.saturating_add(1))
}

impl PodActions {
    /// Creates a sandbox, after the claims of the pod are prepared, and returns its id.
    ///
    /// # Errors
    ///
    /// The network is not ready, a claim is not prepared, or the sandbox cannot be created; an
    /// event reports it.
    pub(super) async fn create_sandbox(
        &self,
        pod: &Pod,
        attempt: u32,
    ) -> Result<String, SyncError> {
        let report = |reason: &str, error: SyncError| {
            self.node.api.events.pod_event(pod, EventType::Warning, reason, error.to_string());
            error
        };
        let network = self.node.caches.network_problem.lock().clone();
        if let Some(problem) = network.filter(|_| !pod.host_network()) {
            let error = SyncError::NetworkNotReady(problem);
            return Err(report(events::NETWORK_NOT_READY, error));
        }
        let has_user_namespace = user_namespaces::is_of_pod(pod);
        if has_user_namespace {
            user_namespaces::metrics::STARTED.inc(&[]);
        }
        let created = async {
            self.prepare_claims(pod).await?;
            self.report_dns(pod);
            self.run_sandbox(pod, attempt).await.map_err(|error| {
                report(events::FAILED_CREATE_POD_SANDBOX, SyncError::CreateSandbox(error))
            })
        };
        let id = created.await.inspect_err(|_| {
            if has_user_namespace {
                user_namespaces::metrics::ERRORS.inc(&[]);
            }
        })?;
        self.node.caches.container_owners.insert(&id, &pod.uid);
        Ok(id)
    }

    /// Generates the configuration of the sandbox and has the runtime create and start it.
    async fn run_sandbox(&self, pod: &Pod, attempt: u32) -> Result<String, SandboxError> {
        if let Some(annotations) = pod.annotations().filter(|_| !pod.host_network()) {
            cri_config::check_bandwidth(annotations)?;
        }
        let handler = runtime_handler(&self.node.api.client, pod).await?;
        let user_namespace = self.user_namespace(pod, &handler).await?;
        let config = self.sandbox_config(pod, attempt, user_namespace)?;
        self.node.runtime.cri.run_sandbox(config, &handler).await.map_err(SandboxError::Run)
    }

    /// Records events if the resolver configuration of the pod differs from its specification: the
    /// cluster DNS is missing, or entries beyond the limits are omitted.
    fn report_dns(&self, pod: &Pod) {
        let resolver = dns::pod_dns(pod, &self.node.identity.config);
        if resolver.lacks_cluster_dns {
            let text = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \
                \"ClusterFirst\" policy. Falling back to \"Default\" policy.";
            self.node.api.events.node_event(EventType::Warning, events::MISSING_CLUSTER_DNS, text);
            let pod_name = format!("{}_{}({})", pod.name(), pod.namespace(), pod.uid);
            let message = format!("pod: {pod_name:?}. {text}");
            self.node.api.events.pod_event(
                pod,
                EventType::Warning,
                events::MISSING_CLUSTER_DNS,
                message,
            );
        }
        for message in resolver.omissions {
            self.node.api.events.pod_event(
                pod,
                EventType::Warning,
                events::DNS_CONFIG_FORMING,
                message,
            );
        }
    }

    /// Returns the user namespace of the pod's sandbox. `handler` is that of its RuntimeClass.
    async fn user_namespace(
        &self,
        pod: &Pod,
        handler: &str,
    ) -> Result<cri::UserNamespace, UserNamespaceError> {
        if !user_namespaces::is_of_pod(pod) {
            return Ok(user_namespaces::of_host());
        }
        self.node.user_namespaces.of_pod(&pod.uid, handler).await
    }

    /// Generates the configuration of the pod's sandbox. `attempt` counts its sandboxes from 0.
    fn sandbox_config(
        &self,
        pod: &Pod,
        attempt: u32,
        user_namespace: cri::UserNamespace,
    ) -> Result<cri::PodSandboxConfig, InvalidPodSpec> {
        let config = &self.node.identity.config;
        let cgroup = self.node.runtime.cgroups.pod_path(pod);
        cri_config::sandbox(pod, config, attempt, &cgroup, user_namespace)
    }

    /// Generates the configuration of the pod's sandbox, which exists: its user namespace has the
    /// range that was allocated for it, and its RuntimeClass is not needed again.
    async fn current_sandbox_config(
        &self,
        pod: &Pod,
        attempt: u32,
    ) -> Result<cri::PodSandboxConfig, SandboxError> {
        let range = self.node.user_namespaces.of_sandbox(&pod.uid);
        let user_namespace = match range.filter(|_| user_namespaces::is_of_pod(pod)) {
            Some(allocated) => allocated,
            None if !user_namespaces::is_of_pod(pod) => user_namespaces::of_host(),
            None => {
                let handler = runtime_handler(&self.node.api.client, pod).await?;
                self.user_namespace(pod, &handler).await?
            }
        };
        Ok(self.sandbox_config(pod, attempt, user_namespace)?)
    }

    /// Pulls the images of a container, creates and starts it in the sandbox, and runs its
    /// postStart hook. `attempt` is that of the sandbox.
    ///
    /// # Errors
    ///
    /// The container does not run; the error is its waiting state in the status of the pod.
    pub(super) async fn start(
        &mut self,
        pod: &Arc<Pod>,
        member: &PodContainer,
        sandbox: &str,
        attempt: u32,
        observed: &ObservedPod,
        volumes: &PodVolumes,
    ) -> Result<(), WaitingReason> {
        let newest = observed.container(member.name());
        self.back_off(pod, member, newest)?;
        let sandbox_config = self.current_sandbox_config(pod, attempt).await;
        let sandbox_config = sandbox_config.map_err(config_error)?;
        let images = self.ensure_images(pod, member, &sandbox_config).await?;
        let node = Arc::clone(&self.node);
        // Records the event of a failed start.
        let fail = |why: WaitingReason| {
            let message = format!("Error: {}", why.message);
            let (kind, reason) = (EventType::Warning, events::FAILED);
            node.api.events.container_event(pod, member, kind, reason, message);
            why
        };
        let folder = node
            .identity
            .config
            .pod_log_dir(pod.namespace(), pod.name(), &pod.uid)
            .join(member.name());
        let restart_count = newest.map_or_else(
            || restart_count_from_logs(&folder),
            |c| c.restart_count.saturating_add(1),
        );
        let config =
            self.config_with_devices(pod, member, &images, restart_count, observed, volumes);
        let mut config = config.await.map_err(|e| fail(config_error(e)))?;
        cri_config::join_user_namespace(&mut config, &sandbox_config);
        let cpus = config.linux.as_ref().and_then(|linux| linux.resources.as_ref());
        let cpus = cpus.map(|resources| resources.cpuset_cpus.clone()).unwrap_or_default();
        let log_path = Path::new(&sandbox_config.log_directory).join(&config.log_path);
        std::fs::create_dir_all(&folder).map_err(|e| fail(config_error(e)))?;
        let id = node.runtime.cri.create_container(sandbox, config, sandbox_config).await.map_err(
            |e| fail(WaitingReason { reason: "CreateContainerError", message: e.message }),
        )?;
        node.caches.container_owners.insert(&id, &pod.uid);
        node.resource_managers.container_created(pod, member.name(), &id, cpus).await;
        let report = |reason: &str, message: &str| {
            node.api.events.container_event(pod, member, EventType::Normal, reason, message);
        };
        report(events::CREATED, "Container created");
        // The status shows a container with a postStart hook as running only after the hook.
        let has_hook = member.container.lifecycle.as_ref().is_some_and(|l| l.post_start.is_some());
        let _hidden = has_hook.then(|| HiddenStart::new(&self.progress, &id));
        node.runtime
            .cri
            .start_container(&id)
            .await
            .map_err(|e| fail(WaitingReason { reason: "RunContainerError", message: e.message }))?;
        report(events::STARTED, "Container started");
        link_log(&node.identity.config, pod, member, &id, &log_path);
        self.post_start(pod, member, &id, observed).await
    }

    /// Returns the images of a container and of its volumes, pulled where necessary.
    async fn ensure_images(
        &mut self,
        pod: &Arc<Pod>,
        member: &PodContainer,
        sandbox: &cri::PodSandboxConfig,
    ) -> Result<ContainerImages, WaitingReason> {
        let node = Arc::clone(&self.node);
        let (runtime, api) = (&node.runtime, &node.api);
        let mut desired = self.desired.clone();
        let pull_state = &mut self.pulls;
        let pulled = async {
            let required = RequiredImage::of_container(pod, member);
            let own = image_pull::ensure(runtime, api, required, sandbox, pull_state).await?;
            let volumes =
                image_pull::volume_images(runtime, api, pod, member, sandbox, pull_state).await?;
            Ok::<_, WaitingReason>(ContainerImages { own, volumes })
        };
        tokio::select! {
            biased;
            pulled = pulled => pulled.inspect_err(|why| {
                let message = format!("Error: {}", why.reason);
                let (kind, reason) = (EventType::Warning, events::FAILED);
                api.events.container_event(pod, member, kind, reason, message);
            }),
            // A pod that has to end does not wait for a pull.
            () = pod_must_end(&mut desired) => Err(waiting_to_start(pod)),
        }
    }

    /// Returns the waiting state of an exited container whose restart delay has not passed, and
    /// records an event; otherwise counts the start that follows. `newest` is the last instance of
    /// the container.
    fn back_off(
        &mut self,
        pod: &Pod,
        member: &PodContainer,
        newest: Option<&ObservedContainer>,
    ) -> Result<(), WaitingReason> {
        let Some(ended) = newest.filter(|c| c.state == ObservedState::Exited) else {
            return Ok(());
        };
        let Some((delay, _)) = self.crashes.check(member, ended) else { return Ok(()) };
        let event_message = format!(
            "Back-off restarting failed container {} in pod {}({})",
            member.name(),
            pod_full_name(pod),
            pod.uid
        );
        self.node.api.events.container_event(
            pod,
            member,
            EventType::Warning,
            events::BACK_OFF,
            event_message,
        );
        let message = format!(
            "back-off {} restarting failed container={} pod={}({})",
            go_duration(delay.as_secs()),
            member.name(),
            pod_full_name(pod),
            pod.uid
        );
        Err(WaitingReason { reason: "CrashLoopBackOff", message })
    }

    /// Runs the postStart hook of a started container, if it has one. Stops the container if the
    /// hook fails, and returns its waiting state.
    async fn post_start(
        &self,
        pod: &Arc<Pod>,
        member: &PodContainer,
        id: &str,
        observed: &ObservedPod,
    ) -> Result<(), WaitingReason> {
        let Some(hook) = member.container.lifecycle.as_ref().and_then(|l| l.post_start.as_ref())
        else {
            return Ok(());
        };
        let ips = status::pod::pod_ips(&self.node.identity.config.node_ips(), pod, observed);
        let target = HandlerTarget {
            runtime: &*self.node.runtime.cri,
            container_id: id,
            container: &member.container,
            pod_ip: ips.first().map(String::as_str).unwrap_or_default(),
            user_agent: "kube-lifecycle/1.37",
        };
        // Upstream does not limit the duration of a hook. Here the limit is the grace period, but
        // at least 60 s.
        let limit =
            Duration::from_secs(u64::try_from(pod.grace_seconds()).unwrap_or_default().max(60));
        let mut desired = self.desired.clone();
        let hook = lifecycle_hook::run(&self.node.api.events, pod, target, hook, limit);
        let outcome = tokio::select! {
            biased;
            outcome = hook => outcome,
            // The end of the pod stops the container.
            () = pod_must_end(&mut desired) => return Ok(()),
        };
        let Err(error) = outcome else { return Ok(()) };
        self.node.api.events.container_event(
            pod,
            member,
            EventType::Warning,
            events::FAILED_POST_START_HOOK,
            "PostStartHook failed",
        );
        let grace = Duration::from_secs(u64::try_from(pod.grace_seconds()).unwrap_or_default());
        let ip = target.pod_ip;
        // `observed` is from before the start of this container.
        if let Ok(observed_now) =
            crate::pods::observed::observe(&*self.node.runtime.cri, &pod.uid).await
            && let Some(started) = observed_now.containers.iter().find(|c| c.id == id)
        {
            let message = events::FAILED_POST_START_HOOK;
            let stopped = kill(&self.node, pod, started, ip, grace, message, None).await;
            if let Err(error) = stopped {
                tracing::debug!(pod = %pod.key, %error, "cannot stop container after a failed \
                    postStart hook");
            }
        }
        Err(WaitingReason { reason: "PostStartHookError", message: error.to_string() })
    }
}

/// Hides a container from the status of the pod until the value is dropped, after the postStart
/// hook.
struct HiddenStart {
    progress: SharedProgress,
    id: String,
}

impl HiddenStart {
    fn new(progress: &SharedProgress, id: &str) -> Self {
        progress.lock().starting.insert(id.to_owned());
        Self { progress: Arc::clone(progress), id: id.to_owned() }
    }
}

impl Drop for HiddenStart {
    fn drop(&mut self) {
        self.progress.lock().starting.remove(&self.id);
    }
}

/// Returns the waiting state of a container that has not been started yet.
fn waiting_to_start(pod: &Pod) -> WaitingReason {
    let reason = if pod.has_init_containers() { "PodInitializing" } else { "ContainerCreating" };
    WaitingReason { reason, message: String::new() }
}

/// Returns the runtime handler of the pod's RuntimeClass; empty, which selects the default handler,
/// for a pod without one.
async fn runtime_handler(client: &Client, pod: &Pod) -> Result<String, SandboxError> {
    let Some(name) = pod.spec().runtime_class_name.as_deref().filter(|n| !n.is_empty()) else {
        return Ok(String::new());
    };
    let class: api::k8s::api::node::v1::RuntimeClass =
        client.get("", name).await.map_err(SandboxError::RuntimeClass)?;
    Ok(class.handler)
}

/// Formats the name of a pod as upstream's `GetPodFullName`.
fn pod_full_name(pod: &Pod) -> String {
    format!("{}_{}", pod.name(), pod.namespace())
}

/// Formats seconds as Go formats a duration: `10s`, `2m40s`.
fn go_duration(seconds: u64) -> String {
    match (seconds / 60, seconds % 60) {
        (0, s) => format!("{s}s"),
        (m, s) => format!("{m}m{s}s"),
    }
}

/// Links a container's log at the path that log collectors read (`/var/log/containers`). The start
/// does not fail without the link.
fn link_log(config: &Config, pod: &Pod, member: &PodContainer, id: &str, log: &Path) {
    let link = config.container_log_link(pod.namespace(), pod.name(), member.name(), id);
    let made = std::fs::create_dir_all(&config.container_logs_dir)
        .and_then(|()| std::os::unix::fs::symlink(log, &link));
    if let Err(error) = made {
        tracing::debug!(link = %link.display(), %error, "cannot link the container log");
    }
}
