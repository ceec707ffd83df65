//! The CRI v1 client of the container runtime: gRPC over a unix socket with a deadline for every
//! call.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hyper_util::rt::TokioIo;
use proto::runtime::v1 as api;
use proto::runtime::v1::image_service_client::ImageServiceClient;
use proto::runtime::v1::runtime_service_client::RuntimeServiceClient;
use tonic::transport::{Channel, Endpoint, Uri};

use super::operations::OperationMetrics;
use super::synced_images::{self, SyncedImages};
use super::{
    ExecOutput, ImageFileSystems, Runtime, RuntimeError, RuntimeVersion, StreamingRequest,
};

/// Deadline of short calls (kubelet's `runtimeRequestTimeout`).
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// Deadline of calls that run CNI plugins to create or stop a sandbox (twice that of other calls,
/// as in the kubelet).
const SANDBOX_TIMEOUT: Duration = Duration::from_secs(240);
/// Deadline of a pull; containerd itself aborts a pull after 5 minutes without progress.
const PULL_TIMEOUT: Duration = Duration::from_secs(3600);
/// Maximum size of a response: lists of a node with many containers and images (kubelet's
/// `maxMsgSize`).
const MESSAGE_MAX: usize = 16 << 20;
/// The label of sandboxes and containers with the uid of their pod.
const POD_UID_LABEL: &str = "io.kubernetes.pod.uid";

/// Returns a lazy channel to a unix socket; it connects with the first call and reconnects after a
/// loss.
pub(crate) fn channel(socket: &Path) -> Channel {
    let socket: PathBuf = socket.to_owned();
    // The URI is required but unused: the connector uses the socket.
    Endpoint::from_static("http://unix").connect_with_connector_lazy(tower::service_fn(
        move |_: Uri| {
            let socket = socket.clone();
            async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
        },
    ))
}

/// A CRI runtime at a unix socket.
#[derive(Debug, Clone)]
pub(crate) struct CriRuntime {
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
    operations: Arc<OperationMetrics>,
    synced_images: Arc<SyncedImages>,
    problems: base::Problems,
}

impl CriRuntime {
    /// Uses another socket for images.
    pub(crate) fn with_image_service(self, socket: &Path) -> Self {
        let images =
            ImageServiceClient::new(channel(socket)).max_decoding_message_size(MESSAGE_MAX);
        Self { images, ..self }
    }

    /// Reports sandboxes that cannot be stopped or removed to `problems`.
    pub(crate) fn with_problems(self, problems: &base::Problems) -> Self {
        Self { problems: problems.clone(), ..self }
    }

    /// Keeps a problem entry for a sandbox until it can be stopped or removed.
    fn report_sandbox_problem(
        &self,
        id: &str,
        verb: &str,
        outcome: Result<(), RuntimeError>,
    ) -> Result<(), RuntimeError> {
        let key = format!("sandbox/{id}");
        match &outcome {
            Ok(()) => self.problems.clear(&key),
            Err(error) => {
                let what = format!("the pod sandbox {id} cannot be {verb}: {error}");
                let fix = "remove what the message names; kube-lite retries";
                self.problems.put(&key, what, fix);
            }
        }
        outcome
    }

    /// Counts and durations of the calls, for metrics.
    pub(crate) fn operations(&self) -> &Arc<OperationMetrics> {
        &self.operations
    }

    pub(crate) fn new(socket: &Path) -> Self {
        let channel = channel(socket);
        Self {
            operations: Arc::default(),
            synced_images: Arc::default(),
            problems: base::Problems::default(),
            runtime: RuntimeServiceClient::new(channel.clone())
                .max_decoding_message_size(MESSAGE_MAX),
            images: ImageServiceClient::new(channel).max_decoding_message_size(MESSAGE_MAX),
        }
    }
}

fn request<T>(message: T, timeout: Duration) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(timeout);
    request
}

/// Awaits a response; enforces the deadline if the runtime does not.
async fn await_response<T>(
    operation: &'static str,
    timeout: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, RuntimeError> {
    let outcome = tokio::time::timeout(timeout + Duration::from_secs(1), call).await;
    match outcome {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(RuntimeError {
            operation,
            code: status.code(),
            message: status.message().to_owned(),
        }),
        Err(_) => Err(RuntimeError {
            operation,
            code: tonic::Code::DeadlineExceeded,
            message: format!("the container runtime did not answer {operation} within {timeout:?}"),
        }),
    }
}

/// Makes a call: `call!(self, client, method, Message { … }, timeout)`.
macro_rules! call {
    ($own:expr, $client:ident, $method:ident, $message:expr, $timeout:expr) => {{
        let mut client = $own.$client.clone();
        let request = request($message, $timeout);
        let begun = base::clock::now();
        let answer = await_response(stringify!($method), $timeout, client.$method(request)).await;
        $own.operations.record(stringify!($method), begun.elapsed(), answer.is_err());
        answer
    }};
    ($own:expr, $client:ident, $method:ident, $message:expr) => {
        call!($own, $client, $method, $message, CALL_TIMEOUT)
    };
}

fn empty_response(operation: &'static str) -> RuntimeError {
    RuntimeError {
        operation,
        code: tonic::Code::NotFound,
        message: format!("the runtime's response to {operation} is empty"),
    }
}

fn uid_selector(pod_uid: Option<&str>) -> HashMap<String, String> {
    pod_uid.map(|uid| (POD_UID_LABEL.to_owned(), uid.to_owned())).into_iter().collect()
}

/// Converts `NotFound` to a success.
fn ignore_not_found<T>(result: Result<T, RuntimeError>) -> Result<(), RuntimeError> {
    match result {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

impl CriRuntime {
    /// Syncs the unpacked layers of an image to disk, before the first container of it starts.
    async fn sync_image(&self, image: &str) {
        if !self.synced_images.is_first(image) {
            return;
        }
        match call!(self, images, image_fs_info, api::ImageFsInfoRequest {}) {
            Ok(answer) => synced_images::sync(answer.image_filesystems).await,
            Err(error) => tracing::warn!(image, %error, "cannot sync an image to disk"),
        }
    }
}

#[async_trait]
impl Runtime for CriRuntime {
    async fn version(&self) -> Result<RuntimeVersion, RuntimeError> {
        let version =
            call!(self, runtime, version, api::VersionRequest { version: "0.1.0".into() })?;
        Ok(RuntimeVersion { name: version.runtime_name, version: version.runtime_version })
    }

    async fn status(&self) -> Result<api::StatusResponse, RuntimeError> {
        call!(self, runtime, status, api::StatusRequest { verbose: false })
    }

    async fn run_sandbox(
        &self,
        config: api::PodSandboxConfig,
        handler: &str,
    ) -> Result<String, RuntimeError> {
        let message =
            api::RunPodSandboxRequest { config: Some(config), runtime_handler: handler.to_owned() };
        let id = call!(self, runtime, run_pod_sandbox, message, SANDBOX_TIMEOUT)?.pod_sandbox_id;
        self.sync_image(crate::runtime::images::pause::IMAGE).await;
        Ok(id)
    }

    async fn stop_sandbox(&self, id: &str) -> Result<(), RuntimeError> {
        let message = api::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        let outcome =
            ignore_not_found(call!(self, runtime, stop_pod_sandbox, message, SANDBOX_TIMEOUT));
        self.report_sandbox_problem(id, "stopped", outcome)
    }

    async fn remove_sandbox(&self, id: &str) -> Result<(), RuntimeError> {
        let message = api::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        let outcome = ignore_not_found(call!(self, runtime, remove_pod_sandbox, message));
        self.report_sandbox_problem(id, "removed", outcome)
    }

    async fn sandboxes(&self, pod_uid: Option<&str>) -> Result<Vec<api::PodSandbox>, RuntimeError> {
        let filter = api::PodSandboxFilter {
            label_selector: uid_selector(pod_uid),
            ..api::PodSandboxFilter::default()
        };
        let message = api::ListPodSandboxRequest { filter: Some(filter) };
        Ok(call!(self, runtime, list_pod_sandbox, message)?.items)
    }

    async fn sandbox_status(&self, id: &str) -> Result<api::PodSandboxStatus, RuntimeError> {
        let message =
            api::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: false };
        call!(self, runtime, pod_sandbox_status, message)?
            .status
            .ok_or_else(|| empty_response("PodSandboxStatus"))
    }

    async fn create_container(
        &self,
        sandbox: &str,
        config: api::ContainerConfig,
        sandbox_config: api::PodSandboxConfig,
    ) -> Result<String, RuntimeError> {
        let image = config.image.as_ref().map(|spec| spec.image.clone()).unwrap_or_default();
        let message = api::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        let id = call!(self, runtime, create_container, message)?.container_id;
        self.sync_image(&image).await;
        Ok(id)
    }

    async fn start_container(&self, id: &str) -> Result<(), RuntimeError> {
        let message = api::StartContainerRequest { container_id: id.to_owned() };
        call!(self, runtime, start_container, message).map(drop)
    }

    async fn stop_container(&self, id: &str, grace: Duration) -> Result<(), RuntimeError> {
        let timeout = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
        let message = api::StopContainerRequest { container_id: id.to_owned(), timeout };
        let deadline = grace.saturating_add(CALL_TIMEOUT);
        ignore_not_found(call!(self, runtime, stop_container, message, deadline))
    }

    async fn remove_container(&self, id: &str) -> Result<(), RuntimeError> {
        let message = api::RemoveContainerRequest { container_id: id.to_owned() };
        ignore_not_found(call!(self, runtime, remove_container, message))
    }

    async fn containers(&self, pod_uid: Option<&str>) -> Result<Vec<api::Container>, RuntimeError> {
        let filter = api::ContainerFilter {
            label_selector: uid_selector(pod_uid),
            ..api::ContainerFilter::default()
        };
        let message = api::ListContainersRequest { filter: Some(filter) };
        Ok(call!(self, runtime, list_containers, message)?.containers)
    }

    async fn container_status(&self, id: &str) -> Result<api::ContainerStatus, RuntimeError> {
        let message = api::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        call!(self, runtime, container_status, message)?
            .status
            .ok_or_else(|| empty_response("ContainerStatus"))
    }

    async fn update_container(
        &self,
        id: &str,
        resources: api::LinuxContainerResources,
    ) -> Result<(), RuntimeError> {
        let message = api::UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(resources),
            ..api::UpdateContainerResourcesRequest::default()
        };
        call!(self, runtime, update_container_resources, message).map(drop)
    }

    async fn exec(
        &self,
        id: &str,
        command: &[String],
        timeout: Duration,
    ) -> Result<ExecOutput, RuntimeError> {
        let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
        let message = api::ExecSyncRequest {
            container_id: id.to_owned(),
            cmd: command.to_vec(),
            timeout: seconds,
        };
        // For the runtime, zero means no limit; the deadline of the call still applies.
        let deadline = if seconds == 0 { CALL_TIMEOUT } else { timeout + Duration::from_secs(10) };
        let output = call!(self, runtime, exec_sync, message, deadline)?;
        Ok(ExecOutput { stdout: output.stdout, stderr: output.stderr, exit_code: output.exit_code })
    }

    async fn streaming(&self, request: StreamingRequest) -> Result<String, RuntimeError> {
        Ok(match request {
            StreamingRequest::Exec(message) => call!(self, runtime, exec, message)?.url,
            StreamingRequest::Attach(message) => call!(self, runtime, attach, message)?.url,
            StreamingRequest::PortForward(message) => {
                call!(self, runtime, port_forward, message)?.url
            }
        })
    }

    async fn reopen_log(&self, id: &str) -> Result<(), RuntimeError> {
        let message = api::ReopenContainerLogRequest { container_id: id.to_owned() };
        call!(self, runtime, reopen_container_log, message).map(drop)
    }

    async fn checkpoint_container(
        &self,
        id: &str,
        location: &str,
        timeout: Duration,
    ) -> Result<(), RuntimeError> {
        let message = api::CheckpointContainerRequest {
            container_id: id.to_owned(),
            location: location.to_owned(),
            timeout: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        };
        call!(self, runtime, checkpoint_container, message, timeout).map(drop)
    }

    async fn stats(&self) -> Result<Vec<api::ContainerStats>, RuntimeError> {
        let message = api::ListContainerStatsRequest { filter: None };
        Ok(call!(self, runtime, list_container_stats, message)?.stats)
    }

    async fn pull_image(
        &self,
        image: api::ImageSpec,
        auth: Option<api::AuthConfig>,
        sandbox: api::PodSandboxConfig,
    ) -> Result<String, RuntimeError> {
        let message =
            api::PullImageRequest { image: Some(image), auth, sandbox_config: Some(sandbox) };
        self.synced_images.forget();
        Ok(call!(self, images, pull_image, message, PULL_TIMEOUT)?.image_ref)
    }

    async fn image(&self, reference: &str) -> Result<Option<api::Image>, RuntimeError> {
        let message = api::ImageStatusRequest { image: Some(spec(reference)), verbose: false };
        match call!(self, images, image_status, message) {
            Ok(answer) => Ok(answer.image),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn images(&self) -> Result<Vec<api::Image>, RuntimeError> {
        Ok(call!(self, images, list_images, api::ListImagesRequest { filter: None })?.images)
    }

    async fn remove_image(&self, reference: &str) -> Result<(), RuntimeError> {
        self.synced_images.forget();
        let message = api::RemoveImageRequest { image: Some(spec(reference)) };
        ignore_not_found(call!(self, images, remove_image, message))
    }

    async fn image_file_systems(&self) -> Result<ImageFileSystems, RuntimeError> {
        let usage = call!(self, images, image_fs_info, api::ImageFsInfoRequest {})?;
        let place = |list: &[api::FilesystemUsage]| {
            let mountpoint = &list.first()?.fs_id.as_ref()?.mountpoint;
            (!mountpoint.is_empty()).then(|| mountpoint.into())
        };
        let bytes = usage.image_filesystems.iter().filter_map(|f| f.used_bytes.as_ref());
        Ok(ImageFileSystems {
            bytes: bytes.map(|b| b.value).sum(),
            images: place(&usage.image_filesystems),
            layers: place(&usage.container_filesystems),
        })
    }
}

fn spec(reference: &str) -> api::ImageSpec {
    api::ImageSpec { image: reference.to_owned(), ..api::ImageSpec::default() }
}
