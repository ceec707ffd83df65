//! The interface to the container runtime, modelled after the CRI, and its errors.

pub(crate) mod containerd;
pub(crate) mod cri;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod image_folder;
pub(crate) mod images;
pub(crate) mod netns;
pub(crate) mod oci_runtime;
pub(crate) mod operations;
pub mod registries;
mod synced_images;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use proto::runtime::v1 as cri_api;

/// A failed call to the runtime.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct RuntimeError {
    /// The call, such as `RunPodSandbox`.
    pub operation: &'static str,
    /// gRPC code.
    pub code: tonic::Code,
    /// The runtime's message.
    pub message: String,
}

impl RuntimeError {
    /// Whether the sandbox, container or image does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code == tonic::Code::NotFound
    }

    /// The error as a Go gRPC client formats it, which the kubelet's events show.
    pub(crate) fn grpc_text(&self) -> String {
        format!("rpc error: code = {:?} desc = {}", self.code, self.message)
    }

    /// Whether the runtime cannot be reached: it restarts, or is not running yet.
    pub fn is_unavailable(&self) -> bool {
        self.code == tonic::Code::Unavailable
    }
}

/// Name and version of the runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeVersion {
    /// `containerd`, `cri-o`.
    pub name: String,
    /// `1.6.20`.
    pub version: String,
}

/// Features of newer runtimes that older ones ignore silently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RuntimeFeatures {
    /// `supplementalGroupsPolicy: Strict`.
    pub strict_groups: bool,
    /// `recursiveReadOnly` of volume mounts, under the default handler.
    pub recursive_read_only: bool,
    /// `lifecycle.stopSignal`.
    pub stop_signal: bool,
    /// Volumes from images (KEP 4639).
    pub image_volumes: bool,
    /// Devices of the Container Device Interface (`CDI_devices` of the protocol, KEP 3063).
    pub cdi_devices: bool,
}

impl RuntimeFeatures {
    /// Reads the features that the runtime reports, and infers the others from its version:
    /// `stopSignal` works with containerd 2.4 and later, image volumes with containerd 2.1 and
    /// CRI-O 1.31 and later, devices of CDI with containerd 1.7 and CRI-O 1.28 and later, and the
    /// protocol reports none of them.
    pub fn of(version: &RuntimeVersion, status: &cri_api::StatusResponse) -> Self {
        let default = status.runtime_handlers.iter().find(|h| h.name.is_empty());
        let mut parts = version.version.trim_start_matches('v').split(['.', '-', '~', '+']);
        let mut number = || parts.next().and_then(|p| p.parse::<u32>().ok()).unwrap_or(0);
        let numbers = (number(), number());
        Self {
            strict_groups: status.features.is_some_and(|f| f.supplemental_groups_policy),
            recursive_read_only: default
                .and_then(|h| h.features)
                .is_some_and(|f| f.recursive_read_only_mounts),
            stop_signal: version.name == "containerd" && numbers >= (2, 4),
            image_volumes: match version.name.as_str() {
                "containerd" => numbers >= (2, 1),
                "cri-o" => numbers >= (1, 31),
                _ => false,
            },
            cdi_devices: match version.name.as_str() {
                "containerd" => numbers >= (1, 7),
                "cri-o" => numbers >= (1, 28),
                _ => true,
            },
        }
    }
}

/// Output of a command that ran in a container.
#[derive(Debug, Clone)]
pub struct ExecOutput {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// Exit code.
    pub exit_code: i32,
}

/// Where the runtime keeps images and the writable layers of containers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageFileSystems {
    /// Bytes that images use.
    pub bytes: u64,
    /// A directory on the file system of images; `None` if the runtime does not report it.
    pub images: Option<PathBuf>,
    /// A directory on the file system of layers; `None` if the runtime does not report it.
    pub layers: Option<PathBuf>,
}

/// A change of a container or sandbox; a hint to observe it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerEvent {
    /// Id of a container or of a sandbox.
    pub id: String,
    /// The kind of change.
    pub kind: ContainerEventKind,
}

/// Kinds of [`ContainerEvent`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerEventKind {
    /// Its process started.
    Started,
    /// Its process ended.
    Exited,
    /// The kernel killed a process for lack of memory.
    OutOfMemory,
    /// It was removed.
    Deleted,
}

/// A request for a streaming session; the response is a URL on the loopback interface.
#[derive(Debug, Clone)]
pub enum StreamingRequest {
    /// Run a command.
    Exec(cri_api::ExecRequest),
    /// Attach to the running process.
    Attach(cri_api::AttachRequest),
    /// Forward ports of the pod.
    PortForward(cri_api::PortForwardRequest),
}

/// The container runtime. Every call has a deadline; a call for a missing object returns
/// `NotFound`.
#[async_trait]
pub trait Runtime: Send + Sync + fmt::Debug {
    /// Returns name and version of the runtime.
    async fn version(&self) -> Result<RuntimeVersion, RuntimeError>;
    /// `RuntimeReady` and `NetworkReady` with reasons, handlers and features.
    async fn status(&self) -> Result<cri_api::StatusResponse, RuntimeError>;
    /// Creates a sandbox with its network; `handler` is that of the RuntimeClass, or empty.
    async fn run_sandbox(
        &self,
        config: cri_api::PodSandboxConfig,
        handler: &str,
    ) -> Result<String, RuntimeError>;
    /// Stops a sandbox with its containers and releases its addresses; idempotent.
    async fn stop_sandbox(&self, id: &str) -> Result<(), RuntimeError>;
    /// Removes a stopped sandbox; idempotent.
    async fn remove_sandbox(&self, id: &str) -> Result<(), RuntimeError>;
    /// Lists sandboxes, of one pod if a uid is given.
    async fn sandboxes(
        &self,
        pod_uid: Option<&str>,
    ) -> Result<Vec<cri_api::PodSandbox>, RuntimeError>;
    /// State and addresses of one sandbox.
    async fn sandbox_status(&self, id: &str) -> Result<cri_api::PodSandboxStatus, RuntimeError>;
    /// Creates a container.
    async fn create_container(
        &self,
        sandbox: &str,
        config: cri_api::ContainerConfig,
        sandbox_config: cri_api::PodSandboxConfig,
    ) -> Result<String, RuntimeError>;
    /// Starts a container.
    async fn start_container(&self, id: &str) -> Result<(), RuntimeError>;
    /// Sends the stop signal and kills the container after `grace`; idempotent.
    async fn stop_container(&self, id: &str, grace: Duration) -> Result<(), RuntimeError>;
    /// Removes a container; idempotent.
    async fn remove_container(&self, id: &str) -> Result<(), RuntimeError>;
    /// Lists containers, of one pod if a uid is given.
    async fn containers(
        &self,
        pod_uid: Option<&str>,
    ) -> Result<Vec<cri_api::Container>, RuntimeError>;
    /// State of one container.
    async fn container_status(&self, id: &str) -> Result<cri_api::ContainerStatus, RuntimeError>;
    /// Changes the limits of a running container.
    async fn update_container(
        &self,
        id: &str,
        resources: cri_api::LinuxContainerResources,
    ) -> Result<(), RuntimeError>;
    /// Runs a command to completion, for at most `timeout`.
    async fn exec(
        &self,
        id: &str,
        command: &[String],
        timeout: Duration,
    ) -> Result<ExecOutput, RuntimeError>;
    /// Prepares a streaming session; returns its URL.
    async fn streaming(&self, request: StreamingRequest) -> Result<String, RuntimeError>;
    /// Reopens the log file after it was renamed.
    async fn reopen_log(&self, id: &str) -> Result<(), RuntimeError>;
    /// Writes the state of a running container to an archive.
    async fn checkpoint_container(
        &self,
        id: &str,
        location: &str,
        timeout: Duration,
    ) -> Result<(), RuntimeError>;
    /// CPU and memory of all containers.
    async fn stats(&self) -> Result<Vec<cri_api::ContainerStats>, RuntimeError>;
    /// Pulls an image; returns its reference by digest.
    async fn pull_image(
        &self,
        image: cri_api::ImageSpec,
        auth: Option<cri_api::AuthConfig>,
        sandbox: cri_api::PodSandboxConfig,
    ) -> Result<String, RuntimeError>;
    /// Returns an image; `None` if it is not present.
    async fn image(&self, reference: &str) -> Result<Option<cri_api::Image>, RuntimeError>;
    /// All images.
    async fn images(&self) -> Result<Vec<cri_api::Image>, RuntimeError>;
    /// Removes an image; idempotent.
    async fn remove_image(&self, reference: &str) -> Result<(), RuntimeError>;
    /// The file systems of images and of the writable layers of containers.
    async fn image_file_systems(&self) -> Result<ImageFileSystems, RuntimeError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_without_a_report_follow_from_the_version() {
        let of = |name: &str, version: &str| {
            let version = RuntimeVersion { name: name.to_owned(), version: version.to_owned() };
            let features = RuntimeFeatures::of(&version, &cri_api::StatusResponse::default());
            [features.cdi_devices, features.image_volumes, features.stop_signal]
        };
        assert_eq!(of("containerd", "1.6.20~ds1"), [false, false, false]);
        assert_eq!(of("containerd", "1.7.0"), [true, false, false]);
        assert_eq!(of("containerd", "v2.1.0-rc.1"), [true, true, false]);
        assert_eq!(of("containerd", "2.4.1"), [true, true, true]);
        assert_eq!(of("cri-o", "1.27.9"), [false, false, false]);
        assert_eq!(of("cri-o", "1.31.0"), [true, true, false]);
    }
}
